"""`hoss bench guard --latency`: how long schedulers wait for the binding webhook at a steady rate of
bindings, and what the webhook costs.

One control plane and one platform, with the rights that deploy/ gives HOSS. Bindings are sent at fixed times,
whether or not earlier ones are answered: first as admission reviews to the webhook itself, over as many
connections as an API server keeps, then as bindings to the API server. Each binding is of a pod of its own,
and fits. Some pods mount a volume of a driver that attaches so many and no more, and have a part of a device
that pods share: one of each on every node.

The JSON document:

    rate, seconds, connections, nodes
    withClaims           per cent of the pods that have a volume and a device
    cases[]
      asked              "webhook" or "API server"
      pods               "plain" or "with claims"
      perSecond          answered, both kinds of pods
      p50Ms, p90Ms, p99Ms, p999Ms, maxMs   from request to answer, the client's own time included
      cpuMs              CPU time per binding, by process; "client" is this command
    apiServer            how long it waited for the webhook in the second case, by its own metrics:
      meanMs
      under5Ms, under25Ms   shares
"""

import asyncio
import gc
import os
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np
import orjson
from numpy.typing import NDArray

from hoss.errors import HossError
from hoss.kube.api import MERGE_PATCH, KubeApi, Object
from hossctl.bench import api_server
from hossctl.bench.processes import cpu_seconds
from hossctl.cli import run_async
from hossctl.console import Document
from hossctl.endpoints import Clients
from hossctl.figures import camel, per_second, percentiles, share
from hossctl.load import report
from hossctl.load.progress import counting
from hossctl.local.binding_webhook import grant, grant_webhook, published, url_of, wait_until_called
from hossctl.local.control_plane import HOSS, ControlPlane
from hossctl.local.platform import PlatformOptions
from hossctl.local.ports import free_ports
from hossctl.local.process import ProcessRecord, record_of

GOAL_P99_MS = 10.0

_KEEP_SECONDS = 90.0  # unused connections, as client-go does
_PATIENCE_SECONDS = 60.0  # a busy machine is measured, not given up
_SETTLE_SECONDS = 2.0  # until the events of creating the pods are handled
_LEVELS = (50, 90, 99, 99.9, 100)
_LEVEL_NAMES = ("p50Ms", "p90Ms", "p99Ms", "p999Ms", "maxMs")
_DRIVER = "bench.example.com"
_DEVICE_CLASS = "bench"

