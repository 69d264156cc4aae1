"""`hoss bench kubernetes`: pods created at a real API server until all are bound, by HOSS and by a
kube-scheduler in turns.

All turns share one etcd, one kube-apiserver and one set of nodes. No client has a request limit, and each
scheduler is a user with the rights of its own deployment and no others. Before each turn some pods are
created and bound that do not count; after it all pods are deleted. Pods are alike: 100m of cpu and 500Mi, on
nodes of 4 cpu, 32Gi and 110 pods, as in the basic case of kube-scheduler's own benchmark (scheduler_perf).
Each may claim a volume that waits for it, or a device (kubernetes_claims.py).

The JSON document:

    nodes, initialPods, pods, workers, resolvers
    claim                     what each pod claims: nothing, volume or device
    turns[]
      scheduler               "hoss", "kube-scheduler", or "bare client": this process binds what it creates
      seconds                 from the creation of the first pod until a watch shows the last pod on its node
      podsPerSecond, unbound
      millisPerPod            CPU milliseconds a pod: scheduler (of HOSS all processes with its Redis),
                              kubeApiserver, etcd, client (this process, which creates the pods and watches)
      millisPerPodByService   of the scheduler's, where that is HOSS: dispatcher, resolvers, workers, redis
      writesPerPod            writing requests, besides the pods' creation: bindings, events, others
    podsPerSecond             medians: hoss, and kubeScheduler and bareClient if they had turns
    ratio                     of hoss and kubeScheduler, or null
    ofCeiling                 share of the bare client's rate: hoss, kubeScheduler
"""

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from hoss.kube.api import KubeApi
from hoss.kube.reflector import Change, ObjectSeen, Reflector
from hoss.tasks import background
from hossctl.bench import api_server, kubernetes_claims, processes
from hossctl.choices import Claim, Peer
from hossctl.cli import run_async
from hossctl.console import Document
from hossctl.figures import camel, median, per_second, share
from hossctl.load import report
from hossctl.load.progress import counting
from hossctl.local.binding_webhook import grant
from hossctl.local.control_plane import HOSS, ControlPlane
from hossctl.local.platform import PlatformOptions
from hossctl.local.platform_state import WorkerOptions
from hossctl.local.process import ProcessRecord
from resolver.core.kubernetes.binding_review import binding_of

_STALL_SECONDS = 60.0
_DELETING_SECONDS = 300.0
BARE_CLIENT = "bare client"


@dataclass(frozen=True, slots=True)
class KubernetesSetting:
    """What is measured: `pods` are bound on `nodes` that hold `initial_pods`, `repeat` times by each
    scheduler."""

    nodes: int
    initial_pods: int
    pods: int
    workers: int
    resolvers: int
    peer: Peer
    repeat: int = 1
    ceiling: bool = False  # also turns of the bare client
    claim: Claim = Claim.NOTHING


@dataclass(frozen=True, slots=True)
class Turn:
    """One scheduler, measured once."""

    scheduler: str
    pods: int
    unbound: int
    seconds: float
    cpu_seconds: dict[str, float]  # by user, as in `millisPerPod`
    by_service: dict[str, float]  # of the scheduler
    writes: Counter[api_server.Write]

    @property
    def pods_per_second(self) -> float:
        return per_second(self.pods - self.unbound, self.seconds)

    def as_json(self) -> Document:
        bindings = self.writes[api_server.Write("POST", "pods/binding")]
        events = sum(count for write, count in self.writes.items() if write.resource == "events")
        others = self.writes.total() - bindings - events - self.writes[api_server.Write("POST", "pods")]
        return {
            "scheduler": self.scheduler,
            "seconds": round(self.seconds, 2),
            "podsPerSecond": round(self.pods_per_second, 1),
            "unbound": self.unbound,
            "millisPerPod": self._millis(self.cpu_seconds),
            **({"millisPerPodByService": self._millis(self.by_service)} if self.scheduler == "hoss" else {}),
            "writesPerPod": {
                name: round(share(count, self.pods), 3)
                for name, count in (("bindings", bindings), ("events", events), ("others", others))
            },
        }

    def _millis(self, seconds: dict[str, float]) -> dict[str, float]:
        return {who: round(1000 * share(used, self.pods), 3) for who, used in seconds.items()}


