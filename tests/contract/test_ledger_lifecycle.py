"""What becomes of reservations and nodes in any ledger. Shard 0 of two, so node indexes are even."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.model.pod import HostPort
from hoss.wire.columns import CARDS, FLAG_SHRUNK, NONE_U32, account_dtype
from resolver.core.values import Verdict
from resolver.ledger.memory import MemoryLedger


async def account_of(ledger, node):
    rows = (await ledger.state(0)).snapshot.accounts
    at = np.frombuffer(rows.indexes, "<u4").tolist().index(node)
    return np.frombuffer(rows.records, account_dtype(rows.resources))[at]


async def cards_of(ledger):
    rows = (await ledger.state(0)).snapshot.accounts
    return np.frombuffer(rows.cards, CARDS.base).reshape(-1, 16)[0].tolist()


def nodes_of(run):
    return np.frombuffer(run.nodes, "<u4").tolist()


@pytest.fixture
async def placed(ledger, make_node, make_proposal):
    """Pods 1 and 2 on node 0 (1,000 milli cpu) with 300 each, pod 3 on node 2; the proposal and its
    decision."""
    await ledger.upsert_nodes(0, [make_node("a", cpu=1000), make_node("b")])
    await ledger.grant("w1")
    proposal = make_proposal([1, 2, 3], [[0], [0], [2]], cpu=300)
    [decision] = await ledger.commit(0, [proposal])
    return ledger, proposal, decision


@pytest.mark.topologies
async def test_release_gives_back_once_and_passes_over_strangers(placed):
    ledger, proposal, _ = placed
    assert await ledger.release(0, proposal.uids[:2]) == 2
    assert await ledger.release(0, proposal.uids) == 1
    assert (await account_of(ledger, 0))["amounts"][:, 1].tolist() == [0] * 6


async def test_a_uid_given_twice_to_release_gives_back_once(placed):
    ledger, proposal, _ = placed
    assert await ledger.release(0, proposal.uids[[0, 0]]) == 1
    assert (await account_of(ledger, 0))["amounts"][0, 1] == 300


@pytest.mark.topologies
async def test_epochs_are_known_by_the_worker_they_were_granted_to(ledger):
    epochs = [await ledger.grant(worker) for worker in ("w1", "w2", "w1")]
    assert await ledger.workers_of([*epochs, 99]) == dict(zip(epochs, ("w1", "w2", "w1"), strict=True))
    assert await ledger.workers_of([]) == {}


@pytest.mark.topologies
async def test_only_what_is_assumed_has_a_lease(placed):
    ledger, _, decision = placed
    seqs = np.array([decision.seq, 0, decision.seq], np.uint64)
    since, ends = (await ledger.leases(0, seqs)).T
    assert ends.tolist() == since.tolist()  # this ledger's leases are over at once
    assert (since[0], since[1]) == (since[2], 0)
    await ledger.confirm(0, seqs[:1])
    assert (await ledger.leases(0, seqs)).tolist() == [[0, 0]] * 3
    assert (await ledger.leases(0, seqs[:0])).shape == (0, 2)


@pytest.mark.topologies
async def test_lookup_tells_node_commit_and_epoch(placed):
    ledger, proposal, decision = placed
    await ledger.release(0, proposal.uids[1:2])
    found = await ledger.lookup(0, proposal.uids)
    assert found["node"].tolist() == [0, NONE_U32, 2]
    assert found["seq"].tolist() == [decision.seq, 0, decision.seq]
    assert found["epoch"].tolist() == [1, 0, 1]


async def test_the_feed_says_which_worker_placed_pods_and_that_none_did_the_rest(placed):
    ledger, proposal, decision = placed
    await ledger.release(0, proposal.uids)
    epochs = {entry.seq: entry.epoch for entry in await ledger.feed(0, 0, 1)}
    assert epochs == {decision.seq - 1: 0, decision.seq: 1, decision.seq + 1: 0}


@pytest.mark.topologies
async def test_what_nobody_confirmed_is_reaped_when_its_lease_is_over(placed):
    ledger, _, _ = placed
    assert await ledger.reap(0) == 3
    assert await ledger.reap(0) == 0
    assert (await ledger.state(0)).reservations.uids.size == 0


async def test_a_commit_with_a_lease_of_its_own_ends_by_that_one(placed, make_proposal):
    ledger, _, _ = placed
    own = replace(make_proposal([9], [[0]]), lease_ms=3_600_000)
    [decision] = await ledger.commit(0, [own])
    assert await ledger.reap(0) == 3, "the leases of the others are over"
    (held,) = await ledger.lookup(0, own.uids)
    assert held["seq"] == decision.seq


@pytest.mark.topologies
async def test_what_was_confirmed_stays(placed):
    ledger, _, decision = placed
    seqs = np.array([decision.seq], np.uint64)
    assert (await ledger.state(0)).reservations.assumed.all()
    assert await ledger.confirm(0, seqs) == 1
    confirmed_at = await ledger.seq(0)
    assert await ledger.confirm(0, seqs) == 0
    assert await ledger.seq(0) == confirmed_at  # nothing has changed
    assert await ledger.reap(0) == 0
    state = await ledger.state(0)
    assert len(state.reservations.uids) == 3
    assert not state.reservations.assumed.any()


async def test_the_reaper_leaves_a_pod_alone_that_was_released_and_placed_anew(placed, make_proposal):
    ledger, proposal, first = placed
    await ledger.release(0, proposal.uids[:1])
    [second] = await ledger.commit(0, [make_proposal([1], [[2]])])
    await ledger.confirm(0, np.array([second.seq], np.uint64))
    assert await ledger.reap(0) == 2  # pods 2 and 3 of the first commit
    found = await ledger.lookup(0, proposal.uids)
    assert found["node"].tolist() == [2, NONE_U32, NONE_U32]
    assert first.seq != second.seq


async def test_a_shrunken_node_is_reported_keeps_what_it_holds_and_gets_nothing_more(
    placed, make_node, make_proposal
):
    ledger, proposal, _ = placed
    upserted = await ledger.upsert_nodes(0, [make_node("a", cpu=500)])
    assert upserted.overcommitted == [0]
    account = await account_of(ledger, 0)
    assert account["flags"] & FLAG_SHRUNK
    assert account["amounts"][0].tolist() == [500, 600]
    [decision] = await ledger.commit(0, [make_proposal([9], [[0]], cpu=1)])
    assert decision.conflicts[["asked", "free"]].tolist() == [(1, -100)]
    await ledger.release(0, proposal.uids[:1])
    assert not (await account_of(ledger, 0))["flags"] & FLAG_SHRUNK


async def test_overcommitment_is_not_excused_by_a_later_change_of_the_node(placed, make_node, make_proposal):
    ledger, _, _ = placed
    await ledger.commit(0, [make_proposal([9], [[0]], cpu=900, unchecked=True)])
    await ledger.upsert_nodes(0, [make_node("a", cpu=900)])
    assert not (await account_of(ledger, 0))["flags"] & FLAG_SHRUNK


async def test_an_unchanged_node_takes_no_sequence_number(placed, make_node):
    ledger, _, decision = placed
    assert (await ledger.upsert_nodes(0, [make_node("a", cpu=1000)])).indexes.tolist() == [0]
    assert await ledger.seq(0) == decision.seq


async def test_an_upsert_that_expects_another_spec_changes_nothing(placed, make_node):
    ledger, _, decision = placed
    now, wanted = make_node("a", cpu=1000), make_node("a", cpu=1000, unschedulable=True)
    assert await ledger.upsert_nodes(0, [wanted], expected=make_node("a", cpu=5).spec) is None
    assert await ledger.seq(0) == decision.seq
    assert await ledger.upsert_nodes(0, [wanted], expected=now.spec) is not None


@pytest.mark.topologies
async def test_removing_a_node_releases_what_it_holds_and_names_the_pods(placed):
    ledger, proposal, _ = placed
    removed = await ledger.remove_nodes(0, ["nobody", "a"])
    assert removed.missing == [0]
    assert sorted(uid.tobytes() for uid in removed.uids) == sorted(uid.tobytes() for uid in proposal.uids[:2])
    assert (await ledger.lookup(0, proposal.uids))["node"].tolist() == [NONE_U32, NONE_U32, 2]
    assert list((await ledger.snapshot(0)).specs) == [2]
    assert (await ledger.remove_nodes(0, ["a"])).missing == [0]


# In memory a removal is one step.
@pytest.mark.parametrize(
    "ledger_url", ["server", pytest.param("cluster", marks=pytest.mark.thorough)], indirect=True
)
async def test_a_removal_that_broke_off_is_completed_by_naming_the_node_again(placed):
    ledger, proposal, _ = placed
    await ledger.run("remove_nodes", 0, names=["a"])  # and its resolver dies
    assert (await ledger.lookup(0, proposal.uids))["node"].tolist() == [0, 0, 2]
    again = await ledger.remove_nodes(0, ["a"])
    assert (len(again.uids), again.missing) == (2, [0])
    assert (await ledger.lookup(0, proposal.uids))["node"].tolist() == [NONE_U32, NONE_U32, 2]


def existing(proposal):
    return replace(proposal, unchecked=True, existing=True)


async def test_an_existing_pod_that_is_listed_twice_is_resized_once(placed, make_proposal):
    ledger, _, _ = placed
    [decision] = await ledger.commit(0, [existing(make_proposal([1, 1], [[0], [0]], cpu=[100, 200]))])
    assert decision.verdicts.tolist() == [Verdict.COMMITTED, Verdict.DUPLICATE]
    assert (await account_of(ledger, 0))["amounts"][0, 1] == 100 + 300


async def test_an_existing_pod_that_is_reserved_on_another_node_stays_there(placed, make_proposal):
    ledger, _, _ = placed
    [decision] = await ledger.commit(0, [existing(make_proposal([1], [[2]], cpu=100))])
    assert (decision.verdicts.tolist(), decision.nodes.tolist()) == ([Verdict.DUPLICATE], [0])
    assert [(await account_of(ledger, node))["amounts"][0, 1] for node in (0, 2)] == [600, 300]


async def test_an_existing_pod_that_is_only_prepared_is_not_resized(ledger, make_node, make_proposal):
    await ledger.upsert_nodes(0, [make_node("a")])
    await ledger.grant("w1")
    await ledger.commit(0, [replace(make_proposal([1], [[0]], cpu=300), prepared=True)])
    [decision] = await ledger.commit(0, [existing(make_proposal([1], [[0]], cpu=100))])
    assert decision.verdicts.tolist() == [Verdict.DUPLICATE]
    assert (await account_of(ledger, 0))["amounts"][0, 1] == 300


async def test_an_existing_pod_that_takes_another_share_of_a_card_is_resized(
    ledger, make_node, make_proposal
):
    await ledger.upsert_nodes(0, [make_node("a", cards=1)])
    await ledger.grant("w1")
    for milli in (300, 200):
        await ledger.commit(0, [existing(make_proposal([1], [[0]], devices=[(1, milli)]))])
        assert (await cards_of(ledger))[0] == milli


async def test_a_node_stays_shrunk_while_a_pod_holds_a_card_that_is_gone(ledger, make_node, make_proposal):
    await ledger.upsert_nodes(0, [make_node("a", cards=2)])
    await ledger.grant("w1")
    proposal = make_proposal([1, 2, 3], [[0]] * 3, devices=[(1, 1000), (1, 1000), (0, 0)])
    await ledger.commit(0, [proposal])
    await ledger.upsert_nodes(0, [make_node("a", cards=1)])
    on_gone = (await ledger.state(0)).reservations
    order = [bytes(on_gone.uids[row]) for row in np.argsort(on_gone.records["card_mask"])]  # none, kept, gone
    shrunk = []
    for uid in order:
        await ledger.release(0, np.frombuffer(uid, np.uint8).reshape(1, -1))
        shrunk.append(bool((await account_of(ledger, 0))["flags"] & FLAG_SHRUNK))
    assert shrunk == [True, True, False]


async def close_for_removal(ledger, name):
    """The first step of a removal alone: the node still holds its pods, as where a resolver died then."""
    if isinstance(ledger, MemoryLedger):
        ledger.arbiters[0].remove([name])
    else:
        await ledger.run("remove_nodes", 0, names=[name])


@pytest.mark.parametrize(("cpu", "exceeds"), [(500, True), (400, True), (1000, False)])
async def test_a_shrunken_node_that_comes_back_before_it_was_forgotten_is_not_overcommitted(
    placed, make_node, cpu, exceeds
):
    ledger, _, _ = placed
    await ledger.upsert_nodes(0, [make_node("a", cpu=500)])
    await close_for_removal(ledger, "a")
    upserted = await ledger.upsert_nodes(0, [make_node("a", cpu=cpu)])
    account = await account_of(ledger, 0)
    assert account["amounts"][0].tolist() == [cpu, 600]
    assert (bool(account["flags"] & FLAG_SHRUNK), upserted.overcommitted) == (exceeds, [0] * exceeds)


async def test_overcommitment_is_not_excused_by_a_removal_and_return_of_the_node(
    placed, make_node, make_proposal
):
    ledger, _, _ = placed
    await ledger.commit(0, [make_proposal([9], [[0]], cpu=900, unchecked=True)])
    await close_for_removal(ledger, "a")
    assert (await ledger.upsert_nodes(0, [make_node("a", cpu=1000)])).overcommitted == [0]
    assert not (await account_of(ledger, 0))["flags"] & FLAG_SHRUNK


async def test_a_node_that_is_being_removed_gets_nothing(placed, make_proposal):
    ledger, _, _ = placed
    await close_for_removal(ledger, "a")
    [decision] = await ledger.commit(0, [make_proposal([9], [[0]])])
    assert decision.verdicts.tolist() == [Verdict.NODE_GONE]


async def test_what_a_node_that_came_back_holds_is_not_taken_for_what_it_held_before(
    placed, make_node, make_proposal
):
    ledger, _, _ = placed
    await ledger.remove_nodes(0, ["a"])
    await ledger.upsert_nodes(0, [make_node("a")])
    proposal = make_proposal([9], [[0]], snapshot_seq=await ledger.seq(0))
    await ledger.commit(0, [proposal])
    assert (await ledger.remove_nodes(0, ["nobody"])).missing == [0]
    assert (await ledger.lookup(0, proposal.uids))["node"].tolist() == [0]


@pytest.mark.topologies
async def test_nodes_are_found_by_name_while_they_are_there(placed, make_node):
    ledger, _, _ = placed
    assert await ledger.nodes_named(0, ["a", "nobody", "b"]) == {
        "a": (0, make_node("a", cpu=1000).spec),
        "b": (2, make_node("b").spec),
    }
    await ledger.remove_nodes(0, ["a"])
    assert list(await ledger.nodes_named(0, ["a", "b"])) == ["b"]
    assert await ledger.nodes_named(0, ["nobody"]) == {}


@pytest.mark.topologies
async def test_a_snapshot_of_named_nodes_is_their_part_of_the_whole_one(placed):
    ledger, _, _ = placed
    assert sorted(await ledger.node_names(0)) == ["a", "b"]
    assert await ledger.node_names(1) == []
    part, whole = await ledger.snapshot_of(0, ["b", "nobody"]), await ledger.snapshot(0)
    assert (part.seq, part.nonce, part.specs) == (whole.seq, whole.nonce, {2: whole.specs[2]})
    rows = np.frombuffer(part.accounts.records, account_dtype(part.accounts.resources))
    assert rows["amounts"][:, 0, 1].tolist() == [300], "what pod 3 has"
    assert await ledger.snapshot_of(0, ["a", "b"]) == whole
    assert (await ledger.snapshot_of(0, ["nobody"])).specs == {}
    await ledger.remove_nodes(0, ["a"])
    assert list((await ledger.snapshot_of(0, ["a", "b"])).specs) == [2]


async def test_a_name_that_comes_back_gets_its_index_and_is_born_anew(placed, make_node):
    ledger, _, _ = placed
    born = (await account_of(ledger, 0))["born"]
    await ledger.remove_nodes(0, ["a"])
    assert (await ledger.upsert_nodes(0, [make_node("a"), make_node("new")])).indexes.tolist() == [0, 4]
    account = await account_of(ledger, 0)
    assert account["born"] > born
    assert account["amounts"][:, 1].tolist() == [0] * 6


async def test_a_card_that_goes_while_held_stays_closed_until_it_is_left(ledger, make_node, make_proposal):
    await ledger.upsert_nodes(0, [make_node("g", cards=2)])
    await ledger.grant("w1")
    proposal = make_proposal([1, 2], [[0], [0]], devices=[(1, 1000), (1, 600)])
    await ledger.commit(0, [proposal])
    assert (await ledger.upsert_nodes(0, [make_node("g", cards=1)])).overcommitted == [0]
    assert await cards_of(ledger) == [1000, 0x8000 + 600] + [0xFFFF] * 14
    [refused] = await ledger.commit(0, [make_proposal([3], [[0]], devices=[(1, 100)])])
    assert refused.verdicts.tolist() == [Verdict.CONFLICT_DEVICE]
    await ledger.release(0, proposal.uids[1:])
    assert await cards_of(ledger) == [1000] + [0xFFFF] * 15
    assert not (await account_of(ledger, 0))["flags"] & FLAG_SHRUNK


@pytest.mark.topologies
async def test_the_schema_only_grows(ledger):
    base = await ledger.schema()
    assert await ledger.schema(["nvidia.com/gpu", "cpu"]) == [*base, "nvidia.com/gpu"]
    assert await ledger.schema() == [*base, "nvidia.com/gpu"]


@pytest.mark.topologies
async def test_the_feed_numbers_every_change_without_gaps(placed):
    ledger, proposal, _ = placed
    await ledger.release(0, proposal.uids[:1])
    await ledger.remove_nodes(0, ["b"])
    entries = await ledger.feed(0, 0, 1)
    assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5]
    assert [index for index, _ in entries[0].specs] == [0, 2]
    assert entries[2].released == 1
    assert entries[3].removed == (2,)
    assert entries[4].released == 1
    assert [entry.seq for entry in await ledger.feed(0, 3, 1)] == [4, 5]


@pytest.mark.topologies
@pytest.mark.parametrize("ending", ["release", "reap", "remove"])
async def test_ports_and_groups_are_given_back_however_a_reservation_ends(
    ledger, make_node, make_proposal, ending
):
    await ledger.upsert_nodes(0, [make_node("a"), make_node("b")])
    await ledger.grant("w1")
    proposal = make_proposal([1, 2], [[0], [2]], slots=[0, 0], ports=[[HostPort(80)]])
    [decision] = await ledger.commit(0, [proposal])
    state = await ledger.state(0)
    assert (sorted(state.ports), [pods for _, pods in state.groups.values()]) == ([0, 2], [2])
    if ending == "release":
        await ledger.release(0, proposal.uids)
    elif ending == "reap":
        assert await ledger.reap(0) == 2
    else:
        await ledger.remove_nodes(0, ["a", "b"])
    state = await ledger.state(0)
    assert (state.ports, state.groups) == ({}, {})
    [entry] = [entry for entry in await ledger.feed(0, decision.seq, 1) if entry.runs]
    [run] = entry.runs
    assert (run.gone, sorted(nodes_of(run)), run.definition) == (True, [0, 2], proposal.groups[0].definition)


@pytest.mark.topologies
async def test_the_feed_names_where_pods_of_a_group_came_and_a_snapshot_where_they_are(
    ledger, make_node, make_proposal
):
    await ledger.upsert_nodes(0, [make_node("a"), make_node("b")])
    await ledger.grant("w1")
    pods = make_proposal([1, 2, 3, 4], [[0], [2], [0], [0]], slots=[0, 1, 0, 2], groups=["web", "db", ""])
    [decision] = await ledger.commit(0, [pods])
    [entry] = await ledger.feed(0, decision.seq - 1, 1)
    assert [(run.definition, nodes_of(run), run.gone) for run in entry.runs] == [
        (b"web", [0, 0], False),
        (b"db", [2], False),
    ]
    await ledger.release(0, pods.uids[:1])
    snapshot = await ledger.snapshot(0, groups=True)
    assert sorted((run.definition, nodes_of(run)) for run in snapshot.runs) == [(b"db", [2]), (b"web", [0])]
    assert (await ledger.snapshot(0)).runs == ()


@pytest.mark.topologies
async def test_nodes_are_found_by_their_names_on_their_own_shard(placed):
    ledger, _, _ = placed
    await ledger.remove_nodes(0, ["b"])
    assert (await ledger.node_indexes(0, ["b", "never-seen", "a"])).tolist() == [NONE_U32, NONE_U32, 0]
    assert (await ledger.node_indexes(1, ["a"])).tolist() == [NONE_U32]
