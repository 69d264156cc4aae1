"""The worker's core: compiling a class, ranking and placing, applying the feed."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count

import numpy as np
from benchmarks.measuring import Action, Bench, Case

from hoss.model.node import NodeSpec
from hoss.model.pod import DeviceRequest, PodSpec
from hoss.model.resources import BASE_RESOURCES, CPU, MEMORY, PODS
from hoss.sim import Cluster, pod_template
from hoss.wire.columns import CARD_SLOTS, NO_CARD, numbered_uids
from hossctl.bench.gpu import empty_pool
from hossctl.load.nodes import GIB, UNIFORM, simulated_nodes
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import DemandTable
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.messages import AccountBatch, FeedUpdate
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.rebalance.usable_room import (
    NodeRoom,
    RequestMix,
    emptiable_nodes,
    largest_pods,
    measure,
)
from tools.bench.plugin_cases import filled_cache

NODES, MANY_NODES = 5_000, 50_000
STUDY_PODS = 50_000
RUN = 1_000  # pods of a known class at a time
CLASSES = 30
ENTRY_NODES = 500  # that an entry of the feed tells of
ENTRIES = 10
_UIDS = b"benchmarks.."  # their first 12 bytes


def cases() -> Sequence[Case]:
    return (
        Case("worker: a class compiled", CLASSES, lambda _: _compiling()),
        Case("worker: a pod of a known class", RUN, lambda _: _known(_empty(NODES))),
        Case("worker: a pod of a known class, 50,000 nodes", RUN, lambda _: _known(_empty(MANY_NODES))),
        Case("worker: a pod of a known class, 1,000 pods placed", RUN, lambda _: _known(_filled(1_000))),
        Case("worker: a pod of a known class, 100,000 pods placed", RUN, lambda _: _known(_filled(100_000))),
        Case("worker: a pod of a new class", CLASSES, lambda _: _new(_empty(NODES))),
        Case("worker: a pod of a new class, 50,000 nodes", CLASSES, lambda _: _new(_empty(MANY_NODES))),
        Case("worker: a pod of a new class, 1,000 pods placed", CLASSES, lambda _: _new(_filled(1_000))),
        Case("worker: a pod of a new class, 100,000 pods placed", CLASSES, lambda _: _new(_filled(100_000))),
        Case("worker: a feed entry", ENTRIES, lambda _: _feed(NODES)),
        Case("worker: a feed entry, 50,000 nodes", ENTRIES, lambda _: _feed(MANY_NODES)),
        Case("worker: usable room of 5,000 nodes, 100,000 pods", 1, lambda _: _usable_room(NODES, 100_000)),
        Case("study: a pod, default profile", STUDY_PODS, lambda _: _study()),
    )


def _study() -> Bench:
    """A whole study of hoss.sim, from submission to the ledger and back."""
    pod = pod_template({"cpu": 250, "memory": GIB // 2})

    def fresh() -> Action:
        cluster = Cluster(_nodes(NODES))
        cluster.submit(pod, STUDY_PODS)
        return cluster.run

    return Bench(fresh)


@lru_cache(maxsize=2)
def _nodes(number: int) -> list[NodeSpec]:
    return simulated_nodes(number, shapes=UNIFORM)


def _empty(nodes: int) -> NodeInfoCache:
    cache = NodeInfoCache()
    cache.apply_feed(empty_pool(_nodes(nodes)))
    return cache


def _filled(pods: int) -> NodeInfoCache:
    return filled_cache(NODES, pods, seed=1)


def _compiling() -> Bench:
    cache = _empty(1)
    numbers = count()

    def fresh() -> Action:
        demands = DemandTable(cache.schema, cache.catalogue.images, cache.pod_index)
        specs = [_spec(next(numbers)) for _ in range(CLASSES)]
        return lambda: [demands.compile(spec) for spec in specs]

    return Bench(fresh)


def _usable_room(nodes: int, pods: int) -> Bench:
    """The measure with 200 usual classes, a tenth of them with cards, and 20 waiting ones."""
    chance, kinds = np.random.default_rng(1), 200
    resources = len(BASE_RESOURCES)
    requests = np.zeros((resources, kinds), np.int64)
    requests[CPU], requests[MEMORY] = (
        chance.integers(1, 20, kinds) * 100,
        chance.integers(1, 20, kinds) * GIB // 4,
    )
    requests[PODS] = 1
    devices = [DeviceRequest(1, 500) if kind % 10 == 0 else None for kind in range(kinds)]
    shapes = np.array([(0, 0) if d is None else (d.count, d.milli) for d in devices], np.int64).T
    of_pod, at = chance.integers(kinds, size=pods), chance.integers(nodes, size=pods)
    allocatable = np.zeros((resources, nodes), np.int64)
    allocatable[CPU], allocatable[MEMORY], allocatable[PODS] = 32_000, 128 * GIB, 110
    requested = np.stack([np.bincount(at, row[of_pod], nodes).astype(np.int64) for row in requests])
    used = np.full((nodes, CARD_SLOTS), NO_CARD, np.uint16)
    used[: nodes // 5, :8] = chance.integers(0, 11, (nodes // 5, 8)) * 100
    room = NodeRoom(BASE_RESOURCES, allocatable, requested, used)

    def action() -> None:
        usual = RequestMix.of(requests, devices, np.bincount(of_pod, minlength=kinds))
        waiting = RequestMix.of(requests[:, :20], devices[:20], np.ones(20, np.int64))
        measure(room, usual, waiting)
        largest_pods(room, waiting)
        emptiable_nodes(room, requests, shapes, of_pod, at)

    return Bench(lambda: action)


def _known(cache: NodeInfoCache) -> Bench:
    """Runs of one class, one after the other; placed pods stay."""
    scheduler = _scheduler(cache)
    scheduler.define_class(0, _spec(0))
    batches = _batches(np.zeros(1, np.uint32), np.array([RUN], np.uint32))
    return Bench(lambda: _placing(scheduler, next(batches), RUN))


def _new(cache: NodeInfoCache) -> Bench:
    """Single pods, each of a class that the worker hears of for the first time."""
    scheduler, numbers = _scheduler(cache), count(1)
    counts = np.ones(CLASSES, np.uint32)

    def fresh() -> Action:
        classes = [next(numbers) for _ in range(CLASSES)]
        specs = [_spec(number) for number in classes]
        batch = next(_batches(np.array(classes, np.uint32), counts, first=classes[0]))
        place = _placing(scheduler, batch, CLASSES)

        def action() -> None:
            for number, spec in zip(classes, specs, strict=True):
                scheduler.define_class(number, spec)
            place()

        return action

    return Bench(fresh)


_Batch = tuple[int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _batches(classes: np.ndarray, counts: np.ndarray, first: int = 1) -> Iterator[_Batch]:
    pods = int(counts.sum())
    for number in count(first):
        yield (
            number,
            numbered_uids(_UIDS, number * pods, pods),
            classes,
            counts,
            np.zeros(len(counts), np.uint16),
        )


def _placing(scheduler: Scheduler, batch: _Batch, pods: int) -> Action:
    def action() -> None:
        scheduler.accept(*batch)
        while scheduler.step():
            pass
        proposed = sum(len(columns.uids) for columns in scheduler.take_proposals(now=0.0))
        if proposed != pods:
            raise AssertionError(f"{proposed} of {pods} pods were placed: something else was measured")

    return action


def _feed(nodes: int) -> Bench:
    """Entries that tell of commits on some nodes, for a worker that has a ranking of them."""
    cache = _empty(nodes)
    pool = empty_pool(_nodes(nodes))
    chance, seqs = np.random.default_rng(1), count(2)

    def entry() -> FeedUpdate:
        where = np.sort(chance.choice(nodes, ENTRY_NODES, replace=False)).astype(np.uint32)
        records, seq = pool.accounts.records[where].copy(), next(seqs)
        records["seq"] = seq
        records["amounts"][:, 0, 1] = chance.integers(1, 1000, ENTRY_NODES)
        none = AccountBatch.empty()
        return FeedUpdate(0, seq, AccountBatch(where, records, none.card_indexes, none.cards))

    def fresh() -> Action:
        entries = [entry() for _ in range(ENTRIES)]

        def action() -> None:
            for update in entries:
                cache.apply_feed(update)

        return action

    return Bench(fresh)


def _scheduler(cache: NodeInfoCache) -> Scheduler:
    return Scheduler(cache, default_profile(), np.random.default_rng(1))


def _spec(number: int) -> PodSpec:
    cpu, memory = 20 + number % 50, GIB // 64 + 4096 * number
    return PodSpec(
        requests=(("cpu", cpu), ("memory", memory)), nonzero_cpu_milli=cpu, nonzero_memory_bytes=memory
    )
