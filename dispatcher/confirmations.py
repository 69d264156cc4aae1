"""Ends the leases of commits, many at a time.

A commit whose pending record was gone already was confirmed before, or its lease ran out and the reaper took it: then the
pods are looked up, and those without a reservation are queued again.
"""

import asyncio
import time
from typing import TYPE_CHECKING

import numpy as np

from dispatcher.core import messages as m
from dispatcher.ledger import merge_commits
from hoss.telemetry.context import calls_belong_to

if TYPE_CHECKING:
    from dispatcher.runtime import Runtime

# Far below any lease, and long enough for the outcomes of several batches to share a call.
COALESCE_SECONDS = 0.01


class Confirmations:
    """Collects for `COALESCE_SECONDS`, then tells the ledger until it answers."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._waiting: list[m.Confirm] = []
        self._running = False

    def add(self, wanted: m.Confirm) -> None:
        """Confirm these commits soon."""
        self._waiting.append(wanted)
        if not self._running:
            self._running = True
            self._runtime.spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(COALESCE_SECONDS)
                batch, self._waiting = self._waiting, []
                await self._confirm(batch)
        finally:
            self._running = False

    async def _confirm(self, batch: list[m.Confirm]) -> None:
        commits = merge_commits([wanted.commits for wanted in batch])
        if not commits:
            return
        traces = self._runtime.traces
        context = None if traces is None else traces.confirming(batch)
        began_ns = time.time_ns()
        with calls_belong_to("" if context is None else str(context)):
            confirmed = await self._runtime.until_answered(lambda: self._runtime.ledger.confirm(commits))
        if traces is not None and context is not None:
            traces.confirmed(batch, context, began_ns)
        rows = np.concatenate([wanted.rows for wanted in batch])
        uids = np.concatenate([wanted.uids for wanted in batch])
        if confirmed < sum(len(seqs) for seqs in commits.values()):
            await self._runtime.verify(m.Verify(rows, uids))
        self._runtime.tell(m.Confirmed(rows, uids))
        self._runtime.confirmed(rows, uids)
