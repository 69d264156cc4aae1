"""Applies the outcomes that workers report for their pods: bound, unreserved, unschedulable, in conflict,
invalid or returned. An outcome counts only for rows that are unanswered in that very batch; others are
counted as ignored. A pod that was deleted meanwhile stays deleted, and releases its reservation."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.bound.settlement import Settlement
from dispatcher.core.changes import ViewPosition
from dispatcher.core.messages import (
    Confirm,
    Instruction,
    OutcomeCode,
    OutcomesArrived,
    Release,
    Warn,
)
from dispatcher.core.pods.history import RETURNED
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.table import NO_REASON, Phase, Rows
from dispatcher.core.queue.queues import POD_UPDATE, Queues
from dispatcher.core.workers.membership import Batch, Worker
from dispatcher.core.workers.work_timeline import WorkTimeline


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Applies outcomes; returns the instructions for the ledger."""

    registry: PodRegistry
    queues: Queues
    settlement: Settlement
    timeline: WorkTimeline
    counters: Counter[str]

    def answer(self, worker: Worker, event: OutcomesArrived, now: float, now_ms: int) -> list[Instruction]:
        """Apply a worker's outcomes for one of its batches."""
        batch = worker.batches.get(event.batch)
        fresh = self._fresh(batch, event.positions)
        ignored = len(event.positions) - int(fresh.sum())
        out: list[Instruction] = []
        if ignored:
            self.counters["ignored_outcomes"] += ignored
            known = {"batch": event.batch, "known_batch": batch is not None}
            out.append(Warn("outcomes_ignored", {"worker": worker.name, "pods": ignored, **known}))
        if batch is None or ignored == len(event.positions):
            return out
        if event.refused is not None:
            self._count_refused(batch, event.refused)
        rows = batch.rows[event.positions[fresh]]
        self.registry.pods.batch[rows] = 0
        worker.answered(batch, len(rows))
        reasons = self._reasons(event, fresh)
        codes, nodes = event.codes[fresh], event.nodes[fresh]
        bound = int((codes == OutcomeCode.BOUND).sum())
        self.timeline.add(
            worker,
            batch,
            now_ms,
            bound=bound,
            others=len(rows) - bound,
            deciding_seconds=event.deciding_seconds,
            committing_seconds=event.committing_seconds,
        )
        confirm: Confirm | None = None
        for code in np.unique(codes).tolist():
            mask = codes == code
            part = rows[mask]
            if code == OutcomeCode.UNRESERVED:
                out += self.settlement.unreserved(part, nodes[mask], reasons[mask], now, now_ms)
                continue
            if code != OutcomeCode.BOUND:
                self._unbound(
                    worker, batch, code, part, reasons[mask], view=event.view, now=now, now_ms=now_ms
                )
                continue
            worker.bound += len(part)
            worker.throughput.count(len(part), now)
            self.settlement.times.answered(event.deciding_seconds, event.committing_seconds, len(part))
            if event.leaving_ms is not None:
                self.settlement.nominations.add(part, event.leaving_ms[fresh][mask], now)
            out += self.settlement.bound(part, nodes[mask], now, now_ms)
            kept = part[self.registry.pods.phase[part] != Phase.BACKOFF]
            if len(kept):
                confirm = Confirm(event.commits, kept, self.registry.pods.uid[kept], event.batch)
        out = _in_order(out, confirm)
        self.queues.enqueue_ready_gangs(rows, now)
        return out

    def _unbound(
        self,
        worker: Worker,
        batch: Batch,
        code: int,
        rows: Rows,
        reasons: NDArray[np.uint32],
        *,
        view: ViewPosition,
        now: float,
        now_ms: int,
    ) -> None:
        pods = self.registry.pods
        alive = pods.phase[rows] == Phase.SCHEDULING
        outdated = alive & pods.outdated[rows]  # the outcome is of the pod as it was
        if outdated.any():
            self.queues.requeue(rows[outdated], now, now_ms, event=POD_UPDATE)
        alive &= ~outdated
        rows = rows[alive]
        pods.reason[rows] = reasons[alive]
        if code == OutcomeCode.UNSCHEDULABLE:
            self.settlement.count_attempt(rows)
            worker.unschedulable += len(rows)
            self.counters["unschedulable"] += len(rows)
            self.queues.add_unschedulable(rows, batch.change, view, now, now_ms)
            self.settlement.publish(rows)
        elif code == OutcomeCode.CONFLICT:
            self.settlement.count_attempt(rows)
            worker.conflicts += len(rows)
            self.counters["conflicts"] += len(rows)
            self.queues.requeue_refused(rows, now, now_ms)
        elif code == OutcomeCode.INVALID:
            for number in np.unique(pods.reason[rows]).tolist():
                invalid, text = rows[pods.reason[rows] == number], self.registry.reasons.texts[number]
                text = text or "no reason given"
                self.registry.faults.record(invalid, worker.name, text, now_ms, final=True)
                self.settlement.give_up(invalid, now_ms)
        else:  # returned or fenced: not tried, so no attempt; unknown codes of newer workers likewise
            worker.returned += len(rows)
            self.counters["returned"] += len(rows)
            self.queues.requeue(rows, now, now_ms, event=RETURNED)

    def _count_refused(self, batch: Batch, positions: NDArray[np.uint32]) -> None:
        """Count the jobs, and pods of lists, that the ledger refused for the first time."""
        rows = batch.rows[positions[positions < len(batch.rows)]]
        rows = rows[self.registry.pods.batch[rows] == batch.serial]
        owners = self.registry.pods.pod_set[rows]
        for index in np.unique(owners).tolist():
            pod_set = self.registry.directory.sets[index]
            of_list = pod_set.names is not None
            if pod_set.refused is None:
                pod_set.refused = np.zeros(pod_set.count if of_list else 1, np.bool_)
            before = np.count_nonzero(pod_set.refused)
            pod_set.refused[rows[owners == index] - pod_set.first if of_list else 0] = True
            self.counters["jobs_refused"] += int(np.count_nonzero(pod_set.refused) - before)

    def _fresh(self, batch: Batch | None, positions: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which positions name an unanswered pod of the batch, each once."""
        fresh = np.zeros(len(positions), np.bool_)
        if batch is None:
            return fresh
        inside = np.flatnonzero(positions < len(batch.rows))
        open_rows = inside[self.registry.pods.batch[batch.rows[positions[inside]]] == batch.serial]
        _, first = np.unique(positions[open_rows], return_index=True)
        fresh[open_rows[first]] = True
        return fresh

    def _reasons(self, event: OutcomesArrived, fresh: NDArray[np.bool_]) -> NDArray[np.uint32]:
        """Reason numbers of the fresh rows. A position beyond the texts counts as none."""
        if event.reasons is None:
            return np.zeros(int(fresh.sum()), np.uint32)
        texts, plugins, failed = event.texts, event.refused_by, event.failed
        if len(plugins) != len(texts):
            plugins = (frozenset(),) * len(texts)
        if len(failed) != len(texts):
            failed = (False,) * len(texts)
        number = self.registry.reasons.number
        numbers = np.array([*map(number, texts, plugins, failed), NO_REASON], np.uint32)
        return numbers[np.minimum(event.reasons[fresh], len(event.texts))]


def _in_order(changes: list[Instruction], confirm: Confirm | None) -> list[Instruction]:
    """These changes, and the confirmation after the release of what was not ready in the same commits."""
    if confirm is None:
        return changes
    for place, change in enumerate(changes):
        if isinstance(change, Release) and change.unreserved:
            return [*changes[:place], replace(change, confirm=confirm), *changes[place + 1 :]]
    return [*changes, confirm]
