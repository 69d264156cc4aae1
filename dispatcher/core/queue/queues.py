"""All pods that are neither with a worker nor settled: in the active queue, in backoff, or unschedulable.
Moves between the three keep the pod table's phase in step. A pod that is refused again and again is never
retried in a loop: each refusal lengthens its backoff."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.changes import ChangeHistory, Changes, ViewPosition, merge
from dispatcher.core.pods.gangs import MAX_GANG_PODS, Gang
from dispatcher.core.pods.history import ATTEMPT_FAILURE, WAITING_FOR_GANG
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.sets import GangRule
from dispatcher.core.pods.table import NO_REASON, Phase, Rows
from dispatcher.core.queue.active import ActiveQueue, Aging, Place
from dispatcher.core.queue.hints import worth_another_attempt
from dispatcher.core.queue.tenants import Tenants
from dispatcher.core.queue.waiting import (
    BackoffQueue,
    UnschedulablePods,
    WaitingGroup,
    Waking,
    Woken,
    by_backoff,
)

# Events that bring pods to a queue, named as in kube-scheduler where possible
# (scheduler_queue_incoming_pods_total).
POD_ADD = "PodAdd"
CLUSTER_CHANGE = "ClusterChange"
POD_UPDATE = "PodUpdate"
PREEMPTION_ALLOWED = "PreemptionAllowed"
GANG_UPDATE = "GangUpdate"

# kube-scheduler's plugin that makes the pods of a gang wait for each other
GANG_SCHEDULING = "GangScheduling"

# Cluster changes come in bursts; one pass over the waiting pods serves all changes of this time. A pass costs
# 2 to 20 microseconds per group, so passes are rarer when there are more groups.
WAKE_INTERVAL_SECONDS = 0.1
WAKE_INTERVAL_SECONDS_PER_GROUP = 1e-4
_WOKEN_AT_ONCE = 50_000  # pods: some 10 ms
_OVERDUE_AT_ONCE = 2000  # entries
_LOOKED_AT_AT_ONCE = 400  # groups, that is classes: some 90 us each where 5,000 nodes have room
MAX_WAKE_INTERVAL_SECONDS = 5.0

# After this many refusals by the resolver a pod no longer goes straight back to the front.
PATIENT_ATTEMPTS = 3


class Queues:
    """Where pods wait. A row is in at most one of the three."""

    def __init__(self, registry: PodRegistry, tenants: Tenants, aging: Aging) -> None:
        self._registry = registry
        self.active = ActiveQueue(tenants, aging)
        self._backoff = BackoffQueue()
        self._unschedulable = UnschedulablePods()
        self._history = ChangeHistory()
        self._woke_at = float("-inf")
        self._waking: tuple[Changes, Waking] | None = None  # changes for which pods are still to be woken
        # Classes of which pods are still to be queued, by event: they are routed differently, or may preempt.
        self._waking_classes: dict[str, tuple[frozenset[int], Waking]] = {}
        self._gangs_to_check: dict[int, Gang] = {}  # by number: changed since the last tick
        self.incoming: Counter[tuple[str, str]] = Counter()  # pods by queue and event, for metrics

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {
            "active_segments": self.active.segments,
            "backoff_entries": len(self._backoff),
            "unschedulable_groups": len(self._unschedulable),
            "change_windows": len(self._history),
        }

    def admit(self, rows: Rows, now: float) -> None:
        self.incoming["active", POD_ADD] += len(rows)
        self.enqueue(rows, now)

    def enqueue(self, rows: Rows, now: float, *, front: bool = False) -> None:
        """Queue QUEUED pods, each in its template's sub-queue, at its priority and for its tenant. Gangs are
        queued as in `enqueue_ready_gangs`."""
        gangs = self._registry.gangs.incomplete(rows)
        if gangs:
            rows = rows[~np.isin(self._registry.pods.gang[rows], [gang.number for gang in gangs])]
            for gang in gangs:
                self._enqueue_gang(gang, now, front=front)
        if self._registry.faults:
            suspects = self._registry.faults.suspect(rows)
            groups = list(self._registry.faults.isolation_groups(rows[suspects]))
            for group in reversed(groups) if front else groups:
                self._push(group, now, front=front, suspects=True)
            rows = rows[~suspects]
        if len(rows):
            self._push(rows, now, front=front)

    def _push(self, rows: Rows, now: float, *, front: bool, suspects: bool = False) -> None:
        templates = self._registry.templates
        template_ids = self._registry.pods.template[rows]
        if (template_ids == template_ids[0]).all():
            ((sub_queue, *place),) = templates.places(template_ids[:1]).T.tolist()
            self.active.push(sub_queue, Place(*place), rows, now, suspects=suspects, front=front)
            return
        places = templates.places(template_ids)
        order = np.lexsort(places)  # stable: the arrival order is kept within each place
        places = places[:, order]
        ends = np.flatnonzero((places[:, 1:] != places[:, :-1]).any(axis=0)) + 1
        starts = np.concatenate(([0], ends))
        parts = np.split(rows[order], ends)
        for (sub_queue, *place), part in zip(places[:, starts].T.tolist(), parts, strict=True):
            self.active.push(sub_queue, Place(*place), part, now, suspects=suspects, front=front)

    def enqueue_ready_gangs(self, rows: Rows, now: float) -> None:
        """Queue the gangs of these pods that are ready: no pod of theirs is with a worker or waits for
        anything. The caller calls this when pods left a gang, or when its batch was answered; `enqueue` does
        it for returned pods."""
        for gang in self._registry.gangs.incomplete(rows):
            self._enqueue_gang(gang, now, front=False)

    def _enqueue_gang(self, gang: Gang, now: float, *, front: bool) -> None:
        pods, templates, gangs = self._registry.pods, self._registry.templates, self._registry.gangs
        rows = gangs.ready(gang)
        if gang.queued or not len(rows):
            return
        if gang.waits or gangs.must_wait(gang, rows):
            self._gangs_to_check[gang.number] = gang
            return
        gang.queued = True
        # Its most urgent pod decides where all its pods are queued.
        first = int(pods.template[rows][templates.priority[pods.template[rows]].argmax()])
        ((sub_queue, *place),) = templates.places(np.array([first])).T.tolist()
        suspects = bool(self._registry.faults.suspect(rows).any())
        self.active.push(
            sub_queue, Place(*place), rows, now, gang=gang.number, suspects=suspects, front=front
        )

    def take_gang(self, sub_queue: int) -> Rows:
        """Remove the gang that is next in this sub-queue. Returns its QUEUED pods, as many as one batch may
        have."""
        gangs = self._registry.gangs
        gang = gangs.numbered(self.active.head(sub_queue).gang)
        rows = np.empty(0, np.uint32)
        if gang is not None:
            gang.queued = gang.changed = False
            rows = gangs.in_phase(gang, Phase.QUEUED)[:MAX_GANG_PODS]
            if gangs.must_wait(gang, rows):  # pods were deleted meanwhile
                self._gangs_to_check[gang.number] = gang
                rows = rows[:0]
        self.active.drop_next(sub_queue, rows)
        return rows

    def take_suspects(self, sub_queue: int) -> Rows:
        """Remove the suspects that are next in this sub-queue; returns the QUEUED ones."""
        rows = self.active.head(sub_queue).rows
        queued: Rows = rows[self._registry.pods.phase[rows] == Phase.QUEUED]
        self.active.drop_next(sub_queue, queued)
        return queued

    def wake_gangs_of(self, rows: Rows, now: float, now_ms: int) -> None:
        """These pods are new in their gangs: unschedulable pods of these gangs may fit together with them."""
        phase = self._registry.pods.phase
        for gang in self._registry.gangs.incomplete(rows):
            gang.changed = True
            if gang.key and not gang.waits and (phase[gang.rows] == Phase.UNSCHEDULABLE).any():
                woken = self._unschedulable.wake_pods(gang.rows, now, phase)
                self._move_woken(woken, now, now_ms, event=GANG_UPDATE)

    def gang_rule_changed(self, key: str, rule: GangRule, now: float, now_ms: int) -> None:
        """A PodGroup came, changed or went: its gang is looked at with the next tick, if it has not begun."""
        gangs = self._registry.gangs
        gang = gangs.set_rule(key, rule)
        if gang is None:
            return
        self._gangs_to_check[gang.number] = gang
        gang.changed = True
        if not gang.waits:
            woken = self._unschedulable.wake_pods(gang.rows, now, self._registry.pods.phase)
            self._move_woken(woken, now, now_ms, event=GANG_UPDATE)
        if gangs.needs_nobody(gang):
            self.gang_completed(gang, now, now_ms)

    def check_gang_minimums(self, now: float, now_ms: int) -> Rows:
        """Check the gangs whose pods or rule changed. A gang with its minimum is queued. The pods of the
        others become UNSCHEDULABLE until more pods come; they are returned, to be published."""
        pods, gangs = self._registry.pods, self._registry.gangs
        updates = [np.empty(0, np.uint32)]
        to_check, self._gangs_to_check = self._gangs_to_check, {}
        for gang in to_check.values():
            rows = gangs.ready(gang)
            if gang.queued or gang.complete or not len(rows):
                continue
            gang.waits = gangs.must_wait(gang, rows)
            if gang.waits:
                there = f"{len(rows)} of the {gangs.required(gang)} pods it needs are there"
                text = f"gang {gang.name}: {gang.missing or there}"
                pods.reason[rows] = self._registry.reasons.number(text, frozenset({GANG_SCHEDULING}))
                self._registry.move(rows, Phase.UNSCHEDULABLE, now_ms, WAITING_FOR_GANG)
                updates.append(rows)
            else:
                pods.reason[rows] = NO_REASON
                self.requeue(rows, now, now_ms, event=GANG_UPDATE, front=False)
        return np.concatenate(updates)

    def gang_completed(self, gang: Gang, now: float, now_ms: int) -> None:
        """The gang is complete: its waiting pods are ordinary pods now."""
        gangs = self._registry.gangs
        rows = gangs.ready(gang) if gang.waits else gangs.in_phase(gang, Phase.QUEUED)
        queued = gang.queued
        gangs.complete(gang)
        if queued:
            rows = np.setdiff1d(rows, np.concatenate(self.active.all_rows()))
            self._reroute()
        self._registry.pods.reason[rows] = NO_REASON
        self.requeue(rows, now, now_ms, event=GANG_UPDATE, front=False)

    def gang_size(self, sub_queue: int) -> int:
        """How many pods `take_gang` would return."""
        gang = self._registry.gangs.numbered(self.active.head(sub_queue).gang)
        if gang is None:
            return 0
        return min(len(self._registry.gangs.in_phase(gang, Phase.QUEUED)), MAX_GANG_PODS)

    def requeue(self, rows: Rows, now: float, now_ms: int, *, event: str, front: bool = True) -> None:
        """Make pods QUEUED again, by default before pods that were not tried yet. `event` is the cause."""
        self.incoming["active", event] += len(rows)
        self._registry.move(rows, Phase.QUEUED, now_ms, event)
        self.enqueue(rows, now, front=front)
        self._wake_rest_of_gangs(rows, now, now_ms, event=event)

    def _wake_rest_of_gangs(self, rows: Rows, now: float, now_ms: int, *, event: str) -> None:
        """These pods are queued again. So is what else of their incomplete gangs waits for a change: a gang
        leaves as a whole, and its minimum may fit without the others."""
        gangs = self._registry.gangs.incomplete(rows)
        if gangs:
            phase = self._registry.pods.phase
            members = np.concatenate([gang.rows for gang in gangs])
            waiting = members[phase[members] == Phase.UNSCHEDULABLE]
            if len(waiting):
                templates = self._registry.pods.template[waiting]
                classes = set(self._registry.templates.class_id[templates].tolist())
                woken = self._unschedulable.wake_pods(waiting, now, phase, classes)
                self._move_woken(woken, now, now_ms, event=event)

    def _requeue_all(self, parts: Sequence[Rows], now: float, now_ms: int, *, event: str) -> None:
        """Queue pods that waited again, in this order and behind those that were not tried yet."""
        if parts:  # together: of many classes each part is a pod
            self.requeue(np.concatenate(parts), now, now_ms, event=event, front=False)

    def requeue_refused(self, rows: Rows, now: float, now_ms: int) -> None:
        """The resolver refused these pods (attempts are counted already): queue them at once, or after a
        backoff if it refused them often."""
        attempts = self._registry.pods.attempts[rows]
        patient = attempts <= PATIENT_ATTEMPTS
        if patient.any():
            self.requeue(rows[patient], now, now_ms, event=ATTEMPT_FAILURE)
        if not patient.all():
            self._back_off(rows[~patient], now, now_ms)

    @property
    def changes(self) -> int:
        """The number of the latest cluster change."""
        return self._history.number

    def add_unschedulable(self, rows: Rows, change: int, view: ViewPosition, now: float, now_ms: int) -> None:
        """No node fits these pods, for the reasons in the table. If a change after number `change` may help
        them, and the view at `view` did not contain it, the refusal is outdated: then they only wait for
        their backoff. So it is if their gang has changed since it was sent."""
        pods = self._registry.pods
        changed = [gang.number for gang in self._registry.gangs.incomplete(rows) if gang.changed]
        if changed:
            outdated = np.isin(pods.gang[rows], changed)
            self._back_off(rows[outdated], now, now_ms)
            rows = rows[~outdated]
            if not len(rows):
                return
        missed = list(self._history.unseen_by(change, view))
        for group, part in self._grouped(rows):
            if any(self._may_help(group, changes) for changes in missed):
                self._back_off(part, now, now_ms)
                continue
            self.incoming["unschedulable", ATTEMPT_FAILURE] += len(part)
            self._registry.move(part, Phase.UNSCHEDULABLE, now_ms, ATTEMPT_FAILURE)
            for seconds, equal in by_backoff(part, pods.attempts[part]):
                self._unschedulable.add(group, equal, now, seconds)

    def cluster_changed(
        self,
        changes: Changes,
        now: float,
        now_ms: int,
        *,
        shard: int = -1,
        seq: int = 0,
    ) -> None:
        """The cluster changed, at this position of the feed if it came from there. Wakes pods now, or at a
        later tick if pods were woken a moment ago."""
        if changes:
            self._history.record(changes, now, shard=shard, seq=seq)
            self._process_changes(now, now_ms)

    def times(self, row: int) -> tuple[float, float] | None:
        """For a pod in backoff or unschedulable: when it is tried again at the earliest, and at the
        latest."""
        due = self._backoff.due(row)
        return self._unschedulable.times(row) if due is None else (due, due)

    def tick(self, now: float, now_ms: int) -> None:
        self._process_waking_classes(now, now_ms)
        self._process_changes(now, now_ms)
        phase = self._registry.pods.phase
        due = self._backoff.take_due(now, phase, most_pods=_WOKEN_AT_ONCE)
        self._requeue_all(due, now, now_ms, event="BackoffComplete")
        overdue = self._unschedulable.take_overdue(
            now, phase, most_pods=_WOKEN_AT_ONCE, most_entries=_OVERDUE_AT_ONCE
        )
        self._requeue_all(overdue, now, now_ms, event="UnschedulableTimeout")

    def sweep(self) -> int:
        """Drop deleted pods from all queues. Returns how many entries it went through."""
        pods = self._registry.pods
        entries = sum(queue.sweep(pods.phase) for queue in (self.active, self._backoff, self._unschedulable))
        pods.in_queue[: pods.size] &= pods.phase[: pods.size] != Phase.DELETED
        queued = self.active.gangs()
        for gang in self._registry.gangs.every_incomplete():
            if gang.queued and gang.number not in queued:
                # All pods that it was queued with are deleted; it may have new ones.
                gang.queued = False
                self._gangs_to_check[gang.number] = gang
        return entries

    def templates_changed(self, rows: Rows, now: float, now_ms: int, *, moved: bool) -> None:
        """These pods have other templates. Unschedulable ones may be retried, as in kube-scheduler. If any is
        routed differently (`moved`), the active queue is sorted anew."""
        if moved:
            self._reroute()
        woken = self._unschedulable.wake_pods(rows, now, self._registry.pods.phase)
        self._move_woken(woken, now, now_ms, event=POD_UPDATE)

    def all_rows(self) -> Rows:
        """All rows that any queue refers to, also those that no longer wait."""
        none = np.empty(0, np.uint32)
        parts = (self.active.all_rows(), self._backoff.all_rows(), self._unschedulable.all_rows())
        return np.concatenate([none, *(rows for part in parts for rows in part)])

    def policy_changed(self, moved: NDArray[np.bool_], now: float, now_ms: int) -> None:
        """Sort queued pods into their new sub-queues, in order of arrival. Queue waiting pods whose template
        is routed differently (`moved`, by template id), as many at once as a tick may, and with them pods of
        the same classes."""
        self._reroute()
        if not moved.any():
            return
        self._history.outdate_views(now)
        template = self._registry.pods.template
        self._backoff.hasten(lambda rows: moved[template[rows]], now)
        due = self._backoff.take_due(now, self._registry.pods.phase, most_pods=_WOKEN_AT_ONCE)
        self._requeue_all(due, now, now_ms, event="PolicyChange")
        classes = frozenset(self._registry.templates.class_id[: len(moved)][moved].tolist())
        self._wake_classes(classes, now, now_ms, event="PolicyChange")

    def preemption_allowed(self, classes: frozenset[int], now: float, now_ms: int) -> None:
        """Queue unschedulable pods of these classes, as many at once as a tick may, and those that a worker
        is about to answer for: it was told that they have to wait."""
        self._history.outdate_views(now)
        self._wake_classes(classes, now, now_ms, event=PREEMPTION_ALLOWED)

    def _wake_classes(self, classes: frozenset[int], now: float, now_ms: int, *, event: str) -> None:
        earlier, _ = self._waking_classes.get(event, (frozenset[int](), None))
        classes |= earlier
        self._waking_classes[event] = classes, self._unschedulable.waking(classes)
        self._process_waking_classes(now, now_ms)

    def _process_waking_classes(self, now: float, now_ms: int) -> None:
        if not self._waking_classes:
            return
        event, (_, waking) = next(iter(self._waking_classes.items()))
        woken = self._unschedulable.wake(
            waking,
            lambda _: True,
            now,
            self._registry.pods.phase,
            most_pods=_WOKEN_AT_ONCE,
            most_groups=_LOOKED_AT_AT_ONCE,
        )
        if not waking.groups:
            del self._waking_classes[event]
        pods = [*woken.ready, *(rows for _, rows in woken.later)]  # they need not wait for their backoff
        self._requeue_all(pods, now, now_ms, event=event)

    def _reroute(self) -> None:
        for gang in self._registry.gangs.every_incomplete():
            if gang.queued:
                gang.queued = False
                self._gangs_to_check[gang.number] = gang  # pods that joined meanwhile are in no queue
        for rows, queued_at in self.active.drain():
            self.enqueue(rows, queued_at)  # those that are not QUEUED any more are passed over as before

    def _back_off(self, rows: Rows, now: float, now_ms: int) -> None:
        pods = self._registry.pods
        self.incoming["backoff", ATTEMPT_FAILURE] += len(rows)
        self._registry.move(rows, Phase.BACKOFF, now_ms, ATTEMPT_FAILURE)
        for seconds, part in by_backoff(rows, pods.attempts[rows]):
            self._backoff.add(part, now + seconds)

    def _process_changes(self, now: float, now_ms: int) -> None:
        if self._waking is None:
            groups = len(self._unschedulable)
            interval = WAKE_INTERVAL_SECONDS + WAKE_INTERVAL_SECONDS_PER_GROUP * groups
            interval = min(interval, MAX_WAKE_INTERVAL_SECONDS)
            if self._history.none_pending or now - self._woke_at < interval:
                return
            updates = self._history.take_pending(now)
            if not updates:
                return
            self._woke_at = now
            self._waking = merge(updates), self._unschedulable.waking()
        changes, waking = self._waking
        woken = self._unschedulable.wake(
            waking,
            lambda group: self._may_help(group, changes),
            now,
            self._registry.pods.phase,
            most_pods=_WOKEN_AT_ONCE,
            most_groups=_LOOKED_AT_AT_ONCE,
        )
        if not waking.groups:
            self._waking = None
        self._move_woken(woken, now, now_ms, event=CLUSTER_CHANGE)

    def _move_woken(self, woken: Woken, now: float, now_ms: int, *, event: str) -> None:
        self._requeue_all(woken.ready, now, now_ms, event=event)
        for due, rows in woken.later:
            self.incoming["backoff", event] += len(rows)
            self._registry.move(rows, Phase.BACKOFF, now_ms, event)
            self._backoff.add(rows, due)

    def _grouped(self, rows: Rows) -> Iterator[tuple[WaitingGroup, Rows]]:
        pods, templates, reasons = self._registry.pods, self._registry.templates, self._registry.reasons
        class_ids, numbers = templates.class_id[pods.template[rows]], pods.reason[rows]
        pairs, which = np.unique(np.stack([class_ids, numbers]), axis=1, return_inverse=True)
        for i, (class_id, number) in enumerate(pairs.T.tolist()):
            yield WaitingGroup(class_id, reasons.refused_by[number]), rows[which.ravel() == i]

    def _may_help(self, group: WaitingGroup, changes: Changes) -> bool:
        if changes.anything or not group.refused_by:
            return bool(changes)
        spec = self._registry.templates.pod_spec(group.class_id)
        return worth_another_attempt(spec, group.refused_by, changes)
