"""gRPC channels with the limits, keepalive and retries that all clients share, and streams whose requests a
task of HOSS writes."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import grpc.aio

from hoss.errors import TransportError
from hoss.tasks import end_tasks

if TYPE_CHECKING:
    StreamCall = grpc.aio.StreamStreamCall[Any, Any]

# A snapshot of 20,000 nodes is some 20 MB; a Submit message of 50,000 distinct pods likewise.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

# The longest bearer token that a service takes. One with many groups has some thousand bytes.
MOST_TOKEN_BYTES = 8 * 1024

# Pings detect a peer that vanished. A server answers pings more frequent than every 5 minutes with GOAWAY
# unless it is configured otherwise, so both sides have the same setting.
_KEEPALIVE_MS = 10_000

COMMON_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
# Clients find a restarted server within about a second. gRPC's default is up to two minutes.
_CHANNEL_OPTIONS = [
    *COMMON_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    # How long an attempt to connect may take; gRPC's default is 20 s. The next one comes after it has failed,
    # however soon. A handshake waits for the server's Python, which may be busy, or for a machine that is: a
    # limit that a server cannot meet keeps it from ever being reached, and costs it a handshake an attempt.
    # Calls that do not wait fail once the first attempt has failed: the longer the limit, the later they tell
    # that all servers are lost.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # The same for a DNS name whose servers move, as pods do. gRPC's default is half a minute.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
]
_DNS = "dns:"
# What a look-up raises. Python looks no name up that has an empty label, or one of more than 63 characters.
_UNKNOWN_NAME = (OSError, UnicodeError)

# With several servers, clients leave a frozen or disconnected one after two pings' time: at the latest so
# long after it froze. To leave a stateless server costs a call that is sent again, so that is done sooner
# than to leave a dispatcher, which then takes its worker for lost.
_STATELESS_PING_MS = 1_000
_HEALTH_CHECKED_PING_MS = 2_000


# gRPC's own retries of idempotent calls: 5 attempts within about two seconds, with a jitter of a fifth.
_RETRY_POLICY = {
    "maxAttempts": 5,
    "initialBackoff": "0.1s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2.5,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


def _failover_options(ping_ms: int) -> list[tuple[str, int]]:
    return [
        ("grpc.keepalive_time_ms", ping_ms),
        ("grpc.keepalive_timeout_ms", ping_ms),
        # This one ends the connection; its default is a minute, whatever the keepalive timeout is.
        ("grpc.http2.ping_timeout_ms", ping_ms),
    ]


class OpenChannel(Protocol):
    """`channel`, or what another host has in its place."""

    def __call__(
        self, addresses: Sequence[str], *, kind: str = "", service: str = "", retried: Sequence[str] = ()
    ) -> grpc.aio.Channel: ...


# Makes the channel to a target of gRPC, with these options, to a service of that kind: (kind, target,
# options).
Connect = Callable[[str, str, Sequence[tuple[str, Any]]], grpc.aio.Channel]


def _connect_in_plain_text(_kind: str, target: str, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(target, options=options)


def channel(
    addresses: Sequence[str],
    *,
    kind: str = "",
    service: str = "",
    retried: Sequence[str] = (),
    connect: Connect = _connect_in_plain_text,
) -> grpc.aio.Channel:
    """A channel to one service. Calls go to its addresses in turn; a stream stays on its server.

    A single address may be a DNS name, which is resolved again when its server is lost; `dns:///NAME:PORT`
    names several servers. Several addresses are resolved once, here. Raises TransportError for an unknown
    name.

    With `service`, only servers whose health check passes for this service get calls. Its methods in
    `retried` are repeated when they fail with UNAVAILABLE, and wait while no server serves.

    `kind`: of the service, "dispatcher" or "resolver". `connect`: makes the channel; without TLS by
    default."""
    several = of_several(addresses)
    config: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}
    if retried:
        names = [{"service": service, "method": method} for method in retried]
        config["methodConfig"] = [{"name": names, "retryPolicy": _RETRY_POLICY, "waitForReady": several}]
    options: dict[str, int] = dict(_CHANNEL_OPTIONS)
    if several:
        options.update(_failover_options(_HEALTH_CHECKED_PING_MS if service else _STATELESS_PING_MS))
    if service and several:
        config["healthCheckConfig"] = {"serviceName": service}
    target = "ipv4:" + ",".join(_numeric(a) for a in addresses) if len(addresses) > 1 else addresses[0]
    service_config = ("grpc.service_config", json.dumps(config))
    return connect(kind, target, [*options.items(), service_config])


def of_several(addresses: Sequence[str]) -> bool:
    """Whether the addresses name more than one server: several addresses, or `dns:///NAME:PORT`."""
    return len(addresses) > 1 or addresses[0].startswith(_DNS)


def each_server(address: str) -> list[str]:
    """The addresses of the servers that an address names: those behind a name of several, as of a headless
    Service, else the address itself. Waits for the name service. Raises TransportError for a name that is not
    known to it now.

    IPv6 addresses only where there are no others: a server of one name has one of each."""
    host, _, port = address.removeprefix(f"{_DNS}///").rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except _UNKNOWN_NAME as exc:
        raise _unknown(address, host) from exc
    hosts = {str(socket_address[0]) for *_, socket_address in found}
    old = sorted(host for host in hosts if ":" not in host)
    behind = old or [f"[{host}]" for host in sorted(hosts)]
    return [f"{host}:{port}" for host in behind] if len(behind) > 1 else [address]


def _unknown(address: str, host: str) -> TransportError:
    return TransportError(f"{address}: {host!r} is not known to the name service")


def _numeric(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        return f"{socket.gethostbyname(host)}:{port}"
    except _UNKNOWN_NAME as exc:
        raise _unknown(address, host) from exc


@contextlib.asynccontextmanager
async def written(call: "StreamCall", requests: AsyncIterable[Any]) -> AsyncIterator[None]:
    """Write requests to the call while the body reads its replies. The call and the writer end with the body.
    Raises the error of the requests' iterator."""
    # gRPC would read an iterator of requests in a task of its own. When the peer ends the stream, gRPC drops
    # that task while it waits for the next request, and Python reports a pending task that was destroyed.
    writer = asyncio.ensure_future(_write(call, requests))
    try:
        yield
    finally:
        call.cancel()
        await end_tasks((writer,))
        if not writer.cancelled() and (error := writer.exception()) is not None:
            raise error


async def _write(call: "StreamCall", requests: AsyncIterable[Any]) -> None:
    try:
        async for request in requests:
            await call.write(request)
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass  # the stream has ended: the reader of the replies gets the error
    except BaseException:
        call.cancel()  # otherwise both sides would wait for each other
        raise
