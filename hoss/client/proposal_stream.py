"""The stream of proposals to the resolvers. A proposal is sent again until it is answered.

Each copy of a proposal has a higher `sending`. An answer that is taken is that to the latest copy: a stream
that ended is not read any more, and on one stream the next copy follows the answer to the last. The ledger
decides nothing for a lower number. So when an answer is taken, earlier copies that a resolver still holds are
void, and the pods can be placed elsewhere.

A stream stays with its resolver. That one may be cut off from a ledger that others reach, so a proposal that
it has put off twice goes to the next one, with a new stream."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import grpc.aio

from hoss.client.backoff import Backoff
from hoss.client.errors import translate
from hoss.client.resolver import ResolverClient
from hoss.host import THIS_HOST
from hoss.rpc import written
from hoss.telemetry import logger
from hoss.v1.resolver_pb2 import ProposalBatch, VerdictBatch

_FIRST_DELAY_SECONDS = 0.05
_MAX_DELAY_SECONDS = 1.0


class ProposalStream:
    """Any number of proposals in flight. Each gets one verdict, `on_verdict`, unless `abandon` comes
    first."""

    def __init__(
        self,
        client: ResolverClient,
        on_verdict: Callable[[ProposalBatch, VerdictBatch], None],
        *,
        rng: random.Random = THIS_HOST.rng,
    ) -> None:
        self._rng = rng
        self._client = client
        self._on_verdict = on_verdict
        self._unanswered: dict[tuple[int, int], ProposalBatch] = {}
        self._outbox: asyncio.Queue[ProposalBatch] = asyncio.Queue()
        self._sending = 0  # the highest number of a copy so far
        self._put_off: set[tuple[int, int]] = set()  # on the present stream, without a verdict since

    def send(self, proposal: ProposalBatch) -> None:
        """Send it, now or as soon as a resolver is available."""
        _number(proposal, self._sending)
        self._unanswered[proposal.shard, proposal.batch_id] = proposal
        self._outbox.put_nowait(proposal)

    @property
    def in_flight(self) -> bool:
        """Whether any proposal waits for its verdict."""
        return bool(self._unanswered)

    def abandon(self) -> None:
        """Drop answers to everything sent so far, in an epoch that is over."""
        self._unanswered.clear()
        self._sending = 0

    async def run(self) -> None:
        """Keep the stream until cancelled. Raises what `on_verdict` raises."""
        backoff = Backoff(_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS, rng=self._rng)
        while True:
            # A new queue: everything in the old one is among the unanswered.
            self._outbox = asyncio.Queue()
            self._put_off.clear()
            for key in self._unanswered:
                self._send_again(key)
            try:
                call = self._client.stub.Propose()
                async with written(call, _requests(self._outbox)):
                    async for verdict in call:
                        if not self._take(verdict):
                            break
                        if not verdict.unavailable:
                            backoff.succeeded()
            except grpc.aio.AioRpcError as exc:
                error = translate(exc, self._client.peer)
                logger().warning("proposals_interrupted", error=str(error), unanswered=len(self._unanswered))
            await asyncio.sleep(backoff.failed(asyncio.get_running_loop().time()) or 0)

    def _take(self, verdict: VerdictBatch) -> bool:
        """Whether to stay with this resolver."""
        key = verdict.shard, verdict.batch_id
        proposal = self._unanswered.get(key)
        if proposal is None:
            return True  # answered before, on another stream, or abandoned
        if verdict.unavailable:
            logger().info("proposal_delayed", reason=verdict.unavailable, retry_ms=verdict.retry_after_ms)
            if key in self._put_off:
                return False
            self._put_off.add(key)
            delay_seconds = verdict.retry_after_ms / 1000
            asyncio.get_running_loop().call_later(delay_seconds, self._resend, key, self._outbox)
            return True
        del self._unanswered[key]
        self._put_off.clear()
        self._on_verdict(proposal, verdict)
        return True

    def _resend(self, key: tuple[int, int], outbox: "asyncio.Queue[ProposalBatch]") -> None:
        if key in self._unanswered and outbox is self._outbox:  # else a newer stream has sent it already
            self._send_again(key)

    def _send_again(self, key: tuple[int, int]) -> None:
        last = self._unanswered[key]
        if last.sending == self._sending:
            self._sending += 1
        copy = ProposalBatch()  # the last one may be in the hands of its stream
        copy.CopyFrom(last)
        _number(copy, self._sending)
        self._unanswered[key] = copy
        self._outbox.put_nowait(copy)


def _number(proposal: ProposalBatch, sending: int) -> None:
    for part in (proposal, *proposal.parts):
        part.sending = sending


async def _requests(outbox: "asyncio.Queue[ProposalBatch]") -> AsyncIterator[ProposalBatch]:
    while True:
        yield await outbox.get()
