"""Connections of the simulated network, and the streams of calls on them.

Owns what is under way between two processes: frames, the two ends of each connection, and what a reader has
not read yet. Invariant: frames of one direction of one stream arrive in the order in which they were sent,
each once or not at all. Frames of different streams overtake each other. A frame is bytes: the two sides
share no object.

What arrives at a process runs in the context in which that process made its server or channel."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import grpc

if TYPE_CHECKING:
    from tools.simulation.network import Network

# What each frame counts beside its message: so a stream of empty messages fills the window, too.
_FRAME_BYTES = 64


class Status(NamedTuple):
    """How a call ended."""

    code: grpc.StatusCode
    details: str = ""
    trailing: tuple[tuple[str, Any], ...] = ()


OK = Status(grpc.StatusCode.OK)


class Keepalive(NamedTuple):
    """When an end gives up a peer that does not answer. A ping is sent every `interval_seconds`. A frozen
    peer's kernel still acknowledges it, a cut line does not: the first is noticed by gRPC's ping timeout, the
    second by TCP's user timeout."""

    interval_seconds: float
    frozen_seconds: float
    cut_seconds: float


# As in hoss.rpc: of all channels and servers, and of channels that can turn to another server.
USUAL_KEEPALIVE = Keepalive(10.0, 60.0, 5.0)
# To several servers: of a service whose health is checked, and of a stateless one.
FAILOVER_KEEPALIVE = Keepalive(2.0, 2.0, 2.0)
STATELESS_KEEPALIVE = Keepalive(1.0, 1.0, 1.0)


class ClientEnd(Protocol):
    """The client's end of a stream."""

    def on_message(self, message: bytes) -> None: ...
    def on_status(self, status: Status) -> None: ...
    def on_refused(self) -> None:
        """The server is stopping and has not looked at the call."""

    def on_lost(self, text: str) -> None:
        """The connection is over."""


class Nobody:
    """The client's end of a stream that the client has done with."""

    def on_message(self, message: bytes) -> None: ...
    def on_status(self, status: Status) -> None: ...
    def on_refused(self) -> None: ...
    def on_lost(self, text: str) -> None: ...


class ServerEnd(Protocol):
    """The server's end of a stream."""

    def on_message(self, message: bytes) -> None: ...
    def on_half_close(self) -> None: ...
    def on_cancelled(self) -> None:
        """The client gave up, or the connection is over."""


class Acceptor(Protocol):
    """What listens at an address."""

    process: str
    context: Context

    def on_connected(self, connection: "Connection") -> None: ...
    def on_request(
        self,
        stream: "Stream",
        metadata: tuple[tuple[str, Any], ...],
        timeout_seconds: float | None,
        request: bytes | None,
    ) -> None:
        """A call begins. `request`: of a client that sends one message alone."""


class Connector(Protocol):
    """What connects to an address."""

    process: str
    context: Context
    keepalive: Keepalive


@dataclass(eq=False)
class End:
    """One end of a connection."""

    process: str
    context: Context
    keepalive: Keepalive
    open: bool = True
    ping_timer: asyncio.TimerHandle | None = None
    on_closed: Callable[[], None] = lambda: None
    on_goaway: Callable[[], None] = lambda: None
    stalled_end: str = ""  # the text with which the connection will end here, once a cut is healed


