"""`hoss bench guard --latency`: how long schedulers wait for the guard at a steady rate of bindings, and what that costs.

One control plane and one platform, with the rights that deploy/ gives HOSS. Bindings come at their times whether or not the ones before
are answered: first as reviews sent to the webhook itself, over as many connections as an API server keeps, then as bindings sent to the
API server. Each is of a pod of its own, and fits.

The JSON document:

    rate, seconds, connections, nodes
    cases[]
      asked              "webhook" or "API server"
      perSecond          answered
      p50Ms, p90Ms, p99Ms, p999Ms, maxMs   from asking to the answer, the client's own time included
      cpuMs              by process, CPU time per binding; "client" is this command
    apiServer            what it waited for the webhook in the second case, by its own metrics:
      meanMs
      under5Ms, under25Ms   shares
"""

import asyncio
import os
import re
import ssl
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np
import orjson

from hoss import telemetry
from hoss.errors import HossError
from hoss.kube.api import KubeApi, Object
from hossctl.bench.kube_ground import CREATING, create, opened, until_known
from hossctl.bench.processes import cpu_seconds
from hossctl.console import Document
from hossctl.endpoints import clients_of, of_state
from hossctl.eventloop import run_async
from hossctl.figures import per_second, percentiles, share
from hossctl.kube_binaries import find_binaries
from hossctl.kube_control_plane import HOSS, ControlPlane
from hossctl.kube_guard import trusted_authority, until_asked, url_of
from hossctl.kube_rights import grant, grant_guard
from hossctl.platform import PlatformOptions, temporary
from hossctl.ports import free_ports
from hossctl.process import ProcessRecord, record_of
from hossctl.progress import counting

GOAL_P99_MS = 10.0

_KEEP_SECONDS = 90.0  # unused connections, as client-go does
_PATIENCE_SECONDS = 60.0  # a busy machine is to be measured, not given up
_SETTLE_SECONDS = 2.0  # for what creating the pods has set off
_LEVELS = (50, 90, 99, 99.9, 100)
_WAITED = re.compile(
    r"apiserver_admission_webhook_admission_duration_seconds_(sum|count|bucket)"
    r'\{name="bindings\.hoss\.dev"[^}]*?(?:,le="([^"]+)")?\} (\S+)'
)

