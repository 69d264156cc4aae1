"""Why a class fits nowhere, in kube-scheduler's words."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from hoss.model.pod import PodSpec
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.catalogue import Mask
from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework import DynamicFilter, Filter, FilterStanding, Refusals, StaticFilter
from scheduler_worker.core.profile import Profile
from scheduler_worker.core.standings import PodStandings
from scheduler_worker.core.static import StaticFit
from scheduler_worker.core.view import NodeView

_NAMES_NODES = "NodeAffinity"  # the plugin that restricts a class to named nodes
_NOT_NAMED = f"node(s) didn't satisfy plugin(s) [{_NAMES_NODES}]"


class Verdict(NamedTuple):
    """What one plugin says against n nodes that no plugin before it refuses."""

    plugin: str  # empty: the restriction to named nodes
    refused: Mask  # (n,)
    refusals: Refusals


class Diagnosis(NamedTuple):
    """Why a class fits nowhere, for people and for whoever waits for it to change."""

    text: str
    refused_by: frozenset[str]  # plugins of which each refused a node that those before it did not; empty: not known


class Judged(Protocol):
    """A class and what is known of it: a ranking, as of its last refresh."""

    @property
    def demand(self) -> Demand: ...
    @property
    def static(self) -> StaticFit: ...
    @property
    def standings(self) -> PodStandings: ...


def verdicts(
    of: Judged, profile: Profile, cache: NodeInfoCache, at: NodeIndexes, view: NodeView | None = None
) -> Iterator[Verdict]:
    """Of each filter about the nodes `at`, in order. A node speaks through the first plugin that refuses it.

    `view`: those nodes as they would be. Not for classes that are rejected before nodes are looked at.
    """
    left = np.ones(len(at), np.bool_)
    for plugin, refusals in _refusals(of, profile, cache, at, view):
        said = np.logical_or.reduce([mask for _, mask in refusals.reasons])
        refused = left & said
        if refused.any():
            yield Verdict(plugin, refused, refusals)
            left &= ~refused


def fit_error(of: Judged, profile: Profile, cache: NodeInfoCache) -> str:
    """`0/5 nodes are available: 2 Insufficient cpu, 3 node(s) had untolerated taint(s).`"""
    return diagnose(of, profile, cache).text


def diagnose(of: Judged, profile: Profile, cache: NodeInfoCache) -> Diagnosis:
    """The fit error, and which plugins are behind it."""
    nodes = np.flatnonzero(cache.present)
    head = f"0/{len(nodes)} nodes are available"
    rejection = of.static.rejection
    if rejection is not None:
        return Diagnosis(f"{head}: {rejection.reason}.", frozenset({rejection.plugin}))
    found = list(verdicts(of, profile, cache, nodes))
    plugins = {verdict.plugin or _NAMES_NODES for verdict in found}
    entries = sorted(f"{count} {reason}" for reason, count in count_reasons(found).items())
    return Diagnosis(f"{head}: {', '.join(entries)}." if entries else f"{head}.", frozenset(plugins))


def count_reasons(found: Iterable[Verdict]) -> Counter[str]:
    """On how many nodes each reason stands."""
    counts: Counter[str] = Counter()
    for verdict in found:
        for reason, refused in verdict.refusals.reasons:
            counts[reason] += int((refused & verdict.refused).sum())
    return +counts


def resolvable(of: Judged, profile: Profile, cache: NodeInfoCache) -> NodeIndexes:
    """The nodes that refuse and might not with fewer pods."""
    nodes = np.flatnonzero(cache.present)
    found = np.zeros(len(nodes), np.bool_)
    for verdict in verdicts(of, profile, cache, nodes) if of.static.rejection is None else ():
        found |= verdict.refused & ~verdict.refusals.unresolvable
    return nodes[found]


def _refusals(
    of: Judged, profile: Profile, cache: NodeInfoCache, at: NodeIndexes, view: NodeView | None
) -> Iterator[tuple[str, Refusals]]:
    by_specs = of.static.first_refusals(at)
    by_pods: dict[Filter, FilterStanding] = dict(of.standings.filters)
    if by_specs and by_specs[0][0] is None:
        yield "", _unresolvable(_NOT_NAMED, by_specs[0][1])
    for plugin in profile.filters:
        if isinstance(plugin, StaticFilter):
            for static_filter, refused in by_specs:
                if static_filter is plugin:
                    yield plugin.name, _unresolvable(_reason(plugin, of.demand), refused)
        if isinstance(plugin, DynamicFilter):
            view = view or cache.view(at, cards=profile.wants_cards(of.demand))
            refusals = plugin.refusals(of.demand, view)
            if refusals is not None:
                yield plugin.name, refusals
        if plugin in by_pods:
            yield plugin.name, _taken(by_pods[plugin].refusals(), at)


def _reason(plugin: StaticFilter, demand: Demand) -> str:
    reason_for: Callable[[PodSpec], str] | None = getattr(plugin, "reason_for", None)
    return plugin.reason if reason_for is None else reason_for(demand.spec)


def _unresolvable(reason: str, refused: Mask) -> Refusals:
    return Refusals(reasons=((reason, refused),), unresolvable=refused)


def _taken(refusals: Refusals, at: NodeIndexes) -> Refusals:
    reasons = tuple((reason, mask[at]) for reason, mask in refusals.reasons)
    return Refusals(reasons, refusals.unresolvable[at])


def gang_error(name: str, fitting: int, needed: int, why_not: str) -> str:
    """`gang trainer: 6 of the 8 pods it needs fit; for the others 0/5 nodes are available: 5 Insufficient cpu.`"""
    return f"gang {name}: {fitting} of the {needed} pods it needs fit; for the others {why_not}"
