"""Experiments for comparisons: slow decisions, workers with nodes of their own, one global lock.

A worker holds the global lock while it places a slice. It begins when its cache has seen the last holder's
commits, and ends when the ledger has answered. So no other worker can cause a refusal. The lock is an
exclusive lock on a file: the kernel passes it on at once, also from a process that dies. A lock on a server
would cost each holder another round trip."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from hoss.model.selectors import NodeScope, Requirement


@dataclass(frozen=True, slots=True)
class WorkerExperiment:
    """Decision cost as in the Omega paper: t_job for a decision and t_task for each pod of it."""

    job_seconds: float = 0.0
    task_seconds: float = 0.0

    def seconds(self, pods: int) -> float:
        """How long deciding on so many pods at once takes; 0 for none."""
        return self.job_seconds + pods * self.task_seconds if pods else 0.0


DECIDES_AT_ONCE = WorkerExperiment()


def nodes_with(labels: Mapping[str, str]) -> NodeScope | None:
    """The nodes that have all these labels; None, for all nodes, without labels."""
    if not labels:
        return None
    return NodeScope(
        "nodes of the worker",
        tuple(Requirement(key, "In", (value,)) for key, value in sorted(labels.items())),
    )


def narrowed(scope: NodeScope | None, own: NodeScope | None) -> NodeScope | None:
    """The intersection of a policy's nodes and a worker's own nodes. The worker's own nodes replace a mere
    preference."""
    if own is None or scope is None:
        return own or scope
    if not scope.required:
        return own
    return replace(
        scope, rule=f"{scope.rule}, {own.rule}", requirements=scope.requirements + own.requirements
    )


# A holder waits no longer than this for its feed. After that the ledger refuses what does not fit, as without
# the lock. It is longer than a machine stalls, or a comparison would count stalls as conflicts.
_TIMEOUT_SECONDS = 5.0


class GlobalLock:
    """One worker's handle of the lock. The file holds each shard's latest seq, as known to the last
    holder."""

    def __init__(self, file: Path) -> None:
        self._lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        self._updated = asyncio.Event()

    def notify(self) -> None:
        """The cache has taken in a message of the feed."""
        self._updated.set()

    @contextlib.asynccontextmanager
    async def held(
        self, seen: Callable[[], Mapping[int, int]], verdict_seqs: Mapping[int, int]
    ) -> AsyncIterator[None]:
        """Hold the lock during the block. The block begins when the cache has `seen` (shard -> seq) the last
        holder's verdicts. Its own, in `verdict_seqs` at the end, are for the next holder."""
        # In a thread: the event loop goes on following the feed meanwhile.
        await asyncio.to_thread(fcntl.flock, self._lock, fcntl.LOCK_EX)
        try:
            await self._catch_up(seen)
            yield
            content = orjson.dumps({str(shard): seq for shard, seq in verdict_seqs.items()})
            os.pwrite(self._lock, content, 0)
            os.ftruncate(self._lock, len(content))
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock file."""
        os.close(self._lock)

    async def _catch_up(self, seen: Callable[[], Mapping[int, int]]) -> None:
        content = os.pread(self._lock, os.fstat(self._lock).st_size, 0)
        last = {int(shard): int(seq) for shard, seq in orjson.loads(content).items()} if content else {}

        async def caught_up() -> None:
            while any(seen().get(shard, 0) < seq for shard, seq in last.items()):
                self._updated.clear()
                await self._updated.wait()

        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(caught_up(), _TIMEOUT_SECONDS)
