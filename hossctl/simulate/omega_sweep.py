"""Omega's experiment over many decision times, and its JSON document.

The document (camel case, seconds unless named otherwise):

    nodes, fill, horizonSeconds, tTaskSeconds, seed
    points[]               one run each
      architecture           monolithic-single-path, monolithic-multi-path or shared-state
      conflicts              resource-fit or sequence-number; alike for the monolithic ones, which have none
      transactions           incremental or all-or-nothing
      serviceTJobSeconds     what a decision on a service job takes besides its tasks
      utilisation            of cpu, at the end
      overcommittedNodes     at the end; 0 unless something is wrong
      kinds.batch, kinds.service
        busyness               share of the time in which the scheduler of these jobs was deciding, on whatever jobs
        waitSeconds            from submission to the first try, mean of the jobs that had one
        conflictFraction       transactions with a conflict, per transaction without
        taskConflictShare      refused claims of single tasks, of all
        triesPerJob            transactions per job of which all tasks are placed
        submitted, begun, scheduled   jobs
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hossctl.console import Document
from hossctl.simulate.ledger import Conflicts, Transactions
from hossctl.simulate.omega import simulate
from hossctl.simulate.omega_setting import KINDS, Architecture, Cell, Figures, Result, Setting

T_JOBS = (0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
QUICK_T_JOBS = (0.01, 0.1, 1.0, 5.0, 10.0, 20.0, 100.0)
DAY_SECONDS = 86_400.0
QUICK_SECONDS = 3_600.0

# Architecture, conflicts, transactions. One scheduler alone meets no conflict, however it is looked for.
VARIANTS = (
    (Architecture.SINGLE_PATH, Conflicts.RESOURCE_FIT, Transactions.INCREMENTAL),
    (Architecture.MULTI_PATH, Conflicts.RESOURCE_FIT, Transactions.INCREMENTAL),
    *((Architecture.SHARED_STATE, conflicts, transactions) for conflicts in Conflicts for transactions in Transactions),
)


@dataclass(frozen=True, slots=True)
class Sweep:
    """All variants at each of these decision times of service jobs, seconds."""

    t_jobs: Sequence[float]
    horizon_seconds: float
    cell: Cell
    seed: int

    def settings(self) -> list[Setting]:
        """One for each run."""
        return [
            Setting(architecture, t_job, conflicts, transactions, self.horizon_seconds, self.cell, seed=self.seed)
            for architecture, conflicts, transactions in VARIANTS
            for t_job in self.t_jobs
        ]

    def run(self) -> Iterator[Result]:
        """The results, each as it is ready."""
        return map(simulate, self.settings())

    def expected_seconds(self, clock: Callable[[], float]) -> float:
        """What the sweep is likely to take by this clock: from short runs of the kind that takes longest."""

        def taken(horizon_seconds: float) -> float:
            started = clock()
            simulate(Setting(*_LONGEST, horizon_seconds=horizon_seconds, cell=self.cell, seed=self.seed))
            return clock() - started

        beginning = taken(1.0)
        return (beginning + (taken(self.horizon_seconds / _SAMPLES) - beginning) * _SAMPLES) * len(self.settings())

    def as_json(self, results: Sequence[Result]) -> Document:
        """See the module's docstring."""
        return {
            "nodes": self.cell.nodes,
            "fill": self.cell.fill,
            "horizonSeconds": self.horizon_seconds,
            "tTaskSeconds": self.settings()[0].t_task_seconds,
            "seed": self.seed,
            "points": [_point(result) for result in results],
        }


_LONGEST = (Architecture.SHARED_STATE, 1.0, Conflicts.SEQUENCE_NUMBER, Transactions.ALL_OR_NOTHING)
_SAMPLES = 40  # so much shorter are the runs that tell how long the others will take


def _point(result: Result) -> Document:
    setting = result.setting
    return {
        "architecture": setting.architecture.value,
        "conflicts": setting.conflicts.value,
        "transactions": setting.transactions.value,
        "serviceTJobSeconds": setting.service_t_job,
        "utilisation": round(result.utilisation, 4),
        "overcommittedNodes": result.overcommitted,
        "kinds": {kind: _figures(result.figures[kind], result.busyness[kind]) for kind in KINDS},
    }


def _figures(figures: Figures, busyness: float) -> Document:
    return {
        "busyness": round(busyness, 4),
        "waitSeconds": round(figures.mean_wait, 3),
        "conflictFraction": round(figures.conflict_fraction, 4),
        "taskConflictShare": round(figures.task_conflict_share, 5),
        "triesPerJob": round(figures.transactions / figures.scheduled, 3) if figures.scheduled else None,
        "submitted": figures.submitted,
        "begun": figures.begun,
        "scheduled": figures.scheduled,
    }
