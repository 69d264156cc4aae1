"""`hoss bench resolver`: what resolvers and their ledger decide, beside what the ledger's script does alone.

Redis and resolvers are processes of their own; one stream of proposals runs to each resolver and shard pair in turn from
this process. Every case has pods of its own on nodes with room for all, and a share of pods on full nodes; what it reserved is
released again, so that all find the ledger as empty as the script alone does.

The JSON document (camel case):

    nodes, podsPerCase, seed, repeat
    cases[]                       of each the run with the median rate
        resolvers, shards, batch, conflictPercent
        podsPerSecond             pods decided, refused ones included
        committedPerSecond
        p99Ms                     from a batch sent to its verdict, one batch under way
        ceilingPerSecond          of the script alone, same batch, on the same Redis
        ratio                     podsPerSecond of it; null where pods conflict, which the ceiling does not
        hotNode                   true: every pod for one node
        redisMicros, resolverMicros   CPU time per pod; of a Redis of one's own null
"""

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hoss.client.resolver import ResolverClient
from hoss.model.node import NodeSpec
from hossctl.bench.processes import by_service, cpu_seconds
from hossctl.bench.proposals import Driven, Target, drive, proposals, take_back
from hossctl.console import Document
from hossctl.eventloop import run_async
from hossctl.figures import median, per_second, percentiles, share
from hossctl.process import READY_SECONDS, ProcessRecord, Service, record_of, stop_all
from hossctl.redis_database import borrowed
from hossctl.redis_server import RedisServer
from resolver.ledger.ceiling import measure_ceiling

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
        alike = not (self.conflict_percent or self.hot_node)
        return {
            "resolvers": self.resolvers,
            "shards": self.shards,
            "batch": self.batch,
            "conflictPercent": self.conflict_percent,
            "hotNode": self.hot_node,
            "podsPerSecond": round(self.pods_per_second, 1),
            "committedPerSecond": round(per_second(self.driven.committed, self.driven.seconds), 1),
            "p99Ms": round(self.p99_ms, 3),
            "ceilingPerSecond": round(self.ceiling, 1),
            "ratio": round(share(self.pods_per_second, self.ceiling), 4) if alike else None,
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
    """What was reached of each goal, over the cases it is about; those that were not measured are left out."""
    plain = [case for case in cases if not (case.conflict_percent or case.hot_node)]
    single = [case for case in plain if case.resolvers == case.shards == 1]
    lines = []
    if single:
        lines.append(("script alone", f"{max(c.ceiling for c in single):,.0f} pods/s (goal {GOAL_CEILING:,})"))
        if micros := max(single, key=lambda case: case.batch).micros("redis"):
            lines.append(("Redis, by its CPU time", f"{1e6 / micros:,.0f} pods/s of one core (goal {GOAL_CEILING:,})"))
    for batch in sorted({case.batch for case in plain}):
        ratios = [share(case.pods_per_second, case.ceiling) for case in plain if case.batch == batch]
        told = f"{median(ratios):.2f} of it (goal {GOAL_RATIO})"
        spread = f"; {min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} cases" if len(ratios) > 1 else ""
        lines.append((f"through gRPC, batch {batch:,}", told + spread))
    if hundreds := [case for case in single if case.batch == 100]:
        lines.append(("p99 of a batch of 100", f"{hundreds[0].p99_ms:.2f} ms (goal {GOAL_P99_MS:g})"))
    by_place = {(c.resolvers, c.shards, c.batch): c for c in plain}
    hot = [c.pods_per_second / by_place[c.resolvers, c.shards, c.batch].pods_per_second for c in cases if c.hot_node]
    if plain and hot:
        lines.append(("every pod for one node", f"{min(hot):.2f} of the same spread out (goal {GOAL_HOT_SHARE:.2f})"))
    return lines


async def _runs(setting: Setting, served: _Served, shards: int) -> list[list[Case]]:
    """Every case, `repeat` times over. What varies with the hour then varies for all of them."""
    async with _clients(served.addresses) as clients:
        targets = await _register(clients[0], setting.nodes, shards)
        epoch = await clients[0].grant_epoch(_WORKER)
        seeds = itertools.count(setting.seed * 1_000_000)
        return [
            await _cases(setting, served, clients, targets, epoch=epoch, seeds=seeds) for _ in range(setting.repeat)
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
        ceiling = await measure_ceiling(served.redis_url, nodes=setting.nodes, batch=batch, seconds=_CEILING_SECONDS)
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
    """All resolvers at once, with the CPU time they and Redis took; and then one batch at a time: p99."""
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
    return [Target(shard, roomy[roomy % shards == shard], full[full % shards == shard]) for shard in range(shards)]


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
            service = Service(f"resolver-{number + 1}", "resolver", arguments, directory)
            stack.callback(stop_all, [service.record])
            records.append(service.wait_ready(time.monotonic() + READY_SECONDS))
            addresses.append(records[-1].address)
        yield _Served(redis_url, addresses, records)
