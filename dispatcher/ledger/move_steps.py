"""The ledger's steps of moves (resolver/core/moves.py), under the epoch of one run, and the journal's record
of the run."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.moves import BegunRun, MoveRun, PlannedMove, RunProgress
from dispatcher.runtime import Runtime
from hoss.telemetry import logger
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import U32, U64, Uids, decode, encode
from hoss.wire.uids import UID_BYTES

MOVER = "hoss-rebalance"  # the name under which moves are made (GrantEpoch)

_RESERVED = (pb.COMMITTED, pb.DUPLICATE)
_REFUSALS: dict[int, str] = {
    0: "the pod holds no reservation that could be moved, was evicted, or holds devices of its node",
    pb.CONFLICT_RESOURCE: "there is no room for it on the node any more",
    pb.CONFLICT_PORT: "another pod holds its port on the node",
    pb.CONFLICT_DEVICE: "the node has no cards for it any more",
    pb.CONFLICT_TOPOLOGY: "pods that its rules or volumes concern have come since the plan was made",
    pb.CONFLICT_VERSION: "the node has changed since the plan was made",
    pb.NODE_GONE: "the node is gone",
    pb.NODE_UNSCHEDULABLE: "the node takes no pods",
}
RESULTS: dict[int, str] = {
    pb.TARGET_GONE: "its reservation on the node ended before it was confirmed",
    pb.SOURCE_CHANGED: "its own reservation has changed since",
    pb.MOVER_FENCED: "another dispatcher has taken over",
}


@dataclass(frozen=True, slots=True, eq=False)
class ReservedTargets:
    """Moves whose targets are reserved, with what names the reservations in the ledger."""

    moves: tuple[PlannedMove, ...]
    seqs: NDArray[np.uint64]
    sources: NDArray[np.uint32]
    source_seqs: NDArray[np.uint64]

    def of(self, positions: Sequence[int]) -> "ReservedTargets":
        """Some of them."""
        at = np.array(positions, np.intp)
        moves = tuple(self.moves[position] for position in positions)
        return ReservedTargets(moves, self.seqs[at], self.sources[at], self.source_seqs[at])

    @property
    def uids(self) -> Uids:
        """(n, 16), of the pods."""
        return uids_of(self.moves)

    @classmethod
    def of_evicted(cls, moves: Sequence[PlannedMove], seqs: Sequence[int]) -> "ReservedTargets":
        """Those of evicted pods. What these hold themselves is not asked for any more."""
        none = np.zeros(len(moves), np.uint32)
        return cls(tuple(moves), np.array(seqs, np.uint64), none, none.astype(np.uint64))

    @classmethod
    def joined(cls, parts: Sequence["ReservedTargets"]) -> "ReservedTargets":
        """All of these."""
        return cls(
            tuple(move for part in parts for move in part.moves),
            np.concatenate([part.seqs for part in parts]),
            np.concatenate([part.sources for part in parts]),
            np.concatenate([part.source_seqs for part in parts]),
        )


class MoveSteps:
    """`begin` a run first. What was asked for in an earlier run is fenced by that."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._epoch = 0

    async def begin(self) -> None:
        """Raises what the ledger raises."""
        self._epoch = await self._runtime.ledger.grant_epoch(MOVER)

    async def rebind(
        self, run: MoveRun, step: Sequence[PlannedMove]
    ) -> tuple[list[PlannedMove], ReservedTargets]:
        """Move what one step of the ledger can move, and reserve the targets of the others. Returns both:
        what is moved, and what is to be confirmed. Repeated until it is answered, because where the pods are
        has to be known."""
        request = self._request(pb.MOVE_RESERVE, step)
        request.seen, request.at_once = encode(run.seen, U64), True
        request.reserved_names.extend(pb.ReservedNames() for _ in step)  # where no names are taken
        reply = await self._runtime.until_answered(lambda: self._runtime.ledger.move(request))
        # A resolver of an earlier release reserves all targets, and says nothing of results.
        moved = [move for move, result in zip(step, reply.results, strict=False) if result == pb.MOVED]
        return moved, self._reserved(run, step, reply)

    async def reserve(
        self, run: MoveRun, step: Sequence[PlannedMove], names: Sequence[Sequence[str]]
    ) -> ReservedTargets:
        """Reserve targets, with the names of what each pod takes there. Moves that the ledger refuses are
        refused. Raises what the ledger raises; then some targets may be reserved."""
        by_seen: dict[tuple[int, ...], list[int]] = {}
        for position, move in enumerate(step):
            by_seen.setdefault(run.seen_for(move), []).append(position)
        parts = []
        for seen, positions in by_seen.items():
            moves = [step[position] for position in positions]
            request = self._request(pb.MOVE_RESERVE, moves)
            request.seen = encode(seen, U64)
            request.reserved_names.extend(pb.ReservedNames(names=names[at]) for at in positions)
            parts.append(self._reserved(run, moves, await self._runtime.ledger.move(request)))
        return ReservedTargets.joined(parts)

    def _reserved(self, run: MoveRun, step: Sequence[PlannedMove], reply: pb.MoveReply) -> ReservedTargets:
        """Those whose targets are reserved and not taken yet. Refusals are told to the run."""
        reserved = []
        results = reply.results or bytes(len(step))
        for position, (move, verdict) in enumerate(zip(step, reply.verdicts, strict=True)):
            if results[position] == pb.MOVED:
                continue
            if verdict in _RESERVED:
                reserved.append(position)
            else:
                name = pb.Verdict.Name(pb.Verdict.ValueType(verdict))
                run.refused(move, _REFUSALS.get(verdict, name))
        columns = (
            decode(getattr(reply, name), dtype, name=name, rows=len(step))
            for name, dtype in (("seqs", U64), ("sources", U32), ("source_seqs", U64))
        )
        return ReservedTargets(tuple(step), *columns).of(reserved)

    async def confirm(self, reserved: ReservedTargets, successors: Uids | None = None) -> list[int]:
        """Give the targets to the pods, or to their successors: a MoveResult of each. Repeated until it is
        answered, because where the pods are has to be known."""
        request = self._request(pb.MOVE_CONFIRM, reserved.moves, reserved.seqs)
        request.sources = encode(reserved.sources, U32)
        request.source_seqs = encode(reserved.source_seqs, U64)
        if successors is not None:
            request.successors = successors.tobytes()
        reply = await self._runtime.until_answered(lambda: self._runtime.ledger.move(request))
        return list(reply.results)

    async def renew(self, reserved: ReservedTargets) -> list[int]:
        """Let the targets last for another lease: MOVED for each that stands. Raises what the ledger
        raises."""
        request = self._request(pb.MOVE_RENEW, reserved.moves, reserved.seqs)
        return list((await self._runtime.ledger.move(request)).results)

    async def undo(self, reserved: ReservedTargets) -> None:
        """Release the targets. Repeated until it is answered."""
        request = self._request(pb.MOVE_UNDO, reserved.moves, reserved.seqs)
        await self._runtime.until_answered(lambda: self._runtime.ledger.move(request))

    def _request(
        self, step: pb.MoveStep, moves: Sequence[PlannedMove], seqs: NDArray[np.uint64] | None = None
    ) -> pb.MoveRequest:
        return pb.MoveRequest(
            step=step,
            worker=MOVER,
            epoch=self._epoch,
            uids=uids_of(moves).tobytes(),
            nodes=encode([move.target for move in moves], U32),
            seqs=b"" if seqs is None else encode(seqs, U64),
        )


