"""What a service gets from the machine it runs on: clocks, randomness, gRPC, Redis, the API server,
and the request to stop.

A composition root takes a Host and hands on to each part what the part needs. So a service also runs on
another host, such as a simulated one whose time is virtual and whose randomness comes from a seed.

Invariant: nothing else in the services reads a clock, draws a random number or opens a connection by itself
(tests/unit/hoss/test_host.py). Waiting (asyncio.sleep, wait_for, call_later) is by the event loop's clock.
"""

import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import grpc.aio

    from hoss.redis.access import RedisAccess
    from hoss.serving import Server

# Serves AdmissionReviews within the block: the callable gets a request's body, and returns status and body.
ReviewServer = Callable[[Callable[[bytes], Awaitable[tuple[int, bytes]]]], AbstractAsyncContextManager[None]]

ResultT = TypeVar("ResultT")
ApiT = TypeVar("ApiT")

# The imports in the methods keep each process small: a worker has no Redis client, a client no server.


class Host:
    """The real machine. Another host is a subclass that replaces every member but `utc_now`."""

    def __init__(self) -> None:
        # Whatever is drawn: ids, epochs, jitter, the seeds of other generators.
        self.rng: random.Random = random.SystemRandom()

    def monotonic(self) -> float:
        """Seconds that never go back, since an unknown moment. For durations and deadlines."""
        return time.monotonic()

    def unix(self) -> float:
        """Unix seconds, by a clock that may jump. For what is stored or shown."""
        return time.time()

    def thread_seconds(self) -> float:
        """CPU seconds of the calling thread. Workers report them."""
        return time.thread_time()

    def utc_now(self) -> datetime:
        """`unix` with its time zone."""
        return datetime.fromtimestamp(self.unix(), timezone.utc)

    def channel(
        self, addresses: Sequence[str], *, kind: str = "", service: str = "", retried: Sequence[str] = ()
    ) -> "grpc.aio.Channel":
        """See hoss.rpc.channel."""
        from hoss import rpc  # noqa: PLC0415

        return rpc.channel(addresses, kind=kind, service=service, retried=retried)

    def server(self, interceptors: "Sequence[grpc.aio.ServerInterceptor]" = ()) -> "Server":
        """A gRPC server that does not listen yet."""
        from hoss.serving import Server  # noqa: PLC0415

        return Server(interceptors=interceptors)

    async def beside_the_loop(self, work: Callable[[], ResultT]) -> ResultT:
        """The result of a long computation, for which the event loop does not wait."""
        import asyncio  # noqa: PLC0415

        return await asyncio.to_thread(work)

    def redis(self, url: str, *, timeout_seconds: float, connections: int | None = None) -> "RedisAccess":
        """See hoss.redis.access.reach."""
        from hoss.redis.access import reach  # noqa: PLC0415

        return reach(url, timeout_seconds=timeout_seconds, connections=connections)

    def kube_api(self, connect: Callable[[], ApiT]) -> ApiT:
        """The client of the API server. `connect` makes one of the real API server, and may raise
        ConfigError."""
        return connect()

    def review_server(self) -> ReviewServer | None:
        """How the API server reaches the binding webhook; None: by HTTPS, so the webhook needs a
        certificate."""
        return None

    def process_name(self) -> str:
        """Of this process. No other process that runs, or ran lately, has the same name."""
        return f"{socket.gethostname()}:{os.getpid()}"

    async def until_stopped(self) -> None:
        """Return when the service is asked to end."""
        from hoss.serving import until_stopped  # noqa: PLC0415

        await until_stopped()


# The default of parts that tests and users of the client construct without a composition root. A composition
# root never relies on these defaults.
THIS_HOST = Host()
