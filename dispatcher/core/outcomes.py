"""What becomes of pods when their worker has answered for them: bound, to be tried again, waiting, or given up.

Answers are applied to rows that are unanswered in that very batch and to no others; everything else is counted as
ignored. A pod that was deleted while it was with a worker stays deleted, and gives back what it got.
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.changes import Seen
from dispatcher.core.journeys import RETURNED
from dispatcher.core.membership import Batch, Worker
from dispatcher.core.messages import Confirm, Instruction, OutcomeCode, OutcomesArrived, Warn
from dispatcher.core.podtable import NO_REASON, Phase, Rows
from dispatcher.core.queues import POD_UPDATE, Queues
from dispatcher.core.registry import PodRegistry
from dispatcher.core.settlement import Settlement


class Outcomes:
    """Applies workers' outcomes; returns what the ledger must be told."""

    def __init__(self, registry: PodRegistry, queues: Queues, settlement: Settlement, counters: Counter[str]) -> None:
        self._registry = registry
        self._queues = queues
        self._settlement = settlement
        self._counters = counters

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
                self._settlement.times.answered(told.deciding_seconds, told.committing_seconds, int(mine.sum()))
                if told.leaving_ms is not None:
                    self._settlement.nominations.add(rows[mine], told.leaving_ms[fresh][mine], now)
                out += self._settlement.bound(rows[mine], nodes[mine], now, now_ms)
                kept = rows[mine][self._registry.pods.phase[rows[mine]] != Phase.BACKOFF]
                if len(kept):
                    out.append(Confirm(told.commits, kept, self._registry.pods.uid[kept], told.batch))
            else:
                self._unbound(worker, batch, code, rows[mine], reasons[mine], seen=told.seen, now=now, now_ms=now_ms)
        self._queues.gather(rows, now)
        return out

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
            self._settlement.count_attempt(rows)
            worker.unschedulable += len(rows)
            self._counters["unschedulable"] += len(rows)
            self._queues.park(rows, batch.change, seen, now, now_ms)
            self._settlement.publish(rows)
        elif code == OutcomeCode.CONFLICT:
            self._settlement.count_attempt(rows)
            worker.conflicts += len(rows)
            self._counters["conflicts"] += len(rows)
            self._queues.refuse(rows, now, now_ms)
        elif code == OutcomeCode.INVALID:
            for number in np.unique(pods.reason[rows]).tolist():
                mine, text = rows[pods.reason[rows] == number], self._registry.reasons.texts[number]
                self._registry.faults.note(mine, worker.name, text or "no reason given", now_ms, final=True)
                self._settlement.give_up(mine, now_ms)
        else:  # returned or fenced: not tried, so no attempt; an unknown code of a newer worker likewise
            worker.returned += len(rows)
            self._counters["returned"] += len(rows)
            self._queues.requeue(rows, now, now_ms, event=RETURNED)

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
