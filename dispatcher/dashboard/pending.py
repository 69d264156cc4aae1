"""Why pods wait, in the few words that concern most nodes: `0/5 nodes are available: 3 Insufficient cpu, 2 ...` is Insufficient cpu."""

import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.machine import Machine
from dispatcher.core.podtable import Phase
from dispatcher.core.registry import PodRegistry

NO_REASON_GIVEN = "waits for its turn"
MOST_GROUPS = 12

_TRIED = np.isin(np.arange(len(Phase)), (Phase.BACKOFF, Phase.UNSCHEDULABLE))
_DIAGNOSIS = re.compile(r"0/\d+ nodes are available: (.*?)(?:\.$|\. preemption: |$)")
_ENTRY = re.compile(r"(?:^|, )(\d+) ([^,]+(?:, (?!\d+ )[^,]+)*)")


@lru_cache(maxsize=65_536)
def dominant(text: str) -> str:
    """The part of a reason that most nodes gave; of as many, the first. A text without numbers of nodes is its own."""
    found = _DIAGNOSIS.search(text)
    entries = _ENTRY.findall(found[1]) if found else []
    return max(entries, key=lambda entry: int(entry[0]))[1] if entries else text or NO_REASON_GIVEN


def pending_groups(machine: Machine) -> list[dict[str, Any]]:
    """Pods that wait, by dominant reason, the most first; each with a pod of it. What is beyond MOST_GROUPS is one group."""
    registry = machine.registry
    pods = registry.pods
    phase = pods.phase[: pods.size]
    # In the active queue a pod's last reason is of the past; what may keep it there is that nobody takes it.
    queued, tried = np.flatnonzero(phase == Phase.QUEUED), np.flatnonzero(_TRIED[phase])
    lanes = registry.templates.lane[pods.template[queued]]
    waiting: Counter[str] = Counter()
    example: dict[str, _Found] = {}
    kinds: tuple[tuple[NDArray[np.intp], NDArray[np.unsignedinteger], Callable[[int], str]], ...] = (
        (queued, lanes, lambda lane: machine.routing.destination(lane).problem or NO_REASON_GIVEN),
        (tried, pods.reason[tried], lambda number: dominant(registry.reasons.texts[number])),
    )
    for rows, numbers, written in kinds:
        counts = np.bincount(numbers)  # a million pods wait at times: nothing here sorts them
        for number in np.flatnonzero(counts).tolist():
            reason = written(number)
            waiting[reason] += int(counts[number])
            example.setdefault(reason, _Found(rows, numbers, number))
    told = waiting.most_common(MOST_GROUPS)
    groups = [{"reason": reason, "pods": count, "example": _name(registry, example[reason])} for reason, count in told]
    others = sum(waiting.values()) - sum(count for _, count in told)
    return groups + ([{"reason": "other reasons", "pods": others, "example": ""}] if others else [])


class _Found(NamedTuple):
    """Pods with that number among `numbers`."""

    rows: NDArray[np.intp]
    numbers: NDArray[np.unsignedinteger]
    number: int


def _name(registry: PodRegistry, found: _Found) -> str:
    row = int(found.rows[(found.numbers == found.number).argmax()])
    return f"{registry.namespace_of(row)}/{registry.set_of(row).pod_name(row)}"
