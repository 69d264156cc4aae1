"""Kubernetes mode: the pod conditions that say why pods wait and how often they are written, and the rates of
writes to and reads from the API server.

A pod that fits nowhere gets its condition at once, and again when the reason changes. Reasons contain counts
of nodes that change with every attempt, so a condition is written at most once in `REPEAT_SECONDS`. The
latest reason is always written in the end."""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

REPEAT_SECONDS = 15.0

_SPARE_ENTRIES = 64  # outdated ones that are not worth a pass over the heap


class WaitingPod(NamedTuple):
    """A pod and why it waits. `refused_by`: the plugins behind the reason, sorted. `failed`: a plugin or a
    binding failed, such as by an expression of a claim, and no node helps. `first`: it has no condition
    yet."""

    uid: bytes
    namespace: str
    name: str
    message: str
    refused_by: tuple[str, ...] = ()
    failed: bool = False
    first: bool = True

    @property
    def condition_reason(self) -> str:
        """The reason of its condition PodScheduled, as kube-scheduler writes it. Autoscalers add nodes for
        pods that are Unschedulable."""
        return "SchedulerError" if self.failed else "Unschedulable"


class _Reported(NamedTuple):
    said: tuple[str, str]  # reason and message of the condition
    at: float


class _Due(NamedTuple):
    when: float
    order: int  # tells equal times apart
    pod: WaitingPod


class PodConditions:
    """By UID, the conditions that are written and those still to be written. A look at what is due costs only
    what is due, however many pods wait."""

    def __init__(self) -> None:
        self._reported: dict[bytes, _Reported] = {}
        self._due: dict[bytes, _Due] = {}
        # By time. An entry whose order is not that of `_due` is outdated.
        self._heap: list[tuple[float, int, bytes]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._due)

    def update(self, pod: WaitingPod, now: float) -> None:
        """Schedule the pod's condition, unless the same one is written already."""
        reported = self._reported.get(pod.uid)
        if reported is not None and reported.said == _said(pod):
            self._due.pop(pod.uid, None)
            return
        pod = pod._replace(first=reported is None)
        if (scheduled := self._due.get(pod.uid)) is not None:
            self._due[pod.uid] = scheduled._replace(pod=pod)
            return
        self._schedule(pod, now if reported is None else max(now, reported.at + REPEAT_SECONDS))

    def remove(self, uids: Iterable[bytes]) -> None:
        """These pods no longer wait, or no longer exist."""
        for uid in uids:
            self._reported.pop(uid, None)
            self._due.pop(uid, None)

    def take_due(self, now: float, limit: int) -> list[WaitingPod]:
        """Up to `limit` pods whose condition is due. They count as written."""
        taken: list[WaitingPod] = []
        while len(taken) < limit and self._heap and self._heap[0][0] <= now:
            _, order, uid = heappop(self._heap)
            due = self._due.get(uid)
            if due is not None and due.order == order:
                del self._due[uid]
                self._reported[uid] = _Reported(_said(due.pod), now)
                taken.append(due.pod)
        return taken

    def retry(self, pod: WaitingPod, now: float) -> None:
        """Writing the condition failed: retry a little later, unless a newer one is scheduled."""
        if pod.uid in self._reported and pod.uid not in self._due:
            if pod.first:
                del self._reported[pod.uid]
            else:
                self._reported[pod.uid] = _Reported(("", ""), now)
            self._schedule(pod, now + 1.0)

    def _schedule(self, pod: WaitingPod, when: float) -> None:
        order = next(self._order)
        self._due[pod.uid] = _Due(when, order, pod)
        heappush(self._heap, (when, order, pod.uid))
        if len(self._heap) > 2 * len(self._due) + _SPARE_ENTRIES:
            self._heap = [(due.when, due.order, uid) for uid, due in self._due.items()]
            heapify(self._heap)


def _said(pod: WaitingPod) -> tuple[str, str]:
    return pod.condition_reason, pod.message


class RateLimiter:
    """So many per second, plus what was saved up in `burst_seconds`, for work that may be left out."""

    def __init__(self, per_second: float, *, burst_seconds: float = 5.0) -> None:
        self._per_second = per_second
        self._most = per_second * burst_seconds
        self._saved = self._most
        self._at: float | None = None

    def take(self, now: float) -> bool:
        since = 0.0 if self._at is None else now - self._at
        self._saved = min(self._most, self._saved + since * self._per_second)
        self._at = now
        if self._saved < 1:
            return False
        self._saved -= 1
        return True


# After a quiet time a pod should not wait. In a burst larger batches more than halve the cost of a pod for
# every service and for the cores that they share. Both times are far below the second in which a bound pod
# has to be in the ledger.
QUIET_SECONDS = 0.01
BURST_SECONDS = 0.1
_BURST_RATE = 300  # changes a second


@dataclass(slots=True)
class Debounce:
    """How long to collect changes: a moment after a quiet time, longer in a burst."""

    seconds: float = QUIET_SECONDS

    def observe(self, changes: int) -> None:
        """So many changes came in the last `seconds`."""
        self.seconds = BURST_SECONDS if changes > _BURST_RATE * self.seconds else QUIET_SECONDS
