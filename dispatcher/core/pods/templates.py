"""Pod templates and equivalence classes, each stored once however many pods have it.

A class is identified by its bytes (PodSpec, serialised deterministically). The core decodes it, with a
function passed in, only when something has to read it. Class ids are never reused, because workers remember
them. Template ids are reused, because only rows refer to them, and so are the ids of kinds. A template is
forgotten with its last pod, a class or kind with its last template, and a namespace with its last kind."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.pods.table import GrowingColumns
from dispatcher.core.policy.rules import ClassFacts, Facts, facts_of_spec
from hoss.model.pod import DuringExecution, Movable, PodSpec, PodTemplate, QosClass

_MANY_IDS = 10_000


class TemplateKind(NamedTuple):
    """What a template is besides its class; there are few distinct ones. The namespace is a copy of the
    class's."""

    namespace: str
    scheduler_name: str
    priority_class_name: str
    qos_class: QosClass
    owner_kind: str
    grace_seconds: int = 0  # termination grace period of its pods
    gates: tuple[str, ...] = ()  # scheduling gates, sorted; not in the class, which survives their removal
    during_execution: DuringExecution = DuringExecution.IGNORE
    limits: tuple[tuple[str, int], ...] = ()  # see PodTemplate
    movable: Movable = Movable.IF_REPLACED


def too_many_terms(terms: int, most: int) -> str:
    """Why a pod with so many terms about other pods is not placed."""
    return (
        f"has {terms} affinity terms and spread constraints about other pods; max_pod_terms of the dispatcher"
        f" allows {most}: give pods a label that one term can name, or raise the limit"
    )


