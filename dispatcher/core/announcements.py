"""Changes of cluster objects: told to workers, and to waiting pods that they may help."""

from collections.abc import Callable

from dispatcher.core import messages as m
from dispatcher.core.changes import Changes
from dispatcher.core.cluster_objects import ClusterObjects, Surroundings
from dispatcher.core.membership import Membership
from dispatcher.core.queues import Queues
from dispatcher.core.registry import PodRegistry


class Announcements:
    """Handlers of events about cluster objects; `handlers` names them all."""

    def __init__(
        self,
        objects: ClusterObjects,
        registry: PodRegistry,
        members: Membership,
        queues: Queues,
        unix_ms: Callable[[float], int],
    ) -> None:
        self._objects = objects
        self._registry = registry
        self._members = members
        self._queues = queues
        self._unix_ms = unix_ms
        self._namespaces_used = 0  # how many namespaces of pods the objects have been told of
        self.handlers: m.Handlers = {m.ObjectsApplied: self._objects_applied, m.ObjectsRemoved: self._objects_removed}

    def _objects_applied(self, event: m.ObjectsApplied, now: float) -> list[m.Instruction]:
        before = self._objects.surroundings
        self._objects.apply(event.objects)
        return self._surroundings_changed(before, now)

    def _objects_removed(self, event: m.ObjectsRemoved, now: float) -> list[m.Instruction]:
        before = self._objects.surroundings
        self._objects.remove(event.keys)
        return self._surroundings_changed(before, now)

    def use_namespaces(self) -> list[m.Instruction]:
        """Pods were accepted: their namespaces are there, if they were not."""
        # A namespace that comes with its pods helps nobody before they are bound, and that is a change of its own.
        used = self._registry.templates.namespaces
        if len(used) == self._namespaces_used:
            return []
        self._namespaces_used = len(used)
        before = self._objects.surroundings
        for namespace in used:
            self._objects.use(namespace)
        return self._told_of(before)

    def _surroundings_changed(self, before: Surroundings, now: float) -> list[m.Instruction]:
        after = self._objects.surroundings
        relabelled = frozenset(namespace.name for namespace in {*before.namespaces} ^ {*after.namespaces})
        self._queues.cluster_changed(Changes(relabelled=relabelled), now, self._unix_ms(now))
        return self._told_of(before)

    def _told_of(self, before: Surroundings) -> list[m.Instruction]:
        after = self._objects.surroundings
        if after is before:
            return []
        return [m.SendSurroundings(worker.link, after) for worker in self._members.living()]
