"""Kubernetes mode: from what is told of pods and nodes to what the registry and the ledger have to take in.

Every pod that is on a node or waits for HOSS is a row; all others are none of our business. A node stays in the ledger as long as
pods are on it, though nothing more fits it once its object is gone: so a pod's reservation ends when the pod does, and a node
that comes back finds its pods counted. Events of one pod may come as often as they like; the last one counts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.pod_objects import GonePod, SeenPod
from dispatcher.core.podsets import NewGang
from dispatcher.core.podtable import Phase, Rows
from dispatcher.core.registry import PodRegistry
from hoss.model.node import NodeSpec
from hoss.wire.columns import NONE_U32, decode_uids

_NO_ROWS: Rows = np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True)
class PodPlan:
    """What has changed: to be taken in in the order of the fields."""

    gone: Rows = field(default_factory=lambda: _NO_ROWS)  # they are deleted, or have ended
    new: tuple[SeenPod, ...] = ()  # to be accepted
    assigned: Rows = field(default_factory=lambda: _NO_ROWS)  # known before, and on nodes now
    nodes: NDArray[np.uint32] = field(default_factory=lambda: _NO_ROWS)  # beside `assigned`
    seen: tuple[SeenPod, ...] = ()  # beside `assigned`
    waiting: tuple[tuple[int, SeenPod], ...] = ()  # known before, by row, and on no node; they may have changed
    ungated: tuple[tuple[int, frozenset[str]], ...] = ()  # rows, and the gates that they lost
    rejected: tuple[SeenPod, ...] = ()  # by their kubelets; of what has ended, told once

    def __bool__(self) -> bool:
        return bool(len(self.gone) or self.new or len(self.assigned) or self.waiting or self.ungated or self.rejected)


def gangs_of(pods: Sequence[SeenPod]) -> tuple[tuple[NewGang, ...], NDArray[np.uint32] | None]:
    """The gangs of these pods, and (n,) for each pod 1 + the position of its own, 0 for none; None where there are none."""
    found: dict[str, NewGang] = {}
    for gang in filter(None, (pod.gang for pod in pods)):
        if gang.key not in found or found[gang.key].minimum < gang.minimum:
            found[gang.key] = gang
    if not found:
        return (), None
    numbers = {key: number for number, key in enumerate(found, start=1)}
    of_pods = [0 if pod.gang is None else numbers[pod.gang.key] for pod in pods]
    return tuple(found.values()), np.array(of_pods, np.uint32)


class PodMirror:
    """Which pods are rows, and which wait for the node they are on to be known."""

    def __init__(self, registry: PodRegistry) -> None:
        self.nodes: dict[str, int] = {}  # index by name, of those that the ledger has
        self.unplaceable: dict[bytes, SeenPod] = {}  # ours, that wait and that HOSS cannot place
        self._registry = registry
        self._rejected: set[bytes] = set()  # whose rejection was told
        self._astray: dict[str, dict[bytes, SeenPod]] = {}  # by the name of a node that the ledger has not

    def plan(self, changes: Iterable[SeenPod | GonePod]) -> PodPlan:
        """What these changes, in their order, come to."""
        last = {change.uid: change for change in changes}
        rows = self._registry.directory.rows_of_uids(decode_uids(b"".join(last))).tolist()
        gone: list[int] = []
        new: list[SeenPod] = []
        assigned: list[tuple[int, int, SeenPod]] = []
        waiting: list[tuple[int, SeenPod]] = []
        for change, row in zip(last.values(), rows, strict=True):
            known = row != NONE_U32
            self._forget(change.uid)
            if isinstance(change, GonePod) or change.ended or (change.leaving and not change.node):
                if known:
                    gone.append(row)
            elif change.node:
                node = self.nodes.get(change.node)
                if node is None:
                    self._astray.setdefault(change.node, {})[change.uid] = change
                elif not known:
                    new.append(change)
                else:
                    assigned.append((row, node, change))
            elif change.problem:
                self.unplaceable[change.uid] = change
            elif change.ours and not known:
                new.append(change)
            elif known:
                waiting.append((row, change))
        return PodPlan(
            np.array(gone, np.uint32),
            tuple(new),
            np.array([row for row, _, _ in assigned], np.uint32),
            np.array([node for _, node, _ in assigned], np.uint32),
            tuple(pod for _, _, pod in assigned),
            tuple(waiting),
            tuple(self._ungated(waiting)),
            tuple(self._newly_rejected(last.values())),
        )

    def take_found(self) -> list[SeenPod]:
        """Pods whose node has become known; to be planned again."""
        found = [name for name in self._astray if name in self.nodes]
        return [pod for name in found for pod in self._astray.pop(name).values()]

    @property
    def astray(self) -> Mapping[str, int]:
        """How many pods are on nodes that there are not, by name."""
        return {name: len(pods) for name, pods in self._astray.items()}

    def _newly_rejected(self, changes: Iterable[SeenPod | GonePod]) -> Iterator[SeenPod]:
        for change in changes:
            if isinstance(change, GonePod):
                self._rejected.discard(change.uid)
            elif change.rejection is not None and change.uid not in self._rejected:
                self._rejected.add(change.uid)
                yield change

    def _ungated(self, waiting: Iterable[tuple[int, SeenPod]]) -> Iterator[tuple[int, frozenset[str]]]:
        for row, pod in waiting:
            if lost := set(self._gates(row)) - set(pod.gates):
                yield row, frozenset(lost)

    def _gates(self, row: int) -> tuple[str, ...]:
        if self._registry.pods.phase[row] != Phase.UNSCHEDULABLE:
            return ()
        return self._registry.templates.kind(int(self._registry.pods.template[row])).gates

    def _forget(self, uid: bytes) -> None:
        self.unplaceable.pop(uid, None)
        for name in [name for name, pods in self._astray.items() if uid in pods]:
            del self._astray[name][uid]
            if not self._astray[name]:
                del self._astray[name]


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Nodes to be upserted, and names of those to be removed."""

    upserts: tuple[NodeSpec, ...] = ()
    removals: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.upserts or self.removals)


