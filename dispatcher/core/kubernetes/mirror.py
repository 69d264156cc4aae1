"""Kubernetes mode: from changes of pod and node objects to what the registry and the ledger have to change.

A pod that is on a node or waits for HOSS is a row. Of other pods only nominations are followed. A node
without an object stays in the ledger while pods are on it, but takes no new pods. So a pod's reservation ends
with the pod, and a node that comes back still has its pods counted. A node that the ledger has never had
takes no pods before those are counted that are on it. Events of a pod may repeat; the last one counts."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.kubernetes.pod_groups import GroupRef
from dispatcher.core.kubernetes.pod_objects import GonePod, SeenPod
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.sets import GangRule, NewGang
from dispatcher.core.pods.table import Phase, Rows
from hoss.model.cluster import NominatedPod, ObjectKey, storage_key_of
from hoss.model.node import NodeSpec
from hoss.wire.columns import NONE_U32, decode_uids

_NO_ROWS: Rows = np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True)
class PodPlan:
    """The changes, to be applied in the order of the fields."""

    gone: Rows = field(default_factory=lambda: _NO_ROWS)  # deleted or ended
    new: tuple[SeenPod, ...] = ()  # to accept
    assigned: Rows = field(default_factory=lambda: _NO_ROWS)  # known rows that are on nodes now
    nodes: NDArray[np.uint32] = field(default_factory=lambda: _NO_ROWS)  # for each of `assigned`
    seen: tuple[SeenPod, ...] = ()  # beside `assigned`
    waiting: tuple[tuple[int, SeenPod], ...] = ()  # known rows on no node; they may have changed
    ungated: tuple[tuple[int, frozenset[str]], ...] = ()  # rows, and the gates that they lost
    rejected: tuple[SeenPod, ...] = ()  # by their kubelets, each reported once

    def __bool__(self) -> bool:
        rows = len(self.gone) + len(self.assigned)
        return bool(rows or self.new or self.waiting or self.ungated or self.rejected)


def gangs_of(
    pods: Sequence[SeenPod], rule_of: Callable[[GroupRef], GangRule]
) -> tuple[tuple[NewGang, ...], NDArray[np.uint32] | None]:
    """The gangs of these pods, with what their groups say, and (n,) 1 + the position of each pod's gang, 0
    for none; None without gangs."""
    found: dict[str, NewGang] = {}
    for pod in pods:
        gang = pod.gang
        if gang is None or (gang.key in found and found[gang.key].minimum >= gang.minimum):
            continue
        found[gang.key] = gang if pod.group is None else replace(gang, rule=rule_of(pod.group))
    if not found:
        return (), None
    numbers = {key: number for number, key in enumerate(found, start=1)}
    of_pods = [0 if pod.gang is None else numbers[pod.gang.key] for pod in pods]
    return tuple(found.values()), np.array(of_pods, np.uint32)


class PodMirror:
    """Which pods are rows, and which wait until their node is known."""

    def __init__(self, registry: PodRegistry) -> None:
        self.nodes: dict[str, int] = {}  # index by name, of the ledger's nodes
        self.unplaceable: dict[bytes, SeenPod] = {}  # waiting pods of ours that HOSS cannot place
        self._registry = registry
        self._rejected: set[bytes] = set()  # pods whose rejection was reported
        self._on_unknown_nodes: dict[str, dict[bytes, SeenPod]] = {}  # by node name, not in the ledger

    def plans(self, changes: Iterable[SeenPod | GonePod], at_once: int) -> Iterator[PodPlan]:
        """As `plan`, in parts of at most so many pods: to plan a full cluster takes half a second. Each part
        is planned when it is asked for."""
        last = tuple({change.uid: change for change in changes}.values())
        for start in range(0, len(last), at_once):
            yield self.plan(last[start : start + at_once])

    def plan(self, changes: Iterable[SeenPod | GonePod]) -> PodPlan:
        """The effect of these changes, in their order."""
        last = {change.uid: change for change in changes}
        rows = self._registry.directory.rows_of_uids(decode_uids(b"".join(last))).tolist()
        gone: list[int] = []
        new: list[SeenPod] = []
        assigned: list[tuple[int, int, SeenPod]] = []
        waiting: list[tuple[int, SeenPod]] = []
        for change, row in zip(last.values(), rows, strict=True):
            known = row != NONE_U32
            self._forget(change.uid)
            if isinstance(change, GonePod) or change.over:
                if known:
                    gone.append(row)
            elif change.node:
                node = self.nodes.get(change.node)
                if node is None:
                    self._on_unknown_nodes.setdefault(change.node, {})[change.uid] = change
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

    def take_resolved(self) -> list[SeenPod]:
        """Pods whose node has become known, to be planned again."""
        resolved = self.resolved()
        for name in [name for name in self._on_unknown_nodes if name in self.nodes]:
            del self._on_unknown_nodes[name]
        return resolved

    def resolved(self) -> list[SeenPod]:
        """What `take_resolved` would return. They stay."""
        waiting = self._on_unknown_nodes.items()
        return [pod for name, pods in waiting if name in self.nodes for pod in pods.values()]

    def on_nodes(self, changes: Iterable[SeenPod | GonePod]) -> set[str]:
        """The names of nodes on which pods are, by these changes, or that the ledger does not have and on
        which pods have been seen."""
        pods = (change for change in changes if isinstance(change, SeenPod) and not change.over)
        return {*self._on_unknown_nodes, *(pod.node for pod in pods if pod.node)}

    @property
    def on_unknown_nodes(self) -> Mapping[str, int]:
        """How many pods are on nodes that the ledger does not have, by node name."""
        return {name: len(pods) for name, pods in self._on_unknown_nodes.items()}

    def _newly_rejected(self, changes: Iterable[SeenPod | GonePod]) -> Iterator[SeenPod]:
        for change in changes:
            if isinstance(change, GonePod):
                self._rejected.discard(change.uid)
            elif change.rejection is not None and change.uid not in self._rejected:
                self._rejected.add(change.uid)
                yield change

    def _ungated(self, waiting: Iterable[tuple[int, SeenPod]]) -> Iterator[tuple[int, frozenset[str]]]:
        for row, pod in waiting:
            if self._registry.pods.phase[row] != Phase.UNSCHEDULABLE:
                continue
            gates = self._registry.templates.kind(int(self._registry.pods.template[row])).gates
            if lost := frozenset(gates) - frozenset(pod.gates):
                yield row, lost

    def _forget(self, uid: bytes) -> None:
        self.unplaceable.pop(uid, None)
        for name in [name for name, pods in self._on_unknown_nodes.items() if uid in pods]:
            del self._on_unknown_nodes[name][uid]
            if not self._on_unknown_nodes[name]:
                del self._on_unknown_nodes[name]


class ForeignNominations:
    """The pods of other schedulers that wait on a node for their victims to leave. For a pod of our own the
    ledger has a reservation."""

    def __init__(self) -> None:
        self._pods: dict[bytes, NominatedPod] = {}  # by UID

    def update(self, change: SeenPod | GonePod) -> dict[ObjectKey, NominatedPod | None]:
        """The effect of this change of a pod, by key; None: no longer nominated. Two pods may have one name
        for a moment."""
        before, now = self._pods.pop(change.uid, None), _nominated(change)
        changed: dict[ObjectKey, NominatedPod | None] = {}
        if before is not None and storage_key_of(before) not in map(storage_key_of, self._pods.values()):
            changed[storage_key_of(before)] = None
        if now is not None:
            self._pods[change.uid] = now
            changed[storage_key_of(now)] = now
        return changed


def _nominated(change: SeenPod | GonePod) -> NominatedPod | None:
    if isinstance(change, GonePod) or change.ours or change.node or change.over or not change.nominated_node:
        return None
    spec = change.template.spec
    return NominatedPod(change.namespace, change.name, change.nominated_node, spec.priority, spec.requests)


def closed(node: NodeSpec) -> NodeSpec:
    """The node while its object is gone and pods are on it, or before the pods on it are counted."""
    return replace(node, unschedulable=True, allocatable=(), cards=0)


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Nodes to upsert, and names of nodes to remove."""

    upserts: tuple[NodeSpec, ...] = ()
    removals: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.upserts or self.removals)


