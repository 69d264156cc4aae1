"""Runs the ledger's scripts in Redis, and turns what can go wrong there into LedgerUnavailable.

Redis forgets loaded scripts when it restarts or fails over, and a pipeline cannot load one on the way: whatever answers
NOSCRIPT is loaded and run once more. Commands are never resent otherwise; every script may be run twice, but who asked
decides whether it still wants to.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from typing import Any

import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from hoss.errors import ConfigError, LedgerUnavailable

# Scripts take milliseconds. A Redis that is silent for longer is away, and the waiting proposals are answered so.
_TIMEOUT_SECONDS = 2.0
_CONNECT_SECONDS = 1.0

_PARTS = {
    "commit": ("prelude", "pods", "holdings", "guards", "evicting", "commit"),
    "release": ("prelude", "pods", "holdings", "give_back", "release"),
    "reap": ("prelude", "pods", "holdings", "give_back", "reap"),
    "confirm": ("prelude", "confirm"),
    "keep": ("prelude", "keep"),
    "lookup": ("prelude", "lookup"),
    "grant": ("prelude", "grant"),
    "upsert_nodes": ("prelude", "upsert_nodes"),
    "remove_nodes": ("prelude", "remove_nodes"),
    "register_rules": ("prelude", "register_rules"),
    "bootstrap": ("bootstrap",),
    "schema": ("schema",),
}

Call = tuple[str, Sequence[str], Sequence[Any]]  # script, keys, arguments


@cache
def source(script: str) -> str:
    """The script's text, its parts joined."""
    folder = resources.files("resolver.ledger") / "lua"
    return "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in _PARTS[script])


@cache
def _digest(script: str) -> str:
    return hashlib.sha1(source(script).encode()).hexdigest()  # noqa: S324 - Redis names scripts so


class ScriptRunner:
    """A pool of connections to one Redis."""

    def __init__(self, url: str) -> None:
        try:
            self.redis: redis.asyncio.Redis = redis.asyncio.Redis.from_url(
                url,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=_TIMEOUT_SECONDS,
                socket_connect_timeout=_CONNECT_SECONDS,
            )
        except ValueError as exc:
            raise ConfigError(f"{exc} (given: {url!r})", where="redis_url") from exc

    async def close(self) -> None:
        """Close every connection."""
        await self.redis.aclose()

    async def load(self) -> None:
        """Load every script, so that the first proposals do not wait for it."""
        async with unavailable_when_failing():
            for script in _PARTS:
                await self.redis.script_load(source(script))

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run one script and return its reply."""
        return (await self.run_all([(script, keys, arguments)]))[0]

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts in one round trip, one after the other. Raises if any of them failed."""
        async with unavailable_when_failing():
            replies = await self._send(calls)
            forgotten = [i for i, r in enumerate(replies) if isinstance(r, redis.exceptions.NoScriptError)]
            if forgotten:
                await self.load()
                for i, reply in zip(forgotten, await self._send([calls[i] for i in forgotten]), strict=True):
                    replies[i] = reply
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
            return replies

    async def _send(self, calls: Sequence[Call]) -> list[Any]:
        pipeline = self.redis.pipeline(transaction=False)
        for script, keys, arguments in calls:
            pipeline.execute_command("EVALSHA", _digest(script), len(keys), *keys, *arguments)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies


@asynccontextmanager
async def unavailable_when_failing() -> AsyncIterator[None]:
    """Whatever Redis or the network say against it: the ledger is unavailable, with their words."""
    try:
        yield
    except redis.exceptions.ResponseError as exc:
        text = str(exc)
        if text.startswith("OTHERLEDGER"):
            found = text.rsplit(maxsplit=1)[-1]
            raise LedgerUnavailable(
                "Redis is empty: the ledger that was there is gone; restore it, or restart every service on the empty one"
                if found == "none"
                else f"Redis holds another ledger (epoch {found}) than the one this resolver opened; restart it"
            ) from exc
        raise LedgerUnavailable(f"Redis refuses: {text}") from exc
    except (redis.exceptions.RedisError, OSError, asyncio.TimeoutError) as exc:
        raise LedgerUnavailable(f"Redis cannot be reached: {exc}") from exc
