"""Every pod the dispatcher answers for: the table, its sets, their templates, and reasons.

A submission is *accepted* first (rows and names taken, pods still ABSENT), then, once the journal has it, *admitted*; or
*abandoned* without a trace. When all its pods are deleted and nothing refers to them any more, it is *forgotten*.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.faults import MAX_FAULTS, Faults
from dispatcher.core.gangs import Gangs
from dispatcher.core.journeys import Journeys
from dispatcher.core.podsets import (
    Directory,
    NewPods,
    NewTemplate,
    Order,
    PodSet,
    Submission,
    request_key,
    uid_prefix,
)
from dispatcher.core.podtable import Phase, PodTable, Reasons, Rows
from dispatcher.core.policy import ClassFacts
from dispatcher.core.templates import TemplateTable
from hoss.model.during_execution import DuringExecution
from hoss.model.pod import PodSpec
from hoss.wire.columns import NONE_U32, Uids, numbered_uids


class PodRegistry:
    """The columns and everything that gives them meaning. `route` is called with every new template's id."""

    def __init__(
        self,
        decode: Callable[[bytes], PodSpec],
        route: Callable[[int], None],
        read_facts: Callable[[bytes], ClassFacts] | None = None,
        max_faults: int = MAX_FAULTS,
    ) -> None:
        self.pods = PodTable()
        self.faults = Faults(self.pods, max_faults)
        self.tried: list[Rows] = []  # pods whose count of attempts has changed, for the journal
        self.directory = Directory()
        self.templates = TemplateTable(decode, read_facts)
        self.reasons = Reasons()
        self.journeys = Journeys(self.pods, self.reasons)
        self.minds_pods = False  # whether any pod ever accepted has rules about other pods, or ports
        self.minds_nodes = False  # whether any pod ever accepted asks for its node to match while it runs
        self.gangs = Gangs(self.pods, self.gated)
        self.record_bytes = 0  # of all submissions that are not forgotten
        self._route = route

    def accept(self, order: Order, now_ms: int) -> Submission:
        """Take rows and names for an order. Raises AlreadyExists, with nothing changed, if a name or UID is taken."""
        self.directory.check_free(order)
        key = request_key(order.request_id)
        submission = Submission(
            order.request_id, key, now_ms, record_bytes=order.record_bytes, first_step=self.journeys.noted
        )
        template_ids = self._intern(order)
        for number, job in enumerate(order.jobs):
            pod_set = self._new_set(submission, number, job.replicas)
            kind = order.templates[job.template].kind
            pod_set.namespace, pod_set.name, pod_set.kind = kind.namespace, job.name, kind.owner_kind
            self._add(pod_set, np.full(job.replicas, template_ids[job.template], np.uint32), None)
        if order.pods is not None:
            self._accept_list(submission, order, order.pods, template_ids)
        self._add_gangs(submission, order)
        self.templates.forget_unused(template_ids.tolist())  # an order may carry templates that no pod has
        self.directory.submissions[submission.key] = submission
        self.record_bytes += submission.record_bytes
        return submission

    def admit(self, submission: Submission, now_ms: int) -> list[Rows]:
        """The submission is durable: its pods are QUEUED from now on. Returns their rows, set by set."""
        submission.durable = True
        admitted = []
        for pod_set in submission.sets:
            rows = np.arange(pod_set.first, pod_set.first + pod_set.count, dtype=np.uint32)
            rows = rows[self.pods.phase[pod_set.rows] == Phase.ABSENT]  # recovery may have found some bound or deleted
            self.pods.move(rows, Phase.QUEUED, now_ms)
            admitted.append(rows)
        return admitted

    def forget(self, submission: Submission) -> None:
        """Free rows and names. No queue, work batch or reservation may refer to its pods."""
        for pod_set in submission.sets:
            templates = self.pods.template[pod_set.rows]
            self.gangs.forget(np.arange(pod_set.first, pod_set.first + pod_set.count, dtype=np.uint32))
            self.directory.remove(pod_set, self._namespaces(pod_set, templates), self.pods.uid[pod_set.rows])
            self.templates.drop(templates)
            self.pods.free(pod_set.first, pod_set.count)
        del self.directory.submissions[submission.key]
        self.record_bytes -= submission.record_bytes

    abandon = forget  # before it was durable nothing can refer to its pods

    def forgettable(self, submission: Submission) -> bool:
        """Whether all its pods are deleted, hold nothing in the ledger, are with no worker and in no queue."""
        pods = self.pods
        return submission.live == 0 and not any(
            (pods.node[s.rows] != NONE_U32).any() or pods.batch[s.rows].any() or pods.in_queue[s.rows].any()
            for s in submission.sets
        )

    def move(self, rows: Rows, phase: Phase, now_ms: int, event: str = "") -> None:
        """Put pods into a phase, and note it. `event`: why, where the phase does not say it. Whatever the step tells of the pods (node, worker,
        reason) is to be in the table already."""
        self.pods.move(rows, phase, now_ms)
        self.journeys.note(rows, phase, now_ms, event)

    def mark_deleted(self, rows: Rows, now_ms: int) -> list[Submission]:
        """Pods become DELETED; returns the submissions that have no other pods left."""
        self.move(rows, Phase.DELETED, now_ms)
        emptied = []
        indexes, counts = np.unique(self.pods.pod_set[rows], return_counts=True)
        for index, count in zip(indexes.tolist(), counts.tolist(), strict=True):
            submission = self.directory.sets[index].submission
            submission.live -= count
            if submission.live == 0:
                emptied.append(submission)
        return emptied

    def vacate(self, rows: Rows) -> None:
        """The names of these deleted pods, which are of lists, are free: others may have them before the whole list is gone."""
        for row in rows.tolist():
            self.directory.vacate(row, (self.namespace_of(row), self.set_of(row).pod_name(row)))

    def gated(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of these pods have scheduling gates."""
        mask: NDArray[np.bool_] = self.templates.gated[self.pods.template[rows]]
        return mask

    def gates_of(self, rows: Rows) -> dict[tuple[str, ...], Rows]:
        """Pods by the gates they have; those without are left out."""
        rows = rows[self.gated(rows)]
        ids = self.pods.template[rows]
        found: dict[tuple[str, ...], Rows] = {}
        for template_id in np.unique(ids).tolist():
            gates, part = self.templates.kind(template_id).gates, rows[ids == template_id]
            found[gates] = np.concatenate([found[gates], part]) if gates in found else part
        return found

    def remove_gates(self, rows: Rows, gates: frozenset[str]) -> None:
        """Pods lose gates: each moves to a template of the same class that has only the others."""
        rows = rows[self.gated(rows)]
        ids = self.pods.template[rows]
        for template_id in np.unique(ids).tolist():
            kind, mine = self.templates.kind(template_id), rows[ids == template_id]
            left = kind._replace(gates=tuple(gate for gate in kind.gates if gate not in gates))
            priority = int(self.templates.priority[template_id])
            other, new = self.templates.intern(self.templates.spec(template_id), left, priority)
            if new:
                self._route(other)
            self.pods.template[mine] = other
            self.templates.hold(self.pods.template[mine])
            self.templates.drop(np.full(len(mine), template_id, np.uint32))
        for index in np.unique(self.pods.pod_set[rows]).tolist():
            pod_set = self.directory.sets[index]
            ordinals = rows[self.pods.pod_set[rows] == index] - pod_set.first
            for gate in gates:
                pod_set.ungated.setdefault(gate, np.zeros(pod_set.count, np.bool_))[ordinals] = True

    def respecify(self, row: int, template: NewTemplate) -> None:
        """The pod in this row has another template from now on, but for its gates (see `remove_gates`)."""
        rows = np.array([row], np.uint32)
        before = self.pods.template[rows]
        kind = template.kind._replace(gates=self.templates.kind(int(before[0])).gates)
        self.pods.template[rows] = self._intern_one(replace(template, kind=kind))
        self.templates.hold(self.pods.template[rows])
        self.templates.drop(before)

    def set_of(self, row: int) -> PodSet:
        """The set a row belongs to."""
        return self.directory.sets[int(self.pods.pod_set[row])]

    def namespace_of(self, row: int) -> str:
        """The namespace of the pod in a row."""
        return self.templates.kind(int(self.pods.template[row])).namespace

    def pod_specs(self, rows: Rows) -> frozenset[PodSpec]:
        """What these pods are, each kind once. While no pod minds others they are not looked into and look all alike."""
        if not self.minds_pods:
            return frozenset((PodSpec(),)) if len(rows) else frozenset()
        class_ids = self.templates.class_id[np.unique(self.pods.template[rows])]
        return frozenset(map(self.templates.pod_spec, class_ids.tolist()))

    def _accept_list(
        self, submission: Submission, order: Order, pods: NewPods, template_ids: NDArray[np.uint32]
    ) -> None:
        pod_set = self._new_set(submission, len(order.jobs), len(pods.names))
        pod_set.names, pod_set.given_uids = pods.names, pods.uids is not None
        used = {order.templates[i].kind.namespace for i in np.unique(pods.templates).tolist()}
        pod_set.namespace = used.pop() if len(used) == 1 else ""
        self._add(pod_set, template_ids[pods.templates], pods.uids)

    def _add_gangs(self, submission: Submission, order: Order) -> None:
        """Gangs of the sets just made: the order's jobs, then its list."""
        members: list[list[Rows]] = [[] for _ in order.gangs]
        for job, pod_set in zip(order.jobs, submission.sets, strict=False):
            if job.gang is not None:
                members[job.gang].append(np.arange(pod_set.first, pod_set.first + pod_set.count, dtype=np.uint32))
        if order.pods is not None and order.pods.gangs is not None:
            first = submission.sets[-1].first
            for number in np.unique(order.pods.gangs[order.pods.gangs > 0]).tolist():
                members[number - 1].append((np.flatnonzero(order.pods.gangs == number) + first).astype(np.uint32))
        for gang, rows in zip(order.gangs, members, strict=True):
            self.gangs.add(gang.namespace, gang.name, gang.minimum, np.concatenate(rows), gang.key)

    def _intern(self, order: Order) -> NDArray[np.uint32]:
        ids = np.empty(len(order.templates), np.uint32)
        for i, template in enumerate(order.templates):
            ids[i] = self._intern_one(template)
        return ids

    def _intern_one(self, template: NewTemplate) -> int:
        template_id, new = self.templates.intern(template.spec, template.kind, template.priority)
        self.minds_pods |= template.minds_pods
        self.minds_nodes |= template.kind.during_execution is not DuringExecution.IGNORE
        if new:
            self._route(template_id)
        return template_id

    def _new_set(self, submission: Submission, number: int, count: int) -> PodSet:
        return PodSet(
            index=-1,  # the directory numbers it
            submission=submission,
            namespace="",
            name="",
            kind="",
            uid_prefix=uid_prefix(submission.request_id, number),
            first=self.pods.allocate(count),
            count=count,
        )

    def _add(self, pod_set: PodSet, templates: NDArray[np.uint32], given: Uids | None) -> None:
        uids = given if given is not None else numbered_uids(pod_set.uid_prefix, 0, pod_set.count)
        self.directory.add(pod_set.submission, pod_set, self._namespaces(pod_set, templates), uids)
        self.pods.uid[pod_set.rows] = uids
        self.pods.pod_set[pod_set.rows] = pod_set.index
        self.pods.template[pod_set.rows] = templates
        self.pods.since_ms[pod_set.rows] = pod_set.submission.submitted_ms
        self.templates.hold(templates)

    def _namespaces(self, pod_set: PodSet, templates: NDArray[np.uint32]) -> list[str]:
        if pod_set.names is None:
            return [pod_set.namespace]
        return [self.templates.kind(i).namespace for i in templates.tolist()]
