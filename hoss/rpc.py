"""gRPC servers and channels as every HOSS service makes them: same limits, keepalive, health and reflection."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import orjson
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from hoss.errors import ConfigError, TransportError

# A snapshot of 20,000 nodes is some 20 MB; a Submit message of 50,000 distinct pods likewise.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

# Pings find a peer that vanished without a word. Servers answer pings faster than every 5 minutes with GOAWAY
# unless told otherwise, so both sides say the same.
_KEEPALIVE_MS = 10_000

_COMMON_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_SERVER_OPTIONS = [
    *_COMMON_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.so_reuseport", 0),
]
# A restarted server should be found again in about a second, not after gRPC's default of up to two minutes.
_CHANNEL_OPTIONS = [
    *_COMMON_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # The same of a name whose servers move, as pods do; gRPC's default is half a minute.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
]
_DNS = "dns:"

# Where another server may take over, one that stopped without a word (frozen, or cut off) must be left within seconds.
# (What ends the connection is the ping's own timeout, a minute where it is not given, whatever keepalive's says.)
_FAILOVER_OPTIONS = [
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
]

# Objects made before the cycle collector looks at the young ones, and how often it then looks at older ones. A service keeps
# hundreds of thousands of objects and makes next to no cycles: at Python's own thresholds looking for some takes a tenth of
# a worker's time. What does lie in cycles waits a little longer, which is some megabytes.
_COLLECTOR_THRESHOLDS = (25_000, 20, 20)

# How long a job that was cancelled may tidy up before it is told once more.
_CANCEL_AGAIN_SECONDS = 0.5

# gRPC's own retries, of calls that may be repeated: 5 attempts within some two seconds, with its jitter of a fifth.
_RETRY_POLICY = {
    "maxAttempts": 5,
    "initialBackoff": "0.1s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2.5,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


class Server:
    """One gRPC server with grpc.health.v1 and reflection beside the service's own handlers."""

    def __init__(self) -> None:
        self.grpc = grpc.aio.server(options=_SERVER_OPTIONS)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)

    async def start(self, address: str, service_names: Sequence[str], *, serving: bool = True) -> int:
        """Listen on `address` ("host:port", port 0 for a free one) and return the port. ConfigError if it is taken.

        Not `serving`: the server is well, and its services do not serve yet.
        """
        reflection.enable_server_reflection((*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), self.grpc)
        try:
            port = self.grpc.add_insecure_port(address)
        except RuntimeError as exc:
            raise ConfigError(
                "cannot listen there: the port is in use or the host is not this machine's; choose another",
                where=f"listen address {address}",
            ) from exc
        await self.set_serving(serving, *service_names)
        await self.set_serving(True, "")
        await self.grpc.start()
        return int(port)

    async def set_serving(self, serving: bool, *services: str) -> None:
        """What health checks of these services answer; "" is the server as a whole, which is meant if none is named."""
        status = health_pb2.HealthCheckResponse
        for service in services or ("",):
            await self._health.set(service, status.SERVING if serving else status.NOT_SERVING)

    async def stop(self, grace_seconds: float = 1.0) -> None:
        """Refuse new calls, give running ones `grace_seconds`, then end them."""
        await self._health.enter_graceful_shutdown()
        await self.grpc.stop(grace_seconds)


def channel(addresses: Sequence[str], *, service: str = "", retried: Sequence[str] = ()) -> grpc.aio.Channel:
    """A channel to one service at several addresses, calls taken in turn; a started stream stays where it is.

    One address may be a DNS name and is looked up again when a server there is lost: `dns:///NAME:PORT` says that it is of
    several servers. Several addresses are looked up once, here. Raises TransportError for a name that is not known.

    With `service`, of several servers only those get calls whose health says that this service serves there; its
    methods named in `retried` are repeated when they fail as UNAVAILABLE, and wait while no address serves.
    """
    several = of_several(addresses)
    config: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}
    if retried:
        names = [{"service": service, "method": method} for method in retried]
        config["methodConfig"] = [{"name": names, "retryPolicy": _RETRY_POLICY, "waitForReady": several}]
    options = [*_CHANNEL_OPTIONS]
    if service and several:
        config["healthCheckConfig"] = {"serviceName": service}
        options = [*(o for o in options if o[0] not in dict(_FAILOVER_OPTIONS)), *_FAILOVER_OPTIONS]
    target = "ipv4:" + ",".join(_numeric(a) for a in addresses) if len(addresses) > 1 else addresses[0]
    return grpc.aio.insecure_channel(target, options=[*options, ("grpc.service_config", orjson.dumps(config).decode())])


def of_several(addresses: Sequence[str]) -> bool:
    """Whether there is more than one server: several addresses, or a DNS name that says so (`dns:///NAME:PORT`)."""
    return len(addresses) > 1 or addresses[0].startswith(_DNS)


def _numeric(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        return f"{socket.gethostbyname(host)}:{port}"
    except OSError as exc:
        raise TransportError(f"{address}: {host!r} is not known to the name service") from exc


async def until_stopped() -> None:
    """Return when the process is asked to end (SIGTERM or SIGINT)."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a service's main coroutine, on uvloop where it is installed, with the cycle collector out of the way."""
    gc.freeze()  # modules stay for ever
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())


@contextlib.asynccontextmanager
async def background(*jobs: Awaitable[None]) -> AsyncIterator[None]:
    """Run jobs beside the body. A job that fails ends the body with its error; leaving the body cancels the jobs."""
    body = asyncio.current_task()
    failure: list[BaseException] = []

    async def guard(job: Awaitable[None]) -> None:
        try:
            await job
        except asyncio.CancelledError:
            raise
        except BaseException as exc:  # noqa: BLE001 - handed to the body
            failure.append(exc)
            if body is not None:
                body.cancel()

    tasks = [asyncio.ensure_future(guard(job)) for job in jobs]
    try:
        yield
    except asyncio.CancelledError:
        if failure:
            raise failure[0] from None
        raise
    finally:
        await _end(tasks)
        for job in jobs:
            if asyncio.iscoroutine(job):
                job.close()  # one that never began is not complained about


async def _end(tasks: "Sequence[asyncio.Task[None]]") -> None:
    # Again and again: before Python 3.12 asyncio.wait_for, in which redis-py sends, loses a cancellation that comes together
    # with its result, and the job would go on for ever.
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=_CANCEL_AGAIN_SECONDS)


def announce_ready(path: Path | None, **fields: object) -> None:
    """Write `fields` as JSON to `path`, whole or not at all: how a parent learns the port of a ready service."""
    if path is None:
        return
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(orjson.dumps({"pid": os.getpid(), **fields}))
    temporary.replace(path)
