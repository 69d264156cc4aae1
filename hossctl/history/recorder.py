"""The recorder: writes the history of a live platform from outside, as one more client.

It watches pods, follows the node feed, and lists reservations, pods and workers now and then. What it cannot
see it says: in the first line for the whole history, and as a `gap` where it missed something. It promises
that no final state is written that it has seen change while it was read."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc.aio

from hoss.client.errors import translate
from hoss.errors import HossError, LedgerUnavailable, Overloaded, TransportError
from hoss.v1 import common_pb2
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U16, NONE_U32, U8, U16, U32, decode, decode_uids
from hoss.wire.uids import uid_text
from hossctl.endpoints import Clients
from hossctl.history.events import ACCOUNTS, DELETED, Event, History
from hossctl.history.recorder_ledger import LedgerRecorder

_DISPATCHER, _WATCHER = "dispatcher", "recorder"
_READY = "Ready"
_RUNNING = "Running"  # RebalanceStatus.state
_PUSH = "push"  # Heartbeat.synchronisation of workers whose caches follow every change
_AUDIT_MS = 2000
_FEED_SECONDS = 0.2  # between two looks at the feed
_RETRY_SECONDS = 0.2
_DEFAULT_POLICY = "default"  # Policy.source
_BOUND = "Bound"

# A run of moves: purpose, controller, moves (pod, source, target), and how many were made and are under way.
_Run = tuple[str, str, tuple[tuple[str, str, str], ...], int, int]

BLIND = {
    "clients": (
        "what other clients sent and were answered: a pod that the dispatcher lists counts as accepted"
    ),
    "reservations": "which pods a change of the ledger was about; they are listed now and then",
    "ports": "which ports a reservation holds: two pods on one port are not found",
    "journal": "the dispatcher's journal",
    "epochs": "when an epoch was granted; only the order of changes on each shard is judged",
    "gangs": "gangs of single pods; gangs of jobs are known",
}


def live_history(keep: Callable[[Event], object] | None = None) -> History:
    """The history of a live platform, begun now. Times are seconds since its beginning."""
    began = time.monotonic()
    return History(
        lambda: time.monotonic() - began,
        source="live platform",
        sees=[ACCOUNTS],
        blind=BLIND,
        keep=keep,
        unix=time.time(),
    )


class Recorder:
    """Records until `record`'s event is set, then waits until nothing moves and writes the final states."""

    def __init__(
        self,
        clients: Clients,
        history: History,
        *,
        every_seconds: float = 2.0,
        still_seconds: float = 2.0,
        settle_seconds: float = 60.0,
    ) -> None:
        """`every_seconds`: between lists of reservations. `still_seconds`: after so long without a change
        nothing moves. `settle_seconds`: how long to wait for that at the end."""
        self._dispatcher, self._resolver = clients.dispatcher, clients.resolver
        self._history = history
        self._every_seconds = every_seconds
        self._still_seconds = still_seconds
        self._settle_seconds = settle_seconds
        self._ledger = LedgerRecorder(clients.resolver, history, self._move)
        self._unknown: set[str] = set()  # pods that were told and not described yet
        self._described: set[str] = set()
        self._moves = 0
        self._moving = False
        self._nodes: dict[str, str] = {}  # of the pods that are told bound
        self._moves_suspected = False  # a pod was told on another node since the dispatcher was last asked
        # The run of moves before the watch began. None: the dispatcher did not answer, or there was none.
        self._run_before: _Run | None = None
        self._moved_at = time.monotonic()
        self._away: set[str] = set()  # what does not answer at present

    async def record(self, stop: asyncio.Event) -> bool:
        """Record until `stop`. Returns whether the platform was still at the end, so that its final states
        could be written. Waits at the beginning for as long as the ledger does not answer."""
        await self._ledger.catch_up()  # the names of nodes, before the first pods are told
        async with self._answered("pods"):
            await self._note_earlier_moves()
        tasks = [
            asyncio.ensure_future(run()) for run in (self._watch, self._follow_ledger, self._list_states)
        ]
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            _raise_error_of(tasks)
            for task in tasks[1:]:
                await _cancelled(task)
            return await self._end()
        finally:
            await _cancelled(stopped)
            for task in tasks:
                await _cancelled(task)

    def _move(self) -> None:
        self._moves += 1
        self._moved_at = time.monotonic()

    # -- while it runs

    async def _follow_ledger(self) -> None:
        listed_at = 0.0
        while True:
            async with self._answered("reservations"):
                await self._ledger.catch_up()
                if time.monotonic() >= listed_at + self._every_seconds:
                    fields = await self._ledger.list_reservations()
                    self._history.append("reservations", by="ledger", **fields)
                    listed_at = time.monotonic()
            await asyncio.sleep(_FEED_SECONDS)

    async def _list_states(self) -> None:
        while True:
            async with self._answered("pods"):
                await self._list_once()
            await asyncio.sleep(min(1.0, self._every_seconds))

    async def _list_once(self) -> None:
        if self._unknown:
            await self._describe()
        for worker in await self._dispatcher.list_workers():
            self._ledger.note_epoch(worker.name, worker.epoch)
        if self._moves_suspected:
            await self._note_moves()

    @contextlib.asynccontextmanager
    async def _answered(self, what: str) -> AsyncIterator[None]:
        """A step that is left out, once noted as a gap, while a service does not answer."""
        try:
            yield
            self._away.discard(what)
        except (LedgerUnavailable, Overloaded, TransportError) as exc:
            if what not in self._away:
                self._away.add(what)
                self._history.append("gap", by=_WATCHER, of=what, text=str(exc))

    # -- pods

    async def _watch(self) -> None:
        self._history.append("watch", by=_WATCHER)
        while True:
            listed: list[Event] | None = []
            names: dict[int, str] = {}
            try:
                async for batch in self._dispatcher.stub.Watch(pb.WatchRequest(states=True)):
                    rows = _told(batch, names, self._ledger.name_of)
                    self._note(rows)
                    if listed is None:
                        self._tell(rows, batch.revision)
                        continue
                    listed += rows
                    if batch.states_end:
                        self._tell(listed, batch.revision, listing=True)
                        self._away.discard("watch")
                        listed = None
                problem = "the stream ended"
            except grpc.aio.AioRpcError as exc:
                problem = str(translate(exc, _DISPATCHER))
            if "watch" not in self._away:
                self._away.add("watch")
                self._history.append("gap", by=_WATCHER, of="watch", text=problem)
            await asyncio.sleep(_RETRY_SECONDS)

    def _tell(self, rows: list[Event], revision: int, **fields: Any) -> None:
        self._history.append("told", by=_WATCHER, pods=rows, revision=revision, **fields)

    def _note(self, rows: list[Event]) -> None:
        self._move()
        for row in rows:
            node = row.get("node", "") if row["state"] == _BOUND else ""
            if node:
                self._moves_suspected |= self._nodes.get(row["uid"], node) != node
                self._nodes[row["uid"]] = node
            else:
                self._nodes.pop(row["uid"], None)
            if row["state"] == DELETED:
                self._unknown.discard(row["uid"])
            elif row["uid"] not in self._described:
                self._unknown.add(row["uid"])

    async def _note_earlier_moves(self) -> None:
        """Of a run that has ended nobody is told any more."""
        self._run_before = _run(await self._dispatcher.rebalance(pb.RebalanceRequest()))

    async def _note_moves(self) -> None:
        """Say once that the dispatcher moves pods, or has done so since the watch began. Watchers are told of
        their new nodes with nothing between, and the feed does not name the pods. Each question is a line of
        the dispatcher's audit log, so this is for when such a pod was told, and for the end."""
        if self._moving:
            return
        suspected = self._moves_suspected
        self._moves_suspected = False  # what comes from now on is newer than the answer
        try:
            status = await self._dispatcher.rebalance(pb.RebalanceRequest(action=pb.REBALANCE_STATUS))
        except BaseException:
            self._moves_suspected |= suspected
            raise
        if status.state == _RUNNING or _run(status) not in (None, self._run_before):
            self._moving = True
            self._history.append("moving", by=_DISPATCHER)

    async def _describe(self) -> None:
        """Write what the dispatcher lists and the history does not describe yet."""
        jobs = {(job.namespace, job.name): job for job in await self._dispatcher.list_jobs()}
        policed = (await self._dispatcher.get_policy()).source != _DEFAULT_POLICY
        kinds: dict[tuple[str, str, str, bytes], tuple[pb.PodInfo, list[str]]] = {}
        async for pod in self._dispatcher.list_pods(templates=True):
            uid = uid_text(pod.uid)
            if uid in self._described:
                continue
            self._described.add(uid)
            self._unknown.discard(uid)
            spec = pod.template.spec.SerializeToString(deterministic=True)
            kind = (pod.namespace, pod.job, pod.job or pod.name, spec)
            kinds.setdefault(kind, (pod, []))[1].append(uid)
        sets = [
            _pod_set(pod, uids, jobs.get((pod.namespace, pod.job)), policed) for pod, uids in kinds.values()
        ]
        if sets:
            self._history.append("accepted", by=_DISPATCHER, pods=sets)

    # -- the end

    async def _end(self) -> bool:
        """Wait until nothing moves, and write the final states: those of one such time."""
        deadline = time.monotonic() + self._settle_seconds
        while True:
            late = time.monotonic() > deadline
            async with self._answered("final states"):
                await self._ledger.catch_up()
                quiet_since = time.monotonic() - self._still_seconds
                still = self._moved_at <= quiet_since and "watch" not in self._away
                if still or late:
                    await self._describe()
                    await self._note_moves()
                    moves = self._moves
                    states = await self._final_states()
                    await asyncio.sleep(_FEED_SECONDS)  # for what watchers are about to be told
                    if still and self._moves == moves and "watch" not in self._away:
                        self._write_end(states, quiet=True)
                        return True
                    if late:
                        self._write_end(states, quiet=False)
                        return False
            if late:
                return False
            await asyncio.sleep(_FEED_SECONDS)

    def _write_end(self, states: list[tuple[str, str, Event]], *, quiet: bool) -> None:
        if quiet:
            text = f"nothing has changed for {self._still_seconds:g} s"
            self._history.append("quiet", by=_WATCHER, text=text)
        for event, by, fields in states:
            self._history.append(event, by=by, **fields)

    async def _final_states(self) -> list[tuple[str, str, Event]]:
        table = [_row(pod) async for pod in self._dispatcher.list_pods(templates=True)]
        workers = await self._dispatcher.list_workers()
        reservations = await self._ledger.list_reservations(final=True)
        digests = (await self._resolver.audit()).digests
        views = await self._dispatcher.worker_views(_AUDIT_MS)
        following = {worker.name for worker in workers if worker.synchronisation == _PUSH}
        ready = [worker.name for worker in workers if worker.state == _READY]
        found: list[tuple[str, str, Event]] = [
            ("table", _DISPATCHER, {"pods": table}),
            ("workers", _DISPATCHER, {"ready": ready}),
            ("reservations", "ledger", reservations),
        ]
        for digest in digests:
            fields = {"shard": digest.shard, "seq": digest.seq, "digest": f"{digest.digest:016x}"}
            found.append(("digest", "ledger", fields))
        for view in views:
            fields = {"shard": view.shard, "seq": view.seq, "digest": f"{view.digest:016x}"}
            fields |= {"idle": view.idle, "follows": view.worker in following}
            found.append(("cache", view.worker, fields))
        return [(event, by, {**fields, "final": True}) for event, by, fields in found]


