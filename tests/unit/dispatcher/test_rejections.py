"""Kubelet rejections: what they say, and whose account was wrong."""

import numpy as np
import pytest

from dispatcher.core.kubernetes.rejections import (
    Cause,
    KubeletRejection,
    NodeFigures,
    OnNode,
    compare,
    on_node,
    rejection_of,
)
from dispatcher.core.pods.sets import NewPods
from dispatcher.core.pods.table import Phase
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec

# As kubelet's lifecycle/predicate.go words it.
SAID = "Pod was rejected: Node didn't have enough resource: cpu, requested: 800, used: 400, capacity: 1000"
NODE = NodeSpec("n1", allocatable=(("cpu", 1000),))


def status(reason="OutOfcpu", message=SAID, phase="Failed"):
    return {"phase": phase, "reason": reason, "message": message}


def rejected(used=400, capacity=1000, asked=800):
    return KubeletRejection("OutOfcpu", SAID, NodeFigures("cpu", asked, used, capacity))


def test_a_kubelet_s_figures_are_read():
    assert rejection_of(status()) == KubeletRejection("OutOfcpu", SAID, NodeFigures("cpu", 800, 400, 1000))


@pytest.mark.parametrize(
    "reason", ["OutOfmemory", "OutOfpods", "UnexpectedAdmissionError", "TopologyAffinityError"]
)
def test_what_names_no_figures_is_a_rejection_all_the_same(reason):
    assert rejection_of(status(reason, "no")) == KubeletRejection(reason, "no")


@pytest.mark.parametrize(
    "other", [status(phase="Running"), status("Error"), status("Evicted"), {"phase": "Failed"}, {}], ids=str
)
def test_pods_that_failed_otherwise_were_not_rejected(other):
    assert rejection_of(other) is None


@pytest.mark.parametrize(
    ("told", "others", "cause", "said"),
    [
        (
            rejected(used=400),
            OnNode(400, 2, 1),
            Cause.OVERCOMMITTED,
            "1 of the others were placed by other schedulers",
        ),
        (rejected(used=100, capacity=800), OnNode(100, 1, 0), Cause.NODE_OBJECT, "its kubelet has 800"),
        (rejected(used=400), OnNode(100, 1, 0), Cause.UNSEEN, "counts 400 of cpu in use"),
        (rejected(used=100, asked=100), OnNode(100, 1, 0), Cause.LATE, "900 are free"),
        (
            KubeletRejection("UnexpectedAdmissionError", "no device"),
            OnNode(0, 0, 0),
            Cause.NO_FIGURES,
            "no device",
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_whose_account_was_wrong_the_figures_tell(told, others, cause, said):
    found = compare(told, NODE, others)
    assert found.cause is cause
    assert said in found.text


def test_what_is_on_a_node_is_summed_by_who_placed_it(bench):
    spec = PodSpec(requests=(("cpu", 300),))
    uids = np.arange(48, dtype=np.uint8).reshape(3, 16)
    rows = bench.admit((bench._template(spec),), (), NewPods(("a", "b", "c"), np.zeros(3, np.uint32), uids))
    pods = bench.machine.registry.pods
    pods.phase[rows[:2]], pods.node[rows] = Phase.BOUND, [4, 4, 4]
    of_template = bench.machine.registry.templates.kind(int(pods.template[rows[0]])).scheduler_name
    assert on_node(bench.machine.registry, 4, "cpu", (of_template,)) == OnNode(600, 2, 0)
    assert on_node(bench.machine.registry, 4, "pods", ("nobody",)) == OnNode(2, 2, 2)
