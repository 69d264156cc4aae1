"""Work stealing: pods that a worker has not started go to one that has nothing to do.

A pod is with one worker at a time all the same: the one that has it is asked to give it back, and it is queued again when
that was answered. Whoever was asked gets nothing new before it has done most of the rest, so nothing goes to and fro.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np

from dispatcher.core.estimates import Estimates
from dispatcher.core.membership import Batch, Membership, Worker
from dispatcher.core.messages import SendRecall
from dispatcher.core.registry import PodRegistry
from dispatcher.core.routing import Routing


@dataclass(frozen=True, slots=True)
class StealRules:
    """A worker with more than `after_seconds` of estimated work not started loses some of it to one that has less than a
    quarter of that in hand. 0: nothing is ever taken back."""

    after_seconds: float = 0.5

    @property
    def after_micros(self) -> float:
        """The same in microseconds."""
        return self.after_seconds * 1e6

    @property
    def idle_micros(self) -> float:
        """Up to so much work is next to none."""
        return self.after_micros / 4


DEFAULT_STEAL_RULES = StealRules()


class Stealing:
    """Finds who should give back how much."""

    def __init__(
        self,
        registry: PodRegistry,
        routing: Routing,
        members: Membership,
        estimates: Estimates,
        rules: StealRules,
    ) -> None:
        self._registry = registry
        self._routing = routing
        self._members = members
        self._estimates = estimates
        self._rules = rules

    def recalls(self) -> list[SendRecall]:
        """What to take back at this moment, from one worker for one other. Whom the queue can serve is not idle here: to be
        called when everything was sent that may be."""
        for worker in self._members:
            worker.yields = worker.yields and worker.work_micros > self._rules.idle_micros
        if not self._rules.after_seconds:
            return []
        idle = [w for w in self._members if w.takes_work and not w.yields and w.work_micros <= self._rules.idle_micros]
        if not idle:
            return []
        laden = [
            w for w in self._members if w.living and not w.recalled and w.waiting_micros > self._rules.after_micros
        ]
        return list(self._pair(sorted(laden, key=lambda w: -w.waiting_micros), idle))

    def _pair(self, laden: list[Worker], idle: list[Worker]) -> Iterator[SendRecall]:
        for loser in laden:
            for taker in idle:
                batches = self._open_to(taker, loser)
                pods = self._fair_part(loser, taker, batches)
                if pods:
                    loser.recalled = loser.yields = True
                    idle.remove(taker)
                    yield SendRecall(loser.link, tuple(batch.serial for batch in batches), pods)
                    break

    def _open_to(self, taker: Worker, loser: Worker) -> list[Batch]:
        """Batches in the loser's hands that the policy would let the taker have."""
        return [
            batch for batch in loser.batches.values() if taker in self._routing.destination(self._lane(batch)).workers
        ]

    def _lane(self, batch: Batch) -> int:
        """As the policy in force has it: pods of a batch were of one lane."""
        pods = self._registry.pods
        unanswered = batch.rows[np.argmax(pods.batch[batch.rows] == batch.serial)]
        return int(self._registry.templates.lane[pods.template[unanswered]])

    def _fair_part(self, loser: Worker, taker: Worker, batches: list[Batch]) -> int:
        """So many pods that both are done with theirs at the same time, if the taker has room for them."""
        there = min(loser.vitals.backlog, sum(batch.unanswered for batch in batches))
        if not there or not taker.credit:
            return 0
        losers, takers = self._estimates.per_pod_of(loser, batches), self._estimates.per_pod_of(taker, batches)
        return min(taker.credit, ceil(there * losers / (losers + takers)))
