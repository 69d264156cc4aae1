"""Following the node feed: whatever happens to resolvers and connections, changes arrive in order and without gaps."""

import asyncio
from collections.abc import Callable

import grpc
import grpc.aio

from hoss.client.errors import translate
from hoss.client.resolver import ResolverClient
from hoss.errors import InvalidInput
from hoss.telemetry import logger
from hoss.v1 import resolver_pb2 as pb

_FIRST_DELAY_SECONDS = 0.05
_MAX_DELAY_SECONDS = 1.0


class Subscription:
    """One subscriber's way through the node feed.

    Every message is handed to `apply`. Each shard begins with a snapshot, which replaces all that was known of the shard; then
    come its changes, each applying to the state that the message before it left. A broken connection is made anew and
    resumed where it stopped; where that is not possible any more, another snapshot comes.
    Both methods raise InvalidInput when the resolver refuses the request itself, and whatever `apply` raises.
    """

    def __init__(self, client: ResolverClient, subscriber: str, apply: Callable[[pb.FeedMessage], None]) -> None:
        self._client = client
        self._subscriber = subscriber
        self._apply = apply
        self._position = _Position()

    async def follow(self) -> None:
        """Take every change as it comes, until cancelled."""
        await self._read(as_of_now=False)

    async def catch_up(self, *, anew: bool = False) -> None:
        """Take what happened since the last time, and return once all is seen that had happened when this was called.

        `anew`: begin every shard with a snapshot again.
        """
        if anew:
            self._position = _Position()
        await self._read(as_of_now=True)

    async def _read(self, *, as_of_now: bool) -> None:
        delay = _FIRST_DELAY_SECONDS
        while True:
            try:
                async for message in self._client.stub.Feed(self._position.request(self._subscriber, as_of_now)):
                    if not self._position.precedes(message):
                        have = self._position.seqs.get(message.shard)
                        logger().warning("feed_gap", shard=message.shard, have=have)
                        self._position.forget(message.shard)
                        break
                    self._apply(message)
                    self._position.advance(message)
                    delay = _FIRST_DELAY_SECONDS
                else:
                    if as_of_now:
                        return
            except grpc.aio.AioRpcError as exc:
                error = translate(exc, self._client.peer)
                if isinstance(error, InvalidInput):
                    raise error from exc
                logger().info("feed_interrupted", subscriber=self._subscriber, error=str(error), retry_seconds=delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MAX_DELAY_SECONDS)


async def follow(client: ResolverClient, subscriber: str, apply: Callable[[pb.FeedMessage], None]) -> None:
    """Follow the feed from its beginning on, until cancelled. See Subscription."""
    await Subscription(client, subscriber, apply).follow()


class _Position:
    """What was applied of each shard, and of which ledger."""

    def __init__(self) -> None:
        self.seqs: dict[int, int] = {}
        self._ledger_epoch = ""

    def request(self, subscriber: str, as_of_now: bool) -> pb.FeedRequest:
        return pb.FeedRequest(
            subscriber=subscriber,
            resume=[pb.ShardPosition(shard=shard, seq=seq) for shard, seq in self.seqs.items()],
            ledger_epoch=self._ledger_epoch,
            as_of_now=as_of_now,
        )

    def precedes(self, message: pb.FeedMessage) -> bool:
        return message.snapshot or self.seqs.get(message.shard) == message.previous_seq

    def advance(self, message: pb.FeedMessage) -> None:
        self.seqs[message.shard] = message.seq
        if message.snapshot:
            self._ledger_epoch = message.ledger_epoch

    def forget(self, shard: int) -> None:
        self.seqs.pop(shard, None)
