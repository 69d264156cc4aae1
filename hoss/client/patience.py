"""Waiting for a dispatcher that is full, as long as it says, until it has taken nothing for too long."""

import asyncio
import time
from collections.abc import Callable

from hoss.errors import Overloaded

# A full queue drains in seconds to minutes. Whoever gets nothing in for this long has more than the cluster will take.
PATIENCE_SECONDS = 300.0


class Patience:
    """Of one submission or stream. `told` hears of every wait."""

    def __init__(self, told: Callable[[Overloaded], None], seconds: float = PATIENCE_SECONDS) -> None:
        self._told = told
        self._seconds = seconds
        self._deadline: float | None = None

    async def wait(self, error: Overloaded) -> None:
        """Wait before the next attempt. Raises the error once patience has run out."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if now + error.retry_after_seconds > self._deadline:
            raise error
        self._told(error)
        await asyncio.sleep(error.retry_after_seconds)

    def progressed(self) -> None:
        """Something was taken: patience begins anew."""
        self._deadline = None
