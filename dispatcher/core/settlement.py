"""What becomes of pods when a worker or the ledger has spoken: bound, to be tried again, waiting, or failed.

Answers are applied to rows that are unanswered in that very batch and to no others; everything else is counted as
ignored. A pod that was deleted while it was with a worker stays deleted, and gives back what it got.
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.changes import Changes, Seen
from dispatcher.core.eventlog import NO_TEXT, EventLog
from dispatcher.core.gangs import Gang
from dispatcher.core.membership import Batch, Worker
from dispatcher.core.messages import (
    Confirm,
    Evicted,
    Instruction,
    OutcomeCode,
    OutcomesArrived,
    Release,
    Remove,
    Reserve,
    Verify,
    Warn,
)
from dispatcher.core.nominations import Nominations
from dispatcher.core.phases import PhaseTimes
from dispatcher.core.podtable import NO_REASON, Phase, Rows
from dispatcher.core.queues import POD_UPDATE, Queues
from dispatcher.core.registry import PodRegistry
from dispatcher.core.residence import Residence
from hoss.wire.columns import NONE_U32

MAX_ATTEMPTS_COUNTED = 0xFFFF
CHANGED = "the pod has changed since it was placed; what was reserved for it is given back"
VICTIMS_LEAVE = "its claim on the node stands; pods that had to go for it are still leaving"
SCHEDULING_GATES = "SchedulingGates"  # kube-scheduler's plugin that keeps gated pods out of the queues


class Settlement:
    """Applies answers to the registry, the queues and the log; returns what the ledger must be told."""

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

    def answer(self, worker: Worker, told: OutcomesArrived, now: float, now_ms: int) -> list[Instruction]:
        """A worker's outcomes for one of its batches."""
        batch = worker.batches.get(told.batch)
        fresh = self._fresh(batch, told.positions)
        ignored = len(told.positions) - int(fresh.sum())
        out: list[Instruction] = []
        if ignored:
            self._counters["ignored_outcomes"] += ignored
            fields = {"worker": worker.name, "batch": told.batch, "pods": ignored, "known_batch": batch is not None}
            out.append(Warn("outcomes_ignored", fields))
        if batch is None or ignored == len(told.positions):
            return out
        if told.refused is not None:
            self._note_refused(batch, told.refused)
        rows = batch.rows[told.positions[fresh]]
        self._registry.pods.batch[rows] = 0
        worker.answered(batch, len(rows))
        reasons = self._reasons(told, fresh)
        codes, nodes = told.codes[fresh], told.nodes[fresh]
        for code in np.unique(codes).tolist():
            mine = codes == code
            if code == OutcomeCode.BOUND:
                worker.bound += int(mine.sum())
                worker.throughput.count(int(mine.sum()), now)
                self.times.answered(told.deciding_seconds, told.committing_seconds, int(mine.sum()))
                if told.leaving_ms is not None:
                    self.nominations.add(rows[mine], told.leaving_ms[fresh][mine], now)
                out += self.bound(rows[mine], nodes[mine], now, now_ms)
                kept = rows[mine][self._registry.pods.phase[rows[mine]] != Phase.BACKOFF]
                if len(kept):
                    out.append(Confirm(told.commits, kept, self._registry.pods.uid[kept], told.batch))
            else:
                self._unbound(worker, batch, code, rows[mine], reasons[mine], seen=told.seen, now=now, now_ms=now_ms)
        self._queues.gather(rows, now)
        return out

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
            pods.move(rows[outdated], Phase.BACKOFF, now_ms)
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
            pods.move(rows, Phase.BOUND, now_ms)
            pods.reason[rows] = NO_REASON
            self._counters["bound"] += len(rows)
            self._note_scheduled(rows, now_ms)
            self._tell_bound(rows)
            if self._registry.minds_pods:
                self._queues.cluster_changed(Changes(came=self._registry.pod_specs(rows)), now, now_ms)
        return out + self._verify_doubted(rows) + self.look(rows, now_ms)

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
            self._tell_bound(rows)
        return self.look(self._residence.due(now_ms), now_ms)

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
        pods.move(part, Phase.BACKOFF, now_ms)
        pods.reason[part] = self._registry.reasons.number(
            f"gang {gang.name}: {reserved} of the {needed} pods it needs had room and have given it back"
        )
        self.publish(part)
        return mine

    def lost(self, worker: Worker, rows: Rows, now: float, now_ms: int) -> None:
        """A fenced worker had these pods and bound none of them: others get them first, unless it was once too often."""
        pods = self._registry.pods
        alive = rows[pods.phase[rows] == Phase.SCHEDULING]
        self._count_attempt(alive)
        if worker.blames:
            text = f"worker {worker.name} was lost while it had this pod in hand"
            given_up = self._registry.faults.note(alive, worker.name, text, now_ms)
            self.give_up(alive[given_up], now_ms)
            alive = alive[~given_up]
        self._counters["requeued"] += len(alive)
        self._queues.requeue(alive, now, now_ms, event="WorkerLost")
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
            pods.move(rows[mine], Phase.FAILED, now_ms)
            self.publish(rows[mine])
            rows = rows[~mine]

    def evicted(self, told: Evicted, now: float, now_ms: int) -> list[Instruction]:
        """Pods that were bound are queued again, as new as if their controller had made them anew."""
        pods = self._registry.pods
        self._residence.left(map(bytes, told.uids))
        rows = self._registry.directory.rows_of_uids(told.uids)
        known = np.flatnonzero(rows != NONE_U32)
        # Its worker has not said yet that it is bound there. When it does, that is old news.
        with_worker = known[pods.phase[rows[known]] == Phase.SCHEDULING]
        pods.doubted[rows[with_worker]] = True
        there = known[(pods.phase[rows[known]] == Phase.BOUND) & (pods.node[rows[known]] == told.nodes[known])]
        out = self._verify_doubted(rows[there])
        certain = ~pods.doubted[rows[there]]
        for i in (*with_worker.tolist(), *there.tolist()):
            pods.eviction[rows[i]] = self._registry.reasons.number(told.reasons[i])
        pods.eviction_open[rows[with_worker]] = pods.eviction_open[rows[there[~certain]]] = True
        there = there[certain]
        assigned = pods.assigned[rows[there]]
        if assigned.any():
            out += self._remove(told, rows, there[assigned])
        self._queue_evicted(rows[there[~assigned]], now, now_ms)
        return out

    def _queue_evicted(self, rows: Rows, now: float, now_ms: int) -> None:
        """These bound pods went for others, for the reason that stands under `eviction`."""
        if not len(rows):
            return
        pods = self._registry.pods
        pods.node[rows] = NONE_U32
        pods.attempts[rows] = 0
        self._registry.tried.append(rows)
        self._registry.faults.forgive(rows)
        pods.reason[rows] = pods.eviction[rows]
        self._counters["evicted"] += len(rows)
        self._queues.cluster_changed(Changes(left=self._registry.pod_specs(rows)), now, now_ms)
        self._queues.requeue(rows, now, now_ms, event="Evicted", front=False)
        self.publish(rows)

    def _remove(self, told: Evicted, rows: Rows, which: NDArray[np.intp]) -> list[Instruction]:
        """Those of the evicted pods that the API server has on nodes: they are there until it has them no more."""
        pods = self._registry.pods
        leaving = rows[which]
        preemptors = tuple(told.preemptors[i] for i in which.tolist())
        for preemptor, row in zip(preemptors, leaving.tolist(), strict=True):
            self.nominations.heard(preemptor, pods.uid[row].tobytes())
        pods.reason[leaving] = pods.eviction[leaving]
        self._counters["evicted"] += len(leaving)
        self.publish(leaving)
        return [Remove(leaving, pods.uid[leaving], preemptors)]

    def _verify_doubted(self, rows: Rows) -> list[Instruction]:
        """Of these bound pods those of which news may be out of order are looked up."""
        pods = self._registry.pods
        rows = rows[pods.doubted[rows]]
        return [Verify(rows, pods.uid[rows])] if len(rows) else []

    def unbound_by_ledger(self, rows: Rows, now: float, now_ms: int) -> list[Instruction]:
        """Pods held as bound have no reservation (any more): they are queued again. Those that the API server has on their nodes
        are there all the same, and get one."""
        pods = self._registry.pods
        assigned = rows[pods.assigned[rows] & (pods.eviction[rows] == NO_REASON)]  # others are on their way out
        rows = rows[~pods.assigned[rows]]
        nodes = pods.node[rows]
        pods.node[rows] = NONE_U32
        there = pods.phase[rows] == Phase.BOUND
        rows, nodes = rows[there], nodes[there]
        evicted = pods.eviction_open[rows]
        self._queue_evicted(rows[evicted], now, now_ms)
        rows, nodes = rows[~evicted], nodes[~evicted]
        self._counters["reservations_lost"] += len(rows)
        for node in np.unique(nodes).tolist():
            if why := self._residence.why_gone(node):
                mine = rows[nodes == node]
                pods.reason[mine] = pods.eviction[mine] = self._registry.reasons.number(why)
        pods.doubted[rows] = True  # if it was evicted, the feed will tell so when it may be bound again
        if len(rows):
            self._queues.cluster_changed(Changes(left=self._registry.pod_specs(rows)), now, now_ms)
        self._queues.requeue(rows, now, now_ms, event="ReservationLost")
        self.publish(rows)
        return [Reserve(assigned, pods.uid[assigned])] if len(assigned) else []

    def gate(self, rows: Rows, now_ms: int) -> None:
        """These pods have scheduling gates: they are in no queue until the last is removed."""
        pods = self._registry.pods
        for gates, mine in self._registry.gates_of(rows).items():
            pods.reason[mine] = self._registry.reasons.number(
                f"SchedulingGated: waits for gates {', '.join(gates)}", frozenset({SCHEDULING_GATES})
            )
        pods.move(rows, Phase.UNSCHEDULABLE, now_ms)
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

    def _fresh(self, batch: Batch | None, positions: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which positions name a pod of the batch that is unanswered, each once."""
        fresh = np.zeros(len(positions), np.bool_)
        if batch is None:
            return fresh
        inside = np.flatnonzero(positions < len(batch.rows))
        open_rows = inside[self._registry.pods.batch[batch.rows[positions[inside]]] == batch.serial]
        _, first = np.unique(positions[open_rows], return_index=True)
        fresh[open_rows[first]] = True
        return fresh

    def _reasons(self, told: OutcomesArrived, fresh: NDArray[np.bool_]) -> NDArray[np.uint32]:
        """The reason numbers of the fresh rows. Positions beyond the texts count as none."""
        if told.reasons is None:
            return np.zeros(int(fresh.sum()), np.uint32)
        refused_by = told.refused_by if len(told.refused_by) == len(told.texts) else (frozenset(),) * len(told.texts)
        numbers = np.array([*map(self._registry.reasons.number, told.texts, refused_by), NO_REASON], np.uint32)
        return numbers[np.minimum(told.reasons[fresh], len(told.texts))]

    def _unbound(
        self,
        worker: Worker,
        batch: Batch,
        code: int,
        rows: Rows,
        reasons: NDArray[np.uint32],
        *,
        seen: Seen,
        now: float,
        now_ms: int,
    ) -> None:
        pods = self._registry.pods
        alive = pods.phase[rows] == Phase.SCHEDULING
        outdated = alive & pods.outdated[rows]  # whatever was said of them is said of what they were
        if outdated.any():
            self._queues.requeue(rows[outdated], now, now_ms, event=POD_UPDATE)
        alive &= ~outdated
        rows = rows[alive]
        pods.reason[rows] = reasons[alive]
        if code == OutcomeCode.UNSCHEDULABLE:
            self._count_attempt(rows)
            worker.unschedulable += len(rows)
            self._counters["unschedulable"] += len(rows)
            self._queues.park(rows, batch.change, seen, now, now_ms)
            self.publish(rows)
        elif code == OutcomeCode.CONFLICT:
            self._count_attempt(rows)
            worker.conflicts += len(rows)
            self._counters["conflicts"] += len(rows)
            self._queues.refuse(rows, now, now_ms)
        elif code == OutcomeCode.INVALID:
            for number in np.unique(pods.reason[rows]).tolist():
                mine, text = rows[pods.reason[rows] == number], self._registry.reasons.texts[number]
                self._registry.faults.note(mine, worker.name, text or "no reason given", now_ms, final=True)
                self.give_up(mine, now_ms)
        else:  # returned or fenced: not tried, so no attempt; an unknown code of a newer worker likewise
            worker.returned += len(rows)
            self._counters["returned"] += len(rows)
            self._queues.requeue(rows, now, now_ms, event="Returned")

    def _note_refused(self, batch: Batch, positions: NDArray[np.uint32]) -> None:
        """Count the jobs, and pods of lists, that the ledger refused for the first time."""
        rows = batch.rows[positions[positions < len(batch.rows)]]
        rows = rows[self._registry.pods.batch[rows] == batch.serial]
        owners = self._registry.pods.pod_set[rows]
        for index in np.unique(owners).tolist():
            pod_set = self._registry.directory.sets[index]
            of_list = pod_set.names is not None
            if pod_set.refused is None:
                pod_set.refused = np.zeros(pod_set.count if of_list else 1, np.bool_)
            before = np.count_nonzero(pod_set.refused)
            pod_set.refused[rows[owners == index] - pod_set.first if of_list else 0] = True
            self._counters["jobs_refused"] += int(np.count_nonzero(pod_set.refused) - before)

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

    def _count_attempt(self, rows: Rows) -> None:
        attempts = self._registry.pods.attempts
        attempts[rows] = np.minimum(attempts[rows].astype(np.uint32) + 1, MAX_ATTEMPTS_COUNTED)
        self._registry.tried.append(rows)
