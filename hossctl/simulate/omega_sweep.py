"""Omega's experiment over many decision times. Its document is that of `hossctl.simulate.omega_sweep`.

The document of a sweep of Omega's experiment, as JSON and CSV; a file of it can be continued.

JSON (camel case, seconds unless named otherwise):

    nodes, fill, horizonSeconds, tTaskSeconds, seed
    points[]               one run each
      architecture           monolithic-single-path, monolithic-multi-path or shared-state
      conflicts              resource-fit or sequence-number; monolithic ones have no conflicts
      transactions           incremental or all-or-nothing
      serviceTJobSeconds     what a decision on a service job takes besides its tasks
      utilisation            of cpu, at the end
      overcommittedNodes     at the end; 0 unless something is wrong
      kinds.batch, kinds.service
        busyness               share of the time in which the scheduler of these jobs decided, on any jobs
        waitSeconds            from submission to the first try, mean of the jobs that had one
        conflictFraction       transactions with a conflict, per transaction without
        taskConflictShare      refused claims of single tasks, of all
        triesPerJob            transactions per job of which all tasks are placed
        submitted, begun, scheduled   jobs

CSV: a line for each run and kind of jobs, with the same in snake case.
"""

import csv
import io
import json
import multiprocessing
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from hoss.errors import InvalidInput
from hossctl.console import Document
from hossctl.figures import camel
from hossctl.local.process import end_with_parent
from hossctl.simulate.omega import (
    KINDS,
    Architecture,
    OmegaCell,
    OmegaFigures,
    OmegaSetting,
    Result,
    SimulatedConflicts,
    Transactions,
    simulate,
)

T_JOBS = (0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
QUICK_T_JOBS = (0.01, 0.1, 1.0, 5.0, 10.0, 20.0, 100.0)
DAY_SECONDS = 86_400.0
QUICK_SECONDS = 3_600.0

# Architecture, conflicts, transactions. A single scheduler meets no conflicts, however they are detected.
VARIANTS = (
    (Architecture.SINGLE_PATH, SimulatedConflicts.RESOURCE_FIT, Transactions.INCREMENTAL),
    (Architecture.MULTI_PATH, SimulatedConflicts.RESOURCE_FIT, Transactions.INCREMENTAL),
    *(
        (Architecture.SHARED_STATE, conflicts, transactions)
        for conflicts in SimulatedConflicts
        for transactions in Transactions
    ),
)


@dataclass(frozen=True, slots=True)
class Sweep:
    """All variants at each of these decision times of service jobs, seconds."""

    t_jobs: Sequence[float]
    horizon_seconds: float
    cell: OmegaCell
    seed: int

    def settings(self) -> list[OmegaSetting]:
        return [
            OmegaSetting(
                architecture, t_job, conflicts, transactions, self.horizon_seconds, self.cell, seed=self.seed
            )
            for architecture, conflicts, transactions in VARIANTS
            for t_job in self.t_jobs
        ]

    def expected_seconds(self, runs: int, clock: Callable[[], float]) -> float:
        """The likely duration of so many runs by this clock, estimated from short runs of the slowest
        kind."""

        def taken(horizon_seconds: float) -> float:
            started = clock()
            simulate(OmegaSetting(*_LONGEST, horizon_seconds=horizon_seconds, cell=self.cell, seed=self.seed))
            return clock() - started

        beginning = taken(1.0)
        return (beginning + (taken(self.horizon_seconds / _SAMPLES) - beginning) * _SAMPLES) * runs


def play(settings: Sequence[OmegaSetting], jobs: int) -> Generator[Result, None, None]:
    """Run all settings, `jobs` at a time, each in a process of its own; one at a time in this process. Yields
    results as runs end; a run's result does not depend on other runs. The generator must be closed."""
    jobs = min(jobs, len(settings))
    if jobs <= 1:
        yield from map(simulate, settings)
        return
    # Spawned, because this process has threads. No child outlives this process or this generator.
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _end_with_parent)
    try:
        for run in as_completed([pool.submit(simulate, setting) for setting in settings]):
            yield run.result()
    except BaseException:
        for process in multiprocessing.active_children():
            process.kill()  # its run is not needed any more
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_parent()


