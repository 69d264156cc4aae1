"""What every service process shares: its gRPC server, its event loop, its end."""

import asyncio
import contextlib
import gc
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy.ma  # noqa: F401 - else NumPy imports it when it is needed first: 50 ms amid a step of the loop
import orjson
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from hoss.errors import ConfigError
from hoss.rpc import COMMON_OPTIONS, MOST_TOKEN_BYTES

_MOST_OPEN_FILES = 65_536

_Context = grpc.aio.ServicerContext[Any, Any]

_SERVER_OPTIONS = [
    *COMMON_OPTIONS,
    # Half of the shortest time between two pings of a client (hoss.rpc).
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.so_reuseport", 0),
    # Who has connected and does not get through the handshake holds a connection for so long. By default two
    # minutes.
    ("grpc.server_handshake_timeout_ms", 20_000),
    # Room for the longest token beside the other headers. By default gRPC refuses some calls beyond 8 KiB, by
    # chance.
    ("grpc.max_metadata_size", 2 * MOST_TOKEN_BYTES),
]


# Thresholds of Python's cycle collector. A service keeps hundreds of thousands of objects and makes almost no
# cycles: with the default thresholds the collector takes a tenth of a worker's time. With these, garbage in
# cycles lives a little longer and takes some megabytes. The first one is above the 100,000 objects of two
# pages of pods (hoss.kube.reflector): at 25,000 the collector went through each page, which is no garbage,
# and took half of the time of parsing it.
_COLLECTOR_THRESHOLDS = (200_000, 4, 12)


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc] # has no types
    """grpc.health.v1. Every watcher is told the last status, whoever else comes, goes or does not read.

    The servicer of grpc_health keeps one list of watchers for each service and drops all of it when one of
    them ends. The others then never learn that a standby has become active. It also waits for slow
    readers."""

    def __init__(self) -> None:
        self.watchers: Counter[str] = Counter()  # by service
        self._statuses: dict[str, health_pb2.HealthCheckResponse.ServingStatus] = {}
        self._changed = asyncio.Event()
        self._stopping = False

    async def Check(  # noqa: N802 - the contract's name
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> health_pb2.HealthCheckResponse:
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(  # noqa: N802 - the contract's name
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> None:
        told, service = None, request.service
        self.watchers[service] += 1
        try:
            while True:
                changed = self._changed  # of any service: there are few, and they seldom change
                status = self._statuses.get(service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
                if status == told:
                    await changed.wait()
                    continue
                await context.write(health_pb2.HealthCheckResponse(status=status))
                told = status
        finally:
            self.watchers[service] -= 1
            self.watchers += Counter()  # which forgets those at zero

    def set(self, service: str, *, serving: bool) -> None:
        """Change a status, until `stop`."""
        if self._stopping:
            return
        status = health_pb2.HealthCheckResponse
        self._statuses[service] = status.SERVING if serving else status.NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    def stop(self) -> None:
        """Nothing serves, from now on."""
        for service in self._statuses:
            self.set(service, serving=False)
        self._stopping = True


class Server:
    """One gRPC server with grpc.health.v1 beside the service's own handlers. `server`: another
    than this machine's; it has interceptors of its own, if any. `credentials`: for TLS. `interceptors`: each
    call passes through them, the first ones first."""

    def __init__(
        self,
        server: grpc.aio.Server | None = None,
        *,
        credentials: grpc.ServerCredentials | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        self.grpc = server or grpc.aio.server(options=_SERVER_OPTIONS, interceptors=interceptors)
        self._credentials = credentials
        self._health = HealthService()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)

    async def start(
        self, address: str, service_names: Sequence[str], *, serving: bool = True, reflected: bool = False
    ) -> int:
        """Listen on `address` ("host:port", port 0 for a free one) and return the port.

        Without `serving` the health check passes for the server and fails for its services. `reflected`:
        the server describes its services by gRPC reflection. Raises ConfigError where the address cannot be
        used."""
        if reflected:
            from grpc_reflection.v1alpha import reflection  # noqa: PLC0415 - where it is wanted

            names = (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self.grpc)
        try:
            port = (
                self.grpc.add_insecure_port(address)
                if self._credentials is None
                else self.grpc.add_secure_port(address, self._credentials)
            )
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
        """Set the answer of these services' health checks. "" (the default) is the whole server."""
        for service in services or ("",):
            self._health.set(service, serving=serving)

    def health_watchers(self, service: str) -> int:
        """How many watch the health of a service."""
        return self._health.watchers[service]

    async def stop(self, grace_seconds: float = 1.0) -> None:
        """Refuse new calls, give running ones `grace_seconds`, then end them."""
        self._health.stop()
        await self.grpc.stop(grace_seconds)


async def until_stopped() -> None:
    """Return when the process is asked to end (SIGTERM or SIGINT)."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a service's main coroutine, on uvloop where it is installed, with few runs of the cycle
    collector."""
    _allow_connections()
    gc.freeze()  # imported modules are never garbage
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())


def _allow_connections() -> None:
    """A shell allows a process 1,024 open files, so a thousand idle connections would take those that Redis
    and others need. HOSS opens few. Those of unknown clients end within seconds each."""
    try:
        import resource  # noqa: PLC0415 - not on every platform
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def announce_ready(path: Path | None, **fields: object) -> None:
    """Write `fields` as JSON to `path`, atomically. The parent process reads the port of a ready service
    there."""
    if path is None:
        return
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(orjson.dumps({"pid": os.getpid(), **fields}))
    temporary.replace(path)
