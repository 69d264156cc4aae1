"""Rules about pods in a worker's cycle: assumed pods count, refused ones do not."""

import numpy as np
import pytest

from hoss.model.pod import PodAffinity, PodAffinityTerm
from hoss.model.selectors import LabelSelector, Requirement
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.framework.extension_points import FilterPlugin, FilterState, Reads, Refusals
from scheduler_worker.core.framework.registry import Weighted
from scheduler_worker.core.plugins import DEFAULT_PLUGINS, REGISTRY
from scheduler_worker.core.pod_index.selector_query import Matching

HOSTNAME = "kubernetes.io/hostname"
TERM = PodAffinityTerm(HOSTNAME, LabelSelector((Requirement("app", "In", ("web",)),)), ("default",))
ALONE = {"labels": (("app", "web"),), "pod_affinity": PodAffinity(anti_required=(TERM,))}


@pytest.fixture
def harness(make_ledger, harness_of):
    """Three nodes."""
    ledger = make_ledger()
    for i in range(3):
        ledger.add(i, labels=((HOSTNAME, f"node-{i}"),))
    return harness_of(ledger)


def counted(harness):
    return harness.cache.pod_index.counter(Matching((TERM,))).counts[:3].tolist()


def test_pods_that_shun_each_other_get_a_node_each_and_the_rest_a_reason(harness, make_pod):
    harness.submit((make_pod(**ALONE), 4))
    (proposal,) = harness.place()
    assert sorted(proposal.candidates[:, 0].tolist()) == [0, 1, 2]
    ((_, _, reason),) = harness.outcomes()
    assert reason == "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules."


def test_a_pod_that_nobody_asks_to_stay_away_falls_under_rules_of_others(harness, make_pod):
    harness.submit((make_pod(**ALONE), 3), (make_pod(labels=(("app", "web"),)), 1), (make_pod(), 1))
    harness.place()
    (refused,) = harness.outcomes()
    assert (
        refused[2] == "0/3 nodes are available: 3 node(s) didn't satisfy existing pods anti-affinity rules."
    )


def test_a_refused_pod_leaves_the_pod_index_and_its_place_to_the_next(harness, make_pod):
    harness.submit((make_pod(**ALONE), 3))
    (proposal,) = harness.place()
    assert counted(harness) == [1, 1, 1]
    harness.scheduler.settle(proposal.batch_id, harness.ledger.answer(proposal, [1, 3, 1], seq=2))
    assert sum(counted(harness)) == 2
    (again,) = harness.place()
    assert again.candidates[0, 0] == proposal.candidates[1, 0]
    assert counted(harness) == [1, 1, 1]


def test_another_epoch_begins_with_an_empty_pod_index(harness, make_pod):
    harness.submit((make_pod(**ALONE), 2))
    harness.place()
    harness.submit((make_pod(**ALONE), 1))
    harness.scheduler.step()  # in the draft, not yet proposed
    assert counted(harness) == [1, 1, 1]
    harness.scheduler.drop_everything()
    assert counted(harness) == [0, 0, 0]


class Fragile(FilterState):
    """Works until it does not."""

    def __init__(self):
        self.passed = np.ones(3, np.bool_)
        self.works = True

    def refresh(self):
        if not self.works:
            raise LookupError("lost the list")
        return True

    def refusals(self):
        return Refusals((), np.zeros(3, np.bool_))


class Broken(FilterPlugin):
    """A pod filter from outside with this state for every class."""

    filter_reads = Reads.PODS

    def __init__(self, state):
        self._state = state

    def filter_state(self, spec, cache):
        return self._state


def test_a_pod_filter_from_outside_that_raises_answers_its_pods_and_no_others(harness, make_pod):
    state = Fragile()
    profile = REGISTRY.extended({"Broken": lambda: Broken(state)}).profile(
        (*DEFAULT_PLUGINS, Weighted("Broken"))
    )
    harness.scheduler = Scheduler(harness.cache, profile, np.random.default_rng(1))
    harness.submit((make_pod(**ALONE), 1))
    assert len(harness.place()) == 1
    state.works = False
    harness.submit((make_pod(**ALONE), 1), (make_pod(labels=(("app", "other"),)), 1))
    assert sum(len(proposal.uids) for proposal in harness.place()) == 1
    ((_, _, reason),) = harness.outcomes()
    assert reason == "plugin Broken failed: LookupError: lost the list"
    state.works = True
    harness.submit((make_pod(**ALONE), 1))
    assert len(harness.place()) == 1
