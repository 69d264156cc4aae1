"""Redis clients by URL (hoss/redis/url.py): one server, the master that Sentinel names, or a Cluster.

All keys of one script or transaction share a hash tag, so they are on one server, and a plain client of that
server is enough. Clients never retry by themselves: only the caller knows whether a command may be repeated.
"""

import asyncio
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from hiredis import pack_command

from hoss.imports import without
from hoss.redis.url import parse_redis_url

# redis-py imports OpenTelemetry, where it is installed, for metrics of its own.
with without("opentelemetry"):
    from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
    from redis.asyncio.cluster import ClusterNode
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
    from redis.backoff import NoBackoff
    from redis.exceptions import NoScriptError, RedisError, ResponseError

    # redis-py 8 asks for maintenance notifications on every new connection. Only Redis Cloud supports them.
    try:
        from redis.asyncio.client import MaintNotificationsConfig  # type: ignore[attr-defined]

        _NO_MAINTENANCE: dict[str, Any] = {
            "maint_notifications_config": MaintNotificationsConfig(enabled=False)
        }
    except ImportError:
        _NO_MAINTENANCE = {}

    # redis-py says its name and version on every new connection (CLIENT SETINFO). Redis before 7.2 does not
    # know the command, 7.0 does not even start with an account that names it, and redis-py 8 looks for its
    # version on the disk, for every client: some milliseconds each.
    _UNNAMED: dict[str, Any] = (
        {"driver_info": None} if find_spec("redis.driver_info") else {"lib_name": None, "lib_version": None}
    )

__all__ = ["NoScriptError", "OpenRedis", "Redis", "RedisAccess", "RedisError", "ResponseError", "reach"]

_CONNECT_SECONDS = 1.0

# Redis refuses writes while it cannot write its append-only file or snapshot. The error ends with errno's
# text.
_REFUSES_TO_WRITE = "MISCONF"
_DISK_TROUBLES = (
    "No space left on device",
    "Disk quota exceeded",
    "Read-only file system",
    "Input/output error",
)


def words(error: BaseException) -> str:
    """The error in one line. For a disk that Redis cannot write to, also the remedy."""
    text = " ".join(str(error).split())
    if _REFUSES_TO_WRITE not in text:
        return text
    trouble = next((trouble for trouble in _DISK_TROUBLES if trouble in text), "its log says why")
    return f"Redis cannot write to its disk: {trouble}; mend that, and all goes on by itself"


class RedisAccess(Protocol):
    """Plain clients of the servers that hold the keys."""

    async def at(self, key: str) -> Redis:
        """A client of the server that holds `key`."""
        ...

    async def every(self) -> list[Redis]:
        """A client of each server that holds keys."""
        ...

    def doubt(self) -> None:
        """A server failed or no longer holds its keys. The next call looks up the server again."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class OpenRedis(Protocol):
    """`reach`, or what another host has in its place."""

    def __call__(
        self, url: str, *, timeout_seconds: float, connections: int | None = None
    ) -> RedisAccess: ...


def reach(url: str, *, timeout_seconds: float, connections: int | None = None) -> RedisAccess:
    """Access to the Redis of that URL. Connects at the first use. Raises ConfigError like `parse_redis_url`.

    `connections`: the most connections to a server; callers wait for a free one up to the timeout. None: no
    limit."""
    parsed = parse_redis_url(url)
    common: dict[str, Any] = {
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": min(timeout_seconds, _CONNECT_SECONDS),
        "retry": Retry(NoBackoff(), 0),
        **_NO_MAINTENANCE,
        **_UNNAMED,
    }
    options = {**parsed.options, **common}
    if parsed.form == "cluster":
        return _Cluster(parsed.hosts, options, connections)
    if parsed.form == "sentinel":
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            parsed.hosts, sentinel_kwargs={**parsed.sentinel_options, **common}, **options
        )
        if connections is None:
            return _OneServer(_quick(sentinel.master_for(parsed.service)), sentinel.sentinels)
        patient = sentinel.master_for(
            parsed.service,
            connection_pool_class=_PatientSentinelPool,
            max_connections=connections,
            timeout=timeout_seconds,
        )
        return _OneServer(_quick(patient), sentinel.sentinels)
    if parsed.hosts:
        options["host"], options["port"] = parsed.hosts[0]
    return _OneServer(_client(options, connections))


class _QuickConnection:
    """A connection whose commands hiredis packs: 3 us for the arguments of a commit, redis-py takes 18 us. It
    writes without the timer, and before Python 3.12 the task, that redis-py makes for every write. They are
    for a server that does not read: then they are made."""

    if TYPE_CHECKING:  # of the connection of redis-py that it is mixed into
        health_check_interval: float
        _reader: asyncio.StreamReader | None
        _writer: asyncio.StreamWriter | None

    def pack_command(self, name: str | bytes, *arguments: bytes | str | float) -> list[bytes]:
        """The words of the name ("SCRIPT LOAD") are separate arguments."""
        return [pack_command((*name.split(), *arguments))]

    async def send_packed_command(
        self, command: bytes | str | Iterable[bytes], check_health: bool = True
    ) -> None:
        """As redis-py does: raises its errors, and waits no longer than the timeout."""
        # Another redis-py may name them otherwise.
        reader, writer, unsent = getattr(self, "_reader", None), getattr(self, "_writer", None), command
        stands = reader is not None and not reader.at_eof() and reader.exception() is None
        if stands and writer is not None and isinstance(command, list) and not self.health_check_interval:
            transport = writer.transport
            if not (transport.is_closing() or transport.get_write_buffer_size()):
                writer.writelines(command)
                if not transport.get_write_buffer_size():
                    return
                unsent = []  # the rest is in the buffer; redis-py waits until it is sent
        await super().send_packed_command(unsent, check_health)  # type: ignore[misc]


def _quick(client: Redis) -> Redis:
    pool = client.connection_pool
    pool.connection_class = type("Connection", (_QuickConnection, pool.connection_class), {})
    return client


class _PatientSentinelPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to Sentinel's master. Callers wait for a free one."""


