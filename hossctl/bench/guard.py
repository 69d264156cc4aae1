"""`hoss bench guard`: HOSS and a real kube-scheduler fill the same nodes at once, without the guard and with it.

Each case has a control plane of its own (etcd, kube-apiserver, kube-scheduler with its limits lifted) and a platform of its own, with
the rights that deploy/ gives HOSS.
The pods are all alike and together nearly fill the nodes; every other one names HOSS. Nobody ends: what is overcommitted stays so.

The JSON document:

    nodes, pods, workers
    cases[]
      guarded               whether the webhook was there
      seconds               from the first pod's creation until the last was bound, or nothing happened any more
      boundByHoss, boundByKubeScheduler, unbound
      overcommittedNodes    nodes whose pods ask for more cpu than they have
      denied                bindings that the guard has refused
      webhookMeanMs         that the API server waited for the guard, by its own metrics
"""

import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hoss import rpc, telemetry
from hoss.kube.api import KubeApi, Object
from hoss.kube.reflector import Change, Reflector, Seen
from hoss.model.quantity import read_quantity
from hossctl.bench import kube_ground as ground
from hossctl.console import Document
from hossctl.endpoints import Clients, clients_of, of_state
from hossctl.eventloop import run_async
from hossctl.kube_binaries import find_binaries
from hossctl.kube_control_plane import HOSS, ControlPlane
from hossctl.kube_guard import url_of
from hossctl.kube_rights import grant, grant_guard
from hossctl.platform import PlatformOptions, WorkerOptions, temporary
from hossctl.ports import free_ports
from hossctl.progress import counting

_NODE_MILLI, _POD_MILLI = 4000, 500
_STALL_SECONDS = 60.0  # kube-scheduler rests a pod that was refused for up to 10 s
_SCHEDULERS = ("hoss", "default-scheduler")
_WAITED = re.compile(
    r'apiserver_admission_webhook_admission_duration_seconds_(sum|count)\{name="bindings\.hoss\.dev"[^}]*\} (\S+)'
)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured. `fill`: the share of the nodes' cpu that the pods ask for."""

    nodes: int
    workers: int
    fill: float

    @property
    def pods(self) -> int:
        """How many there are, of both schedulers."""
        return int(self.nodes * (_NODE_MILLI // _POD_MILLI) * self.fill)


@dataclass(frozen=True, slots=True)
class Case:
    """One turn."""

    guarded: bool
    seconds: float
    bound: Counter[str]  # by scheduler
    unbound: int
    overcommitted: int
    denied: int
    webhook_mean_ms: float

    def as_json(self) -> Document:
        """See the module's docstring."""
        return {
            "guarded": self.guarded,
            "seconds": round(self.seconds, 2),
            "boundByHoss": self.bound["hoss"],
            "boundByKubeScheduler": self.bound["default-scheduler"],
            "unbound": self.unbound,
            "overcommittedNodes": self.overcommitted,
            "denied": self.denied,
            "webhookMeanMs": round(self.webhook_mean_ms, 2),
        }


class _Bound(NamedTuple):
    node: str
    scheduler: str
    milli: int


def measure(setting: Setting, *, quiet: bool) -> list[Case]:
    """Without the guard, then with it. Raises ConfigError where there is no control plane to start."""
    find_binaries()
    telemetry.configure("bench", level="error")  # an API server that has just begun cuts the first watches off
    return [_measure_case(setting, guarded=guarded, quiet=quiet) for guarded in (False, True)]


def _measure_case(setting: Setting, *, guarded: bool, quiet: bool) -> Case:
    with tempfile.TemporaryDirectory(prefix="hoss-guard-") as directory:
        plane = ControlPlane.start(Path(directory))
        try:
            return _on_control_plane(setting, plane, guarded=guarded, quiet=quiet)
        finally:
            plane.stop()


def _on_control_plane(setting: Setting, plane: ControlPlane, *, guarded: bool, quiet: bool) -> Case:
    (port,) = free_ports(1)
    run_async(_prepare(setting, plane, port if guarded else 0))
    options = PlatformOptions(
        workers=tuple(WorkerOptions(f"worker-{number}") for number in range(setting.workers)),
        kubeconfig=plane.hoss_kubeconfig,
        webhook_port=port if guarded else 0,
    )
    with temporary(options) as starter:
        plane.start_scheduler()

        async def run() -> Case:
            async with clients_of(of_state(starter.state)) as clients:
                return await _fill(setting, plane, clients, guarded=guarded, quiet=quiet)

        return run_async(run())


async def _prepare(setting: Setting, plane: ControlPlane, webhook_port: int) -> None:
    amounts = {"cpu": f"{_NODE_MILLI}m", "memory": "64Gi", "pods": "110"}
    async with ground.opened(plane.kubeconfig) as api:
        await ground.create_all(api, "/api/v1/nodes", ground.nodes(setting.nodes, amounts))
        await grant(api, HOSS)
        if webhook_port:
            await grant_guard(api, HOSS, url_of(webhook_port), failure_policy="Fail")


async def _fill(setting: Setting, plane: ControlPlane, clients: Clients, *, guarded: bool, quiet: bool) -> Case:
    bound: dict[str, _Bound] = {}
    title = "with the guard" if guarded else "without it"
    async with ground.opened(plane.kubeconfig) as api:
        reflector = Reflector(api, "/api/v1/pods", lambda changes: _note(bound, changes))
        async with rpc.background(reflector.run()):
            await ground.until_known(clients, setting.nodes)
            with counting(title, setting.pods, quiet=quiet) as progress:
                begun = time.monotonic()
                await ground.create_all(api, "/api/v1/namespaces/default/pods", _pods(setting.pods))
                ended = await ground.until_bound(bound, setting.pods, progress, stall_seconds=_STALL_SECONDS)
        webhook_mean_ms = await _webhook_mean_ms(api)
    used: Counter[str] = Counter()
    for pod in bound.values():
        used[pod.node] += pod.milli
    counters = (await clients.resolver.status()).counters
    return Case(
        guarded=guarded,
        seconds=ended - begun,
        bound=Counter(pod.scheduler for pod in bound.values()),
        unbound=setting.pods - len(bound),
        overcommitted=sum(milli > _NODE_MILLI for milli in used.values()),
        denied=counters.get("guard_conflict_resource", 0),
        webhook_mean_ms=webhook_mean_ms,
    )


def _pods(count: int) -> Iterator[Object]:
    requests = {"cpu": f"{_POD_MILLI}m", "memory": "16Mi"}
    for number in range(count):
        yield ground.pod(f"p{number}", _SCHEDULERS[number % len(_SCHEDULERS)], requests)


def _note(bound: dict[str, _Bound], changes: Sequence[Change]) -> None:
    for change in changes:
        if isinstance(change, Seen) and (node := change.object["spec"].get("nodeName")):
            spec = change.object["spec"]
            milli = read_quantity(spec["containers"][0]["resources"]["requests"]["cpu"]).milli
            bound[change.object["metadata"]["uid"]] = _Bound(node, spec["schedulerName"], milli)


async def _webhook_mean_ms(api: KubeApi) -> float:
    text = (await api.ask("GET", "/metrics")).body.decode()
    told = {"sum": 0.0, "count": 0.0}
    for name, value in _WAITED.findall(text):
        told[name] += float(value)
    return 1000 * told["sum"] / told["count"] if told["count"] else 0.0
