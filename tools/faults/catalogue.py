"""The faults: how each strikes, how it ends, and what shows that it happened.

A fault is a context manager. Inside the block it is in force; when the block ends, it is healed. It raises
`DidNotHappen` where the machine did not do what the fault is named after: such a run shows nothing."""

import asyncio
import contextlib
import random
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import redis

from hoss.errors import HossError
from hossctl.endpoints import Clients
from tools.faults.machines import no_network
from tools.faults.platform import (
    DISPATCHERS,
    HERE,
    RESOLVERS,
    SERVICES,
    WORKERS,
    Needs,
    Platform,
    faketime,
    wait_until,
)

_CGROUPS = Path("/sys/fs/cgroup/memory")
_MIB = 2**20


class DidNotHappen(HossError):  # noqa: N818 - the name says what happened
    """A fault was made, and had no effect."""


@dataclass
class Strike:
    """What a fault gets: the platform, its clients, and chance."""

    platform: Platform
    clients: Clients
    rng: random.Random
    text: str = ""  # whom it hit

    async def active(self) -> str:
        """The dispatcher that is active."""
        address = (await self.clients.dispatcher.status()).address
        return next(name for name in DISPATCHERS if self.platform.address(name) == address)

    async def restarted(self) -> None:
        """All that the fault has stopped goes on."""
        await asyncio.to_thread(self.platform.heal)


