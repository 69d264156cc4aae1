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


async def follow(client: ResolverClient, subscriber: str, apply: Callable[[pb.FeedMessage], None]) -> None:
    """Hand every feed message to `apply`, until cancelled.

    Each shard begins with a snapshot, which replaces all that was known of the shard; then come its changes, each
    applying to the state that the message before it left. A broken connection is made anew and resumed where it
    stopped; where that is not possible any more, another snapshot comes. Raises InvalidInput when the resolver
    refuses the request itself, and whatever `apply` raises.
    """
    position = _Position()
    delay = _FIRST_DELAY_SECONDS
    while True:
        try:
            async for message in client.stub.Feed(position.request(subscriber)):
                if not position.precedes(message):
                    logger().warning("feed_gap", shard=message.shard, have=position.seqs.get(message.shard))
                    position.forget(message.shard)
                    break
                apply(message)
                position.advance(message)
                delay = _FIRST_DELAY_SECONDS
        except grpc.aio.AioRpcError as exc:
            error = translate(exc, client.peer)
            if isinstance(error, InvalidInput):
                raise error from exc
            logger().info("feed_interrupted", subscriber=subscriber, error=str(error), retry_seconds=delay)
        await asyncio.sleep(delay)
        delay = min(2 * delay, _MAX_DELAY_SECONDS)


class _Position:
    """What was applied of each shard, and of which ledger."""

    def __init__(self) -> None:
        self.seqs: dict[int, int] = {}
        self._ledger_epoch = ""

    def request(self, subscriber: str) -> pb.FeedRequest:
        return pb.FeedRequest(
            subscriber=subscriber,
            resume=[pb.ShardPosition(shard=shard, seq=seq) for shard, seq in self.seqs.items()],
            ledger_epoch=self._ledger_epoch,
        )

    def precedes(self, message: pb.FeedMessage) -> bool:
        return message.snapshot or self.seqs.get(message.shard) == message.previous_seq

    def advance(self, message: pb.FeedMessage) -> None:
        self.seqs[message.shard] = message.seq
        if message.snapshot:
            self._ledger_epoch = message.ledger_epoch

    def forget(self, shard: int) -> None:
        self.seqs.pop(shard, None)