_LONGEST = (Architecture.SHARED_STATE, 1.0, SimulatedConflicts.SEQUENCE_NUMBER, Transactions.ALL_OR_NOTHING)
_SAMPLES = 40  # the runs for the estimate are so much shorter


_COLUMNS = {  # of the CSV, besides `kind`: where the document has them
    "architecture": "architecture",
    "conflicts": "conflicts",
    "transactions": "transactions",
    "service_t_job_seconds": "serviceTJobSeconds",
    "utilisation": "utilisation",
    "overcommitted_nodes": "overcommittedNodes",
}
_FIGURES = {
    "busyness": "busyness",
    "wait_seconds": "waitSeconds",
    "conflict_fraction": "conflictFraction",
    "task_conflict_share": "taskConflictShare",
    "tries_per_job": "triesPerJob",
    "submitted": "submitted",
    "begun": "begun",
    "scheduled": "scheduled",
}


def as_json(sweep: Sweep, points: Sequence[Document]) -> Document:
    """The document. `points`: of some of the sweep's runs or all, in any order."""
    order = {_name(setting): number for number, setting in enumerate(sweep.settings())}
    return {**_head(sweep), "points": sorted(points, key=lambda point: order[_name_of(point)])}


def as_csv(document: Document) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_COLUMNS, "kind", *_FIGURES])
    for point in document["points"]:
        for kind in KINDS:
            figures = [point["kinds"][kind][name] for name in _FIGURES.values()]
            writer.writerow([*(point[name] for name in _COLUMNS.values()), kind, *figures])
    return text.getvalue()


def point(result: Result) -> Document:
    """One run as a point of the document."""
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


def points_in(path: Path, sweep: Sweep, *, where: str) -> list[Document]:
    """The points of this sweep in a file; none if there is no file. InvalidInput for a file with other
    content or another sweep, because it would be overwritten."""
    try:
        document = json.loads(path.read_bytes())
        head, points = {key: document[key] for key in _head(sweep)}, document["points"]
        names = [_name_of(found) for found in points]
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise InvalidInput(f"cannot be read: {exc.strerror}", where=where) from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise InvalidInput(
            "is there and holds no sweep to go on with; name another file", where=where
        ) from exc
    if head != _head(sweep) or not set(names) <= set(map(_name, sweep.settings())):
        raise InvalidInput("holds a sweep of other settings; name another file", where=where)
    return list(points)


def missing(sweep: Sweep, points: Sequence[Document]) -> list[OmegaSetting]:
    """The runs of a sweep that have no point yet."""
    done = set(map(_name_of, points))
    return [setting for setting in sweep.settings() if _name(setting) not in done]


def _head(sweep: Sweep) -> Document:
    return {
        "nodes": sweep.cell.nodes,
        "fill": sweep.cell.fill,
        "horizonSeconds": sweep.horizon_seconds,
        "tTaskSeconds": sweep.settings()[0].t_task_seconds,
        "seed": sweep.seed,
    }


def _name(setting: OmegaSetting) -> tuple[str, str, str, float]:
    return (
        setting.architecture.value,
        setting.conflicts.value,
        setting.transactions.value,
        setting.service_t_job,
    )


def _name_of(point: Document) -> tuple[str, str, str, float]:
    return point["architecture"], point["conflicts"], point["transactions"], point["serviceTJobSeconds"]


def _figures(figures: OmegaFigures, busyness: float) -> Document:
    return {
        "busyness": round(busyness, 4),
        "waitSeconds": round(figures.mean_wait, 3),
        "conflictFraction": round(figures.conflict_fraction, 4),
        "taskConflictShare": round(figures.task_conflict_share, 5),
        "triesPerJob": round(figures.transactions / figures.scheduled, 3) if figures.scheduled else None,
        **camel(figures, "submitted", "begun", "scheduled"),
    }
