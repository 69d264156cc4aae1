"""Permit: the profile's permit plugins decide about placed pods before they are proposed to the ledger.

A pod that may not go gives back what it assumed. It is unschedulable, or the dispatcher has it tried again.
Pods that go together are held back together: those of a gang that lacks its minimum and those of work that is
all or nothing. Pods that may depend on those held back are placed anew."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.draft import Draft
from scheduler_worker.core.framework.extension_points import Diagnosis, PermitPlugin, PlacedBatch
from scheduler_worker.core.framework.sandbox import PluginFailed, PluginFailures
from scheduler_worker.core.nodes import Mask
from scheduler_worker.core.work import Positions, Run, Work


@dataclass(frozen=True, slots=True)
class HeldPods:
    """Pods of one draft that may not go, for one reason."""

    rows: Positions
    why: Diagnosis


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What becomes of the pods that were taken out of a draft."""

    work: Work
    assumed: Draft  # of all of them: to be given back
    answered: tuple[HeldPods, ...]
    again: tuple[Run, ...]  # to be placed anew


def held_back(
    draft: Draft, plugins: Sequence[PermitPlugin], cache: NodeInfoCache, failures: PluginFailures
) -> HeldBack | None:
    """Take the pods that may not go out of the draft, which has no victims; None: all may go."""
    work = draft.work
    if work is None:
        return None
    decided = decisions(draft.placed_pods(cache), plugins, failures)
    if not decided:
        return None
    if work.missing or work.transactional:
        why = decided[0][1]
        together = "the gang needs it" if work.missing else "all or nothing"
        why = why._replace(text=f"{why.text} ({together})")
        rest = np.concatenate([draft.rows, *(run.rows for run in work.take_unplaced())])
        return HeldBack(work, draft.split(np.ones(draft.pods, np.bool_)), (HeldPods(rest, why),), ())
    rows, depends = draft.rows, draft.depends_on_pods
    answered = tuple(HeldPods(rows[mask], why) for mask, why in decided)
    held: Mask = np.logical_or.reduce([mask for mask, _ in decided])
    if not depends:
        return HeldBack(work, draft.split(held), answered, ())
    assumed = draft.split(np.ones(draft.pods, np.bool_))
    return HeldBack(work, assumed, answered, assumed.runs_without(rows[held]))


def decisions(
    pods: PlacedBatch, plugins: Sequence[PermitPlugin], failures: PluginFailures
) -> list[tuple[Mask, Diagnosis]]:
    """Which of n pods are held back, (n,), and why. The first plugin that holds a pod back decides."""
    left = np.ones(len(pods.classes), np.bool_)
    found: list[tuple[Mask, Diagnosis]] = []

    def hold(mask: Mask, why: Diagnosis) -> None:
        held = left & mask
        if held.any():
            found.append((held, why))
            np.logical_and(left, ~held, out=left)

    for plugin in plugins:
        try:
            permission = plugin.permit(pods)
        except PluginFailed as failure:
            hold(left.copy(), failures.note(failure))
            continue
        if permission is not None:
            why = Diagnosis(permission.reason, frozenset({plugin.name}))
            hold(permission.denied, why)
            if permission.wait is not None:
                hold(permission.wait, why._replace(elsewhere=True))
    return found
