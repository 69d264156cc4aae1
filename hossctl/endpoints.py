"""Which platform a command talks to, and the clients to talk with."""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hoss.errors import InvalidInput, TransportError
from hossctl.kinds import OF_RESOLVERS, Kind

if TYPE_CHECKING:
    from hoss.client.dispatcher import DispatcherClient
    from hoss.client.resolver import ResolverClient
    from hossctl.platform import PlatformState


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses as given by flag: "host:port", several with commas. Empty: look further."""

    dispatcher: str = ""
    resolver: str = ""

    def dispatcher_addresses(self) -> list[str]:
        """By flag, else HOSS_DISPATCHER, else the local platform. Raises TransportError where there is none."""
        given = self.dispatcher or os.environ.get("HOSS_DISPATCHER", "")
        return _addresses(given, "--dispatcher") if given else _local("--dispatcher").dispatcher.split(",")

    def resolver_addresses(self) -> list[str]:
        """By flag, else HOSS_RESOLVER, else the local platform. Raises TransportError where there is none."""
        given = self.resolver or os.environ.get("HOSS_RESOLVER", "")
        return _addresses(given, "--resolver") if given else list(_local("--resolver").resolvers)

    def check(self, kind: Kind) -> None:
        """Raise as the above for a kind that is about to be asked for: said sooner than anything is loaded that could ask."""
        if kind in OF_RESOLVERS:
            self.resolver_addresses()
        else:
            self.dispatcher_addresses()


@dataclass(frozen=True, slots=True)
class Clients:
    """Both sides of one platform."""

    dispatcher: "DispatcherClient"
    resolver: "ResolverClient"


@contextlib.asynccontextmanager
async def dispatcher_of(endpoints: Endpoints) -> "AsyncIterator[DispatcherClient]":
    """A dispatcher client for the length of the block."""
    addresses = endpoints.dispatcher_addresses()
    from hoss.client.dispatcher import DispatcherClient  # noqa: PLC0415 - where there is somebody to talk to

    async with contextlib.AsyncExitStack() as stack:
        client = DispatcherClient(addresses)
        stack.push_async_callback(client.close)
        yield client


@contextlib.asynccontextmanager
async def resolver_of(endpoints: Endpoints) -> "AsyncIterator[ResolverClient]":
    """A resolver client for the length of the block."""
    addresses = endpoints.resolver_addresses()
    from hoss.client.resolver import ResolverClient  # noqa: PLC0415 - as above

    async with contextlib.AsyncExitStack() as stack:
        client = ResolverClient(addresses)
        stack.push_async_callback(client.close)
        yield client


@contextlib.asynccontextmanager
async def clients_of(endpoints: Endpoints) -> AsyncIterator[Clients]:
    """Both clients for the length of the block."""
    async with dispatcher_of(endpoints) as dispatcher, resolver_of(endpoints) as resolver:
        yield Clients(dispatcher, resolver)


def of_state(state: "PlatformState") -> Endpoints:
    """A local platform's own addresses."""
    return Endpoints(state.dispatcher, ",".join(state.resolvers))


def _addresses(text: str, option: str) -> list[str]:
    addresses = [part.strip() for part in text.split(",") if part.strip()]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
            raise InvalidInput(f"{address!r} is no address; give host:port, as in 127.0.0.1:7070", where=option)
    return addresses


def _local(option: str) -> "PlatformState":
    from hossctl import platform  # noqa: PLC0415 - for those who did not name theirs

    directory = platform.home()
    state = platform.load_state(directory)
    if state is None or not state.dispatcher:
        raise TransportError(f"no platform is running here: start one with `hoss up`, or name one with {option}")
    if not state.living():
        raise TransportError(
            "the local platform has died: see its logs in "
            f"{directory / 'logs'}, and start it again with `hoss down` and `hoss up`"
        )
    return state
