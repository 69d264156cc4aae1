"""Carries out runs of moves (dispatcher/core/moves.py): begins, steers and reports them. How a move is made
depends on the mode: dispatcher/ledger/rebinding.py, dispatcher/kubernetes/pod_moves.py.

A run ends with the dispatcher's term: nobody goes on with it, and what it had reserved ends by its lease. The
next term fences the epoch of moves before it reads the reservations, so no move of the former term comes
late."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from dispatcher.core.moves import ControllerSeat, MoveRun, MoveState, PlannedMove, RunState
from dispatcher.core.pods.table import Phase
from dispatcher.ledger.move_steps import MoveSteps
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.errors import InvalidInput, LedgerUnavailable, NotFound, Overloaded, TransportError
from hoss.telemetry import logger
from hoss.v1 import dispatcher_pb2 as pb

_PERIOD_SECONDS = 0.1
_FASTEST = 50.0
_WAITING = (Phase.UNSCHEDULABLE, Phase.BACKOFF)


class MoveMaker(Protocol):
    """How moves are made in a mode."""

    steps: MoveSteps
    moves_back: bool  # whether a move that was made can be undone

    async def make(self, run: MoveRun, step: Sequence[PlannedMove], /) -> None:
        """Make these moves, and tell the run what became of each; those that wait still are due again. Raises
        what ledger or API server raise, before anything is changed."""


class Mover:
    """Run `follow` in the background of a term."""

    def __init__(self, runtime: Runtime, nodes: ClusterNodes, maker: MoveMaker) -> None:
        self._runtime = runtime
        self._nodes = nodes
        self._maker = maker
        self._run: MoveRun | None = None
        self._seat = ControllerSeat()
        self._report: pb.RebalanceController | None = None  # the last one
        self._at_work = asyncio.Lock()

    async def serve(self, request: pb.RebalanceRequest) -> pb.RebalanceStatus:
        """Raises InvalidInput, NotFound, or what the ledger raises."""
        if request.action == pb.REBALANCE_START:
            if refusal := self._seat.refusal(request.controller):
                raise InvalidInput(refusal, where="controller")
            await self._begin(self._planned(request))
        elif request.action != pb.REBALANCE_STATUS:
            await self._steered(request.action)
        return self.status()

    async def hear(self, report: pb.RebalanceController) -> pb.RebalanceStatus:
        """A controller's report. Raises InvalidInput."""
        if not self._maker.moves_back:
            raise InvalidInput(
                "the pods are a Kubernetes cluster's: the controller does not recognise the successors of"
                " pods that it has moved; `hoss rebalance run` makes the moves of one plan",
                where="controller",
            )
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
            evicted=counts[MoveState.EVICTED],
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
                        await self._maker.make(self._run, step)
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
        elif action == pb.REBALANCE_UNDO and not self._maker.moves_back:
            run.take_back()
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
        if self._run is not None and (evicted := self._run.counts()[MoveState.EVICTED]):
            raise InvalidInput(
                f"the successors of {evicted} pods are awaited; try again once `hoss rebalance status` shows"
                " none",
                where="action",
            )
        async with self._at_work:
            if len(run.seen) != await self._runtime.ledger.shard_count():
                raise InvalidInput("does not name each shard of the ledger once", where="seen")
            await self._maker.steps.begin()
            self._run = run
        logger().info("moves_begun", moves=len(run.moves), purpose=run.purpose)

    def _waiting(self) -> int:
        counts = self._runtime.machine.registry.pods.count_by_phase()
        return sum(int(counts[phase]) for phase in _WAITING)
