"""What is accepted of an algorithm's answer, and which nodes let a pod in."""

import numpy as np
import pytest

from hoss.model.node import NodeSpec, Taint, Toleration
from hoss.model.placing import NO_NODE, NodeSnapshot, PlacementBatch, PlacementRun, admits, checked_placements
from hoss.model.pod import PodSpec
from hoss.model.selectors import NodeScope, Requirement


def run(first: int, count: int, cpu: int, admitted: list[bool]) -> PlacementRun:
    return PlacementRun(PodSpec(), np.array((cpu, 1)), np.array(admitted), first, count)


# Free: 4 cpu on a, 2 on b; c has shrunk below what is requested.
NODES = NodeSnapshot(
    ("cpu", "pods"),
    np.array(((4, 4, 1), (10, 10, 10))),
    np.array(((0, 2, 3), (0, 1, 1))),
    (NodeSpec("a"), NodeSpec("b"), NodeSpec("c")),
)
BATCH = PlacementBatch((run(0, 2, 2, [True, True, True]), run(2, 1, 0, [False, True, True])))


@pytest.mark.parametrize("answer", [[0, 0, 1], [0, 1, NO_NODE], [1, 0, 2], np.array([0, 1, 1], np.int32)])
def test_what_fits_is_accepted_and_a_full_node_takes_what_asks_for_nothing(answer) -> None:
    assert checked_placements(BATCH, NODES, answer).tolist() == list(answer)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ([0, 0], r"shape \(2,\) for 3 pods"),
        (None, r"shape \(\) for 3 pods"),
        ([0.0, 1.0, 1.0], "float64"),
        ([0, 3, 1], "pod 1 on node 3, and there are 3 nodes"),
        ([0, -2, 1], "pod 1 on node -2"),
        ([0, 1, 0], "on node a, which does not admit it"),
        ([1, 1, 1], "overfilled node b: 4 cpu where 2 are free"),
        ([2, 0, 1], "overfilled node c: 2 cpu where -2 are free"),
    ],
)
def test_anything_else_is_refused_with_what_is_wrong(answer, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        checked_placements(BATCH, NODES, answer)


@pytest.mark.parametrize(
    ("spec", "admitted"),
    [
        (PodSpec(), False),
        (PodSpec(tolerations=(Toleration("gpu", "Exists"),)), True),
        (PodSpec(tolerations=(Toleration("gpu", "Exists"),), node_name="other"), False),
        (PodSpec(tolerations=(Toleration(operator="Exists"),), node_selector=(("zone", "a"),)), True),
        (PodSpec(tolerations=(Toleration(operator="Exists"),), node_selector=(("zone", "b"),)), False),
        (PodSpec(tolerations=(Toleration(operator="Exists"),), scope=NodeScope("r", (Requirement("x", "Exists"),))), False),
        (PodSpec(tolerations=(Toleration(operator="Exists"),), scope=NodeScope("r", (), required=False)), True),
    ],
)  # fmt: skip
def test_name_labels_taints_and_the_policys_nodes_decide_who_is_let_in(spec: PodSpec, admitted: bool) -> None:
    node = NodeSpec("n", (("zone", "a"),), (Taint("gpu"), Taint("soon", effect="PreferNoSchedule")))
    assert admits(spec, node) is admitted