class TemplateTable(GrowingColumns):
    """Templates as columns, by template id."""

    def __init__(
        self, decode: Callable[[bytes], PodSpec], read_facts: Callable[[bytes], ClassFacts] | None = None
    ) -> None:
        self.on_forgotten: list[Callable[[int], None]] = []  # each gets the id, before it is used again
        self._decode = decode
        self._read_facts = read_facts or (lambda spec: facts_of_spec(decode(spec)))
        self.class_id = np.zeros(0, np.uint32)
        self.kind_id = np.zeros(0, np.uint32)
        self.priority = np.zeros(0, np.int32)
        self.sub_queue = np.zeros(0, np.uint32)  # by the policy in force
        self.tenant = np.zeros(0, np.uint32)  # tenant of its pods (queue.tenants)
        self.users = np.zeros(0, np.int64)  # number of its pods
        self.gated = np.zeros(0, np.bool_)  # whether it has scheduling gates
        self.watched = np.zeros(0, np.bool_)  # whether node affinity is required during execution
        self.specs: dict[int, bytes] = {}  # by class id
        self._decoded: dict[int, PodSpec] = {}  # classes decoded so far
        self._class_ids: dict[bytes, int] = {}
        self._class_users: dict[int, int] = {}  # templates per class
        self._next_class_id = 1
        self._forgotten_classes: list[int] = []  # since they were taken
        self.namespaces: dict[str, int] = {}  # of all templates, in the order of their coming -> kinds
        self.namespaces_version = 0  # grows when a namespace comes or goes
        self._kinds: list[TemplateKind] = []  # by id; one without templates is no kind any more
        self._kind_ids: dict[TemplateKind, int] = {}
        self._kind_users: list[int] = []  # templates, by id of the kind
        self._free_kinds: list[int] = []
        self._ids: dict[tuple[int, int], int] = {}  # (class id, kind id) -> template id
        self._free: list[int] = []
        self._size = 0

    def intern(self, spec: bytes, kind: TemplateKind, priority: int) -> tuple[int, bool]:
        """The template's id, and whether it is new. The caller routes a new template."""
        class_id = self._class_ids.get(spec)
        kind_id = self._kind_ids.get(kind)
        if kind_id is None:
            kind_id = self._add_kind(kind)
        if class_id is None:
            class_id = self._class_ids[spec] = self._next_class_id
            self._next_class_id += 1
            self.specs[class_id] = spec
            self._class_users[class_id] = 0
        found = self._ids.get((class_id, kind_id))
        if found is not None:
            return found, False
        return self._add(class_id, kind_id, priority), True

    def template(self, template_id: int) -> PodTemplate:
        """The whole template, decoded anew."""
        kind = self.kind(template_id)
        return PodTemplate(
            spec=replace(self._decode(self.spec(template_id)), scheduling_gates=kind.gates),
            scheduler_name=kind.scheduler_name,
            priority_class_name=kind.priority_class_name,
            qos_class=kind.qos_class,
            owner_kind=kind.owner_kind,
            during_execution=kind.during_execution,
            termination_grace_seconds=kind.grace_seconds,
            limits=kind.limits,
            movable=kind.movable,
        )

    def facts(self, template_id: int) -> Facts:
        """What policies match on, read without decoding the whole class."""
        kind = self._kinds[self.kind_id.item(template_id)]
        own = self._read_facts(self.specs[self.class_id.item(template_id)])
        return Facts(
            *own, kind.priority_class_name, kind.scheduler_name, kind.qos_class.value, kind.owner_kind
        )

    def spec(self, template_id: int) -> bytes:
        """The serialized PodSpec of its class."""
        return self.specs[self.class_id.item(template_id)]

    def pod_spec(self, class_id: int) -> PodSpec:
        """A decoded class, cached while any pod has it."""
        found = self._decoded.get(class_id)
        if found is None:
            found = self._decoded[class_id] = self._decode(self.specs[class_id])
        return found

    def kind(self, template_id: int) -> TemplateKind:
        """What it adds to its class."""
        return self._kinds[int(self.kind_id[template_id])]

    @property
    def kinds(self) -> Collection[TemplateKind]:
        """The kinds of all templates."""
        return self._kind_ids.keys()

    def differs(self, template_id: int, spec: bytes, kind: TemplateKind) -> bool:
        """Whether a template differs from this one in more than its gates."""
        mine = self.kind(template_id)
        return self.spec(template_id) != spec or mine != kind._replace(gates=mine.gates)

    def places(self, template_ids: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """(3, n): sub-queue, priority and tenant, which decide where pods of each template are queued."""
        columns = (self.sub_queue, self.priority, self.tenant)
        return np.stack([column[template_ids].astype(np.int64) for column in columns])

    @property
    def lowest_priority(self) -> int:
        """The lowest priority of any pod; 0 without pods."""
        used = self.priority[: self._size][self.users[: self._size] > 0]
        return int(used.min()) if len(used) else 0

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {
            "templates": len(self._ids),
            "classes": len(self.specs),
            "kinds": len(self._kind_ids),
            "pod_namespaces": len(self.namespaces),
        }

    def take_forgotten_classes(self) -> list[int]:
        """The classes that were forgotten since the last call."""
        taken, self._forgotten_classes = self._forgotten_classes, []
        return taken

    def was_forgotten(self, class_id: int) -> bool:
        """Whether this was the id of a class that no pod has any more."""
        return class_id < self._next_class_id and class_id not in self.specs

    def live_ids(self) -> list[int]:
        """The ids of all templates that pods have."""
        return list(self._ids.values())

    def is_live(self, template_id: int) -> bool:
        """Whether pods have this template."""
        key = (int(self.class_id[template_id]), int(self.kind_id[template_id]))
        return self._ids.get(key) == template_id

    def hold(self, template_ids: NDArray[np.uint32]) -> None:
        """Count one more pod for each of these templates."""
        ids, counts = _counted(template_ids)
        self.users[ids] += counts

    def drop(self, template_ids: NDArray[np.uint32]) -> None:
        """Count one pod less for each of these templates; unused templates and classes are forgotten."""
        ids, counts = _counted(template_ids)
        self.users[ids] -= counts
        self.forget_unused(ids.tolist())

    def forget_unused(self, template_ids: list[int]) -> None:
        """Forget those of these templates that no pod has."""
        for template_id in template_ids:
            key = (int(self.class_id[template_id]), int(self.kind_id[template_id]))
            if self.users[template_id] == 0 and self._ids.get(key) == template_id:
                for forget in self.on_forgotten:
                    forget(template_id)
                del self._ids[key]
                self._free.append(template_id)
                self._drop_class(key[0])
                self._drop_kind(key[1])

    def _add(self, class_id: int, kind_id: int, priority: int) -> int:
        if self._free:
            template_id = self._free.pop()
        else:
            template_id = self._size
            self._size += 1
            self._reserve(self._size)
        self._ids[class_id, kind_id] = template_id
        self._class_users[class_id] += 1
        self._kind_users[kind_id] += 1
        self.class_id[template_id] = class_id
        self.kind_id[template_id] = kind_id
        self.priority[template_id] = priority
        self.users[template_id] = 0
        self.gated[template_id] = bool(self._kinds[kind_id].gates)
        self.watched[template_id] = self._kinds[kind_id].during_execution is not DuringExecution.IGNORE
        return template_id

    def _drop_class(self, class_id: int) -> None:
        self._class_users[class_id] -= 1
        if self._class_users[class_id] == 0:
            del self._class_users[class_id]
            del self._class_ids[self.specs.pop(class_id)]
            self._decoded.pop(class_id, None)
            self._forgotten_classes.append(class_id)

    def _add_kind(self, kind: TemplateKind) -> int:
        if self._free_kinds:
            kind_id = self._free_kinds.pop()
            self._kinds[kind_id] = kind
        else:
            kind_id = len(self._kinds)
            self._kinds.append(kind)
            self._kind_users.append(0)
        self._kind_ids[kind] = kind_id
        if kind.namespace not in self.namespaces:
            self.namespaces_version += 1
        self.namespaces[kind.namespace] = self.namespaces.get(kind.namespace, 0) + 1
        return kind_id

    def _drop_kind(self, kind_id: int) -> None:
        self._kind_users[kind_id] -= 1
        if self._kind_users[kind_id]:
            return
        kind = self._kinds[kind_id]
        del self._kind_ids[kind]
        self._free_kinds.append(kind_id)
        self.namespaces[kind.namespace] -= 1
        if not self.namespaces[kind.namespace]:
            del self.namespaces[kind.namespace]
            self.namespaces_version += 1


def _counted(ids: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The distinct ids and how often each occurs."""
    if len(ids) > _MANY_IDS:  # np.unique takes 20 times as long
        counts = np.bincount(ids)
        distinct = np.flatnonzero(counts).astype(np.uint32)
        return distinct, counts[distinct]
    return np.unique(ids, return_counts=True)
