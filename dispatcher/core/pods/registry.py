"""The pod registry: every pod that the dispatcher is responsible for, with its set, template, reason, gang,
faults and history.

A submission is first *accepted* (rows and names are taken, its pods are ABSENT). Once the journal has it, it
is *admitted*; otherwise it is *abandoned* without a trace. When pods are deleted and nothing refers to them,
they are *forgotten*: rows, names and templates are free for others. A submission without pods is forgotten as
well."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.pods.faults import MAX_FAULTS, Faults
from dispatcher.core.pods.gangs import Gangs
from dispatcher.core.pods.history import PodHistory
from dispatcher.core.pods.sets import (
    Directory,
    NewPods,
    NewTemplate,
    Order,
    PodSet,
    Submission,
    request_key,
    uid_prefix,
)
from dispatcher.core.pods.table import Phase, PodTable, Reasons, Rows, count_by_phase, grouped
from dispatcher.core.pods.templates import TemplateTable
from dispatcher.core.policy.rules import ClassFacts
from hoss.model.pod import DuringExecution, PodSpec
from hoss.model.slices import Steps, finished
from hoss.wire.columns import NONE_U32, Uids, numbered_uids

# Estimates of what a template and a row cost, and how many rows are entered in one step.
_TEMPLATE_MICROS = 20.0
_ROW_MICROS = 0.2
_NAMED_ROW_MICROS = 3.0
_SLICE_ROWS = 50_000
_SLICE_NAMES = 3_000

# A set of which some pods live is looked through when so many more of its pods are deleted, and at least an
# eighth of them: that costs some nanoseconds for each pod that it ever had. Fewer rows than that in a row
# stay with it, or the free ranges would soon be too small and too many. So a pod that lives holds so many
# rows at most.
LEAST_FREED_ROWS = 16
_LOOKED_THROUGH_PART = 8
_MOST_RANGES = 1000  # freed in one step
LOOKED_AT_ONCE = 1 << 19  # rows of a set: some ten milliseconds
_NAMES_AT_ONCE = 2000  # the same of a set whose pods have names of their own

# How long `forget_deleted` goes on, and what it takes, by estimate.
_FORGET_MICROS = 10_000.0
_FORGET_SET_MICROS, _FORGET_ROW_MICROS, _FORGET_NAME_MICROS = 5.0, 0.02, 5.0


class PodRegistry:
    """The pod table and all that gives its columns meaning. `route` is called with the id of every new
    template."""

    def __init__(
        self,
        decode: Callable[[bytes], PodSpec],
        route: Callable[[int], None],
        read_facts: Callable[[bytes], ClassFacts] | None = None,
        max_faults: int = MAX_FAULTS,
    ) -> None:
        self.pods = PodTable()
        self.faults = Faults(self.pods, max_faults)
        self.attempts_changed: list[Rows] = []  # pods with a changed attempt count, for the journal
        self.directory = Directory(self.pods)
        self._to_forget: dict[int, PodSet] = {}  # sets with deleted pods, by index
        self._round: list[PodSet] = []  # of these, those that `forget_deleted` goes on with
        self.templates = TemplateTable(decode, read_facts)
        self.reasons = Reasons()
        self.history = PodHistory(self.pods, self.reasons)
        self.has_node_rules = False  # any pod ever accepted requires its node to match during execution
        self.gangs = Gangs(self.pods, self.gated)
        self.record_bytes = 0  # of all submissions not forgotten
        self.tenant_bytes: Counter[str] = Counter()  # of these, what clients limited to a tenant sent
        self._route = route

    def accept(self, order: Order, now_ms: int) -> Submission:
        """Take rows and names for an order. Raises AlreadyExists, without any change, if a name or UID is
        taken."""
        return finished(self.accepting(order, now_ms))

    def accepting(self, order: Order, now_ms: int) -> Steps[Submission]:
        """`accept` in slices. No other order may be accepted before it is done. What it has taken so far is
        ABSENT, and nobody's."""
        yield from self.directory.checking_free(order)
        key = request_key(order.request_id)
        submission = Submission(
            order.request_id,
            key,
            now_ms,
            record_bytes=order.record_bytes,
            submitted_by=order.submitted_by,
            first_transition=self.history.recorded,
        )
        template_ids = yield from self._intern(order)
        yield from self.pods.growing(self.pods.size + order.pod_count)
        for number, job in enumerate(order.jobs):
            pod_set = self._new_set(submission, number, job.replicas)
            kind = order.templates[job.template].kind
            pod_set.namespace, pod_set.name, pod_set.kind = kind.namespace, job.name, kind.owner_kind
            yield from self._add(pod_set, template_ids[job.template], None)
        if order.pods is not None:
            yield from self._accept_list(submission, order, order.pods, template_ids)
        self._add_gangs(submission, order)
        self.templates.drop(template_ids)  # held since they were interned; an order may carry unused ones
        self.directory.submissions[submission.key] = submission
        self._count_bytes(submission, submission.record_bytes)
        return submission

    def admit(self, submission: Submission, now_ms: int, most: int | None = None) -> list[Rows]:
        """The submission is durable: its pods are QUEUED from now on, or the next `most` of them. Returns
        their rows by set, without those that are something else already."""
        submission.durable = True
        admitted = []
        left = sum(pod_set.count for pod_set in submission.sets) if most is None else most
        for pod_set in submission.sets:
            if not left:
                break
            first = pod_set.admitted
            pod_set.admitted = min(pod_set.count, first + left)
            rows = self._held(pod_set, first, pod_set.admitted)
            # Recovery may have found some bound or deleted.
            rows = rows[self.pods.phase[rows] == Phase.ABSENT]
            if len(rows):
                self.pods.move(rows, Phase.QUEUED, now_ms)
                admitted.append(rows)
            left -= pod_set.admitted - first
        return admitted

    def abandon(self, submission: Submission) -> None:
        """Undo `accept` of a submission that is not durable."""
        for pod_set in submission.sets:
            if pod_set.held:
                self._free(pod_set, _ranges(self.rows_of(pod_set)))
        self._forget(submission)

    @property
    def any_to_forget(self) -> bool:
        return bool(self._to_forget)

    def forget_deleted(self) -> list[Submission]:
        """Free rows and names of deleted pods that hold no reservation and are in no batch and no queue, as
        many as take some milliseconds; the next call goes on. Returns the submissions that are forgotten with
        the last of their pods."""
        if not self._round:
            self._round = list(reversed(self._to_forget.values()))
        forgotten = []
        micros = 0.0
        while self._round and micros < _FORGET_MICROS:
            pod_set = self._round.pop()
            if pod_set.index not in self._to_forget:
                continue
            micros += _FORGET_SET_MICROS
            least = max(LEAST_FREED_ROWS, pod_set.held // _LOOKED_THROUGH_PART) if pod_set.live else 0
            if not pod_set.submission.durable or (pod_set.to_forget < least and not pod_set.looked_at):
                continue
            micros += self._forget_deleted_of(pod_set)
            if pod_set.looked_at:
                self._round.append(pod_set)
            if not pod_set.held and not any(s.held for s in pod_set.submission.sets):
                self._forget(pod_set.submission)
                forgotten.append(pod_set.submission)
        return forgotten

    @property
    def forgetting(self) -> bool:
        """Whether `forget_deleted` has not gone through all sets yet."""
        return bool(self._round)

    def _forget_deleted_of(self, pod_set: PodSet) -> float:
        """Look through the next rows of a set. `to_forget` is counted anew from the first ones on. Returns
        the time that it took, in microseconds by estimate."""
        at_once = LOOKED_AT_ONCE if pod_set.names is None else _NAMES_AT_ONCE
        first, stop = pod_set.looked_at, min(pod_set.count, pod_set.looked_at + at_once)
        if not first:
            pod_set.to_forget = 0
        pods, rows = self.pods, self._held(pod_set, first, stop)
        deleted = pods.phase[rows] == Phase.DELETED
        unused = deleted & (pods.node[rows] == NONE_U32) & (pods.batch[rows] == 0) & ~pods.in_queue[rows]
        used = int(np.count_nonzero(deleted) - np.count_nonzero(unused))
        ranges = _ranges(rows[unused])
        if pod_set.live or used:
            ranges = [(start, length) for start, length in ranges if length >= LEAST_FREED_ROWS]
        left = sum(length for _, length in ranges[_MOST_RANGES:])
        if ranges:
            self._free(pod_set, ranges[:_MOST_RANGES])
        pod_set.to_forget += used + left
        pod_set.looked_at = 0 if stop == pod_set.count else stop
        if not pod_set.held or not (pod_set.to_forget or pod_set.looked_at):
            del self._to_forget[pod_set.index]
        per_row = _FORGET_ROW_MICROS if pod_set.names is None else _FORGET_NAME_MICROS
        return (stop - first) * per_row

    def _free(self, pod_set: PodSet, ranges: list[tuple[int, int]]) -> None:
        """Free these rows of a set, (first, count), and with the last ones the set."""
        rows = np.concatenate([np.arange(first, first + count, dtype=np.uint32) for first, count in ranges])
        templates = self.pods.template[rows]
        self.gangs.forget(rows)
        self.directory.remove_listed(pod_set, rows, self._namespaces(pod_set, templates))
        self.templates.drop(templates)
        for first, count in ranges:
            self.pods.free(first, count)
        pod_set.held -= len(rows)
        if not pod_set.held:
            self.directory.remove(pod_set)
            pod_set.names = None if pod_set.names is None else ()
            pod_set.ungated, pod_set.refused = {}, None
        elif pod_set.names is not None:
            kept = pod_set.names
            names = dict(kept) if isinstance(kept, Mapping) else dict(enumerate(kept))
            for row in rows.tolist():
                del names[row - pod_set.first]
            pod_set.names = names

    def _forget(self, submission: Submission) -> None:
        del self.directory.submissions[submission.key]
        self._count_bytes(submission, -submission.record_bytes)

    def _count_bytes(self, submission: Submission, change: int) -> None:
        self.record_bytes += change
        if tenant := submission.tenant:
            self.tenant_bytes[tenant] += change
            if not self.tenant_bytes[tenant]:
                del self.tenant_bytes[tenant]

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {
            "pod_rows": self.pods.in_use,
            "free_row_ranges": self.pods.free_ranges,
            "faults": len(self.faults),
            "gangs": len(self.gangs),
            "reasons": len(self.reasons.texts),
            "history_entries": len(self.history),
            **self.directory.table_sizes(),
            **self.templates.table_sizes(),
        }

    def move(self, rows: Rows, phase: Phase, now_ms: int, event: str = "") -> None:
        """Put pods into a phase, and record it in the history. `event` is the cause, where the phase is not
        explanation enough. Node, worker and reason of the pods must be in the table already."""
        self.pods.move(rows, phase, now_ms)
        self.history.record(rows, phase, now_ms, event)

    def mark_deleted(self, rows: Rows, now_ms: int) -> None:
        """Pods become DELETED."""
        self.move(rows, Phase.DELETED, now_ms)
        indexes, counts = np.unique(self.pods.pod_set[rows], return_counts=True)
        for index, count in zip(indexes.tolist(), counts.tolist(), strict=True):
            pod_set = self._to_forget[index] = self.directory.sets[index]
            pod_set.live -= count
            pod_set.to_forget += count
            pod_set.submission.live -= count

    def attempts(self, pod_set: PodSet) -> NDArray[np.uint16]:
        """How often each of a set's pods was tried, by ordinal: (count,), 0 for forgotten ones."""
        mine = self.pods.pod_set[pod_set.range] == pod_set.index
        return np.where(mine, self.pods.attempts[pod_set.range], np.uint16(0))

    def release_names(self, rows: Rows) -> None:
        """Free the names of these deleted pods of lists, before they are forgotten."""
        for row in rows.tolist():
            self.directory.release_name(row, (self.namespace_of(row), self.set_of(row).pod_name(row)))

    def let_others_have(self, pod_set: PodSet, rows: Rows) -> None:
        """Let others have the names and UIDs of these deleted pods of a set, before they are forgotten."""
        if pod_set.names is not None:
            self.release_names(rows)
        elif not pod_set.live:
            self.directory.release_job(pod_set)
        if pod_set.given_uids:
            self.directory.release_given_uids(rows)

    def find_deleted(self, submission: Submission) -> None:
        """Find deleted pods by their given UIDs again, where `let_others_have` gave them to nobody."""
        for pod_set in submission.sets:
            if pod_set.given_uids:
                rows = self.rows_of(pod_set)
                self.directory.find_by_uid(rows[self.pods.phase[rows] == Phase.DELETED])

    def rows_of(self, pod_set: PodSet) -> Rows:
        """The rows of a set, ascending, without those of its deleted pods that are forgotten."""
        return self._held(pod_set, 0, pod_set.count)

    def _held(self, pod_set: PodSet, first: int, stop: int) -> Rows:
        """`rows_of`, for these ordinals."""
        if pod_set.held == pod_set.count:
            return np.arange(pod_set.first + first, pod_set.first + stop, dtype=np.uint32)
        return self.pods.held(pod_set.first + first, stop - first, pod_set.index)

    def first_row(self, pod_set: PodSet) -> int:
        """The first of `rows_of`."""
        if pod_set.held == pod_set.count:
            return pod_set.first
        return pod_set.first + int((self.pods.pod_set[pod_set.range] == pod_set.index).argmax())

    def count_by_phase(self, pod_set: PodSet) -> NDArray[np.int64]:
        """By number of the phase, how many pods of a set are in it; none that is forgotten."""
        phase = self.pods.phase[pod_set.range]
        if pod_set.held < pod_set.count:
            phase = phase[self.pods.pod_set[pod_set.range] == pod_set.index]
        return count_by_phase(phase)

    def deleted(self, pod_set: PodSet) -> NDArray[np.bool_]:
        """Which of a set's pods are deleted, by ordinal: (count,)."""
        mine = self.pods.pod_set[pod_set.range] == pod_set.index
        mask: NDArray[np.bool_] = ~mine | (self.pods.phase[pod_set.range] == Phase.DELETED)
        return mask

    def gated(self, rows: Rows) -> NDArray[np.bool_]:
        """(n,): which of these pods have scheduling gates."""
        mask: NDArray[np.bool_] = self.templates.gated[self.pods.template[rows]]
        return mask

    def gates_of(self, rows: Rows) -> dict[tuple[str, ...], Rows]:
        """Gated pods by their gates."""
        rows = rows[self.gated(rows)]
        found: dict[tuple[str, ...], list[Rows]] = {}
        for template_id, part in grouped(rows, self.pods.template[rows]):
            found.setdefault(self.templates.kind(template_id).gates, []).append(part)
        return {gates: np.concatenate(parts) for gates, parts in found.items()}

    def remove_gates(self, rows: Rows, gates: frozenset[str]) -> None:
        """Remove gates from pods: each moves to a template of the same class with the other gates."""
        rows = rows[self.gated(rows)]
        for template_id, mine in grouped(rows, self.pods.template[rows]):
            kind = self.templates.kind(template_id)
            left = kind._replace(gates=tuple(gate for gate in kind.gates if gate not in gates))
            priority = int(self.templates.priority[template_id])
            other, new = self.templates.intern(self.templates.spec(template_id), left, priority)
            if new:
                self._route(other)
            self.pods.template[mine] = other
            self.templates.hold(self.pods.template[mine])
            self.templates.drop(np.full(len(mine), template_id, np.uint32))
        for index, mine in grouped(rows, self.pods.pod_set[rows]):
            pod_set = self.directory.sets[index]
            ordinals = mine - pod_set.first
            for gate in sorted(gates):
                pod_set.ungated.setdefault(gate, np.zeros(pod_set.count, np.bool_))[ordinals] = True

    def replace_template(self, row: int, template: NewTemplate) -> None:
        """Give the pod in this row another template, but keep its gates (see `remove_gates`)."""
        rows = np.array([row], np.uint32)
        before = self.pods.template[rows]
        kind = template.kind._replace(gates=self.templates.kind(int(before[0])).gates)
        self.pods.template[rows] = self._intern_one(replace(template, kind=kind))
        self.templates.hold(self.pods.template[rows])
        self.templates.drop(before)

    def set_of(self, row: int) -> PodSet:
        """The pod set of the pod in a row."""
        return self.directory.sets[int(self.pods.pod_set[row])]

    def namespace_of(self, row: int) -> str:
        """The namespace of the pod in a row."""
        return self.templates.kind(int(self.pods.template[row])).namespace

    def _accept_list(
        self, submission: Submission, order: Order, pods: NewPods, template_ids: NDArray[np.uint32]
    ) -> Steps[None]:
        pod_set = self._new_set(submission, len(order.jobs), len(pods.names))
        pod_set.names, pod_set.given_uids = pods.names, pods.uids is not None
        used = {order.templates[i].kind.namespace for i in np.unique(pods.templates).tolist()}
        pod_set.namespace = used.pop() if len(used) == 1 else ""
        yield from self._add(pod_set, template_ids[pods.templates], pods.uids)

    def _add_gangs(self, submission: Submission, order: Order) -> None:
        """Create the gangs of the new sets: of the order's jobs, then of its list."""
        members: list[list[Rows]] = [[] for _ in order.gangs]
        for job, pod_set in zip(order.jobs, submission.sets, strict=False):
            if job.gang is not None:
                members[job.gang].append(self.rows_of(pod_set))
        if order.pods is not None and order.pods.gangs is not None:
            first = submission.sets[-1].first
            for number in np.unique(order.pods.gangs[order.pods.gangs > 0]).tolist():
                ordinals = np.flatnonzero(order.pods.gangs == number)
                members[number - 1].append((ordinals + first).astype(np.uint32))
        for gang, rows in zip(order.gangs, members, strict=True):
            self.gangs.add(gang, np.concatenate(rows))

    def _intern(self, order: Order) -> Steps[NDArray[np.uint32]]:
        """The ids of the order's templates. Each is held, so that nobody else's end makes it unused."""
        ids = np.zeros(len(order.templates), np.uint32)
        for number, template in enumerate(order.templates):
            ids[number] = self._intern_one(template)
            self.templates.users[ids[number]] += 1
            yield _TEMPLATE_MICROS
        return ids

    def _intern_one(self, template: NewTemplate) -> int:
        template_id, new = self.templates.intern(template.spec, template.kind, template.priority)
        self.has_node_rules |= template.kind.during_execution is not DuringExecution.IGNORE
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
            first=self.pods.take(count),
            count=count,
        )

    def _add(
        self, pod_set: PodSet, templates: np.uint32 | NDArray[np.uint32], given: Uids | None
    ) -> Steps[None]:
        """Enter a set. `templates`: the template of all its pods, or of each."""
        self.directory.add(pod_set.submission, pod_set)
        of_each = np.broadcast_to(templates, pod_set.count)
        slice_pods = _SLICE_ROWS if pod_set.names is None else _SLICE_NAMES
        for start in range(0, pod_set.count, slice_pods):
            stop = min(start + slice_pods, pod_set.count)
            rows = slice(pod_set.first + start, pod_set.first + stop)
            uids = (
                numbered_uids(pod_set.uid_prefix, start, stop - start) if given is None else given[start:stop]
            )
            part = of_each[start:stop]
            self.pods.blank(rows)
            self.directory.add_listed(pod_set, start, self._namespaces(pod_set, part), uids)
            self.pods.uid[rows] = uids
            self.pods.pod_set[rows] = pod_set.index
            self.pods.template[rows] = part
            self.pods.since_ms[rows] = pod_set.submission.submitted_ms
            self.templates.hold(part)
            yield (stop - start) * (_ROW_MICROS if pod_set.names is None else _NAMED_ROW_MICROS)

    def _namespaces(self, pod_set: PodSet, templates: NDArray[np.uint32]) -> list[str]:
        if pod_set.names is None:
            return [pod_set.namespace]
        return [self.templates.kind(i).namespace for i in templates.tolist()]


def _ranges(rows: Rows) -> list[tuple[int, int]]:
    """Ascending rows as ranges: (first, count)."""
    if not len(rows):
        return []
    begins = np.concatenate(([0], np.flatnonzero(np.diff(rows) != 1) + 1))
    counts = np.diff(begins, append=len(rows))
    return list(zip(rows[begins].tolist(), counts.tolist(), strict=True))
