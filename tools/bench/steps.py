"""`python -m tools.bench steps`: the longest steps of the dispatcher's event loop under what clients can make
large.

A dispatcher's parts run in this process, with a journal in memory and a ledger that answers at once. A step
is what the event loop runs between two turns of others; its time is CPU time of this thread, so that other
processes do not count. Messages are not encoded for a network.

The JSON document (camel case):

    pods, limitSeconds
    actions[]            name, longestSeconds, steps, totalSeconds
"""

import asyncio
import gc
import random
import time
from asyncio import events
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dispatcher.api.admission import Admission, Finds
from dispatcher.api.cluster_objects import ClusterObjectStore
from dispatcher.api.pod_queries import PodQueries
from dispatcher.api.queries import Queries
from dispatcher.api.tenancy import TenantView
from dispatcher.api.watch import Watch
from dispatcher.core import messages as m
from dispatcher.core.changes import Changes, Room
from dispatcher.core.machine import Machine, Settings
from dispatcher.core.pods.table import Phase, Rows
from dispatcher.core.policy.rules import Match, Policy, Rule, Selector
from dispatcher.core.queue.pressure import PressureLimits
from dispatcher.core.workers.reports import Heartbeat
from dispatcher.journal.checkpointer import Checkpointer
from dispatcher.journal.memory import MemoryJournal
from dispatcher.ledger.moving import Mover
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.ledger.rebinding import Rebinding
from dispatcher.ports import Knowledge, LedgerMarks, LedgerPort, PodLocations, ReservationColumns
from dispatcher.recovery import recover
from dispatcher.runtime import Link, Runtime
from hoss.model.pod import PodSpec, PodTemplate
from hoss.model.selectors import Requirement
from hoss.tasks import in_turns
from hoss.v1 import common_pb2
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U32, Uids
from hoss.wire.convert import pod_spec_from_proto, template_to_proto
from hossctl.console import Document

LIMIT_SECONDS = 0.05

_PART_PODS = 50_000  # of reservations, in one part of a list
_GATE = "example.org/gate"


@dataclass(frozen=True, slots=True)
class Setting:
    """`pods` of one large job, and how many there are of what is smaller in practice."""

    pods: int = 9_000_000
    gang: int = 100_000
    watched: int = 1_000_000
    bare: int = 50_000
    tenants: int = 2000
    nodes: int = 5000


@dataclass(slots=True)
class Action:
    """One action, and the steps that the event loop made of it."""

    name: str
    steps: list[float] = field(default_factory=list)

    def as_json(self) -> Document:
        """For programs."""
        return {
            "name": self.name,
            "longestSeconds": max(self.steps, default=0.0),
            "steps": len(self.steps),
            "totalSeconds": sum(self.steps),
        }


class _Ledger:
    """Has the reservations that it is given, and answers at once."""

    def __init__(self) -> None:
        self.uids: Uids = np.empty((0, 16), np.uint8)
        self.held = np.empty(0, np.uint32)
        self._epoch = 0

    async def grant_epoch(self, worker: str) -> int:
        del worker
        self._epoch += 1
        return self._epoch

    async def lookup(self, uids: Uids) -> PodLocations:
        none = np.full(len(uids), NONE_U32, np.uint32)
        no = np.zeros(len(uids), np.bool_)
        return PodLocations(none, {}, no, no, np.zeros(len(uids), np.uint64))

    async def confirm(self, commits: m.Commits) -> int:
        return sum(map(len, commits.values()))

    async def release(self, uids: Uids, nodes: NDArray[np.uint32] | None, as_of: Knowledge) -> dict[int, int]:
        del uids, nodes, as_of
        return {0: 1}

    def known(self) -> Knowledge:
        return Knowledge("here", {0: 1})

    async def dispatcher_marks(self) -> LedgerMarks:
        return LedgerMarks(0, (0, 0))

    async def reservations(self, *, digests: bool = False) -> AsyncGenerator[ReservationColumns, None]:
        del digests
        for start in range(0, len(self.uids), _PART_PODS):
            part = slice(start, start + _PART_PODS)
            count = len(self.held[part])
            no, zero = np.zeros(count, np.bool_), np.zeros(count, np.uint64)
            shards = np.zeros(count, np.uint32)
            yield ReservationColumns(self.uids[part], self.held[part], shards, zero, no, zero, no, no, zero)


