"""Single pods of classes never met: the best of a window of nodes each, several in one pass."""

import numpy as np
import pytest

from hoss.model.pod import DeviceRequest, PodAffinity, PodAffinityTerm
from hoss.model.selectors import LabelSelector, NodeSelectorTerm, PreferredTerm, Requirement
from scheduler_worker.core.cycle.cycle import SchedulerLimits
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.messages import Outcome
from scheduler_worker.core.plugins import REGISTRY
from scheduler_worker.core.plugins.profiles import PRESETS
from scheduler_worker.core.work import GangInHand

WIDTH = 10
ZONE_B = PreferredTerm(50, NodeSelectorTerm((Requirement("zone", "In", ("b",)),)))


def chosen(harness):
    """The node of each pod, in the order of the batch."""
    return chosen_in(harness.place())


def chosen_in(proposals):
    nodes = {}
    for proposal in proposals:
        for uid, node in zip(proposal.uids, proposal.candidates[:, 0].tolist(), strict=True):
            nodes[bytes(uid)] = node
    return [nodes[uid] for uid in sorted(nodes)]


@pytest.fixture
def harness(make_ledger, harness_of):
    return harness_of(make_ledger(50), sample_nodes=WIDTH)


def test_pods_side_by_side_look_at_nodes_of_their_own(harness, make_pod):
    harness.submit(*((make_pod(cpu=100 + i), 1) for i in range(5)))
    windows = [node // WIDTH for node in sorted(chosen(harness))]
    assert len(set(windows)) == 5


def test_every_node_has_its_turn(harness, make_pod):
    harness.submit(*((make_pod(cpu=1000 + i, memory=1), 1) for i in range(50)))
    assert len(set(chosen(harness))) == 50


def test_the_best_node_of_the_window_is_taken_and_the_next_best_are_its_alternates(
    make_ledger, harness_of, make_pod
):
    harness = harness_of(make_ledger(20), sample_nodes=WIDTH)
    harness.ledger.reserve([n for n in range(20) if n % 10 not in (3, 6, 7)], np.full((14, 1), 2000))
    harness.cache.apply_feed(harness.ledger.delta(list(range(20))))
    harness.submit((make_pod(cpu=100), 1), (make_pod(cpu=101), 1))
    (proposal,) = harness.place()
    for candidates in proposal.candidates.tolist():
        assert sorted(node % 10 for node in candidates) == [3, 6, 7]
        assert len({node // 10 for node in candidates}) == 1


def test_alternates_lie_on_the_shard_of_the_choice(make_ledger, harness_of, make_pod):
    ledger = make_ledger(40)
    ledger.shards = 4
    harness = harness_of(ledger, sample_nodes=WIDTH)
    harness.submit((make_pod(cpu=100), 1), (make_pod(cpu=101), 1))
    for proposal in harness.place():
        for candidates in proposal.candidates.tolist():
            assert len({node % 4 for node in candidates if node != 0xFFFFFFFF}) == 1


def test_what_sampled_scoring_placed_counts_as_assumed_until_the_feed_shows_it(harness, make_pod):
    harness.submit(*((make_pod(cpu=100 + i), 1) for i in range(7)))
    for proposal in harness.place():
        assert harness.cache.requested[0].sum() == sum(100 + i for i in range(7))
        verdicts, update = harness.ledger.commit(proposal)
        harness.scheduler.settle(proposal.batch_id, verdicts)
        harness.cache.apply_feed(update)
    assert harness.scheduler.idle
    assert not harness.cache.assumed.any()
    assert harness.cache.requested[0].sum() == sum(100 + i for i in range(7))


def test_a_pod_with_no_room_in_its_window_gets_a_look_at_all_nodes(harness, make_pod):
    ledger = harness.ledger
    ledger.reserve([n for n in range(50) if n != 37], np.full((49, 1), 3950))
    harness.cache.apply_feed(ledger.delta(list(range(50))))
    harness.submit(*((make_pod(cpu=1000 + i), 1) for i in range(4)))
    proposals = harness.place()
    assert chosen_in(proposals) == [37, 37, 37]
    harness.settle(proposals)
    (refused,) = (outcome for outcome in harness.outcomes() if outcome[0] == Outcome.UNSCHEDULABLE)
    assert "0/50 nodes are available: 50 Insufficient cpu" in refused[2]


def rankings_made(harness):
    return len(harness.scheduler._cycle._rankings._kept)


def test_a_class_that_comes_again_is_ranked_on_all_nodes(harness, make_pod):
    for turn in range(3):
        harness.submit((make_pod(cpu=100), 1))
        harness.place()
        assert rankings_made(harness) == (turn > 0)


HAS_A_NEED = PodAffinity(required=(PodAffinityTerm("zone", LabelSelector((Requirement("app", "Exists"),))),))


@pytest.mark.parametrize(
    "fields",
    [
        {"devices": DeviceRequest(1, 500)},
        {"cpu": 0},
        {"more": (("odd/thing", 1),)},
        {"preferred_node_affinity": (ZONE_B,)},
        {"labels": (("app", "web"),), "pod_affinity": HAS_A_NEED},
    ],
    ids=["devices", "no cpu", "an unknown resource", "a preference for nodes", "rules about pods"],
)
def test_pods_that_a_few_nodes_cannot_serve_are_ranked_on_all(make_ledger, harness_of, make_pod, fields):
    ledger = make_ledger(30, cards=2, labels=(("zone", "a"),))
    ledger.add(30, labels=(("zone", "b"),))
    harness = harness_of(ledger, sample_nodes=WIDTH)
    harness.submit((make_pod(**fields), 1))
    harness.place()
    assert rankings_made(harness) == 1


def test_gangs_runs_and_small_clusters_are_ranked_on_all_nodes(make_ledger, harness_of, make_pod):
    gang = harness_of(make_ledger(50), sample_nodes=WIDTH)
    gang.submit((make_pod(cpu=100), 1), (make_pod(cpu=200), 1), gang=GangInHand("g", 2))
    gang.place()
    run = harness_of(make_ledger(50), sample_nodes=WIDTH)
    run.submit((make_pod(cpu=100), 2))
    run.place()
    small = harness_of(make_ledger(2 * WIDTH - 1), sample_nodes=WIDTH)
    small.submit((make_pod(cpu=100), 1))
    small.place()
    off = harness_of(make_ledger(50), sample_nodes=0)
    off.submit((make_pod(cpu=100), 1))
    off.place()
    assert [rankings_made(h) for h in (gang, run, small, off)] == [2, 1, 1, 1]


@pytest.mark.parametrize("preset", ["fgd", "random"])
def test_profiles_that_draw_or_pack_look_at_all_nodes(make_ledger, harness_of, make_pod, preset):
    harness = harness_of(make_ledger(50))
    profile = PRESETS[preset].profile(REGISTRY)
    harness.scheduler = Scheduler(
        harness.cache, profile, np.random.default_rng(1), SchedulerLimits(sample_nodes=WIDTH)
    )
    harness.submit((make_pod(cpu=100), 1))
    harness.place()
    assert rankings_made(harness) == 1


def test_more_urgent_pods_come_first_in_the_proposal(harness, make_pod):
    harness.submit(*((make_pod(cpu=100 + i, priority=i % 3), 1) for i in range(12)))
    (proposal,) = harness.place()
    priorities = proposal.priorities[proposal.slots].tolist()
    assert priorities == sorted(priorities, reverse=True)


def test_what_sampled_scoring_takes_is_reported_as_the_cost_of_classes_never_met(
    make_ledger, harness_of, make_pod
):
    harness = harness_of(make_ledger(50))
    ticks = iter(range(1000))
    harness.scheduler = Scheduler(
        harness.cache,
        REGISTRY.profile(()),
        np.random.default_rng(1),
        SchedulerLimits(sample_nodes=WIDTH),
        lambda: next(ticks),
    )
    harness.submit(*((make_pod(cpu=100 + i), 1) for i in range(5)))
    harness.place()
    assert harness.scheduler.costs.take_changed().first == pytest.approx(1e6 / 5)
