"""Rules are registered before pods that bear them are placed."""

import numpy as np
import pytest

from hoss.model.pod import PodAffinity, PodAffinityTerm, SpreadConstraint, group_of
from hoss.model.selectors import LabelSelector, Requirement
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.messages import Outcome
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.work import GangInHand

HOSTNAME = "kubernetes.io/hostname"


def term(app):
    return PodAffinityTerm(HOSTNAME, LabelSelector((Requirement("app", "In", (app,)),)), ("default",))


def apart(make_pod, app):
    return make_pod(labels=(("app", app),), pod_affinity=PodAffinity(anti_required=(term(app),)))


@pytest.fixture
def harness(make_ledger, harness_of):
    """Four nodes, and a worker that registers rules."""
    ledger = make_ledger()
    for i in range(4):
        ledger.add(i, labels=((HOSTNAME, f"node-{i}"),))
    made = harness_of(ledger)
    made.scheduler = Scheduler(
        NodeInfoCache(), default_profile(), np.random.default_rng(1), registers_rules=True
    )
    made.cache.apply_feed(ledger.snapshot())
    return made


def placed(harness):
    """How many pods are placed now."""
    pods = 0
    while settled := harness.scheduler.step():
        while settled:
            settled = harness.scheduler.step()
        pods += sum(len(proposal.uids) for proposal in harness.scheduler.take_proposals(now=0.0))
    return pods


def test_pods_wait_until_the_ledger_has_answered_and_the_view_stands_where_it_did(harness, make_pod):
    scheduler, spec = harness.scheduler, apart(make_pod, "web")
    harness.submit((spec, 2), (make_pod(), 3))
    [registration] = scheduler.take_registrations()
    assert registration.groups == (group_of(spec),)
    assert (placed(harness), scheduler.backlog, scheduler.idle) == (3, 2, False)
    scheduler.rules_registered(registration.id, {0: harness.ledger.seq + 1})
    assert (placed(harness), scheduler.backlog, scheduler.take_refresh_wanted()) == (0, 2, True)
    harness.ledger.seq += 1
    harness.cache.apply_feed(harness.ledger.delta([]))
    assert scheduler.resume(0)
    assert (placed(harness), scheduler.backlog) == (2, 0)


def test_what_a_view_has_seen_is_placed_with_the_answer(harness, make_pod):
    harness.submit((apart(make_pod, "web"), 2))
    [registration] = harness.scheduler.take_registrations()
    harness.scheduler.rules_registered(registration.id, {0: harness.ledger.seq})
    assert placed(harness) == 2


@pytest.mark.parametrize(
    "rules",
    [
        {"spread": (SpreadConstraint(1, HOSTNAME, term("web").selector),)},
        {"pod_affinity": PodAffinity(required=(term("web"),))},
    ],
)
def test_spreading_and_affinity_are_registered_as_well(harness, make_pod, rules):
    harness.submit((make_pod(labels=(("app", "web"),), **rules), 1))
    assert len(harness.scheduler.take_registrations()) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"spread": (SpreadConstraint(1, HOSTNAME, term("web").selector, required=False),)},
        {"pod_affinity": PodAffinity()},
    ],
)
def test_pods_without_required_rules_wait_for_nothing(harness, make_pod, fields):
    harness.submit((make_pod(**fields), 1))
    assert harness.scheduler.take_registrations() == []
    assert placed(harness) == 1


def test_a_group_is_registered_once_and_later_pods_of_it_wait_for_the_same_answer(harness, make_pod):
    scheduler, spec = harness.scheduler, apart(make_pod, "web")
    harness.submit((spec, 1))
    harness.submit((spec, 1))
    [registration] = scheduler.take_registrations()
    assert placed(harness) == 0
    scheduler.rules_registered(registration.id, {})
    harness.submit((spec, 1))
    assert scheduler.take_registrations() == []
    assert placed(harness) == 1 + 1 + 1


def test_a_gang_waits_as_a_whole(harness, make_pod):
    harness.submit((make_pod(), 2), (apart(make_pod, "web"), 2), gang=GangInHand("default/team", 4))
    [registration] = harness.scheduler.take_registrations()
    assert placed(harness) == 0
    harness.scheduler.rules_registered(registration.id, {})
    assert placed(harness) == 4


def test_pods_that_wait_are_given_back_by_a_worker_that_drains(harness, make_pod):
    harness.submit((apart(make_pod, "web"), 2))
    harness.scheduler.drain()
    assert [code for code, _, _ in harness.outcomes()] == [Outcome.RETURNED] * 2
    assert harness.scheduler.idle


def test_another_epoch_begins_with_nothing_told(harness, make_pod):
    scheduler, spec = harness.scheduler, apart(make_pod, "web")
    harness.submit((spec, 2))
    [registration] = scheduler.take_registrations()
    scheduler.drop_everything()
    assert scheduler.idle
    harness.submit((spec, 1))
    [again] = scheduler.take_registrations()
    scheduler.rules_registered(registration.id, {})  # too late: of the former epoch
    assert placed(harness) == 0
    scheduler.rules_registered(again.id, {})
    assert placed(harness) == 1
