"""How a worker's cache follows the ledger. The modes differ in what fills the cache, and when.

push     the node feed: every change as it happens
pull     the state of the ledger, once an interval
refusal  the state once; from then on accounts that come with refusals, and the worker's own commits
"""

import asyncio
from typing import Protocol

from hoss.client.feed import Subscription
from scheduler_worker.config import SyncMode


class Synchronisation(Protocol):
    """Fills a cache with the state of the ledger."""

    @property
    def mode(self) -> SyncMode:
        """Which of the three it is."""

    @property
    def shows_commits(self) -> bool:
        """Whether the cache will see present commits later. Otherwise it must adopt the worker's own
        commits."""

    def request_refresh(self) -> None:
        """A newer view would help some pods."""

    async def run(self) -> None:
        """Supply the cache until cancelled."""


class Push:
    """Follows the feed."""

    mode = SyncMode.PUSH
    shows_commits = True

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def request_refresh(self) -> None:
        """Nothing to do: changes come as they happen."""

    async def run(self) -> None:
        """See Synchronisation."""
        await self._subscription.follow()


class Pull:
    """Reads the state of the ledger once an interval. Between two readings no stream is open."""

    mode = SyncMode.PULL
    shows_commits = True

    def __init__(self, subscription: Subscription, interval_seconds: float) -> None:
        self._subscription = subscription
        self._interval_seconds = interval_seconds

    def request_refresh(self) -> None:
        """Nothing to do: the next reading comes soon."""

    async def run(self) -> None:
        """See Synchronisation."""
        while True:
            await self._subscription.catch_up()
            await asyncio.sleep(self._interval_seconds)


class OnRefusal:
    """Reads the state of the ledger at the start and on request, at most once an interval."""

    mode = SyncMode.REFUSAL

    def __init__(self, subscription: Subscription, interval_seconds: float) -> None:
        self._subscription = subscription
        self._interval_seconds = interval_seconds
        self._reading = True
        self._requested = asyncio.Event()

    @property
    def shows_commits(self) -> bool:
        """The state that is being read may contain present commits."""
        return self._reading

    def request_refresh(self) -> None:
        """See Synchronisation."""
        self._requested.set()

    async def run(self) -> None:
        """See Synchronisation."""
        while True:
            self._reading = True
            self._requested.clear()
            # A new snapshot: feed entries must not count again the pods that were adopted from verdicts.
            await self._subscription.catch_up(anew=True)
            self._reading = False
            await asyncio.gather(self._requested.wait(), asyncio.sleep(self._interval_seconds))


def synchronisation(mode: SyncMode, interval_seconds: float, subscription: Subscription) -> Synchronisation:
    """The one that a worker is configured with."""
    if mode is SyncMode.PUSH:
        return Push(subscription)
    return (Pull if mode is SyncMode.PULL else OnRefusal)(subscription, interval_seconds)
