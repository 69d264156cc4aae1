"""Queries to workers on their streams: cache views for `hoss audit`, and decisions for `hoss explain`."""

import asyncio
from collections.abc import Iterable
from itertools import count

from dispatcher.runtime import WorkerQueries
from hoss.v1 import common_pb2, dispatcher_pb2, workerlink_pb2

TIMEOUT_SECONDS = 1.0


class CacheViewQueries:
    """Asks several workers at once. A worker that does not answer in time, or leaves, is left out."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._open: dict[int, tuple[set[str], list[dispatcher_pb2.WorkerView], asyncio.Event]] = {}

    async def ask(
        self, workers: Iterable[WorkerQueries], timeout_seconds: float
    ) -> list[dispatcher_pb2.WorkerView]:
        """One view per worker and shard."""
        number = next(self._numbers)
        links = list(workers)
        views: list[dispatcher_pb2.WorkerView] = []
        complete = asyncio.Event()
        self._open[number] = ({link.name for link in links}, views, complete)
        try:
            for link in links:
                request = workerlink_pb2.ViewRequest(id=number)
                link.put(workerlink_pb2.DispatcherMessage(view=request))
            if links:
                await asyncio.wait_for(complete.wait(), timeout_seconds)
        except asyncio.TimeoutError:
            pass  # the answers of the others still count
        finally:
            del self._open[number]
        return views

    def answered(self, worker: str, view: workerlink_pb2.CacheView) -> None:
        """A worker's answer. An answer to a query that has ended is dropped."""
        if view.id not in self._open:
            return
        missing, views, complete = self._open[view.id]
        if worker not in missing:
            return
        missing.discard(worker)
        views += [
            dispatcher_pb2.WorkerView(
                worker=worker, shard=s.shard, seq=s.seq, digest=s.digest, idle=view.idle
            )
            for s in view.shards
        ]
        if not missing:
            complete.set()

    def left(self, worker: str) -> None:
        """A worker's stream has ended: no query waits for it any longer."""
        for missing, _, complete in self._open.values():
            missing.discard(worker)
            if not missing:
                complete.set()


class DecisionQueries:
    """Asks a worker how it decided about a pod. A worker that does not answer in time remembers nothing."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._open: dict[int, asyncio.Future[list[common_pb2.Decision]]] = {}

    async def ask(
        self, worker: WorkerQueries, uid: bytes, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> list[common_pb2.Decision]:
        """The worker's decisions about the pod, oldest first."""
        number = next(self._numbers)
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        try:
            question = workerlink_pb2.DecisionQuestion(id=number, uid=uid)
            worker.put(workerlink_pb2.DispatcherMessage(decisions=question))
            return await asyncio.wait_for(answer, timeout_seconds)
        except asyncio.TimeoutError:
            return []
        finally:
            del self._open[number]

    def answered(self, message: workerlink_pb2.DecisionAnswer) -> None:
        """A worker's answer. An answer to a query that has ended is dropped."""
        answer = self._open.get(message.id)
        if answer is not None and not answer.done():
            answer.set_result(list(message.decisions))
