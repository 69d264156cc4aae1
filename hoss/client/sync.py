"""The dispatcher's client for programs without an event loop: the same calls, which return when they are answered.

    with DispatcherClient(["127.0.0.1:7100"]) as dispatcher:
        for pod in dispatcher.list_pods("default"):
            ...

Each client runs an event loop of its own in a thread. It may be used from several threads, an iterator from one at a time.
Errors are those of hoss.client.dispatcher.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from hoss.client import dispatcher
from hoss.v1 import dispatcher_pb2 as pb

ResultT = TypeVar("ResultT")


class DispatcherClient:
    """See hoss.client.dispatcher.DispatcherClient. Use it in a with block, or call `close`."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hoss-client", daemon=True)
        self._thread.start()

        async def connect() -> dispatcher.DispatcherClient:
            return dispatcher.DispatcherClient(addresses)

        try:
            self._client = self._run(connect())
        except BaseException:
            self._end_thread()
            raise

    def __enter__(self) -> "DispatcherClient":  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the channel and the thread. Closing again does nothing."""
        if not self._loop.is_closed():
            self._run(self._client.close())
            self._end_thread()

    def submit(self, request: pb.SubmitRequest) -> pb.SubmitReply:
        """Hand over jobs and pods."""
        return self._run(self._client.submit(request))

    def submit_stream(self, requests: Iterable[pb.SubmitRequest]) -> Iterator[pb.SubmitReply]:
        """Hand over many messages; yields their replies in order. `requests` is read in the client's thread."""

        async def outgoing() -> AsyncIterator[pb.SubmitRequest]:
            for request in requests:
                yield request

        return self._iterate(lambda: self._client.submit_stream(outgoing()))

    def get_pod(self, namespace: str = "", name: str = "", *, uid: bytes = b"", queue: bool = False) -> pb.PodInfo:
        """One pod by name or UID."""
        return self._run(self._client.get_pod(namespace, name, uid=uid, queue=queue))

    def list_pods(self, namespace: str = "", **wanted: Any) -> Iterator[pb.PodInfo]:
        """Every pod that matches."""
        return self._iterate(lambda: self._client.list_pods(namespace, **wanted))

    def list_jobs(self, namespace: str = "") -> list[pb.JobInfo]:
        """Jobs with their counts by phase."""
        return self._run(self._client.list_jobs(namespace))

    def watch(self, since_revision: int = 0, *, states: bool = False) -> Iterator[pb.WatchBatch]:
        """Events after a revision, for as long as the caller iterates."""
        return self._iterate(lambda: self._client.watch(since_revision, states=states))

    def delete(
        self, namespace: str = "", *, pods: Iterable[str] = (), jobs: Iterable[str] = (), uids: bytes = b""
    ) -> pb.DeleteReply:
        """Delete pods and whole jobs."""
        return self._run(self._client.delete(namespace, pods=pods, jobs=jobs, uids=uids))

    def retry(
        self, namespace: str = "", *, pods: Iterable[str] = (), jobs: Iterable[str] = (), every: bool = False
    ) -> pb.RetryReply:
        """Put failed pods back in the queue."""
        return self._run(self._client.retry(namespace, pods=pods, jobs=jobs, every=every))

    def list_workers(self) -> list[pb.WorkerInfo]:
        """Workers."""
        return self._run(self._client.list_workers())

    def status(self) -> pb.DispatcherStatus:
        """Pods by phase, counters, problems."""
        return self._run(self._client.status())

    def _run(self, call: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def _iterate(self, begin: Callable[[], AsyncIterator[ResultT]]) -> Iterator[ResultT]:
        stream = begin()

        async def following() -> tuple[ResultT] | None:
            async for item in stream:
                return (item,)
            return None

        try:
            while (found := self._run(following())) is not None:
                yield found[0]
        finally:
            self._run(_close(stream))

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _close(stream: AsyncIterator[Any]) -> None:
    await stream.aclose()  # type: ignore[attr-defined]  # every stream here is a generator; AsyncIterator does not say so
