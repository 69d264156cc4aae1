"""All pods that are not with a worker and not settled: active, in backoff, or unschedulable.

Moves between the three keep the pod table's phase in step. A pod that was tried and refused is never tried again at once
for ever: each refusal lengthens its backoff.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.aging import Aging
from dispatcher.core.changes import Changes, History, Seen, together
from dispatcher.core.gangs import MAX_GANG_PODS, Gang
from dispatcher.core.hints import worth_another_attempt
from dispatcher.core.journeys import ATTEMPT_FAILURE, GATHERING
from dispatcher.core.podtable import NO_REASON, Phase, Rows
from dispatcher.core.queue import ActiveQueue
from dispatcher.core.registry import PodRegistry
from dispatcher.core.tenants import Tenants
from dispatcher.core.waiting import Backoff, Group, Unschedulable, Woken, by_backoff

# Events that bring pods to a queue, by kube-scheduler's names where it has them (scheduler_queue_incoming_pods_total).
POD_ADD = "PodAdd"
CLUSTER_CHANGE = "ClusterChange"
POD_UPDATE = "PodUpdate"
GANG_UPDATE = "GangUpdate"

GANG_SCHEDULING = "GangScheduling"  # kube-scheduler's plugin that has the pods of a gang wait for each other

# Changes of the cluster come in bursts; one look at the waiting pods serves all within this time. A look costs 2 to 20
# microseconds a group: the more there are, the rarer it is, so that it takes a small part of the time.
WAKE_INTERVAL_SECONDS = 0.1
WAKE_INTERVAL_SECONDS_PER_GROUP = 1e-4
MAX_WAKE_INTERVAL_SECONDS = 5.0

# Refusals by the resolver after which a pod no longer goes straight back to the front.
PATIENT_ATTEMPTS = 3


class Queues:
    """Where pods wait. Every row is in one of the three at most."""

    def __init__(self, registry: PodRegistry, tenants: Tenants, aging: Aging) -> None:
        self._registry = registry
        self.active = ActiveQueue(tenants, aging)
        self._backoff = Backoff()
        self._unschedulable = Unschedulable()
        self._history = History()
        self._woke_at = float("-inf")
        self._to_muster: dict[int, Gang] = {}  # to or from which pods came or went since the last tick, by number
        self.incoming: Counter[tuple[str, str]] = Counter()  # pods by queue and event, of which metrics tell

    def admit(self, rows: Rows, now: float) -> None:
        """Queue pods that are new."""
        self.incoming["active", POD_ADD] += len(rows)
        self.enqueue(rows, now)

    def enqueue(self, rows: Rows, now: float, *, front: bool = False) -> None:
        """Queue pods that are QUEUED, each in its template's lane, at its priority and for its tenant; gangs as `gather` does."""
        gangs = self._registry.gangs.incomplete(rows)
        if gangs:
            rows = rows[~np.isin(self._registry.pods.gang[rows], [gang.number for gang in gangs])]
            for gang in gangs:
                self._gather(gang, now, front=front)
        if self._registry.faults:
            suspects = self._registry.faults.suspects(rows)
            companies = list(self._registry.faults.companies(rows[suspects]))
            for company in reversed(companies) if front else companies:
                self._push(company, now, front=front, suspects=True)
            rows = rows[~suspects]
        if len(rows):
            self._push(rows, now, front=front)

    def _push(self, rows: Rows, now: float, *, front: bool, suspects: bool = False) -> None:
        templates = self._registry.templates
        template_ids = self._registry.pods.template[rows]
        push = self.active.push_front if front else self.active.push
        if (template_ids == template_ids[0]).all():
            ((lane, priority, tenant),) = templates.places(template_ids[:1]).T.tolist()
            push(lane, priority, tenant, rows, now, suspects=suspects)
            return
        places = templates.places(template_ids)
        order = np.lexsort(places)  # stable: arrival order stays within each
        places = places[:, order]
        ends = np.flatnonzero((places[:, 1:] != places[:, :-1]).any(axis=0)) + 1
        starts = np.concatenate(([0], ends))
        for (lane, priority, tenant), part in zip(
            places[:, starts].T.tolist(), np.split(rows[order], ends), strict=True
        ):
            push(lane, priority, tenant, part, now, suspects=suspects)

    def gather(self, rows: Rows, now: float) -> None:
        """Queue those gangs of these pods that are together now: none of their pods is with a worker or waits for anything.

        To be called when pods of a gang left it, or their batch is answered; `enqueue` does it for those that come back.
        """
        for gang in self._registry.gangs.incomplete(rows):
            self._gather(gang, now, front=False)

    def _gather(self, gang: Gang, now: float, *, front: bool) -> None:
        pods, templates, gangs = self._registry.pods, self._registry.templates, self._registry.gangs
        rows = gangs.there(gang)
        if gang.queued or not len(rows):
            return
        if gang.waits or gangs.short(gang, rows):
            self._to_muster[gang.number] = gang
            return
        gang.queued = True
        # Its most urgent pod speaks for all: they go together, to where the policy sends that one.
        leader = int(pods.template[rows][templates.priority[pods.template[rows]].argmax()])
        push = self.active.push_front if front else self.active.push
        ((lane, priority, tenant),) = templates.places(np.array([leader])).T.tolist()
        suspects = bool(self._registry.faults.suspects(rows).any())
        push(lane, priority, tenant, rows, now, gang=gang.number, suspects=suspects)

    def take_gang(self, lane: int) -> Rows:
        """Remove the gang that is next in this lane and return its pods, as many as travel at once; none if none are left."""
        gangs = self._registry.gangs
        gang = gangs.numbered(self.active.next_gang(lane))
        rows = np.empty(0, np.uint32)
        if gang is not None:
            gang.queued = False
            rows = gangs.in_phase(gang, Phase.QUEUED)[:MAX_GANG_PODS]
            if gangs.short(gang, rows):  # some were deleted meanwhile
                self._to_muster[gang.number] = gang
                rows = rows[:0]
        self.active.drop_next(lane, rows)
        return rows

    def take_suspects(self, lane: int) -> Rows:
        """Remove the suspects that are next in this lane and return those still queued."""
        rows = self.active.next_rows(lane)
        queued: Rows = rows[self._registry.pods.phase[rows] == Phase.QUEUED]
        self.active.drop_next(lane, queued)
        return queued

    def joined(self, rows: Rows, now: float, now_ms: int) -> None:
        """These pods are new in their gangs: those of the others that fit nowhere may do so together with them."""
        phase = self._registry.pods.phase
        for gang in self._registry.gangs.incomplete(rows):
            if gang.key and not gang.waits and (phase[gang.rows] == Phase.UNSCHEDULABLE).any():
                woken = self._unschedulable.wake_pods(gang.rows, now, phase)
                self._set_free(woken, now, now_ms, event=GANG_UPDATE)

    def muster(self, now: float, now_ms: int) -> Rows:
        """Of the gangs that came to have more pods or fewer, queue those that have enough. The pods of the others are UNSCHEDULABLE until more
        come; returns these, which are to be told so."""
        pods, gangs = self._registry.pods, self._registry.gangs
        told = [np.empty(0, np.uint32)]
        to_muster, self._to_muster = self._to_muster, {}
        for gang in to_muster.values():
            rows = gangs.there(gang)
            if gang.queued or gang.complete or not len(rows):
                continue
            gang.waits = gangs.short(gang, rows)
            if gang.waits:
                text = f"gang {gang.name}: {len(rows)} of the {gangs.needed(gang)} pods it needs are there"
                pods.reason[rows] = self._registry.reasons.number(text, frozenset({GANG_SCHEDULING}))
                self._registry.move(rows, Phase.UNSCHEDULABLE, now_ms, GATHERING)
                told.append(rows)
            else:
                pods.reason[rows] = NO_REASON
                self.requeue(rows, now, now_ms, event=GANG_UPDATE, front=False)
        return np.concatenate(told)

    def start(self, gang: Gang, now: float, now_ms: int) -> None:
        """The gang is complete: those of its pods that wait for others of it are ordinary pods now."""
        gangs = self._registry.gangs
        rows = gangs.there(gang) if gang.waits else gangs.in_phase(gang, Phase.QUEUED)
        queued = gang.queued
        gangs.complete(gang)
        if queued:
            rows = np.setdiff1d(rows, np.concatenate(self.active.standing()))
            self._relane()
        self._registry.pods.reason[rows] = NO_REASON
        self.requeue(rows, now, now_ms, event=GANG_UPDATE, front=False)

    def gang_size(self, lane: int) -> int:
        """How many pods `take_gang` would return."""
        gang = self._registry.gangs.numbered(self.active.next_gang(lane))
        return 0 if gang is None else min(len(self._registry.gangs.in_phase(gang, Phase.QUEUED)), MAX_GANG_PODS)

    def requeue(self, rows: Rows, now: float, now_ms: int, *, event: str, front: bool = True) -> None:
        """Put pods back as QUEUED, before those not tried yet. `event`: why."""
        self.incoming["active", event] += len(rows)
        self._registry.move(rows, Phase.QUEUED, now_ms, event)
        self.enqueue(rows, now, front=front)

    def refuse(self, rows: Rows, now: float, now_ms: int) -> None:
        """The resolver refused these pods (attempts counted already): again at once, or after a while if it was often."""
        attempts = self._registry.pods.attempts[rows]
        patient = attempts <= PATIENT_ATTEMPTS
        if patient.any():
            self.requeue(rows[patient], now, now_ms, event=ATTEMPT_FAILURE)
        if not patient.all():
            self._back_off(rows[~patient], now, now_ms)

    @property
    def changes(self) -> int:
        """The number of the latest change of the cluster."""
        return self._history.number

    def park(self, rows: Rows, change: int, seen: Seen, now: float, now_ms: int) -> None:
        """No node fits these pods, for the reasons in the table. If something that may help them changed after change number
        `change` and was not in the view that stood at `seen`, that is old news: then they wait for their backoff only."""
        pods = self._registry.pods
        missed = list(self._history.missed(change, seen))
        for group, part in self._grouped(rows):
            if any(self._helped(group, changes) for changes in missed):
                self._back_off(part, now, now_ms)
                continue
            self.incoming["unschedulable", ATTEMPT_FAILURE] += len(part)
            self._registry.move(part, Phase.UNSCHEDULABLE, now_ms, ATTEMPT_FAILURE)
            for seconds, equal in by_backoff(part, pods.attempts[part]):
                self._unschedulable.add(group, equal, now, seconds)

    def cluster_changed(self, changes: Changes, now: float, now_ms: int, *, shard: int = -1, seq: int = 0) -> None:
        """Something changed, at this place of the feed if it was told there. Acts at once, or at the next tick if it did so a
        moment ago."""
        if changes:
            self._history.note(changes, now, shard=shard, seq=seq)
            self._tell_changes(now, now_ms)

    def times(self, row: int) -> tuple[float, float] | None:
        """Of a pod in backoff or unschedulable: before when it is not tried again, and when it is at the latest."""
        due = self._backoff.due(row)
        return self._unschedulable.times(row) if due is None else (due, due)

    def tick(self, now: float, now_ms: int) -> None:
        """Queue what waited long enough."""
        self._tell_changes(now, now_ms)
        phase = self._registry.pods.phase
        for rows in self._backoff.take_due(now, phase):
            self.requeue(rows, now, now_ms, event="BackoffComplete", front=False)
        for rows in self._unschedulable.take_overdue(now, phase):
            self.requeue(rows, now, now_ms, event="UnschedulableTimeout", front=False)

    def sweep(self) -> int:
        """Drop deleted pods from everywhere. Returns how many entries it went through."""
        pods = self._registry.pods
        entries = sum(queue.sweep(pods.phase) for queue in (self.active, self._backoff, self._unschedulable))
        pods.in_queue &= pods.phase != Phase.DELETED
        standing = self.active.gangs()
        for gang in self._registry.gangs.every_incomplete():
            if gang.queued and gang.number not in standing:
                # All with which it was queued are deleted; others may have come.
                gang.queued = False
                self._to_muster[gang.number] = gang
        return entries

    def respecified(self, rows: Rows, now: float, now_ms: int, *, moved: bool) -> None:
        """These pods have other templates now: those that wait for a change have seen one, as kube-scheduler has it, and where they
        go another way (`moved`), the queued ones are sorted into their lanes again."""
        if moved:
            self._relane()
        woken = self._unschedulable.wake_pods(rows, now, self._registry.pods.phase)
        self._set_free(woken, now, now_ms, event=POD_UPDATE)

    def standing(self) -> Rows:
        """All rows that any queue refers to, those that wait no more included."""
        none = np.empty(0, np.uint32)
        parts = (self.active.standing(), self._backoff.standing(), self._unschedulable.standing())
        return np.concatenate([none, *(rows for part in parts for rows in part)])

    def policy_changed(self, moved: NDArray[np.bool_], now: float, now_ms: int) -> None:
        """Sort queued pods into their new lanes, in order of arrival, and queue those that wait and whose template went another
        way: `moved`, by template id."""
        self._relane()
        if not moved.any():
            return
        template, phase = self._registry.pods.template, self._registry.pods.phase
        self._history.outdate(now)
        for rows in (
            *self._backoff.take(lambda rows: moved[template[rows]], phase),
            *self._unschedulable.take(lambda rows: moved[template[rows]], phase),
        ):
            self.requeue(rows, now, now_ms, event="PolicyChange", front=False)

    def _relane(self) -> None:
        phase = self._registry.pods.phase
        for gang in self._registry.gangs.every_incomplete():
            if gang.queued:
                gang.queued = False
                self._to_muster[gang.number] = gang  # those that came since it was queued stand nowhere
        for rows, queued_at in self.active.drain():
            self.enqueue(rows[phase[rows] == Phase.QUEUED], queued_at)

    def _back_off(self, rows: Rows, now: float, now_ms: int) -> None:
        pods = self._registry.pods
        self.incoming["backoff", ATTEMPT_FAILURE] += len(rows)
        self._registry.move(rows, Phase.BACKOFF, now_ms, ATTEMPT_FAILURE)
        for seconds, part in by_backoff(rows, pods.attempts[rows]):
            self._backoff.add(part, now + seconds)

    def _tell_changes(self, now: float, now_ms: int) -> None:
        groups = len(self._unschedulable)
        interval = min(WAKE_INTERVAL_SECONDS + WAKE_INTERVAL_SECONDS_PER_GROUP * groups, MAX_WAKE_INTERVAL_SECONDS)
        if self._history.all_told or now - self._woke_at < interval:
            return
        told = self._history.untold(now)
        if not told:
            return
        self._woke_at = now
        changes = together(told)
        pods = self._registry.pods
        self._set_free(
            self._unschedulable.wake(lambda group: self._helped(group, changes), now, pods.phase),
            now,
            now_ms,
            event=CLUSTER_CHANGE,
        )

    def _set_free(self, woken: Woken, now: float, now_ms: int, *, event: str) -> None:
        for rows in woken.ready:
            self.requeue(rows, now, now_ms, event=event, front=False)
        for due, rows in woken.later:
            self.incoming["backoff", event] += len(rows)
            self._registry.move(rows, Phase.BACKOFF, now_ms, event)
            self._backoff.add(rows, due)

    def _grouped(self, rows: Rows) -> Iterator[tuple[Group, Rows]]:
        pods, templates, reasons = self._registry.pods, self._registry.templates, self._registry.reasons
        class_ids, numbers = templates.class_id[pods.template[rows]], pods.reason[rows]
        pairs, which = np.unique(np.stack([class_ids, numbers]), axis=1, return_inverse=True)
        for i, (class_id, number) in enumerate(pairs.T.tolist()):
            yield Group(class_id, reasons.refused_by[number]), rows[which.ravel() == i]

    def _helped(self, group: Group, changes: Changes) -> bool:
        if changes.anything or not group.refused_by:
            return bool(changes)
        return worth_another_attempt(self._registry.templates.pod_spec(group.class_id), group.refused_by, changes)
