"""`hoss bench kubernetes`: pods created at a real API server until all are bound, by HOSS and by a kube-scheduler, in turns.

One etcd, one kube-apiserver and one set of nodes for all turns; nobody's requests are limited, and each scheduler is a user with the
rights of its own deployment and no others. Before each turn some pods are created and
bound that do not count; after it all pods are deleted. Pods are alike: 100m of cpu and 500Mi, on nodes of 4 cpu, 32Gi and 110 pods, as
in the basic case of kube-scheduler's own benchmark (scheduler_perf).

The JSON document:

    nodes, initialPods, pods, workers, resolvers
    turns[]
      scheduler               "hoss", "kube-scheduler", or "bare client": no scheduler at all, this process binds what it creates
      seconds                 from the first pod's creation until a watch has shown the last on its node
      podsPerSecond, unbound
      millisPerPod            CPU milliseconds a pod: scheduler (of HOSS all processes with its Redis), kubeApiserver, etcd, client (this
                              process, which creates the pods and watches)
      millisPerPodByService   of the scheduler's, where that is HOSS: dispatcher, resolvers, workers, redis
      writesPerPod            requests to the API server that change something, beside the pods' creation: bindings, events, others
    podsPerSecond             medians: hoss, and kubeScheduler and bareClient if there were such
    ratio                     of hoss and kubeScheduler, or null
    ofCeiling                 the share of the bare client's rate that is reached: hoss, kubeScheduler
"""

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hoss import rpc, telemetry
from hoss.kube.access import load_access
from hoss.kube.api import KubeApi
from hoss.kube.reflector import Change, Reflector, Seen
from hossctl.bench import kube_ground as ground
from hossctl.bench import processes
from hossctl.choices import Peer
from hossctl.console import Document
from hossctl.endpoints import clients_of, of_state
from hossctl.eventloop import run_async
from hossctl.figures import median, per_second, share
from hossctl.kube_binaries import find_binaries
from hossctl.kube_control_plane import HOSS, ControlPlane
from hossctl.kube_rights import grant
from hossctl.platform import PlatformOptions, WorkerOptions, temporary
from hossctl.process import ProcessRecord
from hossctl.progress import counting
from resolver.core.binding import body_of

_NODE = {"cpu": "4", "memory": "32Gi", "pods": "110"}
_POD = {"cpu": "100m", "memory": "500Mi"}
_PODS = "/api/v1/namespaces/default/pods"
_ON_NODES = {"fieldSelector": "spec.nodeName!="}
_STALL_SECONDS = 60.0
_DELETING_SECONDS = 300.0


BARE_CLIENT = "bare client"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured."""

    nodes: int
    initial_pods: int
    pods: int
    workers: int
    resolvers: int
    peer: Peer
    repeat: int = 1
    ceiling: bool = False  # turns of the bare client, too


@dataclass(frozen=True, slots=True)
class Turn:
    """One scheduler, once."""

    scheduler: str
    pods: int
    unbound: int
    seconds: float
    cpu_seconds: dict[str, float]  # by who used them, as in `millisPerPod`
    by_service: dict[str, float]  # the scheduler's, as processes are named
    writes: Counter[ground.Write]

    @property
    def pods_per_second(self) -> float:
        """Of those that were bound."""
        return per_second(self.pods - self.unbound, self.seconds)

    def as_json(self) -> Document:
        """See the module's docstring."""
        bindings = self.writes[ground.Write("POST", "pods/binding")]
        events = sum(count for write, count in self.writes.items() if write.resource == "events")
        others = self.writes.total() - bindings - events - self.writes[ground.Write("POST", "pods")]
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


def measure(setting: Setting, *, quiet: bool) -> list[Turn]:
    """All turns; who begins changes from one repetition to the next. Raises ConfigError where there is no control plane to start."""
    find_binaries()
    telemetry.configure("bench", level="error")  # an API server that has just begun cuts the first watches off
    with tempfile.TemporaryDirectory(prefix="hoss-kubernetes-") as directory:
        plane = ControlPlane.start(Path(directory))
        try:
            run_async(_prepare(plane, setting.nodes))
            return [_turn(setting, plane, scheduler, quiet=quiet) for scheduler in order(setting)]
        finally:
            plane.stop()


def order(setting: Setting) -> list[str]:
    """Whose turn it is, one after the other."""
    pair = ("hoss",) if setting.peer is Peer.NOBODY else (setting.peer.value, "hoss")
    pair = (BARE_CLIENT, *pair) if setting.ceiling else pair
    return [*itertools.chain(*(pair[:: 1 if number % 2 == 0 else -1] for number in range(setting.repeat)))]


