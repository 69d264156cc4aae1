"""Runs one cell on a control plane made for it: the load's nodes and pods are objects of a real API server,
and kube-scheduler or HOSS in Kubernetes mode binds the pods.

A client creates the pods one by one, several at a time, while they are being scheduled. A pod's time goes
from the request that creates it until a watch has shown it on its node, for both schedulers. No client has a
request limit, and each scheduler is a user with the rights of its own deployment. The CPU cost of a pod is
that of the schedulers' processes, kube-apiserver and etcd, without the client, as in every comparison."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hoss.errors import HossError
from hoss.kube.api import KubeApi, Object
from hoss.kube.reflector import Change, ObjectSeen, Reflector
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.model.resources import MAX_CARDS
from hoss.tasks import background
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.convert import template_from_proto
from hossctl import auditing
from hossctl.bench import api_server, processes
from hossctl.choices import Mode
from hossctl.cli import run_async
from hossctl.compare import figures
from hossctl.compare.cells import Plan
from hossctl.compare.document import Cell, ComparisonRun, Latency, ServiceFigures, WorkerFigures
from hossctl.compare.figures import NO_CARD, Pool
from hossctl.compare.loads import make_trace
from hossctl.compare.modes import CoordinationMode
from hossctl.compare.running import (
    HEARTBEAT_SECONDS,
    Stop,
    platform_of,
    services_since,
    utc_now,
    violations_of,
    workers_of,
)
from hossctl.compare.schedulers import find_scheduler
from hossctl.endpoints import Clients, clients_of, of_state
from hossctl.figures import per_second
from hossctl.load import report
from hossctl.load.playing import Trace, templates_by_row
from hossctl.local.binding_webhook import grant
from hossctl.local.control_plane import HOSS, ControlPlane
from hossctl.local.platform_state import PlatformState
from hossctl.local.process import ProcessRecord
from tools.peers.objects import node_object, pod_object

_ON_NONE: Final = {"fieldSelector": "spec.nodeName="}
_SCHEDULER_NAMES: Final[Mapping[str, str]] = {
    Mode.KUBE_SCHEDULER.value: "default-scheduler",
    Mode.KUBE_HOSS.value: "hoss",
}

# After so long without a binding the client checks whether all remaining pods are unschedulable.
_QUIET_SECONDS = 2.0
_STALL_SECONDS = 90.0  # kube-scheduler backs off for up to 10 s before it tries a pod again


def measure_on_kubernetes(cell: Cell, repetition: int, plan: Plan, stop: Stop) -> ComparisonRun:
    """One run on a new control plane. It is incomplete where `stop` ended it. Raises ConfigError where there
    are no binaries."""
    seed, started = plan.seed + repetition, utc_now()
    trace = make_trace(cell, seed)
    with api_server.control_plane("hoss-compare-") as plane:
        run_async(_prepare(plane, trace.nodes))
        with _scheduling(cell, plane, seed=seed, plan=plan, nodes=len(trace.nodes)) as hoss:
            stop.install()  # the start has changed the handlers, and nothing shall cut the end short
            seen = run_async(_observed(cell, trace, plane, hoss, stop))
    return _run_of(seen, cell, repetition=repetition, seed=seed, started=started)


class KubernetesPods:
    """The pods of a load, by row; pod p7 is row 7. Times are readings of time.perf_counter, 0.0: not yet."""

    def __init__(
        self, nodes: Sequence[NodeSpec], specs: Sequence[PodSpec], spec_of: NDArray[np.int64]
    ) -> None:
        self.nodes, self.specs, self.spec_of = nodes, specs, spec_of
        self.created_at = np.zeros(len(spec_of))
        self.bound_at = np.zeros(len(spec_of))
        self.node_of = np.full(len(spec_of), -1, np.int64)
        self.bound = 0
        self.unschedulable: list[int] = []  # rows, as of the end
        self._numbers = {node.name: number for number, node in enumerate(nodes)}

    def objects(self, scheduler: str, stop: asyncio.Event) -> Iterator[Object]:
        """The pods' objects, until `stop`. Taking an object from the iterator records its creation time."""
        for row, spec in enumerate(self.spec_of.tolist()):
            if stop.is_set():
                return
            body = pod_object(f"p{row}", self.specs[spec], scheduler)
            self.created_at[row] = time.perf_counter()
            yield body

    def record(self, changes: Sequence[Change]) -> None:
        """Record pods that are on a node. A handler of a reflector."""
        now = time.perf_counter()
        for change in changes:
            if isinstance(change, ObjectSeen):
                row = _row_of(change.object)
                if not self.bound_at[row]:
                    self.bound_at[row], self.bound = now, self.bound + 1
                    self.node_of[row] = self._numbers[change.object["spec"]["nodeName"]]

    def latencies(self) -> NDArray[np.float64]:
        """Seconds from created to seen on its node, of each bound pod."""
        done = self.bound_at > 0
        return self.bound_at[done] - self.created_at[done]

    @property
    def seconds(self) -> float:
        """From the creation of the first pod to the last binding."""
        return float(self.bound_at.max() - self.created_at[0]) if self.bound else 0.0

    @property
    def pool(self) -> Pool:
        """The nodes with the bound pods."""
        nodes = self.nodes
        names = sorted({name for node in nodes for name, _ in node.allocatable})
        allocatable = np.array(
            [[dict(node.allocatable).get(name, 0) for node in nodes] for name in names], np.int64
        )
        # The loads that run here request no cards.
        cards = np.full((len(nodes), MAX_CARDS), NO_CARD, np.int64)
        pool = Pool(tuple(nodes), tuple(names), allocatable, np.zeros_like(allocatable), cards)
        bound = self.node_of >= 0
        if bound.any():
            requests = np.stack([pool.request_of(spec) for spec in self.specs])
            np.add.at(pool.requested.T, self.node_of[bound], requests[self.spec_of[bound]])
        return pool