def measure(setting: KubernetesSetting, *, quiet: bool) -> list[Turn]:
    """All turns. The order of the schedulers is reversed with each repetition. Raises ConfigError where there
    are no binaries of a control plane."""
    with api_server.control_plane("hoss-kubernetes-") as plane:
        run_async(_prepare(plane, setting))
        return [_turn(setting, plane, scheduler, quiet=quiet) for scheduler in order(setting)]


def order(setting: KubernetesSetting) -> list[str]:
    """The scheduler of each turn."""
    pair = ("hoss",) if setting.peer is Peer.NOBODY else (setting.peer.value, "hoss")
    pair = (BARE_CLIENT, *pair) if setting.ceiling else pair
    return [*itertools.chain(*(pair[:: 1 if number % 2 == 0 else -1] for number in range(setting.repeat)))]


def summary(setting: KubernetesSetting, turns: Sequence[Turn]) -> Document:
    rates = {
        name: median([turn.pods_per_second for turn in turns if turn.scheduler == name])
        for name in order(setting)
    }
    peer, ceiling = rates.get(Peer.KUBE_SCHEDULER.value), rates.get(BARE_CLIENT)
    reached = {"hoss": rates["hoss"], **({} if peer is None else {"kubeScheduler": peer})}
    return {
        **camel(setting, "nodes", "initial_pods", "pods", "workers", "resolvers"),
        "claim": setting.claim.value,
        "turns": [turn.as_json() for turn in turns],
        "podsPerSecond": {
            **{name: round(rate, 1) for name, rate in reached.items()},
            **({} if ceiling is None else {"bareClient": round(ceiling, 1)}),
        },
        "ratio": None if peer is None else round(share(rates["hoss"], peer), 2),
        **(
            {}
            if ceiling is None
            else {"ofCeiling": {name: round(share(rate, ceiling), 2) for name, rate in reached.items()}}
        ),
    }


async def _prepare(plane: ControlPlane, setting: KubernetesSetting) -> None:
    async with api_server.opened(plane.kubeconfig) as api:
        await grant(api, HOSS)
        nodes = api_server.nodes(setting.nodes, api_server.NODE_AMOUNTS)
        await api_server.create_all(api, api_server.NODES, nodes)
        pods = setting.initial_pods + setting.pods
        await kubernetes_claims.prepare(api, setting.claim, nodes=setting.nodes, pods=pods)


def _turn(setting: KubernetesSetting, plane: ControlPlane, scheduler: str, *, quiet: bool) -> Turn:
    starting = {"hoss": lambda: _hoss(setting, plane), BARE_CLIENT: _nobody}.get(
        scheduler, lambda: _kube_scheduler(plane)
    )
    run_async(_create_claims(setting, plane))
    with starting() as (records, name):
        turn = run_async(_bind_all(setting, plane, scheduler, name, records, quiet=quiet))
    run_async(_delete_pods(plane, setting.claim))
    return turn


@contextlib.contextmanager
def _hoss(setting: KubernetesSetting, plane: ControlPlane) -> Iterator[tuple[tuple[ProcessRecord, ...], str]]:
    options = PlatformOptions(
        workers=tuple(WorkerOptions(f"worker-{number}") for number in range(setting.workers)),
        resolvers=setting.resolvers,
        kubeconfig=plane.hoss_kubeconfig,
    )
    with report.platform(options) as starter:
        report.run_on(starter.state, lambda clients: api_server.until_known(clients, setting.nodes))
        yield starter.state.processes, "hoss"


@contextlib.contextmanager
def _kube_scheduler(plane: ControlPlane) -> Iterator[tuple[tuple[ProcessRecord, ...], str]]:
    plane.start_scheduler()
    try:
        yield (plane.record("kube-scheduler"),), "default-scheduler"
    finally:
        plane.kill("kube-scheduler")


@contextlib.contextmanager
def _nobody() -> Iterator[tuple[tuple[ProcessRecord, ...], str]]:
    yield (), BARE_CLIENT.replace(" ", "-")