_Ask = Callable[[Object, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class GuardLatencySetting:
    """The sizes of a measurement. `connections`: to the webhook; client-go keeps 25."""

    rate: int
    seconds: float
    connections: int
    nodes: int
    with_claims: int = 0  # per cent of the pods

    def has_claims(self, number: int) -> bool:
        """Whether this pod, counted from 0, has claims: evenly among the others."""
        return (number + 1) * self.with_claims // 100 > number * self.with_claims // 100

    @property
    def bindings(self) -> int:
        return max(1, round(self.rate * self.seconds))


def measure(setting: GuardLatencySetting, *, quiet: bool) -> Document:
    """The JSON document. Raises ConfigError where there are no binaries of a control plane."""
    (port,) = free_ports(1)
    with api_server.control_plane("hoss-guard-") as plane:
        run_async(_prepare(setting, plane, port))
        options = PlatformOptions(workers=(), kubeconfig=plane.hoss_kubeconfig, webhook_port=port)
        with report.platform(options) as starter:
            client = record_of("client", os.getpid(), Path())
            records = [*starter.state.processes, plane.record("kube-apiserver"), plane.record("etcd"), client]

            async def run(clients: Clients) -> Document:
                await api_server.until_known(clients, setting.nodes)
                return await _measure_cases(setting, plane, records, quiet=quiet)

            return report.run_on(starter.state, run)


async def _prepare(setting: GuardLatencySetting, plane: ControlPlane, port: int) -> None:
    amounts = {"cpu": "1000", "memory": "4Ti", "pods": "10000"}
    async with api_server.opened(plane.kubeconfig) as api:
        await api_server.create_all(api, api_server.NODES, api_server.nodes(setting.nodes, amounts))
        if setting.with_claims:
            await _create_claims(api, setting.nodes)
        await grant(api, HOSS)
        await grant_webhook(api, HOSS, url_of(port), failure_policy="Fail")


async def _create_claims(api: KubeApi, nodes: int) -> None:
    """A volume that is bound and a device that is given away, on each node."""
    storage, resource = "/apis/storage.k8s.io/v1", "/apis/resource.k8s.io/v1"
    names = [f"n{number}" for number in range(nodes)]
    await api_server.create(api, f"{resource}/deviceclasses", {"metadata": {"name": _DEVICE_CLASS}})
    for path, body in (
        (f"{storage}/csinodes", _csi_node),
        ("/api/v1/persistentvolumes", _volume),
        ("/api/v1/namespaces/default/persistentvolumeclaims", _volume_claim),
        (f"{resource}/resourceslices", _slice),
        (f"{resource}/namespaces/default/resourceclaims", _device_claim),
    ):
        await api_server.create_all(api, path, map(body, names))
    for name in names:
        path = f"{resource}/namespaces/default/resourceclaims/{name}/status"
        reply = await api.send("PATCH", path, _allocation(name), content_type=MERGE_PATCH)
        if not reply.done:
            raise HossError(f"the claim of {name} cannot be given its device: {reply.message}")


def _csi_node(node: str) -> Object:
    driver = {"name": _DRIVER, "nodeID": node, "topologyKeys": [], "allocatable": {"count": 100}}
    return {"metadata": {"name": node}, "spec": {"drivers": [driver]}}


def _volume(node: str) -> Object:
    at = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": _DRIVER, "volumeHandle": node},
        "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": node},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [at]}]}},
    }
    return {"metadata": {"name": node}, "spec": spec}


def _volume_claim(node: str) -> Object:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
        "resources": {"requests": {"storage": "1Gi"}},
        "volumeName": node,
    }
    annotations = {"pv.kubernetes.io/bind-completed": "yes"}
    return {"metadata": {"name": node, "annotations": annotations}, "spec": spec}


def _slice(node: str) -> Object:
    capacity = {"memory": {"value": "80Gi"}}
    device = {"name": "device", "allowMultipleAllocations": True, "capacity": capacity}
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": _DRIVER, "nodeName": node, "pool": pool, "devices": [device]}
    return {"metadata": {"name": node}, "spec": spec}


def _device_claim(node: str) -> Object:
    requests = [{"name": "one", "exactly": {"deviceClassName": _DEVICE_CLASS}}]
    return {"metadata": {"name": node}, "spec": {"devices": {"requests": requests}}}


def _allocation(node: str) -> Object:
    result = {
        "request": "one",
        "driver": _DRIVER,
        "pool": node,
        "device": "device",
        "shareID": str(uuid.uuid5(uuid.NAMESPACE_DNS, node)),
        "consumedCapacity": {"memory": "40Gi"},
    }
    return {"status": {"allocation": {"devices": {"results": [result]}}}}


def _pod(number: int, setting: GuardLatencySetting, at: int) -> Object:
    """The pod that comes as number `at` of its case."""
    pod = api_server.pod(f"p{number}", "another", {"cpu": "10m", "memory": "16Mi"})
    if setting.has_claims(at):
        node = f"n{at % setting.nodes}"
        pod["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": node}}]
        pod["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimName": node}]
    return pod


def _name_of(pod: Object) -> Object:
    """What a binding says of its pod. The whole pods would be millions of objects in this process."""
    return {"metadata": {name: pod["metadata"][name] for name in ("name", "namespace", "uid")}}


