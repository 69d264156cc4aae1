"""What any ledger does with gangs: all or nothing on one shard, and what two phases over several are made
of."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.wire.columns import CARDS, account_dtype
from resolver.core.values import Leases, ReservationState, Verdict

C, D, ABORTED = Verdict.COMMITTED, Verdict.DUPLICATE, Verdict.GANG_ABORTED
HOUR_MS = 3_600_000


async def requested_cpu(ledger, shard=0):
    rows = (await ledger.state(shard)).snapshot.accounts
    accounts = np.frombuffer(rows.records, account_dtype(rows.resources))
    return dict(
        zip(np.frombuffer(rows.indexes, "<u4").tolist(), accounts["amounts"][:, 0, 1].tolist(), strict=True)
    )


async def pods_held(ledger, shard=0):
    return len((await ledger.state(shard)).reservations.uids)


@pytest.fixture
async def nodes(ledger, make_node):
    """Shard 0 has nodes 0 and 2 with 1,000 milli cpu each and node 4 with a card; shard 1 has node 1 with
    1,000."""
    await ledger.upsert_nodes(
        0, [make_node("a", cpu=1000), make_node("b", cpu=1000), make_node("c", cards=1)]
    )
    await ledger.upsert_nodes(1, [make_node("d", cpu=1000)])
    await ledger.grant("w1")
    return ledger


async def test_a_gang_that_fits_is_committed_whole(nodes, make_proposal):
    gang = replace(make_proposal([1, 2, 3], [[0], [0], [2]], cpu=500), gang_minimum=3)
    [decision] = await nodes.commit(0, [gang])
    assert decision.verdicts.tolist() == [C, C, C]
    assert await requested_cpu(nodes) == {0: 1000, 2: 500, 4: 0}


async def test_invariant_5_a_gang_that_falls_short_of_its_minimum_leaves_no_trace(nodes, make_proposal):
    before = await nodes.seq(0)
    gang = replace(make_proposal([1, 2, 3], [[0], [0], [0]], cpu=400), gang_minimum=3)
    [decision] = await nodes.commit(0, [gang])
    assert decision.verdicts.tolist() == [ABORTED, ABORTED, Verdict.CONFLICT_RESOURCE]
    assert decision.seq == 0
    assert decision.nodes.tolist() == [0, 0, 0]
    assert await nodes.seq(0) == before
    assert await pods_held(nodes) == 0
    assert await requested_cpu(nodes) == {0: 0, 2: 0, 4: 0}


async def test_evidence_for_an_aborted_gang_shows_the_nodes_without_it(nodes, make_proposal):
    gang = replace(make_proposal([1, 2], [[4], [4]], devices=[(1, 1000), (1, 1000)]), gang_minimum=2)
    [decision] = await nodes.commit(0, [gang])
    assert decision.verdicts.tolist() == [ABORTED, Verdict.CONFLICT_DEVICE]
    assert np.frombuffer(decision.fresh.indexes, "<u4").tolist() == [4]
    [account] = np.frombuffer(decision.fresh.records, account_dtype(decision.fresh.resources))
    assert account["amounts"][:, 1].tolist() == [0] * decision.fresh.resources
    assert np.frombuffer(decision.fresh.cards, CARDS.base)[0] == 0


async def test_pods_beyond_the_minimum_may_be_refused(nodes, make_proposal):
    gang = replace(make_proposal([1, 2, 3], [[0], [0], [0]], cpu=400), gang_minimum=2)
    [decision] = await nodes.commit(0, [gang])
    assert decision.verdicts.tolist() == [C, C, Verdict.CONFLICT_RESOURCE]


async def test_pods_of_a_gang_sent_again_count_as_fitting(nodes, make_proposal):
    gang = replace(make_proposal([1, 2], [[0], [0]], cpu=500), gang_minimum=2)
    await nodes.commit(0, [gang])
    [decision] = await nodes.commit(0, [gang])
    assert decision.verdicts.tolist() == [D, D]
    assert await requested_cpu(nodes) == {0: 1000, 2: 0, 4: 0}


async def test_a_gang_of_a_fenced_worker_is_stale_not_aborted(nodes, make_proposal):
    await nodes.grant("w1")
    [decision] = await nodes.commit(0, [replace(make_proposal([1, 2], [[0], [0]]), gang_minimum=2)])
    assert decision.verdicts.tolist() == [Verdict.STALE_EPOCH] * 2


async def test_a_prepared_commit_ends_by_its_own_short_lease(nodes, make_proposal):
    nodes._leases = Leases(commit_ms=HOUR_MS, prepare_ms=0)
    await nodes.commit(0, [make_proposal([1], [[0]]), replace(make_proposal([2], [[2]]), prepared=True)])
    assert await nodes.reap(0) == 1
    assert await requested_cpu(nodes) == {0: 100, 2: 0, 4: 0}


async def test_a_prepared_commit_gets_the_lease_that_it_asks_for_when_it_is_committed(nodes, make_proposal):
    nodes._leases = Leases(commit_ms=0, prepare_ms=0)
    asking = {"prepared": True, "lease_ms": HOUR_MS}
    ended, kept = (replace(make_proposal([pod], [[2 * pod]]), **asking) for pod in (1, 2))
    await nodes.commit(0, [ended])
    assert await nodes.reap(0) == 1, "by its short lease"
    [decision] = await nodes.commit(0, [kept])
    await nodes.commit_prepared(0, kept.uids, seqs_of(decision), kept.writer, lease_ms=HOUR_MS)
    assert await nodes.reap(0) == 0
    assert await pods_held(nodes) == 1


async def test_a_prepared_commit_that_is_committed_has_the_lease_of_a_commit(nodes, make_proposal):
    nodes._leases = Leases(commit_ms=HOUR_MS, prepare_ms=0)
    prepared = replace(make_proposal([1, 2], [[0], [2]]), prepared=True)
    [decision] = await nodes.commit(0, [prepared])
    seqs = np.full(2, decision.seq, np.uint64)
    assert (await nodes.commit_prepared(0, prepared.uids, seqs, prepared.writer)).tolist() == [
        decision.seq + 1
    ] * 2
    assert await nodes.reap(0) == 0
    assert await pods_held(nodes) == 2


async def test_a_commit_that_is_confirmed_gets_no_lease_when_its_gang_is_committed_again(
    nodes, make_proposal
):
    prepared = replace(make_proposal([1], [[0]]), prepared=True)
    [decision] = await nodes.commit(0, [prepared])
    seqs = await nodes.commit_prepared(0, prepared.uids, seqs_of(decision), prepared.writer)
    await nodes.confirm(0, seqs)
    assert (await nodes.commit_prepared(0, prepared.uids, seqs, prepared.writer)).tolist() == seqs.tolist()
    assert (await nodes.leases(0, seqs)).tolist() == [[0, 0]]


def seqs_of(decision):
    return np.array([decision.seq], np.uint64)


async def test_a_prepared_commit_that_expired_cannot_be_committed(nodes, make_proposal):
    nodes._leases = Leases(commit_ms=HOUR_MS, prepare_ms=0)
    prepared = replace(make_proposal([1], [[0]]), prepared=True)
    [decision] = await nodes.commit(0, [prepared])
    await nodes.reap(0)
    assert await nodes.commit_prepared(0, prepared.uids, seqs_of(decision), prepared.writer) == [0]


async def test_aborting_takes_what_that_commit_reserved_and_nothing_else(nodes, make_proposal):
    first, second = make_proposal([1], [[0]]), make_proposal([2], [[2]])
    decisions = await nodes.commit(0, [first, second])
    uids = np.concatenate([first.uids, second.uids])
    seqs = np.array([decisions[0].seq, decisions[0].seq], np.uint64)
    assert await nodes.abort(0, uids, seqs, first.writer) == 1
    assert await requested_cpu(nodes) == {0: 0, 2: 100, 4: 0}


async def test_aborting_ends_nothing_that_is_confirmed(nodes, make_proposal):
    first, second = make_proposal([1], [[0]]), make_proposal([2], [[2]])
    decisions = await nodes.commit(0, [first, second])
    uids = np.concatenate([first.uids, second.uids])
    seqs = np.array([decision.seq for decision in decisions], np.uint64)
    await nodes.confirm(0, seqs[:1])
    assert await nodes.abort(0, uids, seqs, first.writer) == 1
    assert await requested_cpu(nodes) == {0: 100, 2: 0, 4: 0}


async def test_a_gang_of_pods_counted_anew_that_falls_short_leaves_what_they_had(nodes, make_proposal):
    [stood] = await nodes.commit(0, [make_proposal([1], [[0]], cpu=500)])
    gang = replace(make_proposal([1, 2], [[0], [8]], cpu=700, unchecked=True), existing=True, gang_minimum=2)
    [decision] = await nodes.commit(0, [gang])
    assert decision.verdicts.tolist() == [ABORTED, Verdict.NODE_GONE]
    assert await requested_cpu(nodes) == {0: 500, 2: 0, 4: 0}
    [again] = await nodes.commit(0, [make_proposal([1], [[0]], cpu=500)])
    assert again.verdicts.tolist() == [D]
    assert again.duplicate_seqs.tolist() == [stood.seq]


async def test_a_prepared_pod_is_committed_by_its_own_commit_only(nodes, make_proposal):
    nodes._leases = Leases(commit_ms=HOUR_MS, prepare_ms=HOUR_MS)
    prepared = replace(make_proposal([1], [[0]]), prepared=True)
    [decision] = await nodes.commit(0, [prepared])
    earlier = np.array([decision.seq - 1], np.uint64)
    assert (await nodes.commit_prepared(0, prepared.uids, earlier, prepared.writer)).tolist() == [0]
    [state] = (await nodes.lookup(0, prepared.uids))["state"]
    assert state == ReservationState.PREPARED