class NodeMirror:
    """The nodes as they were last written to the ledger. A node's heartbeats change its object but nothing
    here."""

    def __init__(self, registry: PodRegistry) -> None:
        self._registry = registry
        self._applied: dict[str, NodeSpec] = {}
        self._terminating: set[str] = set()  # their objects are gone, but pods are on them
        # Nodes of the ledger that have been open: the pods on them are counted.
        self._counted: set[str] = set()
        self._held: dict[str, NodeSpec] = {}  # as they are; closed until the pods on them are counted

    @property
    def terminating(self) -> frozenset[str]:
        """Nodes without an object that still have pods."""
        return frozenset(self._terminating)

    def restore(self, nodes: Iterable[NodeSpec]) -> None:
        """The ledger has these nodes from an earlier term, as they are here. On one that is closed there may
        be pods that this term did not count yet."""
        self._applied.update((node.name, node) for node in nodes)
        self._counted.update(name for name, node in self._applied.items() if node != closed(node))

    def plan(
        self,
        seen: Sequence[NodeSpec],
        gone: Iterable[str],
        indexes: Mapping[str, int],
        uncounted: Collection[str] = (),
    ) -> NodePlan:
        """The effect of these changes; a node is in at most one of the two lists. `indexes` of the ledger's
        nodes. `uncounted`: names of nodes on which pods are that may not be counted yet."""
        gone = tuple(gone)
        for name in (*gone, *(node.name for node in seen)):
            self._held.pop(name, None)
        to_count = [node for node in seen if node.name in uncounted and node.name not in self._counted]
        self._held.update((node.name, node) for node in to_count if node != closed(node))
        written = [closed(node) if node.name in self._held else node for node in seen]
        self._counted.update(node.name for node in seen if node.name not in self._held)
        upserts = {node.name: node for node in written if self._applied.get(node.name) != node}
        self._terminating -= {node.name for node in seen}
        self._terminating |= {name for name in gone if name in self._applied}
        occupied = self._occupied(indexes) if self._terminating else set()
        for name in sorted(self._terminating & occupied):
            if self._applied[name] != (node := closed(self._applied[name])):
                upserts[name] = node
        removals = sorted(self._terminating - occupied)
        return NodePlan(tuple(upserts.values()), tuple(removals))

    @property
    def holds_any(self) -> bool:
        """Whether any node is closed because pods on it are not counted."""
        return bool(self._held)

    def take_held(self) -> list[NodeSpec]:
        """Nodes that were closed because pods on them were not counted. They are now: plan these again."""
        held, self._held = self._held, {}
        self._counted.update(held)
        return list(held.values())

    def done(self, plan: NodePlan) -> None:
        """The ledger has applied the plan."""
        self._applied.update((node.name, node) for node in plan.upserts)
        self._terminating.difference_update(plan.removals)
        self._counted.difference_update(plan.removals)
        for name in plan.removals:
            self._applied.pop(name, None)

    def gone(self, names: Iterable[str]) -> None:
        """The objects of these nodes, as last written to the ledger, were gone before anybody knew which pods
        are on them. They stay until `plan` finds no pod there."""
        self._terminating.update(names)

    def get(self, name: str) -> NodeSpec | None:
        """The node as it was last written to the ledger."""
        return self._applied.get(name)

    def _occupied(self, indexes: Mapping[str, int]) -> set[str]:
        pods = self._registry.pods
        bound = set(np.unique(pods.node[: pods.size][pods.phase[: pods.size] == Phase.BOUND]).tolist())
        return {name for name in self._terminating if indexes.get(name) in bound}
