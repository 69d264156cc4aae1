"""Who may change a ledger, what a change is based on, and the states of a reservation
(docs/adr/0052-who-may-write-and-from-what.md). Shard 0 of two, so node indexes are even."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.errors import LedgerUnavailable
from hoss.wire.columns import NONE_U32, account_dtype, numbered_uids
from resolver.core.values import Leases, ReservationState, Verdict, Writer
from resolver.messages.parts import PartWriter

HOUR_MS = 3_600_000
S = ReservationState


@pytest.fixture
async def nodes(ledger, make_node):
    """Nodes 0 and 2, and worker w1 with epoch 1."""
    ledger._leases = Leases(commit_ms=HOUR_MS, prepare_ms=HOUR_MS)
    await ledger.upsert_nodes(0, [make_node("a", cpu=1000), make_node("b", cpu=1000)])
    assert await ledger.grant("w1") == 1
    return ledger


async def look_up(ledger, uids):
    found = await ledger.lookup(0, uids)
    return [(int(node), S(state)) for node, state in zip(found["node"], found["state"], strict=True)]


def seqs_of(decision):
    return np.full(len(decision.verdicts), decision.seq, np.uint64)


async def allocatable_cpu(ledger, node):
    rows = (await ledger.state(0)).snapshot.accounts
    accounts = np.frombuffer(rows.records, account_dtype(rows.resources))
    return int(accounts[np.frombuffer(rows.indexes, "<u4").tolist().index(node)]["amounts"][0, 0])


async def prepared(ledger, make_proposal, pod=1):
    """A proposal that is only prepared, and its decision."""
    proposal = replace(make_proposal([pod], [[0]]), prepared=True)
    [decision] = await ledger.commit(0, [proposal])
    assert decision.verdicts.tolist() == [Verdict.COMMITTED]
    return proposal, decision


@pytest.mark.topologies
@pytest.mark.parametrize("change", ["release", "confirm", "grant", "upsert", "remove"])
async def test_a_dispatcher_changes_nothing_after_one_with_a_higher_term(
    nodes, make_node, make_proposal, change
):
    proposal = make_proposal([1], [[0]])
    [decision] = await nodes.commit(0, [proposal])
    seqs, old, new = seqs_of(decision), Writer(term=4), Writer(term=5)
    await nodes.confirm(0, np.array([99], np.uint64), new)
    before = await nodes.seq(0)
    changes = {
        "release": lambda: nodes.release(0, proposal.uids, old),
        "confirm": lambda: nodes.confirm(0, seqs, old),
        "grant": lambda: nodes.grant("w1", old),
        "upsert": lambda: nodes.upsert_nodes(0, [make_node("a", cpu=9000)], writer=old),
        "remove": lambda: nodes.remove_nodes(0, ["a"], old),
    }
    with pytest.raises(LedgerUnavailable, match="another dispatcher has taken over"):
        await changes[change]()
    assert await nodes.seq(0) == before
    assert await look_up(nodes, proposal.uids) == [(0, S.ASSUMED)]
    [again] = await nodes.commit(0, [make_proposal([2], [[0]])])
    assert again.verdicts.tolist() == [Verdict.COMMITTED], "the epoch is still in force"
    assert await nodes.release(0, proposal.uids, new) == 1


async def test_an_operator_has_no_term_and_is_obeyed(nodes, make_node):
    await nodes.confirm(0, np.array([99], np.uint64), Writer(term=5))
    assert (await nodes.upsert_nodes(0, [make_node("a", cpu=9000)])).indexes.tolist() == [0]
    assert await allocatable_cpu(nodes, 0) == 9000


@pytest.mark.topologies
async def test_a_late_release_leaves_what_was_reserved_since(nodes, make_proposal):
    """A dispatcher decides to release, its call stalls, a repeated call does it, and the pod is placed anew.
    Then the first call arrives."""
    first = make_proposal([1], [[0]])
    [decision] = await nodes.commit(0, [first])
    as_of = decision.seq
    assert await nodes.release(0, first.uids, Writer(term=1), as_of=as_of) == 1
    await nodes.commit(0, [make_proposal([1], [[2]])])
    assert await nodes.release(0, first.uids, Writer(term=1), as_of=as_of) == 0
    assert await look_up(nodes, first.uids) == [(2, S.ASSUMED)]


async def test_the_state_of_a_reservation_is_told(nodes, make_proposal):
    _, decision = await prepared(nodes, make_proposal, pod=1)
    [assumed] = await nodes.commit(0, [make_proposal([2], [[0]])])
    [confirmed] = await nodes.commit(0, [make_proposal([3], [[2]])])
    assert await nodes.confirm(0, seqs_of(confirmed)) == 1
    uids = make_proposal([1, 2, 3, 4], [[0]] * 4).uids
    told = await look_up(nodes, uids)
    assert told == [(0, S.PREPARED), (0, S.ASSUMED), (2, S.CONFIRMED), (NONE_U32, S.NONE)]
    listed = {
        uid.tobytes(): S(state)
        async for part in nodes.reservations(0)
        for uid, state in zip(part.uids, part.states, strict=True)
    }
    assert [listed[uid.tobytes()] for uid in uids[:3]] == [S.PREPARED, S.ASSUMED, S.CONFIRMED]
    assert decision.seq < assumed.seq


async def test_a_pod_that_is_being_prepared_is_told_apart_until_it_is_confirmed(nodes, make_proposal):
    """Whoever finds it after its worker was lost must not take it for bound."""
    proposal = replace(make_proposal([1, 2], [[0]] * 2), pre_binds=True)
    [decision] = await nodes.commit(0, [proposal])
    assert await look_up(nodes, proposal.uids) == [(0, S.PRE_BINDING)] * 2
    parts = [part async for part in nodes.reservations(0)]
    assert [S(state) for part in parts for state in part.states] == [S.PRE_BINDING] * 2
    assert await nodes.release(0, proposal.uids[:1], Writer(term=1)) == 1
    assert await nodes.confirm(0, seqs_of(decision)[:1]) == 1
    assert await look_up(nodes, proposal.uids) == [(NONE_U32, S.NONE), (0, S.CONFIRMED)]
    [part] = [part async for part in nodes.reservations(0)]
    assert [S(state) for state in part.states] == [S.CONFIRMED]


@pytest.mark.parametrize("what", ["pre_binds", "moves"])
async def test_a_dump_leaves_out_pods_that_are_being_prepared_and_targets_of_moves(
    nodes, make_proposal, what
):
    """A part cannot mark them, and whoever reads it would take them for pods that are bound."""
    assumed = make_proposal([1], [[0]])
    await nodes.commit(0, [assumed])
    await nodes.commit(0, [replace(make_proposal([2], [[0]]), **{what: True})])
    writer = PartWriter(await nodes.schema())
    columns = [part.pods for part in writer.shard(await nodes.state(0)) if part.pods.uids]
    assert b"".join(column.uids for column in columns) == assumed.uids.tobytes()


@pytest.mark.topologies
async def test_a_prepared_commit_of_pods_that_are_being_prepared_is_so_too(nodes, make_proposal):
    proposal = replace(make_proposal([1], [[0]]), prepared=True, pre_binds=True)
    [decision] = await nodes.commit(0, [proposal])
    assert await look_up(nodes, proposal.uids) == [(0, S.PREPARED)]
    await nodes.commit_prepared(0, proposal.uids, seqs_of(decision), proposal.writer)
    assert await look_up(nodes, proposal.uids) == [(0, S.PRE_BINDING)]


@pytest.mark.topologies
async def test_what_is_only_prepared_is_never_confirmed_and_ends_by_itself(nodes, make_proposal):
    """It was told to nobody and never validated. A confirmation made it last for ever, in nobody's index."""
    nodes._leases = Leases(commit_ms=HOUR_MS, prepare_ms=0)
    proposal, decision = await prepared(nodes, make_proposal)
    [other] = await nodes.commit(0, [make_proposal([2], [[2]])])
    assert await nodes.confirm(0, np.array([decision.seq, other.seq], np.uint64)) == 1
    assert await nodes.reap(0) == 1
    assert await look_up(nodes, proposal.uids) == [(NONE_U32, S.NONE)]
    assert (await nodes.snapshot(0)).prepared == ()


