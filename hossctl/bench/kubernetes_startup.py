"""`hoss bench kubernetes --startup`: HOSS is started on a cluster that is full of pods, until it has placed a
pod that waits for it.

The pods are on their nodes already, evenly, and HOSS's ledger is empty: HOSS lists everything, reserves for
the existing pods, and gives its worker a view of all nodes. The clock begins with the first process.

The JSON document:

    nodes, pods
    turns[]                 each on a new platform
      seconds               from the start of HOSS's first process until the waiting pod is on a node
      cpuSeconds            in that time, of dispatcher, resolvers, workers, redis and kubeApiserver
      peakMib               peak resident memory of dispatcher, resolvers, workers and redis, MiB
      unreserved            pods that were not in the ledger yet when the waiting pod was on its node
    seconds, dispatcherMib  medians
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hoss.errors import HossError
from hoss.kube.api import Object
from hossctl.bench import api_server, processes
from hossctl.cli import run_async
from hossctl.console import Document
from hossctl.endpoints import Clients
from hossctl.figures import median
from hossctl.load import report
from hossctl.load.progress import counting
from hossctl.local.control_plane import ControlPlane
from hossctl.local.platform import PlatformOptions
from hossctl.local.platform_state import WorkerOptions

_PATIENCE_SECONDS = 300.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class StartupSetting:
    """What is measured: `repeat` starts beside so many placed pods."""

    nodes: int
    pods: int
    repeat: int = 1


@dataclass(frozen=True, slots=True)
class Start:
    """One start of HOSS."""

    seconds: float
    cpu_seconds: dict[str, float]
    peak_mib: dict[str, float]
    reserved: int

    def as_json(self, pods: int) -> Document:
        return {
            "seconds": round(self.seconds, 2),
            "cpuSeconds": {who: round(used, 2) for who, used in self.cpu_seconds.items()},
            "peakMib": {who: round(most, 1) for who, most in self.peak_mib.items()},
            "unreserved": pods - self.reserved,
        }


def measure(setting: StartupSetting, *, quiet: bool) -> list[Start]:
    """`repeat` starts. Raises ConfigError where there are no binaries of a control plane, HossError where the
    pod is not placed."""
    with api_server.control_plane("hoss-kubernetes-") as plane:
        run_async(_fill(plane, setting, quiet=quiet))
        return [_start(plane, number) for number in range(setting.repeat)]


def summary(setting: StartupSetting, starts: Sequence[Start]) -> Document:
    return {
        "nodes": setting.nodes,
        "pods": setting.pods,
        "turns": [start.as_json(setting.pods) for start in starts],
        "seconds": round(median([start.seconds for start in starts]), 2),
        "dispatcherMib": round(median([start.peak_mib["dispatcher"] for start in starts]), 1),
    }


async def _fill(plane: ControlPlane, setting: StartupSetting, *, quiet: bool) -> None:
    nodes = api_server.nodes(setting.nodes, api_server.NODE_AMOUNTS)
    pods = (_bound_pod(number, f"n{number % setting.nodes}") for number in range(setting.pods))
    async with api_server.opened(plane.kubeconfig) as api:
        await api_server.create_all(api, api_server.NODES, nodes)
        with counting("pods", setting.pods, quiet=quiet) as progress:
            await api_server.create_all(api, api_server.PODS, pods, progress)


def _bound_pod(number: int, node: str) -> Object:
    pod = api_server.pod(f"p{number}", "default-scheduler", api_server.POD_AMOUNTS)
    pod["spec"]["nodeName"] = node
    return pod


def _start(plane: ControlPlane, number: int) -> Start:
    pod = f"waiting-{number}"
    run_async(_create(plane, pod))
    servers = (plane.record("kube-apiserver"),)
    before = processes.cpu_seconds(servers)
    options = PlatformOptions(workers=(WorkerOptions("worker-0"),), kubeconfig=plane.kubeconfig)
    begun = time.monotonic()
    with report.platform(options) as starter:
        bound = run_async(_until_bound(plane, pod))
        records = starter.state.processes
        used = processes.by_service({}, processes.cpu_seconds(records))
        served = processes.by_service(before, processes.cpu_seconds(servers))
        peak = processes.by_service({}, processes.peak_mib(records))
        existing = report.run_on(starter.state, _reservations) - 1 - number  # without the pods that waited
        return Start(bound - begun, {**used, "kubeApiserver": sum(served.values())}, peak, existing)


async def _reservations(clients: Clients) -> int:
    return (await clients.resolver.status()).reservations


async def _create(plane: ControlPlane, name: str) -> None:
    async with api_server.opened(plane.kubeconfig) as api:
        await api_server.create(api, api_server.PODS, api_server.pod(name, "hoss", api_server.POD_AMOUNTS))


async def _until_bound(plane: ControlPlane, pod: str) -> float:
    """The monotonic time when the pod was seen on a node."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    async with api_server.opened(plane.kubeconfig) as api:
        while not (await api.get(f"{api_server.PODS}/{pod}"))["spec"].get("nodeName"):
            if time.monotonic() > deadline:
                raise HossError(f"the waiting pod was not placed within {_PATIENCE_SECONDS:g} s")
            await asyncio.sleep(_POLL_SECONDS)
    return time.monotonic()
