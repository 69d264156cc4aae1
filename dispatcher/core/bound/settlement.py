"""Changes of pods that several sources cause: bound, given up, gated, lost with their worker; and their
publication to the event log. The sources are workers (`outcomes`), the ledger (`evictions`) and the API
server (`assignments`)."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.bound.nominations import Nominations
from dispatcher.core.bound.taint_eviction import TaintEviction
from dispatcher.core.messages import Instruction, Release, Reserve, Verify
from dispatcher.core.pods.gangs import Gang
from dispatcher.core.pods.history import (
    GATED,
    GIVEN_BACK,
    GIVEN_UP,
    NO_TEXT,
    VICTIMS_LEFT,
    WORKER_LOST,
    EventLog,
    PhaseTimes,
)
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.table import NO_REASON, Phase, Rows
from dispatcher.core.queue.queues import Queues
from dispatcher.core.workers.membership import Worker
from hoss.wire.columns import NONE_U32

MAX_ATTEMPTS_COUNTED = 0xFFFF
CHANGED = "the pod has changed since it was placed; what was reserved for it is given back"
VICTIMS_LEAVE = "its claim on the node stands; pods that had to go for it are still leaving"
SCHEDULING_GATES = "SchedulingGates"  # kube-scheduler's plugin that keeps gated pods out of the queues


@dataclass(slots=True, eq=False)
class Settlement:
    """Changes pods in the registry, the queues and the event log; returns the instructions for the ledger."""

    registry: PodRegistry
    taint_eviction: TaintEviction
    queues: Queues
    log: EventLog
    counters: Counter[str]
    nominations: Nominations
    times: PhaseTimes = field(default_factory=PhaseTimes, init=False)

    def bound(self, rows: Rows, nodes: NDArray[np.uint32], now: float, now_ms: int) -> list[Instruction]:
        """These pods have reservations. Three kinds release theirs: pods deleted meanwhile, pods of a gang
        below its minimum, and pods that changed since. The latter two are in BACKOFF until the release is
        answered."""
        pods = self.registry.pods
        settled = pods.assigned[rows]
        if settled.any():  # the API server bound them elsewhere first; the ledger has to follow
            return [
                *self.bound(rows[~settled], nodes[~settled], now, now_ms),
                Reserve(rows[settled], pods.uid[rows[settled]]),
            ]
        pods.node[rows] = nodes
        gone = pods.phase[rows] == Phase.DELETED
        outdated = pods.outdated[rows] & ~gone
        if outdated.any():
            pods.reason[rows[outdated]] = self.registry.reasons.number(CHANGED)
            self.registry.move(rows[outdated], Phase.BACKOFF, now_ms, GIVEN_BACK)
            gone |= outdated
        for gang in self.registry.gangs.incomplete(rows):
            gone |= self._count_gang(gang, rows, now, now_ms)
        if gone.any():
            late = rows[gone]
            rows, nodes = rows[~gone], nodes[~gone]
            out: list[Instruction] = [Release(late, pods.uid[late], pods.node[late])]
        else:
            out = []
        if len(rows):
            self.registry.move(rows, Phase.BOUND, now_ms)
            pods.reason[rows] = NO_REASON
            self.counters["bound"] += len(rows)
            self._record_latency(rows, now_ms)
            self._publish_bound(rows)
        return out + self.verify_uncertain(rows) + self.check_nodes(rows, now_ms)

    def unreserved(
        self, rows: Rows, nodes: NDArray[np.uint32], reasons: NDArray[np.uint32], now: float, now_ms: int
    ) -> list[Instruction]:
        """These pods have reservations, and their worker could not prepare them to be bound there. They give
        back what they hold, and are in BACKOFF until the release is answered."""
        pods = self.registry.pods
        settled = pods.assigned[rows]
        if settled.any():  # the API server bound them: the ledger has to follow
            out = self.bound(rows[settled], nodes[settled], now, now_ms)
            return out + self.unreserved(rows[~settled], nodes[~settled], reasons[~settled], now, now_ms)
        if not len(rows):
            return []
        pods.node[rows] = nodes
        alive = pods.phase[rows] == Phase.SCHEDULING
        pods.reason[rows[alive]] = reasons[alive]
        self.count_attempt(rows[alive])
        self.registry.move(rows[alive], Phase.BACKOFF, now_ms, GIVEN_BACK)
        self.publish(rows[alive])
        self.counters["unreserved"] += int(alive.sum())
        return [Release(rows, pods.uid[rows], nodes, unreserved=True)]

    def end_placements(self, rows: Rows, reason: str, event: str, now_ms: int) -> None:
        """These bound pods are not where watchers were told, and nobody has moved them. Watchers are told
        that the placement is over. The caller tells them the next one at once, so no queue gets the pods."""
        if len(rows):
            self.registry.pods.reason[rows] = self.registry.reasons.number(reason)
            self.registry.move(rows, Phase.BACKOFF, now_ms, event)
            self.publish(rows)

    def check_nodes(self, rows: Rows, now_ms: int) -> list[Instruction]:
        """Evict or report those of these bound pods that may not stay on their nodes."""
        out, changed = self.taint_eviction.check(rows, now_ms)
        self.publish(changed)
        return out

    def tick(self, now: float, now_ms: int) -> list[Instruction]:
        """Publish nominated pods whose victims are gone, and check the pods that are due."""
        rows = self.nominations.take_due(now)
        if len(rows):
            self.registry.pods.reason[rows] = NO_REASON
            self.registry.history.record(rows, Phase.BOUND, now_ms, VICTIMS_LEFT)
            self._publish_bound(rows)
        return self.check_nodes(self.taint_eviction.due(now_ms), now_ms)

    def lost(self, worker: Worker, rows: Rows, now: float, now_ms: int) -> None:
        """A fenced worker had these pods and bound none of them. They are queued first, or given up after too
        many faults."""
        pods = self.registry.pods
        alive = rows[pods.phase[rows] == Phase.SCHEDULING]
        self.count_attempt(alive)
        if worker.pods_suspect:
            text = f"worker {worker.name} was lost while it had this pod in hand"
            given_up = self.registry.faults.record(alive, worker.name, text, now_ms)
            self.give_up(alive[given_up], now_ms)
            alive = alive[~given_up]
        self.counters["requeued"] += len(alive)
        self.queues.requeue(alive, now, now_ms, event=WORKER_LOST)
        self.queues.enqueue_ready_gangs(rows, now)
        self.publish(alive)

    def give_up(self, rows: Rows, now_ms: int) -> None:
        """These pods are not tried again. Pods with the same last fault get one reason."""
        pods, faults = self.registry.pods, self.registry.faults
        self.counters["failed"] += len(rows)
        while len(rows):
            latest = faults.of(int(rows[0]))[-1]
            mine = np.isin(rows, latest.rows) & (pods.faults[rows] == pods.faults[rows[0]])
            times = f"given up after {pods.faults[rows[0]]} faults, the last: " if not latest.final else ""
            pods.reason[rows[mine]] = self.registry.reasons.number(f"{times}{latest.text}")
            self.registry.move(rows[mine], Phase.FAILED, now_ms, GIVEN_UP)
            self.publish(rows[mine])
            rows = rows[~mine]

    def gate(self, rows: Rows, now_ms: int) -> None:
        """These pods have scheduling gates: they are in no queue until the last gate is removed."""
        pods = self.registry.pods
        for gates, mine in self.registry.gates_of(rows).items():
            pods.reason[mine] = self.registry.reasons.number(
                f"SchedulingGated: waits for gates {', '.join(gates)}", frozenset({SCHEDULING_GATES})
            )
        self.registry.move(rows, Phase.UNSCHEDULABLE, now_ms, GATED)
        self.publish(rows)

    def gates_removed(self, rows: Rows, gates: frozenset[str], now: float, now_ms: int) -> None:
        """Gated pods lose these gates; those without any left are queued."""
        self.registry.remove_gates(rows, gates)
        gated = self.registry.gated(rows)
        self.gate(rows[gated], now_ms)
        free = rows[~gated]
        self.registry.pods.reason[free] = NO_REASON
        self.queues.wake_gangs_of(free, now, now_ms)
        self.queues.requeue(free, now, now_ms, event="GatesRemoved", front=False)
        self.publish(free)

    def publish(self, rows: Rows) -> None:
        """Log the current phase, reason and node of pods."""
        if not len(rows):
            return
        pods, texts = self.registry.pods, self.registry.reasons.texts
        numbers = pods.reason[rows]
        reasons, used = None, ()
        if (numbers != NO_REASON).any():
            distinct, which = np.unique(numbers, return_inverse=True)
            used = tuple(texts[i] for i in distinct.tolist())
            reasons = np.where(numbers == NO_REASON, NO_TEXT, which).astype(np.uint16)
        nodes = np.where(pods.phase[rows] == Phase.BOUND, pods.node[rows], NONE_U32).astype(np.uint32)
        self.log.append(pods.uid[rows], pods.phase[rows], nodes, reasons, used)

    def verify_uncertain(self, rows: Rows) -> list[Instruction]:
        """Look up those of these bound pods whose events may have arrived out of order."""
        pods = self.registry.pods
        rows = rows[pods.uncertain[rows]]
        return [Verify(rows, pods.uid[rows])] if len(rows) else []

    def count_attempt(self, rows: Rows) -> None:
        """These pods were tried without success."""
        attempts = self.registry.pods.attempts
        attempts[rows] = np.minimum(attempts[rows].astype(np.uint32) + 1, MAX_ATTEMPTS_COUNTED)
        self.registry.attempts_changed.append(rows)

    def _publish_bound(self, rows: Rows) -> None:
        pods = self.registry.pods
        waits = self.nominations.nominated(rows)
        if waits.any():
            pods.reason[rows[waits]] = self.registry.reasons.number(VICTIMS_LEAVE)
            rows = rows[~waits]
        if len(rows):
            self.log.append(pods.uid[rows], pods.phase[rows], pods.node[rows])

    def _count_gang(self, gang: Gang, rows: Rows, now: float, now_ms: int) -> NDArray[np.bool_]:
        """Which of the newly reserved rows belong to a gang below its minimum. Otherwise the gang is
        complete."""
        pods, gangs = self.registry.pods, self.registry.gangs
        going = (Phase.DELETED, Phase.BACKOFF)
        mine: NDArray[np.bool_] = (pods.gang[rows] == gang.number) & ~np.isin(pods.phase[rows], going)
        reserved, needed = gangs.bound(gang) + int(mine.sum()), gangs.required(gang)
        if reserved >= needed:
            gangs.complete(gang)
            self.queues.enqueue(gangs.in_phase(gang, Phase.QUEUED), now)  # pods of other batches
            return np.zeros(len(rows), np.bool_)
        self.counters["partial_gangs"] += 1
        part = rows[mine]
        pods.reason[part] = self.registry.reasons.number(
            f"gang {gang.name}: {reserved} of the {needed} pods it needs had room and have given it back"
        )
        self.registry.move(part, Phase.BACKOFF, now_ms, GIVEN_BACK)
        self.publish(part)
        return mine

    def _record_latency(self, rows: Rows, now_ms: int) -> None:
        """Record the time from submission to binding, without pods that had gates or lost a place before."""
        pods = self.registry.pods
        rows = rows[pods.eviction[rows] == NO_REASON]
        owners, counts = np.unique(pods.pod_set[rows], return_counts=True)
        for index, count in zip(owners.tolist(), counts.tolist(), strict=True):
            pod_set = self.registry.directory.sets[index]
            if pod_set.ungated:
                mine = rows[pods.pod_set[rows] == index] - pod_set.first
                had_gates = np.logical_or.reduce(list(pod_set.ungated.values()))[mine].sum()
            else:
                had_gates = 0
            seconds = max(0, now_ms - pod_set.submission.submitted_ms) / 1000
            self.times.scheduled.add_equal(seconds, count - int(had_gates))
