"""The scheduling framework's extension points: kube-scheduler's, over columns of nodes instead of one node at
a time.

A plugin is one class that derives from as many of these as it serves: FilterPlugin, ScorePlugin,
PermitPlugin and PreBindPlugin. The framework knows a plugin by its base classes and by what they declare.
What it declares with `filter_reads` and `score_reads` says how often it is asked:

- SPECS: once for pods that differ only in amounts, and again for nodes whose spec changed.
- REQUESTED: again for nodes on which pods came or went.
- PODS: the plugin keeps a state of each class (FilterState, ScoreState; kube-scheduler: CycleState), because
  pods on other nodes count too.

Reserve is the cache's `assume`, for all plugins at once. Everything that has a default here may be left
out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.devices import Allocation, HeldClaim
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, SpreadConstraint
from hoss.wire.columns import Uids
from scheduler_worker.core.cache.columns import NodeView, OneNode, RequestedResources
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.nodes import Mask, NodeIndexes, NodeSpecs

# What a plugin needs: its bases, what it is given, and what it answers.
__all__ = [
    "Demand",
    "FilterPlugin",
    "FilterState",
    "Mask",
    "NodeView",
    "Permission",
    "PermitPlugin",
    "PlacedBatch",
    "PreBindPlugin",
    "Reads",
    "Refusals",
    "Rejection",
    "ReservedBatch",
    "ScorePlugin",
    "ScoreState",
    "Unready",
]

Domains = NDArray[np.int32]  # (size,): number of each node's domain, -1 without one


class Diagnosis(NamedTuple):
    """Why a class fits nowhere, as a text and by plugin."""

    text: str
    refused_by: frozenset[str] = frozenset()  # plugins, each the first to refuse some node; empty: not known
    elsewhere: bool = False  # nodes are not to blame: another worker may place the pods as things are
    failed: bool = False  # a plugin failed instead of refusing nodes (kube-scheduler: Error)


NO_REASON = Diagnosis("")


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
    """A filter that cannot judge a pod on some nodes. If one of these passes the filters before it, the pod
    is not placed at all (as in kube-scheduler). Or a score that cannot be computed: then the pod is not
    placed where it would have a choice."""

    plugin: str
    texts: Mapping[int, str]  # why, by node; not empty
    scoring: bool = False

    @property
    def text(self) -> str:
        """Why, on the first of the nodes."""
        return self.texts[min(self.texts)]

    def among(self, nodes: Mask) -> "Failure | None":
        """The failure on these nodes alone, (size,); None: the filter can judge them."""
        texts = {node: text for node, text in self.texts.items() if nodes[node]}
        return Failure(self.plugin, texts) if texts else None

    def __str__(self) -> str:
        if self.scoring:
            return f'running PreScore plugin "{self.plugin}": {self.text}'
        return f'running "{self.plugin}" filter plugin: {self.text}'


class Reads(Enum):
    """What the answers of a filter or a score depend on besides the pod; see the module."""

    SPECS = "specs"
    REQUESTED = "requested"
    PODS = "pods"


@dataclass(frozen=True, slots=True)
class FilterFastPaths:
    """Other ways to ask a filter that reads REQUESTED. A way is used if all such filters and scores of a
    profile have it."""

    # The result of `filter` for this node.
    one_node: Callable[[Demand, OneNode], bool] | None = None
    # The result for each pod on its own nodes, (k, m); None: all pass. Only for plain demands (see Demand).
    side_by_side: Callable[[RequestedResources, NodeView], Mask | None] | None = None


@dataclass(frozen=True, slots=True)
class ScoreFastPaths:
    """Other ways to ask a score that reads REQUESTED, as in FilterFastPaths."""

    # The result of `score` for this node; 0 for None.
    one_node: Callable[[Demand, OneNode], int] | None = None
    # The result for each pod on its own nodes, (k, m). Only for plain demands.
    side_by_side: Callable[[RequestedResources, NodeView], NDArray[np.float64]] | None = None


@dataclass(frozen=True, slots=True)
class Reserved:
    """What a pod of a class takes if it is placed on a node."""

    names: tuple[str, ...] = ()  # for the ledger, to keep two workers from giving the same thing out at once
    # By claim that is to be bound, the volume that it gets; None: one that is provisioned.
    volumes: Mapping[str, str | None] = field(default_factory=dict)
    devices: Mapping[str, Allocation] = field(default_factory=dict)  # by claim that is to be allocated
    mappings: tuple[Any, ...] = ()  # which requests stand for whose extended resources (RequestMapping)
    held: tuple[HeldClaim, ...] = ()  # the claims that it holds devices for


NOTHING_RESERVED = Reserved()


class FilterState(ABC):
    """The result of a filter that reads PODS, for one class on all nodes below the cache's size."""

    passed: Mask  # (size,), as of the last `refresh`
    rejection: Rejection | None = None  # why no node can take the class; it comes before all filters
    failure: Failure | None = None

    @abstractmethod
    def refresh(self) -> bool:
        """Bring it up to date with the cache; whether anything of it may have changed, the reasons
        included."""

    @abstractmethod
    def refusals(self) -> Refusals:
        """The same with reasons. If several reasons apply to a node, the first one counts."""

    def prepare(self) -> bool:
        """Do some milliseconds of what the next `refresh` has to do, if that may take long; whether nothing
        of it is left. A worker asks before it places a pod, and answers others in between."""
        return True

    @property
    def steady(self) -> bool:
        """Whether all nodes pass and no pod of the class changes that. Runs of pods can be placed at once if
        all states but that of default spreading are steady."""
        return False

    def bounds(self) -> Bounds | None:
        """How pods of the class limit each other. None: it cannot be told, and they are placed one by one."""
        return None

    def reserve(self, node: int) -> Reserved:  # noqa: ARG002 - for those that have something to reserve
        """What a pod of the class takes on a node that passes."""
        return NOTHING_RESERVED


