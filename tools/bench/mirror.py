"""`python -m tools.bench mirror`: what a full cluster costs the dispatcher that mirrors it, and how soon
another takes over.

HOSS starts with two dispatchers and no worker, as the guard alone does, on a stand-in for an API server that
serves lists in pages and watches in which nothing happens. So the cluster costs this machine next to nothing
beside HOSS itself; a real API server takes 2 ms of CPU to create a pod. Every pod is on a node and has the
fields that a real one has, 3 KB as JSON. Both dispatchers list everything, one of them standing by. Then the
active one is killed (-9). Objects of kinds that HOSS does not follow change all the time, as in a real
cluster, so only a bookmark says that a watch lacks nothing, and it comes as a real server sends it.

The JSON document:

    nodes, pods
    startSeconds         from the first process until every pod is in the ledger
    takeoverSeconds      from the kill until a dispatcher answers that knows every pod, lease (1.5 s) included
    takeoverCpuSeconds   CPU time of the next dispatcher meanwhile
    resolverCpuSeconds   of the resolver meanwhile
    terms                of dispatchers, from that which was killed to the end: 2 unless a lease was lost
    peakMib              peak resident memory of each dispatcher and the resolver, MiB
    cpuSeconds           CPU time of the same
"""

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
from aiohttp import web

from hoss.errors import HossError
from hossctl.bench import processes
from hossctl.console import Document
from hossctl.endpoints import Clients
from hossctl.figures import camel
from hossctl.load import report
from hossctl.local.platform import PlatformOptions, Starter
from tools.bench.losses import kill_active, next_term_knows, until_serving

_WAIT_SECONDS = 600.0
_READY_SECONDS = 10.0
_POLL_SECONDS = 0.05
_DISPATCHERS = ("dispatcher-1", "dispatcher-2")
_RESOLVER = "resolver-1"
_MIRRORS = (*_DISPATCHERS, _RESOLVER)
_IDLE_SHARE, _IDLE_SECONDS = 0.1, 2.0  # of a core, while nothing happens
_BOOKMARK_SECONDS_BEFORE_END = 2.0
_PODS, _NODES = "/api/v1/pods", "/api/v1/nodes"


@dataclass(frozen=True, slots=True)
class MirrorSetting:
    nodes: int
    pods: int


@dataclass(frozen=True, slots=True)
class MirrorMeasurement:
    """The whole measurement."""

    setting: MirrorSetting
    start_seconds: float
    takeover_seconds: float
    takeover_cpu_seconds: float
    resolver_cpu_seconds: float
    peak_mib: dict[str, float]
    cpu_seconds: dict[str, float]
    terms: int

    def as_json(self) -> Document:
        """See the module's docstring."""
        return {
            **camel(self.setting, "nodes", "pods"),
            "startSeconds": round(self.start_seconds, 2),
            "takeoverSeconds": round(self.takeover_seconds, 2),
            "takeoverCpuSeconds": round(self.takeover_cpu_seconds, 2),
            "resolverCpuSeconds": round(self.resolver_cpu_seconds, 2),
            "terms": self.terms,
            "peakMib": {name: round(mib, 1) for name, mib in self.peak_mib.items()},
            "cpuSeconds": {name: round(seconds, 2) for name, seconds in self.cpu_seconds.items()},
        }

    def lines(self) -> list[tuple[str, object]]:
        """For people."""
        used = self.cpu_seconds
        return [
            ("every pod is in the ledger", f"{self.start_seconds:.1f} s after the start"),
            (
                "the next dispatcher knows all",
                f"{self.takeover_seconds:.1f} s after the kill, lease included",
            ),
            ("its CPU time meanwhile", f"{self.takeover_cpu_seconds:.1f} s"),
            ("that of the resolver", f"{self.resolver_cpu_seconds:.1f} s"),
            ("terms", self.terms),
            *(
                (name, f"{mib:.0f} MiB at the peak, {used[name]:.1f} s of CPU")
                for name, mib in self.peak_mib.items()
            ),
        ]