@dataclass(frozen=True, slots=True, eq=False)
class _HossFigures:
    """What HOSS reports of itself."""

    workers: list[pb.WorkerInfo]
    status: pb.DispatcherStatus
    refused: int
    violations: list[str]


@dataclass(frozen=True, slots=True, eq=False)
class _Observed:
    complete: bool
    pods: KubernetesPods
    services: dict[str, ServiceFigures]
    hoss: _HossFigures | None


async def _prepare(plane: ControlPlane, nodes: Sequence[NodeSpec]) -> None:
    async with api_server.opened(plane.kubeconfig) as api:
        await grant(api, HOSS)
        await api_server.create_all(api, api_server.NODES, map(node_object, nodes))


@contextlib.contextmanager
def _scheduling(
    cell: Cell, plane: ControlPlane, *, seed: int, plan: Plan, nodes: int
) -> Iterator[PlatformState | None]:
    """The cell's schedulers, ready, for the length of the block: HOSS's platform, or None with
    kube-scheduler."""
    if cell.mode == Mode.KUBE_SCHEDULER:
        plane.start_scheduler()
        yield None
        return
    options = platform_of(
        cell,
        CoordinationMode(),
        find_scheduler(cell.scheduler),
        seed=seed,
        redis_url=plan.redis_url,
        directory=plane.directory,
    )
    with report.platform(replace(options, kubeconfig=plane.hoss_kubeconfig)) as starter:
        report.run_on(starter.state, lambda clients: _until_known(clients, nodes, cell.workers))
        yield starter.state


async def _until_known(clients: Clients, nodes: int, workers: int) -> None:
    await api_server.until_known(clients, nodes)
    if not await auditing.until_caches_agree(clients.dispatcher, clients.resolver, workers):
        raise HossError(f"{workers} workers with filled caches were expected within 120 s")


async def _observed(
    cell: Cell, trace: Trace, plane: ControlPlane, hoss: PlatformState | None, stop: Stop
) -> _Observed:
    ended, records = stop.event(), _records(plane, hoss)
    templates, spec_of = templates_by_row(trace)
    pods = KubernetesPods(
        trace.nodes, [template_from_proto(template).spec for template in templates], spec_of
    )
    async with api_server.opened(plane.kubeconfig) as api:
        following = Reflector(api, api_server.PODS, pods.record, params=api_server.ON_NODES)
        async with background(following.run()):
            await following.complete.wait()
            before = processes.cpu_seconds(records)
            await play(api, pods, _SCHEDULER_NAMES[cell.mode], ended)
    services = services_since(before, records)
    if hoss is None:
        return _Observed(not ended.is_set(), pods, services, None)
    async with clients_of(of_state(hoss)) as clients:
        return _Observed(not ended.is_set(), pods, services, await _hoss_figures(clients, ended))


