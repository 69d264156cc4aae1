"""What users wait for: a fault on a platform that is whole, then until a pod that is submitted after it is
bound.

How long that may take is said by tests/e2e/test_promises.py and tests/benchmarks/limits.yaml, in starts of a
platform."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from e2e.cluster import Cluster
from e2e.loads import all_bound, healed, prepare, submit, until_agreed
from waiting import until

from hoss.client.dispatcher import submission
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hossctl.bench.throughput import lone_latencies
from hossctl.endpoints import Clients, clients_of

WORKERS = ("w1", "w2")
DISPATCHERS = ("dispatcher", "dispatcher-2")
LONE_PODS = 50
IN_HAND = 2_000  # pods: enough that each of two workers is given some

Happen = Callable[[], Awaitable[None]]  # lets the fault happen, and waits
Fault = Callable[["FaultyPlatform"], Awaitable[Happen]]


def start_interpreter() -> None:
    """A new one with what services stand on, none of it HOSS's: the measure of a machine for a platform's
    start."""
    modules = "google.protobuf, grpc.aio, numpy, psutil, pydantic, redis.asyncio, structlog, yaml"
    subprocess.run([sys.executable, "-c", f"import {modules}"], check=True)


def start_platform(directory: Path) -> Cluster:
    """The smallest there is, from nothing until its first pod is bound: the measure of a machine for all
    else.

    Who asks for it stops it.
    """

    async def bind_first() -> None:
        async with clients_of(cluster.endpoints) as clients:
            await prepare(clients, workers=1, nodes=1)
            await submit(clients, jobs=1, replicas=1)
            await until(lambda: all_bound(clients, 1))

    cluster = Cluster(directory)
    try:
        cluster.start_worker("w1")
        asyncio.run(bind_first())
    except BaseException:
        cluster.stop()
        raise
    return cluster


@contextmanager
def faulty_platform(
    directory: Path, *, nodes: int, pods: int, dispatcher_flags: Sequence[str] = ()
) -> Iterator["FaultyPlatform"]:
    """One that runs, with so many bound pods."""
    with ExitStack() as stack:
        cluster = Cluster(directory, dispatchers=len(DISPATCHERS), dispatcher_flags=dispatcher_flags)
        stack.callback(cluster.stop)
        for name in WORKERS:
            cluster.start_worker(name)
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        opened = clients_of(cluster.endpoints)
        clients = loop.run_until_complete(opened.__aenter__())
        stack.callback(lambda: loop.run_until_complete(opened.__aexit__(None, None, None)))
        platform = FaultyPlatform(cluster, clients, directory, loop)
        loop.run_until_complete(platform.fill(nodes, pods))
        yield platform


class FaultyPlatform:
    """Two dispatchers, two workers and pods that are bound. Whoever waits is a client that was there before
    the fault.

    Each fault is a coroutine that prepares it and returns what lets it happen and waits for its end; see
    `ready`."""

    def __init__(
        self, cluster: Cluster, clients: Clients, directory: Path, loop: asyncio.AbstractEventLoop
    ) -> None:
        """The cluster was made in that directory, and the clients in that loop."""
        self._cluster = cluster
        self._clients = clients
        self._directory = directory
        self._loop = loop
        self._frozen: set[str] = set()
        self._numbers = count()

    def ready(self, fault: Fault) -> Callable[[], None]:
        """Make the platform whole and prepare the fault. What is returned lets it happen, and waits."""

        async def prepared() -> Happen:
            await self._make_whole()
            return await fault(self)

        happen = self._run(prepared())
        return lambda: self._run(happen())

    async def fill(self, nodes: int, pods: int) -> None:
        """Register so many nodes, and have so many pods bound."""
        await prepare(self._clients, workers=len(WORKERS), nodes=nodes)
        await self._bind(pods)

    async def killed_dispatcher(self) -> Happen:
        """The active one, as by kill -9."""
        return await self._takeover(self._cluster.kill)

    async def ended_dispatcher(self) -> Happen:
        """The active one, as by SIGTERM: it gives its lease back."""
        return await self._takeover(self._cluster.terminate)

    async def frozen_dispatcher(self) -> Happen:
        """The active one keeps its connections and says nothing on them."""
        return await self._takeover(self._freeze)

    async def lost_ledger(self) -> Happen:
        """Redis is killed, and started again at once with nothing in it."""
        reserved = (await self._clients.resolver.status()).reservations

        async def happen() -> None:
            self._cluster.redis.kill()
            shutil.rmtree(self._directory / "redis")
            self._cluster.start_redis()
            await until(lambda: healed(self._clients, reserved), f"a ledger of {reserved} reservations")
            await self._bind()

        return happen

    async def restarted_resolver(self) -> Happen:
        """The only one is killed, and started again at its address."""

        async def happen() -> None:
            self._cluster.kill("resolver")
            self._cluster.start_resolver()
            await self._bind()

        return happen

    async def returning_worker(self) -> Happen:
        """It was killed, and is started as a new process: until it knows the ledger and is given work."""
        self._cluster.kill("w1")
        await until(lambda: self._worker_is("Lost"), "w1 to be lost")

        async def happen() -> None:
            self._cluster.start_worker("w1")
            await until(lambda: self._worker_is("Ready", filled=True), "w1 to be up to date")

        return happen

    async def killed_worker(self) -> Happen:
        """It has pods in hand: until all of them are bound by the other."""
        job = await self._in_frozen_hands()

        async def happen() -> None:
            self._cluster.kill("w1")
            self._frozen.clear()
            await self._until_bound(job, IN_HAND)

        return happen

    async def silent_worker(self) -> Happen:
        """It is frozen, and is given pods before that is noticed: until all of them are bound by the
        other."""

        async def happen() -> None:
            await self._until_bound(await self._in_frozen_hands(), IN_HAND)

        return happen

    async def lone_pods(self) -> Happen:
        """No fault: LONE_PODS pods, each submitted when the one before it has been reported as bound."""
        name = f"lone-{next(self._numbers)}"
        template = PodTemplate(PodSpec(requests=(("cpu", 100),)))
        requests = [next(submission([Workload(f"{name}-{i}", template)])) for i in range(LONE_PODS)]

        async def happen() -> None:
            await lone_latencies(self._clients.dispatcher, requests)

        return happen

    async def _takeover(self, strike: Callable[[str], None]) -> Happen:
        status = await self._clients.dispatcher.status()
        active = next(name for name in DISPATCHERS if self._cluster.address(name) == status.address)

        async def happen() -> None:
            strike(active)
            await self._bind()
            assert (await self._clients.dispatcher.status()).term > status.term, "nobody took over"

        return happen

    async def _make_whole(self) -> None:
        for name in self._frozen:
            self._cluster.thaw(name)
        self._frozen.clear()
        for name in DISPATCHERS:
            if not self._cluster.runs(name):
                self._cluster.start_dispatcher(name)
        for name in WORKERS:
            if not self._cluster.runs(name):
                self._cluster.start_worker(name)
        await until_agreed(self._clients, len(WORKERS))

    async def _in_frozen_hands(self) -> str:
        """The job of which a frozen worker has pods."""
        self._freeze("w1")
        job = await self._submit(IN_HAND)
        await until(self._was_given_pods, "w1 to be given pods")
        return job

    def _freeze(self, name: str) -> None:
        self._cluster.freeze(name)
        self._frozen.add(name)

    async def _was_given_pods(self) -> bool:
        """Or was, and has lost them because it was silent for too long already."""
        workers = await self._clients.dispatcher.list_workers()
        return any(w.name == "w1" and (w.outstanding or w.state == "Lost") for w in workers)

    async def _worker_is(self, state: str, *, filled: bool = False) -> bool:
        workers = await self._clients.dispatcher.list_workers()
        return any((w.name, w.state) == ("w1", state) and (w.fill_seconds > 0 or not filled) for w in workers)

    async def _bind(self, pods: int = 1) -> None:
        await self._until_bound(await self._submit(pods), pods)

    async def _submit(self, pods: int) -> str:
        name = f"load-{next(self._numbers)}"
        await submit(self._clients, jobs=1, replicas=pods, name=name)
        return f"{name}-0"

    async def _until_bound(self, job: str, pods: int) -> None:
        async def bound() -> bool:
            return any(
                told.name == job and told.bound == pods for told in await self._clients.dispatcher.list_jobs()
            )

        await until(bound, f"{pods} pods of {job} to be bound")

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(coroutine)
