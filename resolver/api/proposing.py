"""The Propose stream: answers every batch of proposals, whatever happens to the ledger meanwhile."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hoss.errors import InvalidInput, LedgerUnavailable, quoted
from hoss.host import THIS_HOST
from hoss.model.resources import BASE_RESOURCES
from hoss.security.identity import caller
from hoss.telemetry import Logger, logger
from hoss.telemetry.context import now_ns, trace_fields
from hoss.v1 import resolver_pb2 as pb
from resolver.api.committing import Committer, decide_with_preemption
from resolver.api.maintenance import Availability
from resolver.api.two_phase import commit_parts, decide_alone
from resolver.core.values import Decision, Proposal, Verdict
from resolver.ledger.port import Ledger
from resolver.messages.proposals import read_announcement, read_gang, read_proposal, verdict_message

if TYPE_CHECKING:
    from resolver.tracing import ResolverTraces

_RETRY_AFTER_MS = 250

# Concurrent proposals per stream. The rest is not read, so gRPC stops the sender.
_STREAM_WINDOW = 64

# Concurrent second phases. They do not wait in a committer's queue, and the more there are the longer their
# reservations stay prepared.
_SECOND_PHASES = 16


class ProposeStream:
    """Answers every batch: decided, invalid, or unavailable. One batch never ends the stream."""

    def __init__(
        self,
        ledger: Ledger,
        committers: Sequence[Committer],
        availability: Availability,
        *,
        allow_unchecked: bool,
        victims_terminate: bool = False,
        clock: Callable[[], float] = THIS_HOST.monotonic,
        traces: "ResolverTraces | None" = None,
    ) -> None:
        """`victims_terminate`: evicted pods are on their nodes until they have ended, as in a cluster."""
        self._traces = traces
        self._clock = clock
        self._log = DecisionLogger(logger())
        self._ledger = ledger
        self._committers = committers
        self._availability = availability
        self._allow_unchecked = allow_unchecked
        self._victims_terminate = victims_terminate
        self._schema = len(BASE_RESOURCES)
        self._second_phase = asyncio.Semaphore(_SECOND_PHASES)
        self.counters: Counter[str] = Counter()

    async def serve(self, batches: AsyncIterator[pb.ProposalBatch]) -> AsyncIterator[pb.VerdictBatch]:
        """Verdicts in the order in which they are reached. Raises InvalidInput for a request that is no
        message, after the verdicts on those before."""
        answers: asyncio.Queue[pb.VerdictBatch | None] = asyncio.Queue()
        window = asyncio.Semaphore(_STREAM_WINDOW)
        under_way: dict[asyncio.Task[None], None] = {}  # in the order of arrival

        async def answer(batch: pb.ProposalBatch) -> None:
            try:
                answers.put_nowait(await self._answer_and_log(batch))
            finally:
                window.release()

        async def read() -> None:
            try:
                async for batch in batches:
                    await window.acquire()
                    task = asyncio.ensure_future(answer(batch))
                    under_way[task] = None
                    task.add_done_callback(under_way.pop)
            except InvalidInput:
                await asyncio.gather(*under_way)
                raise
            await asyncio.gather(*under_way)

        reader = asyncio.ensure_future(read())
        reader.add_done_callback(lambda _: answers.put_nowait(None))  # the sender is gone
        try:
            while (message := await answers.get()) is not None:
                yield message
            if reader.done() and not reader.cancelled() and isinstance(reader.exception(), InvalidInput):
                await reader
        finally:
            for task in (reader, *under_way):
                task.cancel()

    async def _answer_and_log(self, batch: pb.ProposalBatch) -> pb.VerdictBatch:
        """Answer the batch, log the answer, and trace it."""
        began_ns, answer = now_ns(), await self.answer(batch)
        if batch.uids:
            self._log.decided(batch, answer, self._clock())
        if self._traces is not None:
            self._traces.decided(batch, answer, began_ns)
        return answer

    async def answer(self, batch: pb.ProposalBatch) -> pb.VerdictBatch:
        """The answer to one batch."""
        if self._availability.problem:
            return self._unavailable(batch, self._availability.problem)
        try:
            _check_sender(batch)
            if max(part.resources for part in (batch, *batch.parts)) > self._schema:
                self._schema = len(await self._ledger.schema())
            if not batch.uids and batch.groups:
                return await self._register_rules(batch)
            parts = [batch, *batch.parts]
            proposals = [
                read_proposal(
                    part,
                    shards=self._ledger.shards,
                    schema=self._schema,
                    allow_unchecked=self._allow_unchecked,
                    victims_terminate=self._victims_terminate,
                )
                for part in parts
            ]
            if batch.gang_minimum or batch.parts:
                read_gang(parts, proposals)
            of_shards = [(part.shard, proposal) for part, proposal in zip(parts, proposals, strict=True)]
            if batch.parts:
                async with self._second_phase:
                    decisions = await commit_parts(
                        self._ledger, self._committers, of_shards, batch.gang_minimum
                    )
            else:
                decisions = [await self.decide(batch.shard, proposals[0])]
            # Committers count their own decisions. These refusals came after.
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
        if decisions[0].verdicts.item(0) == Verdict.STALE_EPOCH and not await self._is_registered(batch):
            # The verdicts tell a worker whose registration the ledger has lost to register again.
            verdicts[
                0
            ].invalid = f"worker: {quoted(batch.worker)} has never registered with this ledger (GrantEpoch)"
            self.counters["invalid"] += 1
        return verdicts[0]

    async def _register_rules(self, batch: pb.ProposalBatch) -> pb.VerdictBatch:
        """Register the rules of pods that are yet to be placed."""
        known = await self._ledger.register_rules(read_announcement(batch))
        self.counters["announcements"] += 1
        awaits = [pb.ShardPosition(shard=shard, seq=seq) for shard, seq in enumerate(known) if seq]
        return pb.VerdictBatch(batch_id=batch.batch_id, shard=batch.shard, awaits=awaits)

    async def decide(self, shard: int, proposal: Proposal) -> Decision:
        """The decision on a proposal of one shard, after a look at the other shards if needed. Raises
        LedgerUnavailable."""
        # Pods with groups may have to be prepared. The turn for the second phase is taken before that: what
        # is prepared and waits is in others' way, and may expire.
        has_groups = any(proposal.groups) and not proposal.unchecked
        may_prepare = self._ledger.shards > 1 and (has_groups or proposal.exclusive)
        async with self._second_phase if may_prepare else contextlib.nullcontext():
            return await decide_alone(self._ledger, partial(self._decide, shard), shard, proposal)

    async def _is_registered(self, batch: pb.ProposalBatch) -> bool:
        try:
            return await self._ledger.is_registered(batch.shard, batch.worker)
        except LedgerUnavailable:
            return True  # unknown; the verdicts stay

    async def _decide(self, shard: int, proposal: Proposal) -> Decision:
        if not proposal.displace_gap:
            return await self._committers[shard].decide(proposal)
        decision, displaced = await decide_with_preemption(self._ledger, self._committers[shard], proposal)
        if displaced:
            self.counters["displaced"] += displaced
        return decision

    def _unavailable(self, batch: pb.ProposalBatch, problem: str) -> pb.VerdictBatch:
        self.counters["unavailable"] += 1
        return pb.VerdictBatch(
            batch_id=batch.batch_id, shard=batch.shard, unavailable=problem, retry_after_ms=_RETRY_AFTER_MS
        )


_WELL = (pb.Verdict.COMMITTED, pb.Verdict.DUPLICATE)

_LINES_PER_SECOND = 10.0
_BURST = 20.0


def _check_sender(batch: pb.ProposalBatch) -> None:
    """Raises InvalidInput for a proposal under a name that is not the caller's."""
    sender = caller()
    if sender is not None and not all(sender.may_be(part.worker) for part in (batch, *batch.parts)):
        raise InvalidInput(
            f"this connection is {sender}'s: it may propose under that name alone", where="worker"
        )