def _run(status: pb.RebalanceStatus) -> _Run | None:
    """What a run of moves is, and how many of its moves are made or under way. None: there was none."""
    if not status.state:
        return None
    moves = tuple((move.pod, move.source, move.target) for move in status.moves)
    return status.purpose, status.begun_by, moves, status.moved, status.evicted


def _told(batch: pb.WatchBatch, names: dict[int, str], name_of: Callable[[int], str]) -> list[Event]:
    """The rows of a message of a watch. `names`: of the nodes that its stream has named. A dispatcher that
    has just started may not know the names yet: then by `name_of`."""
    names.update((entry.index, entry.name) for entry in batch.node_names)
    uids = decode_uids(batch.uids)
    count = len(uids)
    phases = decode(batch.phases, U8, name="phases", rows=count).tolist()
    nodes = decode(batch.nodes, U32, name="nodes", rows=count).tolist()
    reasons = decode(batch.reasons, U16, name="reasons").tolist() if batch.reasons else [NONE_U16] * count
    rows = []
    for uid, phase, node, reason in zip(uids, phases, nodes, reasons, strict=True):
        row = {"uid": uid_text(uid.tobytes()), "state": _state(phase)}
        if node != NONE_U32:
            row["node"] = names.get(node) or name_of(node)
        if reason != NONE_U16:
            row["reason"] = batch.reason_texts[reason]
        rows.append(row)
    return rows