class Connection:
    """One connection of a channel to a server. Either end may be over while the other does not know it."""

    def __init__(self, network: "Network", number: int, connector: Connector, acceptor: Acceptor) -> None:
        self.network = network
        self.number = number
        self.acceptor = acceptor
        self.client = End(connector.process, connector.context, connector.keepalive)
        self.server = End(acceptor.process, acceptor.context, USUAL_KEEPALIVE)
        self.ends = (self.client, self.server)
        self.streams: dict[int, Stream] = {}
        self._last_stream = 0
        self._said_goaway = False
        self.broken = False  # nothing arrives any more: a later frame must not come without an earlier one

    def open_stream(self, method: str, client: ClientEnd) -> "Stream":
        self._last_stream += 1
        stream = self.streams[self._last_stream] = Stream(self, self._last_stream, method, client)
        return stream

    def close(self, end: End, here: str, there: str) -> None:
        """Close one end, whose calls end with the text `here`. The other end learns of it when that gets
        through, and its calls end with the text `there`."""
        if not end.open:
            return
        end.open = False
        if end.ping_timer is not None:
            end.ping_timer.cancel()
        other = self.server if end is self.client else self.client
        end.on_closed()
        for stream in list(self.streams.values()):
            if end is self.client:
                client, stream.client = stream.client, Nobody()
                if self._said_goaway and stream.server is None:
                    client.on_refused()
                else:
                    client.on_lost(here)
            elif stream.server is not None:
                stream.server.on_cancelled()
        if other.open:
            self._send_end(other, there)
        else:
            self.network.forget(self)

    def break_off(self) -> None:
        """The connection breaks somewhere in between."""
        self.broken = True
        self.network.observe("connection broken", self.client.process, self.server.process)
        for end in self.ends:
            if end.open:
                self._send_end(end, "recvmsg:Connection reset by peer")

    def go_away(self) -> None:
        """The server takes no more calls. Those that run go on, and the client knows which those are."""
        self._said_goaway = True

        def arrive() -> None:
            if self.client.open:
                self.network.observe("goaway", self.server.process, self.client.process)
                self.client.on_goaway()

        self.network.later(self.network.delay(), arrive, context=self.client.context)

    def resume(self) -> None:
        """Send again what waited behind a cut that is no more."""
        for stream in self.streams.values():
            stream.to_server.resume()
            stream.to_client.resume()
        for end in self.ends:
            if end.stalled_end:
                text, end.stalled_end = end.stalled_end, ""
                self._send_end(end, text)

    def watch_peers(self) -> None:
        """An end whose peer does not answer gives up after a ping and its timeout."""
        for end, peer in ((self.client, self.server), (self.server, self.client)):
            answers = self.network.answers(end.process, peer.process)
            if answers and end.ping_timer is not None:
                end.ping_timer.cancel()
                end.ping_timer = None
            elif not answers and end.ping_timer is None and end.open:
                frozen = self.network.is_frozen(peer.process)
                timeout = end.keepalive.frozen_seconds if frozen else end.keepalive.cut_seconds
                until_ping = self.network.rng.uniform(0, end.keepalive.interval_seconds)
                end.ping_timer = self.network.later(
                    until_ping + timeout, self._ping_timed_out, end, peer, context=end.context
                )

    def _ping_timed_out(self, end: End, peer: End) -> None:
        end.ping_timer = None
        # An end that was frozen itself finds its timer over, and the answer beside it.
        if end.open and not self.network.answers(end.process, peer.process):
            self.network.observe("ping timeout", end.process, peer.process)
            self.close(end, "ping timeout", "Socket closed")

    def _send_end(self, end: End, text: str) -> None:
        peer = self.server if end is self.client else self.client

        def arrive() -> None:
            if not end.open:
                return
            if self.network.is_cut(peer.process, end.process):
                end.stalled_end = text
                return
            self.network.observe("closed", peer.process, end.process)
            self.close(end, text, text)

        self.network.later(self.network.delay(), arrive, context=end.context)


