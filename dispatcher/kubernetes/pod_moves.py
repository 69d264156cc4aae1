"""Moves in Kubernetes mode (docs/adr/0081-moves-in-kubernetes-mode.md).

A place on the target is reserved in the ledger. Then the pod is evicted by the Eviction API, which honours
disruption budgets, and the successor that its controller makes gets the place. Until then the reservation is
renewed again and again, so it ends soon where nobody does that any more."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dispatcher.core.kubernetes.pod_objects import PodReader, SeenPod
from dispatcher.core.kubernetes.successors import (
    AwaitedSuccessor,
    AwaitedSuccessors,
    PodController,
    unmovable,
)
from dispatcher.core.moves import MoveRun, MoveState, PlannedMove, RunState
from dispatcher.ledger.move_steps import RESULTS, MoveSteps, ReservedTargets
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.ledger.rebinding import not_at_source
from dispatcher.runtime import Runtime
from hoss.errors import InvalidInput, LedgerUnavailable, Overloaded, TransportError
from hoss.kube.api import KubeApi, Object, Refused
from hoss.tasks import background
from hoss.telemetry import logger
from hoss.v1 import resolver_pb2
from hoss.wire.columns import decode_uids
from hoss.wire.uids import uid_text

_RENEW_SECONDS = 1.0  # a lease is 30 s, where nobody has configured another
_AGAIN_SECONDS = 1.0  # between two attempts to evict a pod
_OWNER_SECONDS = 2.0  # between two looks whether the controller of an evicted pod is still there
_DEFAULT_GRACE_SECONDS = 30.0  # the API server's own
_GONE = (404, 409)  # the pod is gone, or the name is another pod's
_PASSING = (LedgerUnavailable, Overloaded, TransportError)


class _PodMove:
    """One move from its reservation to its end."""

    def __init__(self, run: MoveRun, reserved: ReservedTargets, pod: "_Evictable") -> None:
        self.run = run
        self.reserved = reserved
        self.move: PlannedMove = reserved.moves[0]
        self.pod = pod.seen
        self.grace_seconds = pod.grace_seconds
        self.controller = pod.controller
        self.awaited: AwaitedSuccessor[_PodMove] | None = None  # since the eviction was asked for
        self.taken = asyncio.Event()  # a successor has come, and its place is decided


class _Evictable(NamedTuple):
    """A pod that may be evicted."""

    seen: SeenPod
    grace_seconds: float
    controller: PodController | None  # None: of a kind that is not asked for


class PodMoves:
    """`make` moves; `place` has to see every new pod."""

    moves_back = False

    def __init__(
        self,
        runtime: Runtime,
        api: KubeApi,
        nodes: ClusterNodes,
        reader: PodReader,
        *,
        timeout_seconds: float,
    ) -> None:
        """`timeout_seconds`: how long a move waits for the API server to evict its pod, and then for a
        successor once the pod's grace period is over."""
        self._runtime = runtime
        self._api = api
        self._nodes = nodes
        self._reader = reader
        self._timeout_seconds = timeout_seconds
        self._awaited: AwaitedSuccessors[_PodMove] = AwaitedSuccessors()
        self.steps = MoveSteps(runtime)

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
        reserved = await self.steps.reserve(run, judged)
        moves = [
            _PodMove(run, reserved.of([position]), pods[move.uid])
            for position, move in enumerate(reserved.moves)
        ]
        if moves:
            async with background(self._renew(reserved)):
                await asyncio.gather(*map(self._make, moves))

    async def place(self, new: Sequence[SeenPod]) -> Mapping[bytes, int]:
        """Give reserved places to those of these new pods that are awaited: their nodes, by UID."""
        placed: dict[bytes, int] = {}
        for pod in new:
            pod_move = self._awaited.take(pod)
            if pod_move is None:
                continue
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
                    pod = self._reader.read(found)
                    grace = found["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
                    controller = PodController.of(found["metadata"])
                    why = unmovable(pod)
            except (Refused, InvalidInput) as exc:
                why = str(exc)
        if why:
            run.refused(move, why)
            return None
        return _Evictable(pod, float(grace), controller)

    async def _find(self, move: PlannedMove) -> Object | None:
        """The pod as the API server has it; None: it is gone."""
        found = await self._api.find(_path(move), patience_seconds=0)
        return found if found is not None and found["metadata"]["uid"] == uid_text(move.uid) else None

    async def _renew(self, reserved: ReservedTargets) -> None:
        """Keep the targets of moves that have not ended."""
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            lasting = [
                position
                for position, move in enumerate(reserved.moves)
                if move.state in (MoveState.WAITING, MoveState.EVICTED)
            ]
            try:
                await self.steps.renew(reserved.of(lasting))
            except _PASSING as exc:
                logger().debug("moves_not_renewed", error=str(exc))

    async def _make(self, pod_move: _PodMove) -> None:
        if not await self._evicted(pod_move):
            if not pod_move.taken.is_set():
                await self.steps.undo(pod_move.reserved)
            return
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
            waits.append(asyncio.ensure_future(until_gone(self._api, pod_move.controller)))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if pod_move.taken.is_set():
                return ""
            if pod_move.controller is not None and waits[-1].done():
                return f"its {pod_move.controller.title} was deleted"
            return f"no successor has come within {seconds:g} s"
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

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
        pod_move.awaited = self._awaited.expect(pod_move.pod, pod_move)  # it may come before the answer
        run.evicted(move)
        problem, final = await self._ask_to_evict(move)
        if problem is not None and await self._withdrawn(pod_move):
            run.waits(move, problem)
            if final and move.state is MoveState.WAITING:
                run.refused(move, problem)
        return problem

    async def _ask_to_evict(self, move: PlannedMove) -> tuple[str | None, bool]:
        """As `_attempt`, and whether there is no use in asking again."""
        _, _, name = move.pod.partition("/")
        body: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": move.pod.partition("/")[0]},
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


async def until_gone(api: KubeApi, controller: PodController, *, seconds: float = _OWNER_SECONDS) -> None:
    """Return once this controller makes no more pods, because it is deleted or being deleted. One that may
    not be read is there for ever."""
    while True:
        try:
            found = await api.find(controller.path, patience_seconds=0)
        except Refused as exc:
            logger().warning("controller_not_read", controller=controller.title, error=str(exc))
            await asyncio.Event().wait()
        except TransportError as exc:
            logger().debug("controller_not_read", controller=controller.title, error=str(exc))
        else:
            if found is None or "deletionTimestamp" in found["metadata"]:
                return
        await asyncio.sleep(seconds)


def _path(move: PlannedMove) -> str:
    namespace, _, name = move.pod.partition("/")
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
