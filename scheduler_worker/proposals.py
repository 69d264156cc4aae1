"""The stream of proposals to the resolvers: what was not answered is sent again as it was, until it is."""

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc.aio

from hoss.client.errors import translate
from hoss.client.resolver import ResolverClient
from hoss.client.writing import written
from hoss.telemetry import logger
from hoss.v1.resolver_pb2 import ProposalBatch, VerdictBatch

_FIRST_DELAY_SECONDS = 0.05
_MAX_DELAY_SECONDS = 1.0


class ProposalStream:
    """Any number of proposals under way. Each gets one verdict, `on_verdict`, unless `abandon` comes first."""

    def __init__(self, client: ResolverClient, on_verdict: Callable[[ProposalBatch, VerdictBatch], None]) -> None:
        self._client = client
        self._on_verdict = on_verdict
        self._unanswered: dict[tuple[int, int], ProposalBatch] = {}
        self._outbox: asyncio.Queue[ProposalBatch] = asyncio.Queue()

    def send(self, proposal: ProposalBatch) -> None:
        """Send it, now or as soon as a resolver is there."""
        self._unanswered[proposal.shard, proposal.batch_id] = proposal
        self._outbox.put_nowait(proposal)

    @property
    def under_way(self) -> bool:
        """Whether any proposal waits for its verdict."""
        return bool(self._unanswered)

    def abandon(self) -> None:
        """Answers to what was sent are of no interest any more."""
        self._unanswered.clear()

    async def run(self) -> None:
        """Keep the stream until cancelled. Raises what `on_verdict` raises."""
        delay = _FIRST_DELAY_SECONDS
        while True:
            # A new queue: what the old one holds was not sent, and is among the unanswered.
            self._outbox = asyncio.Queue()
            for proposal in self._unanswered.values():
                self._outbox.put_nowait(proposal)
            try:
                call = self._client.stub.Propose()
                async with written(call, _requests(self._outbox)):
                    async for verdict in call:
                        delay = _FIRST_DELAY_SECONDS
                        self._take(verdict)
            except grpc.aio.AioRpcError as exc:
                error = translate(exc, self._client.peer)
                logger().warning("proposals_interrupted", error=str(error), unanswered=len(self._unanswered))
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MAX_DELAY_SECONDS)

    def _take(self, verdict: VerdictBatch) -> None:
        key = verdict.shard, verdict.batch_id
        proposal = self._unanswered.get(key)
        if proposal is None:
            return  # answered before, on another stream, or abandoned
        if verdict.unavailable:
            logger().info("proposal_delayed", reason=verdict.unavailable, retry_ms=verdict.retry_after_ms)
            delay_seconds = verdict.retry_after_ms / 1000
            asyncio.get_running_loop().call_later(delay_seconds, self._resend, key, self._outbox)
            return
        del self._unanswered[key]
        self._on_verdict(proposal, verdict)

    def _resend(self, key: tuple[int, int], outbox: "asyncio.Queue[ProposalBatch]") -> None:
        proposal = self._unanswered.get(key)
        if proposal is not None and outbox is self._outbox:  # a newer stream has sent it already
            outbox.put_nowait(proposal)


async def _requests(outbox: "asyncio.Queue[ProposalBatch]") -> AsyncIterator[ProposalBatch]:
    while True:
        yield await outbox.get()
