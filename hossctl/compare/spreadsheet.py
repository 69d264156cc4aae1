"""A comparison as CSV: one line a run, the interrupted ones too; every column a plain value.

First what was run (`KEYS`), then the figures of `hossctl.compare.catalogue`, unrounded, in the units their names or definitions say; an empty
field is a figure that the run's mode has not.
"""

import csv
import io
from collections.abc import Callable
from typing import Final

from hossctl.compare.catalogue import figures
from hossctl.compare.document import Comparison, Run

KEYS: Final[dict[str, Callable[[Run], object]]] = {
    "mode": lambda run: run.cell.mode.value,
    "load": lambda run: run.cell.load.value,
    "workers": lambda run: run.cell.workers,
    "nodes": lambda run: run.cell.nodes,
    "fill": lambda run: run.cell.fill,
    "pods": lambda run: run.cell.pods,
    "decision_job_ms": lambda run: run.cell.decision.job_ms,
    "decision_task_ms": lambda run: run.cell.decision.task_ms,
    "repetition": lambda run: run.repetition,
    "seed": lambda run: run.seed,
    "started": lambda run: run.started,
    "complete": lambda run: "true" if run.complete else "false",
}


def as_csv(comparison: Comparison) -> str:
    """The file's text."""
    columns = figures(comparison.runs)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*KEYS, *(figure.key for figure in columns)])
    for run in comparison.runs:
        writer.writerow([*(key(run) for key in KEYS.values()), *(_field(figure.of(run)) for figure in columns)])
    return text.getvalue()


def _field(value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if value == int(value) else repr(float(value))