class NodeMirror:
    """What the ledger was told of nodes. Its heartbeats change a node's object and nothing that matters."""

    def __init__(self, registry: PodRegistry) -> None:
        self._registry = registry
        self._told: dict[str, NodeSpec] = {}
        self._doomed: set[str] = set()  # their objects are gone, and pods are on them

    @property
    def doomed(self) -> frozenset[str]:
        """Nodes whose objects are gone and on which pods are still."""
        return frozenset(self._doomed)

    def plan(self, seen: Sequence[NodeSpec], gone: Iterable[str], indexes: Mapping[str, int]) -> NodePlan:
        """What these changes come to; a node is in one of the two at most. `indexes` of those that the ledger has."""
        upserts = {node.name: node for node in seen if self._told.get(node.name) != node}
        self._doomed -= {node.name for node in seen}
        self._doomed |= {name for name in gone if name in self._told}
        occupied = self._occupied(indexes) if self._doomed else set()
        for name in self._doomed & occupied:
            closed = replace(self._told[name], unschedulable=True, allocatable=(), cards=0)
            if self._told[name] != closed:
                upserts[name] = closed
        removals = sorted(self._doomed - occupied)
        return NodePlan(tuple(upserts.values()), tuple(removals))

    def done(self, plan: NodePlan) -> None:
        """The ledger has it."""
        self._told.update((node.name, node) for node in plan.upserts)
        self._doomed.difference_update(plan.removals)
        for name in plan.removals:
            self._told.pop(name, None)

    def known_before(self, names: Iterable[str]) -> None:
        """The ledger has these nodes from an earlier time; those that are not seen again are to go."""
        for name in names:
            self._told.setdefault(name, NodeSpec(name))

    def get(self, name: str) -> NodeSpec | None:
        """What the ledger was last told of a node."""
        return self._told.get(name)

    @property
    def told(self) -> Iterable[str]:
        """Names of the nodes that the ledger has."""
        return self._told.keys()

    def _occupied(self, indexes: Mapping[str, int]) -> set[str]:
        pods = self._registry.pods
        bound = set(np.unique(pods.node[: pods.size][pods.phase[: pods.size] == Phase.BOUND]).tolist())
        return {name for name in self._doomed if indexes.get(name) in bound}
