"""One global lock for all workers of a machine, for comparisons: whoever holds it has the only view that counts.

A turn begins with a cache that has seen the last turn's commits and ends when the ledger has answered, so nothing it
proposes can be refused for what another did. The lock is an exclusive lock on a file: the kernel gives it to the next at
once, and takes it from a process that dies. A lock held by a server would cost each turn a journey more.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import orjson

# A feed that lags for longer than this is not waited for: then the ledger refuses what does not fit, as it would without the lock.
# More than a machine is held up for, or a comparison would count that as conflicts.
_PATIENCE_SECONDS = 5.0


class Turns:
    """The lock as one worker sees it. The file holds how far each shard's history goes, as the last holder knew."""

    def __init__(self, file: Path) -> None:
        self._lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        self._news = asyncio.Event()

    def heard(self) -> None:
        """The cache has taken in news of the ledger."""
        self._news.set()

    @contextlib.asynccontextmanager
    async def turn(self, seen: Callable[[], Mapping[int, int]], told: Mapping[int, int]) -> AsyncIterator[None]:
        """Hold the lock for the length of the block, which begins when the cache has `seen` (shard -> seq) what was told to those
        before. `told` at its end is what those after have to see."""
        # In a thread: the loop goes on following the feed meanwhile.
        await asyncio.to_thread(fcntl.flock, self._lock, fcntl.LOCK_EX)
        try:
            await self._catch_up(seen)
            yield
            content = orjson.dumps({str(shard): seq for shard, seq in told.items()})
            os.pwrite(self._lock, content, 0)
            os.ftruncate(self._lock, len(content))
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the lock up for good."""
        os.close(self._lock)

    async def _catch_up(self, seen: Callable[[], Mapping[int, int]]) -> None:
        content = os.pread(self._lock, os.fstat(self._lock).st_size, 0)
        last = {int(shard): int(seq) for shard, seq in orjson.loads(content).items()} if content else {}

        async def caught_up() -> None:
            while any(seen().get(shard, 0) < seq for shard, seq in last.items()):
                self._news.clear()
                await self._news.wait()

        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(caught_up(), _PATIENCE_SECONDS)