class Stream:
    """One call on one connection: frames to the server, and frames to the client."""

    __slots__ = ("client", "connection", "method", "number", "server", "to_client", "to_server")

    def __init__(self, connection: Connection, number: int, method: str, client: ClientEnd) -> None:
        self.connection = connection
        self.number = number
        self.method = method
        self.client = client
        self.server: ServerEnd | None = None
        self.to_server = Direction(self, connection.client, connection.server)
        self.to_client = Direction(self, connection.server, connection.client)

    def forget(self) -> None:
        """The call has ended on both sides, or nobody waits for it any more."""
        self.connection.streams.pop(self.number, None)

    # -- sent by the client

    def send_request(
        self,
        metadata: tuple[tuple[str, Any], ...],
        timeout_seconds: float | None,
        request: bytes | None,
    ) -> None:
        def deliver() -> None:
            self.connection.acceptor.on_request(self, metadata, timeout_seconds, request)

        if request is not None:
            self.to_server.count(request)
        self.to_server.send("request", len(request or b""), deliver)

    def send_cancel(self) -> None:
        def deliver() -> None:
            if self.server is not None:
                self.server.on_cancelled()
            self.forget()

        self.to_server.send("cancel", 0, deliver)

    def send_half_close(self) -> None:
        def deliver() -> None:
            if self.server is not None:
                self.server.on_half_close()

        self.to_server.send("half close", 0, deliver)

    def send_to_server(self, message: bytes) -> None:
        def deliver() -> None:
            if self.server is not None:
                self.server.on_message(message)

        self.to_server.send("message", len(message), deliver)

    # -- sent by the server

    def send_to_client(self, message: bytes) -> None:
        self.to_client.send("message", len(message), lambda: self.client.on_message(message))

    def send_status(self, status: Status) -> None:
        self.to_client.send("status", 0, lambda: self._end(status))

    def send_reply(self, message: bytes) -> None:
        """The one message of a unary call, and its status."""

        def deliver() -> None:
            self.client.on_message(message)
            self._end(OK)

        network = self.connection.network
        if network.happens(network.faults.drop_reply):
            self._drop_reply(len(message))
        else:
            self.to_client.send("reply", len(message), deliver)

    def send_refusal(self) -> None:
        def deliver() -> None:
            self.forget()
            self.client.on_refused()

        self.to_client.send("refused stream", 0, deliver)

    def _end(self, status: Status) -> None:
        self.forget()
        self.client.on_status(status)

    def _drop_reply(self, size: int) -> None:
        network, end = self.connection.network, self.connection.client
        network.observe("reply dropped", self.connection.server.process, end.process, self.method, size)
        longest = end.keepalive.interval_seconds + end.keepalive.frozen_seconds
        after = network.delay() if network.rng.random() < 0.5 else network.rng.uniform(0, longest)
        lost = Status(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        network.later(after, self._end, lost, context=end.context)


@dataclass(slots=True, eq=False)
class _Frame:
    kind: str
    size: int
    deliver: Callable[[], object]


@dataclass(slots=True, eq=False)
class Direction:
    """The frames of a stream that are under way in one direction, and what its reader has not read yet."""

    stream: Stream
    source: End
    target: End
    frames: deque[_Frame] = field(default_factory=deque)
    arrivals_held: int = 0  # behind a cut
    unread_bytes: int = 0
    writers: "deque[asyncio.Future[None]]" = field(default_factory=deque)

    def send(self, kind: str, size: int, deliver: Callable[[], object]) -> None:
        """Send a frame. What is sent at an end that is closed goes nowhere."""
        if self.source.open:
            self.frames.append(_Frame(kind, size, deliver))
            self._schedule()

    async def admit(self, message: bytes) -> None:
        """Wait until the reader has read enough, or `release` is called. The message then counts as
        unread."""
        # One step at least, as a write of gRPC takes: otherwise a writer would hold the loop.
        await asyncio.sleep(0)
        network = self.stream.connection.network
        if self.unread_bytes >= network.window_bytes:
            room: asyncio.Future[None] = network.loop.create_future()
            self.writers.append(room)
            await room
        self.count(message)

    def count(self, message: bytes) -> None:
        """This message is unread."""
        self.unread_bytes += len(message) + _FRAME_BYTES

    def read(self, message: bytes) -> None:
        """The reader has taken this message."""
        network = self.stream.connection.network
        self.unread_bytes -= len(message) + _FRAME_BYTES
        if self.writers and self.unread_bytes < network.window_bytes:
            # It travels as a frame of the other direction, in order with the rest.
            back = self.stream.to_client if self is self.stream.to_server else self.stream.to_server
            back.send("window", 0, self.release)

    def release(self) -> None:
        """Let all waiting writers go on."""
        writers, self.writers = self.writers, deque()
        for writer in writers:
            if not writer.done():
                writer.set_result(None)

    def resume(self) -> None:
        """A cut may be healed: what was held arrives after another trip."""
        held, self.arrivals_held = self.arrivals_held, 0
        for _ in range(held):
            self._schedule()

    def _schedule(self) -> None:
        network = self.stream.connection.network
        network.later(network.delay(), self._arrive, context=self.target.context)

    def _arrive(self) -> None:
        """One frame arrives: the first, whichever's delay is over."""
        connection = self.stream.connection
        network = connection.network
        if network.is_cut(self.source.process, self.target.process):
            self._note("stalled", self.frames[0])
            self.arrivals_held += 1
            return
        frame = self.frames.popleft()
        if connection.broken or not self.target.open:
            self._note("lost", frame)
        elif network.happens(network.faults.break_connection):
            self._note("lost", frame)
            connection.break_off()
        else:
            if frame.kind != "window":
                self._note(frame.kind, frame)
            frame.deliver()

    def _note(self, kind: str, frame: _Frame) -> None:
        source, target = self.source.process, self.target.process
        self.stream.connection.network.observe(kind, source, target, self.stream.method, frame.size)
