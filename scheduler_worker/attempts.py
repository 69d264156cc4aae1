"""How long a worker's attempts took, by what came of them."""

import numpy as np

from hoss.model.histograms import Histogram
from scheduler_worker.core.codes import Outcome
from scheduler_worker.core.work import OutcomeColumns

# Answers that are attempts: what was given back, or belonged to another epoch, was not tried.
_RESULTS: dict[int, str] = {
    Outcome.BOUND: "scheduled",
    Outcome.UNSCHEDULABLE: "unschedulable",
    Outcome.CONFLICT: "conflict",
    Outcome.INVALID: "error",
}


class AttemptTimes:
    """From a batch's coming until it is answered for a pod: what came before it in the worker's hand, placing, and the commit."""

    def __init__(self) -> None:
        self.by_result = {result: Histogram() for result in _RESULTS.values()}

    def answered(self, outcomes: OutcomeColumns, now: float) -> None:
        """These answers are given now, on the clock of the batch's coming."""
        for code, pods in enumerate(np.bincount(outcomes.codes).tolist()):
            if pods and code in _RESULTS:
                self.by_result[_RESULTS[code]].add_equal(now - outcomes.received_at, pods)
