"""Pictures of the dashboard at work, for the documentation: `make dashboard-pictures`."""

import asyncio
import itertools
import math
import sys
import tempfile
import time
from pathlib import Path

from e2e.cluster import Cluster
from e2e.dashboard_page import DESKTOP, PHONE, Page, browser
from machine import no_browser

from hoss.client.dispatcher import submission
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hossctl.endpoints import Clients, clients_of
from hossctl.load.generated import mixed
from hossctl.load.nodes import register, simulated_nodes

NODES, WORKERS = 1000, ("ada", "ben", "cleo", "dan")
BURST_SECONDS, LOAD_SECONDS = 10, 50  # what is there before somebody looks, and what is seen to come
PODS_AT_ONCE = 150
GIB = 2**30


async def _run(page: Page, cluster: Cluster, directory: Path) -> None:
    pool = simulated_nodes(NODES, seed=3)
    async with clients_of(cluster.endpoints) as clients:
        await register(clients.resolver, pool)
        for name in WORKERS:
            await asyncio.to_thread(
                cluster.start_worker, name, f"tier={'service' if name < 'c' else 'batch'}"
            )
        for request in submission(mixed(20_000, pool, seed=3)):
            await clients.dispatcher.submit(request)
        await _waiting(clients)
        for node in range(40, 60):
            await clients.resolver.cordon_node(pool[node].name, True)
        await asyncio.sleep(BURST_SECONDS)
        await asyncio.to_thread(page.open, cluster.dashboard())
        load = asyncio.ensure_future(_load(clients))
        await asyncio.sleep(LOAD_SECONDS)
        await asyncio.to_thread(_shoot, page, directory)
        load.cancel()


def _shoot(page: Page, directory: Path) -> None:
    for name, scheme, size in (
        ("light", "light", DESKTOP),
        ("dark", "dark", DESKTOP),
        ("phone", "light", PHONE),
    ):
        page.system_scheme(scheme)
        page.resize(size, whole=True)
        page.script("scrollTo(0, 0)")
        shown = page.text("#link")
        assert shown == "Live", shown
        time.sleep(2)  # for the next look
        page.save(directory / f"dashboard-{name}.png")


async def _load(clients: Clients) -> None:
    """Work in every quarter of a second: more and less of it, as in life."""
    template = PodTemplate(PodSpec(requests=(("cpu", 150), ("memory", GIB // 4))), owner_kind="Job")
    for number in itertools.count():
        pods = int(PODS_AT_ONCE * (1 + math.sin(number / 9) * 0.5 + (number * 7 % 11) / 20))
        for request in submission([Workload(f"batch-{number}", template, pods)]):
            await clients.dispatcher.submit(request)
        await asyncio.sleep(0.25)


async def _waiting(clients: Clients) -> None:
    """Pods that find no node, for three reasons."""
    reasons = {
        "training": (PodSpec(requests=(("cpu", 200_000), ("memory", GIB))), 12),
        "in-memory": (PodSpec(requests=(("cpu", 1000), ("memory", 4096 * GIB))), 7),
        "on-arm": (PodSpec(requests=(("cpu", 500),), node_selector=(("kubernetes.io/arch", "arm64"),)), 5),
    }
    jobs = [
        Workload(name, PodTemplate(spec, owner_kind="Job"), pods) for name, (spec, pods) in reasons.items()
    ]
    for request in submission(jobs):
        await clients.dispatcher.submit(request)


def main() -> int:
    """Exit code 2 and a sentence where there is no browser."""
    if why := no_browser():
        print(f"no pictures: {why}", file=sys.stderr)  # noqa: T201 - for whoever started it
        return 2
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    directory.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        browser(Path(home) / "profile") as page,
        Cluster(Path(home)) as cluster,
    ):
        cluster.start_dashboard()
        asyncio.run(_run(page, cluster, directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
