"""Runs one cell on a control plane made for it: the load's nodes and pods as objects of a real API server, bound by kube-scheduler or by
HOSS in Kubernetes mode.

A client of ours creates the pods one by one, several at once, while they are being scheduled. A pod's time goes from the request that
creates it until a watch has shown it on its node, the same for both; nobody's requests are limited, and each is a user with the rights of its own deployment. What a pod costs is the CPU of the
schedulers' processes, kube-apiserver and etcd, and not of that client, as nowhere in a comparison.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hoss import rpc, telemetry
from hoss.errors import HossError
from hoss.kube.api import KubeApi, Object
from hoss.kube.reflector import Change, Reflector, Seen
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.convert import template_from_proto
from hossctl import auditing
from hossctl.bench import kube_ground as ground
from hossctl.bench import processes
from hossctl.compare import figures
from hossctl.compare.axes import Mode
from hossctl.compare.document import Cell, Latency, Run, Service, Worker
from hossctl.compare.figures import Pool
from hossctl.compare.interruption import Stop
from hossctl.compare.kube_form import node_object, pod_object
from hossctl.compare.loads import made
from hossctl.compare.modes import platform_of
from hossctl.compare.playing import templates_by_row
from hossctl.compare.running import (
    HEARTBEAT_SECONDS,
    Plan,
    services_since,
    utc_now,
    violations_of,
    workers_of,
)
from hossctl.compare.traces import Trace
from hossctl.endpoints import clients_of, of_state
from hossctl.eventloop import run_async
from hossctl.figures import per_second
from hossctl.kube_control_plane import HOSS, ControlPlane
from hossctl.kube_rights import grant
from hossctl.platform import PlatformOptions, PlatformState, temporary
from hossctl.process import ProcessRecord
from hossctl.redis_database import borrowed

_NODES: Final = "/api/v1/nodes"
_PODS: Final = "/api/v1/namespaces/default/pods"
_ON_NODES: Final = {"fieldSelector": "spec.nodeName!="}
_ON_NONE: Final = {"fieldSelector": "spec.nodeName="}
_SCHEDULER_NAMES: Final = {Mode.KUBE_SCHEDULER: "default-scheduler", Mode.KUBE_HOSS: "hoss"}

_QUIET_SECONDS = 2.0  # without a binding, before it is asked whether all that is left has been found unschedulable
_STALL_SECONDS = 90.0  # kube-scheduler waits up to ten by itself before it tries a pod again


def measured(cell: Cell, repetition: int, plan: Plan, stop: Stop) -> Run:
    """One run, on a control plane made for it. Incomplete where `stop` ended it. Raises ConfigError where there are no binaries."""
    seed, started = plan.seed + repetition, utc_now()
    trace = made(cell, seed)
    telemetry.configure("bench", level="error")  # an API server that has just begun cuts the first watches off
    with tempfile.TemporaryDirectory(prefix="hoss-compare-") as directory:
        plane = ControlPlane.start(Path(directory) / "control-plane")
        try:
            run_async(_prepare(plane, trace.nodes))
            with _scheduling(cell, plane, seed=seed, plan=plan, nodes=len(trace.nodes)) as hoss:
                stop.hear()  # for the platform's end too, which gives the signals back
                seen = run_async(_observed(cell, trace, plane, hoss, stop))
        finally:
            plane.stop()
    return _run_of(seen, cell, repetition=repetition, seed=seed, started=started)


class Pods:
    """Where each pod of a load is: a row each, named by it. Times are those of time.perf_counter, 0.0 for not yet."""

    def __init__(self, nodes: Sequence[NodeSpec], specs: Sequence[PodSpec], spec_of: NDArray[np.int64]) -> None:
        self.nodes, self.specs, self.spec_of = nodes, specs, spec_of
        self.created_at = np.zeros(len(spec_of))
        self.bound_at = np.zeros(len(spec_of))
        self.node_of = np.full(len(spec_of), -1, np.int64)
        self.bound = 0
        self.unschedulable: list[int] = []  # rows, as of the end
        self._numbers = {node.name: number for number, node in enumerate(nodes)}

    def objects(self, scheduler: str, stop: asyncio.Event) -> Iterator[Object]:
        """Each pod's, noted as created when it is asked for; no more of them after `stop`."""
        for row, spec in enumerate(self.spec_of.tolist()):
            if stop.is_set():
                return
            body = pod_object(f"p{row}", self.specs[spec], scheduler)
            self.created_at[row] = time.perf_counter()
            yield body

    def note(self, changes: Sequence[Change]) -> None:
        """Learn of pods that are on a node."""
        now = time.perf_counter()
        for change in changes:
            if isinstance(change, Seen):
                row = _row_of(change.object)
                if not self.bound_at[row]:
                    self.bound_at[row], self.bound = now, self.bound + 1
                    self.node_of[row] = self._numbers[change.object["spec"]["nodeName"]]

    def latencies(self) -> NDArray[np.float64]:
        """Seconds of each that was bound, from created to seen on its node."""
        done = self.bound_at > 0
        return self.bound_at[done] - self.created_at[done]

    @property
    def seconds(self) -> float:
        """From the first that was created to the last that was bound."""
        return float(self.bound_at.max() - self.created_at[0]) if self.bound else 0.0

    @property
    def pool(self) -> Pool:
        """The nodes as the pods left them."""
        there = self.node_of >= 0
        return Pool.holding(self.nodes, self.specs, self.spec_of[there], self.node_of[there])


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """What HOSS says of itself beside."""

    workers: list[pb.WorkerInfo]
    status: pb.DispatcherStatus
    refused: int
    violations: list[str]


