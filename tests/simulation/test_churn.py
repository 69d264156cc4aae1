"""Nothing grows for ever: a month of pods, jobs, namespaces, tenants, nodes, workers' names and policies on a whole
platform in one process.

The tables are not named here: every container that is reachable from a service is counted (held_objects), and
every key of Redis. Days are short, and so is what is remembered for a time."""

import asyncio
import gc
import json
import re
from collections import Counter
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from held_objects import entries_held

import resolver.__main__
from dispatcher.runtime import Runtime
from hoss.client.dispatcher import DispatcherClient, submission
from hoss.client.resolver import ResolverClient
from hoss.errors import HossError
from hoss.model.node import PREFER_NO_SCHEDULE, NodeSpec, Taint
from hoss.model.pod import HostPort, PodAffinity, PodAffinityTerm, PodSpec, PodTemplate, Workload
from hoss.model.selectors import LabelSelector, Requirement
from resolver.api.service import ResolverService
from resolver.config import ResolverConfig
from scheduler_worker.service import WorkerService
from tools.simulation.loop import discarding
from tools.simulation.redis_backend import DrivenRedis
from tools.simulation.world import DISPATCHER, EPOCH_UNIX, RESOLVER, URL, WORKER, Service, World

DAY_SECONDS = 3.0
SERVICES = (Runtime, WorkerService, ResolverService)

# Tables with a limit of their own that the simulation does not reach, by a part of their path.
LIMITS = {
    r"_feeds\[\]\._ring": 128 * 2,  # messages, of each of two shards
    r"machine\.log\.": 200_000,
    r"registry\.history\.": 1_000_000,
    r"queues\._history\.": 128 * 100,  # windows, with what is in each
    r"registry\.reasons\.": 1000,
    r"_decisions\.": 100_000,
    r"refusals\._history": 1024 * 8,
    r"_transitions|transitions": 10_000,
    r"conflicts\.(pairs|_names|nodes)": 4096,
    r"Redis .*:grants": 10_000,
    r"Redis .*:workers": 10_000,
    r"Redis .*:feed": 20_000,
    r"Redis .*:nonces": 1,
    r"Redis .*:reservations": 100,  # of two days, all on one shard
    r"_grants\._\w+\._buckets": 64,
    r"tenants\._uncounted": 200,  # pods of the last ticks
    r"refusals\._on_node": 64,  # by the node's number, of which nodes that go leave theirs to others
    r"_committers\[\]\.counters": 64,  # by what happened
    r"pod_index\._counters\[\]\.": 3000,  # of classes with rules, of which a worker has few or many on a day
}


class ShortMemory(World):
    """A platform whose resolvers remember rules for two days."""

    def _serve(self, service, host):
        if service.kind != RESOLVER:
            return super()._serve(service, host)
        config = ResolverConfig(
            listen=self.addresses[service.name],
            redis_url=URL,
            shards=self.shards,
            rules_memory_seconds=2 * DAY_SECONDS,
        )
        return resolver.__main__.serve(config, None, host=host)


class Month:
    """The story of a platform, day by day, and what was held at the end of each day."""

    def __init__(self, world: World, server: DrivenRedis) -> None:
        self.held: list[dict[str, int]] = []
        self._earlier = [item for item in gc.get_objects() if isinstance(item, SERVICES)]  # of other tests
        self._world = world
        self._server = server
        self.process, host = world.new_host("client")
        self._rng = host.rng
        addresses = [
            [a for n, a in world.addresses.items() if n.startswith(kind)] for kind in (DISPATCHER, RESOLVER)
        ]
        self._pods = DispatcherClient(
            addresses[0], open_channel=host.channel, clock=host.monotonic, rng=host.rng
        )
        self._nodes = ResolverClient(addresses[1], open_channel=host.channel)

    async def run(self, days: int) -> None:
        for name in self._world.services:
            self._world.start(name)
        while True:
            try:
                await self._nodes.upsert_nodes([node(f"always-{number}") for number in range(3)])
                break
            except HossError:
                await asyncio.sleep(0.2)
        for day in range(days):
            await self._begin(day)
            await asyncio.sleep(DAY_SECONDS)
            if day:
                await self._end(day - 1)
            self.held.append({**self._held(), **self._keys()})

    async def _begin(self, day: int) -> None:
        await self._nodes.upsert_nodes([node(f"of-{day}")])
        worker = f"w-of-{day}"
        self._world.services[worker] = Service(worker, WORKER)
        self._world.start(worker)
        for request in submission(workloads(day), rng=self._rng):
            await self._pods.submit(request)
        await self._pods.set_policy(policy(day))

    async def _end(self, day: int) -> None:
        self._world.stop(f"w-of-{day}")
        await self._pods.delete(f"ns-{day}", jobs=["plain", "apart", "port", "large"], pods=["bare"])
        await self._nodes.remove_nodes([f"of-{day}"])

    def _held(self) -> dict[str, int]:
        roots = {}
        for item in gc.get_objects():
            if isinstance(item, SERVICES) and item not in self._earlier:
                name = f"{type(item).__name__} {getattr(item, '_name', '')}"
                if "w-of-" not in name:  # those of one day
                    roots[name] = item
        assert len(roots) == 3 + 1  # two workers
        return entries_held(roots)

    def _keys(self) -> dict[str, int]:
        now_us = int((EPOCH_UNIX + self._world.loop.time()) * 1e6)
        sizes = {}
        for key in self._server.read(("KEYS", "*"), now_us):
            kind = self._server.read(("TYPE", key), now_us).decode()
            command = {"hash": "HLEN", "zset": "ZCARD", "stream": "XLEN", "set": "SCARD", "list": "LLEN"}.get(
                kind
            )
            sizes[f"Redis {key.decode()}"] = self._server.read((command, key), now_us) if command else 1
        return {**sizes, "Redis": len(sizes)}


