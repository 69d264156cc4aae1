"""The dispatcher's client for programs without an event loop: the same calls, blocking.

    with BlockingDispatcherClient() as dispatcher:
        for pod in dispatcher.list_pods("default"):
            ...

Each client runs an event loop of its own in a thread. Several threads may share a client, but not an
iterator. Errors are those of hoss.client.dispatcher."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from hoss.client import dispatcher
from hoss.client.access import found_channel
from hoss.rpc import OpenChannel
from hoss.v1 import dispatcher_pb2 as pb

ResultT = TypeVar("ResultT")


class BlockingDispatcherClient:
    """A DispatcherClient whose calls block: each is the call of the same name there.

    Use it in a with block, or call `close`."""

    def __init__(
        self, addresses: Sequence[str] | None = None, *, open_channel: OpenChannel = found_channel
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hoss-client", daemon=True)
        self._thread.start()

        async def connect() -> dispatcher.DispatcherClient:
            return dispatcher.DispatcherClient(addresses, open_channel=open_channel)

        try:
            self._client = self._run(connect())
        except BaseException:
            self._end_thread()
            raise

    def __enter__(self) -> "BlockingDispatcherClient":  # noqa: PYI034 - typing.Self came with Python 3.11
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
        return self._run(self._client.submit(request))

    def submit_stream(self, requests: Iterable[pb.SubmitRequest]) -> Iterator[pb.SubmitReply]:
        """Submit many messages and yield their replies in order. The client's thread reads `requests`."""

        async def outgoing() -> AsyncIterator[pb.SubmitRequest]:
            for request in requests:
                yield request

        return self._iterate(lambda: self._client.submit_stream(outgoing()))

    def get_pod(
        self, namespace: str = "", name: str = "", *, uid: bytes = b"", queue: bool = False
    ) -> pb.PodInfo:
        return self._run(self._client.get_pod(namespace, name, uid=uid, queue=queue))

    def list_pods(self, namespace: str = "", **filters: Any) -> Iterator[pb.PodInfo]:
        return self._iterate(lambda: self._client.list_pods(namespace, **filters))

    def list_jobs(self, namespace: str = "") -> list[pb.JobInfo]:
        return self._run(self._client.list_jobs(namespace))

    def watch(self, since_revision: int = 0, *, states: bool = False) -> Iterator[pb.WatchBatch]:
        return self._iterate(lambda: self._client.watch(since_revision, states=states))

    def delete(
        self, namespace: str = "", *, pods: Iterable[str] = (), jobs: Iterable[str] = (), uids: bytes = b""
    ) -> pb.DeleteReply:
        return self._run(self._client.delete(namespace, pods=pods, jobs=jobs, uids=uids))

    def retry(
        self, namespace: str = "", *, pods: Iterable[str] = (), jobs: Iterable[str] = (), every: bool = False
    ) -> pb.RetryReply:
        return self._run(self._client.retry(namespace, pods=pods, jobs=jobs, every=every))

    def list_workers(self) -> list[pb.WorkerInfo]:
        return self._run(self._client.list_workers())

    def status(self) -> pb.DispatcherStatus:
        return self._run(self._client.status())

    def _run(self, call: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def _iterate(self, begin: Callable[[], AsyncIterator[ResultT]]) -> Iterator[ResultT]:
        stream = begin()

        async def next_item() -> tuple[ResultT] | None:
            async for item in stream:
                return (item,)
            return None

        try:
            while (found := self._run(next_item())) is not None:
                yield found[0]
        finally:
            self._run(_close(stream))

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _close(stream: AsyncIterator[Any]) -> None:
    await stream.aclose()  # type: ignore[attr-defined]  # all streams are generators


DispatcherClient = BlockingDispatcherClient  # the name until 0.2: it is that of another class, too