class DecisionLogger:
    """Logs one line per decided batch: at debug if all pods are reserved, at info if pods were refused, at
    warning if the batch was invalid. Under load every other batch has a conflict, so a rate limit holds above
    debug. The next line counts the suppressed ones."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._tokens = _BURST
        self._refilled_at = 0.0
        self._suppressed = 0

    def decided(self, batch: pb.ProposalBatch, answer: pb.VerdictBatch, now: float) -> None:
        """This batch has its answer, at monotonic time `now`."""
        parts = (answer, *answer.parts)
        pods = sum(len(part.verdicts) for part in parts)
        refused = pods - sum(part.verdicts.count(code) for part in parts for code in _WELL)
        if not (refused or answer.invalid):
            log = self._log.debug  # Availability reports that the ledger is away
        elif self._take_token(now):
            log = self._log.warning if answer.invalid else self._log.info
        else:
            self._suppressed += 1
            return
        fields: dict[str, Any] = {"refused": refused}
        if refused:
            codes = Counter(code for part in parts for code in part.verdicts if code not in _WELL)
            fields["refusals"] = {
                pb.Verdict.Name(pb.Verdict.ValueType(code)): count for code, count in sorted(codes.items())
            }
        if problem := answer.invalid or answer.unavailable:
            fields["invalid" if answer.invalid else "unavailable"] = problem
        if log != self._log.debug and self._suppressed:
            fields["left_out"], self._suppressed = self._suppressed, 0
        log(
            "decided",
            worker=batch.worker,
            batch=batch.batch_id,
            shard=batch.shard,
            snapshot_seq=batch.snapshot_seq,
            seq=answer.seq,
            pods=pods,
            **fields,
            **trace_fields(batch.traceparent),
        )

    def _take_token(self, now: float) -> bool:
        self._tokens = min(_BURST, self._tokens + (now - self._refilled_at) * _LINES_PER_SECOND)
        self._refilled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
