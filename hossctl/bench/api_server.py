"""The frame of benchmarks at a real API server: a control plane of their own, plain nodes and pods, waiting
for bindings, and what the API server counts."""

import asyncio
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sized
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

from hoss import telemetry
from hoss.errors import HossError
from hoss.kube.access import load_access
from hoss.kube.api import KubeApi, Object, Refused
from hossctl.endpoints import Clients
from hossctl.local.control_plane import ControlPlane, find_binaries

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
ON_NODES = {"fieldSelector": "spec.nodeName!="}
# Of the basic case of kube-scheduler's own benchmark (scheduler_perf).
NODE_AMOUNTS = {"cpu": "4", "memory": "32Gi", "pods": "110"}
POD_AMOUNTS = {"cpu": "100m", "memory": "500Mi"}
CREATING = 32  # requests at a time
POLL_SECONDS = 0.1

_PATIENCE_SECONDS = 120.0  # a busy machine is measured, not given up
_REQUESTS = re.compile(r"^apiserver_request_total\{([^}]*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_WRITING = ("POST", "PUT", "PATCH", "DELETE")
_WEBHOOK = re.compile(
    r"apiserver_admission_webhook_admission_duration_seconds_(sum|count|bucket)"
    r'\{name="bindings\.hoss\.dev"[^}]*?(?:,le="([^"]+)")?\} (\S+)'
)


class Write(NamedTuple):
    """A kind of requests that change something: ("POST", "pods/binding")."""

    verb: str
    resource: str


@contextmanager
def control_plane(prefix: str) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver for the length of the block, in a temporary directory. Raises ConfigError where
    there are no binaries."""
    find_binaries()
    telemetry.configure("bench", level="error")  # an API server that has just started ends the first watches
    with tempfile.TemporaryDirectory(prefix=prefix) as directory:
        plane = ControlPlane.start(Path(directory) / "control-plane")
        try:
            yield plane
        finally:
            plane.stop()


@asynccontextmanager
async def opened(kubeconfig: Path) -> AsyncIterator[KubeApi]:
    """A client for the length of the block."""
    api = KubeApi(load_access(kubeconfig))
    try:
        yield api
    finally:
        await api.close()


async def create(api: KubeApi, path: str, body: Object) -> Object:
    """POST an object; the object as created. Raises Refused, and TransportError where the API server is
    away."""
    reply = await api.ask("POST", path, body, patience_seconds=_PATIENCE_SECONDS)
    if not reply.done:
        raise Refused(reply, f"POST {path}")
    created: Object = reply.json()
    return created


async def create_all(
    api: KubeApi, path: str, objects: Iterable[Object], progress: Callable[[int], None] = lambda _: None
) -> list[Object]:
    """POST the objects, several at a time; the objects as created, in any order. Raises as `create`."""
    remaining, created = iter(objects), []

    async def some() -> None:
        for body in remaining:
            created.append(await create(api, path, body))
            progress(1)

    await asyncio.gather(*(some() for _ in range(CREATING)))
    return created


def nodes(count: int, amounts: dict[str, str]) -> Iterable[Object]:
    """Equal Node objects n0, n1, ..., ready, with no kubelet."""
    for number in range(count):
        labels = {"kubernetes.io/hostname": f"n{number}"}
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        yield {"metadata": {"name": f"n{number}", "labels": labels}, "status": status}


def pod(name: str, scheduler: str, requests: dict[str, str]) -> Object:
    """A pod of one container."""
    container = {"name": "c", "image": "none", "resources": {"requests": requests}}
    return {"metadata": {"name": name}, "spec": {"schedulerName": scheduler, "containers": [container]}}


async def until_known(clients: Clients, count: int) -> None:
    """Return once HOSS's ledger has so many nodes. Raises HossError when it does not get them in time."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (await clients.resolver.status()).nodes < count:
        if time.monotonic() > deadline:
            raise HossError(f"HOSS does not know all {count} nodes after {_PATIENCE_SECONDS:g} s")
        await asyncio.sleep(POLL_SECONDS)


async def until_bound(
    bound: Sized, pods: int, progress: Callable[[int], None], *, stall_seconds: float
) -> float:
    """Wait until so many pods are bound, or nothing was bound for `stall_seconds`; the monotonic time of the
    last binding seen."""
    seen, changed = len(bound), time.monotonic()
    while len(bound) < pods and time.monotonic() - changed < stall_seconds:
        await asyncio.sleep(POLL_SECONDS)
        if len(bound) > seen:
            progress(len(bound) - seen)
            seen, changed = len(bound), time.monotonic()
    return changed


async def writes(api: KubeApi) -> Counter[Write]:
    """Writing requests that the API server has answered, by its own count, without those about leases."""
    return read_writes((await api.ask("GET", "/metrics")).body.decode())


def read_writes(metrics: str) -> Counter[Write]:
    """The same, from the text of the API server's metrics."""
    found: Counter[Write] = Counter()
    for labels, count in _REQUESTS.findall(metrics):
        label = dict(_LABEL.findall(labels))
        if label["verb"] in _WRITING and label["resource"] != "leases":
            resource = "/".join(filter(None, (label["resource"], label["subresource"])))
            found[Write(label["verb"], resource)] += int(float(count))
    return found


async def webhook_waits(api: KubeApi) -> dict[str, float]:
    """How long the API server waited for the binding webhook, by its own metrics: `sum` of seconds, `count`
    of requests, and for each limit in seconds the number of requests that took no longer."""
    found: dict[str, float] = defaultdict(float)
    for kind, limit, value in _WEBHOOK.findall((await api.ask("GET", "/metrics")).body.decode()):
        found[limit or kind] += float(value)
    return found