async def _bind_all(
    setting: KubernetesSetting,
    plane: ControlPlane,
    scheduler: str,
    name: str,
    records: Sequence[ProcessRecord],
    *,
    quiet: bool,
) -> Turn:
    bound: set[str] = set()

    def note(changes: Sequence[Change]) -> None:
        bound.update(change.object["metadata"]["uid"] for change in changes if isinstance(change, ObjectSeen))

    async with (
        api_server.opened(plane.kubeconfig) as api,
        background(Reflector(api, "/api/v1/pods", note, params=api_server.ON_NODES).run()),
        kubernetes_claims.provisioning(api, setting.claim),
    ):
        creating = _creating_and_binding(setting) if scheduler == BARE_CLIENT else _creating(setting.claim)
        await _bind(
            bound, creating(api, name, range(setting.initial_pods)), setting.initial_pods, lambda _: None
        )
        meter = _Meter(plane, records)
        writes = await api_server.writes(api)
        with counting(scheduler, setting.pods, quiet=quiet) as progress:
            numbers = range(setting.initial_pods, setting.initial_pods + setting.pods)
            seconds = await _bind(bound, creating(api, name, numbers), numbers.stop, progress)
        return Turn(
            scheduler,
            setting.pods,
            numbers.stop - len(bound),
            seconds,
            *meter.used(),
            await api_server.writes(api) - writes,
        )


async def _bind(
    bound: set[str], creating: Awaitable[None], total: int, progress: Callable[[int], None]
) -> float:
    """Seconds until the pods of `creating` exist and `total` pods are bound."""
    begun = time.monotonic()
    await creating
    return await api_server.until_bound(bound, total, progress, stall_seconds=_STALL_SECONDS) - begun


def _creating(claim: Claim) -> Callable[[KubeApi, str, range], Awaitable[None]]:
    """Creates pods."""

    async def create(api: KubeApi, scheduler: str, numbers: range) -> None:
        pods = (kubernetes_claims.pod(number, scheduler, claim) for number in numbers)
        await api_server.create_all(api, api_server.PODS, pods)

    return create


def _creating_and_binding(
    setting: KubernetesSetting,
) -> Callable[[KubeApi, str, range], Awaitable[None]]:
    """The most that the API server can do: each pod is bound to the next node as soon as it exists."""

    async def create(api: KubeApi, scheduler: str, numbers: range) -> None:
        remaining = iter(numbers)

        async def some() -> None:
            for number in remaining:
                pod = kubernetes_claims.pod(number, scheduler, setting.claim)
                uid = (await api_server.create(api, api_server.PODS, pod))["metadata"]["uid"]
                binding = binding_of(f"default/p{number}", uid, f"n{number % setting.nodes}")
                await api_server.create(api, f"{api_server.PODS}/p{number}/binding", binding)

        await asyncio.gather(*(some() for _ in range(api_server.CREATING)))

    return create


class _Meter:
    """CPU seconds from its creation on."""

    def __init__(self, plane: ControlPlane, scheduler: Sequence[ProcessRecord]) -> None:
        self._records = {
            "scheduler": scheduler,
            "kubeApiserver": (plane.record("kube-apiserver"),),
            "etcd": (plane.record("etcd"),),
        }
        self._before, self._client_before = self._read(), time.process_time()

    def used(self) -> tuple[dict[str, float], dict[str, float]]:
        """CPU seconds by user as in `millisPerPod`, and by service of the scheduler."""
        after = self._read()
        services = {who: processes.by_service(self._before[who], read) for who, read in after.items()}
        used = {who: sum(seconds.values()) for who, seconds in services.items()}
        return {**used, "client": time.process_time() - self._client_before}, services["scheduler"]

    def _read(self) -> dict[str, dict[str, float]]:
        return {who: processes.cpu_seconds(records) for who, records in self._records.items()}


async def _create_claims(setting: KubernetesSetting, plane: ControlPlane) -> None:
    async with api_server.opened(plane.kubeconfig) as api:
        await kubernetes_claims.create(api, setting.claim, setting.initial_pods + setting.pods)


async def _delete_pods(plane: ControlPlane, claim: Claim) -> None:
    async with api_server.opened(plane.kubeconfig) as api:
        params = {"gracePeriodSeconds": "0"}
        while (await api.get(api_server.PODS, {"limit": "1"}))["items"]:
            await api.ask("DELETE", api_server.PODS, params=params, timeout_seconds=_DELETING_SECONDS)
        await kubernetes_claims.delete(api, claim)
