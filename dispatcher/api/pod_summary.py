"""How many pods are in each phase, and why those that wait do, in groups.

Pods that wait are grouped by their dominant reason: of `0/5 nodes are available: 3 Insufficient cpu, 2 ...`
that is Insufficient cpu."""

import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.api.tenancy import TenantView
from dispatcher.core.machine import Machine
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.table import Phase
from hoss.v1 import dispatcher_pb2 as pb

NO_REASON_GIVEN = "waits for its turn"
MOST_GROUPS = 12

_TRIED = np.isin(np.arange(len(Phase)), (Phase.BACKOFF, Phase.UNSCHEDULABLE))
_DIAGNOSIS = re.compile(r"0/\d+ nodes are available: (.*?)(?:\.$|\. preemption: |$)")
_ENTRY = re.compile(r"(?:^|, )(\d+) ([^,]+(?:, (?!\d+ )[^,]+)*)")


def pod_summary(machine: Machine, view: TenantView) -> pb.PodSummary:
    """The pods in a view."""
    return pb.PodSummary(pods_by_phase=view.count_by_phase(), pending=pending_groups(machine, view))


@lru_cache(maxsize=65_536)
def dominant(text: str) -> str:
    """The part of a reason that most nodes gave; of as many, the first. A text without numbers of nodes is
    its own."""
    found = _DIAGNOSIS.search(text)
    entries = _ENTRY.findall(found[1]) if found else []
    return max(entries, key=lambda entry: int(entry[0]))[1] if entries else text or NO_REASON_GIVEN


def pending_groups(machine: Machine, view: TenantView) -> list[pb.PendingPods]:
    """The pods in a view that wait by dominant reason, the largest group first, each with an example. The
    groups beyond MOST_GROUPS are joined."""
    registry = machine.registry
    pods = registry.pods
    phase = pods.phase[: pods.size]
    # In the active queue a pod's last reason is outdated. There it waits for its turn, or for a worker.
    queued, tried = np.flatnonzero(phase == Phase.QUEUED), np.flatnonzero(_TRIED[phase])
    if view.tenant:
        queued, tried = queued[view.mask(queued)], tried[view.mask(tried)]
    sub_queues = registry.templates.sub_queue[pods.template[queued]]
    waiting: Counter[str] = Counter()
    example: dict[str, _Found] = {}
    kinds: tuple[tuple[NDArray[np.intp], NDArray[np.unsignedinteger], Callable[[int], str]], ...] = (
        (
            queued,
            sub_queues,
            lambda sub_queue: machine.routing.destination(sub_queue).problem or NO_REASON_GIVEN,
        ),
        (tried, pods.reason[tried], lambda number: dominant(view.text(registry.reasons.texts[number]))),
    )
    for rows, numbers, written in kinds:
        counts = np.bincount(numbers)  # without sorting: a million pods may wait
        for number in np.flatnonzero(counts).tolist():
            reason = written(number)
            waiting[reason] += int(counts[number])
            example.setdefault(reason, _Found(rows, numbers, number))
    largest = waiting.most_common(MOST_GROUPS)
    groups = [
        pb.PendingPods(reason=reason, pods=count, example=_name(registry, example[reason]))
        for reason, count in largest
    ]
    others = sum(waiting.values()) - sum(count for _, count in largest)
    return groups + ([pb.PendingPods(reason="other reasons", pods=others)] if others else [])


class _Found(NamedTuple):
    """The rows whose number is `number`."""

    rows: NDArray[np.intp]
    numbers: NDArray[np.unsignedinteger]
    number: int


def _name(registry: PodRegistry, found: _Found) -> str:
    row = int(found.rows[(found.numbers == found.number).argmax()])
    return f"{registry.namespace_of(row)}/{registry.set_of(row).pod_name(row)}"
