"""The scheduling framework: kube-scheduler's extension points over columns of nodes instead of one node at a time.

Filters and scores come in three sorts. *Static* ones depend on the pod's class and the nodes' specs alone: they are computed
once per class and repaired for nodes whose spec changed. *Dynamic* ones depend on what is requested: they are computed
again for nodes that changed. *Pod* ones depend on which pods are where, also on other nodes: for each class they keep a
*standing*, the state that kube-scheduler's PreFilter and PreScore would compute anew for each pod. A profile lists
plugins by name (`registry`); a plugin serves every extension point whose methods it has. Reserve is the cache's `assume`, for all
plugins at once.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodSpec
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.catalogue import Mask, NodeCatalogue
from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.view import Asked, NodeView, OneNode

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
    """What one filter says against n nodes. A node is refused if any reason applies to it."""

    reasons: tuple[tuple[str, Mask], ...]  # in the order they are reported
    unresolvable: Mask  # (n,): refused, and evicting pods would not help


@runtime_checkable
class PreEnqueue(Protocol):
    """Decides whether a pod is ready to be scheduled at all."""

    name: str

    def pre_enqueue(self, spec: PodSpec) -> Rejection | None:
        """Why it is not; None: it is."""
        ...


@runtime_checkable
class PreFilter(Protocol):
    """Looks at the pod alone."""

    name: str

    def pre_filter(self, spec: PodSpec) -> frozenset[str] | Rejection | None:
        """The only nodes worth looking at, by name; or a rejection; None: nothing to say (Skip)."""
        ...


@runtime_checkable
class StaticFilter(Protocol):
    """Refuses by specs. All its refusals are UnschedulableAndUnresolvable and for one reason.

    A plugin with a method `reason_for(spec)` says it in other words for each class.
    """

    name: str
    reason: str

    def admits(self, spec: PodSpec, catalogue: NodeCatalogue, at: NodeIndexes) -> Mask | None:
        """Which of the nodes `at` are acceptable; None: all (Skip)."""
        ...


@runtime_checkable
class DynamicFilter(Protocol):
    """Refuses by what is requested. A node that refuses a class must refuse it with more pods on it, too."""

    name: str

    def passes(self, demand: Demand, view: NodeView) -> Mask | None:
        """Which of the view's nodes have room; None: all (Skip)."""
        ...

    def refusals(self, demand: Demand, view: NodeView) -> Refusals | None:
        """The same with reasons, for telling people; None: all have room."""
        ...


@runtime_checkable
class StaticScore(Protocol):
    """Scores by specs; normalised over the feasible nodes.

    A plugin with a true attribute `of_all_nodes` scores each node by the specs of others too: it is asked again for all
    nodes when one changed.
    """

    name: str

    def raw_score(self, spec: PodSpec, catalogue: NodeCatalogue, at: NodeIndexes) -> NDArray[np.int64] | None:
        """A number >= 0 for each of the nodes `at`; None: nothing to say (Skip)."""
        ...

    def normalize(self, raw: NDArray[np.int64], highest: int) -> NDArray[np.int64]:
        """0 to MAX_SCORE, `highest` being the largest raw score among the feasible nodes."""
        ...


@runtime_checkable
class DynamicScore(Protocol):
    """Scores by what is requested."""

    name: str

    def score(self, demand: Demand, view: NodeView) -> NDArray[np.float64] | None:
        """Whole numbers from 0 to MAX_SCORE, (n,); None: nothing to say (Skip)."""
        ...


class FilterStanding(Protocol):
    """What a pod filter says of all nodes below the cache's size, for one class."""

    passed: Mask  # (size,), as of the last `refresh`

    def refresh(self) -> bool:
        """Take in what happened since; whether `passed` may have changed."""
        ...

    # A standing may also have `bounds()`: how pods of the class limit each other, Bounds, or None where it cannot be told.
    # Without it pods of the class are placed one by one.

    def refusals(self) -> Refusals:
        """The same with reasons. A node that several reasons apply to is refused for the first of them."""
        ...


@runtime_checkable
class PodFilter(Protocol):
    """Refuses by the pods on a node and in its domains."""

    name: str

    def filter_standing(self, spec: PodSpec, cache: NodeInfoCache) -> FilterStanding | None:
        """The standing of a class; None: nothing to say on it, ever (Skip)."""
        ...


class ScoreStanding(Protocol):
    """What a pod score says of all nodes below the cache's size, for one class.

    This and FilterStanding may have a property `steady`: true while no pod of the class changes what it says (a filter then
    lets all nodes pass). Runs of pods can be placed at once where all standings are, but for spreading by default. And `flat`:
    it makes no difference between nodes, and no pod of the class changes that; then filters' `bounds` are looked at.
    """

    def refresh(self) -> bool:
        """Take in what happened since; whether scores may have changed although the same nodes are feasible."""
        ...

    def scores(self, feasible: Mask) -> NDArray[np.int64] | None:
        """0 to MAX_SCORE for feasible nodes, normalised over them, anything for others: (size,). None: nothing to say.

        The framework computes in place with what it gets.
        """
        ...


@runtime_checkable
class PodScore(Protocol):
    """Scores by the pods on a node and in its domains."""

    name: str

    def score_standing(self, spec: PodSpec, cache: NodeInfoCache) -> ScoreStanding | None:
        """The standing of a class; None: nothing to say on it, ever (Skip)."""
        ...


class OneNodeFilter(Protocol):
    """A dynamic filter, and at the same time able to look at one node: see `Profile.one_at_a_time`."""

    def passes_one(self, demand: Demand, node: OneNode) -> bool:
        """What `passes` says of this node."""
        ...


class OneNodeScore(Protocol):
    """A dynamic score, and at the same time able to look at one node: see `Profile.one_at_a_time`."""

    def score_one(self, demand: Demand, node: OneNode) -> int:
        """What `score` says of this node; 0 where it has nothing to say."""
        ...


class SideBySideFilter(Protocol):
    """A dynamic filter, and at the same time able to look at several pods: see `Profile.side_by_side`."""

    def passes_each(self, asked: Asked, view: NodeView) -> Mask | None:
        """What `passes` says of each pod on the nodes of its own, (k, m); None: all pass. Of plain demands (see Demand)."""
        ...


class SideBySideScore(Protocol):
    """A dynamic score, and at the same time able to look at several pods: see `Profile.side_by_side`."""

    def score_each(self, asked: Asked, view: NodeView) -> NDArray[np.float64]:
        """What `score` says of each pod on the nodes of its own, (k, m). Of plain demands."""
        ...


@runtime_checkable
class Observer(Protocol):
    """Sees what work comes in, besides what else it does."""

    name: str
    version: int  # grows whenever scores change though no node did

    def observe(self, demand: Demand, pods: int) -> None:
        """So many pods with this demand came, for the first time."""
        ...


Filter = StaticFilter | DynamicFilter | PodFilter
Plugin = PreEnqueue | PreFilter | Filter | StaticScore | DynamicScore | PodScore | Observer
