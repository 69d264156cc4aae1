"""How a worker's cache hears of the ledger. The cache is the same in every mode; what differs is who fills it, and when.

push     the node feed: every change as it happens
pull     the state of the ledger, once an interval
refusal  the state once; from then on what refusals tell, and what the worker itself has had committed
"""

import asyncio
from typing import Protocol

from hoss.client.feed import Subscription
from scheduler_worker.config import SyncMode


class Synchronisation(Protocol):
    """What keeps a cache supplied."""

    @property
    def mode(self) -> SyncMode:
        """Which of the three it is."""

    @property
    def shows_commits(self) -> bool:
        """Whether the cache will be shown, sooner or later, what is being committed now. Else its own are its to remember."""

    def ask(self) -> None:
        """Some pods would be helped by a newer view."""

    async def run(self) -> None:
        """Supply the cache until cancelled."""


class Push:
    """Follows the feed."""

    mode = SyncMode.PUSH
    shows_commits = True

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def ask(self) -> None:
        """Nothing to do: news come as they happen."""

    async def run(self) -> None:
        """See Synchronisation."""
        await self._subscription.follow()


class Pull:
    """Reads the state of the ledger, waits for the interval, and so on. Between two readings nothing is open."""

    mode = SyncMode.PULL
    shows_commits = True

    def __init__(self, subscription: Subscription, interval_seconds: float) -> None:
        self._subscription = subscription
        self._interval_seconds = interval_seconds

    def ask(self) -> None:
        """Nothing to do: the next reading is never far."""

    async def run(self) -> None:
        """See Synchronisation."""
        while True:
            await self._subscription.catch_up()
            await asyncio.sleep(self._interval_seconds)


class OnRefusal:
    """Reads the state of the ledger when it begins and when it is asked to, at most once an interval."""

    mode = SyncMode.REFUSAL

    def __init__(self, subscription: Subscription, interval_seconds: float) -> None:
        self._subscription = subscription
        self._interval_seconds = interval_seconds
        self._reading = True
        self._asked = asyncio.Event()

    @property
    def shows_commits(self) -> bool:
        """What is committed while the state is read may stand in it."""
        return self._reading

    def ask(self) -> None:
        """See Synchronisation."""
        self._asked.set()

    async def run(self) -> None:
        """See Synchronisation."""
        while True:
            self._reading = True
            self._asked.clear()
            # Anew: pods that were taken over from verdicts must not be counted again by the entries that tell of them.
            await self._subscription.catch_up(anew=True)
            self._reading = False
            await asyncio.gather(self._asked.wait(), asyncio.sleep(self._interval_seconds))


def synchronisation(mode: SyncMode, interval_seconds: float, subscription: Subscription) -> Synchronisation:
    """The one that a worker is configured with."""
    if mode is SyncMode.PUSH:
        return Push(subscription)
    return (Pull if mode is SyncMode.PULL else OnRefusal)(subscription, interval_seconds)
