"""Placing a whole batch at once: what an algorithm is given, what it answers, and what is accepted of that.

A scheduler of one's own (`hoss.sdk`) and an algorithm in a worker (docs/plugins.md) are the same class with
one method. The columns are read-only, and stay as they are while the algorithm computes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import take_cards
from hoss.model.node import NO_EXECUTE, NO_SCHEDULE, NodeSpec
from hoss.model.pod import PodSpec

NO_NODE = -1  # in an answer: this pod is not placed now
_NO_CARD = 0xFFFF


@dataclass(frozen=True, slots=True, eq=False)
class PlacementRun:
    """Equal pods, one after the other in the batch."""

    spec: PodSpec
    request: NDArray[np.int64]  # (resources,), schema units; one of "pods" included
    admitted: NDArray[np.bool_]  # (nodes,): apart from the room for several pods, each of them may go there
    first: int  # position of the first of them in the batch
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class PlacementBatch:
    """Pods to place, as runs, the highest priority first."""

    runs: tuple[PlacementRun, ...]

    @property
    def pods(self) -> int:
        """The number of pods."""
        return sum(run.count for run in self.runs)


@dataclass(frozen=True, slots=True, eq=False)
class NodeSnapshot:
    """All nodes at one moment. A column index is a node's index; an index may be without a node."""

    resources: tuple[str, ...]  # names by row
    allocatable: NDArray[np.int64]  # (resources, nodes), schema units: cpu in thousandths, memory in bytes
    requested: NDArray[np.int64]  # (resources, nodes), with what this scheduler has proposed
    specs: Sequence[NodeSpec | None]  # (nodes,): None: no node has this index
    # (nodes, 16): thousandths in use of each card, 0xFFFF where the node has no such card; None: no node has
    # any
    cards_used: NDArray[np.uint16] | None = None

    @property
    def free(self) -> NDArray[np.int64]:
        """(resources, nodes), a new array; below 0 on nodes that shrank."""
        return self.allocatable - self.requested


@runtime_checkable
class PlacementAlgorithm(Protocol):
    """Chooses nodes for the pods of a batch."""

    def place(self, batch: PlacementBatch, snapshot: NodeSnapshot, budget: float) -> NDArray[np.intp]:
        """The node index of each pod, (pods,) in the order of the batch; NO_NODE where it finds none.

        `budget`: the seconds that the answer should take. What is not placed has the reasons of the filters,
        and queues again.

        Pods that request cards (`run.spec.devices`) are in the batch only if the object has an attribute
        `places_cards` that is true. Which cards of a node they get is the ledger's choice: the fullest that
        fit, in the order of the batch (hoss.model.fit.take_cards)."""


def places_cards(algorithm: object) -> bool:
    """Whether the algorithm may be asked about pods that request cards."""
    return bool(getattr(algorithm, "places_cards", False))


class FailureStreak:
    """Whether code of others fails at everything it is asked. Then pods had better go to other workers: this
    one answers the quickest, and would get most of them.

    After `MOST` failures without a success in between it counts as failing, for a time that doubles with each
    further failure. When that is over, pods show whether it still fails."""

    MOST = 2
    FIRST_SECONDS, LONGEST_SECONDS = 30.0, 300.0  # longer than pods back off, or the same ones come back

    def __init__(self) -> None:
        self._failures = 0  # since the last success
        self._pause_seconds = self.FIRST_SECONDS  # the next one
        self._until = 0.0
        self._reason = ""

    def failed(self, reason: str, now: float) -> None:
        """It failed at what it was asked."""
        self._failures += 1
        self._reason = reason
        if self._failures >= self.MOST and now >= self._until:
            self._until = now + self._pause_seconds
            self._pause_seconds = min(2 * self._pause_seconds, self.LONGEST_SECONDS)

    def succeeded(self) -> None:
        """It answered, if only that a pod fits nowhere."""
        self._failures, self._pause_seconds, self._until = 0, self.FIRST_SECONDS, 0.0

    def failing(self, now: float) -> str:
        """The latest reason while it counts as failing; else empty."""
        return self._reason if now < self._until else ""


def checked_placements(batch: PlacementBatch, snapshot: NodeSnapshot, answer: Any) -> NDArray[np.intp]:
    """The answer of an algorithm as a column. Raises ValueError, which says what is wrong, unless it names a
    node for each pod that admits the pod, and all of them together fit."""
    given = np.asarray(answer)
    if given.shape != (batch.pods,):
        raise ValueError(f"answered with shape {given.shape} for {batch.pods} pods: one node index a pod")
    if given.dtype.kind not in "iu":
        raise ValueError(
            f"answered with {given.dtype}: node indexes are whole numbers, and {NO_NODE} is none"
        )
    nodes = given.astype(np.intp)
    size = snapshot.allocatable.shape[1]
    wrong = np.flatnonzero((nodes < NO_NODE) | (nodes >= size))
    if len(wrong):
        raise ValueError(f"placed pod {wrong[0]} on node {given[wrong[0]]}, and there are {size} nodes")
    added = np.zeros_like(snapshot.requested)
    cards = None if snapshot.cards_used is None else snapshot.cards_used.copy()
    for run in batch.runs:
        chosen = nodes[run.first : run.first + run.count]
        chosen = chosen[chosen != NO_NODE]
        refusing = chosen[~run.admitted[chosen]]
        if len(refusing):
            raise ValueError(
                f"placed a pod of {run.count} equal ones on {_named(snapshot, int(refusing[0]))}, which does "
                "not admit it: choose where run.admitted is true"
            )
        pods = np.bincount(chosen, minlength=size)
        added += run.request[:, None] * pods
        devices = run.spec.devices
        if devices is None:
            continue
        if cards is None:  # then no node admits the pods
            cards = np.full((size, 1), _NO_CARD, np.uint16)
        held = take_cards(cards, chosen.tolist(), devices.count, devices.milli)
        if not held.all():
            node = int(chosen[~held][0])
            raise ValueError(
                f"overfilled the cards of {_named(snapshot, node)}: {pods[node]} pods of {devices.count}"
                f" times {devices.milli} thousandths of a card, and {held[chosen == node].sum()} fit"
            )
    taken = np.flatnonzero(added.any(axis=0))
    short = (added[:, taken] > 0) & (added[:, taken] > snapshot.free[:, taken])
    if short.any():
        resource, position = (int(at[0]) for at in np.nonzero(short))
        node = int(taken[position])
        raise ValueError(
            f"overfilled {_named(snapshot, node)}: {added[resource, node]} {snapshot.resources[resource]}"
            f" where {snapshot.free[resource, node]} are free"
        )
    return nodes


def admits(spec: PodSpec, node: NodeSpec) -> bool:
    """Whether the node's name, labels and taints let such a pod in: kube-scheduler's NodeName, NodeAffinity
    and TaintToleration, and the nodes of the policy's rule. Cordons are the caller's: the ledger sets them,
    too."""
    if spec.node_name not in ("", node.name):
        return False
    labels = dict(node.labels)
    if not spec.selects(labels, node.name):
        return False
    if spec.scope is not None and spec.scope.required and not spec.scope.matches(labels):
        return False
    return all(
        taint.effect not in (NO_SCHEDULE, NO_EXECUTE) or any(t.tolerates(taint) for t in spec.tolerations)
        for taint in node.taints
    )


def _named(snapshot: NodeSnapshot, node: int) -> str:
    spec = snapshot.specs[node]
    return f"node {node}" if spec is None else f"node {spec.name}"