async def test_the_last_change_by_an_end_of_leases_is_told_and_no_later_one(nodes, make_node, make_proposal):
    """The binding webhook looks at a node's pods again after each."""
    nodes._leases = Leases(commit_ms=0)
    assert await nodes.reap(0) == 0
    assert nodes.leases_ended[0] == 0
    await nodes.commit(0, [make_proposal([1], [[0]])])
    assert await nodes.reap(0) == 1
    ended = await nodes.seq(0)
    assert nodes.leases_ended[0] == ended
    await nodes.upsert_nodes(0, [make_node("another")])
    assert await nodes.seq(0) > ended
    assert await nodes.reap(0) == 0
    assert nodes.leases_ended[0] == ended


@pytest.mark.topologies
async def test_a_lease_is_prolonged_and_never_shortened(nodes, make_proposal):
    nodes._leases = Leases(commit_ms=0)
    proposal = make_proposal([1], [[0]])
    [decision] = await nodes.commit(0, [proposal])
    for lease_ms in (HOUR_MS, 0):
        held = await nodes.renew(0, proposal.uids, seqs_of(decision), proposal.writer, lease_ms=lease_ms)
        assert held.tolist() == [True]
        assert await nodes.reap(0) == 0
    (since_ms, ends_ms), *_ = (await nodes.leases(0, seqs_of(decision))).tolist()
    assert since_ms < ends_ms - HOUR_MS / 2, "it is not assumed in the future"
    await nodes.confirm(0, seqs_of(decision))
    assert (await nodes.renew(0, proposal.uids, seqs_of(decision), proposal.writer, lease_ms=0)).tolist() == [
        True
    ]
    assert (await nodes.leases(0, seqs_of(decision))).tolist() == [[0, 0]]


