"""Nothing grows for ever: a month of pods, jobs, namespaces, tenants, nodes, workers' names, policies,
cluster objects, moves and rebalance controllers on a whole platform in one process.

The tables are not named here: every container that is reachable from a service is counted (held_objects), and
every key of Redis. Days are short, and so is what is remembered for a time."""

import asyncio
import gc
import os
import re
from collections import Counter
from contextlib import closing

import pytest
from held_objects import entries_held

import resolver.__main__
from dispatcher.api.service import DispatcherService
from dispatcher.runtime import Runtime
from hoss.client.dispatcher import DispatcherClient, submission
from hoss.client.resolver import ResolverClient
from hoss.errors import HossError
from hoss.model.cluster import ClusterObject, PodDisruptionBudget, PriorityClass, Threshold, key_of
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.model.selectors import LabelSelector, Requirement
from hoss.v1 import dispatcher_pb2 as pb
from resolver.api.service import ResolverService
from resolver.config import ResolverConfig
from scheduler_worker.service import WorkerService
from tools.churn import JOBS, PODS, growing, node, policy, workloads
from tools.simulation.loop import discarding
from tools.simulation.redis_backend import DrivenRedis
from tools.simulation.world import DISPATCHER, EPOCH_UNIX, RESOLVER, URL, WORKER, Service, World

DAY_SECONDS = 3.0
DAYS = 120 if os.environ.get("HOSS_TESTS") == "all" else 30
SERVICES = (Runtime, DispatcherService, WorkerService, ResolverService)
MOVES = 5  # of a day

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


_STATUS = pb.RebalanceRequest(action=pb.REBALANCE_STATUS)


def _objects(day: int) -> list[ClusterObject]:
    """A budget that allows everything, and a priority, of the day's own."""
    selector = LabelSelector((Requirement("app", "In", (f"app-{day}",)),))
    budget = PodDisruptionBudget(f"ns-{day}", f"budget-{day}", selector, max_unavailable=Threshold(100))
    return [budget, PriorityClass(f"priority-{day}", day)]


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
        self.moved = 0  # pods
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
            await asyncio.sleep(DAY_SECONDS / 2)
            await self._rebalance(day)
            await asyncio.sleep(DAY_SECONDS / 2)
            self.moved += (await self._pods.rebalance(_STATUS)).moved
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
        # A client that is limited to the day's tenant submits as well.
        alone = PodSpec(f"ns-{day}", requests=(("cpu", 10),), labels=(("alone", f"of-{day}"),))
        workload = Workload("alone", PodTemplate(alone, owner_kind="Job"), 2)
        for request in submission([workload], rng=self._rng):
            await self._pods.of_tenant(f"ns-{day}").submit(request)
        await self._pods.apply_objects(_objects(day))

    async def _rebalance(self, day: int) -> None:
        """A controller of the day moves some of the day's pods, and ends."""
        names = sorted([node.spec.name for node in await self._nodes.list_nodes()])
        digests = (await self._nodes.audit()).digests
        bound = [
            pod
            async for pod in self._pods.list_pods()
            if pod.namespace == f"ns-{day}" and pod.phase == pb.BOUND and pod.name.startswith("plain")
        ]
        moves = [
            pb.RebalanceMove(
                pod=f"{pod.namespace}/{pod.name}",
                source=pod.node,
                target=names[(names.index(pod.node) + 1) % len(names)],
            )
            for pod in bound[:MOVES]
        ]
        controller = f"of-{day}"
        report = pb.RebalanceController(id=controller, text="moves", preemption_wait_seconds=0.1)
        await self._pods.report_rebalancing(report)
        request = pb.RebalanceRequest(
            action=pb.REBALANCE_START,
            moves=moves,
            seen={digest.shard: digest.seq for digest in digests},
            moves_per_second=50,
            controller=controller,
            purpose=f"of {day}",
        )
        await self._pods.rebalance(request)
        await self._pods.report_rebalancing(pb.RebalanceController(id=controller, leaving=True))

    async def _end(self, day: int) -> None:
        self._world.stop(f"w-of-{day}")
        await self._pods.delete(f"ns-{day}", jobs=(*JOBS, "alone"), pods=PODS)
        await self._pods.delete_objects(list(map(key_of, _objects(day))))
        await self._nodes.remove_nodes([f"of-{day}"])

    def _held(self) -> dict[str, int]:
        roots = {}
        for item in gc.get_objects():
            if isinstance(item, SERVICES) and item not in self._earlier:
                name = f"{type(item).__name__} {getattr(item, '_name', '')}"
                if "w-of-" not in name:  # those of one day
                    roots[name] = item
        assert len(roots) == len(SERVICES) + 1  # two workers
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


def _of_all_workers(held: list[dict[str, int]]) -> list[dict[str, int]]:
    """The workers' tables together: which of them gets a pod is chance."""
    together = []
    for of_day in held:
        entries: Counter[str] = Counter()
        for path, number in of_day.items():
            entries[re.sub(r"^WorkerService \w+", "WorkerService", path)] += number
        together.append(entries)
    return together


def month(server: DrivenRedis, days: int) -> Month:
    with discarding():
        return _month(server, days)


def _month(server: DrivenRedis, days: int) -> Month:
    world = ShortMemory(1, server, shards=2, dispatchers=1, resolvers=1, workers=2)
    with world.logging(), closing(world):
        story = Month(world, server)
        world.loop.run_until_complete(world.loop.spawn(story.process, story.run(days)))
        assert [service.ends for service in world.services.values() if service.ends] == []
    return story


@pytest.fixture
def short_memory(monkeypatch):
    """What is remembered for a day or an hour lasts two of the short days."""
    monkeypatch.setattr("dispatcher.core.workers.membership.GONE_SECONDS", 2 * DAY_SECONDS)
    monkeypatch.setattr("dispatcher.core.machine.FORGET_WORKERS_SECONDS", DAY_SECONDS)
    monkeypatch.setattr("dispatcher.core.queue.waiting.FLUSH_UNSCHEDULABLE_SECONDS", 2 * DAY_SECONDS)
    monkeypatch.setattr("dispatcher.core.cluster.objects.DROP_NAMESPACES_SECONDS", DAY_SECONDS)


@pytest.mark.usefixtures("short_memory")
def test_no_table_and_no_key_grows_with_what_comes_and_goes(server):
    story = month(server, DAYS)
    held = story.held
    assert growing(_of_all_workers(held[:30]), LIMITS) == []
    assert growing(_of_all_workers(held), LIMITS) == []
    assert story.moved > DAYS
    # The churn happened, and what lives is there. At the end of one day it may all be on its way.
    tables = {path for path in held[-1] if path.endswith("registry.pods.uid")}
    assert max(of_day.get(path, 0) for of_day in held[-7:] for path in tables) > 0
    shards = [f"Redis {{hoss:{shard}}}:reservations" for shard in range(2)]
    assert max(sum(of_day.get(key, 0) for key in shards) for of_day in held[-7:]) > 20
    assert held[-1]["Redis {hoss}:grants"] >= DAYS


def test_a_table_that_keeps_everything_is_found():
    class Keeper:
        __module__ = "dispatcher.made_up"

        def __init__(self) -> None:
            self.kept: dict[int, list[int]] = {}

    keeper, held = Keeper(), []
    for day in range(30):
        keeper.kept[day] = [day]
        held.append(entries_held({"keeper": keeper}))
    assert [path.partition(":")[0] for path in growing(held, LIMITS)] == ["keeper.kept", "keeper.kept[]"]
