"""Redis by URL: one server, the master that Sentinel names, or a Cluster.

    redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]      one server; rediss:// with TLS
    unix:///PATH                                          one server, by its socket
    redis+sentinel://[...@]HOST[:PORT],.../SERVICE[/DATABASE]
    redis+cluster://[...@]HOST[:PORT],...

Options after `?`: password_file; ssl_ca_certs, ssl_certfile, ssl_keyfile, ssl_check_hostname; sentinel_username,
sentinel_password_file. A password that stands nowhere else is taken from HOSS_REDIS_PASSWORD.

All keys that one script or transaction touches share a hash tag, so they are on one server, and a plain client of that
server is all that anyone needs. Nothing is ever sent twice by itself: who asked knows whether that is harmless.
"""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from hiredis import pack_command
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from hoss.errors import ConfigError

PASSWORD_VARIABLE = "HOSS_REDIS_PASSWORD"  # noqa: S105 - its name, not its value

_FORMS = {"": 6379, "sentinel": 26379, "cluster": 6379}  # with the port where none is given
_CONNECT_SECONDS = 1.0
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
_OPTIONS = ("password_file", "sentinel_username", "sentinel_password_file", *_TLS_OPTIONS)
_EXAMPLES = (
    "redis://HOST:PORT/0, rediss://, unix:///PATH, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE "
    "or redis+cluster://HOST:PORT,HOST:PORT"
)


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


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A URL taken apart. `options` are what redis.asyncio.Redis takes; they hold the password."""

    form: str  # "" (one server), "sentinel" or "cluster"
    hosts: tuple[tuple[str, int], ...]
    service: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sentinel_options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def without_password(url: str) -> tuple[str, str]:
    """The URL as it may stand in process lists, files and messages, and the password that stood in it."""
    head, at, rest = url.rpartition("@")
    scheme, slashes, account = head.partition("://")
    user, _, password = account.partition(":")
    return f"{scheme}{slashes}{user}{at}{rest}", unquote(password)


def parse_redis_url(url: str, environment: Mapping[str, str] = os.environ) -> RedisUrl:
    """Raises ConfigError that says which part is wrong, and never shows a password."""
    parts = urlsplit(url)
    scheme, _, form = parts.scheme.partition("+")
    if scheme not in ("redis", "rediss", "unix") or form not in _FORMS or (form and scheme == "unix"):
        raise _wrong(url, f"{parts.scheme or 'no scheme'}: write {_EXAMPLES}")
    given = _query(url, parts)
    tls = _tls_options(url, scheme, given)
    authority, _, address = parts.netloc.rpartition("@")
    user, _, password = authority.partition(":")
    password = password or _secret(url, given, "password_file") or environment.get(PASSWORD_VARIABLE, "")
    options = {**tls, **_account(user, password)}
    if scheme == "unix":
        if not parts.path:
            raise _wrong(url, "a socket's path is missing: write unix:///run/redis.sock")
        return RedisUrl("", (), options={**options, "unix_socket_path": parts.path})
    hosts = _hosts(url, address, _FORMS[form])
    path = [piece for piece in parts.path.split("/") if piece]
    if form == "cluster":
        if path not in ([], ["0"]):
            raise _wrong(url, f"a Redis Cluster has database 0 alone, not {'/'.join(path)}")
        return RedisUrl(form, hosts, options=options)
    if form == "sentinel":
        if not path:
            raise _wrong(url, "the name of the master's service is missing: write redis+sentinel://HOST:PORT/SERVICE")
        account = _account(given.get("sentinel_username", ""), _secret(url, given, "sentinel_password_file"))
        return RedisUrl(form, hosts, path[0], {**options, "db": _database(url, path[1:])}, {**tls, **account})
    if len(hosts) > 1:
        raise _wrong(url, "several hosts: write redis+sentinel:// or redis+cluster://")
    return RedisUrl(form, hosts, options={**options, "db": _database(url, path)})


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


def _wrong(url: str, text: str) -> ConfigError:
    return ConfigError(f"{text} (given: {without_password(url)[0]!r})", where="redis_url")


def _query(url: str, parts: SplitResult) -> dict[str, str]:
    given = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    unknown = sorted(set(given) - set(_OPTIONS))
    if unknown:
        raise _wrong(url, f"unknown option {unknown[0]}; there are {', '.join(_OPTIONS)}")
    return given


def _tls_options(url: str, scheme: str, given: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {name: given[name] for name in _TLS_OPTIONS if name in given}
    if scheme == "rediss":
        options["ssl"] = True
    elif options:
        raise _wrong(url, f"{next(iter(options))} is for TLS: write rediss instead of {scheme}")
    if "ssl_check_hostname" in options:
        options["ssl_check_hostname"] = options["ssl_check_hostname"].lower() not in ("false", "no", "0")
    return options


def _secret(url: str, given: Mapping[str, str], option: str) -> str:
    path = given.get(option)
    if path is None:
        return ""
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8").strip()
    raise _wrong(url, f"{option} {path} cannot be read")


def _account(user: str, password: str) -> dict[str, str]:
    account = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in account.items() if value}


def _hosts(url: str, address: str, default_port: int) -> tuple[tuple[str, int], ...]:
    hosts = []
    for place in address.split(","):
        try:
            parts = urlsplit(f"//{place}")
            host, port = parts.hostname, parts.port
        except ValueError as exc:
            raise _wrong(url, f"{place}: {exc}") from exc
        if not host:
            raise _wrong(url, "a host is missing")
        hosts.append((host, port or default_port))
    return tuple(hosts)


def _database(url: str, path: list[str]) -> int:
    if len(path) > 1 or (path and not path[0].isdigit()):
        raise _wrong(url, f"{'/'.join(path)} is no database; they are numbers from 0")
    return int(path[0]) if path else 0
