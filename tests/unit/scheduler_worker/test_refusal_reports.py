"""Refusals are laid to the worker that placed pods on the same node since the loser's view, once the feed
shows who that was."""

import numpy as np
import pytest

from hoss.v1 import workerlink_pb2
from hoss.wire.columns import U8, U32, U64, decode
from scheduler_worker import messages
from scheduler_worker.core.cycle.refusals import AGE_STEPS, WORST_NODES, ConflictAttribution
from scheduler_worker.core.messages import AccountBatch, FeedUpdate

ME, RIVAL, THIRD = 5, 7, 8
RESOURCE, TOPOLOGY = 3, 6


def entry(seq, *nodes, by=0, shard=0, snapshot=False, shards=0):
    none = np.zeros(0, np.uint32)
    accounts = AccountBatch(np.array(nodes, np.uint32), none, none, none)
    return FeedUpdate(shard, seq, accounts, snapshot=snapshot, shards=shards, worker_epoch=by)


@pytest.fixture
def refusals():
    found = ConflictAttribution()
    found.restart(ME)
    found.observe(entry(1, *range(10), snapshot=True, shards=1))
    return found


def refuse(refusals, *nodes, verdict=RESOURCE, since=1, as_of, age_seconds=0.0, shard=0):
    verdicts = np.full(len(nodes), verdict, np.uint8)
    refusals.refused(
        shard, np.array(nodes, np.intp), verdicts, snapshot_seq=since, as_of=as_of, age_seconds=age_seconds
    )


def told(refusals):
    """{(winner, verdict): pods}."""
    report = refusals.take()
    if report is None:
        return {}
    return dict(
        zip(
            zip(report.winners.tolist(), report.verdicts.tolist(), strict=True),
            report.counts.tolist(),
            strict=True,
        )
    )


def test_the_winner_is_who_placed_there_since_the_view(refusals):
    refusals.observe(entry(2, 3, 4, by=RIVAL))
    refuse(refusals, 3, 3, 4, as_of=2)
    assert told(refusals) == {(RIVAL, RESOURCE): 3}


def test_a_refusal_waits_until_the_feed_shows_who_it_was(refusals):
    refuse(refusals, 3, as_of=2)
    assert refusals.take() is None
    refusals.observe(entry(2, 3, by=RIVAL))
    assert told(refusals) == {(RIVAL, RESOURCE): 1}


def test_the_sums_of_a_report_agree_while_other_refusals_wait(refusals):
    refusals.observe(entry(2, 3, by=RIVAL))
    refuse(refusals, 3, as_of=2)
    refuse(refusals, 3, 4, as_of=9)
    report = refusals.take()
    sums = (report.counts, report.nodes[:, 1], report.seqs_behind, report.ages_ms)
    assert [int(each.sum()) for each in sums] == [1, 1, 1, 1]


def test_the_last_of_several_winners_counts_and_own_commits_do_not(refusals):
    refusals.observe(entry(2, 3, by=THIRD))
    refusals.observe(entry(3, 3, by=RIVAL))
    refusals.observe(entry(4, 3, by=ME))
    refuse(refusals, 3, as_of=4)
    assert told(refusals) == {(RIVAL, RESOURCE): 1}


def test_where_no_other_placed_anything_it_was_the_worker_itself(refusals):
    refusals.observe(entry(2, 3, by=ME))
    refuse(refusals, 3, as_of=2)
    assert told(refusals) == {(ME, RESOURCE): 1}


def test_who_placed_there_after_the_refusal_is_not_to_blame(refusals):
    refusals.observe(entry(2, 3, by=RIVAL))
    refusals.observe(entry(3, 3, by=THIRD))
    refuse(refusals, 3, as_of=2)
    assert told(refusals) == {(RIVAL, RESOURCE): 1}


def test_who_placed_there_before_the_view_is_not_to_blame(refusals):
    refusals.observe(entry(2, 3, by=RIVAL))
    refuse(refusals, 3, since=2, as_of=2)
    assert told(refusals) == {(0, RESOURCE): 1}