class ScoreState(ABC):
    """The result of a score that reads PODS, for one class on all nodes below the cache's size."""

    @abstractmethod
    def refresh(self) -> bool:
        """Bring it up to date; whether scores may have changed although the same nodes are feasible."""

    @abstractmethod
    def scores(self, feasible: Mask) -> NDArray[np.int64] | None:
        """0 to MAX_SCORE for feasible nodes, normalised over them, anything for others: (size,); None: no
        opinion.

        The framework changes the array in place."""

    @property
    def steady(self) -> bool:
        """Whether no pod of the class changes the scores."""
        return False

    @property
    def flat(self) -> bool:
        """Whether all nodes score alike, and no pod of the class changes that. Then filters' `bounds` are
        used."""
        return False

    def default_spreading(
        self,
        feasible: NodeIndexes,  # noqa: ARG002
        weight: int,  # noqa: ARG002
    ) -> DefaultSpreading | None:
        """The same for a whole run on these feasible nodes, after `scores` of them; None: it is not default
        spreading."""
        return None


class FilterPlugin:
    """Refuses pods, or nodes for them (kube-scheduler: PreEnqueue, PreFilter, Filter)."""

    name: str
    reason = "node(s) were refused by a plugin"  # shown for pods that fit nowhere
    filter_reads = Reads.REQUESTED
    fast_filter = FilterFastPaths()
    # Constraints for pods that have none, of which some are DoNotSchedule; without selectors.
    spread_by_default: tuple[SpreadConstraint, ...] = ()
    # How long a placed pod may wait for what has to be ready before it is bound; None: by the platform.
    bind_seconds: float | None = None

    def pre_filter(self, spec: PodSpec) -> frozenset[str] | Rejection | None:  # noqa: ARG002
        """By the pod alone: the only nodes to be considered, by name; or why no node can take it; None: no
        opinion."""
        return None

    def filter(self, pod: Demand, nodes: NodeView) -> Mask | None:  # noqa: ARG002
        """Which of the n nodes pass: (n,); None: all.

        By SPECS it is given NodeSpecs, and may look at nothing of the pod but its `spec` without the amounts.
        By REQUESTED a node that refuses a class must also refuse it with more pods on it."""
        return None

    def refusals(self, pod: Demand, nodes: NodeView) -> Refusals | None:
        """The same with reasons, for pods that fit nowhere; None: all pass."""
        passed = self.filter(pod, nodes)
        if passed is None:
            return None
        refused = ~passed
        by_specs = self.filter_reads is Reads.SPECS
        return Refusals(
            ((self.reason_for(pod.spec), refused),), refused if by_specs else np.zeros_like(refused)
        )

    def reason_for(self, spec: PodSpec) -> str:  # noqa: ARG002 - for those that say it by the pod
        """The one reason of `refusals`."""
        return self.reason

    def filter_state(self, spec: PodSpec, cache: NodeInfoCache) -> FilterState | None:  # noqa: ARG002
        """In place of `filter` by PODS: the state of a class; None: never an opinion on it."""
        return None


