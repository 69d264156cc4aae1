"""The Move call: the steps of moves (resolver/core/moves.py), for pods and targets on any shards."""

from collections.abc import Awaitable, Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hoss.errors import InvalidInput, LedgerUnavailable
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import U32, U64, Uids, decode, decode_uids, encode
from hoss.wire.convert_rules import definition_moved, group_defined
from resolver.core.moves import MoveResult, Moves, target_proposal, target_uids
from resolver.core.values import MAX_BATCH_PODS, Decision, Proposal, Reservations, Verdict, Writer
from resolver.ledger.port import Ledger
from resolver.messages.proposals import check_worker, group_of

_RESERVED = (Verdict.COMMITTED, Verdict.DUPLICATE)


class Moving:
    """Serves Move. `decide`: the way of proposals to one shard, with the second phase where rules need it."""

    def __init__(self, ledger: Ledger, decide: Callable[[int, Proposal], Awaitable[Decision]]) -> None:
        self._ledger = ledger
        self._decide = decide

    async def serve(self, request: pb.MoveRequest) -> pb.MoveReply:
        """Raises InvalidInput or LedgerUnavailable; then some pods may be done, and the call may be
        repeated."""
        check_worker(request.worker)
        uids = decode_uids(request.uids)
        if len(uids) > MAX_BATCH_PODS:
            raise InvalidInput(f"{len(uids)} pods where a call has up to {MAX_BATCH_PODS}", where="uids")
        if len(np.unique(uids, axis=0)) < len(uids):
            raise InvalidInput("a pod is there twice", where="uids")
        nodes = decode(request.nodes, U32, name="nodes", rows=len(uids))
        writer = Writer(request.term, request.worker, request.epoch, request.journal_write)
        if request.step == pb.MOVE_RESERVE:
            seen = decode(request.seen, U64, name="seen", rows=self._ledger.shards)
            # A dispatcher of an earlier release gives none, and its pods keep the names that they have.
            names = [tuple(taken.names) for taken in request.reserved_names] or None
            if names is not None and len(names) != len(uids):
                raise InvalidInput(f"{len(names)} where there are {len(uids)} pods", where="reserved_names")
            return await self._reserve(
                uids, nodes, names, writer, tuple(seen.tolist()), at_once=request.at_once
            )
        seqs = decode(request.seqs, U64, name="seqs", rows=len(uids))
        if request.step == pb.MOVE_UNDO:
            await self._undo(uids, nodes, seqs, writer)
            return pb.MoveReply()
        if request.step == pb.MOVE_RENEW:
            return await self._renew(uids, nodes, seqs, writer)
        if request.step != pb.MOVE_CONFIRM:
            raise InvalidInput(f"{request.step} is no step", where="step")
        sources = decode(request.sources, U32, name="sources", rows=len(uids))
        source_seqs = decode(request.source_seqs, U64, name="source_seqs", rows=len(uids))
        successors = decode_uids(request.successors) if request.successors else None
        if successors is not None and len(np.unique(successors, axis=0)) != len(uids):
            raise InvalidInput("does not name one pod for each, none twice", where="successors")
        return await self._confirm(Moves(uids, nodes, seqs, sources, source_seqs, successors), writer)

    async def _reserve(
        self,
        uids: Uids,
        nodes: NDArray[np.uint32],
        names: Sequence[tuple[str, ...]] | None,
        writer: Writer,
        seen: tuple[int, ...],
        *,
        at_once: bool,
    ) -> pb.MoveReply:
        verdicts, seqs = np.zeros(len(uids), np.uint8), np.zeros(len(uids), np.uint64)
        sources, source_seqs = np.zeros(len(uids), np.uint32), np.zeros(len(uids), np.uint64)
        results = np.zeros(len(uids), np.uint8)
        held, definitions, rows = await self._held(uids)
        at = held.records["node"]
        alone = np.bincount(rows, minlength=len(uids))[rows] == 1
        if names is not None:
            definitions = [
                definition_moved(text, names[row])
                for text, row in zip(definitions, rows.tolist(), strict=True)
            ]
        # Devices that a pod has been given are its node's, and a successor's claims may be others. A pod that
        # was evicted is to end, and its preemptor may have a share of what it held.
        tied = [bool(text) and bool(group_defined(text).held_claims) for text in definitions]
        may = (nodes[rows] != at) & alone & ~np.array(tied, np.bool_) & ~held.terminating
        sources[rows], source_seqs[rows] = at, held.records["seq"]
        if at_once:
            results[rows[alone & (nodes[rows] == at)]] = MoveResult.MOVED  # by an earlier call
        in_one_step = self._in_one_step(nodes[rows], at, definitions) & at_once
        for shard, one in ((shard, one) for shard in self._shards(nodes[rows[may]]) for one in (True, False)):
            here = np.flatnonzero(may & (nodes[rows] % self._ledger.shards == shard) & (in_one_step == one))
            if not len(here):
                continue
            groups = [group_of(definitions[row]) if definitions[row] else None for row in here.tolist()]
            targets = nodes[rows[here]]
            proposal = target_proposal(held.of(here), groups, targets, writer=writer, seen=seen, at_once=one)
            decision = await self._decide(shard, proposal)
            asked = rows[here]
            verdicts[asked] = decision.verdicts
            # A target that an earlier call reserved elsewhere is another move's.
            duplicate = decision.verdicts == Verdict.DUPLICATE
            verdicts[asked[duplicate & (decision.nodes != targets)]] = 0
            seqs[asked] = decision.seq
            seqs[asked[duplicate]] = decision.duplicate_seqs
            if one:
                results[asked[np.isin(verdicts[asked], _RESERVED)]] = MoveResult.MOVED
        return pb.MoveReply(
            verdicts=verdicts.tobytes(),
            seqs=encode(np.where(np.isin(verdicts, _RESERVED), seqs, 0), U64),
            sources=encode(sources, U32),
            source_seqs=encode(source_seqs, U64),
            results=results.tobytes() if at_once else b"",
        )

    def _in_one_step(
        self, targets: NDArray[np.uint32], sources: NDArray[np.uint32], definitions: list[bytes]
    ) -> NDArray[np.bool_]:
        """Which moves stay on a shard that decides alone: on several shards, shard 0 validates what rules
        concern."""
        alone: NDArray[np.bool_] = targets % self._ledger.shards == sources % self._ledger.shards
        if self._ledger.shards > 1:
            alone &= np.array([not text for text in definitions], np.bool_)
        return alone

    async def _held(self, uids: Uids) -> tuple[Reservations, list[bytes], NDArray[np.intp]]:
        """What the pods hold on all shards, but for what is only prepared; the definitions of their groups;
        and the row in `uids` of each."""
        row_of = {uid.tobytes(): row for row, uid in enumerate(uids)}
        parts: list[Reservations] = []
        definitions: list[bytes] = []
        for shard in range(self._ledger.shards):
            part = await self._ledger.reservations_of(shard, uids)
            part = part if part.prepared is None else part.of(~part.prepared)
            parts.append(part)
            texts, grouped = [b""] * len(part.uids), np.flatnonzero(part.records["group"])
            if len(grouped):
                found = await self._ledger.definitions(shard, part.uids[grouped])
                for row, text in zip(grouped.tolist(), found, strict=True):
                    texts[row] = text
            definitions += texts
        width = max(part.records["requests"].shape[1] for part in parts)
        if any(part.records["requests"].shape[1] < width for part in parts):
            raise LedgerUnavailable("the schema has just become longer; try again")
        held = Reservations(
            np.concatenate([part.uids for part in parts]),
            np.concatenate([part.records for part in parts]),
            np.concatenate([part.assumed for part in parts]),
            parts[0].resources,
        )
        return held, definitions, np.array([row_of[uid.tobytes()] for uid in held.uids], np.intp)

    async def _confirm(self, moves: Moves, writer: Writer) -> pb.MoveReply:
        results = np.zeros(len(moves), np.uint8)
        for shard in self._shards(moves.nodes):
            here = np.flatnonzero(moves.nodes % self._ledger.shards == shard)
            part = moves.of(here)
            results[here] = await self._ledger.confirm_moves(shard, part, writer)
            if part.successors is None and (part.sources % self._ledger.shards != shard).any():
                await self._ledger.finish_moves(shard)
        changed = results == MoveResult.SOURCE_CHANGED
        if changed.any():
            await self._undo(moves.uids[changed], moves.nodes[changed], moves.seqs[changed], writer)
        return pb.MoveReply(results=results.tobytes())

    async def _renew(
        self, uids: Uids, nodes: NDArray[np.uint32], seqs: NDArray[np.uint64], writer: Writer
    ) -> pb.MoveReply:
        results = np.full(len(uids), MoveResult.TARGET_GONE, np.uint8)
        for shard in self._shards(nodes):
            here = nodes % self._ledger.shards == shard
            stand = await self._ledger.commit_prepared(shard, target_uids(uids[here]), seqs[here], writer)
            results[here] = np.where(stand == seqs[here], MoveResult.MOVED, MoveResult.TARGET_GONE)
        return pb.MoveReply(results=results.tobytes())

    async def _undo(
        self, uids: Uids, nodes: NDArray[np.uint32], seqs: NDArray[np.uint64], writer: Writer
    ) -> None:
        for shard in self._shards(nodes):
            here = nodes % self._ledger.shards == shard
            await self._ledger.abort(shard, target_uids(uids[here]), seqs[here], writer)

    def _shards(self, nodes: NDArray[np.uint32]) -> list[int]:
        shards: list[int] = np.unique(nodes % self._ledger.shards).tolist()
        return shards
