"""Clients by a Redis URL (hoss/redis_url.py): one server, the master that Sentinel names, or a Cluster.

All keys that one script or transaction touches share a hash tag, so they are on one server, and a plain client of that
server is all that anyone needs. Nothing is ever sent twice by itself: who asked knows whether that is harmless.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from hiredis import pack_command

from hoss.imports import without
from hoss.redis_url import parse_redis_url

# It would keep metrics of its own, if it were told to.
with without("opentelemetry"):
    from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
    from redis.asyncio.cluster import ClusterNode
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
    from redis.backoff import NoBackoff
    from redis.exceptions import NoScriptError, RedisError, ResponseError
    from redis.maint_notifications import MaintNotificationsConfig

__all__ = ["NoScriptError", "Redis", "RedisAccess", "RedisError", "ResponseError", "reach"]

_CONNECT_SECONDS = 1.0


class RedisAccess(Protocol):
    """Plain clients of the servers that hold the keys."""

    async def at(self, key: str) -> Redis:
        """A client of the server that holds `key`, as far as is known."""
        ...

    async def every(self) -> list[Redis]:
        """A client of each server that holds keys."""
        ...

    def doubt(self) -> None:
        """A server failed, or said that it is not the one: find out anew, at the next call, which holds what."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


def reach(url: str, *, timeout_seconds: float, connections: int | None = None) -> RedisAccess:
    """Access to the Redis of that URL; connects when it is first needed. Raises ConfigError as `parse_redis_url`.

    `connections`: so many to a server at most, and who finds none free waits for one, up to the timeout; None: as many as needed.
    """
    parsed = parse_redis_url(url)
    common: dict[str, Any] = {
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": min(timeout_seconds, _CONNECT_SECONDS),
        "retry": Retry(NoBackoff(), 0),
        # Asked for at every new connection otherwise; only Redis' own cloud knows it.
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    options = {**parsed.options, **common}
    if parsed.form == "cluster":
        return _Cluster(parsed.hosts, options, connections)
    if parsed.form == "sentinel":
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            parsed.hosts, sentinel_kwargs={**parsed.sentinel_options, **common}, **options
        )
        if connections is None:
            return _OneServer(_packing_in_c(sentinel.master_for(parsed.service)), sentinel.sentinels)
        patient = sentinel.master_for(
            parsed.service,
            connection_pool_class=_PatientSentinelPool,
            max_connections=connections,
            timeout=timeout_seconds,
        )
        return _OneServer(_packing_in_c(patient), sentinel.sentinels)
    if parsed.hosts:
        options["host"], options["port"] = parsed.hosts[0]
    return _OneServer(_client(options, connections))


class _PackingInC:
    """A connection whose commands hiredis packs: 3 us for the arguments of a commit, where redis-py takes 18."""

    def pack_command(self, name: str | bytes, *arguments: bytes | str | float) -> list[bytes]:
        """Words of the name ("SCRIPT LOAD") are arguments of their own."""
        return [pack_command((*name.split(), *arguments))]


def _packing_in_c(client: Redis) -> Redis:
    pool = client.connection_pool
    pool.connection_class = type("Connection", (_PackingInC, pool.connection_class), {})
    return client


class _PatientSentinelPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the master that Sentinel names, for which callers wait."""


def _client(options: Mapping[str, Any], connections: int | None) -> Redis:
    """A client of one server. A full pool of the library's own raises, and a hundred calls at once would find Redis away."""
    client = _packing_in_c(Redis(**options))
    if connections is None:
        return client
    pool = client.connection_pool
    patient = BlockingConnectionPool(
        connections,
        options["socket_timeout"],
        pool.connection_class,
        **{**pool.connection_kwargs, "maint_notifications_config": options["maint_notifications_config"]},
    )
    return Redis.from_pool(patient)


class _OneServer:
    """A server, or the one that is master: with Sentinel every new connection asks which that is, and one to a server that
    has become a replica is closed at its first refusal."""

    def __init__(self, client: Redis, others: list[Redis] | None = None) -> None:
        self._client = client
        self._others = others or []

    async def at(self, key: str) -> Redis:  # noqa: ARG002 - all keys are there
        return self._client

    async def every(self) -> list[Redis]:
        return [self._client]

    def doubt(self) -> None:
        """Nothing is remembered."""

    async def close(self) -> None:
        for client in (self._client, *self._others):
            await client.aclose()


class _Cluster:
    """One plain client for each master. The library's own cluster client is asked for the topology alone: what it does beyond
    that (sending again, splitting pipelines, a thread for each command of a transaction) has no use here."""

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
