"""Pod templates and equivalence classes, each held once however many pods have it.

The core never looks into a class: it is known by its bytes (PodSpec, serialised deterministically), and decoded by a
function passed in when a policy has to look at it. Class ids are never used twice, because workers remember them;
template ids are, because only rows refer to them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.podtable import GrowingColumns
from dispatcher.core.policy import ClassFacts, Facts, facts_of_spec
from hoss.model.during_execution import DuringExecution
from hoss.model.pod import PodSpec, PodTemplate, QosClass


class Kind(NamedTuple):
    """What a template is besides its class; few distinct ones exist. The namespace is the class's own, here to be at hand."""

    namespace: str
    scheduler_name: str
    priority_class_name: str
    qos_class: QosClass
    owner_kind: str
    grace_seconds: int = 0  # how long its pods may take to leave when they have to
    gates: tuple[str, ...] = ()  # scheduling gates, sorted; no part of the class, for they go while the class stays
    during_execution: DuringExecution = DuringExecution.IGNORE
    limits: tuple[tuple[str, int], ...] = ()  # see PodTemplate


class TemplateTable(GrowingColumns):
    """Templates as columns, by template id."""

    _columns = ("class_id", "kind_id", "priority", "lane", "tenant", "users", "gated", "watched")

    def __init__(
        self, decode: Callable[[bytes], PodSpec], read_facts: Callable[[bytes], ClassFacts] | None = None
    ) -> None:
        self._decode = decode
        self._read_facts = read_facts or (lambda spec: facts_of_spec(decode(spec)))
        self.class_id = np.zeros(0, np.uint32)
        self.kind_id = np.zeros(0, np.uint32)
        self.priority = np.zeros(0, np.int32)
        self.lane = np.zeros(0, np.uint32)  # the queue's lane that the policy in force gives it
        self.tenant = np.zeros(0, np.uint32)  # whose its pods are (dispatcher.core.tenants)
        self.users = np.zeros(0, np.int64)  # pods that have it
        self.gated = np.zeros(0, np.bool_)  # has scheduling gates
        self.watched = np.zeros(0, np.bool_)  # its pods' nodes are to match while they run
        self.specs: dict[int, bytes] = {}  # by class id
        self._decoded: dict[int, PodSpec] = {}  # of classes that were looked into
        self._class_ids: dict[bytes, int] = {}
        self._class_users: dict[int, int] = {}  # templates that have it
        self._next_class_id = 1
        self.namespaces: set[str] = set()  # of all templates there ever were
        self._kinds: list[Kind] = []
        self._kind_ids: dict[Kind, int] = {}
        self._ids: dict[tuple[int, int], int] = {}  # (class id, kind id) -> template id
        self._free: list[int] = []
        self._size = 0

    def intern(self, spec: bytes, kind: Kind, priority: int) -> tuple[int, bool]:
        """The template's id, and whether it is new: then its lane is still to be set."""
        class_id = self._class_ids.get(spec)
        kind_id = self._kind_ids.get(kind)
        if kind_id is None:
            kind_id = self._kind_ids[kind] = len(self._kinds)
            self._kinds.append(kind)
            self.namespaces.add(kind.namespace)
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
        """The template in full."""
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
        )

    def facts(self, template_id: int) -> Facts:
        """What policies match on, read without decoding all of the class."""
        kind = self._kinds[self.kind_id.item(template_id)]
        own = self._read_facts(self.specs[self.class_id.item(template_id)])
        return Facts(*own, kind.priority_class_name, kind.scheduler_name, kind.qos_class.value, kind.owner_kind)

    def spec(self, template_id: int) -> bytes:
        """The bytes of its class."""
        return self.specs[self.class_id.item(template_id)]

    def pod_spec(self, class_id: int) -> PodSpec:
        """A class, decoded once for as long as any pod has it."""
        found = self._decoded.get(class_id)
        if found is None:
            found = self._decoded[class_id] = self._decode(self.specs[class_id])
        return found

    def kind(self, template_id: int) -> Kind:
        """What it adds to its class."""
        return self._kinds[int(self.kind_id[template_id])]

    def differs(self, template_id: int, spec: bytes, kind: Kind) -> bool:
        """Whether a template is another one than this, but for its gates."""
        mine = self.kind(template_id)
        return self.spec(template_id) != spec or mine != kind._replace(gates=mine.gates)

    def places(self, template_ids: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """(3, n): the lane, priority and tenant that say where in the queue pods of each template stand."""
        columns = (self.lane, self.priority, self.tenant)
        return np.stack([column[template_ids].astype(np.int64) for column in columns])

    @property
    def kinds(self) -> list[Kind]:
        """Every kind that a template ever had."""
        return self._kinds

    @property
    def lowest_priority(self) -> int:
        """No pod has less; 0 where there are none."""
        used = self.priority[: self._size][self.users[: self._size] > 0]
        return int(used.min()) if len(used) else 0

    def live_ids(self) -> list[int]:
        """Every template in use."""
        return list(self._ids.values())

    def hold(self, template_ids: NDArray[np.uint32]) -> None:
        """Count one more pod for each of these templates."""
        np.add.at(self.users, template_ids, 1)

    def drop(self, template_ids: NDArray[np.uint32]) -> None:
        """Count one pod less for each; templates and classes without pods are forgotten."""
        np.subtract.at(self.users, template_ids, 1)
        self.forget_unused(np.unique(template_ids).tolist())

    def forget_unused(self, template_ids: list[int]) -> None:
        """Forget those of these templates that no pod has."""
        for template_id in template_ids:
            key = (int(self.class_id[template_id]), int(self.kind_id[template_id]))
            if self.users[template_id] == 0 and self._ids.get(key) == template_id:
                del self._ids[key]
                self._free.append(template_id)
                self._drop_class(key[0])

    def _add(self, class_id: int, kind_id: int, priority: int) -> int:
        if self._free:
            template_id = self._free.pop()
        else:
            template_id = self._size
            self._size += 1
            self._reserve(self._size)
        self._ids[class_id, kind_id] = template_id
        self._class_users[class_id] += 1
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
