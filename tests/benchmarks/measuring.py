"""How a core is measured: a case makes the next action, untimed, and the action is timed.

What is compared are ratios of two cases that take turns in one process, medians over rounds: what else the
machine does then falls on both alike. Of cores it is CPU time, of promises to who waits the time by the
clock."""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

Action = Callable[[], object]

TRIES = 3  # a slow moment passes, a slower program does not


@dataclass(frozen=True, slots=True)
class Bench:
    """A case that is set up. `fresh` makes the next action; `clock` tells the seconds that it takes, of which
    some are explained by configuration and do not count."""

    fresh: Callable[[], Action]
    clock: Callable[[], float] = time.thread_time
    explained_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """`operations`: how often an action does what its name says. What `build` needs to be ended is left in
    the stack."""

    name: str
    operations: int
    build: Callable[[ExitStack], Bench]


@dataclass(frozen=True, slots=True)
class Limit:
    """A claim: an operation of `over` costs at most `usual` times `margin` of one of `under`, in so many
    rounds."""

    claim: str
    over: str
    under: str
    usual: float
    margin: float
    rounds: int
    warm_ups: int

    @property
    def limit(self) -> float:
        return self.usual * self.margin


def ratio(over: tuple[Bench, int], under: tuple[Bench, int], *, rounds: int, warm_ups: int = 1) -> float:
    """What an operation of the one costs by what it costs of the other. Each is (bench, operations of an
    action)."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(warm_ups + rounds):
        for (bench, operations), spent in zip((over, under), seconds, strict=True):
            taken = _timed(bench) / operations
            if number >= warm_ups:
                spent.append(taken)
    return statistics.median(seconds[0]) / statistics.median(seconds[1])


def lowest(measure: Callable[[], float], limit: float, *, tries: int = TRIES) -> float:
    """The first measurement within the limit; else the lowest of all tries."""
    found: list[float] = []
    while len(found) < tries:
        found.append(measure())
        if found[-1] <= limit:
            break
    return min(found)


def ratio_table(rows: Sequence[tuple[float, Limit]]) -> list[str]:
    found = [
        (
            limit.claim,
            f"{ratio:.3f}",
            f"{limit.usual:.3f}",
            f"{limit.limit:.3f}",
            "" if ratio <= limit.limit else "BEYOND",
        )
        for ratio, limit in rows
    ]
    return _table(("CLAIM", "RATIO", "USUAL", "LIMIT", ""), found)


def cost_table(rows: Sequence[tuple[str, float, float]]) -> list[str]:
    """Rows: name, median and least seconds of an operation."""
    found = [(name, *(f"{1e6 * seconds:,.3f}" for seconds in costs)) for name, *costs in rows]
    return _table(("OPERATION", "MEDIAN (US)", "LEAST (US)"), found)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column is left-aligned, the others right-aligned."""
    lines = [headings, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    table = []
    for first, *others in lines:
        numbers = (text.rjust(width) for text, width in zip(others, widths[1:], strict=True))
        table.append("  ".join((first.ljust(widths[0]), *numbers)).rstrip())
    return table


def _timed(bench: Bench) -> float:
    action = bench.fresh()
    started = bench.clock()
    action()
    return bench.clock() - started - bench.explained_seconds
