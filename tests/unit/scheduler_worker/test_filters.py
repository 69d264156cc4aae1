"""Each filter's refusal, in kube-scheduler's words, and the nodes that remain."""

import numpy as np
import pytest

from hoss.model.node import Taint, Toleration
from hoss.model.pod import DeviceRequest
from hoss.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from hoss.wire.columns import FLAG_UNSCHEDULABLE
from scheduler_worker.core.placement.ties import TieOrder

CORDON = Toleration("node.kubernetes.io/unschedulable", "Exists")


@pytest.fixture
def cluster(make_ledger):
    """Five nodes: plain, ssd in zone a, hdd in zone b, tainted, and spec.unschedulable."""
    ledger = make_ledger()
    ledger.add(0, name="plain")
    ledger.add(1, name="fast", labels=(("disk", "ssd"), ("size", "10"), ("zone", "a")))
    ledger.add(
        2,
        name="slow",
        declared_features=("A", "B"),
        labels=(("disk", "hdd"), ("size", "2"), ("zone", "b")),
        cards=1,
    )
    ledger.add(3, name="tainted", taints=(Taint("gpu", "yes", "NoSchedule"),))
    return ledger.add(4, name="closed", unschedulable=True)


def affinity(*terms):
    return {"required_node_affinity": NodeSelector(tuple(terms))}


def term(*requirements, fields=()):
    return NodeSelectorTerm(
        tuple(Requirement(*r) for r in requirements), tuple(Requirement(*r) for r in fields)
    )


EVERYTHING = {"tolerations": (Toleration(operator="Exists"),)}
CASES = {
    "a plain pod avoids the taint and the closed node": ({}, "plain fast slow"),
    "a toleration opens the tainted node":
        ({"tolerations": (Toleration("gpu", "Equal", "yes"),)}, "plain fast slow tainted"),
    "a toleration of the cordon opens the closed node":
        ({"tolerations": (CORDON,)}, "plain fast slow closed"),
    "an empty toleration opens all": (EVERYTHING, "plain fast slow tainted closed"),
    "a node selector needs every pair": ({"node_selector": (("disk", "ssd"), ("zone", "a"))}, "fast"),
    "a named node is the only one": ({"node_name": "slow"}, "slow"),
    "In with several values": (affinity(term(("disk", "In", ("ssd", "hdd")))), "fast slow"),
    "NotIn takes nodes without the label": (affinity(term(("disk", "NotIn", ("ssd",)))), "plain slow"),
    "Exists": (affinity(term(("zone", "Exists"))), "fast slow"),
    "DoesNotExist": (affinity(term(("zone", "DoesNotExist"))), "plain"),
    "Gt compares as integers": (affinity(term(("size", "Gt", ("9",)))), "fast"),
    "Lt compares as integers": (affinity(term(("size", "Lt", ("9",)))), "slow"),
    "terms are alternatives":
        (affinity(term(("disk", "In", ("ssd",))), term(("zone", "In", ("b",)))), "fast slow"),
    "an empty term matches nothing": (affinity(term()), ""),
    "fields name nodes": (affinity(term(fields=(("metadata.name", "In", ("fast", "gone")),))), "fast"),
    "fields exclude nodes": (affinity(term(fields=(("metadata.name", "NotIn", ("fast",)),))), "plain slow"),
    "a feature that a kubelet declares": ({"required_features": ("B",)}, "slow"),
    "a share needs a card": ({"devices": DeviceRequest(1, 500)}, "slow"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "expected"), CASES.values(), ids=CASES.keys())
def test_where_a_pod_may_go(cluster, harness_of, make_pod, fields, expected):
    harness = harness_of(cluster)
    chosen = set()
    for _ in range(5):  # each time the node just taken is filled up
        harness.submit((make_pod(4000, 0, **fields), 1))
        for proposal in harness.place():
            chosen.add(harness.cache.catalogue.name(int(proposal.candidates[0, 0])))
    assert chosen == set(expected.split())


