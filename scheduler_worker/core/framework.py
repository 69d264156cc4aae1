"""The scheduling framework: kube-scheduler's extension points over columns of nodes instead of one node at a time.

Filters and scores come in three sorts. *Static* ones depend on the pod's class and the nodes' specs alone: they are computed
once per class and repaired for nodes whose spec changed. *Dynamic* ones depend on what is requested: they are computed
again for nodes that changed. *Pod* ones depend on which pods are where, also on other nodes: for each class they keep a
*standing*, the state that kube-scheduler's PreFilter and PreScore would compute anew for each pod. A profile lists
plugins by name; a plugin serves every extension point whose methods it has. Reserve is the cache's `assume`, for all
plugins at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ConfigError, InvalidInput
from hoss.model.pod import PodSpec
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.catalogue import Mask, NodeCatalogue
from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.guard import guarded
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


@dataclass(frozen=True, slots=True)
class Weighted:
    """A plugin of a profile by its registered name; `args` go to its factory. Weight 0 leaves its score out."""

    name: str
    weight: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Profile:
    """Plugins by extension point, each in the order given."""

    pre_filters: tuple[PreFilter, ...]
    static_filters: tuple[StaticFilter, ...]
    dynamic_filters: tuple[DynamicFilter, ...]
    static_scores: tuple[tuple[StaticScore, int], ...]
    dynamic_scores: tuple[tuple[DynamicScore, int], ...]
    observers: tuple[Observer, ...] = ()
    reads_cards: bool = False  # views hold cards for every pod, not only for those that ask for some
    pre_enqueues: tuple[PreEnqueue, ...] = ()
    pod_filters: tuple[PodFilter, ...] = ()
    pod_scores: tuple[tuple[PodScore, int], ...] = ()
    filters: tuple[Filter, ...] = ()  # of all sorts, in the order in which a node's first refusal is looked for
    by_chance: bool = False  # each pod draws anew among the best nodes; else a worker's order of them is fixed
    # The dynamic plugins once more, if all of them have an attribute `one_at_a_time` that is true.
    one_at_a_time: tuple[tuple[OneNodeFilter, ...], tuple[tuple[OneNodeScore, int], ...]] | None = None
    # And once more, if all of them have an attribute `side_by_side` that is true.
    side_by_side: tuple[tuple[SideBySideFilter, ...], tuple[tuple[SideBySideScore, int], ...]] | None = None

    @property
    def version(self) -> int:
        """Grows whenever scores change though no node did."""
        return sum(observer.version for observer in self.observers)

    def wants_cards(self, demand: Demand) -> bool:
        """Whether views for this demand must hold cards."""
        return self.reads_cards or demand.devices is not None

    @property
    def mixes(self) -> bool:
        """Whether pods of a batch are placed in a drawn order, one by one, and not class after class.

        What packs cards depends on the order: pods of one shape in a row make fragments that no other shape fits.
        """
        return self.reads_cards or self.by_chance

    def evaluate(self, demand: Demand, view: NodeView) -> tuple[Mask | None, NDArray[np.float64]]:
        """Dynamic filters and scores of n nodes: which pass (None: all), and their weighted sum."""
        mask: Mask | None = None
        for plugin in self.dynamic_filters:
            passed = plugin.passes(demand, view)
            if passed is not None:
                mask = passed if mask is None else mask & passed
        total: NDArray[np.float64] | None = None
        for scorer, weight in self.dynamic_scores:
            score = scorer.score(demand, view)
            if score is None:
                continue
            if weight != 1:
                score *= weight
            total = score if total is None else np.add(total, score, out=total)
        return mask, np.zeros(view.requested.shape[1]) if total is None else total

    def evaluate_one(self, demand: Demand, node: OneNode) -> int | None:
        """What `evaluate` says of one node; None: it does not pass. Only with `one_at_a_time`."""
        filters, scores = self.one_at_a_time or ((), ())
        for plugin in filters:
            if not plugin.passes_one(demand, node):
                return None
        total = 0
        for scorer, weight in scores:
            total += weight * scorer.score_one(demand, node)
        return total

    def evaluate_each(self, asked: Asked, view: NodeView) -> tuple[Mask, NDArray[np.float64]]:
        """What `evaluate` says of k pods, each on m nodes of its own: (k, m) both. Only with `side_by_side`."""
        filters, scores = self.side_by_side or ((), ())
        mask, total = np.ones(view.mean_factors.shape, np.bool_), np.zeros(view.mean_factors.shape)
        for plugin in filters:
            passed = plugin.passes_each(asked, view)
            if passed is not None:
                mask &= passed
        for scorer, weight in scores:
            score = scorer.score_each(asked, view)
            if weight != 1:
                score *= weight
            total += score
        return mask, total


class Registry:
    """Plugin factories by name, as kube-scheduler's. It discovers nothing: whoever composes a worker extends it."""

    def __init__(self, factories: Mapping[str, Callable[..., Plugin]]) -> None:
        self._factories = dict(factories)

    @property
    def names(self) -> frozenset[str]:
        """Of all plugins."""
        return frozenset(self._factories)

    def extended(self, factories: Mapping[str, Callable[..., Plugin]]) -> "Registry":
        """With plugins from outside, behind a guard. ConfigError where two have one name."""
        if twice := sorted(self.names & set(factories)):
            raise ConfigError(f"{twice[0]!r} is a plugin already; choose another name", where="plugins")
        return Registry({**self._factories, **{name: guarded(name, make) for name, make in factories.items()}})

    def profile(self, plugins: Sequence[Weighted], *, by_chance: bool = False) -> Profile:
        """Make the plugins and sort them by extension point. ConfigError for a name or argument that is none."""
        made: list[tuple[Plugin, int]] = []
        for entry in plugins:
            factory = self._factories.get(entry.name)
            if factory is None:
                known = ", ".join(sorted(self._factories))
                raise ConfigError(f"{entry.name!r} is none of {known}", where="plugins")
            try:
                made.append((factory(**entry.args), entry.weight))
            except TypeError as exc:
                raise ConfigError(str(exc), where=f"plugins.{entry.name}") from exc
            except InvalidInput as exc:
                raise ConfigError(exc.text, where=f"plugins.{entry.name}.{exc.where}".rstrip(".")) from exc
        filters = tuple(p for p, _ in made if isinstance(p, DynamicFilter))
        scores = tuple((p, w) for p, w in made if w and isinstance(p, DynamicScore))
        return Profile(
            pre_filters=tuple(p for p, _ in made if isinstance(p, PreFilter)),
            static_filters=tuple(p for p, _ in made if isinstance(p, StaticFilter)),
            dynamic_filters=filters,
            static_scores=tuple((p, w) for p, w in made if w and isinstance(p, StaticScore)),
            dynamic_scores=scores,
            observers=tuple(p for p, _ in made if isinstance(p, Observer)),
            reads_cards=any(w and getattr(p, "reads_cards", False) for p, w in made),
            pre_enqueues=tuple(p for p, _ in made if isinstance(p, PreEnqueue)),
            pod_filters=tuple(p for p, _ in made if isinstance(p, PodFilter)),
            pod_scores=tuple((p, w) for p, w in made if w and isinstance(p, PodScore)),
            filters=tuple(p for p, _ in made if isinstance(p, (StaticFilter, DynamicFilter, PodFilter))),
            by_chance=by_chance,
            one_at_a_time=_able("one_at_a_time", filters, scores),
            side_by_side=_able("side_by_side", filters, scores),
        )


def _able(way: str, filters: tuple[Any, ...], scores: tuple[tuple[Any, int], ...]) -> Any:
    """See Profile. An attribute and not a method's presence tells: it may depend on a plugin's arguments."""
    able = all(getattr(p, way, False) for p in (*filters, *(p for p, _ in scores)))
    return (filters, scores) if able else None
