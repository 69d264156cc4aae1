"""The client's side of the simulated gRPC: what `hoss.rpc.channel` returns to a client.

Owns a channel's connections, which it keeps up and takes in turn. Connecting, health checks, waiting for a
server and the texts of errors are as in grpc.aio with the settings of hoss.rpc; tests/simulation holds both
to one contract."""

from collections.abc import Sequence
from contextvars import copy_context
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from hoss import rpc
from tools.simulation.call import Call, Convert, StreamCall, UnaryCall, passed
from tools.simulation.connection import (
    FAILOVER_KEEPALIVE,
    STATELESS_KEEPALIVE,
    USUAL_KEEPALIVE,
    Connection,
    Status,
)
from tools.simulation.network import Network

# As in hoss.rpc: how a lost server is sought again.
_FIRST_RECONNECT_SECONDS, _LONGEST_RECONNECT_SECONDS, _RECONNECT_GROWTH = 0.1, 1.0, 1.6
_RECONNECT_JITTER = 0.2

_HEALTH_WATCH = "/grpc.health.v1.Health/Watch"
_SERVING = health_pb2.HealthCheckResponse.SERVING


class SimulatedChannel:
    """A channel on a simulated network: of grpc.aio.Channel what generated stubs and HOSS use. Make it in its
    process. Addresses are those at which servers listen; there is no name service.

    A call that nobody holds any more goes on, as in gRPC 1.85: who stops reading has to cancel it."""

    def __init__(
        self,
        network: Network,
        process: str,
        addresses: Sequence[str],
        *,
        service: str,
        retried: Sequence[str],
    ) -> None:
        several = rpc.of_several(addresses)
        self.process = process
        self.context = copy_context()
        self.network = network
        self.keepalive = USUAL_KEEPALIVE
        if several:
            self.keepalive = FAILOVER_KEEPALIVE if service else STATELESS_KEEPALIVE
        self.health_service = service if several else ""
        self._retried = {f"/{service}/{method}": several for method in retried}  # and whether they wait
        self._servers = [_Subchannel(self, address) for address in addresses]
        self._turn = network.rng.randrange(len(addresses))
        self._waiting: list[Call] = []
        self._calls: dict[Call, None] = {}
        self._started = False
        self.closed = False
        self._abandoned = False

    # -- what stubs use

    def unary_unary(self, method: str, encode: Convert = None, decode: Convert = None, **old: Any) -> Any:
        encode, decode = _converters(encode, decode, old)

        def call(request: Any, **options: Any) -> UnaryCall:
            return UnaryCall(self, method, decode, request=passed(encode, request), **options)

        return call

    def unary_stream(self, method: str, encode: Convert = None, decode: Convert = None, **old: Any) -> Any:
        encode, decode = _converters(encode, decode, old)

        def call(request: Any, **options: Any) -> StreamCall:
            return StreamCall(self, method, decode, request=passed(encode, request), **options)

        return call

    def stream_unary(self, method: str, encode: Convert = None, decode: Convert = None, **old: Any) -> Any:
        encode, decode = _converters(encode, decode, old)

        def call(request_iterator: Any = None, **options: Any) -> UnaryCall:
            return UnaryCall(self, method, decode, encode=encode, requests=request_iterator, **options)

        return call

    def stream_stream(self, method: str, encode: Convert = None, decode: Convert = None, **old: Any) -> Any:
        encode, decode = _converters(encode, decode, old)

        def call(request_iterator: Any = None, **options: Any) -> StreamCall:
            return StreamCall(self, method, decode, encode=encode, requests=request_iterator, **options)

        return call

    async def close(self) -> None:
        """Cancel all calls and close the connections."""
        self.closed = True
        for call in list(self._calls):
            call.cancel()
        for server in self._servers:
            server.close()
        self.network.forget_channel(self)

    # -- what the network, connections and calls tell

    def abandon(self) -> None:
        """The process was killed."""
        self.closed = self._abandoned = True
        self._waiting.clear()
        self._calls.clear()

    def begin(self, call: "Call") -> None:
        """A call comes. Raises UsageError, as gRPC does, when the channel is closed."""
        if self.closed:
            raise grpc.aio.UsageError("Channel is closed.")
        self._calls[call] = None
        if not self._started:
            self._started = True
            for server in self._servers:
                server.connect()
        # A step later: who makes a call that fails at once still has a call that is under way.
        self.network.loop.call_soon(self.assign, call, context=self.context)

    def assign(self, call: "Call") -> None:
        """Give the call to the next server that is ready, let it wait, or fail this attempt."""
        if self._abandoned or call.done():
            return
        ready = [server for server in self._servers if server.connection is not None and server.ready]
        if ready:
            self._turn += 1
            connection = ready[self._turn % len(ready)].connection
            assert connection is not None  # noqa: S101 - for the type checker
            call.attempt(connection)
        elif call.waits_for_ready or any(server.failure is None for server in self._servers):
            self._waiting.append(call)
        else:
            reason = self._servers[-1].failure
            text = f"connections to all backends failing; last error: {reason}"
            call.attempt_failed(Status(grpc.StatusCode.UNAVAILABLE, text))

    def changed(self) -> None:
        """The state of a server has changed."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self.assign(call)

    def retried(self, method: str) -> bool:
        return method in self._retried

    def waits(self, method: str) -> bool:
        return self._retried.get(method, False)

    def ended(self, call: "Call") -> None:
        self._calls.pop(call, None)


class _Subchannel:
    """One address of a channel, and the connection to it, which is kept up from the first call on."""

    def __init__(self, channel: SimulatedChannel, address: str) -> None:
        self._channel = channel
        self._address = address
        self._backoff = _FIRST_RECONNECT_SECONDS
        self.connection: Connection | None = None
        self.ready = False
        self.failure: str | None = None  # why there is no server; None while that is not known

    def connect(self) -> None:
        if self._channel.closed:
            return
        network = self._channel.network
        within = max(self._backoff, _FIRST_RECONNECT_SECONDS)
        again_at = network.loop.time() + self._backoff * network.rng.uniform(
            1 - _RECONNECT_JITTER, 1 + _RECONNECT_JITTER
        )

        def done(connection: Connection | None, reason: str) -> None:
            if connection is not None:
                self._connected(connection)
                return
            self._backoff = min(self._backoff * _RECONNECT_GROWTH, _LONGEST_RECONNECT_SECONDS)
            self.failure = reason
            wait = max(0.0, again_at - network.loop.time())
            network.later(wait, self.connect, context=self._channel.context)
            self._channel.changed()

        network.connect(self._channel, self._address, within, done)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close(self.connection.client, "the channel is closed", "Socket closed")

    def healthy(self, connection: Connection, serving: bool) -> None:
        """What the server says of its service."""
        if connection is not self.connection:
            return
        self.ready = serving
        self.failure = None if serving else f"ipv4:{self._address}: backend unhealthy"
        self._channel.changed()

    def _connected(self, connection: Connection) -> None:
        if self._channel.closed:
            connection.close(connection.client, "the channel is closed", "Socket closed")
            return
        self.connection = connection
        self._backoff = _FIRST_RECONNECT_SECONDS
        connection.client.on_closed = connection.client.on_goaway = lambda: self._left(connection)
        if self._channel.health_service:
            _HealthWatch(self, connection, self._channel.health_service)
        else:
            self.healthy(connection, serving=True)

    def _left(self, connection: Connection) -> None:
        """The connection takes no more calls: it is closed, or the server is stopping."""
        if connection is self.connection:
            self.connection, self.ready, self.failure = None, False, None
            self.connect()


class _HealthWatch:
    """A connection's health check: calls go there while the server says that the service serves."""

    def __init__(self, server: _Subchannel, connection: Connection, service: str) -> None:
        self._server = server
        self._connection = connection
        self._stream = connection.open_stream(_HEALTH_WATCH, self)
        request: bytes = health_pb2.HealthCheckRequest(service=service).SerializeToString()
        self._stream.send_request((), None, request)

    def on_message(self, message: bytes) -> None:
        self._stream.to_client.read(message)
        status = health_pb2.HealthCheckResponse.FromString(message).status
        self._server.healthy(self._connection, status == _SERVING)

    def on_status(self, status: Status) -> None:
        # A server without health checks is healthy, by gRPC's rule.
        self._server.healthy(self._connection, status.code is grpc.StatusCode.UNIMPLEMENTED)

    def on_refused(self) -> None:
        self._server.healthy(self._connection, serving=False)

    def on_lost(self, text: str) -> None:
        """The subchannel learns it from the connection."""


def _converters(encode: Convert, decode: Convert, given: dict[str, Any]) -> tuple[Convert, Convert]:
    """Generated code gives both by name."""
    return given.get("request_serializer", encode), given.get("response_deserializer", decode)
