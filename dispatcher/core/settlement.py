"""What pods come to, whoever says so: bound, given up, gated, or with no worker any more; and what is told of it.

Who says so is elsewhere: workers in `outcomes`, the ledger in `evictions`, the API server in `assignments`.
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.changes import Changes
from dispatcher.core.eventlog import NO_TEXT, EventLog
from dispatcher.core.gangs import Gang
from dispatcher.core.journeys import GATED, GIVEN_BACK, GIVEN_UP, VICTIMS_LEFT, WORKER_LOST
from dispatcher.core.membership import Worker
from dispatcher.core.messages import Instruction, Release, Reserve, Verify
from dispatcher.core.nominations import Nominations
from dispatcher.core.phases import PhaseTimes
from dispatcher.core.podtable import NO_REASON, Phase, Rows
from dispatcher.core.queues import Queues
from dispatcher.core.registry import PodRegistry
from dispatcher.core.residence import Residence
from hoss.wire.columns import NONE_U32

MAX_ATTEMPTS_COUNTED = 0xFFFF
CHANGED = "the pod has changed since it was placed; what was reserved for it is given back"
VICTIMS_LEAVE = "its claim on the node stands; pods that had to go for it are still leaving"
SCHEDULING_GATES = "SchedulingGates"  # kube-scheduler's plugin that keeps gated pods out of the queues


class Settlement:
    """Changes pods in the registry, the queues and the log; returns what the ledger must be told."""

    def __init__(
        self,
        registry: PodRegistry,
        residence: Residence,
        queues: Queues,
        log: EventLog,
        counters: Counter[str],
        *,
        victims_leave_by_word: bool = False,
    ) -> None:
        """`victims_leave_by_word`: their pods' end is told, and not a matter of their grace periods."""
        self._registry = registry
        self._queues = queues
        self._log = log
        self.nominations = Nominations(registry.pods, by_word=victims_leave_by_word)
        self._counters = counters
        self._residence = residence
        self.times = PhaseTimes()

    def bound(self, rows: Rows, nodes: NDArray[np.uint32], now: float, now_ms: int) -> list[Instruction]:
        """These pods have reservations. Those deleted meanwhile give them back, and so do too few of a gang and those that have changed
        since: they are in BACKOFF until their release is answered."""
        pods = self._registry.pods
        settled = pods.assigned[rows]
        if settled.any():  # somebody was faster, at the API server; there it is, and the ledger is to say so too
            return [
                *self.bound(rows[~settled], nodes[~settled], now, now_ms),
                Reserve(rows[settled], pods.uid[rows[settled]]),
            ]
        pods.node[rows] = nodes
        gone = pods.phase[rows] == Phase.DELETED
        outdated = pods.outdated[rows] & ~gone
        if outdated.any():
            pods.reason[rows[outdated]] = self._registry.reasons.number(CHANGED)
            self._registry.move(rows[outdated], Phase.BACKOFF, now_ms, GIVEN_BACK)
            gone |= outdated
        for gang in self._registry.gangs.incomplete(rows):
            gone |= self._count_gang(gang, rows, now, now_ms)
        if gone.any():
            late = rows[gone]
            rows, nodes = rows[~gone], nodes[~gone]
            out: list[Instruction] = [Release(late, pods.uid[late], pods.node[late])]
        else:
            out = []
        if len(rows):
            self._registry.move(rows, Phase.BOUND, now_ms)
            pods.reason[rows] = NO_REASON
            self._counters["bound"] += len(rows)
            self._note_scheduled(rows, now_ms)
            self._tell_bound(rows)
            if self._registry.minds_pods:
                self._queues.cluster_changed(Changes(came=self._registry.pod_specs(rows)), now, now_ms)
        return out + self.verify_doubted(rows) + self.look(rows, now_ms)

    def look(self, rows: Rows, now_ms: int) -> list[Instruction]:
        """Whether these bound pods may stay where they are."""
        out, changed = self._residence.look(rows, now_ms)
        self.publish(changed)
        return out

    def tick(self, now: float, now_ms: int) -> list[Instruction]:
        """Time went by: nominated pods whose victims have left are bound for everyone to see, and some pods may stay no longer."""
        rows = self.nominations.take_due(now)
        if len(rows):
            self._registry.pods.reason[rows] = NO_REASON
            self._registry.journeys.note(rows, Phase.BOUND, now_ms, VICTIMS_LEFT)
            self._tell_bound(rows)
        return self.look(self._residence.due(now_ms), now_ms)

    def lost(self, worker: Worker, rows: Rows, now: float, now_ms: int) -> None:
        """A fenced worker had these pods and bound none of them: others get them first, unless it was once too often."""
        pods = self._registry.pods
        alive = rows[pods.phase[rows] == Phase.SCHEDULING]
        self.count_attempt(alive)
        if worker.blames:
            text = f"worker {worker.name} was lost while it had this pod in hand"
            given_up = self._registry.faults.note(alive, worker.name, text, now_ms)
            self.give_up(alive[given_up], now_ms)
            alive = alive[~given_up]
        self._counters["requeued"] += len(alive)
        self._queues.requeue(alive, now, now_ms, event=WORKER_LOST)
        self._queues.gather(rows, now)
        self.publish(alive)

    def give_up(self, rows: Rows, now_ms: int) -> None:
        """Pods that are tried no more: one reason for all whose last fault is the same."""
        pods, faults = self._registry.pods, self._registry.faults
        self._counters["failed"] += len(rows)
        while len(rows):
            latest = faults.of(int(rows[0]))[-1]
            mine = np.isin(rows, latest.rows) & (pods.faults[rows] == pods.faults[rows[0]])
            times = f"given up after {pods.faults[rows[0]]} faults, the last: " if not latest.final else ""
            pods.reason[rows[mine]] = self._registry.reasons.number(f"{times}{latest.text}")
            self._registry.move(rows[mine], Phase.FAILED, now_ms, GIVEN_UP)
            self.publish(rows[mine])
            rows = rows[~mine]

    def gate(self, rows: Rows, now_ms: int) -> None:
        """These pods have scheduling gates: they are in no queue until the last is removed."""
        pods = self._registry.pods
        for gates, mine in self._registry.gates_of(rows).items():
            pods.reason[mine] = self._registry.reasons.number(
                f"SchedulingGated: waits for gates {', '.join(gates)}", frozenset({SCHEDULING_GATES})
            )
        self._registry.move(rows, Phase.UNSCHEDULABLE, now_ms, GATED)
        self.publish(rows)

    def gates_removed(self, rows: Rows, gates: frozenset[str], now: float, now_ms: int) -> None:
        """Pods that are gated lose these gates; those without any left are queued."""
        self._registry.remove_gates(rows, gates)
        gated = self._registry.gated(rows)
        self.gate(rows[gated], now_ms)
        free = rows[~gated]
        self._registry.pods.reason[free] = NO_REASON
        self._queues.joined(free, now, now_ms)
        self._queues.requeue(free, now, now_ms, event="GatesRemoved", front=False)
        self.publish(free)

    def publish(self, rows: Rows) -> None:
        """Log the present phase and reason of pods, and where they are bound."""
        if not len(rows):
            return
        pods, texts = self._registry.pods, self._registry.reasons.texts
        numbers = pods.reason[rows]
        reasons, used = None, ()
        if (numbers != NO_REASON).any():
            distinct, which = np.unique(numbers, return_inverse=True)
            used = tuple(texts[i] for i in distinct.tolist())
            reasons = np.where(numbers == NO_REASON, NO_TEXT, which).astype(np.uint16)
        nodes = np.where(pods.phase[rows] == Phase.BOUND, pods.node[rows], NONE_U32).astype(np.uint32)
        self._log.append(pods.uid[rows], pods.phase[rows], nodes, reasons, used)

    def verify_doubted(self, rows: Rows) -> list[Instruction]:
        """Of these bound pods those of which news may be out of order are looked up."""
        pods = self._registry.pods
        rows = rows[pods.doubted[rows]]
        return [Verify(rows, pods.uid[rows])] if len(rows) else []

    def count_attempt(self, rows: Rows) -> None:
        """These pods were tried in vain."""
        attempts = self._registry.pods.attempts
        attempts[rows] = np.minimum(attempts[rows].astype(np.uint32) + 1, MAX_ATTEMPTS_COUNTED)
        self._registry.tried.append(rows)

    def _tell_bound(self, rows: Rows) -> None:
        pods = self._registry.pods
        waits = self.nominations.among(rows)
        if waits.any():
            pods.reason[rows[waits]] = self._registry.reasons.number(VICTIMS_LEAVE)
            rows = rows[~waits]
        if len(rows):
            self._log.append(pods.uid[rows], pods.phase[rows], pods.node[rows])

    def _count_gang(self, gang: Gang, rows: Rows, now: float, now_ms: int) -> NDArray[np.bool_]:
        """Which of the rows, reserved now, are a part of the gang that is too small. Else it is complete."""
        pods, gangs = self._registry.pods, self._registry.gangs
        going = (Phase.DELETED, Phase.BACKOFF)
        mine: NDArray[np.bool_] = (pods.gang[rows] == gang.number) & ~np.isin(pods.phase[rows], going)
        reserved, needed = gangs.bound(gang) + int(mine.sum()), gangs.needed(gang)
        if reserved >= needed:
            gangs.complete(gang)
            self._queues.enqueue(gangs.in_phase(gang, Phase.QUEUED), now)  # those that did not travel with it
            return np.zeros(len(rows), np.bool_)
        self._counters["partial_gangs"] += 1
        part = rows[mine]
        pods.reason[part] = self._registry.reasons.number(
            f"gang {gang.name}: {reserved} of the {needed} pods it needs had room and have given it back"
        )
        self._registry.move(part, Phase.BACKOFF, now_ms, GIVEN_BACK)
        self.publish(part)
        return mine

    def _note_scheduled(self, rows: Rows, now_ms: int) -> None:
        """Note how long these bound pods took since their submission: not those that had gates, or lost a place before."""
        pods = self._registry.pods
        rows = rows[pods.eviction[rows] == NO_REASON]
        owners, counts = np.unique(pods.pod_set[rows], return_counts=True)
        for index, count in zip(owners.tolist(), counts.tolist(), strict=True):
            pod_set = self._registry.directory.sets[index]
            if pod_set.ungated:
                mine = rows[pods.pod_set[rows] == index] - pod_set.first
                count -= int(np.logical_or.reduce(list(pod_set.ungated.values()))[mine].sum())  # noqa: PLW2901 - fewer of them
            self.times.scheduled.add_equal(max(0, now_ms - pod_set.submission.submitted_ms) / 1000, count)
