"""Clusters, pods and batches that checks ask about, the same for the same seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hoss.model.cluster import BoundPod, Cluster
from hoss.model.fit import cards_fit, fits
from hoss.model.node import NodeSpec, Toleration
from hoss.model.placing import NodeSnapshot, PlacementBatch, PlacementRun, admits
from hoss.model.pod import PodAffinity, PodAffinityTerm, PodSpec, SpreadConstraint
from hoss.model.selectors import LabelSelector, Requirement
from hoss.wire.columns import NO_CARD
from hossctl.load.generated import MIB, card_request, pod_template
from hossctl.load.nodes import CARD_TAINT, DEDICATED, GIB, HOSTNAME_LABEL, ZONE_LABEL, ZONES, simulated_nodes
from scheduler_worker.core.classes import compile_demand
from scheduler_worker.core.offline.cluster_snapshot import ClusterSnapshot

_TOLERATIONS = (Toleration(CARD_TAINT.key, "Exists"), Toleration(DEDICATED.key, "Exists"))
_APART = LabelSelector((Requirement("app", "In", ("apart",)),))


def _pod(cpu_milli: int, memory_bytes: int, **others: int) -> PodSpec:
    return pod_template({"cpu": cpu_milli, "memory": memory_bytes, **others}).spec


# What an algorithm may be asked about.
PLAIN_PODS = {
    "small pods": _pod(100, 128 * MIB),
    "large pods": _pod(8000, 32 * GIB),
    "pods of one zone": replace(_pod(500, GIB), node_selector=((ZONE_LABEL, ZONES[0]),)),
    "pods that tolerate all taints": replace(_pod(2000, 2 * GIB), tolerations=_TOLERATIONS),
    "pods without requests": replace(_pod(100, 200 * MIB), requests=()),
    "pods that fit nowhere": _pod(10**9, GIB),
}


def _carded(milli: int, cards: int = 1) -> PodSpec:
    requests, devices = card_request(cards, milli)
    return replace(_pod(1000, GIB, **requests), devices=devices, tolerations=_TOLERATIONS)


# What an algorithm that places cards is asked about as well.
CARD_PODS = {
    "pods with two GPUs": _carded(1000, 2),
    "pods with half a GPU": _carded(500),
    "pods with a share of two GPUs": _carded(300, 2),
}

# What a plugin may be asked about.
PODS = {
    **PLAIN_PODS,
    "pods of an unknown resource": _pod(100, GIB, **{"example.com/unknown": 1}),
    "pods with a GPU": _carded(1000),
    "pods with half a GPU": _carded(500),
    "pods spread over zones": replace(
        _pod(100, GIB), labels=(("app", "apart"),), spread=(SpreadConstraint(1, ZONE_LABEL, _APART),)
    ),
    "pods kept apart by host": replace(
        _pod(100, GIB),
        labels=(("app", "apart"),),
        pod_affinity=PodAffinity(anti_required=(PodAffinityTerm(HOSTNAME_LABEL, _APART, ("default",)),)),
    ),
}
_BOUND_PODS = ("large pods", "pods that tolerate all taints", "pods of one zone", "pods kept apart by host")


@dataclass(frozen=True, slots=True)
class CheckedCluster:
    """A cluster and what it is in words."""

    words: str
    snapshot: ClusterSnapshot

    @property
    def nodes(self) -> int:
        """How many it has."""
        return self.snapshot.cache.size


def generated_clusters(count: int, *, seed: int, given: Sequence[NodeSpec] = ()) -> list[CheckedCluster]:
    """No node, one, `count` empty ones, and as many that are two thirds full; last `given` nodes, if any."""
    chance = random.Random(seed)
    nodes = simulated_nodes(count, seed=seed)
    found = [
        CheckedCluster("no node", ClusterSnapshot(Cluster())),
        CheckedCluster("1 empty node", ClusterSnapshot(Cluster(nodes[:1]))),
        CheckedCluster(f"{count} empty nodes", ClusterSnapshot(Cluster(nodes))),
        CheckedCluster(
            f"{count} nodes that are two thirds full", ClusterSnapshot(Cluster(nodes, _bound(nodes, chance)))
        ),
    ]
    if given:
        found.append(CheckedCluster(f"{len(given)} given nodes", ClusterSnapshot(Cluster(given))))
    return found


def _bound(nodes: Sequence[NodeSpec], chance: random.Random) -> list[BoundPod]:
    bound: list[BoundPod] = []
    for node in nodes:
        free = dict(node.allocatable)
        enough = free.get("cpu", 0) // 3
        for words in chance.choices(_BOUND_PODS, k=40):
            spec = PODS[words]
            if free["cpu"] <= enough:
                break
            if admits(spec, node) and all(free.get(name, 0) >= amount for name, amount in spec.requests):
                free |= {name: free[name] - amount for name, amount in spec.requests}
                bound.append(
                    BoundPod(
                        f"pod-{len(bound)}",
                        node.name,
                        spec,
                        spec.requests,
                        spec.nonzero_cpu_milli,
                        spec.nonzero_memory_bytes,
                    )
                )
    return bound


@dataclass(frozen=True, slots=True)
class CheckedBatch:
    """A question to an algorithm, and what it is in words."""

    words: str
    batch: PlacementBatch
    snapshot: NodeSnapshot


def generated_batches(
    count: int, *, seed: int, given: Sequence[NodeSpec] = (), cards: bool = False
) -> list[CheckedBatch]:
    """Batches on clusters of `generated_clusters` that have nodes; `cards`: also of pods with cards. Some
    indexes are without a node, as after a removal, and some nodes have less than is requested on them."""
    found = []
    for cluster in generated_clusters(count, seed=seed, given=given)[1:]:
        snapshot = _with_gaps(cluster)
        some = tuple((PLAIN_PODS[words], pods) for words, pods in _BATCH)
        crowd = tuple((PLAIN_PODS[words], cluster.nodes * 20) for words in ("large pods", "pods of one zone"))
        nowhere = ((PLAIN_PODS["pods that fit nowhere"], 5),)
        carded = tuple((spec, 2 * cluster.nodes) for spec in CARD_PODS.values())
        for words, runs in (
            *((("pods with cards", carded),) if cards else ()),
            ("a small pod", ((PLAIN_PODS["small pods"], 1),)),
            ("runs of several sorts", some),
            ("more pods than fit", crowd),
            ("pods that no node admits", nowhere),
        ):
            batch = _batch(runs, snapshot, cluster.snapshot)
            found.append(CheckedBatch(f"{words} ({batch.pods}) on {cluster.words}", batch, snapshot))
    return found


_BATCH = (
    ("pods that tolerate all taints", 20),
    ("large pods", 10),
    ("pods that fit nowhere", 2),
    ("pods of one zone", 40),
    ("pods without requests", 5),
    ("small pods", 60),
)


def _with_gaps(cluster: CheckedCluster) -> NodeSnapshot:
    cache = cluster.snapshot.cache
    allocatable = cache.accounts.allocatable[:, : cache.size].copy()
    requested = cache.requested[:, : cache.size].copy()
    specs = list(cache.catalogue.specs[: cache.size])
    for gone in range(3, cache.size, 10):
        specs[gone] = None
        allocatable[:, gone] = requested[:, gone] = 0
    cards = cache.cards.used[: cache.size].copy()
    cards[3::10] = NO_CARD
    for shrunken in range(5, cache.size, 10):
        requested[:2, shrunken] = allocatable[:2, shrunken] + 1
    for column in (allocatable, requested, cards):
        column.flags.writeable = False
    return NodeSnapshot(tuple(cache.schema.names), allocatable, requested, tuple(specs), cards)


def _batch(
    asked: Sequence[tuple[PodSpec, int]], snapshot: NodeSnapshot, cluster: ClusterSnapshot
) -> PlacementBatch:
    runs, first = [], 0
    for spec, count in asked:
        request = compile_demand(spec, cluster.cache.schema).request
        let_in = np.array([node is not None and admits(spec, node) for node in snapshot.specs], np.bool_)
        admitted = let_in & fits(snapshot.allocatable, snapshot.requested, request)
        if spec.devices is not None and snapshot.cards_used is not None:
            admitted &= cards_fit(snapshot.cards_used, spec.devices.count, spec.devices.milli)
        for column in (request, admitted):
            column.flags.writeable = False
        runs.append(PlacementRun(spec, request, admitted, first, count))
        first += count
    return PlacementBatch(tuple(runs))