class _Dispatcher:
    """The parts of a dispatcher that carry requests out."""

    def __init__(self, journal: MemoryJournal | None = None, ledger: _Ledger | None = None) -> None:
        self.journal = journal or MemoryJournal()
        self.ledger = ledger or _Ledger()
        machine = Machine(
            Settings(worker_timeout_seconds=1e9, limits=PressureLimits(pods=10**8)),
            Policy(),
            lambda spec: pod_spec_from_proto(common_pb2.PodSpec.FromString(spec)),
            random.Random(1),
        )
        self.runtime = Runtime(machine, cast("LedgerPort", self.ledger), self.journal)
        objects = ClusterObjectStore(self.runtime, follows_cluster=False)
        checkpointer = Checkpointer(self.runtime)
        self.nodes = ClusterNodes()
        mover = Mover(self.runtime, self.nodes, Rebinding(self.runtime, self.nodes))
        self.admission = Admission(
            self.runtime, objects, checkpointer, rng=random.Random(1), until_moved=mover.until_moved
        )
        self.queries = Queries(self.runtime, self.nodes, cast("Any", None))
        self.pods = PodQueries(self.runtime, self.nodes, mover)

    async def submit(self, request: pb.SubmitRequest) -> Rows:
        """Accept pods; returns the rows of all that are there then."""
        await self.admission.submit(request)
        pods = self.runtime.machine.registry.pods
        return np.flatnonzero(pods.phase[: pods.size] != Phase.ABSENT).astype(np.uint32)

    def bind(self, rows: Rows, nodes: int) -> None:
        """Bind pods as a recovery does, on so many nodes."""
        self.ledger.held = np.arange(len(rows), dtype=np.uint32) % np.uint32(nodes)
        self.ledger.uids = self.runtime.machine.registry.pods.uid[rows].copy()
        self.runtime.perform(self.runtime.machine.restore_bound(rows, self.ledger.held))

    def view(self, tenant: str = "") -> TenantView:
        return TenantView(self.runtime.machine, tenant)


def _template(**fields: Any) -> pb.PodTemplate:
    return template_to_proto(PodTemplate(PodSpec(requests=(("cpu", 100),), **fields)))


def _job(replicas: int, name: str = "large", minimum: int = 0, **fields: Any) -> pb.SubmitRequest:
    job = pb.Job(name=name, template=0, replicas=replicas, min_available=minimum)
    return pb.SubmitRequest(request_id=name, templates=[_template(**fields)], jobs=[job])


def _bare(count: int, number: int) -> pb.SubmitRequest:
    """Pods that are sets of their own, each of a template of its own."""
    names = [f"pod-{number}-{pod}" for pod in range(count)]
    templates = [_template(labels=(("pod", name),)) for name in names]
    listed = pb.PodList(names=names, templates=np.arange(count, dtype="<u4").tobytes())
    return pb.SubmitRequest(request_id=f"bare-{number}", templates=templates, pods=listed)


async def _large_job(setting: Setting, measured: "_Measured") -> None:
    dispatcher = _Dispatcher()
    await measured("admit a job", dispatcher.admission.submit(_job(setting.pods)))
    rows = np.arange(setting.pods, dtype=np.uint32)
    queries = dispatcher.queries
    await measured("list pods of a phase", _pages(dispatcher.pods, pb.ListPodsRequest(phases=[pb.BOUND])))
    await measured("list jobs", in_turns(queries.jobs(pb.ListJobsRequest())))
    tenants = pb.ListTenantsRequest()
    await measured("list tenants of a job", in_turns(queries.tenants(tenants, dispatcher.view())))
    await measured("change the policy", _policy(dispatcher))
    dispatcher.bind(rows, setting.nodes)
    await measured("audit", in_turns(queries.audit(pb.DispatcherAuditRequest(limit=100_000))))
    await measured("a node is removed", _node_gone(dispatcher))
    await measured("delete a job", dispatcher.admission.delete(_finding(rows)))
    await measured("forget it", _ticks(dispatcher, 400))