@pytest.mark.topologies
async def test_no_lease_is_prolonged_of_what_is_prepared_or_gone_or_by_a_fenced_writer(nodes, make_proposal):
    nodes._leases = Leases(commit_ms=0, prepare_ms=0)
    proposal, decision = await prepared(nodes, make_proposal)

    async def renewed(of, seqs):
        return (await nodes.renew(0, of.uids, seqs, of.writer, lease_ms=HOUR_MS)).tolist()

    assert await renewed(proposal, seqs_of(decision)) == [False]
    assert await nodes.reap(0) == 1
    assert await renewed(proposal, seqs_of(decision)) == [False]
    other = make_proposal([2], [[0]])
    [decision] = await nodes.commit(0, [other])
    assert await renewed(other, seqs_of(decision) - np.uint64(1)) == [False]
    await nodes.grant("w1")
    assert await renewed(other, seqs_of(decision)) == [False]
    assert await nodes.reap(0) == 1


@pytest.mark.topologies
async def test_a_look_up_ends_what_a_fenced_worker_had_prepared_and_nothing_else(nodes, make_proposal):
    assert await nodes.grant("w2") == 2
    dead, _ = await prepared(nodes, make_proposal, pod=1)
    living = replace(make_proposal([2], [[0]], worker="w2", epoch=2), prepared=True)
    await nodes.commit(0, [living, make_proposal([3], [[2]])])
    await nodes.grant("w1")
    uids = make_proposal([1, 2, 3], [[0]] * 3).uids
    assert await look_up(nodes, uids) == [(NONE_U32, S.NONE), (0, S.PREPARED), (2, S.ASSUMED)]
    assert await look_up(nodes, dead.uids) == [(NONE_U32, S.NONE)]
    left = (await nodes.state(0)).reservations.uids
    assert sorted(map(bytes, left)) == sorted(map(bytes, uids[1:])), "its room is given back"


@pytest.mark.topologies
async def test_for_a_fenced_worker_nothing_is_committed_that_was_prepared_before(nodes, make_proposal):
    proposal, decision = await prepared(nodes, make_proposal)
    await nodes.grant("w1")
    committed = await nodes.commit_prepared(0, proposal.uids, seqs_of(decision), proposal.writer)
    assert committed.tolist() == [0]
    assert await look_up(nodes, proposal.uids) == [(NONE_U32, S.NONE)]


async def test_for_a_fenced_worker_nothing_is_aborted_that_its_dispatcher_may_have_confirmed(
    nodes, make_proposal
):
    """A gang of which one part was committed: its worker is fenced, the dispatcher looks the part up and
    confirms it, and then the resolver finds the other part gone."""
    proposal = make_proposal([1], [[0]])
    [decision] = await nodes.commit(0, [proposal])
    await nodes.grant("w1")
    assert await nodes.confirm(0, seqs_of(decision)) == 1
    assert await nodes.abort(0, proposal.uids, seqs_of(decision), proposal.writer) == 0
    assert await look_up(nodes, proposal.uids) == [(0, S.CONFIRMED)]