Happen = Callable[[Strike], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """`seconds`: how long it lasts, at least and at most. `stops_service`: nobody can be served meanwhile, so
    service is counted from its end."""

    name: str
    happen: Happen
    seconds: tuple[float, float]
    needs: Needs = field(default_factory=Needs)
    stops_service: bool = False

    def missing(self) -> str:
        """Why this machine cannot make it; "" where it can."""
        if self.needs.network:
            return no_network()
        if self.needs.clocks and faketime() is None:
            return "no libfaketime (Debian: apt-get install libfaketime)"
        if self.needs.small_disk and not _may_mount():
            return "no file system can be mounted here: it takes root"
        if self.needs.cgroup and not _may_limit_memory():
            return f"no cgroup can be made in {_CGROUPS}"
        return ""


def _may_mount() -> bool:
    return shutil.which("mount") is not None and _is_root()


def _may_limit_memory() -> bool:
    return (_CGROUPS / "memory.limit_in_bytes").exists() and _is_root()


def _is_root() -> bool:
    return psutil.Process().uids().effective == 0


# -- processes


def _killed(choose: Callable[[Strike], list[str]]) -> Happen:
    @contextlib.asynccontextmanager
    async def happen(strike: Strike) -> AsyncIterator[None]:
        victims = choose(strike)
        if not victims:
            victims = [await strike.active()]
        strike.text = ", ".join(victims)
        for name in victims:
            await asyncio.to_thread(strike.platform.kill, name)
            if strike.platform.runs(name):
                raise DidNotHappen(f"{name} runs on after kill -9")
        try:
            yield
        finally:
            await strike.restarted()

    return happen


def _frozen(choose: Callable[[Strike], list[str]]) -> Happen:
    @contextlib.asynccontextmanager
    async def happen(strike: Strike) -> AsyncIterator[None]:
        victims = choose(strike)
        if not victims:
            victims = [await strike.active()]
        strike.text = ", ".join(victims)
        for name in victims:
            strike.platform.freeze(name)
        try:
            yield
            for name in victims:
                state = strike.platform.process(name).status()
                if state != psutil.STATUS_STOPPED:
                    raise DidNotHappen(f"{name} is {state} after SIGSTOP")
        finally:
            await strike.restarted()

    return happen


@contextlib.asynccontextmanager
async def _rolled(strike: Strike) -> AsyncIterator[None]:
    """Every service is restarted, one after the other, while the block lasts and for as long as it takes."""

    def roll() -> None:
        for name in SERVICES:
            strike.platform.restart(name)

    rolling = asyncio.ensure_future(asyncio.to_thread(roll))
    try:
        yield
        await rolling
        strike.text = "all services in turn"
    finally:
        await asyncio.gather(rolling, return_exceptions=True)
        await strike.restarted()


def _active(_: Strike) -> list[str]:
    """The active dispatcher, which only a call tells."""
    return []


def _one_of(names: tuple[str, ...]) -> Callable[[Strike], list[str]]:
    return lambda strike: [strike.rng.choice(names)]


def _all_of(*names: str) -> Callable[[Strike], list[str]]:
    return lambda _: list(names)


# -- the network


def _cut(choose: Callable[[Strike, str], list[tuple[str, str]]], *, both_ways: bool = True) -> Happen:
    @contextlib.asynccontextmanager
    async def happen(strike: Strike) -> AsyncIterator[None]:
        network = strike.platform.network
        lines = choose(strike, await strike.active())
        strike.text = ", ".join(f"{one} {'and' if both_ways else 'to'} {other}" for one, other in lines)
        for one, other in lines:
            network.cut(one, other, both_ways=both_ways)
        try:
            yield
        finally:
            await strike.restarted()

    return happen


def _dispatcher_and_redis(_: Strike, active: str) -> list[tuple[str, str]]:
    # This machine has Redis and the clients: both are out of the dispatcher's reach.
    return [(active, HERE)]


def _dispatcher_and_workers(_: Strike, active: str) -> list[tuple[str, str]]:
    return [(active, worker) for worker in WORKERS]


def _worker_and_resolvers(strike: Strike, _: str) -> list[tuple[str, str]]:
    worker = strike.rng.choice(WORKERS)
    return [(worker, resolver) for resolver in RESOLVERS]


def _worker_alone(strike: Strike, _: str) -> list[tuple[str, str]]:
    worker = strike.rng.choice(WORKERS)
    return [(worker, other) for other in (*DISPATCHERS, *RESOLVERS)]


def _worker_and_a_resolver(strike: Strike, _: str) -> list[tuple[str, str]]:
    return [(strike.rng.choice(WORKERS), strike.rng.choice(RESOLVERS))]


def _resolver_and_redis(strike: Strike, _: str) -> list[tuple[str, str]]:
    return [(strike.rng.choice(RESOLVERS), HERE)]


def _redis_from_all(_: Strike, __: str) -> list[tuple[str, str]]:
    return [(name, HERE) for name in (*DISPATCHERS, *RESOLVERS)]


@contextlib.asynccontextmanager
async def _slow(strike: Strike) -> AsyncIterator[None]:
    network = strike.platform.network
    slow = {await strike.active(), strike.rng.choice(RESOLVERS), strike.rng.choice(WORKERS)}
    how = {network.slow(name) for name in sorted(slow)}
    strike.text = f"{', '.join(sorted(slow))}: {'; '.join(how)}"
    try:
        yield
        dropped = network.dropped()
        strike.text += f"; {dropped} packets lost"
        if not dropped:
            raise DidNotHappen("slow lines have lost no packet")
    finally:
        await strike.restarted()


# -- Redis


def _failover(*, freeze: bool) -> Happen:
    """The replica is cut off, the master goes on and then ends or stands still: acknowledged writes are
    lost."""

    @contextlib.asynccontextmanager
    async def happen(strike: Strike) -> AsyncIterator[None]:
        platform = strike.platform
        old = await asyncio.to_thread(platform.master)
        new = "redis-2" if old == "redis-1" else "redis-1"
        with platform.redis(old) as master, platform.redis(new) as replica:
            master.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
            master.client_kill_filter(_type="replica")
            lag = strike.rng.uniform(0.2, 1.5)
            await asyncio.sleep(lag)
            lost = master.info("replication")["master_repl_offset"]
            lost -= replica.info("replication")["slave_repl_offset"]
        if lost <= 0:
            raise DidNotHappen("the replica has everything, so the failover loses nothing")
        strike.text = f"{old}, with {lost:,} bytes of writes that {new} has not"
        if freeze:
            platform.freeze(old)
        else:
            await asyncio.to_thread(platform.kill, old)
        try:
            yield
            await asyncio.to_thread(wait_until, lambda: platform.master() == new, f"{new} to be promoted")
        finally:
            await strike.restarted()
            with platform.redis(old) as returned:
                returned.execute_command("ACL", "SETUSER", "default", "+@all")
            await asyncio.to_thread(wait_until, platform.replica_follows, f"{old} to follow {new}")

    return happen


@contextlib.asynccontextmanager
async def _disk_full(strike: Strike) -> AsyncIterator[None]:
    """Redis cannot append to its file. With `appendfsync always` it ends by itself."""
    platform = strike.platform
    filler = platform.redis_directory() / "filler"
    refused = _refused(platform)
    await asyncio.to_thread(_fill, filler)
    try:
        yield
        if platform.runs("redis-1") and _refused(platform) == refused:
            raise DidNotHappen("Redis has refused no write, and runs")
        strike.text = "refused writes" if platform.runs("redis-1") else "redis-1 has ended by itself"
    finally:
        filler.unlink(missing_ok=True)
        await strike.restarted()


@contextlib.asynccontextmanager
async def _older_file(strike: Strike) -> AsyncIterator[None]:
    """Redis ends, and comes back with a copy of its files that was made a while before: as after a restored
    backup, or a disk that has lost its last writes."""
    platform = strike.platform
    files = platform.redis_directory() / "appendonlydir"
    copy = files.with_name("older")
    await asyncio.to_thread(shutil.copytree, files, copy)
    await asyncio.sleep(strike.rng.uniform(0.3, 2.0))
    await asyncio.to_thread(platform.kill, "redis-1")
    lost = _size(files) - _size(copy)
    await asyncio.to_thread(shutil.rmtree, files)
    copy.rename(files)
    if lost <= 0:
        raise DidNotHappen("the older files have everything")
    strike.text = f"redis-1, with {lost:,} bytes of its file less"
    try:
        yield
    finally:
        await strike.restarted()


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir())