def node(name: str) -> NodeSpec:
    return NodeSpec(
        name,
        labels=(("kubernetes.io/hostname", name), ("zone", f"zone-{name}"), (f"label-{name}", "x")),
        taints=(Taint("prefers", name, PREFER_NO_SCHEDULE),),
        allocatable=(("cpu", 8000), ("memory", 8 * 2**30), ("pods", 50)),
        images=((f"image-{name}", 1000),),
    )


def workloads(day: int) -> list[Workload]:
    """Jobs and a bare pod of a namespace of this day, all of classes that no other day has; and a pod for which
    there is no room."""
    namespace, app = f"ns-{day}", (("app", f"app-{day}"),)
    plain = PodSpec(namespace, requests=(("cpu", 100 + day),), labels=app)
    selector = LabelSelector((Requirement("app", "In", (f"app-{day}",)),))
    term = PodAffinityTerm("kubernetes.io/hostname", selector, (namespace,))
    apart = replace(plain, pod_affinity=PodAffinity(anti_required=(term,)))
    port = replace(plain, host_ports=(HostPort(1000 + day, "TCP", ""),))
    large = replace(plain, requests=(("cpu", 100_000 + day),))

    def job(name: str, spec: PodSpec, pods: int) -> Workload:
        return Workload(name, PodTemplate(spec, scheduler_name=f"scheduler-{day}", owner_kind="Job"), pods)

    jobs = [job("plain", plain, 40), job("apart", apart, 2), job("port", port, 1), job("large", large, 1)]
    return [*jobs, Workload("bare", PodTemplate(plain, owner_kind=""))]


def policy(day: int) -> str:
    return json.dumps(
        {
            "apiVersion": "hoss.dev/v1alpha1",
            "kind": "SchedulingPolicy",
            "metadata": {"name": f"of-{day}"},
            "rules": [
                {"name": f"rule-{day}", "match": {"namespaces": [f"ns-{day}"]}, "fallback": "NextRule"},
                {"name": "others"},
            ],
        }
    )


def growing(held: list[dict[str, int]]) -> list[str]:
    """The tables that usually have more entries in the last third of the time than in the second, or more than their
    limit."""
    third, found = len(held) // 3, []
    held = [_workers_together(of_day) for of_day in held]  # which of them gets a pod is chance
    for path in sorted({path for of_day in held for path in of_day}):
        sizes = np.array([of_day.get(path, 0) for of_day in held])
        before, after = sizes[third : 2 * third], sizes[2 * third :]
        limits = [most for part, most in LIMITS.items() if re.search(part, path)]
        if limits and sizes.max() <= max(limits):
            continue
        # By the median and by the largest: days differ, and one that ends amid something may have many entries.
        if limits or (
            np.median(after) > 1.1 * np.median(before) + 3
            and after.max() > 1.25 * sizes[: 2 * third].max() + 3
        ):
            found.append(f"{path}: {sizes.tolist()}")
    return found


def _workers_together(held: dict[str, int]) -> dict[str, int]:
    entries: Counter[str] = Counter()
    for path, number in held.items():
        entries[re.sub(r"^WorkerService \w+", "WorkerService", path)] += number
    return entries


def month(server: DrivenRedis, days: int) -> list[dict[str, int]]:
    with discarding():
        return _month(server, days)


def _month(server: DrivenRedis, days: int) -> list[dict[str, int]]:
    world = ShortMemory(1, server, shards=2, dispatchers=1, resolvers=1, workers=2)
    with world.logging(), closing(world):
        story = Month(world, server)
        world.loop.run_until_complete(world.loop.spawn(story.process, story.run(days)))
        assert [service.ends for service in world.services.values() if service.ends] == []
    return story.held


@pytest.fixture
def short_memory(monkeypatch):
    """What is remembered for a day or an hour lasts two of the short days."""
    monkeypatch.setattr("dispatcher.core.workers.membership.GONE_SECONDS", 2 * DAY_SECONDS)
    monkeypatch.setattr("dispatcher.core.machine.FORGET_WORKERS_SECONDS", DAY_SECONDS)
    monkeypatch.setattr("dispatcher.core.queue.waiting.FLUSH_UNSCHEDULABLE_SECONDS", 2 * DAY_SECONDS)
    monkeypatch.setattr("dispatcher.core.cluster.objects.DROP_NAMESPACES_SECONDS", DAY_SECONDS)


@pytest.mark.usefixtures("short_memory")
@pytest.mark.parametrize("days", [30, pytest.param(120, marks=pytest.mark.thorough)])
def test_no_table_and_no_key_grows_with_what_comes_and_goes(server, days):
    held = month(server, days)
    assert growing(held) == []
    # The churn happened, and what lives is there. At the end of one day it may all be on its way.
    assert max(of_day["Runtime .machine.registry.pods.uid"] for of_day in held[-7:]) > 0
    shards = [f"Redis {{hoss:{shard}}}:reservations" for shard in range(2)]
    assert max(sum(of_day.get(key, 0) for key in shards) for of_day in held[-7:]) > 20
    assert held[-1]["Redis {hoss}:grants"] >= days


def test_a_table_that_keeps_everything_is_found():
    class Keeper:
        __module__ = "dispatcher.made_up"

        def __init__(self) -> None:
            self.kept: dict[int, list[int]] = {}

    keeper, held = Keeper(), []
    for day in range(30):
        keeper.kept[day] = [day]
        held.append(entries_held({"keeper": keeper}))
    assert [path.partition(":")[0] for path in growing(held)] == ["keeper.kept", "keeper.kept[]"]
