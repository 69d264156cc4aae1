"""Two phases over the shards of any ledger: room is taken on all of them or on none. What may happen between
is in test_gang_crashes."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from hoss.v1 import resolver_pb2 as pb
from resolver.api.committing import Committer
from resolver.api.two_phase import commit_parts, decide_alone
from resolver.core.values import Leases, ReservationState, Verdict
from resolver.kubernetes.existing_pods import ExistingPodReservations

pytestmark = pytest.mark.topologies

C, D, ABORTED = Verdict.COMMITTED, Verdict.DUPLICATE, Verdict.GANG_ABORTED
HOUR_MS = 3_600_000


@pytest.fixture
async def nodes(ledger, make_node):
    """One node of 1,000 milli cpu on each of two shards."""
    ledger._leases = Leases(commit_ms=HOUR_MS, prepare_ms=0)
    await ledger.upsert_nodes(0, [make_node("a", cpu=1000)])
    await ledger.upsert_nodes(1, [make_node("b", cpu=1000)])
    await ledger.grant("w1")
    await ledger.grant("w2")
    return ledger


@pytest.fixture
def decide(nodes):
    async def run(parts, minimum):
        committers = [Committer(nodes, shard) for shard in range(2)]
        lanes = [asyncio.ensure_future(committer.run()) for committer in committers]
        try:
            return await commit_parts(nodes, committers, parts, minimum)
        finally:
            for lane in lanes:
                lane.cancel()

    return run


async def held(ledger):
    return [len((await ledger.state(shard)).reservations.uids) for shard in range(2)]


async def reap(ledger):
    return [await ledger.reap(shard) for shard in range(2)]


def parts_of(make_proposal, cpu, *, first=1, worker="w1", epoch=1):
    return [
        (shard, make_proposal([first + shard], [[shard]], cpu=cpu, worker=worker, epoch=epoch))
        for shard in (1, 0)
    ]


async def test_a_gang_on_two_shards_is_committed_on_both_and_outlives_its_prepare_leases(
    nodes, decide, make_proposal
):
    decisions = await decide(parts_of(make_proposal, 600), 2)
    assert [decision.verdicts.tolist() for decision in decisions] == [[C], [C]]
    assert await reap(nodes) == [0, 0]
    assert await held(nodes) == [1, 1]


async def test_invariant_5_a_gang_refused_on_one_shard_holds_nothing_on_the_other(
    nodes, decide, make_proposal
):
    await nodes.commit(1, [make_proposal([9], [[1]], cpu=600)])
    # Three pods on the other shard: to give back one of them would be half of the gang's release.
    parts = [(1, make_proposal([1], [[1]], cpu=600)), (0, make_proposal([2, 3, 4], [[0]] * 3))]
    decisions = await decide(parts, 4)
    found = [decision.verdicts.tolist() for decision in decisions]
    assert found == [[Verdict.CONFLICT_RESOURCE], [ABORTED] * 3]
    assert [decision.seq for decision in decisions] == [0, 0]
    assert await held(nodes) == [0, 1]


async def test_a_gang_refused_on_the_first_shard_is_not_tried_on_the_next(nodes, decide, make_proposal):
    await nodes.commit(0, [make_proposal([9], [[0]], cpu=600)])
    before = await nodes.seq(1)
    decisions = await decide(parts_of(make_proposal, 600), 2)
    assert [decision.verdicts.tolist() for decision in decisions] == [[ABORTED], [Verdict.CONFLICT_RESOURCE]]
    assert await nodes.seq(1) == before


async def test_a_gang_whose_minimum_fits_without_the_refused_pods_is_committed(nodes, decide, make_proposal):
    await nodes.commit(1, [make_proposal([9], [[1]], cpu=600)])
    decisions = await decide(parts_of(make_proposal, 600), 1)
    assert [decision.verdicts.tolist() for decision in decisions] == [[Verdict.CONFLICT_RESOURCE], [C]]
    assert await reap(nodes) == [0, 0]


async def test_of_two_gangs_that_want_the_same_shards_at_once_one_gets_all_and_the_other_nothing(
    nodes, decide, make_proposal
):
    ours = parts_of(make_proposal, 600)
    theirs = parts_of(make_proposal, 600, first=5, worker="w2", epoch=2)
    outcomes = await asyncio.gather(decide(ours, 2), decide(theirs, 2))
    committed = [all(int(decision.verdicts[0]) == C for decision in decisions) for decisions in outcomes]
    assert sorted(committed) == [False, True]
    assert await held(nodes) == [1, 1]
    winners = ours if committed[0] else theirs
    for shard, proposal in winners:
        assert (await nodes.lookup(shard, proposal.uids))["node"].tolist() == [shard]


async def test_a_fenced_worker_gets_nothing_on_any_shard(nodes, decide, make_proposal):
    stale = [(shard, replace(proposal, epoch=0)) for shard, proposal in parts_of(make_proposal, 600)]
    decisions = await decide(stale, 2)
    assert Verdict.STALE_EPOCH in np.concatenate([decision.verdicts for decision in decisions]).tolist()
    assert await held(nodes) == [0, 0]


# -- a pod that may hold nothing on another shard


@pytest.fixture
def decide_exclusively(nodes, make_proposal):
    """The decision on pod 1 and a node, as (verdict, node). `before_looking`: is awaited after the pod is
    prepared."""

    async def run(node, *, worker="w1", epoch=1, before_looking=None):
        proposal = replace(
            make_proposal([1], [[node]], cpu=100, worker=worker, epoch=epoch),
            exclusive=True,
            seen=(2**40,) * 2,
        )

        async def decide(proposed):
            [decision] = await nodes.commit(node % 2, [proposed])
            if before_looking is not None:
                await before_looking()
            return decision

        decision = await decide_alone(nodes, decide, node % 2, proposal)
        return Verdict(decision.verdicts[0]), int(decision.nodes[0])

    return run


async def states(ledger, uids):
    return [ReservationState((await ledger.lookup(shard, uids))["state"][0]) for shard in range(2)]


async def test_of_proposals_of_one_pod_on_two_shards_at_once_none_counts_before_it_is_the_only_one(
    nodes, make_proposal, decide_exclusively
):
    uids, none = make_proposal([1], [[0]]).uids, ReservationState.NONE

    async def other():
        assert await decide_exclusively(1, worker="w2", epoch=2) == (D, 0)
        assert await states(nodes, uids) == [ReservationState.PREPARED, none]

    assert await decide_exclusively(0, before_looking=other) == (C, 0)
    assert await states(nodes, uids) == [ReservationState.ASSUMED, none]
    assert await decide_exclusively(1, worker="w2", epoch=2) == (D, 0)
    assert await states(nodes, uids) == [ReservationState.ASSUMED, none]


async def test_of_two_proposals_of_one_pod_that_are_both_prepared_before_either_looks_one_yields_at_least(
    nodes, make_proposal, decide_exclusively
):
    prepared = asyncio.Barrier(2)
    answers = await asyncio.gather(
        decide_exclusively(0, before_looking=prepared.wait),
        decide_exclusively(1, worker="w2", epoch=2, before_looking=prepared.wait),
    )
    committed = [verdict for verdict, _ in answers].count(C)
    assert committed <= 1
    assert (await states(nodes, make_proposal([1], [[0]]).uids)).count(ReservationState.NONE) == 2 - committed


async def test_a_proposal_for_another_node_of_the_shard_leaves_what_is_prepared_as_it_is(
    nodes, make_proposal, make_node, decide_exclusively
):
    await nodes.upsert_nodes(0, [make_node("c", cpu=1000)])
    uids = make_proposal([1], [[0]]).uids

    async def other():
        assert await decide_exclusively(2, worker="w2", epoch=2) == (D, 0)
        assert (await states(nodes, uids))[0] == ReservationState.PREPARED

    assert await decide_exclusively(0, before_looking=other) == (C, 0)


async def test_both_places_of_a_pod_that_a_worker_placed_while_others_bound_it_count_until_it_is_seen(
    nodes, make_proposal, decide_exclusively
):
    """A worker does not look at other shards (ADR 114). Nobody gets the room of either place meanwhile, and
    what the mirror then says counts."""
    uids, assumed = make_proposal([1], [[0]]).uids, ReservationState.ASSUMED
    lookup, committed = nodes.lookup, []

    async def look(shard, asked):
        found = await lookup(shard, asked)
        if shard == 1 and not committed:  # the answer is on its way when the worker's proposal is decided
            committed.extend(await nodes.commit(1, [make_proposal([1], [[1]], cpu=100)]))
        return found

    nodes.lookup = look
    assert await decide_exclusively(0, worker="w2", epoch=2) == (C, 0)
    assert committed[0].verdicts.tolist() == [C]
    assert await states(nodes, uids) == [assumed, assumed]
    for node in (0, 1):
        [full] = await nodes.commit(node % 2, [make_proposal([9], [[node]], cpu=950)])
        assert full.verdicts.tolist() == [Verdict.CONFLICT_RESOURCE], "both places count"
    kind = pb.PodKind()
    for resource, amount in (("cpu", 100), ("pods", 1)):
        kind.requests.add(resource=resource, amount=amount)
    columns = pb.PodColumns(uids=uids.tobytes(), nodes=bytes(4), kinds=bytes(4))
    epoch = await nodes.grant("mirror")
    request = pb.UpsertPodsRequest(writer="mirror", epoch=epoch, kinds=[kind], pods=columns)
    await ExistingPodReservations(nodes, None).upsert(request)
    assert await states(nodes, uids) == [ReservationState.CONFIRMED, ReservationState.NONE]
    [freed] = await nodes.commit(1, [make_proposal([9], [[1]], cpu=950)])
    assert freed.verdicts.tolist() == [C]


async def test_what_a_pod_holds_for_longer_is_not_given_up_for_what_it_holds_elsewhere(
    nodes, make_proposal, decide_exclusively
):
    """As when a worker reserved for the pod as well."""
    uids, assumed = make_proposal([1], [[0]]).uids, ReservationState.ASSUMED
    for node in (0, 1):
        await nodes.commit(node, [make_proposal([1], [[node]], cpu=100)])
    assert await decide_exclusively(0, worker="w2", epoch=2) == (D, 0)
    assert await states(nodes, uids) == [assumed, assumed]
