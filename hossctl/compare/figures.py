"""Figures of one run, from the state of its platform at the end. Pure: arrays and messages in, figures out.
Percentiles of phases come from the dispatcher's histograms, whose buckets are 19 % wide, so they are off by
at most 9 %. Percentiles of the total are exact."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import cards_fit, fits
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.model.resources import MAX_CARDS, WHOLE_CARD_MILLI
from hoss.v1 import dispatcher_pb2, resolver_pb2
from hoss.wire.convert import node_from_proto
from hossctl.compare.document import Latency, Overcommit, PlacementQuality
from hossctl.load.report import CARDS
from scheduler_worker.core.cache.assumptions import pods_that_fit
from scheduler_worker.core.plugins.devices.fragmentation import (
    Popularity,
    TaskClass,
    free_on_cards,
)
from scheduler_worker.core.plugins.devices.fragmentation import (
    fragmentation as free_gpu_lost,
)
from scheduler_worker.core.rebalance.usable_room import NodeRoom, RequestMix, usable_share

PERCENTILES = (50.0, 99.0, 99.9)
_CURVE_SHARES = np.concatenate([np.arange(0.02, 0.98, 0.02), [0.98, 0.99, 0.995, 0.999, 1.0]])
NO_CARD = 0xFFFF


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """The nodes as in the ledger, in schema units."""

    nodes: tuple[NodeSpec, ...]
    resources: tuple[str, ...]
    allocatable: NDArray[np.int64]  # (resources, nodes)
    requested: NDArray[np.int64]  # (resources, nodes)
    cards_used_milli: NDArray[np.int64]  # (nodes, MAX_CARDS), 0xFFFF where there is no card

    @classmethod
    def of(cls, infos: Sequence[resolver_pb2.NodeInfo]) -> "Pool":
        names = sorted({a.resource for info in infos for a in (*info.spec.allocatable, *info.requested)})
        row = {name: number for number, name in enumerate(names)}
        allocatable = np.zeros((len(names), len(infos)), np.int64)
        requested = np.zeros_like(allocatable)
        cards = np.full((len(infos), MAX_CARDS), NO_CARD, np.int64)
        for column, info in enumerate(infos):
            for amount in info.spec.allocatable:
                allocatable[row[amount.resource], column] = amount.amount
            for amount in info.requested:
                requested[row[amount.resource], column] = amount.amount
            used = info.cards_used_milli[: info.spec.cards]
            cards[column, : info.spec.cards] = 0
            cards[column, : len(used)] = used
        return cls(
            tuple(node_from_proto(info.spec) for info in infos), tuple(names), allocatable, requested, cards
        )

    def request_of(self, spec: PodSpec) -> NDArray[np.int64]:
        """The request of one pod, (resources,). Resources that no node offers are left out."""
        requests = {**dict(spec.requests), "pods": 1}
        return np.array([requests.get(name, 0) for name in self.resources], np.int64)

    def free_of(self, resource: str) -> NDArray[np.int64]:
        """What is free of a resource on each node, (nodes,); 0 where more is requested than there is."""
        if resource not in self.resources:
            return np.zeros(len(self.nodes), np.int64)
        row = self.resources.index(resource)
        free: NDArray[np.int64] = np.maximum(self.allocatable[row] - self.requested[row], 0)
        return free

    @property
    def cards_used(self) -> NDArray[np.uint16]:
        """`cards_used_milli` as workers hold it. A card that is sold twice counts as absent there."""
        return self.cards_used_milli.clip(0, NO_CARD).astype(np.uint16)

    def room_for(self, spec: PodSpec) -> int:
        """How many such pods have room together on the nodes that match their own selectors. Rules about
        other pods are ignored."""
        if any(name not in self.resources for name, amount in spec.requests if amount):
            return 0
        request = self.request_of(spec)
        room = fits(self.allocatable, self.requested, request)
        if spec.devices is not None:
            room = room & cards_fit(self.cards_used_milli, spec.devices.count, spec.devices.milli)
        found = np.flatnonzero(room).tolist()
        nodes = [i for i in found if spec.selects(dict(self.nodes[i].labels), self.nodes[i].name)]
        requested = np.flatnonzero(request)
        free = (self.allocatable - self.requested)[np.ix_(requested, nodes)]
        each = (free // request[requested, None]).min(axis=0)
        if spec.devices is not None:
            each = np.minimum(
                each,
                np.maximum(1, pods_that_fit(self.cards_used[nodes], spec.devices)),
            )
        return int(each.sum())


class LeftOver(NamedTuple):
    """Unschedulable pods, as (spec, pods). `needed`: so many of them have to be placed together, or none
    is."""

    pods: tuple[tuple[PodSpec, int], ...]
    needed: int = 1

    @property
    def total(self) -> int:
        return sum(count for _, count in self.pods)


def with_room(pool: Pool, left: Iterable[LeftOver]) -> int:
    """The number of left-over pods that nodes have room for: of each group, all pods where there is room for
    the needed ones. Each group counts by itself, and so does each spec in a group: pods of a gang with
    several specs may be counted though they do not fit together."""
    return sum(
        group.total
        for group in left
        if sum(min(count, pool.room_for(spec)) for spec, count in group.pods) >= group.needed
    )


def overcommit(pool: Pool) -> Overcommit:
    """The nodes that hold more than they have, and the excess; of cards in thousandths."""
    over = np.maximum(pool.requested - pool.allocatable, 0)
    used, there = pool.cards_used_milli, pool.cards_used_milli != NO_CARD
    cards_over = np.where(there, np.maximum(used - WHOLE_CARD_MILLI, 0), 0).sum(axis=1)
    offered = pool.allocatable > 0
    shares = np.divide(pool.requested, pool.allocatable, out=np.zeros(over.shape), where=offered)
    card_shares = np.where(there, used / WHOLE_CARD_MILLI, 0.0)
    excess = {name: int(row.sum()) for name, row in zip(pool.resources, over, strict=True) if row.any()}
    if cards_over.any():
        excess[CARDS] = int(cards_over.sum())
    return Overcommit(
        nodes=int((over.any(axis=0) | (cards_over > 0)).sum()),
        worst=float(max(shares.max(initial=0.0), card_shares.max(initial=0.0))),
        excess=excess,
    )


def fragmentation(pool: Pool, specs: Sequence[PodSpec], pods: NDArray[np.int64]) -> dict[str, float]:
    """By resource that the load requests: of the free amount, the share on nodes where the load's median pod
    does not fit. `pods`: the number of pods of each spec. The median is taken of each resource by itself;
    cards and selectors are ignored."""
    if not pods.sum():
        return {}
    requests = np.stack([pool.request_of(spec) for spec in specs])
    median = np.array([_weighted_median(column, pods) for column in requests.T], np.int64)
    free = np.maximum(pool.allocatable - pool.requested, 0)
    useless = ~fits(pool.allocatable, pool.requested, median)
    found: dict[str, float] = {}
    for row, name in enumerate(pool.resources):
        if median[row] and name != "pods":
            total = int(free[row].sum())
            found[name] = float(free[row][useless].sum() / total) if total else 0.0
    return found


def quality(
    pool: Pool,
    specs: Sequence[PodSpec],
    *,
    submitted: NDArray[np.int64],
    bound: NDArray[np.int64],
    moves: int | None,
) -> PlacementQuality:
    """How well pods lie. `submitted` and `bound`: the number of pods of each spec. The mix of pods that free
    room is held against is the load itself; docs/benchmarks/README.md has the definitions and sources."""
    return PlacementQuality(
        gpu_fragmentation=gpu_fragmentation(pool, specs, submitted),
        stranded=stranded(pool, specs, submitted),
        spread=spread(pool),
        nodes_in_use=int(np.count_nonzero(pool.requested.any(axis=0))),
        moves=moves,
        fairness=fairness(specs, submitted, bound),
    )


def gpu_fragmentation(pool: Pool, specs: Sequence[PodSpec], pods: NDArray[np.int64]) -> float | None:
    """FGD's measure F over all nodes, by all cards; None without cards. By what is free it would punish who
    packs well: the little that is left is useless to most pods. The measure and its source are in
    `scheduler_worker.core.plugins.devices.fragmentation`."""
    cards = int((pool.cards_used_milli != NO_CARD).sum())
    if not cards:
        return None
    free = free_on_cards(pool.cards_used)
    counts: dict[TaskClass, int] = {}
    for spec, number in zip(specs, pods.tolist(), strict=True):
        requests, devices = dict(spec.requests), spec.devices
        shape = (devices.count, devices.milli) if devices else (0, 0)
        task = TaskClass(requests.get("cpu", 0), requests.get("memory", 0), *shape)
        counts[task] = counts.get(task, 0) + number
    cpu, memory = (pool.free_of(name) for name in ("cpu", "memory"))
    return float(free_gpu_lost(Popularity.of(counts), cpu, memory, free).sum() / (cards * WHOLE_CARD_MILLI))


def stranded(pool: Pool, specs: Sequence[PodSpec], pods: NDArray[np.int64]) -> dict[str, float]:
    """By resource that the load requests: of all there is, the share that is free and that the load's pods
    cannot use, in the measure of `scheduler_worker.core.rebalance.usable_room`. Selectors are ignored."""
    if not pods.any():
        return {}
    requests = np.stack([pool.request_of(spec) for spec in specs], axis=1)
    mix = RequestMix.of(requests, [spec.devices for spec in specs], pods)
    room = NodeRoom(pool.resources, pool.allocatable, pool.requested, pool.cards_used)
    usable, free = usable_share(room, mix), room.free
    if usable is None:
        return {}
    rows = [
        row
        for row, name in enumerate(pool.resources)
        if name != "pods" and mix.requests[row].any() and pool.allocatable[row].any()
    ]
    lost = {row: float(free[row].sum() - (free[row] * usable[row]).sum()) for row in rows}
    # Shares of single precision may exceed 1 by their error.
    return {
        pool.resources[row]: max(0.0, amount) / float(pool.allocatable[row].sum())
        for row, amount in lost.items()
    }


def spread(pool: Pool) -> dict[str, float]:
    """By resource that is requested: the standard deviation, over nodes that offer it, of the share
    requested. 0: all nodes are equally full; 0.5: half of them are empty and half full."""
    found = {}
    for row, name in enumerate(pool.resources):
        offering = pool.allocatable[row] > 0
        if name != "pods" and pool.requested[row].any() and offering.any():
            found[name] = float(np.std(pool.requested[row, offering] / pool.allocatable[row, offering]))
    return found


def fairness(specs: Sequence[PodSpec], submitted: NDArray[np.int64], bound: NDArray[np.int64]) -> float:
    """Jain's index of the shares of the classes' pods that were bound: 1 where every class got the same share
    of its pods placed, 1 / n where only one of n classes got any. Equal specs are one class. 0 without any
    bound pod. Source: Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems", DEC-TR-301, 1984."""
    counts: dict[PodSpec, list[int]] = {}
    for spec, there, placed in zip(specs, submitted.tolist(), bound.tolist(), strict=True):
        count = counts.setdefault(spec, [0, 0])
        count[0] += there
        count[1] += placed
    shares = np.array([placed / there for there, placed in counts.values() if there])
    squares = float((shares**2).sum())
    return float(shares.sum()) ** 2 / (len(shares) * squares) if squares else 0.0


