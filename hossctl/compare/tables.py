"""A comparison as text. For the terminal: a table for each setting, at most 80 columns wide, then the
answers. As CSV: a line for each run, interrupted ones included, in which every column is a plain value."""

import csv
import io
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hossctl.compare.answers import sentences
from hossctl.compare.catalogue import CONFLICTS, OVERCOMMITTED, P99, STRANDED, THROUGHPUT, figures
from hossctl.compare.document import Comparison, ComparisonRun
from hossctl.compare.summary import (
    MODE_TITLES,
    NOISE_ERRORS,
    NOISE_SHARE,
    CellRuns,
    Summary,
    broken_promises,
    summarise,
)

WIDTH: Final = 80
NOISE_RULE: Final = (
    f"beyond the noise: medians more than {NOISE_ERRORS:g} standard errors and {NOISE_SHARE:.0%} apart"
)


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows of text under headings; the first column to the left, numbers to the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def lines(self) -> Iterator[str]:
        widths = [max(len(row[i]) for row in (self.headings, *self.rows)) for i in range(len(self.headings))]
        for row in (self.headings, *self.rows):
            cells = [row[0].ljust(widths[0])]
            cells += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
            yield "  ".join(cells).rstrip()


_HEADINGS = ("MODE", "WORKERS", "PODS/S", "+-", "P99 MS", "CONFLICTS", "OVERSOLD", "STRANDED")
_LEGEND = (
    "Medians. +-: half the range of the runs. P99: from submitted to bound. CONFLICTS: proposals refused. "
    "OVERSOLD: overcommitted nodes. STRANDED: pods found unschedulable though a node had room."
)


def lines(comparison: Comparison) -> Iterator[str]:
    """The whole summary, line by line, in at most 80 columns."""
    summary = summarise(comparison)
    for setting in summary.settings:
        yield from textwrap.wrap(setting.title, WIDTH)
        yield from _Table(_HEADINGS, [_row(group) for group in summary.of_setting(setting)]).lines()
        yield ""
    if summary.groups:
        yield from _wrapped(_LEGEND)
        yield ""
    for sentence in sentences(comparison, summary):
        yield from _wrapped(sentence)
    yield from _wrapped(f"({NOISE_RULE[0].upper()}{NOISE_RULE[1:]}; {_repetitions(summary)}.)")
    yield from _shortcomings(comparison, summary)


def _half_range(group: CellRuns) -> str:
    spread = group.spread(THROUGHPUT.of)
    half = None if spread is None else spread.half_range
    return "-" if half is None else f"{half:.0%}"


def _row(group: CellRuns) -> list[str]:
    shown = (THROUGHPUT, P99, CONFLICTS, OVERCOMMITTED, STRANDED)
    throughput, *rest = (figure.written(group.median(figure.of)) for figure in shown)
    return [MODE_TITLES[group.cell.mode], str(group.cell.workers), throughput, _half_range(group), *rest]


def _repetitions(summary: Summary) -> str:
    counts = sorted({len(group.runs) for group in summary.groups.values()})
    if not counts:
        return "no run is complete"
    runs = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{runs} run{'s' * (counts[-1] > 1)} a cell" + (
        "; the noise is unknown" if counts[-1] == 1 else ""
    )


def _shortcomings(comparison: Comparison, summary: Summary) -> Iterator[str]:
    """Remarks that a reader needs before the rest."""
    notes = list(comparison.notes)
    if broken_off := len(summary.incomplete):
        runs = f"{broken_off} run{'s' * (broken_off > 1)} of {len(comparison.runs)}"
        notes.append(f"{runs} broken off and left out above")
    if broken := sum(bool(broken_promises(run)) for run in comparison.runs):
        runs = f"{broken} run{'s' * (broken > 1)}"
        notes.append(f"in {runs} an audit found broken invariants; the document has them")
    for note in notes:
        yield from _wrapped(f"Note: {note}{'' if note.endswith('.') else '.'}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)


# The first columns of the CSV: what was run.
KEYS: Final[dict[str, Callable[[ComparisonRun], object]]] = {
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
    """The CSV file: `KEYS`, then the unrounded figures of `hossctl.compare.catalogue`, in the units of their
    names or definitions. A field is empty where the mode does not have the figure."""
    columns = figures(comparison.runs)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*KEYS, *(figure.key for figure in columns)])
    for run in comparison.runs:
        writer.writerow(
            [*(key(run) for key in KEYS.values()), *(_field(figure.of(run)) for figure in columns)]
        )
    return text.getvalue()


def _field(value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if value == int(value) else repr(float(value))
