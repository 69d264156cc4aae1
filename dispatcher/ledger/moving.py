"""Carries out runs of moves (dispatcher/core/moves.py) in the platform's own mode. Each move is judged by
what the dispatcher knows, reserved and confirmed in the ledger (resolver/core/moves.py), and told to
everybody.

A run ends with the dispatcher's term: nobody goes on with it, and what it had reserved ends by its lease. The
next term fences the epoch of moves before it reads the reservations, so no move of the former term comes
late."""

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.bound.disruption_budgets import PodCounts, RemainingDisruptions
from dispatcher.core.moves import ControllerSeat, MoveRun, MoveState, PlannedMove, RunState
from dispatcher.core.pods.table import Phase
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.errors import InvalidInput, LedgerUnavailable, NotFound, Overloaded, TransportError
from hoss.telemetry import logger
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1 import resolver_pb2
from hoss.wire.columns import NONE_U32, U32, U64, Uids, decode, encode
from hoss.wire.uids import UID_BYTES

MOVER = "hoss-rebalance"  # the name under which moves are made (GrantEpoch)

_PERIOD_SECONDS = 0.1
_FASTEST = 50.0
_RESERVED = (resolver_pb2.COMMITTED, resolver_pb2.DUPLICATE)
_WAITING = (Phase.UNSCHEDULABLE, Phase.BACKOFF)
_REFUSALS: dict[int, str] = {
    0: "the pod holds no reservation that could be moved",
    resolver_pb2.CONFLICT_RESOURCE: "there is no room for it on the node any more",
    resolver_pb2.CONFLICT_PORT: "another pod holds its port on the node",
    resolver_pb2.CONFLICT_DEVICE: "the node has no cards for it any more",
    resolver_pb2.CONFLICT_TOPOLOGY: "pods that its rules concern have come since the plan was made",
    resolver_pb2.CONFLICT_VERSION: "the node has changed since the plan was made",
    resolver_pb2.NODE_GONE: "the node is gone",
    resolver_pb2.NODE_UNSCHEDULABLE: "the node takes no pods",
}
_RESULTS: dict[int, str] = {
    resolver_pb2.TARGET_GONE: "its reservation on the node ended before it was confirmed",
    resolver_pb2.SOURCE_CHANGED: "its own reservation has changed since",
    resolver_pb2.MOVER_FENCED: "another dispatcher has taken over",
}


