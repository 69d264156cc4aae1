"""Kubernetes mode: what pods are told of why they wait, and how often.

A pod that fits nowhere is told at once, and again when the reason is another one; but reasons carry counts of nodes that change with
every attempt, so one that waits is not told anew more often than every few seconds. The latest reason is told in the end.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

AGAIN_SECONDS = 15.0


class Waiting(NamedTuple):
    """A pod and why it waits. `refused_by`: the plugins behind it, sorted; `first`: it has not been told of anything before."""

    uid: bytes
    namespace: str
    name: str
    message: str
    refused_by: tuple[str, ...] = ()
    first: bool = True


class _Told(NamedTuple):
    message: str
    at: float


class Notices:
    """By UID, what pods have been told and what they are still to be told."""

    def __init__(self) -> None:
        self._told: dict[bytes, _Told] = {}
        self._due: OrderedDict[bytes, tuple[float, Waiting]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._due)

    def waits(self, pod: Waiting, now: float) -> None:
        """It is to be told, if it has not been told just that."""
        told = self._told.get(pod.uid)
        if told is not None and told.message == pod.message:
            self._due.pop(pod.uid, None)
            return
        when = now if told is None else max(now, told.at + AGAIN_SECONDS)
        self._due[pod.uid] = when, pod._replace(first=told is None)

    def over(self, uids: Iterable[bytes]) -> None:
        """They wait no longer, or are not there any more."""
        for uid in uids:
            self._told.pop(uid, None)
            self._due.pop(uid, None)

    def take_due(self, now: float, limit: int) -> list[Waiting]:
        """Up to `limit` of those that are to be told now. They count as told."""
        taken: list[Waiting] = []
        for uid, (when, pod) in list(self._due.items()):
            if len(taken) == limit:
                break
            if when <= now:
                del self._due[uid]
                self._told[uid] = _Told(pod.message, now)
                taken.append(pod)
        return taken

    def failed(self, pod: Waiting, now: float) -> None:
        """It could not be told: again a little later, unless there is newer word of it."""
        if pod.uid in self._told and pod.uid not in self._due:
            if pod.first:
                del self._told[pod.uid]
            else:
                self._told[pod.uid] = _Told("", now)
            self._due[pod.uid] = now + 1.0, pod


class Allowance:
    """So many a second, and what was saved in `burst_seconds`: for what may be left out when there is too much of it."""

    def __init__(self, per_second: float, *, burst_seconds: float = 5.0) -> None:
        self._per_second = per_second
        self._most = per_second * burst_seconds
        self._saved = self._most
        self._at: float | None = None

    def take(self, now: float) -> bool:
        """Whether one more may be done now."""
        since = 0.0 if self._at is None else now - self._at
        self._saved = min(self._most, self._saved + since * self._per_second)
        self._at = now
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
