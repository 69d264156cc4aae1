"""Moves in Kubernetes mode (docs/adr/0081-moves-in-kubernetes-mode.md).

A place on the target is reserved in the ledger. Then the pod is evicted by the Eviction API, which honours
disruption budgets, and the successor that its controller makes gets the place. Until then the reservation is
renewed again and again, so it ends soon where nobody does that any more.

The journal has each eviction before it is asked for, and each successor before it gets its place. So the next
term knows whose successors to await, and whether one that came meanwhile has got its place."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from dispatcher.core.kubernetes.pod_objects import PodReader, SeenPod, readable_part
from dispatcher.core.kubernetes.successors import (
    AwaitedSuccessor,
    AwaitedSuccessors,
    PodController,
    pods_selected,
    unmounted_volume,
    unmovable,
    unmovable_kind,
    unsettled_claim,
    wanted_pods,
)
from dispatcher.core.moves import (
    BegunEviction,
    BegunRun,
    MoveRun,
    MoveState,
    PlannedMove,
    RunProgress,
    RunState,
)
from dispatcher.ledger.move_steps import RESULTS, MoveSteps, ReservedTargets, RunRecord, log_continued
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.ledger.rebinding import not_at_source
from dispatcher.runtime import Runtime
from hoss.errors import InvalidInput, LedgerUnavailable, Overloaded, TransportError
from hoss.kube.api import KubeApi, Object, Refused
from hoss.kube.paths import object_path, pod_path
from hoss.model.reserved_names import taken_by_volumes
from hoss.tasks import background
from hoss.telemetry import logger
from hoss.v1 import resolver_pb2
from hoss.wire.columns import NONE_U32, decode_uids
from hoss.wire.uids import uid_from_text, uid_text

_RENEW_SECONDS = 1.0  # a lease is 30 s, where nobody has configured another
_AGAIN_SECONDS = 1.0  # between two attempts to evict a pod
_OWNER_SECONDS = 2.0  # between two looks whether the controller of an evicted pod makes another one
# How long an eviction that a former term asked for may take to be carried out: the request, or its answer,
# may have been under way when that term ended.
_IN_DOUBT_SECONDS = 10.0
_LOOK_SECONDS = 0.5  # between two looks whether such a pod is evicted
_DEFAULT_GRACE_SECONDS = 30.0  # the API server's own
_GONE = (404, 409)  # the pod is gone, or the name is another pod's
_PASSING = (LedgerUnavailable, Overloaded, TransportError)
_IN_DOUBT = "perhaps evicted by the former leader; it is looked at again"
_LOST = "evicted, and a takeover took longer than the reservation of its new place lasts"


class _PodMove:
    """One move from its reservation to its end."""

    def __init__(self, run: MoveRun, reserved: ReservedTargets, pod: "_Evictable") -> None:
        self.run = run
        self.reserved = reserved
        self.move: PlannedMove = reserved.moves[0]
        self.pod = pod.seen
        self.grace_seconds = pod.grace_seconds
        self.controller = pod.controller
        self.eviction = BegunEviction(pod.readable, int(reserved.seqs[0]))
        self.is_noted = False  # whether the journal has the eviction
        self.in_doubt = False  # the pod is still there, and a former term may have asked for its eviction
        self.awaited: AwaitedSuccessor[_PodMove] | None = None  # since the eviction was asked for
        self.taken = asyncio.Event()  # a successor has come, and its place is decided


class _Evictable(NamedTuple):
    """A pod that may be evicted."""

    seen: SeenPod
    grace_seconds: float
    controller: PodController | None  # None: of a kind that is not asked for
    readable: bytes  # what it was read from


class PodMoves:
    """`take_over` what a former term left, `end` that, and `make` moves; `place` has to see every new pod."""

    moves_back = False

    def __init__(
        self,
        runtime: Runtime,
        api: KubeApi,
        nodes: ClusterNodes,
        reader: PodReader,
        node_indexes: Mapping[str, int],
        *,
        timeout_seconds: float,
    ) -> None:
        """`node_indexes`: of the ledger's nodes by name, known once the pods are listed. `timeout_seconds`:
        how long a move waits for the API server to evict its pod, and then for a successor once the pod's
        grace period is over."""
        self._runtime = runtime
        self._api = api
        self._nodes = nodes
        self._reader = reader
        self._node_indexes = node_indexes
        self._timeout_seconds = timeout_seconds
        self._awaited: AwaitedSuccessors[_PodMove] = AwaitedSuccessors()
        self._resumed: list[_PodMove] = []  # that a former term began
        self.steps, self.record = MoveSteps(runtime), RunRecord(runtime)

    async def take_over(self, begun: BegunRun, progress: RunProgress) -> MoveRun:
        """The run in this term. From now on the successors of evicted pods get the places that stand."""
        run = MoveRun.continued(begun, progress, index_of=self._node_indexes.get, node_of=lambda _uid: None)
        if run.state is not RunState.DONE:
            await self._runtime.until_answered(self.steps.begin)
            await self._resume(run)
            log_continued(run)
        return run

    async def _resume(self, run: MoveRun) -> None:
        """Find out what became of the pods that the former term evicted."""
        evicted: list[tuple[PlannedMove, BegunEviction]] = []
        nodes = await self._nodes_of_successors(run)
        for move in run.maybe_evicted():
            if move.eviction is None:  # by a version that wrote down no more
                run.refused(move, _LOST)
            elif (successor := move.eviction.successor) and nodes.get(successor[0]) == move.target:
                run.moved(move, successor[1])
            else:
                evicted.append((move, move.eviction))
        if not evicted:
            return
        targets = ReservedTargets.of_evicted(
            [move for move, _ in evicted], [eviction.seq for _, eviction in evicted]
        )
        stand = await self._runtime.until_answered(lambda: self.steps.renew(targets))
        for position, result in enumerate(stand):
            move, eviction = evicted[position]
            # What the former term reserved is another epoch's to the ledger: this move would run into it.
            move.judged_seq = eviction.seq
            stands = targets.of([position]) if result == resolver_pb2.MOVED else None
            await self._await_again(run, move, eviction, stands)
        self._runtime.spawn(self._renew(self._resumed))

    async def _nodes_of_successors(self, run: MoveRun) -> Mapping[bytes, int]:
        """Where the pods are reserved that were to get the places."""
        evictions = [move.eviction for move in run.maybe_evicted() if move.eviction is not None]
        uids = [eviction.successor[0] for eviction in evictions if eviction.successor is not None]
        if not uids:
            return {}
        columns = decode_uids(b"".join(uids))
        found = await self._runtime.until_answered(lambda: self._runtime.ledger.lookup(columns))
        return dict(zip(uids, found.nodes.tolist(), strict=True))

    async def _await_again(
        self, run: MoveRun, move: PlannedMove, eviction: BegunEviction, stands: ReservedTargets | None
    ) -> None:
        """Await the successor of a pod that is evicted. One that is not waits for its turn. `stands`: the
        reservation of its new place; None: it has ended."""
        try:
            pod = self._evictable(orjson.loads(eviction.pod))
            found = await self._runtime.until_answered(lambda: self._find(move), "API server")
        except (Refused, InvalidInput) as exc:
            run.refused(move, f"evicted, and this dispatcher cannot go on with it: {exc}")
            return
        in_doubt = not _has_left(found)
        if in_doubt and stands is None:
            move.eviction = None
            run.waits(move, "")
            return
        if stands is None:  # a pod that has not ended yet still holds what its new place would be
            names = [self._taken(pod.seen, move)]
            stands = await self._runtime.until_answered(lambda: self.steps.reserve(run, [move], names))
            if not stands.moves:
                run.refused(move, f"{_LOST} ({move.text}): its successor is placed as any pod")
                return
        pod_move = _PodMove(run, stands, pod)
        run.evicted(move, pod_move.eviction)
        self._resumed.append(pod_move)
        if in_doubt:
            pod_move.in_doubt, move.text = True, _IN_DOUBT
        else:
            pod_move.awaited = self._awaited.expect(pod_move.pod, pod_move)

    async def _look_again(self, pod_move: _PodMove) -> None:
        """Whether a pod in doubt is evicted meanwhile. Then its successor is awaited."""
        try:
            found = await self._runtime.until_answered(lambda: self._find(pod_move.move), "API server")
        except Refused as exc:
            logger().debug("evicted_pod_not_read", pod=pod_move.move.pod, error=str(exc))
            return
        if pod_move.in_doubt and _has_left(found):  # nobody else has found out in between
            pod_move.in_doubt = False
            pod_move.run.evicted(pod_move.move, pod_move.eviction)
            pod_move.awaited = self._awaited.expect(pod_move.pod, pod_move)

    async def _is_evicted_after_all(self, pod_move: _PodMove) -> bool:
        """False: it was not evicted within the time that this may take, and its move waits for its turn."""
        run, move, began = pod_move.run, pod_move.move, self._runtime.now()
        while pod_move.in_doubt:
            await self._look_again(pod_move)
            if pod_move.in_doubt and self._runtime.now() - began >= _IN_DOUBT_SECONDS:
                pod_move.in_doubt, move.eviction = False, None
                run.waits(move, "")
                if run.state is not RunState.RUNNING:
                    await self.steps.undo(pod_move.reserved)
                return False
            if pod_move.in_doubt:
                await asyncio.sleep(_LOOK_SECONDS)
        return True

    def unmovable(self, row: int) -> str:
        """Why no pod like the one in this row is evicted for a move; empty: it may be."""
        registry = self._runtime.machine.registry
        template = int(registry.pods.template[row])
        kind = registry.templates.kind(template)
        spec = registry.templates.pod_spec(int(registry.templates.class_id[template]))
        why = unmovable_kind(
            spec,
            ours=self._reader.is_ours(kind.scheduler_name),
            owner=kind.owner_kind,
            movable=kind.movable,
            gang=bool(registry.pods.gang[row]),
        )
        return why or unsettled_claim(spec, self._runtime.machine.storage)

    async def until_moved(self, _prefixes: Collection[bytes]) -> None:
        """A successor has a UID of its own."""

    async def end(self, _run: MoveRun) -> None:
        """Return once the moves that a former term began have ended."""
        await asyncio.gather(*map(self._ended, self._resumed))
        self._resumed.clear()

    async def _ended(self, pod_move: _PodMove) -> None:
        if await self._is_evicted_after_all(pod_move):
            await self._succeeded(pod_move)

    async def make(self, run: MoveRun, step: Sequence[PlannedMove]) -> None:
        """Return once each of these moves has ended, or waits again. Raises what ledger and API server
        raise while nothing is evicted."""
        judged: list[PlannedMove] = []
        pods: dict[bytes, _Evictable] = {}
        for move in step:
            found = await self._judged(run, move)
            if found is not None:
                judged.append(move)
                pods[move.uid] = found
        if not judged:
            return
        names = [self._taken(pods[move.uid].seen, move) for move in judged]
        reserved = await self.steps.reserve(run, judged, names)
        moves = [
            _PodMove(run, reserved.of([position]), pods[move.uid])
            for position, move in enumerate(reserved.moves)
        ]
        if moves:
            async with background(self._renew(moves)):
                await asyncio.gather(*map(self._make, moves))

    async def place(self, new: Sequence[SeenPod]) -> Mapping[bytes, int]:
        """Give reserved places to those of these new pods that are awaited: their nodes, by UID."""
        # A pod is evicted before its controller makes another one, so now it shows.
        made_by = {(pod.namespace, pod.owner) for pod in new if pod.ours}
        for pod_move in [*self._resumed]:
            if pod_move.in_doubt and (pod_move.pod.namespace, pod_move.pod.owner) in made_by:
                await self._look_again(pod_move)
        taken = [(pod, found) for pod in new if (found := self._awaited.take(pod)) is not None]
        for pod, pod_move in taken:
            pod_move.run.succeeded(pod_move.move, pod.uid, f"{pod.namespace}/{pod.name}")
        if taken:
            await self._runtime.until_answered(self.record.save, "journal")
        placed: dict[bytes, int] = {}
        for pod, pod_move in taken:
            run, move, name = pod_move.run, pod_move.move, f"{pod.namespace}/{pod.name}"
            (result,) = await self.steps.confirm(pod_move.reserved, decode_uids(pod.uid))
            if result == resolver_pb2.MOVED:
                placed[pod.uid] = move.target
                run.moved(move, name)
            else:
                run.refused(move, f"evicted, and its successor {name} is placed anew: {RESULTS[result]}")
            pod_move.taken.set()
        return placed

    async def _judged(self, run: MoveRun, move: PlannedMove) -> _Evictable | None:
        """The pod, if it may be evicted. Otherwise the move is refused."""
        why = not_at_source(self._runtime, self._nodes, move)
        if not why:
            try:
                found = await self._find(move)
                if found is None:
                    why = "the pod is gone"
                else:
                    pod = self._evictable(found)
                    why = unmovable(pod.seen) or self._without_volumes(pod.seen, move)
            except (Refused, InvalidInput) as exc:
                why = str(exc)
        if why:
            run.refused(move, why)
            return None
        return pod

    def _without_volumes(self, pod: SeenPod, move: PlannedMove) -> str:
        """Why a successor would not have the pod's volumes on the target; empty: it would. They may have
        changed since the plan, which the ledger does not see."""
        machine = self._runtime.machine
        spec, node = pod.template.spec, machine.nodes.get(move.target)
        if node is None:
            return ""  # the ledger refuses it
        return unsettled_claim(spec, machine.storage) or unmounted_volume(
            spec, node.name, node.labels, machine.storage
        )

    def _taken(self, pod: SeenPod, move: PlannedMove) -> Sequence[str]:
        """The names that a successor takes on the target."""
        spec = pod.template.spec
        if spec.volumes is None:
            return ()
        node, storage = self._nodes.name(move.target), self._runtime.machine.storage
        return sorted(set(taken_by_volumes(spec.namespace, spec.volumes, node, storage)))

    def _evictable(self, pod: Object) -> _Evictable:
        """Raises InvalidInput."""
        grace = pod["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
        controller = PodController.of(pod["metadata"])
        readable = orjson.dumps(readable_part(pod))
        return _Evictable(self._reader.read(pod), float(grace), controller, readable)

    async def _find(self, move: PlannedMove) -> Object | None:
        """The pod as the API server has it; None: it is gone."""
        found = await self._api.find(_path(move), patience_seconds=0)
        return found if found is not None and found["metadata"]["uid"] == uid_text(move.uid) else None

    async def _renew(self, moves: Sequence[_PodMove]) -> None:
        """Keep the targets of moves until they have ended."""
        while lasting := [
            pod_move.reserved
            for pod_move in moves
            if pod_move.move.state in (MoveState.WAITING, MoveState.EVICTED)
        ]:
            await asyncio.sleep(_RENEW_SECONDS)
            try:
                await self.steps.renew(ReservedTargets.joined(lasting))
            except _PASSING as exc:
                logger().debug("moves_not_renewed", error=str(exc))

    async def _make(self, pod_move: _PodMove) -> None:
        if not await self._evicted(pod_move):
            if not pod_move.taken.is_set():
                pod_move.move.eviction = None
                await self.steps.undo(pod_move.reserved)
            return
        await self._succeeded(pod_move)

    async def _succeeded(self, pod_move: _PodMove) -> None:
        """Return once the successor of an evicted pod has got its place, or nobody waits for one any more."""
        why = await self._why_no_successor(pod_move)
        if why and await self._withdrawn(pod_move):
            await self.steps.undo(pod_move.reserved)
            stays = not not_at_source(self._runtime, self._nodes, pod_move.move)
            there = "; the pod has not ended" if stays else ""
            pod_move.run.refused(pod_move.move, f"evicted, and {why}: its place is free again{there}")

    async def _why_no_successor(self, pod_move: _PodMove) -> str:
        """Why nobody is waited for any more; empty: the successor has come."""
        seconds = pod_move.grace_seconds + self._timeout_seconds
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(pod_move.taken.wait())]
        if pod_move.controller is not None:
            watched = until_no_more(self._api, pod_move.controller, self._is_known)
            waits.append(asyncio.ensure_future(watched))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if pod_move.taken.is_set():
                return ""
            if pod_move.controller is not None and waits[-1].done():
                return str(waits[-1].result())
            return f"no successor has come within {seconds:g} s"
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _is_known(self, uid: bytes) -> bool:
        rows = self._runtime.machine.registry.directory.rows_of_uids(decode_uids(uid))
        return int(rows[0]) != NONE_U32

    async def _evicted(self, pod_move: _PodMove) -> bool:
        """Evict the pod as soon as the API server allows it. False: it stays, and the run knows why."""
        run, move, began = pod_move.run, pod_move.move, self._runtime.now()
        while move.state is MoveState.WAITING and run.state is RunState.RUNNING:
            problem = await self._attempt(pod_move)
            if problem is None:
                return True
            if pod_move.taken.is_set() or move.state is not MoveState.WAITING:
                return False
            if self._runtime.now() - began > self._timeout_seconds:
                run.refused(move, f"not evicted within {self._timeout_seconds:g} s: {problem}")
                return False
            await asyncio.sleep(_AGAIN_SECONDS)
        return False

    async def _attempt(self, pod_move: _PodMove) -> str | None:
        """Ask once for the eviction. Returns why it was not made; None: it was, or the pod is gone."""
        run, move = pod_move.run, pod_move.move
        try:
            (stands,) = await self.steps.renew(pod_move.reserved)
        except _PASSING as exc:
            return str(exc)
        if stands != resolver_pb2.MOVED:
            run.refused(move, RESULTS[stands])
            return move.text
        run.evicted(move, pod_move.eviction)
        try:
            if not pod_move.is_noted:
                await self.record.save()
                pod_move.is_noted = True
        except _PASSING as exc:
            run.waits(move, str(exc))
            return move.text
        pod_move.awaited = self._awaited.expect(pod_move.pod, pod_move)  # it may come before the answer
        problem, final = await self._ask_to_evict(move)
        if problem is not None and await self._withdrawn(pod_move):
            run.waits(move, problem)
            if final and move.state is MoveState.WAITING:
                run.refused(move, problem)
        return problem

    async def _ask_to_evict(self, move: PlannedMove) -> tuple[str | None, bool]:
        """As `_attempt`, and whether there is no use in asking again."""
        namespace, _, name = move.pod.partition("/")
        body: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid_text(move.uid)}},
        }
        try:
            reply = await self._api.send("POST", f"{_path(move)}/eviction", body)
            if reply.done or (reply.status in _GONE and await self._find(move) is None):
                return None, True
        except (Refused, TransportError) as exc:
            return str(exc), False
        again = reply.passing or reply.status in _GONE
        return f"the API server does not evict it: {reply.message}", not again

    async def _withdrawn(self, pod_move: _PodMove) -> bool:
        """Nobody gets the place from now on. False: somebody has got it."""
        if pod_move.awaited is not None and not self._awaited.withdraw(pod_move.awaited):
            await pod_move.taken.wait()
            return False
        return True


async def until_no_more(
    api: KubeApi,
    controller: PodController,
    is_known: Callable[[bytes], bool],
    *,
    seconds: float = _OWNER_SECONDS,
) -> str:
    """Return once this controller makes no more pods: why. One that may not be read makes some for ever.
    `is_known`: whether a pod has been told of. One that has not may be the successor."""
    while True:
        try:
            found = await api.find(controller.path, patience_seconds=0)
            if why := controller.ended(found) or await _satisfied(api, controller, found or {}, is_known):
                return why
        except Refused as exc:
            logger().warning("controller_not_read", controller=controller.title, error=str(exc))
            await asyncio.Event().wait()
        except TransportError as exc:
            logger().debug("controller_not_read", controller=controller.title, error=str(exc))
        await asyncio.sleep(seconds)


async def _satisfied(
    api: KubeApi, controller: PodController, found: Object, is_known: Callable[[bytes], bool]
) -> str:
    """Why the controller makes no pod now: it has all that it wants. Empty: it makes one, or has just done
    so. Its status may be older than the eviction, so its pods are counted, where the status leaves it
    open."""
    wanted = wanted_pods(found)
    if wanted is None or found.get("status", {}).get("replicas", 0) < wanted:
        return ""
    params = {"labelSelector": pods_selected(found)}
    pods_path = object_path("/api/v1/namespaces", controller.namespace, "pods")
    listed = await api.get(pods_path, params, patience_seconds=0)
    pods = controller.pods_of(listed["items"])
    if len(pods) < wanted or not all(is_known(uid_from_text(pod["metadata"]["uid"])) for pod in pods):
        return ""
    return f"its {controller.title} wants no more than the {len(pods)} pods that it has"


def _has_left(pod: Object | None) -> bool:
    """Whether the pod is gone, or is being deleted."""
    return pod is None or "deletionTimestamp" in pod["metadata"]


def _path(move: PlannedMove) -> str:
    namespace, _, name = move.pod.partition("/")
    return pod_path(namespace, name)
