"""A comparison as text. For the terminal: a table for each setting, at most 80 columns wide, then the
answers. As CSV: a line for each run, interrupted ones included, in which every column is a plain value."""

import csv
import io
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hoss.errors import counted
from hossctl.compare.catalogue import (
    CONFLICTS,
    FAIRNESS,
    MOVES,
    NODES_IN_USE,
    OVERCOMMITTED,
    P99,
    SPREAD,
    STRANDED,
    STRANDED_ROOM,
    THROUGHPUT,
    UTILISATION,
    figures,
)
from hossctl.compare.document import Comparison, ComparisonRun
from hossctl.compare.report.answers import sentences
from hossctl.compare.report.summary import (
    NOISE_ERRORS,
    NOISE_SHARE,
    CellRuns,
    Summary,
    broken_promises,
    row_title,
    short_name,
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


_SPEED = (THROUGHPUT, P99, CONFLICTS, OVERCOMMITTED, STRANDED)
_PLACEMENT = (UTILISATION, STRANDED_ROOM, SPREAD, NODES_IN_USE, FAIRNESS, MOVES)
_PLACEMENT_HEADINGS = ("WORKERS", "USED", "LOST", "SPREAD", "NODES", "FAIR", "MOVES")
_MOST_TITLE = 18  # what the other columns leave of 80
_HEADINGS = ("WORKERS", "PODS/S", "+-", "P99 MS", "CONFLICTS", "OVERSOLD", "STRANDED")
_LEGEND = (
    "Medians. +-: half the range of the runs. P99: from submitted to bound. CONFLICTS: proposals refused. "
    "OVERSOLD: overcommitted nodes. STRANDED: pods found unschedulable though a node had room."
)
_PLACEMENT_LEGEND = (
    "USED: of the most used resource. LOST: of all of it, what is free and the load's pods cannot use (of "
    "cards FGD's measure). SPREAD: standard deviation over nodes. NODES: in use. FAIR: Jain's index over "
    "classes of pods. MOVES: pods that changed their node."
)


def lines(comparison: Comparison) -> Iterator[str]:
    """The whole summary, line by line, in at most 80 columns."""
    summary = summarise(comparison)
    for setting in summary.settings:
        yield from textwrap.wrap(setting.title, WIDTH)
        groups = summary.of_setting(setting)
        heading, titles = _titled(groups)
        speed = [[title, *_row(group)] for title, group in zip(titles, groups, strict=True)]
        yield from _Table((heading, *_HEADINGS), speed).lines()
        yield ""
        rated = [
            [title, *_placement_row(group)]
            for title, group in zip(titles, groups, strict=True)
            if group.rated
        ]
        if rated:
            yield from _Table((heading, *_PLACEMENT_HEADINGS), rated).lines()
            yield ""
    if summary.groups:
        yield from _wrapped(_LEGEND)
        if any(group.rated for group in summary.groups.values()):
            yield from _wrapped(_PLACEMENT_LEGEND)
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
    throughput, *rest = (figure.written(group.median(figure.of)) for figure in _SPEED)
    return [str(group.cell.workers), throughput, _half_range(group), *rest]


def _placement_row(group: CellRuns) -> list[str]:
    return [str(group.cell.workers), *(figure.written(group.median(figure.of)) for figure in _PLACEMENT)]


def _titled(groups: Sequence[CellRuns]) -> tuple[str, list[str]]:
    """The heading and the titles of a setting's rows: schedulers where the mode is the same in all."""
    if (
        len({group.cell.mode for group in groups}) == 1
        and len({group.cell.scheduler for group in groups}) > 1
    ):
        heading, titles = "SCHEDULER", [short_name(group.cell.scheduler) for group in groups]
    else:
        heading, titles = "MODE", [row_title(group.cell) for group in groups]
    return heading, [
        title if len(title) <= _MOST_TITLE else f"{title[: _MOST_TITLE - 3]}..." for title in titles
    ]


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
        runs = f"{counted(broken_off, 'run')} of {len(comparison.runs)}"
        notes.append(f"{runs} broken off and left out above")
    if broken := sum(bool(broken_promises(run)) for run in comparison.runs):
        notes.append(f"in {counted(broken, 'run')} an audit found broken invariants; the document has them")
    for note in notes:
        yield from _wrapped(f"Note: {note}{'' if note.endswith('.') else '.'}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)


# The first columns of the CSV: what was run.
KEYS: Final[dict[str, Callable[[ComparisonRun], object]]] = {
    "mode": lambda run: run.cell.mode,
    "load": lambda run: run.cell.load,
    "scheduler": lambda run: run.cell.scheduler,
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


def columns_of(comparison: Comparison) -> dict[str, list[object]]:
    """The same table as columns, for programs: `KEYS` as they are (`complete` as a truth value), figures as
    floats, None where the mode does not have them."""
    found: dict[str, list[object]] = {
        name: [run.complete if name == "complete" else key(run) for run in comparison.runs]
        for name, key in KEYS.items()
    }
    for figure in figures(comparison.runs):
        values = (figure.of(run) for run in comparison.runs)
        found[figure.key] = [None if value is None else float(value) for value in values]
    return found


def _field(value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if value == int(value) else repr(float(value))
