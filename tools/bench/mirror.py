"""`python -m tools.bench mirror`: what a full cluster costs the dispatcher that mirrors it, and how soon another
takes over.

HOSS starts with two dispatchers on a stand-in for an API server: it serves lists in pages from memory, sends
what changes to watches, and takes bindings. So the size of the cluster costs this machine next to nothing
beside HOSS itself; a real API server takes 2 ms of CPU to create a pod. Every pod is on a node and has the
fields that a real one has, 4 KB as JSON. Then the active dispatcher is killed (-9), and the standby lists
everything.

The JSON document:

    nodes, pods
    startSeconds         from the first process until a pod that waits for HOSS is bound
    takeoverSeconds      from the kill until a pod that was created then is bound, lease (1.5 s) included
    peakMib              peak resident memory of each dispatcher and the resolver, MiB
    cpuSeconds           CPU time of the same up to then
    reserved             pods in the ledger at the end
"""

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
from hossctl.local.platform import PlatformOptions, Starter, WorkerOptions
from tools.bench.losses import kill_active

_WAIT_SECONDS = 600.0
_READY_SECONDS = 10.0
_POLL_SECONDS = 0.02
_MIRRORS = ("dispatcher-1", "dispatcher-2", "resolver-1")
_PODS, _NODES = "/api/v1/pods", "/api/v1/nodes"


@dataclass(frozen=True, slots=True)
class Setting:
    nodes: int
    pods: int


@dataclass(frozen=True, slots=True)
class Mirror:
    """The whole measurement."""

    setting: Setting
    start_seconds: float
    takeover_seconds: float
    peak_mib: dict[str, float]
    cpu_seconds: dict[str, float]
    reserved: int

    def as_json(self) -> Document:
        """See the module's docstring."""
        return {
            **camel(self.setting, "nodes", "pods"),
            "startSeconds": round(self.start_seconds, 2),
            "takeoverSeconds": round(self.takeover_seconds, 2),
            "peakMib": {name: round(mib, 1) for name, mib in self.peak_mib.items()},
            "cpuSeconds": {name: round(seconds, 2) for name, seconds in self.cpu_seconds.items()},
            "reserved": self.reserved,
        }

    def lines(self) -> list[tuple[str, object]]:
        """For people."""
        used = self.cpu_seconds
        return [
            ("a waiting pod is bound", f"{self.start_seconds:.1f} s after the start"),
            (
                "the next dispatcher binds one",
                f"{self.takeover_seconds:.1f} s after the kill, lease included",
            ),
            *(
                (name, f"{mib:.0f} MiB at the peak, {used[name]:.1f} s of CPU")
                for name, mib in self.peak_mib.items()
            ),
            ("pods in the ledger", f"{self.reserved:,}"),
        ]


def measure(setting: Setting) -> Mirror:
    """One start and one takeover. Raises HossError where a pod is not bound in time."""
    with TemporaryDirectory(prefix="hoss-mirror-") as directory, _served(setting, Path(directory)) as cluster:
        options = PlatformOptions(
            workers=(WorkerOptions("worker-0"),), dispatchers=2, kubeconfig=cluster.kubeconfig
        )
        cluster.create("first")
        begun = time.monotonic()
        with report.platform(options) as starter:
            started = cluster.wait_until_bound("first") - begun
            address, _ = report.run_on(starter.state, _address_and_reservations)
            # One is dead afterwards, so its figures are read before.
            peak, used = _figures(starter)
            killed = time.monotonic()
            kill_active(starter, address)
            cluster.create("second")
            taken_over = cluster.wait_until_bound("second") - killed
            _, reserved = report.run_on(starter.state, _address_and_reservations)
            after = _figures(starter)
        return Mirror(setting, started, taken_over, peak | after[0], used | after[1], reserved)


def _figures(starter: Starter) -> tuple[dict[str, float], dict[str, float]]:
    """Peak MiB and CPU seconds by process."""
    records = [record for record in starter.state.processes if record.name in _MIRRORS]
    return processes.peak_mib(records), processes.cpu_seconds(records)


async def _address_and_reservations(clients: Clients) -> tuple[str, int]:
    """The active dispatcher's address, and how many pods the ledger has."""
    active, ledger = await clients.dispatcher.status(), await clients.resolver.status()
    return active.address, ledger.reservations


