"""Whether the ledger can be used, as health checks and proposals are told. Looked at once a second, and at every failure."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from hoss.errors import LedgerUnavailable
from hoss.telemetry import logger
from resolver.ledger.port import Ledger, LedgerLost

_CHECK_SECONDS = 1.0
_RETRY_SECONDS = 0.25  # while it is away


class Availability:
    """`problem` says why the ledger cannot be used; empty while it can. `run` must be running beside.

    `take_up` is asked whenever the ledger is lost: it goes on with another whole one, or sees to it that every resolver knows
    that it is not whole, and raises LedgerLost. Then `recovering` is set, until a dispatcher has rebuilt it.
    """

    def __init__(
        self,
        ledger: Ledger,
        on_change: Callable[[bool], Awaitable[None]],
        take_up: Callable[[], Awaitable[None]],
        *,
        rebuild_wait_seconds: float = 30.0,
    ) -> None:
        self._ledger = ledger
        self._on_change = on_change
        self._take_up = take_up
        self._rebuild_wait_seconds = rebuild_wait_seconds
        self._lost_at: float | None = None
        self.problem = ""
        self.facts: dict[str, str] = {}

    @property
    def recovering(self) -> bool:
        """Whether the ledger waits to be rebuilt."""
        return self._lost_at is not None

    async def run(self) -> None:
        """Watch until cancelled; `on_change` is told whenever the ledger goes or comes back."""
        serving = True
        while True:
            self.problem = await self._look()
            if serving != (not self.problem):
                serving = not self.problem
                logger().warning("ledger_back" if serving else "ledger_away", problem=self.problem)
                await self._on_change(serving)
            await asyncio.sleep(_CHECK_SECONDS if serving else _RETRY_SECONDS)

    async def _look(self) -> str:
        try:
            self.facts = await self._ledger.check()
        except LedgerLost as lost:
            return await self._recover(lost)
        except LedgerUnavailable as exc:
            return str(exc)
        self._lost_at = None
        return ""

    async def _recover(self, lost: LedgerLost) -> str:
        problem = str(lost)
        try:
            await self._take_up()
        except LedgerLost as exc:
            problem = str(exc)
        except LedgerUnavailable as exc:
            return str(exc)
        else:
            self._lost_at = None
            return ""
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = now
        waited = now - self._lost_at
        if waited > self._rebuild_wait_seconds:
            problem += (
                f"; no dispatcher has rebuilt it for {waited:.0f} s: start one, or `hoss ledger bootstrap` goes on with what "
                "Redis has kept"
            )
        return problem
