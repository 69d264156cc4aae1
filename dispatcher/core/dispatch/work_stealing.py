"""Work stealing: pods that a worker has not started go to an idle worker.

A pod is still with only one worker at a time: its worker is told to return it, and the pod is queued again
when it was returned. A worker with recalled pods gets no new ones before it has done most of the rest, so
pods do not go back and forth."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np

from dispatcher.core.dispatch.estimates import Estimates
from dispatcher.core.dispatch.routing import Routing
from dispatcher.core.messages import SendRecall
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.workers.membership import Batch, Membership, Worker


@dataclass(frozen=True, slots=True)
class StealRules:
    """A worker with more than `after_seconds` of estimated work not started loses some of it to a worker that
    has less than a quarter of that outstanding. 0: no work is stolen."""

    after_seconds: float = 0.5

    @property
    def after_micros(self) -> float:
        return self.after_seconds * 1e6

    @property
    def idle_micros(self) -> float:
        """A worker with up to this much work counts as idle."""
        return self.after_micros / 4


DEFAULT_STEAL_RULES = StealRules()


@dataclass(frozen=True, slots=True, eq=False)
class Stealing:
    """Finds which worker should return how many pods."""

    registry: PodRegistry
    routing: Routing
    members: Membership
    estimates: Estimates
    rules: StealRules

    def recalls(self) -> list[SendRecall]:
        """The recalls of this moment, each from one worker for one other. To be called after the pump: a
        worker that the queue can serve is not idle."""
        idle_micros, after_micros = self.rules.idle_micros, self.rules.after_micros
        for worker in self.members:
            worker.served_last = worker.served_last and worker.work_micros > idle_micros
        if not self.rules.after_seconds:
            return []
        available = [w for w in self.members if w.takes_work and not (w.served_last or w.heartbeat.failing)]
        idle = [w for w in available if w.work_micros <= idle_micros]
        if not idle:
            return []
        not_recalled = [w for w in self.members if w.living and not w.recalled]
        overloaded = [w for w in not_recalled if w.waiting_micros > after_micros]
        return list(self._pair(sorted(overloaded, key=lambda w: -w.waiting_micros), idle))

    def _pair(self, overloaded: list[Worker], idle: list[Worker]) -> Iterator[SendRecall]:
        for source in overloaded:
            for thief in idle:
                batches = self._open_to(thief, source)
                pods = self._fair_part(source, thief, batches)
                if pods:
                    source.recalled = source.served_last = True
                    idle.remove(thief)
                    yield SendRecall(source.link, tuple(batch.serial for batch in batches), pods)
                    break

    def _open_to(self, thief: Worker, source: Worker) -> list[Batch]:
        """Batches of `source` that the policy lets the thief have."""
        routing = self.routing
        return [
            batch
            for batch in source.batches.values()
            if thief in routing.working(routing.destination(self._sub_queue(batch)))
        ]

    def _sub_queue(self, batch: Batch) -> int:
        """By the policy in force; pods of a batch are of one sub-queue."""
        pods = self.registry.pods
        unanswered = batch.rows[np.argmax(pods.batch[batch.rows] == batch.serial)]
        return int(self.registry.templates.sub_queue[pods.template[unanswered]])

    def _fair_part(self, source: Worker, thief: Worker, batches: list[Batch]) -> int:
        """How many pods to move so that both workers finish at the same time, limited by the thief's
        credit."""
        there = min(source.heartbeat.backlog, sum(batch.unanswered for batch in batches))
        if not there or not thief.credit:
            return 0
        source_micros = self.estimates.per_pod_of(source, batches)
        thief_micros = self.estimates.per_pod_of(thief, batches)
        return min(thief.credit, ceil(there * source_micros / (source_micros + thief_micros)))
