"""Placing a batch run after run, for algorithms: each run gets what those before it left."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import cards_fit, pods_on_cards, take_cards
from hoss.model.placing import NO_NODE, NodeSnapshot, PlacementBatch, PlacementRun
from hoss.model.resources import WHOLE_CARD_MILLI


class RoomOfRun(NamedTuple):
    """What n nodes have left for a run."""

    free: NDArray[np.int64]  # (resources, n), schema units
    places: NDArray[np.int64]  # (n,): how many pods of the run fit, at most as many as it has
    cards: NDArray[np.uint16] | None  # (n, 16): in use, as in NodeSnapshot


class RunByRun(ABC):
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
            chosen = self.choose(run, RoomOfRun(free, places_by_node(run, free, cards), cards))
            nodes[run.first : run.first + len(chosen)] = chosen
            if cards is not None and run.spec.devices is not None:
                take_cards(cards, chosen.tolist(), run.spec.devices.count, run.spec.devices.milli)
            free -= run.request[:, None] * np.bincount(chosen, minlength=free.shape[1])
        return nodes

    @abstractmethod
    def choose(self, run: PlacementRun, room: RoomOfRun) -> NDArray[np.intp]:
        """Nodes of at most `run.count` pods, none with more of them than it has places."""


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


def room_left(run: PlacementRun, room: RoomOfRun) -> NDArray[np.float64]:
    """How much room each node has, (n,), as best fit counts it: the sum of the shares of what the largest
    node has free of each resource that the pod requests."""
    asked = np.flatnonzero(run.request)
    largest = np.maximum(room.free[asked].max(axis=1, initial=0), 1)
    left: NDArray[np.float64] = (room.free[asked] / largest[:, None]).sum(axis=0)
    return left
