"""Algorithms that place whole batches in a worker, in place of its ranking (hoss/model/placing.py).

The worker asks an algorithm through a port, because an algorithm of others may compute for long: a service
asks in a thread, a simulation on the spot. `random`, `best-fit` and `fgd` are algorithms that come with HOSS;
the first two are the shortest examples of the interface."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError
from hoss.model.placing import (
    NodeSnapshot,
    PlacementAlgorithm,
    PlacementBatch,
    PlacementRun,
    checked_placements,
    places_cards,
)
from scheduler_worker.core.framework.sandbox import PluginFailed
from scheduler_worker.core.placement.fgd import FgdPlacement
from scheduler_worker.core.placement.run_by_run import RoomOfRun, RunByRun, room_left

BUDGET_SECONDS = 0.1  # what an algorithm is told


class PlacementAnswer(NamedTuple):
    """What an algorithm answered."""

    nodes: NDArray[np.intp]  # (pods,), checked against the snapshot; empty after a failure
    failure: PluginFailed | None
    seconds: float  # that it took


class AlgorithmCalls(Protocol):
    """Asks one algorithm, one question at a time."""

    name: str
    places_cards: bool  # see PlacementAlgorithm

    def ask(self, batch: PlacementBatch, snapshot: NodeSnapshot) -> None:
        """Begin to place this batch. Not before the former answer is taken or abandoned."""

    def take(self) -> PlacementAnswer | None:
        """The answer, once; None while there is none."""

    def abandon(self) -> None:
        """Nobody wants the answer any more."""


def answer_of(
    name: str,
    algorithm: PlacementAlgorithm,
    batch: PlacementBatch,
    snapshot: NodeSnapshot,
    clock: Callable[[], float],
) -> PlacementAnswer:
    """Ask an algorithm and check its answer. Raises nothing that the algorithm raises."""
    started, nodes, failure = clock(), np.empty(0, np.intp), None
    try:
        nodes = checked_placements(batch, snapshot, algorithm.place(batch, snapshot, BUDGET_SECONDS))
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - code of others may raise anything
        failure = PluginFailed(name, exc, kind="algorithm")
        failure.__cause__ = exc
    return PlacementAnswer(nodes, failure, clock() - started)


class CalledInPlace:
    """An algorithm that is asked where it stands, for simulations and tests: `ask` returns when it has
    answered."""

    def __init__(
        self, name: str, algorithm: PlacementAlgorithm, clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.name = name
        self.places_cards = places_cards(algorithm)
        self._algorithm = algorithm
        self._clock = clock
        self._answer: PlacementAnswer | None = None

    def ask(self, batch: PlacementBatch, snapshot: NodeSnapshot) -> None:
        """See AlgorithmCalls."""
        self._answer = answer_of(self.name, self._algorithm, batch, snapshot, self._clock)

    def take(self) -> PlacementAnswer | None:
        """See AlgorithmCalls."""
        answer, self._answer = self._answer, None
        return answer

    def abandon(self) -> None:
        """See AlgorithmCalls."""
        self._answer = None


class RandomPlacement(RunByRun):
    """Each pod goes to a place drawn for it: a node with room for two is twice as likely as one with room for
    one. The baseline of comparisons."""

    def __init__(self, seed: int = 1) -> None:
        self._rng = np.random.default_rng(seed)

    def choose(self, run: PlacementRun, room: RoomOfRun) -> NDArray[np.intp]:
        """See RunByRun."""
        drawn = self._rng.permutation(int(room.places.sum()))[: run.count]
        chosen: NDArray[np.intp] = np.searchsorted(np.cumsum(room.places), drawn, side="right")
        return chosen


class BestFitPlacement(RunByRun):
    """Fills the node on which the least room would be left, then the next one."""

    def choose(self, run: PlacementRun, room: RoomOfRun) -> NDArray[np.intp]:
        """See RunByRun."""
        order = np.argsort(room_left(run, room), kind="stable")
        order = order[room.places[order] > 0]
        return np.repeat(order, room.places[order])[: run.count]


RANKING = "ranking"  # the name of the worker's own way: no algorithm

ALGORITHMS: Mapping[str, Callable[[], PlacementAlgorithm]] = {
    "random": RandomPlacement,
    "best-fit": BestFitPlacement,
    "fgd": FgdPlacement,
}


def made_algorithm(name: str, outside: Mapping[str, Callable[[], Any]]) -> PlacementAlgorithm:
    """The algorithm of this name, of HOSS or from outside. Raises ConfigError for an unknown name, and where
    the class cannot be made or is no algorithm."""
    own = {RANKING, *ALGORITHMS}
    if twice := sorted(own & set(outside)):
        raise ConfigError(f"{twice[0]!r} is an algorithm already; choose another name", where="algorithm")
    makers: dict[str, Callable[[], Any]] = {**ALGORITHMS, **outside}
    if name not in makers:
        raise ConfigError(f"{name!r} is none of {', '.join(sorted({*own, *outside}))}", where="algorithm")
    try:
        made = makers[name]()
    except ConfigError as exc:
        raise ConfigError(exc.text, where=f"algorithm {name}") from exc
    except Exception as exc:  # code of others may raise anything
        raise ConfigError(f"cannot be made: {type(exc).__name__}: {exc}", where=f"algorithm {name}") from exc
    if not isinstance(made, PlacementAlgorithm):
        raise ConfigError(
            f"is {type(made).__name__}, which has no method place(batch, snapshot, budget)",
            where=f"algorithm {name}",
        )
    return made
