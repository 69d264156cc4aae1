"""`python -m tools.bench resolver`: the rate of resolvers and their ledger, beside that of the ledger's
script alone.

Redis and resolvers are processes of their own. This process sends proposals, made beforehand, on one stream
to each pair of resolver and shard in turn, as fast as they are answered. Every case has its own pods on nodes
with room for all, and a share of pods on full nodes. Its reservations are released again, so that every case
finds the ledger as empty as the script alone does.

The JSON document (camel case):

    nodes, podsPerCase, seed, repeat
    cases[]                       of each the run with the median rate
        resolvers, shards, batch, conflictPercent
        podsPerSecond             pods decided, refused ones included
        committedPerSecond
        p99Ms                     from a batch sent to its verdict, with one batch in flight
        ceilingPerSecond          of the script alone, same batch, on the same Redis
        ratio                     podsPerSecond by that; null with conflicts, which the ceiling does not have
        hotNode                   true: every pod for one node
        redisMicros, resolverMicros   CPU time per pod; null for a Redis of the user
"""

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hoss.client.resolver import ResolverClient
from hoss.errors import HossError
from hoss.model.node import NodeSpec
from hoss.model.resources import BASE_RESOURCES, CPU, MEMORY, PODS
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import I32, I64, U8, U16, U32, decode, decode_uids, encode, numbered_uids
from hoss.wire.uids import UID_PREFIX_BYTES
from hossctl.bench.ceiling import measure_ceiling
from hossctl.bench.processes import by_service, cpu_seconds
from hossctl.cli import run_async
from hossctl.console import Document
from hossctl.figures import camel, median, per_second, percentiles, share
from hossctl.local.process import READY_SECONDS, ProcessRecord, ServiceProcess, record_of, stop_all
from hossctl.local.redis_database import borrowed
from hossctl.local.redis_server import RedisServer

# In flight on one stream: enough to keep a resolver and Redis busy, like a few workers with their windows.
STREAM_PODS = 4000
STREAM_BATCHES = 64

_RELEASED_PODS = 10_000  # in a call


@dataclass(frozen=True, slots=True)
class Target:
    """Nodes of one shard, by index: with room for everything, and full."""

    shard: int
    roomy: NDArray[np.uint32]
    full: NDArray[np.uint32]


@dataclass(slots=True)
class Driven:
    """The answers."""

    pods: int = 0
    committed: int = 0
    seconds: float = 0.0
    latencies_ms: tuple[float, ...] = ()  # of each batch
    commits: tuple[int, ...] = ()  # seqs of the shard


def proposals(
    target: Target,
    *,
    worker: str,
    epoch: int,
    pods: int,
    batch: int,
    conflict_share: float,
    seed: int,
    first_batch_id: int = 1,
) -> list[pb.ProposalBatch]:
    """At most `pods` pods of one class in batches of `batch`, each on a node drawn from those with room; a
    share of them on a full one, at random places. Calls with different seeds share no pod names."""
    rng = np.random.default_rng(seed)
    requests = np.zeros(len(BASE_RESOURCES), np.int64)
    requests[[CPU, MEMORY, PODS]] = 100, 2**27, 1
    prefix = seed.to_bytes(UID_PREFIX_BYTES, "big")
    batches: list[pb.ProposalBatch] = []
    for first in range(0, pods, batch):
        count = min(batch, pods - first)
        nodes = rng.choice(target.roomy, count, replace=count > len(target.roomy))
        refused = rng.random(count) < conflict_share
        nodes[refused] = rng.choice(target.full, int(refused.sum()))
        batches.append(
            pb.ProposalBatch(
                worker=worker,
                epoch=epoch,
                batch_id=first_batch_id + len(batches),
                shard=target.shard,
                snapshot_seq=2**52,
                resources=len(requests),
                uids=numbered_uids(prefix, first, count).tobytes(),
                slots=encode(np.zeros(count), U16),
                candidates=1,
                nodes=encode(nodes, U32),
                requests=encode(requests, I64),
                priorities=encode([0], I32),
                attempts=encode([0], U16),
            )
        )
    return batches