def _fill(file: Path) -> None:
    """Until the disk is full."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as rest:
        while rest.write(bytes(65536)) == 65536:
            pass
        while rest.write(bytes(16)):
            pass


def _refused(platform: Platform) -> int:
    """How many commands Redis has answered with the errors of a full disk or memory."""
    with contextlib.suppress(redis.RedisError), platform.redis() as client:
        errors = client.info("errorstats")
        kinds = ("errorstat_MISCONF", "errorstat_OOM")
        return sum(int(errors[kind]["count"]) for kind in kinds if kind in errors)
    return 0


@contextlib.asynccontextmanager
async def _memory_full(strike: Strike) -> AsyncIterator[None]:
    """maxmemory is what Redis uses already, and it may evict nothing."""
    platform = strike.platform
    refused = _refused(platform)
    with platform.redis() as client:
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", used)
    try:
        yield
        count = _refused(platform) - refused
        strike.text = f"{count} writes refused at {used // 1024:,} KiB"
        if not count:
            raise DidNotHappen("Redis has refused no write")
    finally:
        with platform.redis() as client:
            client.config_set("maxmemory", 0)
        await strike.restarted()


@contextlib.asynccontextmanager
async def _out_of_memory(strike: Strike) -> AsyncIterator[None]:
    """The kernel kills Redis, because its cgroup has no memory left."""
    platform = strike.platform
    group = _CGROUPS / f"hossf-{platform.pid('redis-1')}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(platform.pid("redis-1")))
        (group / "memory.limit_in_bytes").write_text(str(8 * _MIB))
        deadline = time.monotonic() + 20
        while platform.runs("redis-1") and time.monotonic() < deadline:
            with contextlib.suppress(redis.RedisError), platform.redis() as client:
                client.set("filler", strike.rng.randbytes(4 * _MIB))
                client.append("filler", strike.rng.randbytes(4 * _MIB))
        killed = "oom_kill 1" in (group / "memory.oom_control").read_text()
        if platform.runs("redis-1") or not killed:
            raise DidNotHappen("the kernel has not killed Redis")
        strike.text = "redis-1, killed by the kernel"
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            if platform.runs("redis-1"):
                (_CGROUPS / "cgroup.procs").write_text(str(platform.pid("redis-1")))
        await strike.restarted()
        with contextlib.suppress(redis.RedisError), platform.redis() as client:
            client.delete("filler")
        group.rmdir()


# -- clocks


def _clock(choose: Callable[[Strike], list[str]]) -> Happen:
    @contextlib.asynccontextmanager
    async def happen(strike: Strike) -> AsyncIterator[None]:
        victims = choose(strike) or [await strike.active()]
        step = strike.rng.choice((-3600, -60, -5, 5, 60, 3600))
        strike.text = f"{', '.join(victims)} by {step:+d} s"
        for name in victims:
            strike.platform.set_clock(name, step)
        for name in victims:
            if not any(
                "libfaketime" in mapped.path for mapped in strike.platform.process(name).memory_maps()
            ):
                raise DidNotHappen(f"{name} has the clock of this machine")
        try:
            yield
            if victims == ["redis-1"]:
                with strike.platform.redis() as client:
                    off = client.time()[0] - time.time()
                if abs(off - step) > 2:
                    raise DidNotHappen(f"the clock of Redis is {off:+.0f} s off")
        finally:
            for name in victims:
                strike.platform.set_clock(name, 0)
            await strike.restarted()

    return happen


# -- several at once


def _together(*several: Happen) -> Happen:
    """Each strikes up to half a second after the one before. What ends the last one ends them all, so those
    that look at their victims in the end come last."""

    @contextlib.asynccontextmanager
    async def happen(strike: Strike) -> AsyncIterator[None]:
        texts = []
        async with contextlib.AsyncExitStack() as striking:
            for one in several:
                await striking.enter_async_context(one(strike))
                texts.append(strike.text)
                await asyncio.sleep(strike.rng.uniform(0.0, 0.5))
            strike.text = "; ".join(texts)
            yield

    return happen


_NETWORK = Needs(network=True)
_SENTINEL = Needs(sentinel=True)
_CLOCKS = Needs(clocks=True)

FAULTS = (
    Fault("kill-dispatcher", _killed(_active), (0.5, 4.0)),
    Fault("kill-resolver", _killed(_one_of(RESOLVERS)), (0.5, 4.0)),
    Fault("kill-resolvers", _killed(_all_of(*RESOLVERS)), (0.2, 2.0), stops_service=True),
    Fault("kill-worker", _killed(_one_of(WORKERS)), (0.5, 4.0)),
    Fault("kill-redis", _killed(_all_of("redis-1")), (0.2, 3.0), stops_service=True),
    Fault("kill-dispatchers", _killed(_all_of(*DISPATCHERS)), (0.2, 2.0), stops_service=True),
    Fault("kill-workers", _killed(_all_of(*WORKERS)), (0.2, 2.0), stops_service=True),
    Fault("kill-everything", _killed(_all_of("redis-1", *SERVICES)), (0.2, 2.0), stops_service=True),
    Fault("restart-services", _rolled, (1.0, 2.0)),
    Fault("freeze-dispatcher", _frozen(_active), (0.5, 8.0)),
    Fault("freeze-dispatchers", _frozen(_all_of(*DISPATCHERS)), (0.5, 8.0), stops_service=True),
    Fault("freeze-resolvers", _frozen(_all_of(*RESOLVERS)), (0.5, 8.0), stops_service=True),
    Fault("freeze-resolver", _frozen(_one_of(RESOLVERS)), (0.5, 8.0)),
    Fault("freeze-worker", _frozen(_one_of(WORKERS)), (0.5, 8.0)),
    Fault("freeze-workers", _frozen(_all_of(*WORKERS)), (0.5, 8.0), stops_service=True),
    Fault("freeze-redis", _frozen(_all_of("redis-1")), (0.5, 8.0), stops_service=True),
    Fault("cut-dispatcher", _cut(_dispatcher_and_redis), (5.0, 12.0), needs=_NETWORK),
    Fault("cut-dispatcher-workers", _cut(_dispatcher_and_workers), (1.0, 8.0), needs=_NETWORK,
        stops_service=True),
    Fault("cut-worker", _cut(_worker_alone), (1.0, 8.0), needs=_NETWORK),
    Fault("cut-worker-resolvers", _cut(_worker_and_resolvers), (1.0, 8.0), needs=_NETWORK),
    Fault("cut-resolver-redis", _cut(_resolver_and_redis), (1.0, 8.0), needs=_NETWORK),
    Fault("cut-redis-one-way", _cut(_redis_from_all, both_ways=False), (1.0, 6.0), needs=_NETWORK,
        stops_service=True),
    Fault("slow-network", _slow, (3.0, 8.0), needs=_NETWORK),
    Fault("failover", _failover(freeze=False), (1.0, 3.0), needs=_SENTINEL),
    Fault("failover-master-returns", _failover(freeze=True), (3.0, 6.0), needs=_SENTINEL),
    Fault("disk-full", _disk_full, (1.0, 4.0), needs=Needs(small_disk=True), stops_service=True),
    Fault("disk-full-always", _disk_full, (1.0, 4.0), needs=Needs(small_disk=True, fsync="always"),
        stops_service=True),
    Fault("memory-full", _memory_full, (1.0, 4.0), stops_service=True),
    Fault("out-of-memory", _out_of_memory, (0.2, 2.0), needs=Needs(cgroup=True), stops_service=True),
    Fault("clock-dispatcher", _clock(_active), (2.0, 6.0), needs=_CLOCKS),
    Fault("clock-resolver", _clock(_one_of(RESOLVERS)), (2.0, 6.0), needs=_CLOCKS),
    Fault("clock-worker", _clock(_one_of(WORKERS)), (2.0, 6.0), needs=_CLOCKS),
    Fault("clock-redis", _clock(_all_of("redis-1")), (2.0, 6.0), needs=_CLOCKS),
    Fault("failover-kill-worker-resolver",
        _together(_killed(_one_of(WORKERS)), _killed(_one_of(RESOLVERS)), _failover(freeze=False)),
        (1.0, 3.0), needs=_SENTINEL),
    Fault("failover-freeze-resolver", _together(_failover(freeze=False), _frozen(_one_of(RESOLVERS))),
        (3.0, 6.0), needs=_SENTINEL),
    Fault("clock-redis-freeze-worker", _together(_clock(_all_of("redis-1")), _frozen(_one_of(WORKERS))),
        (2.0, 8.0), needs=_CLOCKS),
    Fault("takeover-freeze-resolver", _together(_killed(_active), _frozen(_one_of(RESOLVERS))), (1.0, 6.0)),
    Fault("takeover-freeze-worker", _together(_killed(_active), _frozen(_one_of(WORKERS))), (3.0, 8.0)),
    Fault("older-file", _older_file, (0.5, 3.0), stops_service=True),
    Fault("older-file-takeover", _together(_killed(_active), _older_file), (0.5, 3.0), stops_service=True),
    Fault("failover-takeover", _together(_killed(_active), _failover(freeze=False)), (1.0, 4.0),
        needs=_SENTINEL),
    Fault("disk-full-takeover", _together(_killed(_active), _disk_full), (1.0, 4.0),
        needs=Needs(small_disk=True), stops_service=True),
    Fault("memory-full-takeover", _together(_killed(_active), _memory_full), (1.0, 4.0), stops_service=True),
    Fault("clock-redis-takeover", _together(_clock(_all_of("redis-1")), _killed(_active)), (2.0, 6.0),
        needs=_CLOCKS),
    Fault("cut-worker-resolver-takeover", _together(_cut(_worker_and_a_resolver), _killed(_active)),
        (2.0, 8.0), needs=_NETWORK),
    Fault("kill-redis-freeze-resolver", _together(_killed(_all_of("redis-1")), _frozen(_one_of(RESOLVERS))),
        (0.5, 6.0), stops_service=True),
    Fault("kill-resolvers-freeze-dispatcher", _together(_killed(_all_of(*RESOLVERS)), _frozen(_active)),
        (2.0, 6.0), stops_service=True),
)  # fmt: skip
BY_NAME = {fault.name: fault for fault in FAULTS}