def summary(setting: Setting, turns: Sequence[Turn]) -> Document:
    """The JSON document."""
    rates = {
        name: median([turn.pods_per_second for turn in turns if turn.scheduler == name]) for name in order(setting)
    }
    peer, ceiling = rates.get(Peer.KUBE_SCHEDULER.value), rates.get(BARE_CLIENT)
    reached = {"hoss": rates["hoss"], **({} if peer is None else {"kubeScheduler": peer})}
    return {
        "nodes": setting.nodes,
        "initialPods": setting.initial_pods,
        "pods": setting.pods,
        "workers": setting.workers,
        "resolvers": setting.resolvers,
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


async def _prepare(plane: ControlPlane, count: int) -> None:
    async with _client(plane) as api:
        await grant(api, HOSS)
        await ground.create_all(api, "/api/v1/nodes", ground.nodes(count, _NODE))


def _turn(setting: Setting, plane: ControlPlane, scheduler: str, *, quiet: bool) -> Turn:
    starting = {"hoss": lambda: _hoss(setting, plane), BARE_CLIENT: _nobody}.get(
        scheduler, lambda: _kube_scheduler(plane)
    )
    with starting() as (records, name):
        turn = run_async(_bind_all(setting, plane, scheduler, name, records, quiet=quiet))
    run_async(_delete_pods(plane))
    return turn


@contextlib.contextmanager
def _hoss(setting: Setting, plane: ControlPlane) -> Iterator[tuple[tuple[ProcessRecord, ...], str]]:
    options = PlatformOptions(
        workers=tuple(WorkerOptions(f"worker-{number}") for number in range(setting.workers)),
        resolvers=setting.resolvers,
        kubeconfig=plane.hoss_kubeconfig,
    )
    with temporary(options) as starter:

        async def until_known() -> None:
            async with clients_of(of_state(starter.state)) as clients:
                await ground.until_known(clients, setting.nodes)

        run_async(until_known())
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
    setting: Setting, plane: ControlPlane, scheduler: str, name: str, records: Sequence[ProcessRecord], *, quiet: bool
) -> Turn:
    bound: set[str] = set()

    def note(changes: Sequence[Change]) -> None:
        bound.update(change.object["metadata"]["uid"] for change in changes if isinstance(change, Seen))

    async with _client(plane) as api, rpc.background(Reflector(api, "/api/v1/pods", note, params=_ON_NODES).run()):
        creating = _creating_and_binding(setting.nodes) if scheduler == BARE_CLIENT else _creating
        await _bind(bound, creating(api, name, range(setting.initial_pods)), setting.initial_pods, lambda _: None)
        meter = _Meter(plane, records)
        writes = await ground.writes(api)
        with counting(scheduler, setting.pods, quiet=quiet) as progress:
            numbers = range(setting.initial_pods, setting.initial_pods + setting.pods)
            seconds = await _bind(bound, creating(api, name, numbers), numbers.stop, progress)
        return Turn(
            scheduler,
            setting.pods,
            numbers.stop - len(bound),
            seconds,
            *meter.used(),
            await ground.writes(api) - writes,
        )


async def _bind(bound: set[str], creating: Awaitable[None], total: int, progress: Callable[[int], None]) -> float:
    """Seconds until all were created, and so many in all are bound."""
    begun = time.monotonic()
    await creating
    return await ground.until_bound(bound, total, progress, stall_seconds=_STALL_SECONDS) - begun


async def _creating(api: KubeApi, scheduler: str, numbers: range) -> None:
    await ground.create_all(api, _PODS, (ground.pod(f"p{number}", scheduler, _POD) for number in numbers))


def _creating_and_binding(nodes: int) -> Callable[[KubeApi, str, range], Awaitable[None]]:
    """What the API server does at best: each pod is bound as soon as it is there, to the next node."""

    async def create(api: KubeApi, scheduler: str, numbers: range) -> None:
        waiting = iter(numbers)

        async def some() -> None:
            for number in waiting:
                pod = ground.pod(f"p{number}", scheduler, _POD)
                uid = (await ground.create(api, _PODS, pod))["metadata"]["uid"]
                wish = body_of(f"default/p{number}", uid, f"n{number % nodes}")
                await ground.create(api, f"{_PODS}/p{number}/binding", wish)

        await asyncio.gather(*(some() for _ in range(ground.CREATING)))

    return create


class _Meter:
    """CPU seconds from now on."""

    def __init__(self, plane: ControlPlane, scheduler: Sequence[ProcessRecord]) -> None:
        self._records = {
            "scheduler": scheduler,
            "kubeApiserver": (plane.record("kube-apiserver"),),
            "etcd": (plane.record("etcd"),),
        }
        self._before, self._client_before = self._read(), time.process_time()

    def used(self) -> tuple[dict[str, float], dict[str, float]]:
        """By everybody, and by the scheduler's services."""
        after = self._read()
        services = {who: processes.by_service(self._before[who], read) for who, read in after.items()}
        used = {who: sum(seconds.values()) for who, seconds in services.items()}
        return {**used, "client": time.process_time() - self._client_before}, services["scheduler"]

    def _read(self) -> dict[str, dict[str, float]]:
        return {who: processes.cpu_seconds(records) for who, records in self._records.items()}


async def _delete_pods(plane: ControlPlane) -> None:
    async with _client(plane) as api:
        params = {"gracePeriodSeconds": "0"}
        while (await api.get(_PODS, {"limit": "1"}))["items"]:
            await api.ask("DELETE", _PODS, params=params, timeout_seconds=_DELETING_SECONDS)


@contextlib.asynccontextmanager
async def _client(plane: ControlPlane) -> AsyncIterator[KubeApi]:
    api = KubeApi(load_access(plane.kubeconfig))
    try:
        yield api
    finally:
        await api.close()
