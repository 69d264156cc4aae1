"""Delays between attempts: Backoff after failures, Patience while a dispatcher is full."""

import asyncio
import random
from collections.abc import Callable

from hoss.errors import Overloaded
from hoss.host import THIS_HOST


class Backoff:
    """Delays that double from `first_seconds` to `longest_seconds`. Each delay is shortened at random by up
    to half, so that the clients of a lost peer do not return together. There is no further delay (None) after
    `patience_seconds` without a success."""

    def __init__(
        self,
        first_seconds: float,
        longest_seconds: float,
        patience_seconds: float = float("inf"),
        *,
        rng: random.Random = THIS_HOST.rng,
    ) -> None:
        self._rng = rng
        self._first = self._next = first_seconds
        self._longest = longest_seconds
        self._patience = patience_seconds
        self._failing_since: float | None = None

    def failed(self, now: float) -> float | None:
        """The delay in seconds after an attempt that failed at monotonic time `now`."""
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._patience:
            return None
        delay, self._next = self._next, min(2 * self._next, self._longest)
        return delay * self._rng.uniform(0.5, 1.0)

    def succeeded(self, patience_seconds: float | None = None) -> None:
        """Start again with the first delay, and with another patience if one is given."""
        self._next, self._failing_since = self._first, None
        if patience_seconds is not None:
            self._patience = patience_seconds


# A full queue drains in seconds to minutes. After a longer wait the cluster has no room for the pods.
PATIENCE_SECONDS = 300.0


class Patience:
    """The patience of one submission or stream with a full dispatcher. `on_wait` is called before each
    wait."""

    def __init__(
        self,
        on_wait: Callable[[Overloaded], None],
        seconds: float = PATIENCE_SECONDS,
        *,
        clock: Callable[[], float] = THIS_HOST.monotonic,
    ) -> None:
        self._on_wait = on_wait
        self._clock = clock
        self._seconds = seconds
        self._deadline: float | None = None

    async def wait(self, error: Overloaded) -> None:
        """Wait before the next attempt. Raises the error where the wait would exceed the patience."""
        now = self._clock()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if now + error.retry_after_seconds > self._deadline:
            raise error
        self._on_wait(error)
        await asyncio.sleep(error.retry_after_seconds)

    def progressed(self) -> None:
        """The dispatcher has accepted a message: the patience starts again."""
        self._deadline = None
