"""What any ledger does with moves in one step: the pod has its target, confirmed, and its source is free, or
nothing has changed."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.model.pod import HostPort
from hoss.model.selectors import LabelSelector, Requirement
from hoss.wire.columns import NONE_U32, account_dtype, numbered_uids
from resolver.core.moves import target_proposal
from resolver.core.rules import PlacementRule
from resolver.core.values import Group, Leases, ReservationState, Verdict, Writer, claim_of

HOUR_MS = 3_600_000
WEB = Group(7, b"web", (claim_of(HostPort(80)),), "default", (("app", "web"),))


def pods(*numbers):
    return np.concatenate([numbered_uids(b"test-prefix-", number, 1) for number in numbers])


@pytest.fixture
async def nodes(one_shard, make_node):
    """Nodes 0 to 2 with 1,000 milli cpu and two cards each."""
    ledger, names = one_shard, {"a": "rack-1", "b": "rack-2", "c": "rack-3"}
    await ledger.upsert_nodes(
        0, [make_node(name, cpu=1000, cards=2, labels=[("rack", rack)]) for name, rack in names.items()]
    )
    await ledger.grant("w1")
    ledger.mover = Writer(worker="mover", epoch=await ledger.grant("mover"))
    ledger._leases = Leases(commit_ms=HOUR_MS, prepare_ms=HOUR_MS)
    return ledger


@pytest.fixture
def place(nodes, make_proposal):
    """Binds pods on a node."""

    async def placed(numbers, node, group=None, *, confirmed=True, **what):
        proposal = make_proposal(list(numbers), [[node]] * len(numbers), **what)
        if group is not None:
            proposal = replace(proposal, groups=(group,) * len(proposal.priorities))
        [decision] = await nodes.commit(0, [proposal])
        assert (decision.verdicts == Verdict.COMMITTED).all()
        if confirmed:
            await nodes.confirm(0, np.array([decision.seq], np.uint64))
        return decision.seq

    return placed


async def planned(ledger, numbers, targets, groups=None, **changes):
    """The proposal that moves these pods, from what they hold now."""
    found = await ledger.reservations_of(0, pods(*numbers))
    row_of = {uid.tobytes(): row for row, uid in enumerate(found.uids)}
    held = found.of(np.array([row_of[uid.tobytes()] for uid in pods(*numbers)], np.intp))
    proposal = target_proposal(
        held,
        groups or [None] * len(numbers),
        np.array(targets, np.uint32),
        writer=ledger.mover,
        seen=(await ledger.seq(0),),
        at_once=True,
    )
    return replace(proposal, **changes)


async def moved(ledger, proposal):
    """The verdict for each pod, and where it is by then."""
    [decision] = await ledger.commit(0, [proposal])
    return list(zip(map(Verdict, decision.verdicts.tolist()), decision.nodes.tolist(), strict=True))


async def places(ledger, *numbers):
    """The node and the state of each of these pods that holds anything."""
    found = zip(numbers, await ledger.lookup(0, pods(*numbers)), strict=True)
    return {
        number: (int(at["node"]), ReservationState(int(at["state"])))
        for number, at in found
        if at["node"] != NONE_U32
    }


async def used_cpu(ledger):
    rows = (await ledger.state(0)).snapshot.accounts
    accounts = np.frombuffer(rows.records, account_dtype(rows.resources))
    cpu = accounts["amounts"][:, 0, 1].tolist()
    return {n: c for n, c in zip(np.frombuffer(rows.indexes, "<u4").tolist(), cpu, strict=True) if c}


@pytest.mark.topologies
async def test_a_pod_is_on_its_target_confirmed_and_its_source_is_free_after_one_change(nodes, place):
    await place([1], 0, cpu=600)
    before = await nodes.seq(0)
    assert await moved(nodes, await planned(nodes, [1], [1])) == [(Verdict.COMMITTED, 1)]
    assert await nodes.seq(0) == before + 1
    assert await places(nodes, 1) == {1: (1, ReservationState.CONFIRMED)}
    assert await used_cpu(nodes) == {1: 600}
    state = await nodes.state(0)
    assert (state.moved, state.commit_faults, state.commits.listed) == ({}, [], frozenset())
    assert len(state.reservations.uids) == 1
    assert not state.reservations.targets.any()


async def test_a_copy_of_the_step_finds_the_pod_moved_and_changes_nothing(nodes, place):
    await place([1], 0, cpu=600)
    proposal = await planned(nodes, [1], [1])
    await moved(nodes, proposal)
    before = await nodes.seq(0)
    assert await moved(nodes, proposal) == [(Verdict.DUPLICATE, 1)]
    assert (await nodes.seq(0), await used_cpu(nodes)) == (before, {1: 600})


async def test_a_late_copy_does_not_move_a_pod_that_came_back(nodes, place):
    await place([1], 0, cpu=600)
    late = await planned(nodes, [1], [1])
    await moved(nodes, late)
    await moved(nodes, await planned(nodes, [1], [0]))
    assert await moved(nodes, late) == [(Verdict.DUPLICATE, 0)]
    assert await used_cpu(nodes) == {0: 600}


async def test_a_pod_that_was_released_gets_nothing(nodes, place):
    await place([1], 0, cpu=600)
    proposal = await planned(nodes, [1], [1])
    await nodes.release(0, pods(1))
    assert await moved(nodes, proposal) == [(Verdict.DUPLICATE, NONE_U32)]
    assert await used_cpu(nodes) == {}


async def test_a_pod_that_is_only_prepared_or_terminates_is_not_moved(nodes, place, make_proposal):
    await place([1], 0, cpu=600)
    terminating = await planned(nodes, [1], [1])
    preemptor = make_proposal([9], [[0]], cpu=900, priorities=[9])
    preemptor = replace(preemptor, victims={0: (pods(1)[0].tobytes(),)}, victims_terminate=True)
    await nodes.commit(0, [preemptor])
    [decision] = await nodes.commit(0, [replace(make_proposal([2], [[2]], cpu=100), prepared=True)])
    prepared = replace(terminating, uids=pods(2), source_seqs=np.array([decision.seq], np.uint64))
    assert await moved(nodes, terminating) == [(Verdict.DUPLICATE, 0)]
    assert await moved(nodes, prepared) == [(Verdict.DUPLICATE, NONE_U32)]
    assert 1 not in await used_cpu(nodes)


async def test_the_target_must_fit_while_the_source_stands_and_a_refusal_changes_nothing(nodes, place):
    await place([1], 0, cpu=600)
    await place([2], 1, cpu=500)
    before = await nodes.seq(0)
    assert await moved(nodes, await planned(nodes, [1], [1])) == [(Verdict.CONFLICT_RESOURCE, 1)]
    assert (await nodes.seq(0), await used_cpu(nodes)) == (before, {0: 600, 1: 500})


async def test_nodes_that_changed_closed_or_have_no_card_refuse(nodes, place, make_node):
    await place([1], 0, cpu=100, devices=[(1, 600)])
    await place([2], 1, cpu=100, devices=[(2, 1000)])
    proposal = await planned(nodes, [1], [2])
    assert await moved(nodes, await planned(nodes, [1], [1])) == [(Verdict.CONFLICT_DEVICE, 1)]
    await nodes.upsert_nodes(0, [make_node("c", cpu=2000, cards=2)])
    assert await moved(nodes, proposal) == [(Verdict.CONFLICT_VERSION, 2)]
    await nodes.upsert_nodes(0, [make_node("c", cpu=2000, cards=2, unschedulable=True)])
    assert await moved(nodes, await planned(nodes, [1], [2])) == [(Verdict.NODE_UNSCHEDULABLE, 2)]
    await nodes.remove_nodes(0, ["c"])
    assert await moved(nodes, await planned(nodes, [1], [2])) == [(Verdict.NODE_GONE, 2)]


async def test_ports_cards_and_group_go_with_the_pod(nodes, place):
    await place([1], 0, group=WEB, devices=[(1, 400)])
    before = await nodes.seq(0)
    assert await moved(nodes, await planned(nodes, [1], [1], [WEB])) == [(Verdict.COMMITTED, 1)]
    state = await nodes.state(0)
    assert state.ports == {1: [(pods(1).tobytes(), WEB.ports[0])]}
    assert state.groups == {WEB.key: (WEB.definition, 1)}
    [record] = state.reservations.records
    assert (int(record["card_mask"]), int(record["card_milli"]), int(record["flags"])) == (1, 400, WEB.flags)
    entries = await nodes.feed(0, before, 0)
    runs = [(run.gone, run.nodes) for entry in entries for run in entry.runs]
    assert sorted(runs) == [(False, b"\1\0\0\0"), (True, b"\0\0\0\0")]
    await place([2], 0, group=WEB, devices=[(2, 1000)])  # cards and port are free there


async def test_a_port_that_is_taken_refuses(nodes, place):
    await place([1], 0, group=WEB)
    await place([2], 1, group=WEB)
    assert await moved(nodes, await planned(nodes, [1], [1], [WEB])) == [(Verdict.CONFLICT_PORT, 1)]


async def test_a_pod_that_rules_concern_is_refused_where_the_plan_did_not_know_of_another(nodes, place):
    apart = PlacementRule("rack", LabelSelector((Requirement("app", "In", ("db",)),)), ("default",))
    group = Group(9, b"db", (), "default", (("app", "db"),), (apart,))
    await place([1], 0, group=group)
    proposal = await planned(nodes, [1], [1], [group])
    await place([2], 1, group=group)
    assert await moved(nodes, proposal) == [(Verdict.CONFLICT_TOPOLOGY, 1)]
    before = await nodes.seq(0)
    assert await moved(nodes, await planned(nodes, [1], [2], [group])) == [(Verdict.COMMITTED, 2)]
    # The move is a placement like any other: who has not seen it does not know who is in that rack.
    late = await planned(nodes, [2], [2], [group], seen=(before,), snapshot_seq=before)
    late = replace(late, epoch=await nodes.grant("mover"))
    assert await moved(nodes, late) == [(Verdict.CONFLICT_TOPOLOGY, 2)]


async def test_pods_of_one_call_are_moved_each_on_its_own_the_more_urgent_first(nodes, place):
    await place([1], 0, cpu=400, priorities=[1])
    await place([2], 0, cpu=400, priorities=[5])
    await place([3], 1, cpu=500)
    verdicts = await moved(nodes, await planned(nodes, [1, 2], [1, 1]))
    assert verdicts == [(Verdict.CONFLICT_RESOURCE, 1), (Verdict.COMMITTED, 1)]
    assert await used_cpu(nodes) == {0: 400, 1: 900}


async def test_a_pod_whose_commit_still_has_a_lease_keeps_its_target_when_that_ends(nodes, place):
    nodes._leases = Leases(commit_ms=0)
    await place([1], 0, cpu=600, confirmed=False)
    assert await moved(nodes, await planned(nodes, [1], [1])) == [(Verdict.COMMITTED, 1)]
    await nodes.reap(0)
    assert await places(nodes, 1) == {1: (1, ReservationState.CONFIRMED)}


async def test_victims_of_a_moved_preemptor_hold_again_what_they_held(nodes, place, make_proposal):
    await place([1], 0, cpu=600)
    preemptor = make_proposal([9], [[0]], cpu=900, priorities=[9])
    preemptor = replace(preemptor, victims={0: (pods(1)[0].tobytes(),)}, victims_terminate=True)
    [decision] = await nodes.commit(0, [preemptor])
    await nodes.confirm(0, np.array([decision.seq], np.uint64))
    assert await moved(nodes, await planned(nodes, [9], [1])) == [(Verdict.COMMITTED, 1)]
    assert await used_cpu(nodes) == {0: 600, 1: 900}


async def test_what_a_moved_preemptor_s_victims_hold_again_is_no_room_for_later_pods_of_the_call(
    nodes, place, make_proposal
):
    await place([1], 0, cpu=600)
    preemptor = make_proposal([9], [[0]], cpu=900, priorities=[9])
    preemptor = replace(preemptor, victims={0: (pods(1)[0].tobytes(),)}, victims_terminate=True)
    [decision] = await nodes.commit(0, [preemptor])
    await nodes.confirm(0, np.array([decision.seq], np.uint64))
    await place([2], 2, cpu=500)
    await place([3], 2, cpu=400)
    verdicts = await moved(nodes, await planned(nodes, [9, 2, 3], [1, 0, 0]))
    # The first pod leaves 400: its victim has its 600 again.
    assert verdicts == [(Verdict.COMMITTED, 1), (Verdict.CONFLICT_RESOURCE, 0), (Verdict.COMMITTED, 0)]
    assert await used_cpu(nodes) == {0: 1000, 1: 900, 2: 500}


async def test_a_node_that_shrank_is_whole_again_once_enough_has_left(nodes, place, make_node):
    await place([1], 0, cpu=600)
    await nodes.upsert_nodes(0, [make_node("a", cpu=500, cards=2)])
    await moved(nodes, await planned(nodes, [1], [1]))
    rows = (await nodes.state(0)).snapshot.accounts
    accounts = np.frombuffer(rows.records, account_dtype(rows.resources))
    assert accounts["flags"].tolist() == [0, 0, 0]


async def test_whoever_was_fenced_moves_nothing(nodes, place):
    await place([1], 0, cpu=600)
    proposal = await planned(nodes, [1], [1])
    await nodes.grant("mover")
    assert await moved(nodes, proposal) == [(Verdict.STALE_EPOCH, 1)]
    assert await used_cpu(nodes) == {0: 600}


async def test_the_nodes_of_a_call_are_told_once_each(nodes, place):
    await place([1, 2], 0, cpu=200)
    before = await nodes.seq(0)
    await moved(nodes, await planned(nodes, [1, 2], [1, 1]))
    [entry] = await nodes.feed(0, before, 0)
    assert sorted(np.frombuffer(entry.accounts.indexes, "<u4").tolist()) == [0, 1]
    assert (entry.released, entry.epoch) == (2, nodes.mover.epoch)


async def test_a_pod_that_counted_on_another_one_s_move_is_refused_with_it(nodes, place):
    """Both spread over racks. The plan has the second one where it is allowed after the first one's move."""
    even = PlacementRule(
        "rack", LabelSelector((Requirement("app", "In", ("db",)),)), ("default",), False, False
    )
    group = Group(9, b"db", (), "default", (("app", "db"),), (even,))
    await place([1, 2], 0, group=group, cpu=200)
    await place([3], 1, cpu=900)
    verdicts = await moved(nodes, await planned(nodes, [1, 2], [1, 2], [group, group]))
    assert verdicts == [(Verdict.CONFLICT_RESOURCE, 1), (Verdict.CONFLICT_TOPOLOGY, 2)]
    assert await used_cpu(nodes) == {0: 400, 1: 900}