def log_continued(run: MoveRun) -> None:
    """Say that this term goes on with a run of the former one."""
    counts = {state.value: moves for state, moves in run.counts().items()}
    logger().info("moves_continued", purpose=run.purpose, **counts)


class RunRecord:
    """The present run, and what the journal has of it or of the last one. Clients are told no more than the
    journal has: the next term knows that, too."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._writing = asyncio.Lock()
        self.run: MoveRun | None = None
        self.begun: BegunRun | None = None  # None: there was no run
        self.progress: RunProgress | None = None
        self.previous: tuple[BegunRun, RunProgress] | None = None  # the run before, in this term, as it ended

    async def begin(self, run: MoveRun, name: Callable[[int], str]) -> None:
        """A run takes the place of the last one. `name`: of a node. Raises what the journal raises."""
        async with self._writing:
            begun, progress = run.begun(name), run.progress()
            await self._runtime.journal.save_moves(begun, progress)
            if self.run is not None and self.begun is not None:
                self.previous = self.begun, self.run.progress()
            self.run, self.begun, self.progress = run, begun, progress

    async def save(self) -> None:
        """Return once the journal has how far the run is now. Raises what the journal raises."""
        async with self._writing:  # who waited finds that the one before has written for all
            progress = None if self.run is None else self.run.progress()
            if progress is not None and progress != self.progress:
                await self._runtime.journal.save_progress(progress)
                self.progress = progress


def uids_of(moves: Sequence[PlannedMove]) -> Uids:
    """(n, 16), of the pods."""
    return np.frombuffer(b"".join(move.uid for move in moves), np.uint8).reshape(-1, UID_BYTES)