def measure(setting: MirrorSetting) -> MirrorMeasurement:
    """One start and one takeover. Raises HossError where either does not end."""
    with (
        TemporaryDirectory(prefix="hoss-mirror-") as directory,
        _served(setting, Path(directory)) as kubeconfig,
    ):
        begun = time.monotonic()
        with report.platform(PlatformOptions(workers=(), dispatchers=2, kubeconfig=kubeconfig)) as starter:

            async def run(clients: Clients) -> MirrorMeasurement:
                await _until(partial(_is_reserved, clients, setting.pods))
                started = time.monotonic() - begun
                await _until(partial(_is_idle, starter))  # the standby has listed
                status = await clients.dispatcher.status()
                peak, used = _figures(starter)  # now, as one of them will not be there to be asked
                killed = time.monotonic()
                await asyncio.to_thread(kill_active, starter, status.address)
                await _until(partial(next_term_knows, clients, status.term, setting.pods))
                taken_over = time.monotonic() - killed
                terms = (await clients.dispatcher.status()).term - status.term + 1
                after = _figures(starter)
                [successor] = [name for name in _DISPATCHERS if name in after[1]]
                return MirrorMeasurement(
                    setting,
                    start_seconds=started,
                    takeover_seconds=taken_over,
                    takeover_cpu_seconds=after[1][successor] - used[successor],
                    resolver_cpu_seconds=after[1][_RESOLVER] - used[_RESOLVER],
                    peak_mib=peak | after[0],
                    cpu_seconds=used | after[1],
                    terms=terms,
                )

            return report.run_on(starter.state, run)


async def _is_reserved(clients: Clients, pods: int) -> bool:
    return (await clients.resolver.status()).reservations >= pods


async def _is_idle(starter: Starter) -> bool:
    before = _figures(starter)[1]
    await asyncio.sleep(_IDLE_SECONDS)
    after = _figures(starter)[1]
    return all(after[name] - before[name] < _IDLE_SHARE * _IDLE_SECONDS for name in _DISPATCHERS)


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Raises HossError where it never holds."""
    await until_serving(holds, wait_seconds=_WAIT_SECONDS, poll_seconds=_POLL_SECONDS)


def _figures(starter: Starter) -> tuple[dict[str, float], dict[str, float]]:
    """Peak MiB and CPU seconds by process."""
    records = [record for record in starter.state.processes if record.name in _MIRRORS]
    return processes.peak_mib(records), processes.cpu_seconds(records)


class _Cluster:
    """The stand-in, on an event loop in a thread of its own. Whatever else it is asked for is an empty
    list."""

    def __init__(self, setting: MirrorSetting, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._setting = setting
        self._loop = asyncio.new_event_loop()
        self._begun = self._loop.time()
        self._ready = threading.Event()
        self._ended = asyncio.Event()

    def serve(self) -> None:
        """Until `end`."""
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = web.Server(self._answer, access_log=None)
        listener = await self._loop.create_server(server, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "u", "user": {}}],
        }
        self._kubeconfig.write_bytes(orjson.dumps(document))
        self._ready.set()
        await self._ended.wait()
        listener.close()
        await server.shutdown(1.0)

    def wait_until_ready(self) -> None:
        """Raises HossError."""
        if not self._ready.wait(_READY_SECONDS):
            raise HossError("the stand-in for an API server does not start")

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method != "GET":
            return web.Response(body=await request.read(), status=201 if request.method == "POST" else 200)
        if request.query.get("watch"):
            return await self._watch(request)
        begin, limit = int(request.query.get("continue") or 0), int(request.query.get("limit") or 10**9)
        of_kind = {_PODS: self._setting.pods, _NODES: self._setting.nodes}.get(request.path, 0)
        end, nodes = min(begin + limit, of_kind), self._setting.nodes
        if request.path == _NODES:
            items = [_node(number) for number in range(begin, end)]
        else:
            items = [_pod(number, nodes) for number in range(begin, end)]
        more = b'"continue":"%d",' % end if end < of_kind else b""
        form = b'{"metadata":{%s"resourceVersion":"%d"},"items":[%s]}'
        body = form % (more, self._version(), b",".join(items))
        return web.Response(body=body, content_type="application/json")

    def _version(self) -> int:
        return 1 + int(self._loop.time() - self._begun)

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        last_seconds = float(request.query["timeoutSeconds"]) - _BOOKMARK_SECONDS_BEFORE_END
        with contextlib.suppress(ConnectionError):  # of a dispatcher that was killed
            await response.prepare(request)
            for seconds in (last_seconds, _BOOKMARK_SECONDS_BEFORE_END):
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), seconds)
                    break
                bookmark = {"metadata": {"resourceVersion": str(self._version())}}
                await response.write(orjson.dumps({"type": "BOOKMARK", "object": bookmark}) + b"\n")
        return response


@contextlib.contextmanager
def _served(setting: MirrorSetting, directory: Path) -> Iterator[Path]:
    """Yields the kubeconfig."""
    kubeconfig = directory / "kubeconfig"
    cluster = _Cluster(setting, kubeconfig)
    thread = threading.Thread(target=cluster.serve, daemon=True)
    thread.start()
    cluster.wait_until_ready()
    try:
        yield kubeconfig
    finally:
        cluster.end()
        thread.join(_READY_SECONDS)


_AT = "2026-11-24T12:00:00Z"
_REQUESTS = {"cpu": "100m", "memory": "128Mi"}


def _uid(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def _fields(manager: str, *names: str) -> Document:
    """An entry of managedFields: a third of a real object's bytes are such."""
    fields: dict[str, Document] = {f"f:{name}": {"f:value": {}, "f:kind": {}, "f:name": {}} for name in names}
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": _AT,
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": fields},
    }