class ScorePlugin:
    """Scores nodes (kube-scheduler: PreScore, Score, NormalizeScore). The profile gives it a weight."""

    name: str
    score_reads = Reads.REQUESTED
    fast_score = ScoreFastPaths()
    reads_cards = False  # it looks at `cards_used` also for pods without cards, and their order matters to it
    # By SPECS: a node's score depends on the specs of others, so it is asked about all when one changed.
    compares_nodes = False
    version = 0  # grows whenever scores change though no node did

    def pre_score(self, spec: PodSpec) -> str | None:  # noqa: ARG002
        """By the pod alone: why it cannot be scored. It is not placed then where several nodes are feasible
        (as in kube-scheduler). None: it can."""
        return None

    def score(self, pod: Demand, nodes: NodeView) -> NDArray[Any] | None:  # noqa: ARG002
        """By REQUESTED: whole numbers from 0 to MAX_SCORE, float64, (n,). By SPECS it is given NodeSpecs, as
        a filter is, and answers with any whole numbers from 0 on, int64. None: no opinion."""
        return None

    def normalize_score(self, raw: NDArray[np.int64], highest: int) -> NDArray[np.int64]:
        """By SPECS: from `score` to 0 to MAX_SCORE, `highest` being the largest raw score among the feasible
        nodes. The more the better."""
        return MAX_SCORE * raw // max(highest, 1)

    def score_state(self, spec: PodSpec, cache: NodeInfoCache) -> ScoreState | None:  # noqa: ARG002
        """In place of `score` by PODS: the state of a class; None: never an opinion on it."""
        return None

    def observe(self, pod: Demand, pods: int) -> None:
        """So many pods with this demand arrived, in their first dispatch."""


@dataclass(frozen=True, slots=True)
class PlacedBatch:
    """n pods of one work batch that are placed and not yet proposed."""

    specs: tuple[PodSpec, ...]  # of the classes among them
    classes: NDArray[np.intp]  # (n,): position in `specs`
    nodes: NodeSpecs  # of n nodes: each pod's own


@dataclass(frozen=True, slots=True, eq=False)
class Permission:
    """Which of n placed pods may not be proposed now. Those that are neither denied nor wait are proposed."""

    reason: str
    denied: Mask  # (n,): unschedulable
    wait: Mask | None = None  # (n,): tried again after a back-off, perhaps elsewhere; None: none of them


class PermitPlugin(ABC):
    """Decides about placed pods before they are proposed to the ledger (kube-scheduler: Permit)."""

    name: str

    @abstractmethod
    def permit(self, pods: PlacedBatch) -> Permission | None:
        """Which may not go; None: all go."""


@dataclass(frozen=True, slots=True, eq=False)
class ReservedBatch:
    """n pods that the ledger has reserved, and that are not bound yet. Nothing of it changes."""

    specs: tuple[PodSpec, ...]  # of the classes among them
    classes: NDArray[np.intp]  # (n,): position in `specs`
    uids: Uids  # (n, 16): UIDs of the pods; hoss.wire.uids.uid_text writes one
    node_specs: tuple[NodeSpec, ...]  # of the nodes among them
    nodes: NDArray[np.intp]  # (n,): each pod's own, position in `node_specs`

    def of(self, positions: NDArray[np.intp]) -> "ReservedBatch":
        """These of the pods."""
        return replace(
            self, classes=self.classes[positions], uids=self.uids[positions], nodes=self.nodes[positions]
        )


@dataclass(frozen=True, slots=True, eq=False)
class Unready:
    """Which of n reserved pods must not be bound. Their room is given back, and they are tried again."""

    reason: str
    pods: Mask  # (n,)


class PreBindPlugin(ABC):
    """Prepares pods between their reservation and the moment they are bound (kube-scheduler: PreBind).

    Both methods are called in a thread of their own, while the worker goes on, and may wait for others. Both
    may be called again for the same pod: a worker that is lost in between calls neither, and another one
    begins anew."""

    name: str

    @abstractmethod
    def pre_bind(self, pods: ReservedBatch) -> Unready | None:
        """Prepare the pods; which are not ready. None: all are."""

    def unreserve(self, pods: ReservedBatch) -> None:  # noqa: B027 - most need not, but may
        """These pods will not be bound on these nodes: undo what was done for them, if anything."""


Plugin = FilterPlugin | ScorePlugin | PermitPlugin | PreBindPlugin


def overrides(plugin: object, method: Callable[..., Any]) -> bool:
    """Whether the plugin's class has a method of its own in place of this one of its base class. What has not
    need not be asked."""
    return getattr(type(plugin), method.__name__) is not method
