"""`hoss bench guard`: HOSS and a real kube-scheduler fill the same nodes at the same time, first without the
binding webhook and then with it.

Each case has its own control plane (etcd, kube-apiserver, kube-scheduler with its limits lifted) and its own
platform, with the rights that deploy/ gives HOSS. The pods are all alike and together nearly fill the nodes;
every other pod names HOSS as its scheduler. No pod ends, so an overcommitted node stays overcommitted.

The JSON document:

    nodes, pods, workers
    cases[]
      guarded               whether the webhook was there
      seconds               from the creation of the first pod to the last binding
      boundByHoss, boundByKubeScheduler, unbound
      overcommittedNodes    nodes whose pods request more cpu than the node has
      denied                bindings that the webhook refused
      webhookMeanMs         how long the API server waited for the webhook, by its own metrics
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hoss.kube.api import Object
from hoss.kube.reflector import Change, ObjectSeen, Reflector
from hoss.model.quantity import read_quantity
from hoss.tasks import background
from hossctl.bench import api_server
from hossctl.cli import run_async
from hossctl.console import Document
from hossctl.endpoints import Clients
from hossctl.figures import share
from hossctl.load import report
from hossctl.load.progress import counting
from hossctl.local.binding_webhook import grant, grant_webhook, url_of
from hossctl.local.control_plane import HOSS, ControlPlane
from hossctl.local.platform import PlatformOptions
from hossctl.local.platform_state import WorkerOptions
from hossctl.local.ports import free_ports

_NODE_MILLI, _POD_MILLI = 4000, 500
_STALL_SECONDS = 60.0  # kube-scheduler backs off for up to 10 s after a refusal
_SCHEDULERS = ("hoss", "default-scheduler")


@dataclass(frozen=True, slots=True)
class GuardSetting:
    """The sizes of a measurement. `fill`: the share of the nodes' cpu that the pods request."""

    nodes: int
    workers: int
    fill: float

    @property
    def pods(self) -> int:
        """Pods of both schedulers together."""
        return int(self.nodes * (_NODE_MILLI // _POD_MILLI) * self.fill)


@dataclass(frozen=True, slots=True)
class Case:
    """The outcome with or without the webhook."""

    guarded: bool
    seconds: float
    bound: Counter[str]  # by scheduler
    unbound: int
    overcommitted: int
    denied: int
    webhook_mean_ms: float

    def as_json(self) -> Document:
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


def measure(setting: GuardSetting, *, quiet: bool) -> list[Case]:
    """Without the webhook, then with it. Raises ConfigError where there are no binaries of a control
    plane."""
    return [_measure_case(setting, guarded=guarded, quiet=quiet) for guarded in (False, True)]


def _measure_case(setting: GuardSetting, *, guarded: bool, quiet: bool) -> Case:
    (port,) = free_ports(1)
    with api_server.control_plane("hoss-guard-") as plane:
        run_async(_prepare(setting, plane, port if guarded else 0))
        options = PlatformOptions(
            workers=tuple(WorkerOptions(f"worker-{number}") for number in range(setting.workers)),
            kubeconfig=plane.hoss_kubeconfig,
            webhook_port=port if guarded else 0,
        )
        with report.platform(options) as starter:
            plane.start_scheduler()
            return report.run_on(
                starter.state, lambda clients: _fill(setting, plane, clients, guarded=guarded, quiet=quiet)
            )


async def _prepare(setting: GuardSetting, plane: ControlPlane, webhook_port: int) -> None:
    amounts = {"cpu": f"{_NODE_MILLI}m", "memory": "64Gi", "pods": "110"}
    async with api_server.opened(plane.kubeconfig) as api:
        await api_server.create_all(api, api_server.NODES, api_server.nodes(setting.nodes, amounts))
        await grant(api, HOSS)
        if webhook_port:
            await grant_webhook(api, HOSS, url_of(webhook_port), failure_policy="Fail")


async def _fill(
    setting: GuardSetting, plane: ControlPlane, clients: Clients, *, guarded: bool, quiet: bool
) -> Case:
    bound: dict[str, _Bound] = {}
    title = "with the guard" if guarded else "without it"
    async with api_server.opened(plane.kubeconfig) as api:
        reflector = Reflector(api, "/api/v1/pods", lambda changes: _note(bound, changes))
        async with background(reflector.run()):
            await api_server.until_known(clients, setting.nodes)
            with counting(title, setting.pods, quiet=quiet) as progress:
                begun = time.monotonic()
                await api_server.create_all(api, api_server.PODS, _pods(setting.pods))
                ended = await api_server.until_bound(
                    bound, setting.pods, progress, stall_seconds=_STALL_SECONDS
                )
        waits = await api_server.webhook_waits(api)
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
        webhook_mean_ms=1000 * share(waits.get("sum", 0.0), waits.get("count", 0.0)),
    )


def _pods(count: int) -> Iterator[Object]:
    requests = {"cpu": f"{_POD_MILLI}m", "memory": "16Mi"}
    for number in range(count):
        yield api_server.pod(f"p{number}", _SCHEDULERS[number % len(_SCHEDULERS)], requests)


def _note(bound: dict[str, _Bound], changes: Sequence[Change]) -> None:
    for change in changes:
        if isinstance(change, ObjectSeen) and (node := change.object["spec"].get("nodeName")):
            spec = change.object["spec"]
            milli = read_quantity(spec["containers"][0]["resources"]["requests"]["cpu"]).milli
            bound[change.object["metadata"]["uid"]] = _Bound(node, spec["schedulerName"], milli)
