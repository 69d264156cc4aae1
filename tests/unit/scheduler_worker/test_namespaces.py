"""Namespaces and services in a worker's cycle: what is placed goes by those it heard of last."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.model.cluster import Service
from hoss.model.pod import PodAffinity, PodAffinityTerm, SpreadConstraint
from hoss.model.selectors import LabelSelector, Requirement
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.plugins import default_profile

HOSTNAME = "kubernetes.io/hostname"
GIB = 2**30
WEB = LabelSelector((Requirement("app", "In", ("web",)),))
TEAM_A = LabelSelector((Requirement("team", "In", ("a",)),))
AWAY_FROM_TEAM_A = PodAffinity(anti_required=(PodAffinityTerm(HOSTNAME, WEB, (), TEAM_A),))
OF_WEB = {"namespace": "shop", "labels": (("app", "web"),)}
SERVICE = Service("shop", (("app", "web"),), "web")


@pytest.fixture
def harness(make_ledger, harness_of):
    """Three nodes, the first with most room by far, and a worker that counts pods."""
    ledger = make_ledger()
    for i in range(3):
        amounts = {"cpu": 4000 if i else 400_000, "memory": (8 if i else 800) * GIB, "pods": 110}
        ledger.add(i, labels=((HOSTNAME, f"node-{i}"),), allocatable=amounts)
    made = harness_of(ledger)
    made.scheduler = Scheduler(NodeInfoCache(), default_profile(), np.random.default_rng(1))
    made.cache.apply_feed(ledger.snapshot())
    return made


def placed(harness, spec, count=1):
    harness.submit((spec, count))
    return [int(node) for columns in harness.place() for node in columns.candidates[:, 0]]


def test_own_terms_mean_the_namespaces_that_have_the_labels_now(harness, make_pod):
    placed(harness, make_pod(**OF_WEB, node_name="node-0"))
    shy = make_pod(pod_affinity=AWAY_FROM_TEAM_A)
    assert placed(harness, shy) == [0]
    harness.scheduler.set_namespaces({"shop": {"team": "a"}}, ())
    assert 0 not in placed(harness, shy)
    harness.scheduler.set_namespaces({"shop": {"team": "b"}}, ())
    assert placed(harness, shy) == [0]


def test_terms_of_others_mean_a_pod_as_soon_as_its_namespace_has_the_labels(harness, make_pod):
    placed(harness, make_pod(pod_affinity=AWAY_FROM_TEAM_A, node_name="node-0"))
    assert placed(harness, make_pod(**OF_WEB)) == [0]
    harness.scheduler.set_namespaces({"shop": {"team": "a"}}, ())
    assert 0 not in placed(harness, make_pod(**OF_WEB))
    harness.scheduler.set_namespaces({}, ())
    assert placed(harness, make_pod(**OF_WEB)) == [0]


def test_pods_that_a_service_selects_are_spread_while_it_is_there(harness, make_pod):
    assert placed(harness, make_pod(**OF_WEB), 3) == [0, 0, 0]
    harness.scheduler.set_namespaces({}, [SERVICE])
    assert set(placed(harness, make_pod(**OF_WEB, cpu=10), 2)) == {1, 2}
    harness.scheduler.set_namespaces({}, [])
    assert placed(harness, make_pod(**OF_WEB), 3) == [0, 0, 0]


def deciding(harness, spec):
    return harness.scheduler._demands.compile(spec).demand


def test_what_is_counted_is_what_the_owner_and_all_services_select(harness, make_pod):
    other = Service("shop", (("tier", "front"),), "front")
    harness.scheduler.set_namespaces({}, [SERVICE, other, Service("else", (("app", "web"),), "web")])
    both = make_pod(namespace="shop", labels=(("app", "web"), ("tier", "front")), default_spread=TEAM_A)
    requirements = {("app", ("web",)), ("tier", ("front",)), ("team", ("a",))}
    assert {
        (r.key, r.values) for r in deciding(harness, both).spec.default_spread.requirements
    } == requirements


def test_services_change_nothing_for_pods_they_do_not_select_or_that_have_constraints(harness, make_pod):
    own = make_pod(**OF_WEB, spread=(SpreadConstraint(1, HOSTNAME, WEB),))
    others = [make_pod(namespace="shop"), make_pod(labels=(("app", "web"),)), own]
    before = [deciding(harness, spec) for spec in others]
    harness.scheduler.set_namespaces({}, [SERVICE])
    assert [deciding(harness, spec) for spec in others] == before
    assert deciding(harness, make_pod(namespace="shop")) is deciding(harness, make_pod())


def test_a_deployments_pods_are_placed_by_what_its_owner_selects(harness, make_pod):
    spread = make_pod(**OF_WEB, default_spread=WEB)
    assert sorted(placed(harness, spread, 3)) == [0, 1, 2]
    assert placed(harness, replace(spread, default_spread=None), 3) == [0, 0, 0]
