"""A dispatcher process by itself, its journal in a real Redis: the ledger and the workers are stand-ins in this process."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hoss import rpc
from hoss.client.dispatcher import DispatcherClient
from hoss.errors import HossError
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.bench import processes
from hossctl.bench.routing import policy_yaml
from hossctl.bench.stand_ins import StandInWorker, stand_in_ledger
from hossctl.process import ProcessRecord, Service, record_of, stop_all
from hossctl.redis_server import RedisServer

_WINDOW_PODS = 2000
_READY_SECONDS = 30.0
_STALL_SECONDS = 60.0
_LOOK_SECONDS = 0.01

# On a machine that is busy with other things nobody is to be taken for dead.
_CONFIG = """\
apiVersion: hoss.dev/v1alpha1
kind: DispatcherConfig
worker_timeout_seconds: 60
lease_seconds: 60
"""


@dataclass(frozen=True, slots=True)
class Alone:
    """One dispatcher, the Redis of its journal, and a client."""

    dispatcher: ProcessRecord
    redis: ProcessRecord | None  # None: the user's
    client: DispatcherClient

    def cpu_seconds(self) -> dict[str, float]:
        """Of both processes so far, by service."""
        return processes.cpu_seconds([record for record in (self.dispatcher, self.redis) if record is not None])


@contextlib.asynccontextmanager
async def dispatcher_alone(redis_url: str, rules: int) -> AsyncIterator[Alone]:
    """One that was just started, with a policy of so many rules. `redis_url`: empty, the journal has a Redis of its own."""
    with tempfile.TemporaryDirectory(prefix="hoss-bench-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        redis = None
        if not redis_url:
            redis = RedisServer.start(directory / "redis", append_only=True)
            stack.callback(redis.kill)
        policy, config = directory / "policy.yaml", directory / "dispatcher.yaml"
        policy.write_text(policy_yaml(rules), encoding="utf-8")
        config.write_text(_CONFIG, encoding="utf-8")
        async with stand_in_ledger() as resolver:
            arguments = [
                "--config",
                str(config),
                "--listen",
                "127.0.0.1:0",
                "--redis-url",
                redis.url if redis else redis_url,
            ]
            arguments += ["--resolver", resolver, "--policy", str(policy), "--log-level", "warning"]
            service = Service("dispatcher", "dispatcher", arguments, directory)
            try:
                record = await asyncio.to_thread(service.wait_ready, time.monotonic() + _READY_SECONDS)
                async with DispatcherClient([record.address]) as client:
                    own = None if redis is None else record_of("redis", redis.pid, directory / "redis" / "redis.log")
                    yield Alone(record, own, client)
            finally:
                # In a thread, so that the stand-in ledger still answers a dispatcher that is ending.
                await asyncio.to_thread(stop_all, [service.record])


async def submit(client: DispatcherClient, messages: Sequence[pb.SubmitRequest]) -> None:
    """Hand these over, and wait until all are durable."""

    async def outgoing() -> AsyncIterator[pb.SubmitRequest]:
        for message in messages:
            yield message

    async for _ in client.submit_stream(outgoing()):
        pass


@contextlib.asynccontextmanager
async def stand_in_workers(dispatcher: str, count: int) -> AsyncIterator[list[StandInWorker]]:
    """Workers that say yes to whatever they are given, for the length of the block."""
    workers = [StandInWorker(dispatcher, f"stand-in-{i}", _WINDOW_PODS) for i in range(count)]
    async with rpc.background(*(worker.serve() for worker in workers)):
        yield workers


async def until_dispatched(client: DispatcherClient, workers: Sequence[StandInWorker], pods: int) -> None:
    """Until so many pods are with the workers and known as bound. Raises HossError if that ends short of it."""
    deadline = time.monotonic() + _STALL_SECONDS
    while sum(worker.pods for worker in workers) < pods:
        _check(deadline, workers, pods)
        await asyncio.sleep(_LOOK_SECONDS)
    while (await client.status()).pods_by_phase["BOUND"] < pods:
        _check(deadline, workers, pods)
        await asyncio.sleep(_LOOK_SECONDS)


def _check(deadline: float, workers: Sequence[StandInWorker], pods: int) -> None:
    if time.monotonic() > deadline:
        given = sum(worker.pods for worker in workers)
        raise HossError(f"the dispatcher has given {given:,} of {pods:,} pods to workers and gives no more")