def _finding(rows: Rows) -> Finds:
    async def find(_newest: int) -> Rows:
        return rows

    return find


async def _failed_and_gated(setting: Setting, measured: "_Measured") -> None:
    dispatcher = _Dispatcher()
    gated = _template(scheduling_gates=(_GATE,))
    job = pb.Job(name="gated", template=0, replicas=setting.pods)
    await dispatcher.submit(pb.SubmitRequest(request_id="gated", templates=[gated], jobs=[job]))
    rows = np.arange(setting.pods, dtype=np.uint32)
    await measured("remove gates", dispatcher.admission.remove_gates(_finding(rows), frozenset()))
    dispatcher.runtime.machine.registry.pods.phase[rows] = Phase.FAILED

    async def find(_newest: int) -> Rows:
        return rows

    await measured("retry", dispatcher.admission.retry(find))


async def _gang(setting: Setting, measured: "_Measured") -> None:
    dispatcher = _Dispatcher()
    dispatcher.runtime.handle(m.Registered(1, "w1", {}, incarnation=1, window=2 * setting.gang))
    dispatcher.runtime.handle(m.EpochGranted(1, epoch=1))
    dispatcher.runtime.handle(m.HeartbeatReceived(1, Heartbeat(ready=True)))
    request = _job(setting.gang, "gang", 1000)
    await measured("admit a gang", dispatcher.admission.submit(request))
    await measured("and dispatch it", _ticks(dispatcher, 5))


class _Unschedulable:
    """A worker's stream that answers each batch with "no node fits", for want of resources."""

    name = "w1"

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._work: list[m.SendWork] = []

    def send(self, instruction: m.ToWorker) -> None:
        if isinstance(instruction, m.SendWork):
            self._work.append(instruction)

    put = send

    def close(self, text: str, *, taken: bool = False) -> None:
        """Nothing is open."""

    def answer(self) -> int:
        """Answer what has come; returns how many pods."""
        work, self._work = self._work, []
        for batch in work:
            count = len(batch.uids)
            codes = np.full(count, m.OutcomeCode.UNSCHEDULABLE, np.uint8)
            nowhere, first = np.full(count, NONE_U32, np.uint32), np.zeros(count, np.uint16)
            positions, refused_by = np.arange(count, dtype=np.uint32), (frozenset({"NodeResourcesFit"}),)
            self._runtime.handle(
                m.OutcomesArrived(
                    1, batch.batch, positions, codes, nowhere, first, ("no room",), {}, refused_by
                )
            )
        return sum(len(batch.uids) for batch in work)


async def _refused(dispatcher: _Dispatcher, pods: int) -> None:
    """A worker comes, and finds no room for so many pods that are queued."""
    runtime = dispatcher.runtime
    worker = _Unschedulable(runtime)
    runtime.links[1] = cast("Link", worker)
    runtime.handle(m.Registered(1, "w1", {}, incarnation=1, window=100_000))
    await asyncio.sleep(0.1)  # its epoch is granted
    runtime.handle(m.HeartbeatReceived(1, Heartbeat(ready=True)))
    answered = 0
    while answered < pods:
        answered += worker.answer()
        runtime.perform(runtime.machine.pump(runtime.now()))
        await asyncio.sleep(0)


async def _change(dispatcher: _Dispatcher) -> None:
    """Nodes have more room than before, and then time passes."""
    amounts, cards = np.full((2, 5000), 1_000_000, np.int64), np.zeros((0, 16), np.uint16)
    room = Room(("cpu", "pods"), amounts, np.zeros_like(amounts), cards)
    dispatcher.runtime.handle(m.ClusterChanged(Changes(rooms=(room,))))
    await asyncio.sleep(0)
    await _ticks(dispatcher, 200)