@dataclass(frozen=True, slots=True, eq=False)
class _Observed:
    complete: bool
    pods: Pods
    services: dict[str, Service]
    told: _Told | None  # by HOSS


async def _prepare(plane: ControlPlane, nodes: Sequence[NodeSpec]) -> None:
    async with ground.opened(plane.kubeconfig) as api:
        await grant(api, HOSS)
        await ground.create_all(api, _NODES, map(node_object, nodes))


@contextlib.contextmanager
def _scheduling(
    cell: Cell, plane: ControlPlane, *, seed: int, plan: Plan, nodes: int
) -> Iterator[PlatformState | None]:
    """The cell's schedulers, ready, for the length of the block: HOSS's platform, or None beside a kube-scheduler."""
    if cell.mode is Mode.KUBE_SCHEDULER:
        plane.start_scheduler()
        yield None
        return
    options = platform_of(cell, seed=seed, redis_url=plan.redis_url, lock=plane.directory / "lock")
    with borrowed(plan.redis_url), _platform(replace(options, kubeconfig=plane.hoss_kubeconfig)) as state:
        run_async(_until_known(state, nodes, cell.workers))
        yield state


@contextlib.contextmanager
def _platform(options: PlatformOptions) -> Iterator[PlatformState]:
    with temporary(options) as starter:
        yield starter.state


async def _until_known(state: PlatformState, nodes: int, workers: int) -> None:
    async with clients_of(of_state(state)) as clients:
        await ground.until_known(clients, nodes)
        if not await auditing.until_caches_agree(clients.dispatcher, clients.resolver, workers):
            raise HossError(f"{workers} workers with filled caches were expected within 120 s")


async def _observed(cell: Cell, trace: Trace, plane: ControlPlane, hoss: PlatformState | None, stop: Stop) -> _Observed:
    ended, records = stop.event(), _records(plane, hoss)
    templates, spec_of = templates_by_row(trace)
    pods = Pods(trace.nodes, [template_from_proto(template).spec for template in templates], spec_of)
    async with ground.opened(plane.kubeconfig) as api:
        following = Reflector(api, _PODS, pods.note, params=_ON_NODES)
        async with rpc.background(following.run()):
            await following.complete.wait()
            before = processes.cpu_seconds(records)
            await play(api, pods, _SCHEDULER_NAMES[cell.mode], ended)
    services = services_since(before, records)
    told = None if hoss is None else await _told(hoss, ended)
    return _Observed(not ended.is_set(), pods, services, told)


async def play(api: KubeApi, pods: Pods, scheduler: str, ended: asyncio.Event) -> None:
    """Create all pods, and return when each is bound or was found unschedulable, or once `ended`.

    Raises HossError when nothing changes for long, and what creating raises.
    """
    creating = asyncio.ensure_future(ground.create_all(api, _PODS, pods.objects(scheduler, ended)))
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
                problem = f"nothing was bound for {_STALL_SECONDS:.0f} s; {bound} of {len(pods.spec_of)} pods are"
                raise HossError(problem)
            await asyncio.sleep(ground.LOOK_SECONDS)
    finally:
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)


async def _unschedulable(api: KubeApi) -> list[int]:
    """Rows of the pods that are on no node and have been tried."""
    found = (await api.get(_PODS, _ON_NONE))["items"]
    return [_row_of(pod) for pod in found if _was_tried(pod)]


def _was_tried(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions)


async def _told(state: PlatformState, ended: asyncio.Event) -> _Told:
    async with clients_of(of_state(state)) as clients:
        heard = asyncio.ensure_future(asyncio.sleep(HEARTBEAT_SECONDS))
        violations = [] if ended.is_set() else await violations_of(clients)
        await heard
        return _Told(
            workers=await clients.dispatcher.list_workers(),
            status=await clients.dispatcher.status(),
            refused=figures.refusals((await clients.resolver.status()).counters),
            violations=violations,
        )


def _run_of(seen: _Observed, cell: Cell, *, repetition: int, seed: int, started: str) -> Run:
    pods, pool, told = seen.pods, seen.pods.pool, seen.told
    latencies, seconds = pods.latencies(), pods.seconds
    asked = np.bincount(pods.spec_of, minlength=len(pods.specs))
    left = np.bincount(pods.spec_of[pods.unschedulable], minlength=len(pods.specs))
    left_over = [figures.LeftOver(pods.specs[i], int(left[i])) for i in np.flatnonzero(left).tolist()]
    total: dict[str, Latency] = {"total": figures.latency_of(latencies)}
    proposed = None if told is None else sum(worker.proposed for worker in told.workers)
    workers: list[Worker] = [] if told is None else workers_of(told.workers, seconds)
    return Run(
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
        latency=total if told is None else figures.phases_of(told.status.phases) | total,
        latency_curve=figures.curve_of(latencies),
        jobs=None,
        proposals=proposed,
        conflicts=None if told is None else told.refused,
        jobs_with_conflicts=None,
        retries=None if told is None else sum(worker.conflicts for worker in told.workers),
        wasted_decisions=None if proposed is None else max(0, proposed - pods.bound),
        workers=workers,
        overcommit=figures.overcommit(pool),
        unschedulable_with_room=figures.with_room(pool, left_over),
        utilisation=figures.utilisation_of(pool),
        fragmentation=figures.fragmentation(pool, pods.specs, asked),
        services=seen.services,
        violations=None if told is None else told.violations,
    )


def _records(plane: ControlPlane, hoss: PlatformState | None) -> list[ProcessRecord]:
    schedulers = [plane.record("kube-scheduler")] if hoss is None else list(hoss.processes)
    return [*schedulers, plane.record("kube-apiserver"), plane.record("etcd")]


def _row_of(pod: Object) -> int:
    return int(pod["metadata"]["name"][1:])
