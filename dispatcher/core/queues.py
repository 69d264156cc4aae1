"""All pods that are not with a worker and not settled: active, in backoff, or unschedulable.

Moves between the three keep the pod table's phase in step. A pod that was tried and refused is never tried again at once
for ever: each refusal lengthens its backoff.
"""

import numpy as np

from dispatcher.core.gangs import MAX_GANG_PODS, Gang
from dispatcher.core.podtable import Phase, Rows
from dispatcher.core.queue import ActiveQueue
from dispatcher.core.registry import PodRegistry
from dispatcher.core.waiting import Backoff, Unschedulable, by_backoff

# Changes of the cluster come in bursts; one look at the waiting pods serves all within this time.
WAKE_INTERVAL_SECONDS = 0.1

# A gang of which a pod is in one of these is not together.
_TO_COME = (Phase.SCHEDULING, Phase.BACKOFF, Phase.UNSCHEDULABLE)

# Refusals by the resolver after which a pod no longer goes straight back to the front.
PATIENT_ATTEMPTS = 3


class Queues:
    """Where pods wait. Every row is in one of the three at most."""

    def __init__(self, registry: PodRegistry) -> None:
        self._registry = registry
        self.active = ActiveQueue()
        self._backoff = Backoff()
        self._unschedulable = Unschedulable()
        self.changes = 0  # changes of the cluster seen so far
        self._change_to_tell = False
        self._woke_at = float("-inf")

    def enqueue(self, rows: Rows, now: float, *, front: bool = False) -> None:
        """Queue pods that are QUEUED, each in its template's lane and at its priority; gangs as `gather` does."""
        gangs = self._registry.gangs.incomplete(rows)
        if gangs:
            rows = rows[~np.isin(self._registry.pods.gang[rows], [gang.number for gang in gangs])]
            for gang in gangs:
                self._gather(gang, now, front=front)
        if not len(rows):
            return
        templates = self._registry.templates
        template_ids = self._registry.pods.template[rows]
        lanes, priorities = templates.lane[template_ids], templates.priority[template_ids]
        push = self.active.push_front if front else self.active.push
        if (lanes == lanes[0]).all() and (priorities == priorities[0]).all():
            push(int(lanes[0]), int(priorities[0]), rows, now)
            return
        order = np.lexsort((priorities, lanes))  # stable: arrival order stays within each
        lanes, priorities = lanes[order], priorities[order]
        ends = np.flatnonzero((lanes[1:] != lanes[:-1]) | (priorities[1:] != priorities[:-1])) + 1
        starts = np.concatenate(([0], ends)).tolist()
        for start, part in zip(starts, np.split(rows[order], ends), strict=True):
            push(int(lanes[start]), int(priorities[start]), part, now)

    def gather(self, rows: Rows, now: float) -> None:
        """Queue those gangs of these pods that are together now: none of their pods is with a worker or waits for anything.

        To be called when pods of a gang left it, or their batch is answered; `enqueue` does it for those that come back.
        """
        for gang in self._registry.gangs.incomplete(rows):
            self._gather(gang, now, front=False)

    def _gather(self, gang: Gang, now: float, *, front: bool) -> None:
        pods, templates = self._registry.pods, self._registry.templates
        phase = pods.phase[gang.rows]
        rows = gang.rows[phase == Phase.QUEUED]
        if gang.queued or not len(rows) or np.isin(phase, _TO_COME).any():
            return
        gang.queued = True
        # Its most urgent pod speaks for all: they go together, to where the policy sends that one.
        leader = int(pods.template[rows][templates.priority[pods.template[rows]].argmax()])
        push = self.active.push_front if front else self.active.push
        push(int(templates.lane[leader]), int(templates.priority[leader]), rows, now, gang=gang.number)

    def take_gang(self, lane: int) -> Rows:
        """Remove the gang that is next in this lane and return its pods, as many as travel at once; none if none are left."""
        gang = self._registry.gangs.numbered(self.active.next_gang(lane))
        self.active.drop_next(lane)
        if gang is None:
            return np.empty(0, np.uint32)
        gang.queued = False
        return self._registry.gangs.in_phase(gang, Phase.QUEUED)[:MAX_GANG_PODS]

    def gang_size(self, lane: int) -> int:
        """How many pods `take_gang` would return."""
        gang = self._registry.gangs.numbered(self.active.next_gang(lane))
        return 0 if gang is None else min(len(self._registry.gangs.in_phase(gang, Phase.QUEUED)), MAX_GANG_PODS)

    def requeue(self, rows: Rows, now: float, now_ms: int, *, front: bool = True) -> None:
        """Put pods back as QUEUED, before those not tried yet."""
        self._registry.pods.move(rows, Phase.QUEUED, now_ms)
        self.enqueue(rows, now, front=front)

    def refuse(self, rows: Rows, now: float, now_ms: int) -> None:
        """The resolver refused these pods (attempts counted already): again at once, or after a while if it was often."""
        attempts = self._registry.pods.attempts[rows]
        patient = attempts <= PATIENT_ATTEMPTS
        if patient.any():
            self.requeue(rows[patient], now, now_ms)
        if not patient.all():
            self._back_off(rows[~patient], now, now_ms)

    def park(self, rows: Rows, change: int, now: float, now_ms: int) -> None:
        """No node fits these pods. If the cluster changed since change number `change`, that may be old news already: then
        they wait for their backoff only."""
        if change != self.changes:
            self._back_off(rows, now, now_ms)
            return
        pods = self._registry.pods
        pods.move(rows, Phase.UNSCHEDULABLE, now_ms)
        for seconds, part in by_backoff(rows, pods.attempts[rows]):
            self._unschedulable.add(part, now, seconds)

    def cluster_changed(self, now: float, now_ms: int) -> None:
        """Something may fit now. Acts at once, or at the next tick if it did so a moment ago."""
        self.changes += 1
        self._change_to_tell = True
        self._tell_change(now, now_ms)

    def tick(self, now: float, now_ms: int) -> None:
        """Queue what waited long enough."""
        self._tell_change(now, now_ms)
        phase = self._registry.pods.phase
        for rows in self._backoff.take_due(now, phase):
            self.requeue(rows, now, now_ms, front=False)
        for rows in self._unschedulable.take_overdue(now, phase):
            self.requeue(rows, now, now_ms, front=False)

    def sweep(self) -> None:
        """Drop deleted pods from everywhere."""
        phase = self._registry.pods.phase
        self.active.sweep(phase)
        self._backoff.sweep(phase)
        self._unschedulable.sweep(phase)

    def relane(self) -> None:
        """The policy changed: sort queued pods into their new lanes, in order of arrival."""
        phase = self._registry.pods.phase
        for gang in self._registry.gangs.every_incomplete():
            gang.queued = False
        for rows, queued_at in self.active.drain():
            self.enqueue(rows[phase[rows] == Phase.QUEUED], queued_at)

    def _back_off(self, rows: Rows, now: float, now_ms: int) -> None:
        pods = self._registry.pods
        pods.move(rows, Phase.BACKOFF, now_ms)
        for seconds, part in by_backoff(rows, pods.attempts[rows]):
            self._backoff.add(part, now + seconds)

    def _tell_change(self, now: float, now_ms: int) -> None:
        if not self._change_to_tell or now - self._woke_at < WAKE_INTERVAL_SECONDS:
            return
        self._change_to_tell, self._woke_at = False, now
        pods = self._registry.pods
        woken = self._unschedulable.wake(now, pods.phase)
        for rows in woken.ready:
            self.requeue(rows, now, now_ms, front=False)
        for due, rows in woken.later:
            pods.move(rows, Phase.BACKOFF, now_ms)
            self._backoff.add(rows, due)
