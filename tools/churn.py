"""A platform of real processes on which everything comes and goes, and whose tables must not grow:
`python -m tools.churn --minutes 60`, or `make churn MINUTES=60`.

Every round brings a node, a namespace with pods of classes that no other round has, a tenant, a policy, and
now and then a worker under a new name. What the round before it brought goes. After each round the entries of
every table are counted: `hoss_table_entries` of all services that stay, and the keys of Redis with what is in
them. In the end a table that had more entries in the last third of the rounds than in the second is told, and
the command exits with 1. Processes' sizes are no part of it: allocators keep what was freed."""

import argparse
import asyncio
import json
import re
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import redis

from hoss.client.dispatcher import submission
from hoss.model.node import PREFER_NO_SCHEDULE, NodeSpec, Taint
from hoss.model.pod import HostPort, PodAffinity, PodAffinityTerm, PodSpec, PodTemplate, Workload
from hoss.model.selectors import LabelSelector, Requirement
from hossctl.endpoints import Clients, clients_of, of_state
from hossctl.load.report import platform, workers
from hossctl.local.platform import PlatformOptions, Starter
from hossctl.local.platform_state import WorkerOptions

Held = dict[str, int]  # entries by table

JOBS, PODS = ("plain", "apart", "port", "large"), ("bare",)
LASTING_NODES = 3
WORKER_EVERY = 5  # rounds: a process takes a second of CPU time to start
ROUND_SECONDS = 2.0

# Tables that are full only after more than an hour, by a part of their names, and what they may hold.
LIMITS = {
    r"event_log_": 64 * 2**20,
    r"history_entries": 1_000_000,
    r"change_windows": 128,
    r"dispatcher reasons": 1000,
    r"decisions": 200_000,  # of two workers
    r"dispatcher (workers|worker_numbers|worker_epochs)$": 1000,  # those that are gone are kept for a day
    r"grants$|[:_]workers$": 10_000,
    r"feed$": 2000,
    r"resolver group_definitions$": 4096,
    r" (granted_workers|granting_callers|callers|callers_refused)$": 10_000,
}


def node(name: str) -> NodeSpec:
    """A node with a label, a label value, a taint and an image of its own."""
    return NodeSpec(
        name,
        labels=(("kubernetes.io/hostname", name), ("zone", f"zone-{name}"), (f"label-{name}", "x")),
        taints=(Taint("prefers", name, PREFER_NO_SCHEDULE),),
        allocatable=(("cpu", 8000), ("memory", 8 * 2**30), ("pods", 50)),
        images=((f"image-{name}", 1000),),
    )


def workloads(number: int) -> list[Workload]:
    """Jobs and a bare pod of a namespace of this round, all of classes that no other round has; and a pod for
    which there is no room."""
    namespace, app = f"ns-{number}", (("app", f"app-{number}"),)
    plain = PodSpec(namespace, requests=(("cpu", 100 + number % 100),), labels=app)
    selector = LabelSelector((Requirement("app", "In", (f"app-{number}",)),))
    term = PodAffinityTerm("kubernetes.io/hostname", selector, (namespace,))
    apart = replace(plain, pod_affinity=PodAffinity(anti_required=(term,)))
    port = replace(plain, host_ports=(HostPort(1000 + number % 60_000, "TCP", ""),))
    large = replace(plain, requests=(("cpu", 100_000 + number),))

    def job(name: str, spec: PodSpec, pods: int) -> Workload:
        template = PodTemplate(spec, scheduler_name=f"scheduler-{number}", owner_kind="Job")
        return Workload(name, template, pods)

    jobs = [job("plain", plain, 40), job("apart", apart, 2), job("port", port, 1), job("large", large, 1)]
    return [*jobs, Workload("bare", PodTemplate(plain, owner_kind=""))]


def policy(number: int) -> str:
    """A policy that names the round's namespace. Each namespace is a tenant."""
    return json.dumps(
        {
            "apiVersion": "hoss.dev/v1alpha1",
            "kind": "SchedulingPolicy",
            "metadata": {"name": f"of-{number}"},
            "rules": [
                {"name": f"rule-{number}", "match": {"namespaces": [f"ns-{number}"]}, "fallback": "NextRule"},
                {"name": "others"},
            ],
        }
    )


