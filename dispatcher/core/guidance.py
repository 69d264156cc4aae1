"""Puts a stance in force: routing gives work to so many workers, and every worker is told how to order equally good nodes."""

from collections import Counter

from dispatcher.core.conflicts import Conflicts, Refusals
from dispatcher.core.membership import UNHEARD, Membership, Vitals, Worker
from dispatcher.core.messages import Handlers, Instruction, Note, SendPreference, SteeringWanted
from dispatcher.core.routing import Routing
from dispatcher.core.steering import Steering, SteeringRules, Step, Totals
from hoss.model.overlap import Overlap, Preference


class Guidance:
    """What workers report of conflicts in, preferences out."""

    def __init__(self, rules: SteeringRules, members: Membership, routing: Routing, counters: Counter[str]) -> None:
        self._members = members
        self._routing = routing
        self._counters = counters
        self._begun = False
        self.conflicts = Conflicts()
        self.steering = Steering(rules)
        self.handlers: Handlers = {SteeringWanted: self._wanted}
        routing.at_once = self.steering.stance.workers

    def heard(self, worker: Worker, vitals: Vitals, refusals: Refusals | None) -> None:
        """A heartbeat, before the worker's vitals are those of it."""
        # The first of a link counts since the worker's start, which another dispatcher may have seen.
        if worker.vitals is not UNHEARD:
            self._counters["proposed"] += max(0, vitals.proposed - worker.vitals.proposed)
            self._counters["refused"] += max(0, vitals.conflicts - worker.vitals.conflicts)
        if refusals is not None:
            self.conflicts.report(worker.name, refusals)

    def _wanted(self, event: SteeringWanted, now: float) -> list[Instruction]:
        return [_noted(self.steering.fix(event.overlap, event.workers, now)), *self._tell()]

    def tick(self, now: float) -> list[Instruction]:
        """Take a step where it is time, and tell workers what is another for them than before."""
        if not self._begun:
            self._begun = True
            self.steering.begin(now)
        counters, working = self._counters, [worker for worker in self._members if worker.takes_work]
        loaded = any(worker.outstanding for worker in working)
        totals = Totals(counters["proposed"], counters["refused"], counters["bound"], loaded, len(working))
        step = self.steering.look(totals, now)
        return [*([] if step is None else [_noted(step)]), *self._tell()]

    def _tell(self) -> list[Instruction]:
        overlap, at_once = self.steering.stance
        self._routing.at_once = at_once
        working = sorted((w for w in self._members if w.takes_work), key=lambda worker: worker.name)
        told: list[Instruction] = []
        for position, worker in enumerate(working):
            # Of a rule with workers of its own those at work have numbers in a row as well, mostly.
            shares = min(at_once or len(working), len(working)) if overlap is Overlap.SOFT_PARTITION else 1
            preference = Preference(overlap, position % shares, shares)
            if worker.preference != preference:
                worker.preference = preference
                told.append(SendPreference(worker.link, preference))
        return told


def _noted(step: Step) -> Note:
    overlap, workers = step.stance
    return Note("steered", {"overlap": overlap.value, "workers": workers or "all", "reason": step.reason})
