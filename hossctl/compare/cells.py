"""Which cells a comparison has: the product of lists, or one of two matrices that are not.

A whole product would take a day. The default matrix varies one thing at a time around a base (1,000 nodes, 95 % full, four
workers), the load with two fills; it takes about 20 minutes on two cores with three repetitions. The quick one asks the
question once for two loads and takes under three.

Where a peer is asked for, cells of a small setting are added for both modes on Kubernetes, and for the two that they are looked at beside: an
API server binds some hundred pods a second where HOSS by itself binds a hundred thousand.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from hoss.errors import InvalidInput
from hossctl.compare.axes import BASE_FILL, BASE_NODES, BASE_WORKERS, MODES, ON_KUBERNETES, ONE_SCHEDULER, Load, Mode
from hossctl.compare.document import Cell, Decision
from hossctl.compare.kube_form import WITHOUT_FORM
from hossctl.compare.summary import has_cost

AT_ONCE = Decision()
PEER_LOADS = tuple(load for load in Load if load not in WITHOUT_FORM)
PEER_NODES = 100
LOADS = tuple(load for load in Load if load is not Load.TRACE)  # which takes files

# Slow schedulers, as in the Omega paper: a batch of 500 pods takes one a quarter of a second to decide on.
SLOW = Decision(job_ms=10, task_ms=0.5)
# Nodes for them: 80 % full with some 25,000 pods, which take one of them 13 s, and eight so long that the last batch counts little.
SLOW_NODES = 500


@dataclass(frozen=True, slots=True)
class Axes:
    """What is varied. The single scheduler is one worker whatever `workers` says; the other modes have two or more."""

    modes: tuple[Mode, ...] = MODES
    loads: tuple[Load, ...] = (Load.UNIFORM,)
    workers: tuple[int, ...] = (BASE_WORKERS,)
    fills: tuple[float, ...] = (BASE_FILL,)
    nodes: tuple[int, ...] = (BASE_NODES,)
    pods: int = 0  # instead of a fill
    decision: Decision = AT_ONCE
    peer: bool = False  # the modes on Kubernetes too, where the load has a form there

    def cells(self) -> Iterator[Cell]:
        """Every combination, those next to one another that a reader compares."""
        fills = (0.0,) if self.pods else self.fills
        for load, nodes, fill, mode in product(self.loads, self.nodes, fills, (*self.modes, *ON_KUBERNETES)):
            if mode in ON_KUBERNETES and not self._peer_plays(load):
                continue
            for workers in self._workers_of(mode):
                yield Cell(
                    mode=mode,
                    load=load,
                    workers=workers,
                    nodes=nodes,
                    fill=fill,
                    pods=self.pods,
                    decision=self.decision,
                )

    def _peer_plays(self, load: Load) -> bool:
        return self.peer and load not in WITHOUT_FORM and not has_cost(self.decision)

    def _workers_of(self, mode: Mode) -> Sequence[int]:
        if mode in ONE_SCHEDULER:
            return (1,)
        return self.workers if mode is Mode.KUBE_HOSS else [n for n in self.workers if n > 1]


def of_axes(axes: Axes) -> list[Cell]:
    """The product. InvalidInput where there is nothing in it."""
    cells = list(axes.cells())
    if axes.peer and not any(cell.mode in ON_KUBERNETES for cell in cells):
        raise InvalidInput(f"has nothing to do here: {_why_no_peer(axes)}", where="--peer")
    if not cells:
        raise InvalidInput("only the mode single has one worker; name 2 or more for the others", where="--workers")
    return cells


def _why_no_peer(axes: Axes) -> str:
    if has_cost(axes.decision):
        return "kube-scheduler has no option for added decision cost"
    return "; ".join(f"{load.value}: {WITHOUT_FORM[load]}" for load in axes.loads)


def default_cells() -> list[Cell]:
    """See the module's docstring."""
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


def peer_cells(*, quick: bool) -> list[Cell]:
    """What a peer adds to either matrix: one load or all that have a form on Kubernetes."""
    small = Axes(modes=(Mode.SINGLE, Mode.HOSS), nodes=(PEER_NODES,), workers=(1, BASE_WORKERS), peer=True)
    return list(replace(small, loads=PEER_LOADS[:1] if quick else PEER_LOADS).cells())


def quick_cells() -> list[Cell]:
    """Five modes under two loads; another number of workers and another fill where they say most. Nearly all of the time is platforms that start."""
    small = Axes(nodes=(400,))
    return _once(
        [
            small,
            replace(small, modes=(Mode.HOSS,), workers=(2,)),
            replace(small, modes=(Mode.SINGLE, Mode.UNCOORDINATED, Mode.HOSS), fills=(0.8,)),
            replace(small, loads=(Load.GANGS,)),
        ]
    )


def _once(parts: Sequence[Axes]) -> list[Cell]:
    return list(dict.fromkeys(cell for axes in parts for cell in axes.cells()))
