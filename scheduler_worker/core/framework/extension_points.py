"""The scheduling framework: kube-scheduler's extension points over columns of nodes instead of one node at a
time.

Filters and scores come in three sorts. *Static* ones depend on the pod's class and the nodes' specs alone.
The framework computes them once per class and repairs them for nodes whose spec changed. *Dynamic* ones
depend on requested amounts and are computed again for nodes that changed. *Pod* ones depend on which pods are
where, also on other nodes. For each class they keep a *state*, which kube-scheduler's PreFilter and PreScore
compute anew for each pod (CycleState). A profile lists plugins by name (`registry`). A plugin serves every
extension point whose methods it has. Reserve is the cache's `assume`, for all plugins at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodSpec
from scheduler_worker.core.cache.columns import NodeView, OneNode, RequestedResources
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.nodes import Mask, NodeCatalogue, NodeIndexes

Domains = NDArray[np.int32]  # (size,): number of each node's domain, -1 without one


class Diagnosis(NamedTuple):
    """Why a class fits nowhere, as a text and by plugin."""

    text: str
    refused_by: frozenset[str]  # plugins, each the first to refuse some node; empty: not known


@dataclass(frozen=True, slots=True)
class DefaultSpreading:
    """How spreading scores the m feasible nodes at present. Fuller domains have more points; a missing label
    gives none."""

    hosts: NDArray[np.int32]  # (m,): pods on the node
    has_host: NDArray[np.bool_]  # (m,): it has the label of its host
    zones: NDArray[np.int32]  # (m,): number of its zone, -1: none
    in_zones: Sequence[int]  # pods by number of zone
    host_least: int
    zone_weight: float
    zone_least: int
    weight: int  # of the whole score

    def points_of_host(self, pods: int, nodes: int) -> float:
        """Points of a node with so many pods, if so many nodes are feasible."""
        return pods * float(np.log(nodes + 2)) + self.host_least

    def points_of_zone(self, pods: int) -> float:
        """Points of a zone with so many pods."""
        return pods * self.zone_weight + self.zone_least


@dataclass(frozen=True, slots=True)
class Skew:
    """A constraint that counts the run's own pods: a domain takes another pod while it has at most `margin`
    more than the emptiest one."""

    domains: Domains
    counts: Sequence[int]  # pods by number of domain
    found: Sequence[int]  # numbers of the domains that are compared; none: the emptiest counts as empty
    margin: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """How the pods of one class limit each other in a run."""

    passed: Mask  # (size,): without nodes that refuse every pod of the run
    once: tuple[Domains, ...] = ()  # a domain of these takes one pod of the run
    skew: Skew | None = None


MAX_SCORE = 100


class Code(Enum):
    """Why a node is out: `UNSCHEDULABLE` means that evicting pods from it might help."""

    UNSCHEDULABLE = "Unschedulable"
    UNSCHEDULABLE_AND_UNRESOLVABLE = "UnschedulableAndUnresolvable"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A pod that no node can take, known before looking at nodes."""

    plugin: str
    code: Code
    reason: str


@dataclass(frozen=True, slots=True)
class Refusals:
    """One filter's reasons against n nodes. A node is refused if any reason applies to it."""

    reasons: tuple[tuple[str, Mask], ...]  # in the order they are reported
    unresolvable: Mask  # (n,): refused, and evicting pods would not help


@dataclass(frozen=True, slots=True)
class Failure:
    """A filter that cannot judge a pod on some nodes. If one of these passes the filters before it, the pod is
    not placed at all (as in kube-scheduler)."""

    plugin: str
    nodes: Mask  # (size,)
    text: str

    def __str__(self) -> str:
        return f'running "{self.plugin}" filter plugin: {self.text}'


@runtime_checkable
class PreEnqueue(Protocol):
    """Decides whether a pod is ready to be scheduled at all."""

    name: str

    def pre_enqueue(self, spec: PodSpec) -> Rejection | None:
        """Why it is not; None: it is."""


@runtime_checkable
class PreFilter(Protocol):
    """Looks at the pod alone."""

    name: str

    def pre_filter(self, spec: PodSpec) -> frozenset[str] | Rejection | None:
        """The only nodes to be considered, by name; or a rejection; None: no opinion (Skip)."""


@runtime_checkable
class StaticFilter(Protocol):
    """Refuses by specs. All its refusals are UnschedulableAndUnresolvable and for one reason.

    A plugin with a method `reason_for(spec)` gives each class its own text."""

    name: str
    reason: str

    def admits(self, spec: PodSpec, catalogue: NodeCatalogue, at: NodeIndexes) -> Mask | None:
        """Which of the nodes `at` are acceptable; None: all (Skip)."""


