"""Algorithms that place whole batches in a worker, in place of its ranking (hoss/model/placing.py).

The worker asks an algorithm through a port, because an algorithm of others may compute for long: a service
asks in a thread, a simulation on the spot. `random` and `best-fit` are algorithms that come with HOSS; the
shortest examples of the interface."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError
from hoss.model.fit import cards_fit, pods_on_cards, take_cards
from hoss.model.placing import (
    NO_NODE,
    NodeSnapshot,
    PlacementAlgorithm,
    PlacementBatch,
    PlacementRun,
    checked_placements,
    places_cards,
)
from hoss.model.resources import WHOLE_CARD_MILLI
from scheduler_worker.core.framework.sandbox import PluginFailed

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


class _RunByRun(ABC):
    """Places run after run, each on what those before it left."""

    places_cards = True

    def place(
        self,
        batch: PlacementBatch,
        snapshot: NodeSnapshot,
        budget: float,  # noqa: ARG002 - quick enough for any
    ) -> NDArray[np.intp]:
        """See PlacementAlgorithm."""
        nodes, free = np.full(batch.pods, NO_NODE, np.intp), snapshot.free
        cards = None if snapshot.cards_used is None else snapshot.cards_used.copy()
        for run in batch.runs:
            chosen = self.choose(run, free, places_by_node(run, free, cards))
            nodes[run.first : run.first + len(chosen)] = chosen
            if cards is not None and run.spec.devices is not None:
                take_cards(cards, chosen.tolist(), run.spec.devices.count, run.spec.devices.milli)
            free -= run.request[:, None] * np.bincount(chosen, minlength=free.shape[1])
        return nodes

    @abstractmethod
    def choose(
        self, run: PlacementRun, free: NDArray[np.int64], places: NDArray[np.int64]
    ) -> NDArray[np.intp]:
        """Nodes of at most `run.count` pods; `places`, (nodes,), is how many of them fit on each."""


class RandomPlacement(_RunByRun):
    """Each pod goes to a place drawn for it: a node with room for two is twice as likely as one with room for
    one. The baseline of comparisons."""

    def __init__(self, seed: int = 1) -> None:
        self._rng = np.random.default_rng(seed)

    def choose(
        self,
        run: PlacementRun,
        free: NDArray[np.int64],  # noqa: ARG002 - what fits is enough
        places: NDArray[np.int64],
    ) -> NDArray[np.intp]:
        """See _RunByRun."""
        drawn = self._rng.permutation(int(places.sum()))[: run.count]
        chosen: NDArray[np.intp] = np.searchsorted(np.cumsum(places), drawn, side="right")
        return chosen


class BestFitPlacement(_RunByRun):
    """Fills the node on which the least room would be left, then the next one. Room counts as the sum of the
    shares of what the largest node has of each resource that the pod requests."""

    def choose(
        self, run: PlacementRun, free: NDArray[np.int64], places: NDArray[np.int64]
    ) -> NDArray[np.intp]:
        """See _RunByRun."""
        asked = np.flatnonzero(run.request)
        largest = np.maximum(free[asked].max(axis=1, initial=0), 1)
        left = (free[asked] / largest[:, None]).sum(axis=0)
        order = np.argsort(left, kind="stable")
        order = order[places[order] > 0]
        return np.repeat(order, places[order])[: run.count]


def places_by_node(
    run: PlacementRun, free: NDArray[np.int64], cards: NDArray[np.uint16] | None = None
) -> NDArray[np.int64]:
    """How many pods of the run fit on each node that admits them, at most `run.count`: (nodes,). `cards`: in
    use, as in NodeSnapshot."""
    asked = np.flatnonzero(run.request)
    places = (free[asked] // run.request[asked, None]).min(axis=0)
    devices = run.spec.devices
    if devices is not None and cards is not None:
        places = np.minimum(places, pods_on_cards(cards, devices.count, devices.milli))
        if devices.count > 1 and devices.milli < WHOLE_CARD_MILLI:
            places = np.minimum(places, cards_fit(cards, devices.count, devices.milli))  # one, and then anew
    return np.where(run.admitted, np.clip(places, 0, run.count), 0)


RANKING = "ranking"  # the name of the worker's own way: no algorithm

ALGORITHMS: Mapping[str, Callable[[], PlacementAlgorithm]] = {
    "random": RandomPlacement,
    "best-fit": BestFitPlacement,
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
