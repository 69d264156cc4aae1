"""Permit plugins decide about placed pods before they are proposed."""

import numpy as np
import pytest

from hoss.model.conflicts import ConflictRule
from hoss.model.pod import PodAffinity, PodAffinityTerm
from hoss.model.selectors import LabelSelector, Requirement
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.framework.extension_points import Permission, PermitPlugin
from scheduler_worker.core.framework.registry import Weighted
from scheduler_worker.core.messages import Outcome
from scheduler_worker.core.plugins import DEFAULT_PLUGINS, REGISTRY
from scheduler_worker.core.work import GangInHand


class Says(PermitPlugin):
    """Does what it is told, and keeps what it saw."""

    name = "Says"

    def __init__(self, act):
        self._act = act
        self.seen = []

    def permit(self, pods):
        self.seen.append(pods)
        return self._act(pods)


@pytest.fixture
def harness_with(harness_of, make_ledger):
    def make(*acts):
        ledger = make_ledger()
        for node in range(3):
            ledger.add(node, labels=(("kubernetes.io/hostname", f"node-{node}"),))
        harness = harness_of(ledger)
        plugins = {f"Says{number}": Says(act) for number, act in enumerate(acts)}
        registry = REGISTRY.extended({name: (lambda made=made: made) for name, made in plugins.items()})
        profile = registry.profile((*DEFAULT_PLUGINS, *map(Weighted, plugins)))
        harness.scheduler = Scheduler(harness.cache, profile, np.random.default_rng(1))
        return harness, *plugins.values()

    return make


def requested(harness):
    return int(harness.cache.requested[0].sum())


def large(pods):
    return np.array([dict(pods.specs[at].requests)["cpu"] > 500 for at in pods.classes.tolist()])


def test_all_placed_pods_are_seen_with_their_nodes_before_they_are_proposed(harness_with, make_pod):
    harness, plugin = harness_with(lambda _pods: None)
    harness.submit((make_pod(cpu=100), 3), (make_pod(cpu=600), 2))
    (proposal,) = harness.place()
    (seen,) = plugin.seen
    assert large(seen).tolist() == [False] * 3 + [True] * 2
    assert seen.nodes.at.tolist() == proposal.candidates[:, 0].tolist()
    assert proposal.candidates.shape[1] == 1, "an alternate would be a node that nobody permitted"


def test_denied_pods_are_unschedulable_and_give_back_what_they_assumed(harness_with, make_pod):
    harness, _ = harness_with(lambda pods: Permission("too large for today", large(pods)))
    harness.submit((make_pod(cpu=100), 3), (make_pod(cpu=600), 2))
    (proposal,) = harness.place()
    assert len(proposal.uids) == 3
    assert requested(harness) == 300
    assert [(code, reason) for code, _, reason in harness.outcomes()] == [
        (Outcome.UNSCHEDULABLE, "too large for today")
    ] * 2
    harness.settle([proposal])
    assert harness.scheduler.idle


def test_pods_that_wait_are_tried_again_later(harness_with, make_pod):
    def first_only(pods):
        later = np.arange(len(pods.classes)) > 0
        return Permission("one at a time", later & False, wait=later)

    harness, _ = harness_with(first_only)
    harness.submit((make_pod(cpu=100), 3))
    (proposal,) = harness.place()
    assert len(proposal.uids) == 1
    assert requested(harness) == 100
    assert [(code, reason) for code, _, reason in harness.outcomes()] == [
        (Outcome.CONFLICT, "one at a time")
    ] * 2


def test_the_first_plugin_that_holds_a_pod_back_gives_the_reason(harness_with, make_pod):
    harness, _, _ = harness_with(
        lambda pods: Permission("a", np.arange(len(pods.classes)) == 0),
        lambda pods: Permission("b", np.arange(len(pods.classes)) <= 1),
    )
    harness.submit((make_pod(cpu=100), 3))
    (proposal,) = harness.place()
    assert len(proposal.uids) == 1
    assert [reason for _, _, reason in harness.outcomes()] == ["a", "b"]


def test_of_a_gang_all_are_held_back_or_none(harness_with, make_pod):
    harness, _ = harness_with(lambda pods: Permission("no", np.arange(len(pods.classes)) == 1))
    harness.submit((make_pod(cpu=100), 3), gang=GangInHand("trio", 2))
    assert harness.place() == []
    assert requested(harness) == 0
    assert [(code, reason) for code, _, reason in harness.outcomes()] == [
        (Outcome.UNSCHEDULABLE, "no (the gang needs it)")
    ] * 3
    assert harness.scheduler.idle


def test_of_work_that_is_all_or_nothing_a_run_is_held_back_whole(harness_with, make_pod):
    harness, _ = harness_with(
        lambda pods: Permission("no", large(pods) & (np.arange(len(pods.classes)) == 0))
    )
    rule = ConflictRule(all_or_nothing=True)
    harness.submit((make_pod(cpu=600), 2), (make_pod(cpu=100), 2), conflicts=rule)
    (proposal,) = harness.place()
    assert len(proposal.uids) == 2
    assert requested(harness) == 200
    assert {reason for _, _, reason in harness.outcomes()} == {"no (all or nothing)"}


def test_pods_that_depend_on_one_held_back_are_placed_anew(harness_with, make_pod):
    """The first of its kind may go anywhere, and the others go to it: without it they are first
    themselves."""
    denied = []

    def deny_one(pods):
        if denied:
            return None
        denied.append(True)
        return Permission("not this one", np.arange(len(pods.classes)) == 0)

    harness, plugin = harness_with(deny_one)
    web = LabelSelector((Requirement("app", "In", ("web",)),))
    near = PodAffinity(required=(PodAffinityTerm("kubernetes.io/hostname", web, ("default",)),))
    spec = make_pod(cpu=100, labels=(("app", "web"),), pod_affinity=near)
    harness.submit((spec, 3))
    proposals = harness.place()
    assert sum(len(proposal.uids) for proposal in proposals) == 2
    assert len(plugin.seen) == 2
    assert requested(harness) == 200
    assert [reason for _, _, reason in harness.outcomes()] == ["not this one"]


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda _pods: 1 // 0, "plugin Says0 failed: ZeroDivisionError: integer division or modulo by zero"),
        (lambda _pods: "yes", "plugin Says0 failed: TypeError: answered with 'yes', which is no Permission"),
        (
            lambda pods: Permission("no", np.zeros(len(pods.classes) + 1, np.bool_)),
            "plugin Says0 failed: ValueError: answered with shape (3,) for 2 nodes",
        ),
    ],
)
def test_a_permit_plugin_that_fails_holds_its_pods_back_and_is_told_of(act, reason, harness_with, make_pod):
    harness, _ = harness_with(act)
    harness.submit((make_pod(cpu=100), 2))
    assert harness.place() == []
    assert requested(harness) == 0
    assert {reason for _, _, reason in harness.outcomes()} == {reason}
    assert [str(failure) for failure in harness.scheduler.take_failures()] == [reason]
