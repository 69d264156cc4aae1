"""A story as lines in order: the clock, how long after the beginning, and what happened then."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from hossctl.figures import written_duration

WIDTH = 80
_CLOCK, _AFTER = 12, 7  # columns
_MOST_LINES, _FIRST_LINES = 60, 10


@dataclass(frozen=True, slots=True)
class Line:
    """What happened at a moment, Unix milliseconds; None: what is so now."""

    at_ms: int | None
    text: str


def written(lines: Sequence[Line], now_ms: int) -> Iterator[str]:
    """The lines as people read them, in 80 columns and local time. A day is named where it begins; of many lines the middle is left out."""
    if not lines:
        return
    began = lines[0].at_ms
    day = None
    for line in _shortened(lines):
        at = now_ms if line.at_ms is None else line.at_ms
        when = datetime.fromtimestamp(at / 1000).astimezone()
        if line.at_ms is not None and when.date() != day:
            day = when.date()
            yield f"{day:%Y-%m-%d}"
        clock = "now" if line.at_ms is None else f"{when:%H:%M:%S}.{at % 1000:03d}"
        after = "" if began is None or line is lines[0] else f"+{written_duration((at - began) / 1000)}"
        yield from textwrap.wrap(
            line.text,
            WIDTH,
            initial_indent=f"{clock:<{_CLOCK}}  {after:>{_AFTER}}  ",
            subsequent_indent=" " * (_CLOCK + _AFTER + 4),
            break_on_hyphens=False,
        )


def ago(at_ms: int, now_ms: int) -> str:
    """How long something has been so."""
    return written_duration(max(0, now_ms - at_ms) / 1000)


def _shortened(lines: Sequence[Line]) -> Iterator[Line]:
    if len(lines) <= _MOST_LINES:
        yield from lines
        return
    last = _MOST_LINES - _FIRST_LINES
    yield from lines[:_FIRST_LINES]
    yield Line(lines[_FIRST_LINES].at_ms, f"... and {len(lines) - _MOST_LINES} more, which -o json tells")
    yield from lines[-last:]