@runtime_checkable
class DynamicFilter(Protocol):
    """Refuses by requested amounts. A node that refuses a class must also refuse it with more pods on it."""

    name: str

    def passes(self, demand: Demand, view: NodeView) -> Mask | None:
        """Which of the view's nodes have room; None: all (Skip)."""

    def refusals(self, demand: Demand, view: NodeView) -> Refusals | None:
        """The same with reasons, for diagnosis; None: all have room."""


@runtime_checkable
class StaticScore(Protocol):
    """Scores by specs; normalised over the feasible nodes.

    A plugin with a true attribute `of_all_nodes` scores each node by the specs of others too. When a node
    changed, it is called again for all nodes."""

    name: str

    def raw_score(self, spec: PodSpec, catalogue: NodeCatalogue, at: NodeIndexes) -> NDArray[np.int64] | None:
        """A number >= 0 for each of the nodes `at`; None: no opinion (Skip)."""

    def normalize(self, raw: NDArray[np.int64], highest: int) -> NDArray[np.int64]:
        """0 to MAX_SCORE, `highest` being the largest raw score among the feasible nodes."""


@runtime_checkable
class DynamicScore(Protocol):
    """Scores by requested amounts."""

    name: str

    def score(self, demand: Demand, view: NodeView) -> NDArray[np.float64] | None:
        """Whole numbers from 0 to MAX_SCORE, (n,); None: no opinion (Skip)."""


class FilterState(Protocol):
    """A pod filter's result for one class on all nodes below the cache's size.

    It may also have a method `bounds()`: how pods of the class limit each other, Bounds, or None if that
    cannot be told. Without it pods of the class are placed one by one.

    And an attribute `rejection`: why no node can take the class, a Rejection, or None; it comes before all
    filters. And an attribute `failure`: a Failure, or None. And a method `reserved_names(node)`: names of what
    a pod of the class takes there, for the ledger to keep two workers from giving it out at once."""

    passed: Mask  # (size,), as of the last `refresh`

    def refresh(self) -> bool:
        """Bring it up to date with the cache; whether `passed` may have changed."""

    def refusals(self) -> Refusals:
        """The same with reasons. If several reasons apply to a node, the first one counts."""


@runtime_checkable
class PodFilter(Protocol):
    """Refuses by the pods on a node and in its domains."""

    name: str

    def filter_state(self, spec: PodSpec, cache: NodeInfoCache) -> FilterState | None:
        """The state of a class; None: the plugin never has an opinion on it (Skip)."""


class ScoreState(Protocol):
    """A pod score's result for one class on all nodes below the cache's size.

    This and FilterState may have a property `steady`: true while no pod of the class changes the result (a
    filter then lets all nodes pass). Runs of pods can be placed at once if all states but that of default
    spreading are steady. And `flat`: all nodes score alike, and no pod of the class changes that. Then
    filters' `bounds` are used."""

    def refresh(self) -> bool:
        """Bring it up to date; whether scores may have changed although the same nodes are feasible."""

    def scores(self, feasible: Mask) -> NDArray[np.int64] | None:
        """0 to MAX_SCORE for feasible nodes, normalised over them, anything for others: (size,); None: no
        opinion.

        The framework changes the array in place."""


@runtime_checkable
class PodScore(Protocol):
    """Scores by the pods on a node and in its domains."""

    name: str

    def score_state(self, spec: PodSpec, cache: NodeInfoCache) -> ScoreState | None:
        """The state of a class; None: the plugin never has an opinion on it (Skip)."""


class OneNodeFilter(Protocol):
    """A dynamic filter that can also check a single node: see `Profile.one_at_a_time`."""

    def passes_one(self, demand: Demand, node: OneNode) -> bool:
        """The result of `passes` for this node."""


class OneNodeScore(Protocol):
    """A dynamic score that can also score a single node: see `Profile.one_at_a_time`."""

    def score_one(self, demand: Demand, node: OneNode) -> int:
        """The result of `score` for this node; 0 for None."""


class SideBySideFilter(Protocol):
    """A dynamic filter that can also check several pods at once: see `Profile.side_by_side`."""

    def passes_each(self, requested: RequestedResources, view: NodeView) -> Mask | None:
        """The result of `passes` for each pod on its own nodes, (k, m); None: all pass. Only for plain
        demands (see Demand)."""


class SideBySideScore(Protocol):
    """A dynamic score that can also score several pods at once: see `Profile.side_by_side`."""

    def score_each(self, requested: RequestedResources, view: NodeView) -> NDArray[np.float64]:
        """The result of `score` for each pod on its own nodes, (k, m). Only for plain demands."""


@runtime_checkable
class Observer(Protocol):
    """Sees the work that arrives."""

    name: str
    version: int  # grows whenever scores change though no node did

    def observe(self, demand: Demand, pods: int) -> None:
        """So many pods with this demand arrived, in their first dispatch."""


Filter = StaticFilter | DynamicFilter | PodFilter
Plugin = PreEnqueue | PreFilter | Filter | StaticScore | DynamicScore | PodScore | Observer
