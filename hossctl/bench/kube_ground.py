"""What benchmarks on a control plane of their own have in common: plain nodes, pods, and waiting until all are bound."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sized
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from hoss.errors import HossError
from hoss.kube.access import load_access
from hoss.kube.api import KubeApi, Object, Refused
from hossctl.endpoints import Clients

LOOK_SECONDS = 0.1
_READY_SECONDS = 120.0  # a busy machine is to be measured, not given up
CREATING = 32  # at once
_REQUESTS = re.compile(r"^apiserver_request_total\{([^}]*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_WRITING = ("POST", "PUT", "PATCH", "DELETE")


class Write(NamedTuple):
    """A kind of requests that change something: ("POST", "pods/binding")."""

    verb: str
    resource: str


@asynccontextmanager
async def opened(kubeconfig: Path) -> AsyncIterator[KubeApi]:
    """A client for the length of the block."""
    api = KubeApi(load_access(kubeconfig))
    try:
        yield api
    finally:
        await api.close()


async def create(api: KubeApi, path: str, body: Object) -> Object:
    """What the API server made of it. Raises Refused, and TransportError where it stays away."""
    reply = await api.ask("POST", path, body, patience_seconds=_READY_SECONDS)
    if not reply.done:
        raise Refused(reply, f"POST {path}")
    made: Object = reply.json()
    return made


async def create_all(api: KubeApi, path: str, objects: Iterable[Object]) -> None:
    """POST each to `path`, several at once. Raises as `create`."""
    waiting = iter(objects)

    async def some() -> None:
        for body in waiting:
            await create(api, path, body)

    await asyncio.gather(*(some() for _ in range(CREATING)))


def nodes(count: int, amounts: dict[str, str]) -> Iterable[Object]:
    """Plain Node objects n0, n1, ..., all alike and ready: nobody stands behind them."""
    for number in range(count):
        labels = {"kubernetes.io/hostname": f"n{number}"}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        yield {"metadata": {"name": f"n{number}", "labels": labels}, "status": status}


def pod(name: str, scheduler: str, requests: dict[str, str]) -> Object:
    """A pod of one container."""
    container = {"name": "c", "image": "none", "resources": {"requests": requests}}
    return {"metadata": {"name": name}, "spec": {"schedulerName": scheduler, "containers": [container]}}


async def until_known(clients: Clients, count: int) -> None:
    """Return once HOSS's ledger has so many nodes. Raises HossError when it does not get them."""
    deadline = time.monotonic() + _READY_SECONDS
    while (await clients.resolver.status()).nodes < count:
        if time.monotonic() > deadline:
            raise HossError(f"HOSS does not know all {count} nodes after {_READY_SECONDS:g} s")
        await asyncio.sleep(LOOK_SECONDS)


async def until_bound(bound: Sized, pods: int, progress: Callable[[int], None], *, stall_seconds: float) -> float:
    """When the last of them was bound, or, where nothing happens any more, what happened last; by the monotonic clock."""
    seen, changed = len(bound), time.monotonic()
    while len(bound) < pods and time.monotonic() - changed < stall_seconds:
        await asyncio.sleep(LOOK_SECONDS)
        if len(bound) > seen:
            progress(len(bound) - seen)
            seen, changed = len(bound), time.monotonic()
    return changed


async def writes(api: KubeApi) -> Counter[Write]:
    """Requests that the API server has answered, by its own count; those about its own lease are left out."""
    return read_writes((await api.ask("GET", "/metrics")).body.decode())


def read_writes(metrics: str) -> Counter[Write]:
    """The same of the text of its metrics."""
    found: Counter[Write] = Counter()
    for labels, count in _REQUESTS.findall(metrics):
        label = dict(_LABEL.findall(labels))
        if label["verb"] in _WRITING and label["resource"] != "leases":
            resource = "/".join(filter(None, (label["resource"], label["subresource"])))
            found[Write(label["verb"], resource)] += int(float(count))
    return found
