"""Writes to the journal, a while later and many at a time, what may be late: how often pods were tried, and their faults.

Pods that are bound at their first try cost nothing here. A dispatcher that is killed forgets what the last half second added,
and no submission or deletion.
"""

import asyncio

import numpy as np

from dispatcher.journal import FaultRecord
from dispatcher.runtime import Runtime
from hoss.errors import LedgerUnavailable

INTERVAL_SECONDS = 0.5
# Sets in one write: each costs some microseconds in which nothing else happens. What is left over comes with the next.
_SETS = 1000


class Chronicle:
    """`run` must be running beside."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._registry = runtime.machine.registry
        self._untold: set[int] = set()  # sets of which a pod was tried
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Write until cancelled; what could not be written is written later."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            self._registry.faults.sweep()
            try:
                await self.write_faults()
                await self._write_attempts()
            except LedgerUnavailable as exc:
                self._runtime.problems["chronicle"] = f"attempts and faults of pods cannot be written down: {exc}"
            else:
                self._runtime.problems.pop("chronicle", None)

    async def write_faults(self) -> None:
        """Make faults durable as they are now. Raises LedgerUnavailable."""
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
                await self._runtime.journal.note_faults(records, numbers - {record.number for record in records})
            except LedgerUnavailable:
                faults.changed |= numbers
                raise

    async def _write_attempts(self) -> None:
        tried, self._registry.tried = self._registry.tried, []
        if tried:
            self._untold.update(np.unique(self._registry.pods.pod_set[np.concatenate(tried)]).tolist())
        numbers = [self._untold.pop() for _ in range(min(_SETS, len(self._untold)))]
        sets = [pod_set for number in numbers if (pod_set := self._registry.directory.sets.get(number)) is not None]
        if not sets:
            return
        columns = {pod_set.uid_prefix: self._registry.pods.attempts[pod_set.rows].copy() for pod_set in sets}
        try:
            await self._runtime.journal.note_attempts(columns)
        except LedgerUnavailable:
            self._untold.update(numbers)
            raise
