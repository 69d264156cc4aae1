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

from hoss.errors import LedgerUnavailable
from hoss.redis_access import NoScriptError, RedisAccess, RedisError, ResponseError, reach
from hoss.redis_words import words
from resolver.ledger.port import LedgerLost

# Scripts take milliseconds. A Redis that is silent for longer is away, and the waiting proposals are answered so.
_TIMEOUT_SECONDS = 2.0

# Calls that are under way at once; others wait for their turn. Redis serves one at a time anyway.
_CONNECTIONS = 32

_PARTS = {
    "commit": (
        *("prelude", "pods", "holdings", "stamps", "guards", "criteria"),
        *("proposal", "candidates", "reserving", "evicting", "restating", "commit"),
    ),
    "release": ("prelude", "pods", "holdings", "give_back", "release"),
    "reap": ("prelude", "pods", "holdings", "give_back", "reap"),
    "confirm": ("prelude", "confirm"),
    "judge": ("prelude", "stamps", "judge"),
    "keep": ("prelude", "pods", "keep"),
    "lookup": ("prelude", "lookup"),
    "grant": ("prelude", "grant"),
    "upsert_nodes": ("prelude", "upsert_nodes"),
    "remove_nodes": ("prelude", "remove_nodes"),
    "quarantine": ("prelude", "quarantining", "quarantine"),
    "end_quarantine": ("prelude", "quarantining", "end_quarantine"),
    "tell_again": ("prelude", "quarantining", "tell_again"),
    "register_rules": ("prelude", "register_rules"),
    "mend": ("prelude", "mend"),
    "load": ("prelude", "load"),
    "finish": ("prelude", "finish"),
    "mark": ("mark",),
    "set_floors": ("prelude", "set_floors"),
    "forget_stamps": ("prelude", "forget_stamps"),
    "forget_rules": ("prelude", "forget_rules"),
    "bootstrap": ("bootstrap",),
    "schema": ("schema",),
}

# What stands in the place of a shard's epoch, before some text, while the ledger is not whole: it waits for a dispatcher to
# rebuild it, or for an operator to have it restored.
RECOVERING, RESTORING = "recovering-", "restoring-"

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
    """Runs scripts on the server that holds their keys: through `access` what is answered at once, through `waiting` what waits
    there. Raises ConfigError for a URL that is none."""

    def __init__(self, url: str) -> None:
        self.access: RedisAccess = reach(url, timeout_seconds=_TIMEOUT_SECONDS, connections=_CONNECTIONS)
        # Readers of feeds wait in Redis for news, each on a connection of its own: a few for every shard.
        self.waiting: RedisAccess = reach(url, timeout_seconds=_TIMEOUT_SECONDS)

    async def close(self) -> None:
        """Close every connection."""
        await self.access.close()
        await self.waiting.close()

    async def load(self) -> None:
        """Load every script everywhere, so that the first proposals do not wait for it."""
        async with self.unavailable_when_failing():
            for server in await self.access.every():
                for script in _PARTS:
                    await server.script_load(source(script))

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run one script and return its reply."""
        return (await self.run_all([(script, keys, arguments)]))[0]

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts of one shard in one round trip, one after the other. Raises if any of them failed."""
        async with self.unavailable_when_failing():
            replies = await self._send(calls)
            forgotten = [i for i, r in enumerate(replies) if isinstance(r, NoScriptError)]
            if forgotten:
                await self.load()
                for i, reply in zip(forgotten, await self._send([calls[i] for i in forgotten]), strict=True):
                    replies[i] = reply
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
            return replies

    async def _send(self, calls: Sequence[Call]) -> list[Any]:
        if not calls:
            return []
        pipeline = (await self.access.at(calls[0][1][0])).pipeline(transaction=False)
        for script, keys, arguments in calls:
            pipeline.execute_command("EVALSHA", _digest(script), len(keys), *keys, *arguments)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies

    @asynccontextmanager
    async def unavailable_when_failing(self) -> AsyncIterator[None]:
        """Whatever Redis or the network say against it: the ledger is unavailable, with their words."""
        try:
            yield
        except ResponseError as exc:
            self._doubt()  # a shard may have moved to another server
            raise _refusal(words(exc)) from exc
        except (RedisError, OSError, asyncio.TimeoutError) as exc:
            self._doubt()
            raise LedgerUnavailable(f"Redis cannot be reached: {exc}") from exc

    def _doubt(self) -> None:
        self.access.doubt()
        self.waiting.doubt()


def is_mark(epoch: str) -> bool:
    """Whether it stands where a ledger's epoch should."""
    return epoch.startswith((RECOVERING, RESTORING))


def went_back(seq: int, heard_of: int) -> LedgerLost:
    """What is said of a shard that stands at `seq` though it stood at `heard_of` before."""
    return LedgerLost(
        f"Redis has lost acknowledged changes: a shard of the ledger stands at {seq} and stood at {heard_of} (a fail-over to a "
        "replica that was behind, or an old file was loaded); the ledger is to be rebuilt"
    )


def another(found: str) -> LedgerLost:
    """What is said where `found` stands in the place of the epoch that this resolver knows."""
    if not found:
        return LedgerLost("Redis is empty: the ledger that was there is gone and is to be rebuilt")
    if found.startswith(RESTORING):
        return LedgerLost("the ledger is being restored; if that was broken off, run `hoss ledger restore` again")
    if found.startswith(RECOVERING):
        return LedgerLost("the ledger is being rebuilt from what the dispatcher knows")
    return LedgerLost(f"Redis holds another ledger (epoch {found}) than the one that was opened")


def _refusal(text: str) -> LedgerUnavailable:
    kind, _, rest = text.partition(" ")
    if kind == "WENTBACK":
        seq, heard_of = rest.split()
        return went_back(int(seq), int(heard_of))
    if kind == "OTHERLEDGER":
        return another("" if rest == "none" else rest)
    return LedgerUnavailable(f"Redis refuses: {text}")
