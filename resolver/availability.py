"""Whether the ledger can be used, as health checks and proposals are told. Looked at once a second, and at every failure."""

import asyncio
from collections.abc import Awaitable, Callable

from hoss.errors import LedgerUnavailable
from hoss.telemetry import logger
from resolver.ledger.port import Ledger

_CHECK_SECONDS = 1.0
_RETRY_SECONDS = 0.25  # while it is away


class Availability:
    """`problem` says why the ledger cannot be used; empty while it can. `run` must be running beside."""

    def __init__(self, ledger: Ledger, on_change: Callable[[bool], Awaitable[None]]) -> None:
        self._ledger = ledger
        self._on_change = on_change
        self.problem = ""
        self.facts: dict[str, str] = {}

    async def run(self) -> None:
        """Watch until cancelled; `on_change` is told whenever the ledger goes or comes back."""
        serving = True
        while True:
            try:
                self.facts = await self._ledger.check()
                self.problem = ""
            except LedgerUnavailable as exc:
                self.problem = str(exc)
            if serving != (not self.problem):
                serving = not self.problem
                logger().warning("ledger_back" if serving else "ledger_away", problem=self.problem)
                await self._on_change(serving)
            await asyncio.sleep(_CHECK_SECONDS if serving else _RETRY_SECONDS)
