"""The network of a simulation: gRPC's transport within one process, and all that can go wrong on the way.

Owns addresses, and the faults between processes: delays, cuts, partitions, lost replies, repeated requests.
Everything is drawn from the one generator that it is given, so equal seeds give equal events.

What arrives at a process runs in the context in which that process made its server or channel. So the
simulation's loop holds back what comes to a frozen process, and drops what comes to a killed one. The network
has to be told of both (`frozen`, `thawed`, `killed`), because their peers notice it by the connections."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import grpc.aio

from hoss.serving import Server
from tools.simulation.connection import Acceptor, Connection, Connector

if TYPE_CHECKING:
    from tools.simulation.channel import SimulatedChannel

# What a writer may have unread at its peer before it waits: HTTP/2's first window. Real gRPC lets it grow to
# some megabytes on a quick connection.
WINDOW_BYTES = 65_536

# A connection begins with three trips: TCP's handshake, and the settings of both sides.
_TRIPS_TO_CONNECT = 3


class Event(NamedTuple):
    """Something that happened on the network. `kind` is one of KINDS; `size` is the message's in bytes."""

    at: float  # seconds of the loop's clock
    kind: str
    source: str
    target: str
    method: str
    size: int


KINDS = (
    # Frames, when they arrive.
    *("request", "message", "half close", "cancel", "reply", "status", "refused stream"),
    # Connections.
    *("connected", "connection refused", "connect timeout", "goaway", "closed", "ping timeout"),
    # Faults. "lost": a frame came to a connection that is closed there. "stalled": it waits behind a cut.
    *("stalled", "lost", "cut", "healed", "connection broken", "reply dropped", "request repeated"),
    # A handler raised what it should not. The size is 0.
    "handler failed",
)


@dataclass
class Faults:
    """Probabilities of what happens by itself. They may be changed at any time."""

    break_connection: float = 0.0  # for each frame: its connection breaks instead
    # For each reply of a unary call: the server did the work, and the client sees UNAVAILABLE, sooner or
    # later.
    drop_reply: float = 0.0
    # For each request that gRPC may retry: it reaches the server, the client believes that it did not, and
    # its retry runs beside the first.
    repeat_request: float = 0.0


def usual_delay(rng: random.Random) -> float:
    """Seconds of one trip: some tenths of a millisecond, and once in a hundred frames up to 50 ms."""
    if rng.random() < 0.01:
        return rng.uniform(0.001, 0.05)
    return 0.0001 + rng.expovariate(4_000.0)


