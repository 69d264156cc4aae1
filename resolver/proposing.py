"""The Propose stream: proposals in, verdicts out as they come, whatever becomes of the ledger meanwhile."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from hoss.errors import InvalidInput, LedgerUnavailable
from hoss.model.resources import BASE_RESOURCES
from hoss.telemetry import logger
from hoss.v1 import resolver_pb2 as pb
from resolver.availability import Availability
from resolver.committer import Committer
from resolver.core.values import Decision, Proposal, Verdict
from resolver.decision_log import DecisionLog
from resolver.displacing import decide_displacing
from resolver.gangs import decide_parts, settle_holds
from resolver.ledger.port import Ledger
from resolver.proposals import read_announcement, read_gang, read_proposal, verdict_message

if TYPE_CHECKING:
    from resolver.tracing import ResolverTraces

_RETRY_AFTER_MS = 250

# Proposals of one stream under way at once; the rest wait unread, and gRPC holds the sender up.
_STREAM_WINDOW = 64

# Proposals in their second phase at once. It does not wait in a committer's queue, and the more there are the longer each
# holds what it holds.
_HOLDING = 16


class Proposing:
    """Answers every batch: decided, invalid, or unavailable. Never ends a stream because of one batch."""

    def __init__(
        self,
        ledger: Ledger,
        committers: Sequence[Committer],
        availability: Availability,
        *,
        allow_unchecked: bool,
        traces: "ResolverTraces | None" = None,
    ) -> None:
        self._traces = traces
        self._log = DecisionLog(logger())
        self._ledger = ledger
        self._committers = committers
        self._availability = availability
        self._allow_unchecked = allow_unchecked
        self._schema = len(BASE_RESOURCES)
        self._holding = asyncio.Semaphore(_HOLDING)
        self.counters: Counter[str] = Counter()

    async def serve(self, batches: AsyncIterator[pb.ProposalBatch]) -> AsyncIterator[pb.VerdictBatch]:
        """Verdicts in the order they are reached."""
        answers: asyncio.Queue[pb.VerdictBatch | None] = asyncio.Queue()
        window = asyncio.Semaphore(_STREAM_WINDOW)
        under_way: set[asyncio.Task[None]] = set()

        async def answer(batch: pb.ProposalBatch) -> None:
            try:
                answers.put_nowait(await self._told(batch))
            finally:
                window.release()

        async def read() -> None:
            async for batch in batches:
                await window.acquire()
                task = asyncio.ensure_future(answer(batch))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            await asyncio.gather(*under_way)
            answers.put_nowait(None)

        reader = asyncio.ensure_future(read())
        reader.add_done_callback(lambda _: answers.put_nowait(None))  # the sender broke off: end as well
        try:
            while (message := await answers.get()) is not None:
                yield message
        finally:
            for task in (reader, *under_way):
                task.cancel()

    async def _told(self, batch: pb.ProposalBatch) -> pb.VerdictBatch:
        """The answer, of which log and trace are told."""
        began_ns, answer = time.time_ns(), await self.answer(batch)
        if batch.uids:
            self._log.decided(batch, answer, time.monotonic())
        if self._traces is not None:
            self._traces.decided(batch, answer, began_ns)
        return answer

    async def answer(self, batch: pb.ProposalBatch) -> pb.VerdictBatch:
        """The answer to one batch."""
        if self._availability.problem:
            return self._unavailable(batch, self._availability.problem)
        try:
            if max(part.resources for part in (batch, *batch.parts)) > self._schema:
                self._schema = len(await self._ledger.schema())
            if not batch.uids and batch.groups:
                return await self._announce(batch)
            parts = [batch, *batch.parts]
            proposals = [
                read_proposal(
                    part, shards=self._ledger.shards, schema=self._schema, allow_unchecked=self._allow_unchecked
                )
                for part in parts
            ]
            if batch.gang_minimum or batch.parts:
                read_gang(parts, proposals)
            of_shards = [(part.shard, proposal) for part, proposal in zip(parts, proposals, strict=True)]
            if batch.parts:
                async with self._holding:
                    decisions = await decide_parts(self._ledger, self._committers, of_shards, batch.gang_minimum)
            else:
                decisions = [await self.decide(batch.shard, proposals[0])]
            # A committer counts what it decides; this was decided after it.
            refused = sum(int((d.verdicts == Verdict.CONFLICT_TOPOLOGY).sum()) for d in decisions if d.awaits)
            if refused:
                self.counters["conflict_topology"] += refused
        except InvalidInput as exc:
            self.counters["invalid"] += 1
            return pb.VerdictBatch(batch_id=batch.batch_id, shard=batch.shard, invalid=str(exc))
        except LedgerUnavailable as exc:
            return self._unavailable(batch, str(exc))
        verdicts = [verdict_message(p.batch_id, p.shard, d) for p, d in zip(parts, decisions, strict=True)]
        verdicts[0].parts.extend(verdicts[1:])
        if decisions[0].verdicts.item(0) == Verdict.STALE_EPOCH and not await self._knows(batch):
            # The verdicts stand beside it: to a worker whose registration the ledger has lost they say to register anew.
            verdicts[0].invalid = f"worker: {batch.worker!r} has never registered with this ledger (GrantEpoch)"
            self.counters["invalid"] += 1
        return verdicts[0]

    async def _announce(self, batch: pb.ProposalBatch) -> pb.VerdictBatch:
        """Rules that pods yet to be placed bear."""
        known = await self._ledger.announce(read_announcement(batch))
        self.counters["announcements"] += 1
        awaits = [pb.ShardPosition(shard=shard, seq=seq) for shard, seq in enumerate(known) if seq]
        return pb.VerdictBatch(batch_id=batch.batch_id, shard=batch.shard, awaits=awaits)

    async def decide(self, shard: int, proposal: Proposal) -> Decision:
        """What becomes of a proposal of one shard, whichever other shards have to be asked. Raises LedgerUnavailable."""
        decision = await self._decide(shard, proposal)
        if not decision.questions:
            return decision
        async with self._holding:
            (settled,) = await settle_holds(self._ledger, [(shard, proposal)], [decision], proposal.gang_minimum)
        return settled

    async def _knows(self, batch: pb.ProposalBatch) -> bool:
        try:
            return await self._ledger.knows(batch.shard, batch.worker)
        except LedgerUnavailable:
            return True  # nobody can tell; the verdicts stand

    async def _decide(self, shard: int, proposal: Proposal) -> Decision:
        if not proposal.displace_gap:
            return await self._committers[shard].decide(proposal)
        decision, displaced = await decide_displacing(self._ledger, self._committers[shard], proposal)
        if displaced:
            self.counters["displaced"] += displaced
        return decision

    def _unavailable(self, batch: pb.ProposalBatch, problem: str) -> pb.VerdictBatch:
        self.counters["unavailable"] += 1
        return pb.VerdictBatch(
            batch_id=batch.batch_id, shard=batch.shard, unavailable=problem, retry_after_ms=_RETRY_AFTER_MS
        )
