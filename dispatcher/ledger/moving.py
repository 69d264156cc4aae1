"""Carries out runs of moves (dispatcher/core/moves.py): begins, steers and reports them. How a move is made
depends on the mode: dispatcher/ledger/rebinding.py, dispatcher/kubernetes/pod_moves.py.

A run is in the journal, so the next leader goes on with it. It judges each move that is left anew, as this
one would. The next term fences the epoch of moves before it reads the reservations, so no move of the former
term comes late, and where a pod is then says whether its move was made. Of evicted pods the journal has more.

Clients are told what the journal has. So a takeover never takes back what somebody was told."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from dispatcher.core.moves import (
    BegunRun,
    ControllerSeat,
    MoveRun,
    MoveState,
    PlannedMove,
    RunProgress,
    RunState,
    is_reserved,
)
from dispatcher.core.pods.table import Phase
from dispatcher.ledger.move_steps import MoveSteps, RunRecord, log_continued
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.ports import Recovered
from dispatcher.runtime import Runtime
from hoss.errors import InvalidInput, LedgerUnavailable, Overloaded, TransportError
from hoss.telemetry import logger
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U32
from hoss.wire.uids import UID_BYTES

_PERIOD_SECONDS = 0.1
_SAVE_SECONDS = 0.5  # between two notes of how far a run is
_FASTEST = 50.0
_LONGEST_WAIT_SECONDS = 600.0  # of pods for moves, before they preempt
MOST_MOVES = 10_000  # of a run: it is written to the journal in one step
NO_UID = bytes(UID_BYTES)  # of a pod that is gone
_WAITING = (Phase.UNSCHEDULABLE, Phase.BACKOFF)


class MoveMaker(Protocol):
    """How moves are made in a mode."""

    steps: MoveSteps
    record: RunRecord
    moves_back: bool  # whether a move that was made can be undone

    async def until_moved(self, prefixes: Collection[bytes], /) -> None:
        """Return once no pod whose UID begins so is on its way from one node to another."""

    async def take_over(self, begun: BegunRun, progress: RunProgress, /) -> MoveRun | None:
        """The run that the former term has left; None where it needs to know the nodes first."""

    async def make(self, run: MoveRun, step: Sequence[PlannedMove], /) -> None:
        """Make these moves, and tell the run what became of each; those that wait still are due again. Raises
        what ledger or API server raise, before anything is changed."""

    def unmovable(self, row: int, /) -> str:
        """Why pods like the one in this row are not moved in this mode; empty: they may be."""

    async def end(self, run: MoveRun, /) -> None:
        """Return once the moves that the former term had begun, and that went on, have ended."""


class Mover:
    """Run `follow` in the background of a term."""

    def __init__(self, runtime: Runtime, nodes: ClusterNodes, maker: MoveMaker) -> None:
        self._runtime = runtime
        self._nodes = nodes
        self._maker = maker
        self._record = maker.record
        # Of the former term, until the nodes are known.
        self._left: tuple[BegunRun, RunProgress] | None = None
        self._seat = ControllerSeat()
        self._noted_pause: bool | None = None  # in the journal
        self._report: pb.RebalanceController | None = None  # the last one
        self._at_work = asyncio.Lock()

    def unmovable(self, row: int) -> str:
        """Why moves leave the pod in this row alone; empty: they need not."""
        return self._maker.unmovable(row)

    async def until_moved(self, prefixes: Collection[bytes]) -> None:
        """Return once no pod whose UID begins so is on its way from one node to another."""
        await self._maker.until_moved(prefixes)

    async def take_over(self, journal: Recovered) -> None:
        """Go on with the run that the journal has. The pods are listed, the moves of the former term are
        fenced, and nothing that pods hold has been released since."""
        left = journal.moves
        self._seat.paused = self._noted_pause = journal.controller_paused
        if left is not None:
            self._record.begun, self._record.progress = left
            self._record.run = await self._maker.take_over(*left)
            self._left = left if self._record.run is None else None
            await self._runtime.until_answered(self._record.save, "journal")

    async def serve(self, request: pb.RebalanceRequest) -> pb.RebalanceStatus:
        """Raises InvalidInput, NotFound, or what the ledger raises."""
        if request.action == pb.REBALANCE_START:
            if refusal := self._seat.refusal(request.controller):
                raise InvalidInput(refusal, where="controller")
            await self._begin(self._planned(request))
        elif request.action != pb.REBALANCE_STATUS:
            await self._steered(request.action)
        elif request.previous:
            previous = self._record.previous
            return pb.RebalanceStatus() if previous is None else _run_status(*previous)
        return self.status()

    async def hear(self, report: pb.RebalanceController) -> pb.RebalanceStatus:
        """A controller's report. Raises InvalidInput."""
        if not report.id:
            raise InvalidInput("is missing", where="id")
        if refusal := self._seat.report(report.id, self._runtime.now(), paused=report.paused):
            raise InvalidInput(refusal, where="id")
        wait = report.preemption_wait_seconds
        if not 0 <= wait <= _LONGEST_WAIT_SECONDS:
            raise InvalidInput(
                f"is {wait:g}; 0 to {_LONGEST_WAIT_SECONDS:g} are allowed", where="preemption_wait_seconds"
            )
        if report.leaving:
            self._seat.leave(report.id)
        self._runtime.machine.preemption_holds.report(
            0.0 if report.leaving or self._seat.paused else wait,
            report.preemption_wait_up_to_priority,
            report.considered_hold,
            self._runtime.now(),
        )
        self._report = pb.RebalanceController()
        self._report.CopyFrom(report)
        self._report.heard_unix_ms = self._runtime.now_ms()
        return self.status()

    def status(self) -> pb.RebalanceStatus:
        """The present run, or the last one of this term; and the controller."""
        controller = None
        hold = self._runtime.machine.latest_hold(self._runtime.now())
        if self._report is not None:
            controller = pb.RebalanceController()
            controller.CopyFrom(self._report)
            controller.paused = bool(self._seat.paused)
        begun, progress = self._record.begun, self._record.progress
        if begun is None or progress is None:
            return pb.RebalanceStatus(controller=controller, preemption_hold=hold)
        status = _run_status(begun, progress)
        status.MergeFrom(pb.RebalanceStatus(controller=controller, preemption_hold=hold))
        return status

    async def follow(self) -> None:
        """Make the moves of the present run as they are due, until cancelled."""
        if self._record.run is not None:
            async with self._at_work:
                await self._maker.end(self._record.run)
        while True:
            await asyncio.sleep(_PERIOD_SECONDS)
            async with self._at_work:
                await self._go_on()
                run = self._record.run
                step = () if run is None else run.due(self._runtime.now(), self._waiting())
                if run is not None and step:
                    try:
                        await self._maker.make(run, step)
                        await self._record.save()
                    except (LedgerUnavailable, Overloaded, TransportError) as exc:
                        logger().debug("not_moved", error=str(exc))  # they are due again

    async def keep(self) -> None:
        """Note in the journal how far the present run is, until cancelled."""
        while True:
            await asyncio.sleep(_SAVE_SECONDS)
            try:
                await self._record.save()
            except LedgerUnavailable as exc:
                logger().debug("moves_not_saved", error=str(exc))

    async def _go_on(self) -> None:
        """Go on with what the former term left, once the names of nodes are known."""
        if self._left is None or not self._nodes.complete:
            return
        left, index_of = self._left, self._nodes.index_of
        run = MoveRun.continued(*left, index_of=index_of, node_of=self._node_of)
        try:
            if run.state is not RunState.DONE:
                await self._maker.steps.begin()
        except (LedgerUnavailable, Overloaded, TransportError) as exc:
            logger().debug("moves_not_continued", error=str(exc))
            return
        self._record.run, self._left = run, None
        if run.state is not RunState.DONE:
            log_continued(run)

    def _node_of(self, uid: bytes) -> int | None:
        """Where the pod is bound, if it is."""
        registry = self._runtime.machine.registry
        row = int(registry.directory.rows_of_uids(np.frombuffer(uid, np.uint8).reshape(1, -1))[0])
        if row == NONE_U32 or registry.pods.phase[row] != Phase.BOUND:
            return None
        return int(registry.pods.node[row])

    async def _steered(self, action: pb.RebalanceAction) -> None:
        """Pause, resume or undo. An undo pauses the controller, which would plan the same again."""
        self._expect_no_left_over()
        run = self._record.run
        if run is None and (self._report is None or action == pb.REBALANCE_UNDO):
            raise InvalidInput(
                "there are no moves, and no controller has reported since this dispatcher leads",
                where="action",
            )
        if action == pb.REBALANCE_UNDO and run is not None and run.undo and run.state is RunState.RUNNING:
            # It is repeated, by a person or because its answer was lost: what the first one began goes on.
            run = None
        self._seat.paused = action != pb.REBALANCE_RESUME
        if run is not None:
            self._steer(run, action)
        await self._note_pause()
        if run is None:
            return
        await self._record.save()
        if action == pb.REBALANCE_UNDO and self._maker.moves_back:
            async with self._at_work:  # what is on its way is moved, and so undone
                seen = self._runtime.ledger.known().seqs
                shards = await self._runtime.ledger.shard_count()
                back = run.undone(tuple(seen.get(s, 0) for s in range(shards)), self._waiting())
            await self._begin(back)

    def _steer(self, run: MoveRun, action: pb.RebalanceAction) -> None:
        if action == pb.REBALANCE_PAUSE:
            run.pause("paused by hand")
        elif action == pb.REBALANCE_RESUME:
            run.resume(self._waiting())
        elif action == pb.REBALANCE_UNDO and self._maker.moves_back:
            run.pause("undone by hand")
        elif action == pb.REBALANCE_UNDO:
            run.take_back()

    async def _note_pause(self) -> None:
        """Write down whether the controller is paused: it may die before it hears of it, and so may this
        dispatcher. One that has not reported in this term may come in the next one."""
        paused = self._seat.paused
        if paused is not None and paused != self._noted_pause:
            await self._runtime.journal.save_controller_pause(paused)
            self._noted_pause = paused

    def _planned(self, request: pb.RebalanceRequest) -> MoveRun:
        if len(request.moves) > MOST_MOVES:
            raise InvalidInput(
                f"are {len(request.moves):,}, and a run has up to {MOST_MOVES:,}; plan fewer with"
                " --max-moves",
                where="moves",
            )
        if not 0 < request.moves_per_second <= _FASTEST:
            raise InvalidInput(f"is more than 0 and at most {_FASTEST:g}", where="moves_per_second")
        if is_reserved(request.purpose):
            raise InvalidInput(
                f"is {request.purpose!r}: only runs that the dispatcher begins itself are named so",
                where="purpose",
            )
        seen = tuple(request.seen[shard] for shard in sorted(request.seen))
        return MoveRun(
            [self._planned_move(move) for move in request.moves],
            seen,
            self._waiting(),
            request.moves_per_second,
            purpose=request.purpose,
            controller=request.controller,
        )

    def _planned_move(self, planned: pb.RebalanceMove) -> PlannedMove:
        """A plan may be older than the cluster: a move of what is gone is refused, and others are made."""
        registry = self._runtime.machine.registry
        namespace, _, name = planned.pod.partition("/")
        row = registry.directory.row_of_name(namespace, name)
        source, target = self._nodes.index_of(planned.source), self._nodes.index_of(planned.target)
        why = ""
        if row is None:
            why = "there is no such pod any more"
        elif source is None or target is None:
            why = f"there is no node {planned.source if source is None else planned.target} any more"
        elif source == target:
            why = "it would move to the node that it is on"
        return PlannedMove(
            NO_UID if row is None else registry.pods.uid[row].tobytes(),
            planned.pod,
            -1 if source is None else source,
            -1 if target is None else target,
            MoveState.REFUSED if why else MoveState.WAITING,
            why,
        )

    def _expect_no_left_over(self) -> None:
        if self._left is not None:
            raise LedgerUnavailable(
                "this dispatcher goes on with moves of an earlier one as soon as it knows the ledger's nodes;"
                " try again"
            )

    async def _begin(self, run: MoveRun) -> None:
        self._expect_no_left_over()
        present = self._record.run
        if present is not None and present.state is RunState.RUNNING:
            raise InvalidInput("moves are under way; pause or undo them first", where="action")
        if present is not None and (evicted := present.counts()[MoveState.EVICTED]):
            raise InvalidInput(
                f"the successors of {evicted} pods are awaited; try again once `hoss rebalance status` shows"
                " none",
                where="action",
            )
        async with self._at_work:
            shards = await self._runtime.ledger.shard_count()
            if len(run.seen) != shards:
                raise InvalidInput(
                    f"names {len(run.seen)} shards, and the ledger has {shards}: the plan is of another"
                    " platform; plan again",
                    where="seen",
                )
            await self._maker.steps.begin()
            await self._record.begin(run, self._nodes.name)  # durable before the first move
        logger().info("moves_begun", moves=len(run.moves), purpose=run.purpose)

    def _waiting(self) -> int:
        counts = self._runtime.machine.registry.pods.count_by_phase()
        return sum(int(counts[phase]) for phase in _WAITING)


def _run_status(begun: BegunRun, progress: RunProgress) -> pb.RebalanceStatus:
    counts = progress.counts()
    return pb.RebalanceStatus(
        state=progress.state,
        reason=progress.reason,
        purpose=begun.purpose,
        begun_by=begun.controller,
        undo=begun.undo,
        moved=counts[MoveState.MOVED],
        refused=counts[MoveState.REFUSED],
        waiting=counts[MoveState.WAITING],
        evicted=counts[MoveState.EVICTED],
        moves=[_move_status(number, begun, progress) for number in range(len(begun.moves))],
    )


def _move_status(number: int, begun: BegunRun, progress: RunProgress) -> pb.MoveStatus:
    _, pod, source, target = begun.moves[number]
    state, text = progress.of_move(number), progress.texts.get(number, "")
    status = pb.MoveStatus(pod=pod, source=source, target=target, state=state.value, text=text)
    if state is MoveState.MOVED and text:
        status.successor, status.text = text, f"its successor is {text}"
    return status