class _Cluster:
    """The stand-in, on an event loop in a thread of its own: nodes, pods on them, and those that are created
    later. It forgets nothing, and answers whatever else it is asked with an empty list."""

    def __init__(self, setting: Setting, directory: Path) -> None:
        self.kubeconfig = directory / "kubeconfig"
        self._setting = setting
        self._version = 1
        self._later: dict[str, bytes] = {}  # pods by name
        self._bound: dict[str, float] = {}  # monotonic times by name
        self._watches: dict[asyncio.Queue[bytes], str] = {}  # paths, by the lines to send; b"": the last one
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._ended = asyncio.Event()

    def create(self, name: str) -> None:
        """A pod that waits for HOSS."""
        self._loop.call_soon_threadsafe(self._change, "ADDED", name, "")

    def wait_until_bound(self, name: str) -> float:
        """The monotonic time of its binding. Raises HossError."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while name not in self._bound:
            if time.monotonic() > deadline:
                raise HossError(f"pod {name} was not bound within {_WAIT_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)
        return self._bound[name]

    def _change(self, kind: str, name: str, node: str) -> None:
        self._version += 1
        self._later[name] = _pod(name, self._version, node, scheduler="hoss")
        for watch, path in self._watches.items():
            if path == _PODS:
                watch.put_nowait(b'{"type":"%s","object":%s}\n' % (kind.encode(), self._later[name]))

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
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [context],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "u", "user": {}}],
        }
        self.kubeconfig.write_bytes(orjson.dumps(document))
        self._ready.set()
        await self._ended.wait()
        for watch in self._watches:
            watch.put_nowait(b"")
        listener.close()
        await server.shutdown(1.0)

    def wait_until_ready(self) -> None:
        """Raises HossError."""
        if not self._ready.wait(_READY_SECONDS):
            raise HossError("the stand-in for an API server does not start")

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            return await (self._watch if request.query.get("watch") else self._read)(request)
        body = await request.read()
        if request.path.endswith("/binding"):
            binding = orjson.loads(body)
            name = binding["metadata"]["name"]
            self._bound[name] = time.monotonic()
            self._change("MODIFIED", name, binding["target"]["name"])
            return web.json_response({"kind": "Status", "status": "Success"}, status=201)
        return web.Response(body=body, status=201 if request.method == "POST" else 200)

    async def _read(self, request: web.BaseRequest) -> web.StreamResponse:
        parent, _, name = request.path.rpartition("/")
        if parent.endswith("/pods") and name in self._later:
            return web.Response(body=self._later[name], content_type="application/json")
        begin, limit = int(request.query.get("continue") or 0), int(request.query.get("limit") or 10**9)
        items, end = self._items(request.path, begin, limit)
        more = b"" if end is None else b'"continue":"%d",' % end
        head = b'{"metadata":{%s"resourceVersion":"%d"},"items":[' % (more, self._version)
        return web.Response(body=head + b",".join(items) + b"]}", content_type="application/json")

    def _items(self, path: str, begin: int, limit: int) -> tuple[list[bytes], int | None]:
        """Of one page, and where the next one begins."""
        of_kind = {_PODS: self._setting.pods, _NODES: self._setting.nodes}.get(path, 0)
        end = min(begin + limit, of_kind)
        if path == _NODES:
            items = [_node(number) for number in range(begin, end)]
        else:
            items = [
                _pod(f"p{number}", 1, f"n{number % self._setting.nodes}", scheduler="default-scheduler")
                for number in range(begin, end)
            ]
        if end < of_kind:
            return items, end
        return [*items, *(self._later.values() if path == _PODS else ())], None

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._watches[lines] = request.path
        since = int(request.query.get("resourceVersion") or 0)
        for pod in self._later.values() if request.path == _PODS else ():  # between the list and this watch
            if int(orjson.loads(pod)["metadata"]["resourceVersion"]) > since:
                lines.put_nowait(b'{"type":"MODIFIED","object":%s}\n' % pod)
        try:
            with contextlib.suppress(ConnectionError):  # a dispatcher that was killed
                await response.prepare(request)
                while line := await lines.get():
                    await response.write(line)
        finally:
            del self._watches[lines]
        return response


@contextmanager
def _served(setting: Setting, directory: Path) -> Iterator[_Cluster]:
    cluster = _Cluster(setting, directory)
    thread = threading.Thread(target=cluster.serve, daemon=True)
    thread.start()
    cluster.wait_until_ready()
    try:
        yield cluster
    finally:
        cluster.end()
        thread.join(_READY_SECONDS)


_AT = "2026-11-24T12:00:00Z"
_REQUESTS = {"cpu": "100m", "memory": "128Mi"}


def _uid(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def _fields(manager: str, *names: str) -> Document:
    """An entry of managedFields: a third of a real object's bytes are such."""
    fields = {f"f:{name}": {"f:value": {}, "f:kind": {}, "f:name": {}} for name in names}
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


def _pod(name: str, version: int, node: str, *, scheduler: str) -> bytes:
    """With the fields that the API server, a ReplicaSet and a kubelet give a pod. `node`: ""; it waits."""
    app = f"app-{int(_uid(name)[:4], 16) % 500}"
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
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": _uid(app), "controller": True}
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": _AT}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    state = {"name": "main", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": _AT}}}
    pod: Document = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": _uid(name),
            "resourceVersion": str(version),
            "creationTimestamp": _AT,
            "labels": {"app": app, "pod-template-hash": "5d4f8c7b9"},
            "ownerReferences": [owner],
            "managedFields": [
                _fields("kube-controller-manager", "containers", "dnsPolicy", "restartPolicy", "volumes"),
                _fields("kubelet", "conditions", "containerStatuses", "hostIP", "phase", "podIP"),
            ],
        },
        "spec": {
            "schedulerName": scheduler,
            "containers": [container],
            "volumes": [{"name": "kube-api-access", "projected": {"sources": sources}}],
            "tolerations": tolerated,
            "priority": 0,
            "restartPolicy": "Always",
            "serviceAccountName": "default",
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }
    if node:
        pod["spec"]["nodeName"] = node
        pod["status"] |= {"phase": "Running", "conditions": conditions, "containerStatuses": [state]}
    return orjson.dumps(pod)
