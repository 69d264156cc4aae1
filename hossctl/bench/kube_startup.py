"""`hoss bench kubernetes --startup`: HOSS started on a cluster that is full of pods, until it has placed the one that waits for it.

The pods are on their nodes already, evenly, and HOSS's ledger is empty: it lists everything, reserves what stands, and gives its worker
a view of all nodes. The clock begins with the first process.

The JSON document:

    nodes, pods
    turns[]                 each on a platform of its own
      seconds               from the start of the first process of HOSS until the API server has the waiting pod on a node
      cpuSeconds            meanwhile, of dispatcher, resolvers, workers, redis and kubeApiserver
      peakMib               of dispatcher, resolver, worker and redis: the most resident memory they had, MiB
      unreserved            pods that were not in the ledger yet when the waiting pod was on its node
    seconds, dispatcherMib  medians
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hoss import telemetry
from hoss.errors import HossError
from hoss.kube.api import Object
from hossctl.bench import kube_ground as ground
from hossctl.bench import processes
from hossctl.console import Document
from hossctl.endpoints import clients_of, of_state
from hossctl.eventloop import run_async
from hossctl.figures import median
from hossctl.kube_binaries import find_binaries
from hossctl.kube_control_plane import ControlPlane
from hossctl.platform import PlatformOptions, WorkerOptions, temporary
from hossctl.progress import counting

_NODE = {"cpu": "4", "memory": "32Gi", "pods": "110"}
_POD = {"cpu": "100m", "memory": "500Mi"}
_PODS = "/api/v1/namespaces/default/pods"
_PATIENCE_SECONDS = 300.0
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured."""

    nodes: int
    pods: int
    repeat: int = 1


@dataclass(frozen=True, slots=True)
class Start:
    """One of them."""

    seconds: float
    cpu_seconds: dict[str, float]
    peak_mib: dict[str, float]
    reserved: int

    def as_json(self, pods: int) -> Document:
        """See the module's docstring."""
        return {
            "seconds": round(self.seconds, 2),
            "cpuSeconds": {who: round(used, 2) for who, used in self.cpu_seconds.items()},
            "peakMib": {who: round(most, 1) for who, most in self.peak_mib.items()},
            "unreserved": pods - self.reserved,
        }


def measure(setting: Setting, *, quiet: bool) -> list[Start]:
    """All of them. Raises ConfigError where there is no control plane to start, HossError where the pod is not placed."""
    find_binaries()
    telemetry.configure("bench", level="error")
    with tempfile.TemporaryDirectory(prefix="hoss-kubernetes-") as directory:
        plane = ControlPlane.start(Path(directory))
        try:
            run_async(_fill(plane, setting, quiet=quiet))
            return [_start(plane, number) for number in range(setting.repeat)]
        finally:
            plane.stop()


def summary(setting: Setting, starts: Sequence[Start]) -> Document:
    """The JSON document."""
    return {
        "nodes": setting.nodes,
        "pods": setting.pods,
        "turns": [start.as_json(setting.pods) for start in starts],
        "seconds": round(median([start.seconds for start in starts]), 2),
        "dispatcherMib": round(median([start.peak_mib["dispatcher"] for start in starts]), 1),
    }


async def _fill(plane: ControlPlane, setting: Setting, *, quiet: bool) -> None:
    async with ground.opened(plane.kubeconfig) as api:
        await ground.create_all(api, "/api/v1/nodes", ground.nodes(setting.nodes, _NODE))
        with counting("pods", setting.pods, quiet=quiet) as progress:
            for start in range(0, setting.pods, 1000):
                numbers = range(start, min(start + 1000, setting.pods))
                await ground.create_all(
                    api, _PODS, (_standing(number, f"n{number % setting.nodes}") for number in numbers)
                )
                progress(len(numbers))


def _standing(number: int, node: str) -> Object:
    pod = ground.pod(f"p{number}", "default-scheduler", _POD)
    pod["spec"]["nodeName"] = node
    return pod


def _start(plane: ControlPlane, number: int) -> Start:
    pod = f"waiting-{number}"
    run_async(_create(plane, pod))
    servers = (plane.record("kube-apiserver"),)
    before = processes.cpu_seconds(servers)
    options = PlatformOptions(workers=(WorkerOptions("worker-0"),), kubeconfig=plane.kubeconfig)
    begun = time.monotonic()
    with temporary(options) as starter:
        bound = run_async(_until_bound(plane, pod))
        records = starter.state.processes
        used = processes.by_service({}, processes.cpu_seconds(records))
        served = processes.by_service(before, processes.cpu_seconds(servers))
        peak = {processes.service_of(name): mib for name, mib in processes.peak_mib(records).items()}

        async def reserved() -> int:
            async with clients_of(of_state(starter.state)) as clients:
                return (await clients.resolver.status()).reservations

        standing = run_async(reserved()) - 1 - number  # without those that were placed
        return Start(bound - begun, {**used, "kubeApiserver": sum(served.values())}, peak, standing)


async def _create(plane: ControlPlane, name: str) -> None:
    async with ground.opened(plane.kubeconfig) as api:
        await ground.create(api, _PODS, ground.pod(name, "hoss", _POD))


async def _until_bound(plane: ControlPlane, pod: str) -> float:
    """When it was seen on a node, by the monotonic clock."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    async with ground.opened(plane.kubeconfig) as api:
        while not (await api.get(f"{_PODS}/{pod}"))["spec"].get("nodeName"):
            if time.monotonic() > deadline:
                raise HossError(f"the waiting pod was not placed within {_PATIENCE_SECONDS:g} s")
            await asyncio.sleep(_LOOK_SECONDS)
    return time.monotonic()
