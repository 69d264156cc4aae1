"""Pods that were placed because of others: what a worker proposes together, in which order, and what it says
it knows."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.model.pod import PodAffinity, PodAffinityTerm, SpreadConstraint, group_of
from hoss.model.selectors import LabelSelector, Requirement
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.messages import AccountBatch, FeedUpdate, PodRun
from scheduler_worker.core.plugins import default_profile

HOSTNAME = "kubernetes.io/hostname"
WEB = LabelSelector((Requirement("app", "In", ("web",)),))
SPREAD = {"labels": (("app", "web"),), "spread": (SpreadConstraint(1, HOSTNAME, WEB),)}
TOGETHER = {
    "labels": (("app", "web"),),
    "pod_affinity": PodAffinity(required=(PodAffinityTerm(HOSTNAME, WEB, ("default",)),)),
}


@pytest.fixture
def harness(make_ledger, harness_of):
    """Four nodes on two shards, and a worker."""
    ledger = make_ledger()
    ledger.shards = 2
    for i in range(4):
        ledger.add(i, labels=((HOSTNAME, f"node-{i}"),))
    made = harness_of(make_ledger())
    made.scheduler = Scheduler(NodeInfoCache(), default_profile(), np.random.default_rng(1))
    for shard in range(2):
        here = [shard, shard + 2]
        specs = tuple((node, ledger.specs[node]) for node in here)
        snapshot = replace(ledger.snapshot(), shard=shard, accounts=ledger.accounts(here), specs=specs)
        made.cache.apply_feed(snapshot)
    return made


def place(scheduler):
    while scheduler.step():
        pass
    return scheduler.take_proposals(now=0.0)


def tell(cache, shard, seq, **what):
    cache.apply_feed(FeedUpdate(shard, seq, AccountBatch.empty(), **what))


def test_pods_that_count_on_each_other_over_shards_are_proposed_in_one_message_with_their_places(
    harness, make_pod
):
    harness.submit((make_pod(**SPREAD), 4))
    [whole] = place(harness.scheduler)
    parts = [whole, *whole.parts]
    assert (sorted(part.shard for part in parts), whole.gang_minimum) == ([0, 1], 0)
    assert sorted(place for part in parts for place in part.places.tolist()) == [0, 1, 2, 3]


def test_pods_that_count_on_nobody_are_proposed_shard_by_shard(harness, make_pod):
    harness.submit((make_pod(), 4))
    proposals = place(harness.scheduler)
    assert [proposal.parts for proposal in proposals] == [()] * len(proposals)
    assert len(proposals) == 2


def test_a_run_of_higher_priority_waits_for_the_next_proposal(harness, make_pod):
    """The ledger serves it first: in one proposal it would be judged before what it was placed after."""
    scheduler = harness.scheduler
    harness.submit((make_pod(priority=5), 1), (make_pod(priority=1), 1))
    backlog = scheduler._backlog
    first = backlog.take()
    backlog.add([first])  # as after a refusal, when what is tried again comes first
    assert [p.priorities.tolist() for p in place(scheduler)] == [[1]]
    assert [p.priorities.tolist() for p in place(scheduler)] == [[5]]


def test_the_first_of_a_kind_says_so_and_the_next_does_not(harness, make_pod):
    scheduler = harness.scheduler
    harness.submit((make_pod(**TOGETHER), 1))
    [first] = place(scheduler)
    assert first.firsts.tolist() == [True]
    tell(scheduler.cache, 0, 50, pods=(PodRun(group_of(make_pod(**TOGETHER)), np.array([0])),))
    scheduler.reject(first.batch_id, "away")
    harness.submit((make_pod(**TOGETHER), 1))
    [second] = place(scheduler)
    assert second.firsts is None


def test_a_pod_that_others_attract_is_no_first_of_a_kind(harness, make_pod):
    scheduler = harness.scheduler
    tell(scheduler.cache, 0, 50, pods=(PodRun(group_of(make_pod(**SPREAD)), np.array([0])),))
    follower = make_pod(pod_affinity=TOGETHER["pod_affinity"])
    harness.submit((follower, 1))
    [proposal] = place(scheduler)
    assert proposal.firsts is None


def test_what_a_worker_has_seen_ends_before_the_first_hold_under_way(harness, make_pod):
    scheduler = harness.scheduler
    for seq, what in ((50, {}), (51, {"holds": (51,)}), (52, {"holds": (52,)}), (53, {"ended_holds": (51,)})):
        tell(scheduler.cache, 1, seq, **what)
    harness.submit((make_pod(), 1))
    [proposal] = place(scheduler)
    assert proposal.seen == (scheduler.cache.seqs[0], 51)
    tell(scheduler.cache, 1, 54, ended_holds=(52,))
    assert scheduler.cache.seen(1) == 54


def test_a_snapshot_names_the_holds_under_way_and_no_others(harness):
    cache = harness.scheduler.cache
    tell(cache, 1, 51, holds=(51,))
    tell(cache, 1, 60, snapshot=True, holds=(58,))
    assert cache.seen(1) == 57
