"""The nodes that a policy's rule gives its pods: a static mask or score of each class and rule."""

import numpy as np
import pytest

from hoss.model.selectors import NodeScope, Requirement
from hoss.wire.columns import NONE_U32
from scheduler_worker.core.messages import Outcome

GPU = NodeScope("gpu", (Requirement("pool", "In", ("gpu",)),))
SOFT = NodeScope("gpu", GPU.requirements, required=False)
GPU_NODES = {0, 1}


@pytest.fixture
def harness(make_ledger, harness_of):
    ledger = make_ledger()
    for index in range(5):
        ledger.add(index, labels=(("pool", "gpu" if index in GPU_NODES else "cpu"),))
    return harness_of(ledger)


def nodes_of(proposals):
    return {int(node) for proposal in proposals for node in proposal.candidates[:, 0]}


def test_pods_go_to_their_rules_nodes_only_and_alternates_are_among_them(harness, make_pod):
    harness.submit((make_pod(100), 12), scope=GPU)
    (proposal,) = harness.place()
    assert set(np.unique(proposal.candidates).tolist()) - {NONE_U32} == GPU_NODES


def test_the_same_class_goes_everywhere_by_a_rule_without_nodes(harness, make_pod):
    pod = make_pod(100)
    harness.submit((pod, 12), scope=GPU)
    assert nodes_of(harness.place()) == GPU_NODES
    harness.submit((pod, 12))
    assert nodes_of(harness.place()) - GPU_NODES


def test_preferred_nodes_are_filled_before_others_are_used(harness, make_pod):
    harness.submit((make_pod(1000), 8), scope=SOFT)  # four of them fill a node
    assert nodes_of(harness.place()) == GPU_NODES
    harness.submit((make_pod(1000), 4), scope=SOFT)
    assert nodes_of(harness.place()).isdisjoint(GPU_NODES)


def test_a_refusal_names_the_rule_that_narrowed_the_nodes(harness, make_pod):
    harness.submit((make_pod(4000), 3), scope=GPU)
    harness.settle(harness.place())
    code, _, reason = harness.outcomes()[2]
    assert code == Outcome.UNSCHEDULABLE
    assert reason == (
        "0/5 nodes are available: 2 Insufficient cpu, "
        "3 node(s) were outside the nodes of policy rule gpu (pool=gpu)."
    )


def test_a_node_that_gets_the_label_is_one_of_them(harness, make_pod):
    harness.submit((make_pod(4000), 2), scope=GPU)
    assert nodes_of(harness.place()) == GPU_NODES
    harness.ledger.add(4, labels=(("pool", "gpu"),))
    harness.cache.apply_feed(harness.ledger.snapshot())
    harness.submit((make_pod(4000), 1), scope=GPU)
    assert nodes_of(harness.place()) == {4}


def test_the_masks_of_a_class_and_rule_are_computed_once_and_not_once_a_batch(harness, make_pod, monkeypatch):
    asked = []
    plugin = next(p for p in harness.scheduler._cycle._profile.static_filters if p.name == "PolicyNodes")
    evaluate = type(plugin).filter
    monkeypatch.setattr(type(plugin), "filter", lambda *args: asked.append(1) or evaluate(*args))
    for _ in range(5):
        harness.submit((make_pod(10), 3), scope=GPU)
        harness.place()
    assert len(asked) == 1


def test_a_redefined_class_is_narrowed_anew(harness, make_pod):
    harness.submit((make_pod(100), 1), scope=GPU)  # defines class 0
    harness.place()
    harness.submit((make_pod(2000), 1), scope=GPU)  # defines it as another
    (proposal,) = harness.place()
    assert proposal.requests[0].tolist()[0] == 2000
