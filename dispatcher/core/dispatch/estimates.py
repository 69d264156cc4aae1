"""Estimates how long pods take a worker, from what workers measured per class. A worker's outstanding work is
kept as one sum, to which batches are added when sent and subtracted as they are answered. The sum is computed
anew when the worker reports other costs."""

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.workers.membership import Batch, Worker
from dispatcher.core.workers.reports import ClassCosts, CostReport, Micros

# Cost of a pod without any measurement: that of a simple class.
DEFAULT_MICROS = 10.0

# Weight of one worker's latest figure in the estimate for all workers.
_SMOOTHING = 0.3


class Estimates:
    """Prices pods and batches, in microseconds."""

    def __init__(self) -> None:
        self._anywhere = ClassCosts()

    def learn(self, worker: Worker, report: CostReport | None) -> None:
        """Apply a heartbeat's cost report, and price the worker's outstanding batches anew."""
        if report is not None:
            worker.costs.learn(report)
            self._anywhere.learn(report, weight=_SMOOTHING)
        batches = list(worker.batches.values())
        if not batches:
            return
        # All at once: there may be as many batches as pods in a window, and heartbeats arrive twice a second.
        classes, counts = _runs_of(batches)
        starts = np.cumsum([0, *(len(batch.classes) for batch in batches[:-1])])
        priced = np.add.reduceat(self.per_pod(worker, classes) * counts, starts)
        for batch, micros in zip(batches, priced.tolist(), strict=True):
            batch.micros = micros + batch.new_classes * worker.heartbeat.first_micros
        worker.resum_work()

    def __len__(self) -> int:
        return len(self._anywhere.classes)

    def forget(self, classes: list[int]) -> None:
        """No pod has these classes any more."""
        self._anywhere.forget(classes)

    def per_pod(self, worker: Worker, classes: NDArray[np.uint32]) -> Micros:
        """Cost of a pod of each class: the worker's own measurement, else the estimate for all workers, else
        this worker's average."""
        micros = worker.costs.of(classes)
        unknown = np.isnan(micros)
        if unknown.any():
            micros = np.where(unknown, self._anywhere.of(classes), micros)
            unknown = np.isnan(micros)
        if unknown.any():
            micros[unknown] = worker.heartbeat.seen_micros or DEFAULT_MICROS
        return micros

    def next_pod(self, worker: Worker, class_id: int) -> float:
        """Cost of a pod of a class that may be new to the worker."""
        classes = np.array([class_id], np.uint32)
        own = float(worker.costs.of(classes)[0])
        return (
            max(float(self.per_pod(worker, classes)[0]), worker.heartbeat.micros_per_pod)
            if np.isnan(own)
            else own
        )

    def known_to_take(self, worker: Worker, class_id: int) -> float:
        """The worker's own measurement for a pod of the class; infinite without one."""
        own = float(worker.costs.of(np.array([class_id], np.uint32))[0])
        return np.inf if np.isnan(own) else own

    def price(
        self, worker: Worker, classes: NDArray[np.uint32], counts: NDArray[np.uint32], new_classes: int
    ) -> float:
        """Cost of runs of so many pods of each class, of which `new_classes` are new to the worker."""
        return float(self.per_pod(worker, classes) @ counts) + new_classes * worker.heartbeat.first_micros

    def per_pod_of(self, worker: Worker, batches: list[Batch]) -> float:
        """Average cost of a pod of these batches on this worker."""
        classes, counts = _runs_of(batches)
        first = sum(batch.new_classes for batch in batches) * worker.heartbeat.first_micros
        return (float(self.per_pod(worker, classes) @ counts) + first) / float(counts.sum())


def _runs_of(batches: list[Batch]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    return np.concatenate([b.classes for b in batches]), np.concatenate([b.counts for b in batches])
