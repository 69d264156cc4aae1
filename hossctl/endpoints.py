"""The platform that a command talks to: its addresses, its clients, and the event loop for them."""

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoss.contexts import home, known_addresses
from hoss.errors import InvalidInput, TransportError
from hossctl.cli import ResultT, run_async
from hossctl.kinds import OF_RESOLVERS, Kind

if TYPE_CHECKING:
    from hoss.client.dispatcher import DispatcherClient
    from hoss.client.resolver import ResolverClient
    from hoss.rpc import OpenChannel
    from hossctl.local.platform_state import PlatformState


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses as given by flags: "host:port", several separated by commas; empty where there is no flag."""

    dispatcher: str = ""
    resolver: str = ""
    # With which certificate; empty: by the environment or the contexts, see hoss.client.access.
    tls_dir: str = ""

    def dispatcher_addresses(self) -> list[str]:
        """By flag, else HOSS_DISPATCHER, else the current context's, else the local platform's. Raises
        TransportError where there is none."""
        given = self.dispatcher or known_addresses("dispatcher")
        return read_addresses(given, "--dispatcher") if given else _local("dispatcher").dispatcher.split(",")

    def resolver_addresses(self) -> list[str]:
        """By flag, else HOSS_RESOLVER, else the current context's, else the local platform's. Raises
        TransportError where there is none."""
        given = self.resolver or known_addresses("resolver")
        return read_addresses(given, "--resolver") if given else list(_local("resolver").resolvers)

    def open_channel(self) -> "OpenChannel":
        """What the clients of this platform open their channels with."""
        from hoss.client.access import ClientAccess, found_channel  # noqa: PLC0415 - only for a platform

        return ClientAccess(Path(self.tls_dir)).channel if self.tls_dir else found_channel

    def certificate_directory(self) -> Path | None:
        """Of the certificate that this platform is called with; None: it is called without TLS."""
        if self.tls_dir:
            return Path(self.tls_dir)
        from hoss.client.access import found_access  # noqa: PLC0415 - only for a platform

        return found_access(self.dispatcher_addresses()).tls_dir

    def check(self, kind: Kind) -> None:
        """Raise TransportError where there is no address for this kind, before a client is imported."""
        if kind in OF_RESOLVERS:
            self.resolver_addresses()
        else:
            self.dispatcher_addresses()


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients of one platform."""

    dispatcher: "DispatcherClient"
    resolver: "ResolverClient"


@contextlib.asynccontextmanager
async def dispatcher_of(endpoints: Endpoints) -> "AsyncIterator[DispatcherClient]":
    """A dispatcher client for the length of the block."""
    addresses = endpoints.dispatcher_addresses()
    from hoss.client.dispatcher import DispatcherClient  # noqa: PLC0415 - only for a platform

    async with contextlib.AsyncExitStack() as stack:
        client = DispatcherClient(addresses, open_channel=endpoints.open_channel())
        stack.push_async_callback(client.close)
        yield client


@contextlib.asynccontextmanager
async def resolver_of(endpoints: Endpoints) -> "AsyncIterator[ResolverClient]":
    """A resolver client for the length of the block."""
    addresses = endpoints.resolver_addresses()
    from hoss.client.resolver import ResolverClient  # noqa: PLC0415 - as above

    async with contextlib.AsyncExitStack() as stack:
        client = ResolverClient(addresses, open_channel=endpoints.open_channel())
        stack.push_async_callback(client.close)
        yield client


@contextlib.asynccontextmanager
async def clients_of(endpoints: Endpoints) -> AsyncIterator[Clients]:
    """Both clients for the length of the block."""
    async with dispatcher_of(endpoints) as dispatcher, resolver_of(endpoints) as resolver:
        yield Clients(dispatcher, resolver)


def ask_dispatcher(
    endpoints: Endpoints, request: "Callable[[DispatcherClient], Coroutine[Any, Any, ResultT]]"
) -> ResultT:
    """The answer to a request of a command that sends no other."""

    async def run() -> ResultT:
        async with dispatcher_of(endpoints) as client:
            return await request(client)

    return run_async(run())


def ask_resolver(
    endpoints: Endpoints, request: "Callable[[ResolverClient], Coroutine[Any, Any, ResultT]]"
) -> ResultT:
    """As `ask_dispatcher`, of a resolver."""

    async def run() -> ResultT:
        async with resolver_of(endpoints) as client:
            return await request(client)

    return run_async(run())


def of_state(state: "PlatformState") -> Endpoints:
    """The addresses of a local platform."""
    return Endpoints(state.dispatcher, ",".join(state.resolvers), state.tls_dir)


def read_addresses(text: str, option: str) -> list[str]:
    """The addresses of a flag. Raises InvalidInput."""
    addresses = [part.strip() for part in text.split(",") if part.strip()] or [text]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
            raise InvalidInput(
                f"{address!r} is no address; give host:port, as in 127.0.0.1:7100", where=option
            )
    return addresses


def _local(service: str) -> "PlatformState":
    from hossctl.local import platform_state  # noqa: PLC0415 - only where no address was given

    directory = home()
    state = platform_state.load_state(directory)
    if state is None or not state.dispatcher:
        raise TransportError(
            f"no platform is running here: start one with `hoss up`, or name one with --{service}"
        )
    if not state.living():
        raise TransportError(
            "the local platform has died: see its logs in "
            f"{directory / 'logs'}, and start it again with `hoss down` and `hoss up`"
        )
    if (ended := state.ended_process(service)) is not None:
        raise TransportError(
            f"process {ended.name} (pid {ended.pid}) of the local platform has ended; see {ended.log}, and"
            " start the platform again with `hoss down` and `hoss up`: its data is kept"
        )
    return state
