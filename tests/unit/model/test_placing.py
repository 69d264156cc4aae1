"""What is accepted of an algorithm's answer, and which nodes let a pod in."""

import numpy as np
import pytest

from hoss.model.node import NodeSpec, Taint, Toleration
from hoss.model.placing import NO_NODE, NodeSnapshot, PlacementBatch, PlacementRun, admits, checked_placements
from hoss.model.pod import DeviceRequest, PodSpec
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
        (
            PodSpec(
                tolerations=(Toleration(operator="Exists"),),
                scope=NodeScope("r", (Requirement("x", "Exists"),)),
            ),
            False,
        ),
        (
            PodSpec(tolerations=(Toleration(operator="Exists"),), scope=NodeScope("r", (), required=False)),
            True,
        ),
    ],
)
def test_name_labels_taints_and_the_policys_nodes_decide_who_is_let_in(spec: PodSpec, admitted: bool) -> None:
    node = NodeSpec("n", (("zone", "a"),), (Taint("gpu"), Taint("soon", effect="PreferNoSchedule")))
    assert admits(spec, node) is admitted


CARDED = NodeSnapshot(
    ("cpu", "pods"),
    np.full((2, 2), 100),
    np.zeros((2, 2), np.int64),
    (NodeSpec("a", cards=2), NodeSpec("b")),
    np.array(((0, 300, *[0xFFFF] * 14), [0xFFFF] * 16), np.uint16),
)


def carded(first: int, count: int, devices: DeviceRequest) -> PlacementRun:
    return PlacementRun(PodSpec(devices=devices), np.array((1, 1)), np.array((True, True)), first, count)


@pytest.mark.parametrize(
    ("runs", "answer", "problem"),
    [
        # The shares go to the fuller card, as the ledger picks it, and leave the other one whole.
        ([carded(0, 1, DeviceRequest(1, 700)), carded(1, 1, DeviceRequest(1, 1000))], [0, 0], None),
        ([carded(0, 2, DeviceRequest(2, 300))], [0, 0], None),
        (
            [carded(0, 2, DeviceRequest(1, 1000))],
            [0, 0],
            "cards of node a: 2 pods of 1 times 1000 .* and 1 fit",
        ),
        ([carded(0, 3, DeviceRequest(2, 300))], [0, 0, 0], "3 pods of 2 times 300 .* and 2 fit"),
        ([carded(0, 1, DeviceRequest(1, 100))], [1], "cards of node b: 1 pods of 1 times 100 .* and 0 fit"),
        ([carded(0, 2, DeviceRequest(1, 1000))], [0, NO_NODE], None),
    ],
)
def test_cards_are_checked_pod_by_pod_as_the_ledger_gives_them_out(runs, answer, problem) -> None:
    batch = PlacementBatch(tuple(runs))
    if problem is None:
        assert checked_placements(batch, CARDED, answer).tolist() == answer
    else:
        with pytest.raises(ValueError, match=problem):
            checked_placements(batch, CARDED, answer)
    assert CARDED.cards_used is not None
    assert CARDED.cards_used[0, :2].tolist() == [0, 300]