def _node(number: int) -> bytes:
    amounts = {"cpu": "32", "memory": "128Gi", "pods": "250"}
    metadata = {
        "name": f"n{number}",
        "uid": _uid(f"n{number}"),
        "resourceVersion": "1",
        "labels": {"kubernetes.io/hostname": f"n{number}", "topology.kubernetes.io/zone": f"z{number % 3}"},
        "managedFields": [_fields("kubelet", "podCIDR", "taints", "capacity", "allocatable", "images")],
    }
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": _AT, "lastTransitionTime": _AT}]
    status = {"capacity": amounts, "allocatable": amounts, "conditions": conditions}
    return orjson.dumps({"metadata": metadata, "spec": {}, "status": status})


def _pod_form() -> bytes:
    """A pod with the fields that the API server, a ReplicaSet and a kubelet give one, to be filled in for
    each: to make every pod from objects would cost more than the dispatcher's part, on a core that a real
    API server leaves to it."""
    name, node, app = "%(name)s", "%(node)s", "%(app)s"
    mounted = [{"name": "kube-api-access", "mountPath": "/var/run/secrets", "readOnly": True}]
    container = {
        "name": "main",
        "image": f"registry.example.com/{app}:1.2.3",
        "args": ["--listen=:8080", "--log-level=info"],
        "env": [{"name": f"SETTING_{number}", "value": f"value {number} of {name}"} for number in range(6)],
        "resources": {"requests": _REQUESTS, "limits": {"memory": "128Mi"}},
        "volumeMounts": mounted,
        "imagePullPolicy": "IfNotPresent",
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": 8080, "scheme": "HTTP"},
            "periodSeconds": 10,
        },
    }
    sources = [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}]
    tolerated = [
        {
            "key": f"node.kubernetes.io/{what}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 300,
        }
        for what in ("not-ready", "unreachable")
    ]
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": app,
        "uid": "%(app_uid)s",
        "controller": True,
    }
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": _AT}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    state = {"name": "main", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": _AT}}}
    pod: Document = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": "%(uid)s",
            "resourceVersion": "1",
            "creationTimestamp": _AT,
            "labels": {"app": app, "pod-template-hash": "5d4f8c7b9"},
            "ownerReferences": [owner],
            "managedFields": [
                _fields("kube-controller-manager", "containers", "dnsPolicy", "restartPolicy", "volumes"),
                _fields("kubelet", "conditions", "containerStatuses", "hostIP", "phase", "podIP"),
            ],
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "nodeName": node,
            "containers": [container],
            "volumes": [{"name": "kube-api-access", "projected": {"sources": sources}}],
            "tolerations": tolerated,
            "priority": 0,
            "restartPolicy": "Always",
            "serviceAccountName": "default",
        },
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "conditions": conditions,
            "containerStatuses": [state],
        },
    }
    return orjson.dumps(pod)


_POD_FORM = _pod_form()


def _pod(number: int, nodes: int) -> bytes:
    uid = _uid(f"p{number}")
    app = f"app-{int(uid[:4], 16) % 500}".encode()
    return _POD_FORM % {
        b"name": b"p%d" % number,
        b"node": b"n%d" % (number % nodes),
        b"uid": uid.encode(),
        b"app": app,
        b"app_uid": _owner_uid(app),
    }


@cache
def _owner_uid(app: bytes) -> bytes:
    return _uid(app.decode()).encode()