def _row(pod: pb.PodInfo) -> Event:
    row = {"uid": uid_text(pod.uid), "state": _state(pod.phase), "reason": pod.reason}
    gates = list(pod.template.spec.scheduling_gates)
    return {**row, **({"node": pod.node} if pod.node else {}), **({"gates": gates} if gates else {})}


def _state(phase: int) -> str:
    return pb.PodPhase.Name(phase).capitalize()


def _pod_set(pod: pb.PodInfo, uids: list[str], job: pb.JobInfo | None, policed: bool) -> Event:
    """Equal pods as an event has them."""
    spec = pod.template.spec
    fields: Event = {
        "uids": uids,
        "name": f"{pod.namespace}/{pod.job or pod.name}",
        "requests": {each.resource: each.amount for each in spec.requests},
        "priority": spec.priority,
        "ports": [{"port": p.port, "protocol": p.protocol, "ip": p.host_ip} for p in spec.host_ports],
        "selector": {label.key: label.value for label in spec.node_selector},
        "node": spec.node_name,
        "tolerations": [_toleration(each) for each in spec.tolerations],
        "gates": list(spec.scheduling_gates),
        "rules": _rules(spec, policed),
    }
    if spec.HasField("devices"):
        fields["cards"] = {"count": spec.devices.count, "milli": spec.devices.milli}
    if job is not None and job.min_available:
        fields |= {"gang": f"{job.namespace}/{job.gang or job.name}", "minimum": job.min_available}
    return fields


def _toleration(each: common_pb2.Toleration) -> Event:
    return {"key": each.key, "operator": each.operator, "value": each.value, "effect": each.effect}


def _rules(spec: common_pb2.PodSpec, policed: bool) -> list[str]:
    """The rules of a pod that the checker does not model."""
    present = {
        "nodeAffinity": spec.HasField("required_node_affinity"),
        "podAffinity": bool(spec.pod_affinity.required),
        "podAntiAffinity": bool(spec.pod_affinity.anti_required),
        "topologySpread": any(not constraint.schedule_anyway for constraint in spec.spread),
        "policy": policed,
    }
    return [name for name, there in present.items() if there]


def _raise_error_of(tasks: Sequence["asyncio.Future[None]"]) -> None:
    """Tasks run until they are cancelled; one that ended has failed."""
    for task in tasks:
        if task.done():
            task.result()
            raise HossError("the recorder stopped by itself")


async def _cancelled(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
