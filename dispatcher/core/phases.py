"""How long pods take in each phase of their way."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hoss.model.histograms import Histogram


@dataclass(slots=True, eq=False)
class PhaseTimes:
    """`queued`: in the queue before each dispatch, by a clock of milliseconds. `deciding` and `committing`: of bound pods, as their
    workers measured them, a batch at a time. `scheduled`: from the submission until the pod was bound, which is no phase."""

    queued: Histogram = field(default_factory=Histogram)
    deciding: Histogram = field(default_factory=Histogram)
    committing: Histogram = field(default_factory=Histogram)
    scheduled: Histogram = field(default_factory=Histogram)

    def answered(self, deciding_seconds: float, committing_seconds: float, pods: int) -> None:
        """So many pods are bound; 0 and 0: their worker does not tell."""
        if deciding_seconds or committing_seconds:
            self.deciding.add_equal(deciding_seconds, pods)
            self.committing.add_equal(committing_seconds, pods)

    def by_phase(self) -> Iterator[tuple[str, Histogram]]:
        """With their names."""
        yield "queued", self.queued
        yield "deciding", self.deciding
        yield "committing", self.committing
