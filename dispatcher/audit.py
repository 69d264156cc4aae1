"""Workers' views of the ledger, asked for on their streams and gathered for `hoss audit`."""

import asyncio
from collections.abc import Iterable
from itertools import count
from typing import Protocol

from hoss.v1 import dispatcher_pb2, workerlink_pb2


class Asked(Protocol):
    """A worker's stream, as far as asking goes."""

    name: str

    def put(self, message: workerlink_pb2.DispatcherMessage, /) -> None:
        """Queue a message."""
        ...


class Views:
    """Questions under way. A worker that does not answer in time, or goes away, is left out."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._open: dict[int, tuple[set[str], list[dispatcher_pb2.WorkerView], asyncio.Event]] = {}

    async def gather(self, workers: Iterable[Asked], timeout_seconds: float) -> list[dispatcher_pb2.WorkerView]:
        """Ask all these workers at once; one view per worker and shard."""
        number = next(self._numbers)
        asked = list(workers)
        views: list[dispatcher_pb2.WorkerView] = []
        complete = asyncio.Event()
        self._open[number] = ({worker.name for worker in asked}, views, complete)
        try:
            for worker in asked:
                request = workerlink_pb2.ViewRequest(id=number)
                worker.put(workerlink_pb2.DispatcherMessage(view=request))
            if asked:
                await asyncio.wait_for(complete.wait(), timeout_seconds)
        except asyncio.TimeoutError:
            pass  # those that did answer are worth having
        finally:
            del self._open[number]
        return views

    def arrived(self, worker: str, view: workerlink_pb2.CacheView) -> None:
        """A worker's answer; one to a question long over is dropped."""
        if view.id not in self._open:
            return
        missing, views, complete = self._open[view.id]
        if worker not in missing:
            return
        missing.discard(worker)
        views += [
            dispatcher_pb2.WorkerView(worker=worker, shard=s.shard, seq=s.seq, digest=s.digest, idle=view.idle)
            for s in view.shards
        ]
        if not missing:
            complete.set()

    def gone(self, worker: str) -> None:
        """A worker's stream ended: nobody waits for it any longer."""
        for missing, _, complete in self._open.values():
            missing.discard(worker)
            if not missing:
                complete.set()
