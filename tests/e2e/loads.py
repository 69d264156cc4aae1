"""Loads for a platform of real processes, and what must hold once they are through."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from hoss.client.dispatcher import submission
from hoss.errors import TransportError
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.auditing import audit, until_caches_agree
from hossctl.endpoints import Clients
from hossctl.nodes import register

GIB = 2**30
NODES = 200
PATIENCE_SECONDS = 60.0


async def prepare(clients: Clients, *, workers: int, nodes: int = NODES, cpus: int = 64) -> None:
    allocatable = (("cpu", cpus * 1000), ("memory", 256 * GIB), ("pods", 250))
    await register(clients.resolver, [NodeSpec(f"node-{i:04d}", allocatable=allocatable) for i in range(nodes)])
    assert await until_caches_agree(clients.dispatcher, clients.resolver, workers)


async def submit(clients: Clients, *, jobs: int, replicas: int, name: str = "job", cpu_milli: int = 100) -> None:
    spec = PodSpec(requests=(("cpu", cpu_milli), ("memory", GIB // 8)))
    template = PodTemplate(spec, owner_kind="Job")
    for request in submission([Workload(f"{name}-{i}", template, replicas) for i in range(jobs)]):
        await clients.dispatcher.submit(request)


async def counts(clients: Clients) -> list[pb.JobInfo]:
    return await clients.dispatcher.list_jobs()


async def some_bound(clients: Clients, least: int) -> bool:
    return sum(job.bound for job in await counts(clients)) >= least


async def all_bound(clients: Clients, pods: int) -> bool:
    return sum(job.bound for job in await counts(clients)) == pods


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with contextlib.suppress(TransportError):  # a killed service is back, and the channel has not noticed yet
            if await holds():
                return
        assert time.monotonic() < deadline, "the pods were not bound in time"
        await asyncio.sleep(0.02)


async def assert_clean(clients: Clients, *, bound: int) -> None:
    result = await audit(clients.dispatcher, clients.resolver)
    assert (result.findings, result.unchecked) == ([], [])
    assert result.bound == result.reservations == bound
