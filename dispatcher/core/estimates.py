"""How long pods will take a worker, estimated from what workers measured, class by class.

What is in a worker's hands is kept as one sum, which batches join when they are sent and leave as they are answered; it
is summed anew when the worker has told of other costs.
"""

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.costs import ClassCosts, CostReport, Micros
from dispatcher.core.membership import Batch, Worker

# Of a class and a worker that nobody has measured: what a pod of a simple class takes.
DEFAULT_MICROS = 10.0

# Weight of one worker's latest word in what a class takes everywhere.
_SMOOTHING = 0.3


class Estimates:
    """Prices pods and batches, in microseconds."""

    def __init__(self) -> None:
        self._anywhere = ClassCosts()

    def learn(self, worker: Worker, report: CostReport | None) -> None:
        """A worker has been heard, and told what it measured since; what it has in hand is priced by that."""
        if report is not None:
            worker.costs.learn(report)
            self._anywhere.learn(report, weight=_SMOOTHING)
        batches = list(worker.batches.values())
        if not batches:
            return
        # All at once: there may be as many batches as pods in a window, and heartbeats come twice a second.
        classes, counts = _runs_of(batches)
        starts = np.cumsum([0, *(len(batch.classes) for batch in batches[:-1])])
        priced = np.add.reduceat(self.per_pod(worker, classes) * counts, starts)
        for batch, micros in zip(batches, priced.tolist(), strict=True):
            batch.micros = micros + batch.new_classes * worker.vitals.first_micros
        worker.resum_work()

    def per_pod(self, worker: Worker, classes: NDArray[np.uint32]) -> Micros:
        """A pod of each class: by the worker's own measure, else by what it takes others, else as this worker's pods take
        on the whole."""
        micros = worker.costs.of(classes)
        unknown = np.isnan(micros)
        if unknown.any():
            micros = np.where(unknown, self._anywhere.of(classes), micros)
            unknown = np.isnan(micros)
        if unknown.any():
            micros[unknown] = worker.vitals.seen_micros or DEFAULT_MICROS
        return micros

    def next_pod(self, worker: Worker, class_id: int) -> float:
        """A pod of a class that the worker may never have met."""
        classes = np.array([class_id], np.uint32)
        own = float(worker.costs.of(classes)[0])
        return max(float(self.per_pod(worker, classes)[0]), worker.vitals.micros_per_pod) if np.isnan(own) else own

    def known_to_take(self, worker: Worker, class_id: int) -> float:
        """What a pod of the class takes the worker by its own measure; infinite where it has none."""
        own = float(worker.costs.of(np.array([class_id], np.uint32))[0])
        return np.inf if np.isnan(own) else own

    def price(self, worker: Worker, classes: NDArray[np.uint32], counts: NDArray[np.uint32], new_classes: int) -> float:
        """Runs of so many pods of each class, of which `new_classes` classes are new to the worker."""
        return float(self.per_pod(worker, classes) @ counts) + new_classes * worker.vitals.first_micros

    def per_pod_of(self, worker: Worker, batches: list[Batch]) -> float:
        """A pod of these batches on the whole, if this worker had them."""
        classes, counts = _runs_of(batches)
        first = sum(batch.new_classes for batch in batches) * worker.vitals.first_micros
        return (float(self.per_pod(worker, classes) @ counts) + first) / float(counts.sum())


def _runs_of(batches: list[Batch]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    return np.concatenate([b.classes for b in batches]), np.concatenate([b.counts for b in batches])
