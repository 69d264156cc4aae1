"""Writes attempts and faults of pods to the journal, late and in batches, and looks whether Redis still holds
the journal.

A pod that is bound at its first attempt costs nothing here. A dispatcher that is killed loses the attempts
and faults of the last half second, and no submission or deletion."""

import asyncio

import numpy as np

from dispatcher.ports import FaultRecord
from dispatcher.runtime import Runtime
from hoss.errors import LedgerUnavailable

INTERVAL_SECONDS = 0.5
# Each set costs some microseconds in which nothing else happens. The other sets follow in the next write.
_SETS_PER_WRITE = 1000


class Checkpointer:
    """`run` must be running."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._registry = runtime.machine.registry
        self._dirty: set[int] = set()  # sets with unsaved attempts
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Write until cancelled. A failed write is repeated."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            self._registry.faults.sweep()
            try:
                if await self._runtime.journal.check():
                    self._runtime.machine.counters["journal_rewritten"] += 1
                await self.write_faults()
                await self._write_attempts()
            except LedgerUnavailable as exc:
                self._runtime.problems["checkpointer"] = (
                    f"attempts and faults of pods cannot be written down: {exc}"
                )
            else:
                self._runtime.problems.pop("checkpointer", None)

    async def write_faults(self) -> None:
        """Make the present faults durable. Raises LedgerUnavailable."""
        faults = self._registry.faults
        async with self._writing:
            numbers, faults.changed = faults.changed, set()
            if not numbers:
                return
            present = [fault for number in sorted(numbers) if (fault := faults.get(number)) is not None]
            records = [
                FaultRecord(f.number, f.at_ms, f.worker, f.text, f.final, self._registry.pods.uid[f.rows])
                for f in present
            ]
            try:
                await self._runtime.journal.save_faults(
                    records, numbers - {record.number for record in records}
                )
            except LedgerUnavailable:
                faults.changed |= numbers
                raise

    async def _write_attempts(self) -> None:
        tried, self._registry.attempts_changed = self._registry.attempts_changed, []
        if tried:
            self._dirty.update(np.unique(self._registry.pods.pod_set[np.concatenate(tried)]).tolist())
        numbers = [self._dirty.pop() for _ in range(min(_SETS_PER_WRITE, len(self._dirty)))]
        sets = [
            pod_set
            for number in numbers
            if (pod_set := self._registry.directory.sets.get(number)) is not None
        ]
        if not sets:
            return
        columns = {pod_set.uid_prefix: self._registry.attempts(pod_set) for pod_set in sets}
        try:
            await self._runtime.journal.save_attempts(columns)
        except LedgerUnavailable:
            self._dirty.update(numbers)
            raise
