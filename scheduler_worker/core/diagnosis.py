"""Why a class fits nowhere, in kube-scheduler's words."""

from collections import Counter

import numpy as np

from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework import Profile
from scheduler_worker.core.static import StaticFit
from scheduler_worker.core.work import Gang

_NOT_NAMED = "node(s) didn't satisfy plugin(s) [NodeAffinity]"


def fit_error(demand: Demand, static: StaticFit, profile: Profile, cache: NodeInfoCache) -> str:
    """`0/5 nodes are available: 2 Insufficient cpu, 3 node(s) had untolerated taint(s).`

    Each node speaks through the first plugin that refuses it, with all reasons of that plugin.
    """
    nodes = np.flatnonzero(cache.present)
    head = f"0/{len(nodes)} nodes are available"
    if static.rejection is not None:
        return f"{head}: {static.rejection.reason}."
    counts: Counter[str] = Counter()
    left = np.ones(len(nodes), np.bool_)
    for static_filter, refused in static.first_refusals(nodes):
        counts[_NOT_NAMED if static_filter is None else static_filter.reason] += int((refused & left).sum())
        left &= ~refused
    view = cache.view(nodes, cards=demand.devices is not None)
    for dynamic_filter in profile.dynamic_filters:
        refusals = dynamic_filter.refusals(demand, view)
        if refusals is None:
            continue
        for reason, refused in refusals.reasons:
            counts[reason] += int((refused & left).sum())
        for _, refused in refusals.reasons:
            left &= ~refused
    entries = sorted(f"{count} {reason}" for reason, count in counts.items() if count)
    return f"{head}: {', '.join(entries)}." if entries else f"{head}."


def gang_error(gang: Gang, fitting: int, needed: int, why_not: str) -> str:
    """`gang trainer: 6 of the 8 pods it needs fit; for the others 0/5 nodes are available: 5 Insufficient cpu.`"""
    return f"gang {gang.name}: {fitting} of the {needed} pods it needs fit; for the others {why_not}"
