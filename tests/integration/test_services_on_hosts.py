"""The composition roots run beside each other in one event loop, each on a host of its own.

The clocks of the hosts are far apart from each other and from this machine's. A part of a service that read
another clock than its host's would wait for days, or not at all."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import orjson
from waiting import until

import dispatcher.__main__
import resolver.__main__
import scheduler_worker.__main__
from dispatcher.config import DispatcherConfig
from hoss.client.dispatcher import DispatcherClient, submission
from hoss.client.resolver import ResolverClient
from hoss.host import Host
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from resolver.config import ResolverConfig
from scheduler_worker.config import WorkerConfig, chosen_profile
from scheduler_worker.core.plugins import REGISTRY

GIB = 2**30
PODS = 20


class OtherHost(Host):
    """This machine with other clocks, that notes what it was asked for."""

    def __init__(self, hours: float) -> None:
        super().__init__()
        self.stopped = asyncio.Event()
        self.asked_for: set[str] = set()
        self._seconds = hours * 3600

    def monotonic(self) -> float:
        self.asked_for.add("monotonic")
        return super().monotonic() + self._seconds

    def unix(self) -> float:
        self.asked_for.add("unix")
        return super().unix() + self._seconds

    def thread_seconds(self) -> float:
        self.asked_for.add("thread_seconds")
        return super().thread_seconds()

    def channel(self, *given, **options):
        self.asked_for.add("channel")
        return super().channel(*given, **options)

    def server(self, interceptors=()):
        self.asked_for.add("server")
        return super().server(interceptors)

    def redis(self, *given, **options):
        self.asked_for.add("redis")
        return super().redis(*given, **options)

    async def until_stopped(self) -> None:
        await self.stopped.wait()


@contextlib.asynccontextmanager
async def served(
    serve: Callable[[Path, Host], Coroutine[None, None, None]], host: OtherHost, ready: Path
) -> AsyncIterator[str]:
    """A service, until the block ends; its address."""
    running = asyncio.create_task(serve(ready, host))
    try:
        await until(lambda: ready.exists() or running.done(), ready.name)
        if running.done():
            running.result()
        yield _address(ready)
    finally:
        host.stopped.set()
        await running


def _address(ready: Path) -> str:
    return f"127.0.0.1:{orjson.loads(ready.read_bytes())['port']}"


async def test_three_services_with_clocks_of_their_own_bind_pods(redis_server, tmp_path):
    deciding, dispatching, placing = OtherHost(30_000), OtherHost(-2_000), OtherHost(700_000)

    def decide(ready, host):
        config = ResolverConfig(listen="127.0.0.1:0", redis_url=redis_server.url)
        return resolver.__main__.serve(config, ready, host=host)

    async with served(decide, deciding, tmp_path / "resolver.json") as ledger:

        def dispatch(ready, host):
            config = DispatcherConfig(listen="127.0.0.1:0", redis_url=redis_server.url, resolvers=(ledger,))
            return dispatcher.__main__.serve(config, ready, host=host)

        async with served(dispatch, dispatching, tmp_path / "dispatcher.json") as queue:

            def place(ready, host):
                config = WorkerConfig(name="w1", dispatcher=queue, resolvers=[ledger])
                name, profile = chosen_profile(config, REGISTRY)
                return scheduler_worker.__main__.serve(config, name, profile, ready, host=host)

            async with served(place, placing, tmp_path / "worker.json"):
                await _all_bound(ledger, queue)

    shared = {"monotonic", "channel", "server"}
    assert deciding.asked_for >= {"monotonic", "server", "redis"}
    assert dispatching.asked_for >= {*shared, "unix", "redis"}
    assert placing.asked_for >= {*shared, "unix", "thread_seconds"}
    assert "redis" not in placing.asked_for


async def _all_bound(ledger: str, queue: str) -> None:
    resolvers = ResolverClient([ledger])
    try:
        await resolvers.upsert_nodes(
            [NodeSpec("n1", allocatable=(("cpu", 64_000), ("memory", 64 * GIB), ("pods", 110)))]
        )
        async with DispatcherClient([queue]) as client:
            spec = PodSpec(
                requests=(("cpu", 100), ("memory", GIB // 4)),
                nonzero_cpu_milli=100,
                nonzero_memory_bytes=GIB // 4,
            )
            for request in submission([Workload("job", PodTemplate(spec), PODS)]):
                await client.submit(request)

            async def bound() -> bool:
                return [pod.phase async for pod in client.list_pods()] == [pb.BOUND] * PODS

            await until(bound, "every pod bound")
    finally:
        await resolvers.close()
