"""A comparison for the terminal: a table for each setting, no wider than 80 columns, then the answers."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hossctl.compare.answers import sentences
from hossctl.compare.catalogue import CONFLICTS, OVERCOMMITTED, P99, STRANDED, THROUGHPUT
from hossctl.compare.document import Comparison
from hossctl.compare.summary import MODE_TITLES, NOISE_ERRORS, NOISE_SHARE, Group, Summary, broken_promises, summarise

WIDTH: Final = 80
NOISE_RULE: Final = f"beyond the noise: medians more than {NOISE_ERRORS:g} standard errors and {NOISE_SHARE:.0%} apart"


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
    """The whole summary, line by line."""
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


def _half_range(group: Group) -> str:
    """Half the range of a cell's pods/s, by their median."""
    spread = group.spread(THROUGHPUT.of)
    half = None if spread is None else spread.half_range
    return "-" if half is None else f"{half:.0%}"


def _row(group: Group) -> list[str]:
    figures = (THROUGHPUT, P99, CONFLICTS, OVERCOMMITTED, STRANDED)
    throughput, *rest = (figure.written(group.median(figure.of)) for figure in figures)
    return [MODE_TITLES[group.cell.mode], str(group.cell.workers), throughput, _half_range(group), *rest]


def _repetitions(summary: Summary) -> str:
    counts = sorted({len(group.runs) for group in summary.groups.values()})
    if not counts:
        return "no run is complete"
    runs = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{runs} run{'s' * (counts[-1] > 1)} a cell" + ("; the noise is unknown" if counts[-1] == 1 else "")


def _shortcomings(comparison: Comparison, summary: Summary) -> Iterator[str]:
    """What a reader must know before believing the rest."""
    notes = list(comparison.notes)
    if broken_off := len(summary.incomplete):
        runs = f"{broken_off} run{'s' * (broken_off > 1)} of {len(comparison.runs)}"
        notes.append(f"{runs} broken off and left out above")
    if broken := sum(bool(broken_promises(run)) for run in comparison.runs):
        runs = f"{broken} run{'s' * (broken > 1)}"
        notes.append(f"in {runs} an audit found broken invariants; they stand in the document")
    for note in notes:
        yield from _wrapped(f"Note: {note}{'' if note.endswith('.') else '.'}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)