async def _waiting(setting: Setting, measured: "_Measured") -> None:
    dispatcher = _Dispatcher()
    await dispatcher.submit(_job(setting.watched))
    await _refused(dispatcher, setting.watched)
    await measured("waiting pods are woken", _change(dispatcher))
    dispatcher = _Dispatcher()
    await dispatcher.submit(_bare(setting.bare, 0))
    await _refused(dispatcher, setting.bare)
    await measured("pods of many classes are woken", _change(dispatcher))


async def _other_routes(setting: Setting, measured: "_Measured") -> None:
    """A policy sends half of the pods elsewhere: of those that are queued, then of those that wait."""
    here = Match(labels=Selector((Requirement("to", "In", ("here",)),)))
    for name, refused in (("queued", 0), ("waiting", setting.watched)):
        dispatcher = _Dispatcher()
        await dispatcher.submit(_job(setting.watched // 2, "here", labels=(("to", "here"),)))
        await dispatcher.submit(_job(setting.watched // 2, "other"))
        await _refused(dispatcher, refused)
        await measured(f"{name} pods are re-routed", _policy(dispatcher, here))


async def _many_nodes(setting: Setting, measured: "_Measured") -> None:
    dispatcher = _Dispatcher()
    rows = await dispatcher.submit(_job(setting.watched))
    dispatcher.bind(rows, setting.nodes)

    async def gone() -> None:
        dispatcher.runtime.handle(m.NodesGone(np.arange(setting.nodes // 2, dtype=np.uint32), 1))
        while dispatcher.runtime.table_sizes()["jobs"]:  # noqa: ASYNC110 - the steps are measured
            await asyncio.sleep(0)

    await measured("half of the nodes are removed", gone())


async def _watches(setting: Setting, measured: "_Measured") -> None:
    dispatcher = _Dispatcher()
    log = dispatcher.runtime.machine.log
    rows = await dispatcher.submit(_job(setting.watched))
    before = log.revision
    dispatcher.bind(rows, setting.nodes)
    name = "default"

    async def states(tenant: str) -> None:
        watch = Watch(dispatcher.runtime, _named_nodes(), dispatcher.view(tenant))
        async for batch in watch.messages(0, states=True):
            await asyncio.sleep(0)
            if batch.states_end:
                return

    async def resumed(tenant: str) -> None:
        watch = Watch(dispatcher.runtime, _named_nodes(), dispatcher.view(tenant))
        async for batch in watch.messages(before, states=False):
            await asyncio.sleep(0)
            if batch.revision == log.revision:
                return

    await measured("watch from the present states", states(""))
    await measured("the same of a tenant", states(name))
    pods = dispatcher.runtime.machine.registry.pods
    for start in range(0, len(rows), _PART_PODS):
        part = rows[start : start + _PART_PODS]
        log.append(pods.uid[part], pods.phase[part], pods.node[part])
    await measured("resume a watch far behind", resumed(""))
    await measured("the same of a tenant", resumed(name))


async def _bare_pods(setting: Setting, measured: "_Measured") -> None:
    dispatcher = _Dispatcher()
    await measured("admit bare pods", dispatcher.admission.submit(_bare(setting.bare, 0)))
    await measured("change the policy for them", _policy(dispatcher))
    rows = np.arange(setting.bare, dtype=np.uint32)
    await measured("delete them", dispatcher.admission.delete(_finding(rows)))
    await measured("forget them", _ticks(dispatcher, 100))


async def _tenants(setting: Setting, measured: "_Measured") -> None:
    dispatcher = _Dispatcher()
    for number in range(setting.tenants):
        await dispatcher.submit(_job(10, "job", namespace=f"tenant-{number}"))
        await asyncio.sleep(0)
    request = pb.ListTenantsRequest(limit=1000)
    listing = dispatcher.queries.tenants(request, dispatcher.view())
    await measured("list tenants", in_turns(listing))


async def _recovery(setting: Setting, measured: "_Measured") -> None:
    former = _Dispatcher()
    rows = await former.submit(_job(setting.watched))
    former.bind(rows, setting.nodes)
    for number in range(10):
        await former.submit(_bare(setting.bare // 10, number))
    successor = _Dispatcher(former.journal, former.ledger)
    await measured("recover", recover(successor.runtime, term=1))


async def _ticks(dispatcher: _Dispatcher, count: int) -> None:
    """Some ticks, each later than deleted pods are kept."""
    for number in range(1, count + 1):
        dispatcher.runtime.perform(
            dispatcher.runtime.machine.handle(m.Tick(), dispatcher.runtime.now() + 2.0 * number)
        )
        await asyncio.sleep(0)


async def _policy(dispatcher: _Dispatcher, match: Match = Match()) -> None:  # noqa: B008 - it is frozen
    policy = Policy((Rule("other", match),), version=2)
    runtime = dispatcher.runtime
    runtime.perform(await in_turns(runtime.machine.setting_policy(policy, runtime.now)))


async def _node_gone(dispatcher: _Dispatcher) -> None:
    dispatcher.runtime.handle(m.NodesGone(np.arange(1, dtype=np.uint32), 1))


async def _pages(queries: PodQueries, request: pb.ListPodsRequest) -> None:
    request.limit = 1000
    await in_turns(queries.list_pods(request))


class _NamedNodes(ClusterNodes):
    def name(self, index: int) -> str:
        return f"node-{index}"


def _named_nodes() -> ClusterNodes:
    return _NamedNodes()


_Measured = Callable[[str, Awaitable[object]], Awaitable[None]]
PARTS: dict[str, Callable[[Setting, _Measured], Awaitable[None]]] = {
    "job": _large_job,
    "gates": _failed_and_gated,
    "gang": _gang,
    "waiting": _waiting,
    "routes": _other_routes,
    "nodes": _many_nodes,
    "watch": _watches,
    "bare": _bare_pods,
    "tenants": _tenants,
    "recovery": _recovery,
}


@contextmanager
def _timing(steps: list[float]) -> Iterator[None]:
    """Note the CPU time of each step of the event loop."""
    run = events.Handle._run  # noqa: SLF001 - asyncio tells of slow steps by the clock only

    def timed(handle: events.Handle) -> None:
        began = time.thread_time()
        run(handle)
        steps.append(time.thread_time() - began)

    events.Handle._run = timed  # type: ignore[assignment, method-assign]  # noqa: SLF001
    try:
        yield
    finally:
        events.Handle._run = run  # type: ignore[method-assign]  # noqa: SLF001


def measure(setting: Setting, only: str = "") -> Document:
    """All parts, or one of them, each with a dispatcher of its own."""
    actions: list[Action] = []

    async def measured(name: str, work: Awaitable[object]) -> None:
        action = Action(name)
        gc.collect()
        done: list[int] = []
        with _timing(action.steps):
            task = asyncio.ensure_future(work)
            task.add_done_callback(lambda _: done.append(len(action.steps)))
            await task
        action.steps = action.steps[: done[0]]  # the later ones are of this function
        actions.append(action)

    for name, part in PARTS.items():
        if only in ("", name):
            asyncio.run(_run(part, setting, measured))
    return {
        "pods": setting.pods,
        "limitSeconds": LIMIT_SECONDS,
        "actions": [action.as_json() for action in actions],
    }


async def _run(
    part: Callable[[Setting, _Measured], Awaitable[None]], setting: Setting, measured: _Measured
) -> None:
    await part(setting, measured)


def lines(document: Document) -> list[tuple[str, str]]:
    """The document as a summary."""
    return [
        (
            action["name"],
            (
                f"{action['longestSeconds'] * 1000:.1f} ms, {action['steps']:,} steps,"
                f" {action['totalSeconds']:.2f} s"
            ),
        )
        for action in document["actions"]
    ]