async def _measure_cases(
    setting: GuardLatencySetting,
    plane: ControlPlane,
    records: Sequence[ProcessRecord],
    *,
    quiet: bool,
) -> Document:
    count, nodes = setting.bindings, setting.nodes
    async with (
        api_server.opened(plane.kubeconfig) as api,
        api_server.opened(plane.scheduler_kubeconfig) as scheduler,
    ):
        await wait_until_called(scheduler)
        with counting("pods", nodes + 2 * count, quiet=quiet) as created:
            places = [*range(nodes), *range(count), *range(count)]
            bodies = (_pod(number, setting, at) for number, at in enumerate(places))
            pods = [_name_of(p) for p in await api_server.create_all(api, api_server.PODS, bodies, created)]
        pods.sort(key=lambda pod: int(pod["metadata"]["name"][1:]))
        first, pods = pods[:nodes], pods[nodes:]
        authority, url = await published(api)
        trust = ssl.create_default_context(cadata=authority.decode())
        connector = aiohttp.TCPConnector(
            limit=setting.connections, ssl=trust, keepalive_timeout=_KEEP_SECONDS
        )
        async with aiohttp.ClientSession(connector=connector) as webhook:
            asking = _Asking(webhook, scheduler, url)
            # The webhook compares every node with the API server once. That happens before any measurement.
            await asyncio.gather(*(asking.webhook(pod, f"n{number}") for number, pod in enumerate(first)))
            cases = await _measure_case("webhook", asking.webhook, pods[:count], setting, records)
        before = await api_server.webhook_waits(api)
        cases += await _measure_case("API server", asking.api_server, pods[count:], setting, records)
        after = await api_server.webhook_waits(api)
    waited = {name: value - before.get(name, 0.0) for name, value in after.items()}
    answered = waited.get("count", 0.0)
    return {
        **camel(setting, "rate", "seconds", "connections", "nodes", "with_claims"),
        "cases": cases,
        "apiServer": {
            "meanMs": round(1000 * share(waited.get("sum", 0.0), answered), 2),
            "under5Ms": round(share(waited.get("0.005", 0.0), answered), 4),
            "under25Ms": round(share(waited.get("0.025", 0.0), answered), 4),
        },
    }


async def _measure_case(
    asked: str,
    ask: _Ask,
    pods: Sequence[Object],
    setting: GuardLatencySetting,
    records: Sequence[ProcessRecord],
) -> list[Document]:
    await asyncio.sleep(_SETTLE_SECONDS)
    # Now and not while bindings wait: a pass of the cycle collector over all pods stops this process, and
    # what it measures would be its own pause.
    gc.collect()
    gc.freeze()
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
    claims = np.array([setting.has_claims(number) for number in range(len(pods))])
    return [
        {
            "asked": asked,
            "pods": kind,
            "perSecond": round(per_second(len(pods), elapsed), 1),
            **_waits(seconds[which]),
            "cpuMs": {name: round(1000 * (after[name] - used[name]) / len(pods), 3) for name in after},
        }
        for kind, which in (("plain", ~claims), ("with claims", claims))
        if which.any()
    ]


def _waits(seconds: NDArray[np.float64]) -> Document:
    found = percentiles(1000 * seconds, *_LEVELS)
    return {name: round(value, 2) for name, value in zip(_LEVEL_NAMES, found, strict=True)}


class _Asking:
    """The two ways to ask. Both raise HossError where a binding is not allowed."""

    def __init__(self, session: aiohttp.ClientSession, scheduler: KubeApi, url: str) -> None:
        self._session = session
        self._scheduler = scheduler
        self._url = url

    async def webhook(self, pod: Object, node: str) -> None:
        """Send an admission review, as the API server does."""
        async with self._session.post(self._url, data=orjson.dumps(_review(pod, node))) as response:
            body = await response.read()
        if response.status != 200 or not orjson.loads(body)["response"]["allowed"]:
            raise HossError(
                f"the webhook does not allow a binding that fits: {response.status} {body.decode()}"
            )

    async def api_server(self, pod: Object, node: str) -> None:
        """Bind, as schedulers do."""
        path = f"{api_server.PODS}/{pod['metadata']['name']}/binding"
        reply = await self._scheduler.send(
            "POST", path, _binding(pod, node), timeout_seconds=_PATIENCE_SECONDS
        )
        if not reply.done:
            raise HossError(f"the API server refuses a binding that fits: {reply.status} {reply.message}")


def _binding(pod: Object, node: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": pod["metadata"],
        "target": {"kind": "Node", "name": node},
    }


def _review(pod: Object, node: str) -> Object:
    """An admission review with all fields that an API server writes."""
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
