"""Parsed and checked Redis URLs: one server, the master that Sentinel names, or a Cluster.

    redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]      one server; rediss:// with TLS
    unix:///PATH                                          one server, by its socket
    redis+sentinel://[...@]HOST[:PORT],.../SERVICE[/DATABASE]
    redis+cluster://[...@]HOST[:PORT],...

Options after `?`: password_file; ssl_ca_certs, ssl_certfile, ssl_keyfile, ssl_check_hostname;
sentinel_username, sentinel_password_file. HOSS_REDIS_PASSWORD is the default password.
"""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from hoss.errors import ConfigError

PASSWORD_VARIABLE = "HOSS_REDIS_PASSWORD"  # noqa: S105 - its name, not its value

_FORMS = {"": 6379, "sentinel": 26379, "cluster": 6379}  # with the port where none is given
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
_OPTIONS = ("password_file", "sentinel_username", "sentinel_password_file", *_TLS_OPTIONS)
_EXAMPLES = (
    "redis://HOST:PORT/0, rediss://, unix:///PATH, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE "
    "or redis+cluster://HOST:PORT,HOST:PORT"
)


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A parsed URL. `options` are arguments of redis.asyncio.Redis, the password among them."""

    form: str  # "" (one server), "sentinel" or "cluster"
    hosts: tuple[tuple[str, int], ...]
    service: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sentinel_options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def without_password(url: str) -> tuple[str, str]:
    """A URL that can be parsed without its password, fit for process lists and files; and the password."""
    authority = urlsplit(url).netloc
    account, at, address = authority.rpartition("@")
    user, _, password = account.partition(":")
    return url.replace(f"//{authority}", f"//{user}{at}{address}", 1), unquote(password)


def parse_redis_url(url: str, environment: Mapping[str, str] = os.environ) -> RedisUrl:
    """Parse a URL. Raises ConfigError that names the wrong part and never shows a password."""
    try:
        parts = urlsplit(url)
    except ValueError:  # it says a part of the URL
        raise _wrong(url, f"the host cannot be read: write {_EXAMPLES}") from None
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
            raise _wrong(
                url, "the name of the master's service is missing: write redis+sentinel://HOST:PORT/SERVICE"
            )
        account = _account(given.get("sentinel_username", ""), _secret(url, given, "sentinel_password_file"))
        return RedisUrl(form, hosts, path[0], {**options, "db": _database(url, path[1:])}, {**tls, **account})
    if len(hosts) > 1:
        raise _wrong(url, "several hosts: write redis+sentinel:// or redis+cluster://")
    return RedisUrl(form, hosts, options={**options, "db": _database(url, path)})


def _wrong(url: str, text: str) -> ConfigError:
    """The error, with so much of the URL as no password can be in, wherever somebody wrote one."""
    head, at, rest = url.rpartition("@")
    scheme, slashes, account = head.partition("://")
    shown = f"{scheme}{slashes}{account.partition(':')[0]}{at}{rest}".partition("?")[0]
    return ConfigError(f"{text} (given: {shown!r})", where="redis_url")


def _query(url: str, parts: SplitResult) -> dict[str, str]:
    given = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    unknown = sorted(set(given) - set(_OPTIONS))
    beyond = f"{parts.path}{parts.fragment}{parts.query if unknown else ''}"
    if "@" in beyond and "@" not in parts.netloc and parts.scheme != "unix":
        # The part before it was taken for the host, and its error would show it.
        raise _wrong(url, "the password ends the host's part: write %2F for / in it, %3F for ?, %23 for #")
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