@pytest.mark.topologies
async def test_an_older_node_object_changes_nothing(nodes, make_node):
    def of(version, cpu):
        return replace(make_node("a", cpu=cpu), resource_version=version)

    await nodes.upsert_nodes(0, [of(7, 5000)])
    await nodes.upsert_nodes(0, [of(6, 9000)])
    assert await allocatable_cpu(nodes, 0) == 5000
    await nodes.upsert_nodes(0, [of(8, 6000)])
    assert await allocatable_cpu(nodes, 0) == 6000
    await nodes.upsert_nodes(0, [of(0, 7000)])  # from somebody who knows no object
    assert await allocatable_cpu(nodes, 0) == 7000


async def test_a_node_that_was_removed_comes_back_whatever_its_version(nodes, make_node):
    await nodes.upsert_nodes(0, [replace(make_node("a", cpu=5000), resource_version=7)])
    await nodes.remove_nodes(0, ["a"])
    await nodes.upsert_nodes(0, [replace(make_node("a", cpu=6000), resource_version=3)])
    assert await allocatable_cpu(nodes, 0) == 6000


async def test_thousands_of_commits_expire_together(nodes, make_proposal, make_node):
    nodes._leases = Leases(commit_ms=0)
    await nodes.upsert_nodes(0, [make_node("c", pods=5000)])
    await nodes.commit(0, [make_proposal([pod], [[4]], cpu=0) for pod in range(2000)])
    assert await nodes.reap(0) == 2000
    assert await nodes.reap(0) == 0


@pytest.mark.topologies
@pytest.mark.parametrize("ledger_url", ["server"], indirect=True)  # the model takes no limit
async def test_no_step_of_a_reaping_takes_more_pods_than_it_may_but_for_the_last_commit(nodes, make_proposal):
    nodes._leases = Leases(commit_ms=0, prepare_ms=0)
    await nodes.commit(0, [make_proposal([pod, pod + 10], [[0], [0]]) for pod in (1, 2, 3)])
    steps = [(await nodes.run("reap", 0, most=most))[:2] for most in (3, 3, 3)]
    assert steps == [[4, 1], [2, 0], [0, 0]]


async def test_the_ledger_keeps_the_highest_term_and_the_newest_write_to_the_journal_that_it_was_told_of(
    ledger,
):
    assert (await ledger.summary()).marks == (0, (0, 0))
    nobody = numbered_uids(b"test-prefix-", 1, 1)
    for shard, term, write, expected in (
        (0, 2, 0, (2, (0, 0))),
        (1, 2, 9, (2, (2, 9))),
        (1, 2, 8, (2, (2, 9))),  # arrives late
        (0, 2, 7, (2, (2, 9))),
        (1, 3, 0, (3, (2, 9))),
        (0, 3, 1, (3, (3, 1))),
        (0, 3, 10, (3, (3, 10))),
    ):
        await ledger.release(shard, nobody, Writer(term, journal_write=write))
        assert (await ledger.summary()).marks == expected
    with pytest.raises(LedgerUnavailable):
        await ledger.release(0, nobody, Writer(2, journal_write=99))
    assert (await ledger.summary()).marks == (3, (3, 10))


async def test_of_too_many_workers_the_ones_with_the_oldest_epochs_are_fenced(
    ledger, make_node, make_proposal, monkeypatch
):
    monkeypatch.setattr("resolver.core.values.MOST_WORKERS", 10)
    await ledger.upsert_nodes(0, [make_node("a")])
    epochs = {f"w{number}": await ledger.grant(f"w{number}") for number in range(25)}
    there = [name for name in epochs if await ledger.is_registered(0, name)]
    assert len(there) == 9  # a tenth of the most is forgotten at once
    assert there == list(epochs)[-len(there) :]

    async def committed(name: str, uid: int) -> bool:
        proposal = replace(make_proposal([uid], [[0]], cpu=10), worker=name, epoch=epochs[name])
        [decision] = await ledger.commit(0, [proposal])
        return bool(decision.verdicts.item(0) == Verdict.COMMITTED)

    assert await committed("w24", 1)
    assert not await committed("w0", 2)
    epochs["w0"] = await ledger.grant("w0")  # it registers again
    assert await committed("w0", 2)
