"""Why a class fits nowhere, in kube-scheduler's words, and which of the worker's own pods are in its way."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodSpec
from scheduler_worker.core.cache.assumptions import Assumption, pods_that_fit
from scheduler_worker.core.cache.columns import NodeView
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import (
    Diagnosis,
    Failure,
    FilterPlugin,
    FilterState,
    Reads,
    Refusals,
    Rejection,
)
from scheduler_worker.core.framework.plugin_state import PluginState
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.framework.static_fit import StaticFit
from scheduler_worker.core.nodes import Mask, NodeIndexes
from scheduler_worker.core.pod_index.selector_query import PortHolders


class ExaminedPod(NamedTuple):
    """A pod and what plugins know of it, as of the last `refresh`."""

    demand: Demand
    static: StaticFit
    plugin_state: PluginState

    def refresh(self) -> None:
        """Bring it up to date with the cache."""
        self.static.refresh(self.demand)
        self.plugin_state.refresh()


_NAMES_NODES = "NodeAffinity"  # the plugin that restricts a class to named nodes
_NOT_NAMED = f"node(s) didn't satisfy plugin(s) [{_NAMES_NODES}]"


class FilterVerdict(NamedTuple):
    """One plugin's refusals of n nodes that no plugin before it refuses."""

    plugin: str  # empty: the restriction to named nodes
    refused: Mask  # (n,)
    refusals: Refusals


class ExaminedClass(Protocol):
    """A class with its static fit and plugin state, such as a ranking or an ExaminedPod."""

    @property
    def demand(self) -> Demand: ...
    @property
    def static(self) -> StaticFit: ...
    @property
    def plugin_state(self) -> PluginState: ...


def verdicts(
    of: ExaminedClass, profile: Profile, cache: NodeInfoCache, at: NodeIndexes, view: NodeView | None = None
) -> Iterator[FilterVerdict]:
    """The filters' verdicts on the nodes `at`, in order. Only the first plugin that refuses a node counts for
    it.

    `view`: other columns for those nodes. Not for classes that are rejected before nodes are considered."""
    left = np.ones(len(at), np.bool_)
    for plugin, refusals in _refusals(of, profile, cache, at, view):
        refusing = np.logical_or.reduce([mask for _, mask in refusals.reasons])
        refused = left & refusing
        if refused.any():
            yield FilterVerdict(plugin, refused, refusals)
            left &= ~refused


def fit_error(of: ExaminedClass, profile: Profile, cache: NodeInfoCache) -> str:
    """`0/5 nodes are available: 2 Insufficient cpu, 3 node(s) had untolerated taint(s).`"""
    return diagnose(of, profile, cache).text


def diagnose(of: ExaminedClass, profile: Profile, cache: NodeInfoCache) -> Diagnosis:
    """The fit error, and the plugins that caused it."""
    nodes = np.flatnonzero(cache.present)
    head = f"0/{len(nodes)} nodes are available"
    rejection = rejection_of(of)
    if rejection is not None:
        return Diagnosis(f"{head}: {rejection.reason}.", frozenset({rejection.plugin}))
    failure = failure_of(of, profile, cache)
    if failure is not None:
        return Diagnosis(str(failure), frozenset({failure.plugin}), failed=True)
    found = list(verdicts(of, profile, cache, nodes))
    plugins = {verdict.plugin or _NAMES_NODES for verdict in found}
    entries = sorted(f"{count} {reason}" for reason, count in count_reasons(found).items())
    return Diagnosis(f"{head}: {', '.join(entries)}." if entries else f"{head}.", frozenset(plugins))


def rejection_of(of: ExaminedClass) -> Rejection | None:
    """Why the class is rejected before nodes are considered."""
    return of.static.rejection or of.plugin_state.rejection


def failure_of(of: ExaminedClass, profile: Profile, cache: NodeInfoCache) -> Failure | None:
    """The failure of a filter on a node that all filters before it accept, or of a score where several nodes
    are feasible."""
    failures: dict[str, Failure] = {
        plugin.name: failure
        for plugin, state in of.plugin_state.filters
        if (failure := state.failure) is not None
    }
    unscorable = of.plugin_state.unscorable
    if not failures and unscorable is None:
        return None
    nodes = np.flatnonzero(cache.present)
    left = cache.present.copy()
    for plugin, refusals in _refusals(of, profile, cache, nodes, None):
        failure = failures[plugin].among(left) if plugin in failures else None
        if failure is not None:
            return failure
        left[nodes] &= ~np.logical_or.reduce([mask for _, mask in refusals.reasons])
    feasible = np.flatnonzero(left)
    if unscorable is not None and len(feasible) > 1:
        plugin, why = unscorable
        return Failure(plugin, {int(feasible[0]): why}, scoring=True)
    return None


def count_reasons(found: Iterable[FilterVerdict]) -> Counter[str]:
    """On how many nodes each reason applies."""
    counts: Counter[str] = Counter()
    for verdict in found:
        for reason, refused in verdict.refusals.reasons:
            counts[reason] += int((refused & verdict.refused).sum())
    return +counts


