"""Runs of pods at an algorithm that places whole batches, until its answer is taken.

The answer was checked against the snapshot that the algorithm saw. The view may have moved on since, so what
no longer fits is asked again: a proposal never claims a newer view than the one its nodes were checked
with."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import take_cards
from hoss.model.placing import NodeSnapshot, PlacementBatch, PlacementRun
from hoss.wire.columns import NO_CARD
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.backlog import bears_rules
from scheduler_worker.core.framework.sandbox import PluginFailed
from scheduler_worker.core.nodes import Mask, NodeIndexes
from scheduler_worker.core.placement.algorithms import AlgorithmCalls
from scheduler_worker.core.placement.ranking import Ranking
from scheduler_worker.core.work import Run


class AnsweredRuns(NamedTuple):
    """Runs that come back from the algorithm."""

    runs: tuple[Run, ...]
    nodes: tuple[NodeIndexes, ...]  # of each run's pods, NO_NODE for none; nothing after a failure
    failure: PluginFailed | None
    seconds: float  # that the algorithm took


class WholeBatches:
    """Asks the algorithm about one batch at a time."""

    def __init__(self, calls: AlgorithmCalls, cache: NodeInfoCache) -> None:
        self.name = calls.name
        self._calls = calls
        self._cache = cache
        self._asked: tuple[Run, ...] = ()
        self._singly = 0  # runs still to be asked alone, because the algorithm failed on a batch with them

    @property
    def asked(self) -> tuple[Run, ...]:
        """The runs at the algorithm."""
        return self._asked

    @property
    def most_runs(self) -> int | None:
        """How many runs the next batch may have; None: any number."""
        return 1 if self._singly else None

    def suits(self, run: Run) -> bool:
        """Whether the interface has all that such pods need. The others are ranked: gangs and all-or-nothing
        work, and pods with rules about other pods, ports, volumes or devices; also pods with cards, unless
        the algorithm places them."""
        spec = run.pod_class.spec
        return (
            run.work.gang is None
            and not run.work.transactional
            and not bears_rules(spec)
            and not spec.host_ports
            and (spec.devices is None or self._calls.places_cards)
        )

    def ask(self, runs: Sequence[tuple[Run, Mask]]) -> None:
        """Ask about these runs, each with the nodes that are feasible for one pod of it, (nodes,)."""
        asked, first = [], 0
        for run, admitted in runs:
            demand = run.pod_class.demand
            request = np.zeros(len(self._cache.schema), np.int64)
            request[: len(demand.request)] = demand.request
            for column in (request, admitted):
                column.flags.writeable = False
            asked.append(PlacementRun(run.pod_class.spec, request, admitted, first, len(run.rows)))
            first += len(run.rows)
        self._asked = tuple(run for run, _ in runs)
        self._singly = max(0, self._singly - 1)
        self._calls.ask(PlacementBatch(tuple(asked)), self._snapshot())

    def take(self) -> AnsweredRuns | None:
        """The runs with their nodes, once the algorithm has answered."""
        answer = self._calls.take()
        if answer is None:
            return None
        runs, self._asked = self._asked, ()
        if answer.failure is not None:
            if len(runs) > 1:
                self._singly = len(runs)
            return AnsweredRuns(runs, (), answer.failure, answer.seconds)
        ends = np.cumsum([len(run.rows) for run in runs])
        return AnsweredRuns(runs, tuple(np.split(answer.nodes, ends[:-1])), None, answer.seconds)

    def give_back(self) -> tuple[Run, ...]:
        """Take the runs from the algorithm; its answer to them is dropped."""
        runs, self._asked, self._singly = self._asked, (), 0
        if runs:
            self._calls.abandon()
        return runs

    def still_fitting(self, ranking: Ranking, nodes: NodeIndexes) -> Mask:
        """Which of these placements, (k,), hold in the present view, each counting those before it. The
        ranking is refreshed."""
        demand, size = ranking.demand, len(ranking.keys)
        known = nodes < size
        feasible = known & (ranking.keys[np.where(known, nodes, 0)] >= 0)
        view = self._cache.view(None, cards=False).for_filters(demand)
        free = view.allocatable[demand.rows] - view.requested[demand.rows]
        places = (free // demand.request[demand.rows, None]).min(axis=0)
        holds: Mask = feasible & (_earlier_equals(nodes) < places[np.where(known, nodes, 0)])
        devices = demand.devices
        if devices is not None:
            used = self._cache.cards.used[:size].copy()
            holds[holds] = take_cards(used, nodes[holds].tolist(), devices.count, devices.milli)
        return holds

    def _snapshot(self) -> NodeSnapshot:
        cache, size = self._cache, self._cache.size
        allocatable, requested = cache.accounts.allocatable[:, :size].copy(), cache.requested[:, :size].copy()
        cards = cache.cards.used[:size].copy()
        for column in (allocatable, requested, cards):
            column.flags.writeable = False
        names, specs = tuple(cache.schema.names), tuple(cache.catalogue.specs[:size])
        return NodeSnapshot(names, allocatable, requested, specs, cards if (cards != NO_CARD).any() else None)


def pods_of(runs: Iterable[Run]) -> int:
    """The number of their pods."""
    return sum(len(run.rows) for run in runs)


def _earlier_equals(values: NodeIndexes) -> NDArray[np.intp]:
    """How many equal values stand before each: (k,)."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    lengths = np.diff(np.append(starts, len(values)))
    earlier = np.empty(len(values), np.intp)
    earlier[order] = np.arange(len(values)) - np.repeat(starts, lengths)
    return earlier
