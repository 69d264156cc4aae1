"""Follows the node feed. Changes arrive in order and without gaps; breaks of the connection are resumed."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio

from hoss.client.backoff import Backoff
from hoss.client.errors import translate
from hoss.client.resolver import ResolverClient
from hoss.errors import InvalidInput
from hoss.host import THIS_HOST
from hoss.telemetry import logger
from hoss.v1 import resolver_pb2 as pb

_FIRST_DELAY_SECONDS = 0.05
_MAX_DELAY_SECONDS = 1.0


class Subscription:
    """One subscriber's position in the node feed.

    `apply` gets every message, and is awaited before the next one where it takes in a large one in turns with
    others. The first message of a shard is a snapshot, which replaces the known state of the shard. Each
    later message applies to the state after the message before it. A broken connection is resumed at its
    position; where the resolver no longer has that position, or a message was not taken in to its end, it
    sends another snapshot. Both methods raise InvalidInput where the resolver refuses the request, and every
    error of `apply`."""

    def __init__(
        self,
        client: ResolverClient,
        subscriber: str,
        apply: Callable[[pb.FeedMessage], Awaitable[None] | None],
        *,
        clock: Callable[[], float] = THIS_HOST.monotonic,
        rng: random.Random = THIS_HOST.rng,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._client = client
        self._subscriber = subscriber
        self._apply = apply
        self._position = _Position()

    async def follow(self) -> None:
        """Apply changes until cancelled."""
        await self._read(as_of_now=False)

    async def catch_up(self, *, anew: bool = False) -> None:
        """Apply the changes up to the moment of this call. `anew`: start with a snapshot of every shard."""
        if anew:
            self._position = _Position()
        await self._read(as_of_now=True)

    async def _read(self, *, as_of_now: bool) -> None:
        backoff = Backoff(_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS, rng=self._rng)
        while True:
            interruption = ""
            call = self._client.stub.Feed(self._position.request(self._subscriber, as_of_now))
            try:
                async for message in call:
                    if not self._position.precedes(message):
                        have = self._position.seqs.get(message.shard)
                        logger().warning("feed_gap", shard=message.shard, have=have)
                        self._position.forget(message.shard)
                        break
                    self._position.forget(message.shard)  # until it is taken in as a whole
                    if (applied := self._apply(message)) is not None:
                        await applied
                    self._position.advance(message)
                    backoff.succeeded()
                else:
                    if as_of_now:
                        return
            except grpc.aio.AioRpcError as exc:
                error = translate(exc, self._client.peer)
                if isinstance(error, InvalidInput):
                    raise error from exc
                interruption = str(error)
            finally:
                call.cancel()  # gRPC does not end a call by itself when nobody reads it any more
            delay = backoff.failed(self._clock()) or 0.0
            if interruption:
                logger().info(
                    "feed_interrupted", subscriber=self._subscriber, error=interruption, retry_seconds=delay
                )
            await asyncio.sleep(delay)


class _Position:
    """The applied sequence number of each shard, and the ledger's epoch."""

    def __init__(self) -> None:
        self.seqs: dict[int, int] = {}
        self._nonces: dict[int, str] = {}
        self._ledger_epoch = ""

    def request(self, subscriber: str, as_of_now: bool) -> pb.FeedRequest:
        return pb.FeedRequest(
            subscriber=subscriber,
            resume=[
                pb.ShardPosition(shard=shard, seq=seq, nonce=self._nonces[shard])
                for shard, seq in self.seqs.items()
            ],
            ledger_epoch=self._ledger_epoch,
            as_of_now=as_of_now,
        )

    def precedes(self, message: pb.FeedMessage) -> bool:
        return message.snapshot or self.seqs.get(message.shard) == message.previous_seq

    def advance(self, message: pb.FeedMessage) -> None:
        self.seqs[message.shard] = message.seq
        self._nonces[message.shard] = message.nonce
        if message.snapshot:
            self._ledger_epoch = message.ledger_epoch

    def forget(self, shard: int) -> None:
        self.seqs.pop(shard, None)
