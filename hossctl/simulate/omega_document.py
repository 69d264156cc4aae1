"""The document of a sweep of Omega's experiment, as JSON and CSV; a file of it can be continued.

JSON (camel case, seconds unless named otherwise):

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

CSV: a line for each run and kind of jobs, with the same in snake case.
"""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from hoss.errors import InvalidInput
from hossctl.console import Document
from hossctl.simulate.omega_setting import KINDS, Figures, Result, Setting
from hossctl.simulate.omega_sweep import Sweep

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
    """See the module's docstring. `points` in any order, of some of the sweep's runs or all."""
    order = {_name(setting): number for number, setting in enumerate(sweep.settings())}
    return {**_head(sweep), "points": sorted(points, key=lambda point: order[_name_of(point)])}


def as_csv(document: Document) -> str:
    """The file's text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_COLUMNS, "kind", *_FIGURES])
    for point in document["points"]:
        for kind in KINDS:
            figures = [point["kinds"][kind][name] for name in _FIGURES.values()]
            writer.writerow([*(point[name] for name in _COLUMNS.values()), kind, *figures])
    return text.getvalue()


def point(result: Result) -> Document:
    """What came of one run."""
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
    """The points that a file has of this sweep; none if there is no file. InvalidInput for a file that is something else or of another
    sweep: it would be overwritten."""
    try:
        document = json.loads(path.read_bytes())
        head, points = {key: document[key] for key in _head(sweep)}, document["points"]
        names = [_name_of(found) for found in points]
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise InvalidInput(f"cannot be read: {exc.strerror}", where=where) from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise InvalidInput("is there and holds no sweep to go on with; name another file", where=where) from exc
    if head != _head(sweep) or not set(names) <= set(map(_name, sweep.settings())):
        raise InvalidInput("holds a sweep of other settings; name another file", where=where)
    return list(points)


def missing(sweep: Sweep, points: Sequence[Document]) -> list[Setting]:
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


def _name(setting: Setting) -> tuple[str, str, str, float]:
    return setting.architecture.value, setting.conflicts.value, setting.transactions.value, setting.service_t_job


def _name_of(point: Document) -> tuple[str, str, str, float]:
    return point["architecture"], point["conflicts"], point["transactions"], point["serviceTJobSeconds"]


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