MESSAGES = {
    "the closed, the tainted, and the small": (
        {"cpu": 9000},
        "1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, 3 Insufficient cpu",
    ),
    "no such label": (
        {"node_selector": (("disk", "tape"),)},
        ("1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, "
        "3 node(s) didn't match Pod's node affinity/selector"),
    ),
    "no such name": (
        {"node_name": "elsewhere"},
        "1 node(s) were unschedulable, 4 node(s) didn't match the requested node name",
    ),
    "restricted to one node that is too small": (
        {"cpu": 9000, **affinity(term(fields=(("metadata.name", "In", ("fast",)),)))},
        "1 Insufficient cpu, 4 node(s) didn't satisfy plugin(s) [NodeAffinity]",
    ),
    "names that exclude each other": (
        affinity(term(fields=(("metadata.name", "In", ("fast",)), ("metadata.name", "In", ("slow",))))),
        "pod affinity terms conflict",
    ),
    "two resources on every node": (
        {"cpu": 9000, "memory": 2**50, **EVERYTHING},
        "5 Insufficient cpu, 5 Insufficient memory",
    ),
    "whole cards": (
        {"devices": DeviceRequest(2, 1000), **EVERYTHING},
        "5 Insufficient nvidia.com/gpu",
    ),
    "shares of cards": (
        {"devices": DeviceRequest(2, 300), **EVERYTHING},
        "5 Insufficient hoss.dev/gpu-milli",
    ),
}  # fmt: skip


def test_pods_that_differ_in_a_feature_alone_do_not_share_their_nodes(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(1))
    harness.submit((make_pod(), 1), (make_pod(required_features=("B",)), 1))
    assert sum(len(proposal.uids) for proposal in harness.place()) == 1
    ((_, _, reason),) = harness.outcomes()
    assert reason == "0/1 nodes are available: 1 node(s) didn't match Pod's required features."


@pytest.mark.parametrize(("fields", "expected"), MESSAGES.values(), ids=MESSAGES.keys())
def test_why_a_pod_fits_nowhere(cluster, harness_of, make_pod, fields, expected):
    harness = harness_of(cluster)
    harness.submit((make_pod(**fields), 1))
    assert harness.place() == []
    ((_, _, reason),) = harness.outcomes()
    assert reason == f"0/5 nodes are available: {expected}."


def test_a_node_the_ledger_holds_as_cordoned_takes_those_pods_alone_that_tolerate_it(
    make_ledger, harness_of, make_pod
):
    harness = harness_of(make_ledger(1, flags=FLAG_UNSCHEDULABLE))
    harness.submit((make_pod(), 1))
    assert harness.place() == []
    assert harness.outcomes()[0][2] == "0/1 nodes are available: 1 node(s) were unschedulable."
    harness.submit((make_pod(tolerations=(CORDON,)), 1))
    assert len(harness.place()) == 1


def test_too_many_pods_are_refused_by_number(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(1, allocatable={"cpu": 4000, "memory": 2**34, "pods": 2}))
    harness.submit((make_pod(), 3))
    harness.settle(harness.place())
    assert harness.outcomes()[2][2] == "0/1 nodes are available: 1 Too many pods."


def test_a_changed_label_taint_or_cordon_counts_from_the_next_pod_on(cluster, harness_of, make_pod):
    harness = harness_of(cluster)
    spec = make_pod(node_selector=(("disk", "ssd"),))
    assert _choice(harness, spec) == "fast"
    for fields, expected in (
        ({"labels": (("disk", "hdd"),)}, None),
        ({"labels": (("disk", "ssd"),), "taints": (Taint("a"),)}, None),
        ({"labels": (("disk", "ssd"),)}, "fast"),
        ({"labels": (("disk", "ssd"),), "flags": FLAG_UNSCHEDULABLE}, None),
        ({"labels": (("disk", "ssd"),)}, "fast"),
    ):
        cluster.seq += 1
        cluster.add(1, name="fast", **fields)
        harness.cache.apply_feed(cluster.delta([1], specs=((1, cluster.specs[1]),)))
        assert _choice(harness, spec) == expected


def _choice(harness, spec):
    harness.submit((spec, 1))
    proposals = harness.place()
    return harness.cache.catalogue.name(int(proposals[0].candidates[0, 0])) if proposals else None


def test_workers_with_different_seeds_prefer_different_nodes(make_ledger):
    orders = [TieOrder(np.random.default_rng(seed)) for seed in (1, 2)]
    for order in orders:
        order.cover(100)
    assert orders[0].bits.argmax() != orders[1].bits.argmax()