def latency_of(seconds: NDArray[np.float64]) -> Latency:
    """The percentiles of measured times; zeros of none."""
    p50, p99, p999 = np.percentile(seconds, PERCENTILES) * 1000 if len(seconds) else np.zeros(3)
    return Latency(p50=float(p50), p99=float(p99), p999=float(p999))


def curve_of(seconds: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Points of the distribution: milliseconds, and the share of times within them."""
    if not len(seconds):
        return []
    values = np.quantile(seconds, _CURVE_SHARES, method="inverted_cdf") * 1000
    return [
        (round(float(ms), 3), round(float(part), 3)) for ms, part in zip(values, _CURVE_SHARES, strict=True)
    ]


def phases_of(phases: Sequence[dispatcher_pb2.PhaseTimes]) -> dict[str, Latency]:
    """The percentiles of each phase's histogram; empty phases are left out."""
    found = {}
    for phase in phases:
        counts = np.array(phase.counts, np.int64)
        if counts.any():
            p50, p99, p999 = _from_histogram(np.array(phase.bounds_seconds), counts) * 1000
            found[phase.phase] = Latency(p50=float(p50), p99=float(p99), p999=float(p999))
    return found


def utilisation_of(pool: Pool) -> dict[str, float]:
    """Requested by allocatable, for each resource that is requested, and for cards."""
    requested, allocatable = pool.requested.sum(axis=1), pool.allocatable.sum(axis=1)
    found = {
        name: float(used / total)
        for name, used, total in zip(pool.resources, requested, allocatable, strict=True)
        if used and total
    }
    there = pool.cards_used_milli != NO_CARD
    used = int(pool.cards_used_milli[there].sum())
    return found | ({CARDS: used / (int(there.sum()) * WHOLE_CARD_MILLI)} if used else {})


def refusals(counters: Mapping[str, int]) -> int:
    """Pods that the ledger refused for a reason of their own, from a resolver's counters. Pods of a gang that
    were refused because of another pod do not count."""
    return sum(n for name, n in counters.items() if name.startswith("conflict_") or name in _NODE_REFUSALS)


_NODE_REFUSALS = ("node_gone", "node_unschedulable")


def _from_histogram(bounds: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Seconds at PERCENTILES. Within a bucket the value is interpolated geometrically, since bounds grow by a
    constant ratio. Values beyond the last bound count as that bound."""
    reached = np.cumsum(counts) / counts.sum()
    ratio = bounds[1] / bounds[0]
    levels = np.array(PERCENTILES) / 100
    at = np.searchsorted(reached, levels)
    before = np.where(at > 0, reached[np.maximum(at - 1, 0)], 0.0)
    within = (levels - before) / (reached[at] - before)
    upper = bounds[np.minimum(at, len(bounds) - 1)]
    return np.asarray(upper * ratio ** (within - 1), np.float64)


def _weighted_median(values: NDArray[Any], weights: NDArray[np.int64]) -> int:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return int(values[order][np.searchsorted(reached, reached[-1] / 2)])