class Network:
    """All processes' view of each other. `loop`: needed where faults are made from outside of the running
    loop."""

    def __init__(
        self,
        rng: random.Random,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        observe: Callable[[Event], None] | None = None,
        delay: Callable[[random.Random], float] = usual_delay,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.rng = rng
        self.faults = Faults()
        self.delay_of = delay
        self.window_bytes = window_bytes
        self._loop = loop
        self._observe = observe
        self._context = Context()  # the network's own: it belongs to no process
        self._listeners: dict[str, Acceptor] = {}
        self._homes: dict[str, str] = {}  # whose process listens at an address, or did so last
        self._connections: dict[int, Connection] = {}
        self._channels: dict[SimulatedChannel, None] = {}
        self._cuts: dict[tuple[str, str], None] = {}
        self._frozen: dict[str, None] = {}
        self._numbers = 0
        self._last_port = 40_000

    # -- what a process uses, called in its context

    def server(self, process: str) -> Server:
        """A server of that process that does not listen yet."""
        from tools.simulation.server import SimulatedServer  # noqa: PLC0415 - it is built on this module

        return Server(cast("grpc.aio.Server", SimulatedServer(self, process)))

    def channel(
        self,
        process: str,
        addresses: Sequence[str],
        *,
        kind: str = "",  # noqa: ARG002 - nobody on this network poses as another
        service: str = "",
        retried: Sequence[str] = (),
    ) -> grpc.aio.Channel:
        """As hoss.rpc.channel, of that process. With several addresses and a service it leaves a server that
        does not answer within four seconds, else within seventy."""
        from tools.simulation.channel import SimulatedChannel  # noqa: PLC0415 - as above

        channel = SimulatedChannel(self, process, addresses, service=service, retried=retried)
        self._channels[channel] = None
        return cast("grpc.aio.Channel", channel)

    # -- what happens to processes and lines

    def killed(self, process: str) -> None:
        """The process was killed: its kernel closes its connections, and its addresses are free."""
        for address, acceptor in list(self._listeners.items()):
            if acceptor.process == process:
                del self._listeners[address]
        for channel in [c for c in self._channels if c.process == process]:
            channel.abandon()
            del self._channels[channel]
        self._frozen.pop(process, None)
        for connection in list(self._connections.values()):
            for end in connection.ends:
                if end.process == process:
                    connection.close(end, "the process was killed", "Socket closed")

    def frozen(self, process: str) -> None:
        """The process does not answer from now on. Its connections stay."""
        self._frozen[process] = None
        self._reconsider()

    def thawed(self, process: str) -> None:
        """The process goes on."""
        self._frozen.pop(process, None)
        self._reconsider()

    def cut(self, source: str, target: str) -> None:
        """From now on nothing comes from `source` to `target`. What is sent waits, as TCP sends it again."""
        self.observe("cut", source, target)
        self._cuts[source, target] = None
        self._reconsider()

    def partition(self, one: str, other: str) -> None:
        """Cut both directions."""
        self.cut(one, other)
        self.cut(other, one)

    def heal(self, one: str = "", other: str = "") -> None:
        """End all cuts between the two; of one process; or, without names, of all."""
        for pair in list(self._cuts):
            if {one, other} - {""} <= set(pair):
                del self._cuts[pair]
                self.observe("healed", *pair)
        for connection in list(self._connections.values()):
            connection.resume()
        self._reconsider()

    def break_connections(self, one: str, other: str) -> None:
        """Break what connects the two now. They may connect again at once."""
        for connection in list(self._connections.values()):
            if sorted((one, other)) == sorted(end.process for end in connection.ends):
                connection.break_off()

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing comes through in this direction."""
        return (source, target) in self._cuts

    def home_of(self, address: str) -> str:
        """The process that listens at an address, or did so last."""
        return self._homes[address]

    def is_frozen(self, process: str) -> bool:
        return process in self._frozen

    def answers(self, one: str, other: str) -> bool:
        """Whether `other` would answer a ping of `one`."""
        return not (self.is_frozen(other) or self.is_cut(one, other) or self.is_cut(other, one))

    # -- what servers and channels use

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop or asyncio.get_running_loop()

    def later(
        self, seconds: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back in the context of a process; without one, in that of none."""
        return self.loop.call_later(seconds, callback, *args, context=context or self._context)

    def delay(self) -> float:
        """Seconds of one trip."""
        return self.delay_of(self.rng)

    def happens(self, probability: float) -> bool:
        """Draw whether a fault happens. Nothing is drawn where it cannot."""
        return probability > 0 and self.rng.random() < probability

    def observe(self, kind: str, source: str, target: str, method: str = "", size: int = 0) -> None:
        if self._observe is not None:
            self._observe(Event(self.loop.time(), kind, source, target, method, size))

    def bind(self, address: str, process: str) -> tuple[str, int]:
        """The address as others name it, and its port. Port 0 is replaced by a free one, and an address that
        means all interfaces by the process' name. Raises RuntimeError, as gRPC does, where it is in use."""
        host, _, port_text = address.rpartition(":")
        host = process if host in ("", "0.0.0.0", "[::]") else host  # noqa: S104 - compared, not bound
        port = int(port_text)
        if port == 0:
            self._last_port += 1
            port = self._last_port
        name = f"{host}:{port}"
        if name in self._listeners:
            raise RuntimeError(f"Failed to bind to address {name}")
        return name, port

    def listen(self, address: str, acceptor: Acceptor) -> None:
        self._listeners[address] = acceptor
        self._homes[address] = acceptor.process

    def stop_listening(self, acceptor: Acceptor) -> None:
        for address in [a for a, listening in self._listeners.items() if listening is acceptor]:
            del self._listeners[address]

    def connect(
        self,
        connector: Connector,
        address: str,
        within_seconds: float,
        done: "Callable[[Connection | None, str], None]",
    ) -> None:
        """Connect, and call `done` in the connector's context, with the connection or with the reason why
        not."""
        source, home = connector.process, self._homes.get(address, "")
        trips = sum(self.delay() for _ in range(_TRIPS_TO_CONNECT))
        waits = max(0.0, within_seconds - trips)

        def arrive() -> None:
            acceptor = self._listeners.get(address)
            target = home if acceptor is None else acceptor.process
            if not self.answers(source, target):
                self.later(waits, fail, "connect timeout", "Connection timed out", context=connector.context)
            elif acceptor is None:
                fail("connection refused", "Connection refused")
            else:
                self._numbers += 1
                connection = Connection(self, self._numbers, connector, acceptor)
                self._connections[connection.number] = connection
                self.observe("connected", source, target)
                acceptor.on_connected(connection)
                done(connection, "")

        def fail(kind: str, reason: str) -> None:
            self.observe(kind, source, home or address)
            done(None, f"UNKNOWN: ipv4:{address}: Failed to connect to remote host: {reason}")

        self.later(trips, arrive, context=connector.context)

    def forget(self, connection: "Connection") -> None:
        self._connections.pop(connection.number, None)

    def forget_channel(self, channel: "SimulatedChannel") -> None:
        self._channels.pop(channel, None)

    def _reconsider(self) -> None:
        for connection in list(self._connections.values()):
            connection.watch_peers()