class Mover:
    """Run `follow` in the background of a term."""

    def __init__(self, runtime: Runtime, nodes: ClusterNodes, *, follows_cluster: bool) -> None:
        self._runtime = runtime
        self._nodes = nodes
        self._follows_cluster = follows_cluster
        self._run: MoveRun | None = None
        self._seat = ControllerSeat()
        self._report: pb.RebalanceController | None = None  # the last one
        self._epoch = 0
        self._at_work = asyncio.Lock()

    async def serve(self, request: pb.RebalanceRequest) -> pb.RebalanceStatus:
        """Raises InvalidInput, NotFound, or what the ledger raises."""
        self._check_mode("action")
        if request.action == pb.REBALANCE_START:
            if refusal := self._seat.refusal(request.controller):
                raise InvalidInput(refusal, where="controller")
            await self._begin(self._planned(request))
        elif request.action != pb.REBALANCE_STATUS:
            await self._steered(request.action)
        return self.status()

    async def hear(self, report: pb.RebalanceController) -> pb.RebalanceStatus:
        """A controller's report. Raises InvalidInput."""
        self._check_mode("controller")
        if not report.id:
            raise InvalidInput("is missing", where="id")
        if refusal := self._seat.report(report.id, self._runtime.now(), paused=report.paused):
            raise InvalidInput(refusal, where="id")
        if report.leaving:
            self._seat.leave(report.id)
        self._report = pb.RebalanceController()
        self._report.CopyFrom(report)
        self._report.heard_unix_ms = self._runtime.now_ms()
        return self.status()

    def _check_mode(self, where: str) -> None:
        if self._follows_cluster:
            raise InvalidInput(
                "the pods are a Kubernetes cluster's: their controllers would have to make them anew, which "
                "this release does not do; `hoss rebalance plan` says which to evict",
                where=where,
            )

    def status(self) -> pb.RebalanceStatus:
        """The present run, or the last one of this term; and the controller."""
        run, controller = self._run, None
        if self._report is not None:
            controller = pb.RebalanceController()
            controller.CopyFrom(self._report)
            controller.paused = bool(self._seat.paused)
        if run is None:
            return pb.RebalanceStatus(controller=controller)
        counts = run.counts()
        return pb.RebalanceStatus(
            state=run.state.value,
            reason=run.reason,
            purpose=run.purpose,
            begun_by=run.controller,
            controller=controller,
            moved=counts[MoveState.MOVED],
            refused=counts[MoveState.REFUSED],
            waiting=counts[MoveState.WAITING],
            moves=[
                pb.MoveStatus(
                    pod=move.pod,
                    source=self._nodes.name(move.source),
                    target=self._nodes.name(move.target),
                    state=move.state.value,
                    text=move.text,
                )
                for move in run.moves
            ],
        )

    async def follow(self) -> None:
        """Make the moves of the present run as they are due, until cancelled."""
        while True:
            await asyncio.sleep(_PERIOD_SECONDS)
            async with self._at_work:
                step = self._run.due(self._runtime.now(), self._waiting()) if self._run is not None else ()
                if self._run is not None and step:
                    try:
                        await self._make(self._run, step)
                    except (LedgerUnavailable, Overloaded, TransportError) as exc:
                        logger().debug("not_moved", error=str(exc))  # they are due again

    async def _steered(self, action: pb.RebalanceAction) -> None:
        """Pause, resume or undo. An undo pauses the controller, which would plan the same again."""
        run = self._run
        if run is None and (self._report is None or action == pb.REBALANCE_UNDO):
            raise InvalidInput(
                "no moves were begun since this dispatcher leads, and no controller has reported",
                where="action",
            )
        self._seat.paused = action != pb.REBALANCE_RESUME
        if run is None:
            return
        if action == pb.REBALANCE_PAUSE:
            run.pause("paused by hand")
        elif action == pb.REBALANCE_RESUME:
            run.resume(self._waiting())
        elif action == pb.REBALANCE_UNDO:
            run.pause("undone by hand")
            async with self._at_work:  # what is on its way is moved, and so undone
                seen = self._runtime.ledger.known().seqs
                shards = await self._runtime.ledger.shard_count()
                back = run.undone(tuple(seen.get(s, 0) for s in range(shards)), self._waiting())
            await self._begin(back)

    def _planned(self, request: pb.RebalanceRequest) -> MoveRun:
        registry, moves = self._runtime.machine.registry, []
        for planned in request.moves:
            namespace, _, name = planned.pod.partition("/")
            row = registry.directory.row_of_name(namespace, name)
            if row is None:
                raise NotFound(f"there is no pod {planned.pod}")
            source, target = self._nodes.index_of(planned.source), self._nodes.index_of(planned.target)
            if source is None or target is None:
                missing = planned.source if source is None else planned.target
                raise NotFound(f"there is no node {missing}")
            moves.append(PlannedMove(registry.pods.uid[row].tobytes(), planned.pod, source, target))
        if not 0 < request.moves_per_second <= _FASTEST:
            raise InvalidInput(f"is more than 0 and at most {_FASTEST:g}", where="moves_per_second")
        seen = tuple(request.seen[shard] for shard in sorted(request.seen))
        return MoveRun(
            moves,
            seen,
            self._waiting(),
            request.moves_per_second,
            purpose=request.purpose,
            controller=request.controller,
        )

    async def _begin(self, run: MoveRun) -> None:
        if self._run is not None and self._run.state is RunState.RUNNING:
            raise InvalidInput("moves are under way; pause or undo them first", where="action")
        async with self._at_work:
            if len(run.seen) != await self._runtime.ledger.shard_count():
                raise InvalidInput("does not name each shard of the ledger once", where="seen")
            self._epoch = await self._runtime.ledger.grant_epoch(MOVER)
            self._run = run
        logger().info("moves_begun", moves=len(run.moves), purpose=run.purpose)

    async def _make(self, run: MoveRun, step: Sequence[PlannedMove]) -> None:
        """Reserve and confirm these moves. Raises what the ledger raises while nothing is reserved."""
        step = self._judged(run, step)
        if not step:
            return
        reply = await self._runtime.ledger.move(self._request(resolver_pb2.MOVE_RESERVE, step, run.seen))
        reserved = []
        for position, (move, verdict) in enumerate(zip(step, reply.verdicts, strict=True)):
            if verdict in _RESERVED:
                reserved.append(position)
            else:
                name = resolver_pb2.Verdict.Name(resolver_pb2.Verdict.ValueType(verdict))
                run.refused(move, _REFUSALS.get(verdict, name))
        if not reserved:
            return
        targets = [step[position] for position in reserved]
        request = self._request(resolver_pb2.MOVE_CONFIRM, targets, run.seen)
        for name, dtype in (("seqs", U64), ("sources", U32), ("source_seqs", U64)):
            column = decode(getattr(reply, name), dtype, name=name, rows=len(step))
            setattr(request, name, encode(column[reserved], dtype))
        # From here on it is repeated until it is answered: whether the pods have moved has to be known.
        answer = await self._runtime.until_answered(lambda: self._runtime.ledger.move(request))
        uids = _uids(targets)
        found = await self._runtime.until_answered(lambda: self._runtime.ledger.lookup(uids))
        await self._told(uids, found.nodes)
        for move, result in zip(targets, answer.results, strict=True):
            if result == resolver_pb2.MOVED:
                run.moved(move)
            else:
                run.refused(move, _RESULTS.get(result, "unknown"))

    def _judged(self, run: MoveRun, step: Sequence[PlannedMove]) -> list[PlannedMove]:
        """The moves that may be made, by the pods and the disruption budgets as they are. The others are
        refused."""
        machine = self._runtime.machine
        registry, pods = machine.registry, machine.registry.pods
        leaving = machine.taint_eviction.leaving()
        left = RemainingDisruptions(lambda: PodCounts(registry, leaving), lambda: machine.objects.budgets)
        rows = registry.directory.rows_of_uids(_uids(step))
        may = []
        for move, row in zip(step, rows.tolist(), strict=True):
            if row == NONE_U32 or pods.phase[row] != Phase.BOUND or row in leaving:
                run.refused(move, "the pod is not bound any more, or is leaving")
            elif pods.node[row] != move.source:
                run.refused(move, f"the pod is on {self._nodes.name(int(pods.node[row]))} by now")
            else:
                spec = registry.templates.pod_spec(int(registry.templates.class_id[pods.template[row]]))
                granted, budget = left.take(spec, 1)
                if granted:
                    may.append(move)
                else:
                    run.refused(
                        move, f"the disruption budget {budget} allows none of its pods to be disrupted"
                    )
        return may

    async def _told(self, uids: Uids, nodes: NDArray[np.uint32]) -> None:
        """Tell the machine where these pods are. What was moved of a pod that was deleted or evicted
        meanwhile is released."""
        registry = self._runtime.machine.registry
        rows = registry.directory.rows_of_uids(uids)
        known = (rows != NONE_U32) & (nodes != NONE_U32)
        self._runtime.handle(m.Moved(rows[known], uids[known], nodes[known]))
        gone = nodes != NONE_U32
        gone[known] = registry.pods.phase[rows[known]] != Phase.BOUND
        if gone.any():
            as_of = self._runtime.ledger.known()
            await self._runtime.until_answered(
                lambda: self._runtime.ledger.release(uids[gone], nodes[gone], as_of)
            )

    def _request(
        self, step: resolver_pb2.MoveStep, moves: Sequence[PlannedMove], seen: Sequence[int]
    ) -> resolver_pb2.MoveRequest:
        return resolver_pb2.MoveRequest(
            step=step,
            worker=MOVER,
            epoch=self._epoch,
            uids=_uids(moves).tobytes(),
            nodes=encode([move.target for move in moves], U32),
            seen=encode(seen, U64),
        )

    def _waiting(self) -> int:
        counts = self._runtime.machine.registry.pods.count_by_phase()
        return sum(int(counts[phase]) for phase in _WAITING)


def _uids(moves: Sequence[PlannedMove]) -> Uids:
    return np.frombuffer(b"".join(move.uid for move in moves), np.uint8).reshape(-1, UID_BYTES)