def growing(held: Sequence[Held], limits: Mapping[str, int] = LIMITS) -> list[str]:
    """The tables that usually have more entries in the last third of the rounds than in the second, or more
    than their limit."""
    third, found = len(held) // 3, []
    for table in sorted({table for of_round in held for table in of_round}):
        sizes = np.array([of_round.get(table, 0) for of_round in held])
        before, after = sizes[third : 2 * third], sizes[2 * third :]
        most = [limit for part, limit in limits.items() if re.search(part, table)]
        if most and sizes.max() <= max(most):
            continue
        # By the median and by the largest: rounds differ, and one that ends amid something may have many
        # entries.
        if most or (
            np.median(after) > 1.1 * np.median(before) + 3
            and after.max() > 1.25 * sizes[: 2 * third].max() + 3
        ):
            found.append(f"{table}: {sizes.tolist()}")
    return found


class ChurningPlatform:
    """Rounds on a platform, and what was held at the end of each."""

    def __init__(self, starter: Starter) -> None:
        self.held: list[Held] = []
        self.bound = 0  # pods of all rounds, when they ended
        self._starter = starter
        self._lasting = [record for record in starter.state.processes if record.metrics]
        self._redis = redis.Redis.from_url(starter.state.redis_url)

    async def run(self, clients: Clients, seconds: float) -> None:
        """Rounds until the time is over."""
        end, number = time.monotonic() + seconds, 0
        await clients.resolver.upsert_nodes([node(f"lasting-{i}") for i in range(LASTING_NODES)])
        while time.monotonic() < end:
            await self._begin(clients, number)
            await asyncio.sleep(ROUND_SECONDS)
            if number:
                await self._end(clients, number - 1)
            self.held.append({**await asyncio.to_thread(self._tables), **self._keys()})
            number += 1

    async def _begin(self, clients: Clients, number: int) -> None:
        await clients.resolver.upsert_nodes([node(f"of-{number}")])
        if number % WORKER_EVERY == 0:
            added = WorkerOptions(f"w-of-{number}")
            await asyncio.to_thread(self._starter.start_workers, [added])
        for request in submission(workloads(number)):
            await clients.dispatcher.submit(request)
        await clients.dispatcher.set_policy(policy(number))

    async def _end(self, clients: Clients, number: int) -> None:
        if number % WORKER_EVERY == 0:
            await asyncio.to_thread(self._starter.stop_worker, f"w-of-{number}")
        jobs = await clients.dispatcher.list_jobs(f"ns-{number}")
        self.bound += sum(job.bound for job in jobs)
        await clients.dispatcher.delete(f"ns-{number}", jobs=JOBS, pods=PODS)
        await clients.resolver.remove_nodes([f"of-{number}"])

    def _tables(self) -> Held:
        """The tables of the services that stay, workers together: which of them gets a pod is chance."""
        found: Held = {}
        for record in self._lasting:
            with urllib.request.urlopen(f"http://{record.metrics}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            for service, table, entries in re.findall(
                r'^hoss_table_entries\{service="([^"]*)",table="([^"]*)"\} (\S+)$', text, re.MULTILINE
            ):
                name = f"{service} {table}"
                found[name] = found.get(name, 0) + int(float(entries))
        return found

    def _keys(self) -> Held:
        sizes: Held = {}
        count: dict[object, str] = {
            b"hash": "hlen",
            b"zset": "zcard",
            b"stream": "xlen",
            b"set": "scard",
            b"list": "llen",
        }
        for key in self._redis.scan_iter(count=1000):
            command = count.get(self._redis.type(key))
            sizes[f"Redis {key.decode()}"] = int(getattr(self._redis, command)(key)) if command else 1
        return {**sizes, "Redis keys": len(sizes)}


def churned(seconds: float) -> ChurningPlatform:
    """So long a churn of a platform of its own."""
    options = PlatformOptions(workers(2), metrics=True, insecure=True)
    with platform(options) as starter:
        churn = ChurningPlatform(starter)

        async def main() -> None:
            async with clients_of(of_state(starter.state)) as clients:
                await churn.run(clients, seconds)

        asyncio.run(main())
    return churn


def main() -> int:
    """1 where a table grew."""
    parser = argparse.ArgumentParser(description="Whether tables grow while everything comes and goes.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, help="the entries of every table after each round, as JSON")
    wanted = parser.parse_args()
    churn = churned(60 * wanted.minutes)
    if wanted.out:
        wanted.out.write_text(json.dumps(churn.held))
    found = growing(churn.held)
    tables = len({table for of_round in churn.held for table in of_round})
    lines = [f"{len(churn.held)} rounds, {churn.bound} pods bound, {tables} tables", *found]
    print("\n".join([*lines, f"{len(found)} grew"]))  # noqa: T201 - a command's output
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