async def play(api: KubeApi, pods: KubernetesPods, scheduler: str, ended: asyncio.Event) -> None:
    """Create all pods, and return when each is bound or unschedulable, or once `ended` is set. Raises
    HossError when nothing changes for 90 s, and what creating raises."""
    creating = asyncio.ensure_future(
        api_server.create_all(api, api_server.PODS, pods.objects(scheduler, ended))
    )
    bound, changed = -1, time.monotonic()
    try:
        while not ended.is_set():
            if creating.done():
                creating.result()
                if pods.bound == len(pods.spec_of):
                    return
            if pods.bound != bound:
                bound, changed = pods.bound, time.monotonic()
            quiet_seconds = time.monotonic() - changed
            if creating.done() and quiet_seconds > _QUIET_SECONDS:
                pods.unschedulable = await _unschedulable(api)
                if pods.bound + len(pods.unschedulable) == len(pods.spec_of):
                    return
            if quiet_seconds > _STALL_SECONDS:
                problem = (
                    f"nothing was bound for {_STALL_SECONDS:.0f} s; {bound} of {len(pods.spec_of)} pods are"
                )
                raise HossError(problem)
            await asyncio.sleep(api_server.POLL_SECONDS)
    finally:
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)


async def _unschedulable(api: KubeApi) -> list[int]:
    """Rows of the pods that have no node and the condition Unschedulable."""
    found = (await api.get(api_server.PODS, _ON_NONE))["items"]
    return [_row_of(pod) for pod in found if _is_unschedulable(pod)]


def _is_unschedulable(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions)


async def _hoss_figures(clients: Clients, ended: asyncio.Event) -> _HossFigures:
    reported = asyncio.ensure_future(asyncio.sleep(HEARTBEAT_SECONDS))
    violations = [] if ended.is_set() else await violations_of(clients)
    await reported
    return _HossFigures(
        workers=await clients.dispatcher.list_workers(),
        status=await clients.dispatcher.status(),
        refused=figures.refusals((await clients.resolver.status()).counters),
        violations=violations,
    )


def _run_of(seen: _Observed, cell: Cell, *, repetition: int, seed: int, started: str) -> ComparisonRun:
    pods, pool, hoss = seen.pods, seen.pods.pool, seen.hoss
    latencies, seconds = pods.latencies(), pods.seconds
    submitted = np.bincount(pods.spec_of, minlength=len(pods.specs))
    left = np.bincount(pods.spec_of[pods.unschedulable], minlength=len(pods.specs))
    left_over = [figures.LeftOver(((pods.specs[i], int(left[i])),)) for i in np.flatnonzero(left).tolist()]
    total: dict[str, Latency] = {"total": figures.latency_of(latencies)}
    proposed = None if hoss is None else sum(worker.proposed for worker in hoss.workers)
    workers: list[WorkerFigures] = [] if hoss is None else workers_of(hoss.workers, seconds)
    return ComparisonRun(
        cell=cell,
        repetition=repetition,
        seed=seed,
        started=started,
        complete=seen.complete,
        pods=len(pods.spec_of),
        bound=pods.bound,
        unschedulable=len(pods.unschedulable),
        seconds=round(seconds, 4),
        pods_per_second=round(per_second(pods.bound, seconds), 1),
        latency=total if hoss is None else figures.phases_of(hoss.status.phases) | total,
        latency_curve=figures.curve_of(latencies),
        jobs=None,
        proposals=proposed,
        conflicts=None if hoss is None else hoss.refused,
        jobs_with_conflicts=None,
        retries=None if hoss is None else sum(worker.conflicts for worker in hoss.workers),
        wasted_decisions=None if proposed is None else max(0, proposed - pods.bound),
        workers=workers,
        overcommit=figures.overcommit(pool),
        unschedulable_with_room=figures.with_room(pool, left_over),
        utilisation=figures.utilisation_of(pool),
        fragmentation=figures.fragmentation(pool, pods.specs, submitted),
        services=seen.services,
        violations=None if hoss is None else hoss.violations,
        quality=figures.quality(
            pool,
            pods.specs,
            submitted=submitted,
            bound=np.bincount(pods.spec_of[pods.bound_at > 0], minlength=len(pods.specs)),
            moves=None,
        ),
        validated=True,
    )


def _records(plane: ControlPlane, hoss: PlatformState | None) -> list[ProcessRecord]:
    schedulers = [plane.record("kube-scheduler")] if hoss is None else list(hoss.processes)
    return [*schedulers, plane.record("kube-apiserver"), plane.record("etcd")]


def _row_of(pod: Object) -> int:
    return int(pod["metadata"]["name"][1:])
