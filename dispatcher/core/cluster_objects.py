"""The objects beside pods and nodes that rules of scheduling look at: what the platform knows of them, by key.

Namespaces exist because they were applied, or because pods are in them: then they have the label of their name alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from hoss.model.cluster import Service
from hoss.model.cluster_objects import (
    ClusterObject,
    Namespace,
    ObjectKey,
    PodDisruptionBudget,
    PriorityClass,
    key_of,
)

FIRST_NAMESPACE = "default"  # there from the beginning


class Applied(str, Enum):
    """What applying an object does, in kubectl's words."""

    CREATED = "created"
    CONFIGURED = "configured"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What placing depends on, as of one moment. `version` grows with every change."""

    version: int
    namespaces: tuple[Namespace, ...]
    services: tuple[Service, ...]


class ClusterObjects:
    """All objects that were applied and not removed."""

    def __init__(self) -> None:
        self._objects: dict[ObjectKey, ClusterObject] = {}
        self._used: dict[str, Namespace] = {FIRST_NAMESPACE: Namespace(FIRST_NAMESPACE)}
        self._surroundings: Surroundings | None = None  # until the next change
        self._version = 0

    def __iter__(self) -> Iterator[ClusterObject]:
        """All of them by key, and the namespaces that are there only because pods are in them."""
        known = {**{key_of(namespace): namespace for namespace in self._used.values()}, **self._objects}
        return iter([known[key] for key in sorted(known)])

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._objects

    @property
    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        """Labels by name, `kubernetes.io/metadata.name` included."""
        return {namespace.name: namespace.all_labels for namespace in self.surroundings.namespaces}

    @property
    def services(self) -> tuple[Service, ...]:
        """All services."""
        return tuple(item for item in self._objects.values() if isinstance(item, Service))

    @property
    def budgets(self) -> tuple[PodDisruptionBudget, ...]:
        """All disruption budgets."""
        return tuple(item for item in self._objects.values() if isinstance(item, PodDisruptionBudget))

    @property
    def priority_classes(self) -> Mapping[str, PriorityClass]:
        """Priority classes by name; not the two that every cluster has."""
        return {item.name: item for item in self._objects.values() if isinstance(item, PriorityClass)}

    @property
    def surroundings(self) -> Surroundings:
        """What workers are to know; the same object until it changes."""
        if self._surroundings is None:
            namespaces = {**self._used, **{i.name: i for i in self._objects.values() if isinstance(i, Namespace)}}
            self._surroundings = Surroundings(self._version, tuple(namespaces.values()), self.services)
        return self._surroundings

    def compare(self, item: ClusterObject) -> Applied:
        """What applying it would do."""
        known = self._objects.get(key_of(item))
        if known is None:
            return Applied.CREATED
        return Applied.UNCHANGED if known == item else Applied.CONFIGURED

    def apply(self, items: Iterable[ClusterObject]) -> None:
        """Each replaces what has its key."""
        for item in items:
            self._objects[key_of(item)] = item
            self._changed(isinstance(item, (Namespace, Service)))

    def remove(self, keys: Iterable[ObjectKey]) -> None:
        """These are gone. A namespace that pods are in stays, without labels of its own."""
        for key in keys:
            self._changed(isinstance(self._objects.pop(key, None), (Namespace, Service)))

    def use(self, namespace: str) -> None:
        """There are pods in it."""
        if namespace not in self._used:
            self._used[namespace] = Namespace(namespace)
            self._changed(ObjectKey("Namespace", "", namespace) not in self._objects)

    def _changed(self, matters: bool) -> None:
        if matters:  # to placing
            self._version += 1
            self._surroundings = None