def resolvable(of: ExaminedClass, profile: Profile, cache: NodeInfoCache) -> NodeIndexes:
    """The nodes that refuse, and that might accept with fewer pods."""
    nodes = np.flatnonzero(cache.present)
    found = np.zeros(len(nodes), np.bool_)
    judged = rejection_of(of) is None and failure_of(of, profile, cache) is None
    for verdict in verdicts(of, profile, cache, nodes) if judged else ():
        found |= verdict.refused & ~verdict.refusals.unresolvable
    return nodes[found]


def _refusals(
    of: ExaminedClass, profile: Profile, cache: NodeInfoCache, at: NodeIndexes, view: NodeView | None
) -> Iterator[tuple[str, Refusals]]:
    by_pods: dict[FilterPlugin, FilterState] = dict(of.plugin_state.filters)
    not_named = of.static.not_named(at)
    if not_named is not None:
        yield "", Refusals(reasons=((_NOT_NAMED, not_named),), unresolvable=not_named)
    for plugin in profile.filters:
        refusals: Refusals | None = None
        if plugin.filter_reads is Reads.SPECS:
            refusals = of.static.refusals(plugin, of.demand, at)
        elif plugin.filter_reads is Reads.REQUESTED:
            view = view or cache.view(at, cards=profile.wants_cards(of.demand))
            refusals = plugin.refusals(of.demand, view.for_filters(of.demand))
        elif plugin in by_pods:
            refusals = _taken(by_pods[plugin].refusals(), at)
        if refusals is not None:
            yield plugin.name, refusals


def _taken(refusals: Refusals, at: NodeIndexes) -> Refusals:
    reasons = tuple((reason, mask[at]) for reason, mask in refusals.reasons)
    return Refusals(reasons, refusals.unresolvable[at])


def gang_error(name: str, fitting: int, needed: int, why_not: str) -> str:
    """`gang trainer: 6 of the 8 pods it needs fit; for the others 0/5 nodes are available: 5 Insufficient
    cpu.`"""
    return f"gang {name}: {fitting} of the {needed} pods it needs fit; for the others {why_not}"


def room_in_flight(
    cache: NodeInfoCache, demand: Demand, among: Mask, drafted: Assumption | None = None
) -> tuple[int, list[Assumption]]:
    """How much room this worker's own pods in flight hold: those in the ledger's hands and the `drafted`
    ones.

    Returns how many more pods of this demand would fit without them on nodes of `among`, (nodes,), that have
    room for none now, and the assumptions in the way. Some of these pods may be refused. A pod that the feed
    showed before its verdict came counts twice until then."""
    tracked = cache.in_flight
    if drafted is not None:
        tracked.append(drafted)
    if not tracked or demand.unknown:
        return 0, []
    held = np.zeros(cache.size, np.bool_)
    for assumption in tracked:
        held[assumption.nodes[assumption.live]] = True
    nodes = np.flatnonzero(held & among)
    # On a node that has room now nothing is in the way.
    full = _pods_that_fit(cache, demand, nodes, cache.requested[:, nodes], cache.cards.used) == 0
    nodes = nodes[full]
    if not len(nodes):
        return 0, []
    in_flight = np.zeros((len(cache.schema), cache.size), np.int64)
    for assumption in tracked:
        live, slots = assumption.nodes[assumption.live], assumption.slots[assumption.live]
        # The schema may have grown since the pods were placed.
        for resource in demand.rows[demand.rows < assumption.requests.shape[1]].tolist():
            of_slots = assumption.requests[:, resource]
            if of_slots.any():
                np.add.at(in_flight[resource], live, of_slots[slots])
    without = cache.requested[:, nodes] - in_flight[:, nodes]
    gain = _pods_that_fit(cache, demand, nodes, without, cache.cards.committed)
    gaining = np.zeros(cache.size, np.bool_)
    gaining[nodes[gain > 0]] = True
    in_the_way = [a for a in tracked if gaining[a.nodes[a.live]].any()] if gaining.any() else []
    return int(gain.sum()), in_the_way


def ports_in_flight(
    cache: NodeInfoCache, spec: PodSpec, among: Mask, drafted: Assumption | None = None
) -> tuple[int, list[Assumption]]:
    """As `room_in_flight`, for the host ports that this worker's own pods in flight hold on nodes of
    `among`."""
    clashing, nodes, in_the_way = PortHolders(spec.host_ports), set[int](), []
    for assumption in (*cache.in_flight, *([] if drafted is None else [drafted])):
        slots = [slot for slot, group in enumerate(assumption.groups) if clashing.includes(group, {})]
        held = assumption.nodes[assumption.live & np.isin(assumption.slots, slots)]
        held = held[among[held]]
        if len(held):
            nodes.update(held.tolist())
            in_the_way.append(assumption)
    return len(nodes), in_the_way


def _pods_that_fit(
    cache: NodeInfoCache,
    demand: Demand,
    nodes: NodeIndexes,
    requested: NDArray[np.int64],
    cards: NDArray[np.uint16],
) -> NDArray[np.int64]:
    """By amounts and cards: (n,)."""
    free = cache.accounts.allocatable[:, nodes] - requested
    each = [np.maximum(free[row], 0) // demand.request[row] for row in demand.rows]
    if demand.devices is not None:
        each.append(pods_that_fit(cards[nodes], demand.devices))
    fitting: NDArray[np.int64] = np.minimum.reduce(each)
    return fitting