_Ask = Callable[[Object, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured. `connections`: to the webhook; client-go keeps 25."""

    rate: int
    seconds: float
    connections: int
    nodes: int

    @property
    def bindings(self) -> int:
        """Of each case."""
        return max(1, round(self.rate * self.seconds))


def measure(setting: Setting, *, quiet: bool) -> Document:
    """See the module's docstring. Raises ConfigError where there is no control plane to start."""
    find_binaries()
    telemetry.configure("bench", level="error")
    with tempfile.TemporaryDirectory(prefix="hoss-guard-") as directory:
        plane = ControlPlane.start(Path(directory))
        try:
            return _on_control_plane(setting, plane, quiet=quiet)
        finally:
            plane.stop()


def _on_control_plane(setting: Setting, plane: ControlPlane, *, quiet: bool) -> Document:
    (port,) = free_ports(1)
    run_async(_prepare(setting, plane, port))
    with temporary(PlatformOptions(workers=(), kubeconfig=plane.hoss_kubeconfig, webhook_port=port)) as starter:
        client = record_of("client", os.getpid(), Path())
        records = [*starter.state.processes, plane.record("kube-apiserver"), plane.record("etcd"), client]

        async def run() -> Document:
            async with clients_of(of_state(starter.state)) as clients:
                await until_known(clients, setting.nodes)
            return await _measure_cases(setting, plane, port, records, quiet=quiet)

        return run_async(run())


async def _prepare(setting: Setting, plane: ControlPlane, port: int) -> None:
    async with opened(plane.kubeconfig) as api:
        for number in range(setting.nodes):
            amounts = {"cpu": "1000", "memory": "4Ti", "pods": "10000"}
            status = {"capacity": amounts, "allocatable": amounts}
            await create(api, "/api/v1/nodes", {"metadata": {"name": f"n{number}"}, "status": status})
        await grant(api, HOSS)
        await grant_guard(api, HOSS, url_of(port), failure_policy="Fail")


async def _measure_cases(
    setting: Setting, plane: ControlPlane, port: int, records: Sequence[ProcessRecord], *, quiet: bool
) -> Document:
    count, nodes = setting.bindings, setting.nodes
    async with opened(plane.kubeconfig) as api, opened(plane.scheduler_kubeconfig) as scheduler:
        await until_asked(scheduler)
        with counting("pods", nodes + 2 * count, quiet=quiet) as created:
            first, pods = (
                await _create_pods(api, nodes, created),
                await _create_pods(api, 2 * count, created, start=nodes),
            )
        trust = ssl.create_default_context(cadata=(await trusted_authority(api)).decode())
        connector = aiohttp.TCPConnector(limit=setting.connections, ssl=trust, keepalive_timeout=_KEEP_SECONDS)
        async with aiohttp.ClientSession(connector=connector) as webhook:
            asking = _Asking(webhook, scheduler, url_of(port))
            # The guard compares every node with the API server once: before anything is measured.
            await asyncio.gather(*(asking.webhook(pod, f"n{number}") for number, pod in enumerate(first)))
            cases = [await _measure_case("webhook", asking.webhook, pods[:count], setting, records)]
        before = await _waited(api)
        cases.append(await _measure_case("API server", asking.api_server, pods[count:], setting, records))
        waited = {name: value - before.get(name, 0.0) for name, value in (await _waited(api)).items()}
    answered = waited.get("count", 0.0)
    return {
        "rate": setting.rate,
        "seconds": setting.seconds,
        "connections": setting.connections,
        "nodes": nodes,
        "cases": cases,
        "apiServer": {
            "meanMs": round(1000 * share(waited.get("sum", 0.0), answered), 2),
            "under5Ms": round(share(waited.get("0.005", 0.0), answered), 4),
            "under25Ms": round(share(waited.get("0.025", 0.0), answered), 4),
        },
    }


async def _measure_case(
    asked: str, ask: _Ask, pods: Sequence[Object], setting: Setting, records: Sequence[ProcessRecord]
) -> Document:
    await asyncio.sleep(_SETTLE_SECONDS)
    seconds = np.zeros(len(pods))

    async def timed(number: int) -> None:
        begun = time.perf_counter()
        await ask(pods[number], f"n{number % setting.nodes}")
        seconds[number] = time.perf_counter() - begun

    used, begun = cpu_seconds(records), time.perf_counter()
    under_way = []
    for number in range(len(pods)):
        delay = begun + number / setting.rate - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        under_way.append(asyncio.ensure_future(timed(number)))
    await asyncio.gather(*under_way)
    elapsed = time.perf_counter() - begun
    after = cpu_seconds(records)
    figures = dict(
        zip(("p50Ms", "p90Ms", "p99Ms", "p999Ms", "maxMs"), percentiles(1000 * seconds, *_LEVELS), strict=True)
    )
    return {
        "asked": asked,
        "perSecond": round(per_second(len(pods), elapsed), 1),
        **{name: round(value, 2) for name, value in figures.items()},
        "cpuMs": {name: round(1000 * (after[name] - used[name]) / len(pods), 3) for name in after},
    }


class _Asking:
    """Two ways to ask; raises HossError where the answer is not yes."""

    def __init__(self, session: aiohttp.ClientSession, scheduler: KubeApi, url: str) -> None:
        self._session = session
        self._scheduler = scheduler
        self._url = url

    async def webhook(self, pod: Object, node: str) -> None:
        """As the API server does."""
        async with self._session.post(self._url, data=orjson.dumps(_review(pod, node))) as response:
            body = await response.read()
        if response.status != 200 or not orjson.loads(body)["response"]["allowed"]:
            raise HossError(f"the webhook does not allow a binding that fits: {response.status} {body.decode()}")

    async def api_server(self, pod: Object, node: str) -> None:
        """As schedulers do."""
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/binding"
        reply = await self._scheduler.send("POST", path, _binding(pod, node), timeout_seconds=_PATIENCE_SECONDS)
        if not reply.done:
            raise HossError(f"the API server refuses a binding that fits: {reply.status} {reply.message}")


def _binding(pod: Object, node: str) -> Object:
    metadata = {name: pod["metadata"][name] for name in ("name", "namespace", "uid")}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": node}}


def _review(pod: Object, node: str) -> Object:
    """All that an API server writes into one."""
    kind, resource = (
        {"group": "", "version": "v1", "kind": "Binding"},
        {"group": "", "version": "v1", "resource": "pods"},
    )
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": pod["metadata"]["uid"],
            "kind": kind,
            "resource": resource,
            "subResource": "binding",
            "requestKind": kind,
            "requestResource": resource,
            "requestSubResource": "binding",
            "name": pod["metadata"]["name"],
            "namespace": "default",
            "operation": "CREATE",
            "userInfo": {"username": "system:kube-scheduler", "groups": ["system:authenticated"]},
            "object": _binding(pod, node),
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }


async def _create_pods(api: KubeApi, pods: int, created: Callable[[int], None], *, start: int = 0) -> list[Object]:
    free = asyncio.Semaphore(CREATING)

    async def one(number: int) -> Object:
        container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}
        body = {"metadata": {"name": f"p{number}"}, "spec": {"schedulerName": "another", "containers": [container]}}
        async with free:
            made = await create(api, "/api/v1/namespaces/default/pods", body)
        created(1)
        return made

    return list(await asyncio.gather(*(one(number) for number in range(start, start + pods))))


async def _waited(api: KubeApi) -> dict[str, float]:
    """Seconds and number of the API server's questions to the webhook, and how many took no longer than each limit."""
    told: dict[str, float] = defaultdict(float)
    for what, limit, value in _WAITED.findall((await api.ask("GET", "/metrics")).body.decode()):
        told[limit or what] += float(value)
    return told
