"""How long a pod takes that is submitted alone to an idle platform."""

import asyncio
import time
from collections.abc import Sequence

from hoss.client.dispatcher import DispatcherClient
from hoss.errors import HossError
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import U8, decode, decode_uids, numbered_uids

_PATIENCE_SECONDS = 10.0


async def lone_latencies(client: DispatcherClient, requests: Sequence[pb.SubmitRequest]) -> list[float]:
    """Seconds from submission to the report as bound of messages of one pod each, one after the other.

    Raises HossError for a pod that is not bound within 10 s.
    """
    reported: dict[bytes, float] = {}
    news = asyncio.Event()

    async def follow(revision: int) -> None:
        async for batch in client.watch(revision):
            now = time.perf_counter()
            phases = decode(batch.phases, U8, name="phases")
            reported.update((uid.tobytes(), now) for uid in decode_uids(batch.uids)[phases == pb.BOUND])
            news.set()

    following = asyncio.ensure_future(follow((await client.status()).revision))
    try:
        return [await _lone(client, request, reported, news) for request in requests]
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _lone(
    client: DispatcherClient, request: pb.SubmitRequest, reported: dict[bytes, float], news: asyncio.Event
) -> float:
    started = time.perf_counter()
    reply = await client.submit(request)
    uid = numbered_uids(reply.sets[0].uid_prefix, 0, 1).tobytes()
    while uid not in reported:
        news.clear()
        try:
            await asyncio.wait_for(news.wait(), _PATIENCE_SECONDS)
        except asyncio.TimeoutError as exc:
            raise HossError(
                f"a lone pod was not bound within {_PATIENCE_SECONDS:.0f} s; the platform is not idle or full"
            ) from exc
    return reported[uid] - started
