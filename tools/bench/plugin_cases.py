"""The setting of `python -m tools.bench plugins`: a cluster with bound pods, and pods of classes that all
differ."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hoss.model.node import Toleration
from hoss.model.pod import (
    HostPort,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    SpreadConstraint,
    WeightedPodTerm,
    group_of,
)
from hoss.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, PreferredTerm, Requirement
from hossctl.bench.gpu import empty_pool
from hossctl.load.nodes import DEDICATED, GIB, ZONE_LABEL, simulated_nodes
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import compile_demand
from scheduler_worker.core.plugins.nodes.node_affinity import NodeAffinity
from scheduler_worker.core.plugins.nodes.taint_toleration import TaintToleration
from scheduler_worker.core.plugins.pods.inter_pod_affinity import InterPodAffinity
from scheduler_worker.core.plugins.pods.node_ports import NodePorts
from scheduler_worker.core.plugins.pods.topology_spread import HOSTNAME, PodTopologySpread
from scheduler_worker.core.plugins.resources.balanced_allocation import BalancedAllocation
from scheduler_worker.core.plugins.resources.resources_fit import ResourcesFit

APPS = 500  # bound pods belong to so many deployments
_ANTI_AFFINE_APPS = 5  # of them have required anti-affinity by host


@dataclass(frozen=True, slots=True)
class Goal:
    """Microseconds for one pod."""

    new: float
    known: float


OF_NODES = Goal(60, 5)  # rules that need the node alone
OF_PODS = Goal(300, 30)  # rules about pods elsewhere


@dataclass(frozen=True, slots=True)
class Case:
    """One row. `spec` makes the i-th class; no two classes share cached data of the plugins."""

    title: str
    plugins: tuple[str, ...]  # empty: the whole default profile
    spec: Callable[[int], PodSpec]
    goal: Goal | None = None


def filled_cache(nodes: int, pods: int, *, seed: int) -> NodeInfoCache:
    """A worker's cache with so many nodes and, on nodes drawn from the seed, so many pods of `APPS`
    deployments."""
    chance = np.random.default_rng(seed)
    cache = NodeInfoCache()
    cache.apply_feed(empty_pool(simulated_nodes(nodes, seed=seed)))
    owner = chance.integers(APPS, size=pods)
    where = chance.integers(nodes, size=pods)
    for app in range(APPS):
        spec = _bound_spec(app)
        cache.assume(where[owner == app], compile_demand(spec, cache.schema), group_of(spec))
    return cache


def cases(seed: int) -> Sequence[Case]:
    """All rows, the goals' plugins first."""
    chance = random.Random(seed)
    order = list(range(APPS))
    chance.shuffle(order)

    def app(i: int) -> str:
        return f"app-{order[i % APPS]}"

    kinds: Mapping[str, Callable[[int], PodSpec]] = {
        "plain": _plain,
        "selecting": _selecting,
        "tolerating": _tolerating,
        "apart": lambda i: _apart(i, app(i)),
        "near": lambda i: _near(i, app(i)),
        "spread": lambda i: _spread(i, app(i), required=True),
        "evenly": lambda i: _spread(i, app(i), required=False),
    }
    return (
        Case("NodeAffinity", (NodeAffinity.name,), kinds["selecting"], OF_NODES),
        Case("TaintToleration", (TaintToleration.name,), kinds["tolerating"], OF_NODES),
        Case("NodeResourcesFit", (ResourcesFit.name,), kinds["plain"], OF_NODES),
        Case("NodeResourcesBalancedAllocation", (BalancedAllocation.name,), kinds["plain"]),
        Case("InterPodAffinity, required anti-affinity", (InterPodAffinity.name,), kinds["apart"], OF_PODS),
        Case("InterPodAffinity, preferred affinity", (InterPodAffinity.name,), kinds["near"], OF_PODS),
        Case("PodTopologySpread, DoNotSchedule", (PodTopologySpread.name,), kinds["spread"], OF_PODS),
        Case("PodTopologySpread, ScheduleAnyway", (PodTopologySpread.name,), kinds["evenly"], OF_PODS),
        Case("NodePorts", (NodePorts.name,), _holding_a_port),
        Case("whole profile, amounts only", (), kinds["plain"]),
        Case("whole profile, node affinity", (), kinds["selecting"]),
        Case("whole profile, anti-affinity", (), kinds["apart"]),
        Case("whole profile, DoNotSchedule", (), kinds["spread"]),
    )


def _bound_spec(app: int) -> PodSpec:
    labels = (("app", f"app-{app}"),)
    apart = _term(HOSTNAME, f"app-{app}") if app < _ANTI_AFFINE_APPS else None
    return PodSpec(
        labels=labels,
        requests=(("cpu", 500), ("memory", GIB)),
        nonzero_cpu_milli=500,
        nonzero_memory_bytes=GIB,
        pod_affinity=None if apart is None else PodAffinity(anti_required=(apart,)),
    )


def _plain(i: int) -> PodSpec:
    cpu, memory = 100 + i, GIB + i * 4096
    return PodSpec(
        requests=(("cpu", cpu), ("memory", memory)), nonzero_cpu_milli=cpu, nonzero_memory_bytes=memory
    )


def _selecting(i: int) -> PodSpec:
    listed = NodeSelectorTerm((Requirement("disk", "In", ("ssd", f"disk-{i}")),))
    liked = NodeSelectorTerm((Requirement(ZONE_LABEL, "In", ("zone-a", f"zone-{i}")),))
    return replace(
        _plain(i),
        required_node_affinity=NodeSelector((listed,)),
        preferred_node_affinity=(PreferredTerm(10, liked),),
    )


def _tolerating(i: int) -> PodSpec:
    own = Toleration(key=f"key-{i}", operator="Exists")
    return replace(_plain(i), tolerations=(own, Toleration(key=DEDICATED.key, value=DEDICATED.value)))


def _apart(i: int, app: str) -> PodSpec:
    return _with_rules(i, app, PodAffinity(anti_required=(_term(HOSTNAME, app, f"other-{i}"),)))


def _near(i: int, app: str) -> PodSpec:
    return _with_rules(
        i, app, PodAffinity(preferred=(WeightedPodTerm(10, _term(ZONE_LABEL, app, f"other-{i}")),))
    )


def _spread(i: int, app: str, *, required: bool) -> PodSpec:
    selector = _selector(app, f"other-{i}")
    zones = SpreadConstraint(5, ZONE_LABEL, selector, required=required)
    hosts = SpreadConstraint(5, HOSTNAME, selector, required=required)
    return replace(_plain(i), labels=(("app", app),), spread=(zones, hosts))


def _holding_a_port(i: int) -> PodSpec:
    return replace(_plain(i), host_ports=(HostPort(1024 + i % 60_000),))


def _with_rules(i: int, app: str, rules: PodAffinity) -> PodSpec:
    return replace(_plain(i), labels=(("app", app),), pod_affinity=rules)


def _term(key: str, *apps: str) -> PodAffinityTerm:
    return PodAffinityTerm(key, _selector(*apps), ("default",))


def _selector(*apps: str) -> LabelSelector:
    return LabelSelector((Requirement("app", "In", apps),))
