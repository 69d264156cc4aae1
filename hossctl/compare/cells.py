"""The cells of a comparison: the product of lists, or one of two matrices, and the plan to measure them.

A whole product would take a day. The default matrix varies one thing at a time around a base (1,000 nodes, 95
% full, four workers) and the loads with two fills. It takes about 20 minutes on two cores with three
repetitions. The quick matrix has one setting for each of two loads and takes under three minutes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from hoss.errors import InvalidInput
from hossctl.choices import (
    BASE_FILL,
    BASE_NODES,
    BASE_WORKERS,
    DEFAULT_SCHEDULER,
    MODES,
    ONE_SCHEDULER,
    Load,
    Mode,
)
from hossctl.compare.document import Cell, DecisionTimes
from hossctl.compare.modes import MODE_REGISTRY
from hossctl.compare.schedulers import find_scheduler
from hossctl.load.playing import Trace

AT_ONCE = DecisionTimes()
LOADS = tuple(load for load in Load if load is not Load.TRACE)  # a trace needs files

# Slow schedulers, as in the Omega paper: one needs a quarter of a second for a batch of 500 pods.
SLOW = DecisionTimes(job_ms=10, task_ms=0.5)
# With 80 % of these nodes full there are some 25,000 pods. One slow scheduler needs 13 s for them, and with
# eight the last batch still counts little.
SLOW_NODES = 500


@dataclass(frozen=True, slots=True)
class Axes:
    """What is varied. A mode with one scheduler ignores `workers`; the other modes of HOSS have two workers
    or more, and modes of others as many as are given."""

    modes: tuple[str, ...] = MODES
    loads: tuple[str, ...] = (Load.UNIFORM,)
    workers: tuple[int, ...] = (BASE_WORKERS,)
    fills: tuple[float, ...] = (BASE_FILL,)
    nodes: tuple[int, ...] = (BASE_NODES,)
    pods: int = 0  # instead of a fill
    decision: DecisionTimes = AT_ONCE
    schedulers: tuple[str, ...] = (DEFAULT_SCHEDULER,)

    def cells(self) -> Iterator[Cell]:
        """Every combination. Cells that a reader compares follow one another."""
        fills = (0.0,) if self.pods else self.fills
        axes = product(self.loads, self.nodes, fills, self.modes, self.schedulers)
        for load, nodes, fill, mode, scheduler in axes:
            for workers in self._workers_of(mode):
                yield Cell(
                    mode=mode,
                    load=load,
                    scheduler=scheduler,
                    workers=workers,
                    nodes=nodes,
                    fill=fill,
                    pods=self.pods,
                    decision=self.decision,
                )

    def _workers_of(self, mode: str) -> Sequence[int]:
        if mode in ONE_SCHEDULER:
            return (1,)
        return [n for n in self.workers if n > 1] if mode in MODES else self.workers


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. `traces`: recordings by the names of the loads that play them."""

    cells: Sequence[Cell]
    repeat: int
    seed: int
    redis_url: str = ""
    traces: Mapping[str, Trace] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        return len(self.cells) * self.repeat


def of_axes(axes: Axes) -> list[Cell]:
    """The product. InvalidInput where it is empty."""
    cells = list(axes.cells())
    if not cells:
        raise InvalidInput(
            "only the mode single has one worker; name 2 or more for the others", where="--workers"
        )
    for cell in cells:
        _refuse_impossible(cell)
    return cells


def _refuse_impossible(cell: Cell) -> None:
    """InvalidInput where the mode or the decision cost takes flags that the scheduler does not have."""
    if not find_scheduler(cell.scheduler).sdk:
        return
    if has_cost(cell.decision):
        raise InvalidInput(
            f"{cell.scheduler} takes its own time; leave out the decision cost", where="--schedulers"
        )
    if not MODE_REGISTRY.find(cell.mode, where="--modes").takes_other_schedulers(cell.workers):
        raise InvalidInput(
            f"{cell.scheduler} does not know how to run as {cell.mode}, which takes HOSS's workers; use "
            f"modes such as {Mode.SINGLE.value}, {Mode.HOSS.value}",
            where="--schedulers",
        )


def default_cells() -> list[Cell]:
    """The default matrix."""
    base = Axes()
    return _once(
        [
            replace(base, workers=(2, 4, 8)),
            replace(base, fills=(0.5, 0.8, 1.0)),
            replace(base, nodes=(100, 5000)),
            replace(base, loads=LOADS[1:]),
            Axes(workers=(2, 4, 8), fills=(0.8,), nodes=(SLOW_NODES,), decision=SLOW),
        ]
    )


def quick_cells() -> list[Cell]:
    """Five modes under two loads, and a second number of workers and a second fill where these show most.
    Nearly all of the time goes into starting platforms."""
    small = Axes(nodes=(400,))
    return _once(
        [
            small,
            replace(small, modes=(Mode.HOSS,), workers=(2,)),
            replace(small, modes=(Mode.SINGLE, Mode.UNCOORDINATED, Mode.HOSS), fills=(0.8,)),
            replace(small, loads=(Load.GANGS,)),
        ]
    )


def has_cost(decision: DecisionTimes) -> bool:
    return bool(decision.job_ms or decision.task_ms)


def title(cell: Cell) -> str:
    """A short title of a cell."""
    size = f"{cell.pods:,} pods" if cell.pods else f"{cell.fill:.0%} full"
    scheduler = "" if cell.scheduler == DEFAULT_SCHEDULER else f" {cell.scheduler}"
    return f"{cell.mode}{scheduler} {cell.load} {cell.workers}w {cell.nodes:,} nodes {size}"


def _once(parts: Sequence[Axes]) -> list[Cell]:
    return list(dict.fromkeys(cell for axes in parts for cell in axes.cells()))
