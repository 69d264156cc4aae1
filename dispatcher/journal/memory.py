"""Journals beside the one in Redis: in memory, and without pods for Kubernetes mode."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.moves import BegunRun, RunProgress
from dispatcher.ports import FaultRecord, GateRemovals, Journal, Record, Recovered, SavedPolicy


class MemoryJournal:
    """A journal for tests and simulations: survives the dispatcher object, not the process."""

    def __init__(self) -> None:
        self._order = 0
        self._records: dict[bytes, Record] = {}
        self._deletions: dict[bytes, NDArray[np.bool_]] = {}
        self._workers: set[str] = set()
        self._ungated: dict[bytes, GateRemovals] = {}
        self._attempts: dict[bytes, NDArray[np.uint16]] = {}
        self._faults: dict[int, FaultRecord] = {}
        self._objects: dict[str, bytes] = {}
        self._policy: SavedPolicy | None = None
        self._moves: tuple[BegunRun, RunProgress] | None = None
        self._controller_paused: bool | None = None

    async def record(self, record: Record) -> int:
        self._order += 1
        self._forget(record.key, record.prefixes)
        self._records[record.key] = replace(record, order=self._order, prefixes=())
        return self._order

    async def delete(self, deleted: Mapping[bytes, NDArray[np.bool_]]) -> None:
        self._deletions.update({prefix: bitmap.copy() for prefix, bitmap in deleted.items()})

    async def ungate(self, removed: Mapping[bytes, GateRemovals]) -> None:
        self._ungated.update(
            {prefix: {g: bits.copy() for g, bits in gates.items()} for prefix, gates in removed.items()}
        )

    async def save_attempts(self, attempts: Mapping[bytes, NDArray[np.uint16]]) -> None:
        self._attempts.update({prefix: column.copy() for prefix, column in attempts.items()})

    async def save_faults(self, changed: Sequence[FaultRecord], dropped: Collection[int]) -> None:
        self._faults.update({record.number: record for record in changed})
        for number in dropped:
            self._faults.pop(number, None)

    async def drop(self, key: bytes, order: int, prefixes: list[bytes]) -> None:
        record = self._records.get(key)
        if record is not None and record.order == order:
            self._forget(key, prefixes)

    def _forget(self, key: bytes, prefixes: Sequence[bytes]) -> None:
        self._records.pop(key, None)
        for prefix in prefixes:
            self._attempts.pop(prefix, None)
            self._deletions.pop(prefix, None)
            self._ungated.pop(prefix, None)

    async def raise_term(self, least: int) -> None:
        """There are no terms."""

    async def add_worker(self, name: str) -> None:
        self._workers.add(name)

    async def drop_workers(self, names: Collection[str]) -> None:
        self._workers.difference_update(names)

    async def put_objects(self, objects: Mapping[str, bytes]) -> None:
        self._objects.update(objects)

    async def drop_objects(self, keys: Collection[str]) -> None:
        for key in keys:
            self._objects.pop(key, None)

    async def save_policy(self, policy: SavedPolicy) -> None:
        self._policy = policy

    async def save_moves(self, begun: BegunRun, progress: RunProgress) -> None:
        self._moves = begun, progress

    async def save_progress(self, progress: RunProgress) -> None:
        if self._moves is not None:
            self._moves = self._moves[0], progress

    async def save_controller_pause(self, paused: bool) -> None:
        self._controller_paused = paused

    async def saved_policy(self) -> SavedPolicy | None:
        return self._policy

    async def recover(self) -> Recovered:
        return Recovered(
            list(self._records.values()),
            dict(self._deletions),
            set(self._workers),
            dict(self._ungated),
            dict(self._attempts),
            sorted(self._faults.values(), key=lambda record: record.number),
            dict(self._objects),
            self._moves,
            controller_paused=self._controller_paused,
        )

    async def check(self) -> bool:
        return False  # nothing is lost while the process lives

    async def rewrite(self) -> None:
        """Nothing is lost while the process lives."""

    async def close(self) -> None:
        """Nothing is open."""


class PodlessJournal:
    """Kubernetes mode: the API server keeps the pods. The inner journal gets everything but attempts: those
    of pods that end while no dispatcher runs would stay for ever."""

    def __init__(self, inner: Journal) -> None:
        self.record = inner.record
        self.delete = inner.delete
        self.ungate = inner.ungate
        self.save_faults = inner.save_faults
        self.add_worker = inner.add_worker
        self.drop_workers = inner.drop_workers
        self.put_objects = inner.put_objects
        self.drop_objects = inner.drop_objects
        self.save_policy = inner.save_policy
        self.saved_policy = inner.saved_policy
        self.save_moves = inner.save_moves
        self.save_progress = inner.save_progress
        self.save_controller_pause = inner.save_controller_pause
        self.recover = inner.recover
        self.raise_term = inner.raise_term
        self.check = inner.check
        self.rewrite = inner.rewrite
        self.close = inner.close

    async def save_attempts(self, attempts: Mapping[bytes, NDArray[np.uint16]]) -> None:
        """Attempts are not saved."""

    async def drop(self, key: bytes, order: int, prefixes: list[bytes]) -> None:
        """Submissions are not saved."""