def test_a_node_that_shrank_or_went_is_nobody_s_win(refusals):
    refusals.observe(entry(2, 3))
    refuse(refusals, 3, as_of=2)
    assert told(refusals) == {(0, RESOURCE): 1}


def test_reasons_are_told_apart(refusals):
    refusals.observe(entry(2, 3, by=RIVAL))
    refuse(refusals, 3, as_of=2)
    refuse(refusals, 3, 3, verdict=TOPOLOGY, as_of=2)
    assert told(refusals) == {(RIVAL, RESOURCE): 1, (RIVAL, TOPOLOGY): 2}


def test_after_a_snapshot_nobody_is_blamed_for_what_was_missed(refusals):
    refusals.observe(entry(2, 3, by=RIVAL))
    refuse(refusals, 3, as_of=5)
    refusals.observe(entry(9, 3, snapshot=True, shards=1))
    assert told(refusals) == {(0, RESOURCE): 1}


def test_shards_have_histories_of_their_own(refusals):
    refusals.observe(entry(5, 1, 3, by=RIVAL, shard=1, shards=2))
    refuse(refusals, 3, as_of=5, shard=1)
    refuse(refusals, 4, as_of=2, shard=0)
    assert told(refusals) == {(RIVAL, RESOURCE): 1}


def test_a_report_begins_anew_after_it_was_taken(refusals):
    refusals.observe(entry(2, 3, by=RIVAL))
    refuse(refusals, 3, as_of=2)
    told(refusals)
    assert refusals.take() is None
    refuse(refusals, 3, as_of=2)
    assert told(refusals) == {(RIVAL, RESOURCE): 1}


def test_ages_fall_into_steps_that_double(refusals):
    for behind, age in ((0, 0.0), (1, 0.001), (3, 0.005), (4, 1.0), (2**40, 1e9)):
        refuse(refusals, 3, since=2, as_of=2 + behind, age_seconds=age)
    refusals.observe(entry(2**41, 3))
    report = refusals.take()
    assert np.flatnonzero(report.seqs_behind).tolist() == [0, 1, 2, 3, AGE_STEPS - 1]
    assert np.flatnonzero(report.ages_ms).tolist() == [0, 1, 3, 10, AGE_STEPS - 1]


def test_the_worst_nodes_are_named_and_no_more_than_a_few(refusals):
    for node in range(50):
        refuse(refusals, *[node] * (node + 1), as_of=1)
    nodes = refusals.take().nodes
    assert nodes.tolist() == [[node, node + 1] for node in range(49, 49 - WORST_NODES, -1)]


def test_a_feed_that_stands_still_costs_bounded_memory(refusals):
    for _ in range(3000):
        refuse(refusals, 3, as_of=100)
    assert sum(told(refusals).values()) == 2000  # the others wait


def test_a_heartbeat_tells_them_in_columns(refusals):
    refusals.observe(entry(2, 3, by=RIVAL))
    refuse(refusals, 3, 3, as_of=2)
    heartbeat = workerlink_pb2.Heartbeat()
    messages.add_refusals(refusals.take(), heartbeat)
    assert decode(heartbeat.refusal_winners, U64, name="winners").tolist() == [RIVAL]
    assert decode(heartbeat.refusal_verdicts, U8, name="verdicts").tolist() == [RESOURCE]
    assert decode(heartbeat.refusal_counts, U32, name="counts").tolist() == [2]
    assert decode(heartbeat.refusing_nodes, U32, name="nodes").tolist() == [3, 2]
    assert decode(heartbeat.refusal_seqs_behind, U32, name="ages").tolist()[:2] == [0, 2]


def test_a_scheduler_that_is_refused_reports_it(harness_of, make_ledger, make_pod):
    harness = harness_of(make_ledger(2))
    scheduler, ledger = harness.scheduler, harness.ledger
    scheduler.refusals.observe(ledger.snapshot())
    harness.submit((make_pod(), 1))
    (columns,) = harness.place()
    node = int(columns.candidates[0, 0])
    scheduler.settle(columns.batch_id, ledger.answer(columns, RESOURCE))
    report = scheduler.refusals.take()
    assert report.counts.tolist() == [1]
    assert report.nodes.tolist() == [[node, 1]]
