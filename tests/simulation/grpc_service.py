"""A gRPC service whose handlers a test writes, and the two transports that serve it: real grpc.aio on
loopback, and the simulated network on its loop."""

import asyncio
import contextlib
import inspect
import random

from hoss import rpc
from hoss.serving import Server
from hoss.v1.resolver_pb2_grpc import ResolverServicer, ResolverStub, add_ResolverServicer_to_server
from tools.simulation.loop import SimulationLoop
from tools.simulation.network import Network

SERVICE = "hoss.v1.Resolver"

# Nothing waits so long unless it hangs. Most of it is virtual.
_HANGS_SECONDS = 60.0


class Service(ResolverServicer):
    """The Resolver's four kinds of calls. A test sets the handlers that it needs; they get the context,
    too."""

    def __init__(self, **handlers):
        for name, handler in handlers.items():
            setattr(self, name, handler)


class Gate:
    """A TCP proxy to a real server: what is between the two can break, or let nothing through."""

    def __init__(self, address):
        self._host, _, self._port = address.rpartition(":")
        self._open = asyncio.Event()
        self._open.set()
        self._writers = []
        self._pipes = []

    async def start(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def shut(self):
        """Accept, and pass nothing on."""
        self._open.clear()

    def break_all(self):
        for writer in self._writers:
            writer.transport.abort()

    async def stop(self):
        """Returns when both ends of each connection are closed."""
        self._server.close()
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)
        self.break_all()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _accept(self, reader, writer):
        self._writers.append(writer)
        self._pipes.append(asyncio.current_task())
        there_reader, there_writer = await asyncio.open_connection(self._host, int(self._port))
        self._writers.append(there_writer)
        for source, target in ((reader, there_writer), (there_reader, writer)):
            self._pipes.append(asyncio.ensure_future(self._pass_on(source, target)))

    async def _pass_on(self, source, target):
        with contextlib.suppress(ConnectionError):
            while chunk := await source.read(65_536):
                await self._open.wait()
                target.write(chunk)
        target.close()


class Loopback:
    """Real gRPC."""

    def run(self, scenario):
        asyncio.run(asyncio.wait_for(self._played(scenario), _HANGS_SECONDS))

    async def _played(self, scenario):
        self._servers, self._channels, self._gates = [], [], []
        try:
            await scenario(self)
        finally:
            for channel in self._channels:
                await channel.close()
            for gate in self._gates:
                await gate.stop()
            for server in self._servers:
                await server.stop(0)

    def new_server(self):
        self._servers.append(self._make_server())
        return self._servers[-1]

    def stub(self, *addresses, service="", retried=()):
        self.channel = self.open_channel(addresses, service=service, retried=retried)
        return ResolverStub(self.channel)

    def open_channel(self, addresses, **options):
        """What clients of HOSS open their channels with."""
        self._channels.append(self._make_channel(addresses, **options))
        return self._channels[-1]

    async def serve(self, service, address="127.0.0.1:0", *, serving=True):
        """A server of the service, or of none, and its address."""
        server = self.new_server()
        if service is not None:
            add_ResolverServicer_to_server(service, server.grpc)
        return server, f"127.0.0.1:{await server.start(address, [SERVICE], serving=serving)}"

    async def gated(self, address):
        """The address under which a client finds the server behind a gate."""
        self._gates.append(Gate(address))
        return await self._gates[-1].start()

    def break_connections(self):
        """Break the connections to servers behind gates."""
        for gate in self._gates:
            gate.break_all()

    def silence(self):
        """Servers behind gates, connected and to be connected, do not answer any more."""
        for gate in self._gates:
            gate.shut()

    def _make_server(self):
        return Server()

    def _make_channel(self, addresses, **options):
        return rpc.channel(addresses, **options)


class Simulated(Loopback):
    """The simulated network."""

    def __init__(self, seed):
        self.seed = seed

    def run(self, scenario):
        loop = SimulationLoop(random.Random(self.seed))
        try:
            self.network = Network(random.Random(self.seed))
            self._behind_gates = []
            loop.run_until_complete(asyncio.wait_for(self._played(scenario), _HANGS_SECONDS))
        finally:
            loop.close()

    async def gated(self, address):
        self._behind_gates.append(self.network.home_of(address))
        return address

    def break_connections(self):
        for process in self._behind_gates:
            self.network.break_connections("client", process)

    def silence(self):
        for process in self._behind_gates:
            self.network.frozen(process)

    def _make_server(self):
        return self.network.server(f"server {len(self._servers)}")

    def _make_channel(self, addresses, **options):
        return self.network.channel("client", addresses, **options)


async def soon(holds):
    """Wait until it holds, by the clock of the loop. `holds` may be a coroutine function."""
    while True:
        found = holds()
        if await found if inspect.isawaitable(found) else found:
            return
        await asyncio.sleep(0.01)


async def steady(count):
    """Wait until it has grown and does not grow for half a second by the clock of the loop. Real gRPC may let
    it grow again: a ping can widen its windows. What a test claims must not depend on that."""
    before, looks = count(), 0
    while looks < 25:
        await asyncio.sleep(0.02)
        before, looks = count(), looks + 1 if count() == before > 0 else 0
