"""The cluster objects that scheduling rules depend on, beside pods and nodes, and the handlers that change
them. A namespace exists because it was applied, or because pods are in it; then its name is its only label,
and it ends a while after its last pod."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from dispatcher.core import messages as m
from dispatcher.core.changes import Changes
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.queue.queues import Queues
from dispatcher.core.workers.membership import Membership
from hoss.model.cluster import (
    ClusterObject,
    Namespace,
    NamespaceSnapshot,
    ObjectKey,
    PodDisruptionBudget,
    PriorityClass,
    Service,
    key_of,
)

FIRST_NAMESPACE = "default"  # exists from the start

DROP_NAMESPACES_SECONDS = 60.0


class Applied(str, Enum):
    """The effect of applying an object, in kubectl's words."""

    CREATED = "created"
    CONFIGURED = "configured"
    UNCHANGED = "unchanged"


class ClusterObjects:
    """All objects that were applied and not removed."""

    def __init__(self) -> None:
        self._objects: dict[ObjectKey, ClusterObject] = {}
        self._used: dict[str, Namespace] = {FIRST_NAMESPACE: Namespace(FIRST_NAMESPACE)}
        self._snapshot: NamespaceSnapshot | None = None  # until the next change
        self._version = 0

    def __iter__(self) -> Iterator[ClusterObject]:
        """All objects by key, and the namespaces that exist only because pods are in them."""
        known = {**{key_of(namespace): namespace for namespace in self._used.values()}, **self._objects}
        return iter([known[key] for key in sorted(known)])

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._objects

    @property
    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        """Labels by namespace, `kubernetes.io/metadata.name` included."""
        return {namespace.name: namespace.all_labels for namespace in self.namespace_snapshot.namespaces}

    @property
    def services(self) -> tuple[Service, ...]:
        return tuple(item for item in self._objects.values() if isinstance(item, Service))

    @property
    def budgets(self) -> tuple[PodDisruptionBudget, ...]:
        return tuple(item for item in self._objects.values() if isinstance(item, PodDisruptionBudget))

    @property
    def priority_classes(self) -> Mapping[str, PriorityClass]:
        """Priority classes by name, without the two that every cluster has."""
        return {item.name: item for item in self._objects.values() if isinstance(item, PriorityClass)}

    @property
    def namespace_snapshot(self) -> NamespaceSnapshot:
        """The snapshot that workers need; the same object until something changes."""
        if self._snapshot is None:
            namespaces = {
                **self._used,
                **{i.name: i for i in self._objects.values() if isinstance(i, Namespace)},
            }
            self._snapshot = NamespaceSnapshot(self._version, tuple(namespaces.values()), self.services)
        return self._snapshot

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {"cluster_objects": len(self._objects), "namespaces": len(self.namespace_snapshot.namespaces)}

    def compare(self, item: ClusterObject) -> Applied:
        """The effect that applying it would have."""
        known = self._objects.get(key_of(item))
        if known is None:
            return Applied.CREATED
        return Applied.UNCHANGED if known == item else Applied.CONFIGURED

    def apply(self, items: Iterable[ClusterObject]) -> None:
        """Add objects; each replaces the one with its key."""
        for item in items:
            self._objects[key_of(item)] = item
            self._changed(isinstance(item, (Namespace, Service)))

    def remove(self, keys: Iterable[ObjectKey]) -> None:
        """Remove objects. A namespace that pods are in stays, without labels of its own."""
        for key in keys:
            self._changed(isinstance(self._objects.pop(key, None), (Namespace, Service)))

    def use(self, namespaces: Iterable[str]) -> None:
        """Pods are in these namespaces."""
        for namespace in namespaces:
            if namespace not in self._used:
                self._used[namespace] = Namespace(namespace)
                self._changed(ObjectKey("Namespace", "", namespace) not in self._objects)

    def use_only(self, namespaces: Collection[str]) -> None:
        """Pods are in no other namespaces than these."""
        for namespace in [name for name in self._used if name not in namespaces and name != FIRST_NAMESPACE]:
            del self._used[namespace]
            self._changed(ObjectKey("Namespace", "", namespace) not in self._objects)

    def _changed(self, affects_placement: bool) -> None:
        if affects_placement:
            self._version += 1
            self._snapshot = None


@dataclass(slots=True, eq=False)
class ClusterObjectUpdates:
    """`handlers` lists the handlers by event type. They send changes to workers and wake pods that the
    changes may help."""

    objects: ClusterObjects
    registry: PodRegistry
    members: Membership
    queues: Queues
    unix_ms: Callable[[float], int]
    _namespaces_version: int = field(default=0, init=False)  # of the pods' namespaces that `objects` has
    _next_drop: float = field(default=float("-inf"), init=False)

    @property
    def handlers(self) -> m.Handlers:
        return {
            m.ObjectsApplied: self._objects_applied,
            m.ObjectsRemoved: self._objects_removed,
        }

    def _objects_applied(self, event: m.ObjectsApplied, now: float) -> list[m.Instruction]:
        before = self.objects.namespace_snapshot
        self.objects.apply(event.objects)
        return self._namespaces_changed(before, now)

    def _objects_removed(self, event: m.ObjectsRemoved, now: float) -> list[m.Instruction]:
        before = self.objects.namespace_snapshot
        self.objects.remove(event.keys)
        return self._namespaces_changed(before, now)

    def use_namespaces(self) -> list[m.Instruction]:
        """Pods were accepted: create their namespaces."""
        # A new namespace helps no waiting pod before its own pods are bound, and that is another change.
        templates = self.registry.templates
        if templates.namespaces_version == self._namespaces_version:
            return []
        self._namespaces_version = templates.namespaces_version
        before = self.objects.namespace_snapshot
        self.objects.use(templates.namespaces)
        return self._send_changes(before)

    def tick(self, now: float) -> list[m.Instruction]:
        """Now and then drop the namespaces that no pod is in, all at once: every change costs each worker a
        look at its classes."""
        if now < self._next_drop:
            return []
        self._next_drop = now + DROP_NAMESPACES_SECONDS
        before = self.objects.namespace_snapshot
        self.objects.use_only(self.registry.templates.namespaces)
        return self._send_changes(before)

    def _namespaces_changed(self, before: NamespaceSnapshot, now: float) -> list[m.Instruction]:
        after = self.objects.namespace_snapshot
        relabelled = frozenset(namespace.name for namespace in {*before.namespaces} ^ {*after.namespaces})
        self.queues.cluster_changed(Changes(relabelled=relabelled), now, self.unix_ms(now))
        return self._send_changes(before)

    def _send_changes(self, before: NamespaceSnapshot) -> list[m.Instruction]:
        after = self.objects.namespace_snapshot
        if after is before:
            return []
        return [m.SendNamespaces(worker.link, after) for worker in self.members.living()]
