"""Disruption budgets are lent to one worker at a time.

Two workers that are told at the same moment that a budget allows one more pod to go would both let one go. So the first that is
told of pods which a budget covers has what it allows to itself, for longer than its choice takes to be seen; others are told that
it allows nothing, and look for other pods first. The worker itself counts what it chose until answers come from after it.
"""

from collections.abc import Sequence

from hoss.model.cluster_objects import PodDisruptionBudget

# An eviction is seen within milliseconds; a worker that is in the middle of a long step may take its answer a tenth of a second later.
LOAN_SECONDS = 2.0


class BudgetLoans:
    """By budget, who has it and until when. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._lent: dict[tuple[str, str], tuple[str, float]] = {}

    def lend(self, budgets: Sequence[PodDisruptionBudget], worker: str, now: float) -> list[bool]:
        """Which of these the worker has from now on: those that no other has."""
        self._lent = {key: loan for key, loan in self._lent.items() if loan[1] > now}
        granted = []
        for budget in budgets:
            key = budget.namespace, budget.name
            holder, _ = self._lent.get(key, (worker, now))
            granted.append(holder == worker)
            if holder == worker:
                self._lent[key] = worker, now + LOAN_SECONDS
        return granted