class _QuickPool(BlockingConnectionPool):
    """Redis-py's pool without its lock, timer and measurements while a connection is free."""

    async def get_connection(self, *arguments: Any, **options: Any) -> Any:
        """Raises redis-py's ConnectionError if none gets free in time."""
        if not self.can_get_connection():
            return await super().get_connection(*arguments, **options)  # type: ignore[no-untyped-call]
        connection = self.get_available_connection()  # type: ignore[no-untyped-call]
        try:
            await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection


def _client(options: Mapping[str, Any], connections: int | None) -> Redis:
    """A client of one server. Its pool blocks: redis-py's own pool raises when it is full, and a hundred
    calls at once would take Redis for unavailable."""
    client = _quick(Redis(**options))
    if connections is None:
        return client
    pool = client.connection_pool
    patient = _QuickPool(
        connections,
        options["socket_timeout"],
        pool.connection_class,
        **{**pool.connection_kwargs, **_NO_MAINTENANCE},
    )
    return Redis.from_pool(patient)


class _OneServer:
    """One server, or Sentinel's master. With Sentinel every new connection asks which server is the master,
    and a connection to a server that became a replica is closed at its first refusal."""

    def __init__(self, client: Redis, others: list[Redis] | None = None) -> None:
        self._client = client
        self._others = others or []

    async def at(self, key: str) -> Redis:  # noqa: ARG002 - all keys are there
        return self._client

    async def every(self) -> list[Redis]:
        return [self._client]

    def doubt(self) -> None:
        """Nothing to do: every new connection asks Sentinel."""

    async def close(self) -> None:
        for client in (self._client, *self._others):
            await client.aclose()


class _Cluster:
    """One plain client for each master. redis-py's cluster client supplies the topology only: its retries,
    its split pipelines and its threads for transactions are of no use here."""

    def __init__(
        self, hosts: tuple[tuple[str, int], ...], options: dict[str, Any], connections: int | None = None
    ) -> None:
        self._options = options
        self._connections = connections
        self._topology = RedisCluster(startup_nodes=[ClusterNode(*host) for host in hosts], **options)
        self._clients: dict[tuple[str, int], Redis] = {}
        self._known = False

    async def at(self, key: str) -> Redis:
        await self._learn()
        return self._client(self._topology.get_node_from_key(key))

    async def every(self) -> list[Redis]:
        await self._learn()
        return [self._client(node) for node in self._topology.get_primaries()]

    def doubt(self) -> None:
        self._known = False

    async def close(self) -> None:
        await self._topology.aclose()
        for client in self._clients.values():
            await client.aclose()

    async def _learn(self) -> None:
        if not self._known:
            await self._topology.aclose()
            await self._topology.initialize()
            self._known = True

    def _client(self, node: ClusterNode | None) -> Redis:
        if node is None:
            raise ConnectionError("no master of the Redis Cluster holds this slot")
        address = (str(node.host), int(node.port))
        if address not in self._clients:
            host, port = address
            self._clients[address] = _client({**self._options, "host": host, "port": port}, self._connections)
        return self._clients[address]