async def drive(
    client: ResolverClient, batches: Sequence[pb.ProposalBatch], *, in_flight: int | None = None
) -> Driven:
    """Send them on one stream, `in_flight` batches unanswered at most (default: as the constants above say).

    Raises HossError when the resolver answers anything but verdicts.
    """
    window = in_flight or max(2, min(STREAM_BATCHES, STREAM_PODS // _pods_in(batches[0])))
    credit, sent = asyncio.Semaphore(window), deque[float]()
    sent_at: dict[int, float] = {}
    latencies: list[float] = []
    commits: list[int] = []
    result = Driven()

    async def outgoing() -> AsyncIterator[pb.ProposalBatch]:
        for batch in batches:
            await credit.acquire()
            sent_at[batch.batch_id] = time.perf_counter()
            sent.append(sent_at[batch.batch_id])
            yield batch

    async for answer in client.stub.Propose(outgoing()):
        if answer.invalid or answer.unavailable:
            raise HossError(f"the resolver did not decide a proposal: {answer.invalid or answer.unavailable}")
        result.seconds = time.perf_counter() - sent[0]
        latencies.append(1000 * (time.perf_counter() - sent_at.pop(answer.batch_id)))
        verdicts = decode(answer.verdicts, U8, name="verdicts")
        result.pods += len(verdicts)
        result.committed += int((verdicts == pb.COMMITTED).sum())
        commits.append(answer.seq)
        credit.release()
    result.latencies_ms = tuple(latencies)
    result.commits = tuple(filter(None, commits))
    return result


async def take_back(client: ResolverClient, batches: Sequence[pb.ProposalBatch], driven: Driven) -> None:
    """Release all reservations, so that the next proposals find the same ledger."""
    await client.confirm({batches[0].shard: np.array(driven.commits, np.uint64)})
    uids = np.concatenate([decode_uids(batch.uids) for batch in batches])
    # One candidate each.
    nodes = np.concatenate([decode(batch.nodes, U32, name="nodes") for batch in batches])
    for first in range(0, len(uids), _RELEASED_PODS):
        step = slice(first, first + _RELEASED_PODS)
        await client.release(uids[step], nodes[step])


def _pods_in(batch: pb.ProposalBatch) -> int:
    return len(batch.slots) // U16.itemsize


GOAL_CEILING, GOAL_RATIO, GOAL_P99_MS, GOAL_HOT_SHARE = 250_000, 0.8, 5.0, 1 / 3

_WORKER = "bench"
_FULL_NODES = 64  # of each shard
_LATENCY_BATCHES = 200
_MOST_BATCHES = 2000  # of a case: small ones cost a message each
_CEILING_SECONDS = 0.5
_PLENTY = (("cpu", 2**50), ("memory", 2**50), ("pods", 2**40))
_NOTHING = (("cpu", 0), ("memory", 0), ("pods", 0))


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured: every combination."""

    nodes: int
    resolvers: Sequence[int]
    shards: Sequence[int]
    batches: Sequence[int]
    conflicts: Sequence[int]  # per cent
    pods: int  # of each case
    seed: int
    redis_url: str = ""
    repeat: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """One row."""

    resolvers: int
    shards: int
    batch: int
    conflict_percent: int
    hot_node: bool
    driven: Driven
    p99_ms: float
    ceiling: float
    cpu_seconds: dict[str, float]  # by service

    @property
    def pods_per_second(self) -> float:
        return per_second(self.driven.pods, self.driven.seconds)

    def as_json(self) -> Document:
        """See the module's docstring."""
        fits = not (self.conflict_percent or self.hot_node)
        return {
            **camel(self, "resolvers", "shards", "batch", "conflict_percent", "hot_node"),
            "podsPerSecond": round(self.pods_per_second, 1),
            "committedPerSecond": round(per_second(self.driven.committed, self.driven.seconds), 1),
            "p99Ms": round(self.p99_ms, 3),
            "ceilingPerSecond": round(self.ceiling, 1),
            "ratio": round(share(self.pods_per_second, self.ceiling), 4) if fits else None,
            "redisMicros": self.micros("redis"),
            "resolverMicros": self.micros("resolvers"),
        }

    def micros(self, service: str) -> float | None:
        """CPU time per pod; None where its processes are not ours."""
        seconds = self.cpu_seconds.get(service)
        return None if seconds is None else round(1e6 * share(seconds, self.driven.pods), 3)


@dataclass(frozen=True, slots=True)
class _Served:
    """Where Redis and the resolvers are, and those of their processes that are ours."""

    redis_url: str
    addresses: Sequence[str]
    records: Sequence[ProcessRecord]


def measure(setting: Setting) -> Iterator[Case]:
    """Case by case. Every pair of resolvers and shards has an empty Redis."""
    for resolvers in setting.resolvers:
        for shards in setting.shards:
            with borrowed(setting.redis_url), _served(setting.redis_url, resolvers, shards) as served:
                runs = run_async(_runs(setting, served, shards))
            for of_case in zip(*runs, strict=True):
                yield sorted(of_case, key=lambda case: case.pods_per_second)[len(of_case) // 2]


def goals(cases: Sequence[Case]) -> list[tuple[str, str]]:
    """Each goal beside the measured figure, over the cases of the goal. Goals without a case are left out."""
    plain = [case for case in cases if not (case.conflict_percent or case.hot_node)]
    single = [case for case in plain if case.resolvers == case.shards == 1]
    lines = []
    if single:
        lines.append(
            ("script alone", f"{max(c.ceiling for c in single):,.0f} pods/s (goal {GOAL_CEILING:,})")
        )
        if micros := max(single, key=lambda case: case.batch).micros("redis"):
            lines.append(
                ("Redis, by its CPU time", f"{1e6 / micros:,.0f} pods/s of one core (goal {GOAL_CEILING:,})")
            )
    for batch in sorted({case.batch for case in plain}):
        ratios = [share(case.pods_per_second, case.ceiling) for case in plain if case.batch == batch]
        text = f"{median(ratios):.2f} of it (goal {GOAL_RATIO})"
        spread = f"; {min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} cases" if len(ratios) > 1 else ""
        lines.append((f"through gRPC, batch {batch:,}", text + spread))
    if hundreds := [case for case in single if case.batch == 100]:
        lines.append(("p99 of a batch of 100", f"{hundreds[0].p99_ms:.2f} ms (goal {GOAL_P99_MS:g})"))
    by_place = {(c.resolvers, c.shards, c.batch): c for c in plain}
    hot = [
        c.pods_per_second / by_place[c.resolvers, c.shards, c.batch].pods_per_second
        for c in cases
        if c.hot_node
    ]
    if plain and hot:
        lines.append(
            ("every pod for one node", f"{min(hot):.2f} of the same spread out (goal {GOAL_HOT_SHARE:.2f})")
        )
    return lines


async def _runs(setting: Setting, served: _Served, shards: int) -> list[list[Case]]:
    """All cases once, `repeat` times, so that changes of the machine's load meet all cases."""
    async with _clients(served.addresses) as clients:
        targets = await _register(clients[0], setting.nodes, shards)
        epoch = await clients[0].grant_epoch(_WORKER)
        seeds = itertools.count(setting.seed * 1_000_000)
        return [
            await _cases(setting, served, clients, targets, epoch=epoch, seeds=seeds)
            for _ in range(setting.repeat)
        ]


async def _cases(
    setting: Setting,
    served: _Served,
    clients: Sequence[ResolverClient],
    targets: Sequence[Target],
    *,
    epoch: int,
    seeds: Iterator[int],
) -> list[Case]:
    found: list[Case] = []
    for batch in setting.batches:
        ceiling = await measure_ceiling(
            served.redis_url, nodes=setting.nodes, batch=batch, seconds=_CEILING_SECONDS
        )
        for percent, hot in [*((percent, False) for percent in setting.conflicts), (0, True)]:
            driven, used, p99 = await _case(
                served,
                clients,
                [_hot(target) if hot else target for target in targets],
                epoch=epoch,
                batch=batch,
                pods=min(setting.pods, batch * _MOST_BATCHES),
                percent=percent,
                seeds=seeds,
            )
            found.append(Case(len(clients), len(targets), batch, percent, hot, driven, p99, ceiling, used))
    return found


async def _case(
    served: _Served,
    clients: Sequence[ResolverClient],
    targets: Sequence[Target],
    *,
    epoch: int,
    batch: int,
    pods: int,
    percent: int,
    seeds: Iterator[int],
) -> tuple[Driven, dict[str, float], float]:
    """All resolvers at once, with the CPU time of the services; then one batch at a time for the p99."""
    streams = max(len(clients), len(targets))
    loads = [
        proposals(
            targets[stream % len(targets)],
            worker=_WORKER,
            epoch=epoch,
            pods=max(batch, pods // streams),
            batch=batch,
            conflict_share=percent / 100,
            seed=next(seeds),
            first_batch_id=1 + stream * pods,
        )
        for stream in range(streams)
    ]
    before = cpu_seconds(served.records)
    began = time.perf_counter()
    parts = await asyncio.gather(*(drive(clients[i % len(clients)], load) for i, load in enumerate(loads)))
    total = Driven(sum(p.pods for p in parts), sum(p.committed for p in parts), time.perf_counter() - began)
    used = by_service(before, cpu_seconds(served.records))
    for load, part in zip(loads, parts, strict=True):
        await take_back(clients[0], load, part)
    few = proposals(
        targets[0],
        worker=_WORKER,
        epoch=epoch,
        pods=min(pods, batch * _LATENCY_BATCHES),
        batch=batch,
        conflict_share=percent / 100,
        seed=next(seeds),
    )
    alone = await drive(clients[0], few, in_flight=1)
    await take_back(clients[0], few, alone)
    return total, used, percentiles(np.array(alone.latencies_ms), 99)[0]


def _hot(target: Target) -> Target:
    return Target(target.shard, target.roomy[:1], target.full)


async def _register(client: ResolverClient, nodes: int, shards: int) -> list[Target]:
    """Nodes by shard, as the ledger spreads them."""
    names = [NodeSpec(f"roomy-{number}", allocatable=_PLENTY) for number in range(nodes)]
    names += [NodeSpec(f"full-{number}", allocatable=_NOTHING) for number in range(_FULL_NODES * shards)]
    indexes = np.array((await client.upsert_nodes(names)).indexes, np.uint32)
    roomy, full = indexes[:nodes], indexes[nodes:]
    return [
        Target(shard, roomy[roomy % shards == shard], full[full % shards == shard]) for shard in range(shards)
    ]


@contextlib.asynccontextmanager
async def _clients(addresses: Sequence[str]) -> AsyncIterator[list[ResolverClient]]:
    clients = [ResolverClient([address]) for address in addresses]
    try:
        yield clients
    finally:
        for client in clients:
            await client.close()


@contextlib.contextmanager
def _served(redis_url: str, resolvers: int, shards: int) -> Iterator[_Served]:
    """A Redis, unless one was given, and resolver processes."""
    with tempfile.TemporaryDirectory(prefix="hoss-bench-") as folder, contextlib.ExitStack() as stack:
        directory = Path(folder)
        records: list[ProcessRecord] = []
        if not redis_url:
            server = RedisServer.start(directory / "redis")
            stack.callback(server.kill)
            redis_url = server.url
            records.append(record_of("redis", server.pid, directory / "redis" / "redis.log", server.url))
        addresses = []
        for number in range(resolvers):
            arguments = ["--listen", "127.0.0.1:0", "--redis-url", redis_url, "--shards", str(shards)]
            service = ServiceProcess(f"resolver-{number + 1}", "resolver", arguments, directory)
            stack.callback(stop_all, [service.record])
            records.append(service.wait_ready(time.monotonic() + READY_SECONDS))
            addresses.append(records[-1].address)
        yield _Served(redis_url, addresses, records)
