"""The ledger port over the resolver's client, and its fence: a dispatcher with an uncertain lease changes
nothing."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.messages import Commits
from dispatcher.leader.leadership import Leadership
from dispatcher.ledger.contents import digests_of_chunk
from dispatcher.ports import (
    Knowledge,
    LedgerMarks,
    LedgerPort,
    LedgerStatus,
    PodLocations,
    ReservationColumns,
    commits_of,
    latest,
)
from hoss.client.resolver import ResolverClient
from hoss.errors import LedgerUnavailable
from hoss.telemetry import logger
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import NONE_U32, U8, U32, U64, Uids, decode, decode_uids
from hoss.wire.uids import uid_text

# A lookup of more pods would block the ledger's Redis for milliseconds and outgrow a message.
LOOKUP_PODS = 10_000


class ResolverLedger:
    """A LedgerPort and a dispatcher.ledger.rebuilding.RebuildableLedger."""

    def __init__(self, client: ResolverClient) -> None:
        self._known_epoch = ""
        self._client = client
        self._shards = 0  # fixed when the ledger was created; requested once
        self._known: dict[int, int] = {}  # by shard, the highest seq that was heard of
        self._rebuilt = False  # in this term
        self._seen: set[int] = set()  # shards of which the feed has shown the rebuilt ledger
        self._first_granted: int | None = None  # in this term

    @property
    def known_epoch(self) -> str:
        """The epoch of our ledger, "" before the first answer."""
        return self._known_epoch

    @known_epoch.setter
    def known_epoch(self, epoch: str) -> None:
        if epoch != self._known_epoch:
            self._rebuilt = bool(self._known_epoch)
            self._known_epoch, self._known, self._seen = epoch, {}, set()

    def note(self, seqs: Mapping[int, int]) -> None:
        """The shards have been at these seqs. A release that is decided from now on is based on that.

        After a rebuild, outcomes and changes of the ledger before it may still arrive. Their seqs are lower
        than those of the rebuilt reservations, which a release that is based on them would leave for ever. So
        a shard counts from its first snapshot on."""
        for shard, seq in seqs.items():
            if not self._rebuilt or shard in self._seen:
                self._known[shard] = max(seq, self._known.get(shard, 0))

    def known(self) -> Knowledge:
        return Knowledge(self._known_epoch, dict(self._known))

    def read(self, message: pb.FeedMessage) -> None:
        """Take in how far the feed of our ledger is."""
        if message.snapshot and message.ledger_epoch == self._known_epoch:
            self._seen.add(message.shard)
        self.note({message.shard: message.seq})

    async def grant_epoch(self, worker: str) -> int:
        granted = await self._client.grant(worker, self._known_epoch)
        self._check_epoch(granted.ledger_epoch)
        epoch = int(granted.epoch)
        self._first_granted = epoch if self._first_granted is None else min(self._first_granted, epoch)
        return epoch

    def granted_in_term(self, epochs: NDArray[np.uint64]) -> NDArray[np.bool_]:
        # A ledger counts its epochs, and grants none to former terms. A rebuilt one counts anew.
        if self._first_granted is None or self._rebuilt:
            return np.zeros(len(epochs), np.bool_)
        granted: NDArray[np.bool_] = epochs >= np.uint64(self._first_granted)
        return granted

    async def lookup(self, uids: Uids) -> PodLocations:
        shards = await self.shard_count()
        parts = [
            await self._client.lookup(uids[i : i + LOOKUP_PODS]) for i in range(0, len(uids), LOOKUP_PODS)
        ]
        for start, part in zip(range(0, len(uids), LOOKUP_PODS), parts, strict=True):
            self._check_epoch(part.ledger_epoch)
            if len(part.other_pods):  # what nobody confirms ends by its lease; the rest is reconciled
                first = uid_text(uids[start + int(part.other_pods[0])].tobytes())
                logger().warning("pods_reserved_twice", reservations=len(part.other_pods), first=first)
        nodes = np.concatenate([part.nodes for part in parts] or [np.empty(0, np.uint32)])
        seqs = np.concatenate([part.seqs for part in parts] or [np.empty(0, np.uint64)])
        states = np.concatenate([part.states for part in parts] or [np.empty(0, np.uint8)])
        pre_binding = states == pb.RESERVATION_PRE_BINDING
        found = nodes != NONE_U32
        self.note(latest(commits_of(nodes[found] % np.uint32(shards), seqs[found])))
        found &= ~pre_binding
        commits = commits_of(nodes[found] % np.uint32(shards), seqs[found])
        return PodLocations(nodes, commits, states == pb.RESERVATION_TERMINATING, pre_binding, seqs)

    async def confirm(self, commits: Commits) -> int:
        return await self._client.confirm(commits)

    async def release(self, uids: Uids, nodes: NDArray[np.uint32] | None, as_of: Knowledge) -> None:
        # The numbers of another ledger say nothing of ours, which was rebuilt from what we knew.
        seqs = as_of.seqs if as_of.ledger_epoch == self._known_epoch else self._known
        for i in range(0, len(uids), LOOKUP_PODS):
            part = slice(i, i + LOOKUP_PODS)
            of_part = None if nodes is None else nodes[part]
            await self._client.release(uids[part], of_part, seqs, self._known_epoch)

    async def move(self, request: pb.MoveRequest) -> pb.MoveReply:
        request.ledger_epoch = self._known_epoch
        return await self._client.move(request)

    async def reservations(self, *, digests: bool = False) -> AsyncGenerator[ReservationColumns, None]:
        shards = await self.shard_count()
        schema: Sequence[str] = ()
        known: dict[bytes, int] = {}
        async for chunk in self._client.reservations():
            named = tuple(chunk.schema) or schema  # the first chunk of each shard has it
            if named != schema:
                schema, known = named, {}
            uids = decode_uids(chunk.uids)
            nodes = decode(chunk.nodes, U32, name="nodes", rows=len(uids))
            seqs = decode(chunk.seqs, U64, name="seqs", rows=len(uids))
            epochs = decode(chunk.epochs, U64, name="epochs", rows=len(uids))
            assumed = decode(chunk.assumed, U8, name="assumed", rows=len(uids)) != 0
            # What is only prepared was told to nobody. It ends by itself, or is committed and found later.
            states = decode(chunk.states, U8, name="states", rows=len(uids))
            settled = states != pb.RESERVATION_PREPARED
            none = np.zeros(len(uids), np.uint64)
            held = digests_of_chunk(chunk, schema, known) if digests else none
            if len(uids):
                self.note({chunk.shard: int(seqs.max())})
            yield ReservationColumns(
                uids=uids[settled],
                nodes=nodes[settled],
                shards=nodes[settled] % np.uint32(shards),  # node index i lies on shard i mod S
                seqs=seqs[settled],
                assumed=assumed[settled],
                epochs=epochs[settled],
                terminating=states[settled] == pb.RESERVATION_TERMINATING,
                pre_binding=states[settled] == pb.RESERVATION_PRE_BINDING,
                digests=held[settled],
            )

    async def dispatcher_marks(self) -> LedgerMarks:
        status = await self._client.status()
        if status.problem:
            raise LedgerUnavailable(status.problem)
        return LedgerMarks(status.dispatcher_term, (status.journal_term, status.journal_write))

    async def announce_rebuild(self, waits_for: str) -> None:
        await self._client.announce_rebuild(waits_for)

    async def status(self) -> LedgerStatus:
        status = await self._client.status()
        return LedgerStatus(status.standing or status.ledger_epoch, status.recovering, status.shards or 1)

    async def rebuild(self, parts: Iterable[pb.LedgerPart]) -> pb.RebuildReply:
        return await self._client.rebuild(parts)

    def _check_epoch(self, ledger_epoch: str) -> None:
        if ledger_epoch and self.known_epoch not in ("", ledger_epoch):
            raise LedgerUnavailable(
                "the resolver answers for another ledger than the one that was known; it is to be rebuilt"
            )

    async def shard_count(self) -> int:
        if not self._shards:
            self._shards = (await self._client.status()).shards or 1
        return self._shards


class FencedLedger:
    """A LedgerPort whose changes raise LedgerUnavailable while the dispatcher's lease is uncertain."""

    def __init__(self, inner: LedgerPort, leadership: Leadership) -> None:
        self._inner = inner
        self._leadership = leadership
        self.lookup = inner.lookup
        self.reservations = inner.reservations
        self.granted_in_term = inner.granted_in_term
        self.shard_count = inner.shard_count
        self.dispatcher_marks = inner.dispatcher_marks
        self.note = inner.note
        self.known = inner.known

    async def grant_epoch(self, worker: str) -> int:
        self._leadership.require_valid_lease()
        return await self._inner.grant_epoch(worker)

    async def confirm(self, commits: Commits) -> int:
        self._leadership.require_valid_lease()
        return await self._inner.confirm(commits)

    async def release(self, uids: Uids, nodes: NDArray[np.uint32] | None, as_of: Knowledge) -> None:
        self._leadership.require_valid_lease()
        await self._inner.release(uids, nodes, as_of)

    async def move(self, request: pb.MoveRequest) -> pb.MoveReply:
        self._leadership.require_valid_lease()
        return await self._inner.move(request)
