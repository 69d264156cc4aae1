"""Runs the ledger's scripts in Redis, and turns every failure into LedgerUnavailable.

Redis forgets loaded scripts when it restarts or fails over, and a pipeline cannot load one. So a call that
replies NOSCRIPT is loaded and sent once more. Nothing else is sent twice: every script may run twice, but the
caller decides whether it still wants the result."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from hoss.errors import LedgerUnavailable
from hoss.redis.access import NoScriptError, OpenRedis, RedisAccess, RedisError, ResponseError, words
from resolver.core.moves import MoveResult
from resolver.core.values import ReservationState, Verdict
from resolver.ledger.port import LedgerLostError

# Scripts take milliseconds. If Redis is silent for longer, it is away, and waiting proposals get that
# answer.
_TIMEOUT_SECONDS = 2.0

# Concurrent calls; others wait. Redis runs one script at a time anyway.
_CONNECTIONS = 32

_PARTS = {
    "commit": (
        *("prelude", "leases", "pods", "reservation", "domain_versions", "constraints", "criteria"),
        *("verdicts", "proposal", "candidates", "reserving", "evicting", "resizing", "commit"),
    ),
    "move": (
        *("prelude", "leases", "pods", "reservation", "release_pods", "domain_versions", "constraints"),
        *("criteria", "verdicts", "proposal", "candidates", "reserving", "move"),
    ),
    "release": ("prelude", "pods", "reservation", "release_pods", "release"),
    "reap": ("prelude", "leases", "pods", "reservation", "release_pods", "reap"),
    "confirm": ("prelude", "leases", "confirm"),
    "confirm_moves": (
        *("prelude", "leases", "pods", "reservation", "release_pods", "move_results", "confirm_moves"),
    ),
    "forget_moved": ("prelude", "forget_moved"),
    "validate": ("prelude", "domain_versions", "validate"),
    "commit_prepared": ("prelude", "leases", "pods", "reservation", "commit_prepared"),
    "renew": ("prelude", "leases", "pods", "reservation", "renew"),
    "lookup": ("prelude", "pods", "reservation", "release_pods", "states", "lookup"),
    "set_aside": ("prelude", "pods", "reservation", "set_aside"),
    "check": ("prelude", "check"),
    "grant": ("prelude", "grant"),
    "upsert_nodes": ("prelude", "upsert_nodes"),
    "remove_nodes": ("prelude", "remove_nodes"),
    "forget_nodes": ("prelude", "forget_nodes"),
    "quarantine": ("prelude", "node_updates", "quarantine"),
    "end_quarantine": ("prelude", "node_updates", "end_quarantine"),
    "republish": ("prelude", "node_updates", "republish"),
    "register_rules": ("prelude", "register_rules"),
    "repair": ("prelude", "leases", "repair"),
    "load": ("prelude", "load"),
    "finish": ("prelude", "leases", "unlink", "finish"),
    "set_tombstone": ("unlink", "set_tombstone"),
    "reread_rules": ("prelude", "reread_rules"),
    "raise_low_watermarks": ("prelude", "raise_low_watermarks"),
    "forget_versions": ("prelude", "forget_versions"),
    "forget_rules": ("prelude", "forget_rules"),
    "bootstrap": ("bootstrap",),
    "schema": ("schema",),
    "next_epoch": ("next_epoch",),
}

# Parts that are made of the same numbers as messages have. The verdicts are one table, because Lua allows 200
# local names and the commit script is near that.
_GENERATED = {
    "verdicts": f"local VERDICT = {{{', '.join(f'{one.name} = {one.value}' for one in Verdict)}}}",
    "move_results": "\n".join(f"local RESULT_{result.name} = {result.value}" for result in MoveResult),
    "states": "\n".join(f"local STATE_{state.name} = {state.value}" for state in ReservationState),
}

# Recovery tombstones start with one of these. They replace a shard's epoch while the ledger is not whole:
# it waits for a dispatcher to rebuild it, or for an operator to restore it.
RECOVERING, RESTORING = "recovering-", "restoring-"

_FENCED, _OLD_COPY = "FENCED", "OLDCOPY"

Call = tuple[str, Sequence[str], Sequence[Any]]  # script, keys, arguments


class FencedReply(NamedTuple):
    """The reply of a script to a worker whose epoch is over. The shard was at `seq`, and nothing changed."""

    seq: int


class OldCopy(NamedTuple):
    """The reply of a script to a proposal of which the worker may have sent a later copy. The shard was at
    `seq`, and nothing changed."""

    seq: int


@cache
def source(script: str) -> str:
    """The script's text: its parts, joined."""
    folder = resources.files("resolver.ledger") / "lua"
    return "\n".join(
        _GENERATED.get(part) or (folder / f"{part}.lua").read_text(encoding="utf-8")
        for part in _PARTS[script]
    )


@cache
def _digest(script: str) -> str:
    return hashlib.sha1(source(script).encode()).hexdigest()  # noqa: S324 - Redis names scripts so


def names_by_digest() -> dict[str, str]:
    """The name of each script by the digest under which Redis runs it."""
    return {_digest(script): script for script in _PARTS}


class ScriptRunner:
    """Runs scripts on the server that holds their keys: on `access` calls that return at once, on `waiting`
    blocking calls. Raises ConfigError for an invalid URL."""

    def __init__(self, url: str, open_redis: OpenRedis) -> None:
        self.access: RedisAccess = open_redis(url, timeout_seconds=_TIMEOUT_SECONDS, connections=_CONNECTIONS)
        # Feed readers block in Redis, each on a connection of its own: a few per shard.
        self.waiting: RedisAccess = open_redis(url, timeout_seconds=_TIMEOUT_SECONDS)

    async def close(self) -> None:
        await self.access.close()
        await self.waiting.close()

    async def load(self) -> None:
        """Load every script on every server, so that the first proposals do not wait for it."""
        async with self.unavailable_when_failing():
            for server in await self.access.every():
                together = server.pipeline(transaction=False)
                for script in _PARTS:
                    together.script_load(source(script))
                for reply in await together.execute(raise_on_error=False):
                    if isinstance(reply, Exception):  # redis-py would raise it with the text of the script
                        raise reply

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        return (await self.run_all([(script, keys, arguments)]))[0]

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts of one shard in order, in one round trip. Raises if any of them failed; to be fenced or
        an old copy is no failure."""
        async with self.unavailable_when_failing():
            replies = await self._send(calls)
            forgotten = [i for i, r in enumerate(replies) if isinstance(r, NoScriptError)]
            if forgotten:
                await self.load()
                for i, reply in zip(forgotten, await self._send([calls[i] for i in forgotten]), strict=True):
                    replies[i] = reply
            for i, reply in enumerate(replies):
                if isinstance(reply, Exception):
                    replies[i] = _outcome(reply)
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
        """Turn every error of Redis and the network into LedgerUnavailable, with its text."""
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


def _outcome(error: Exception) -> "FencedReply | OldCopy":
    """What is no failure of the script. Raises any other error."""
    kind, _, seq = str(error).partition(" ")
    if isinstance(error, ResponseError) and kind in (_FENCED, _OLD_COPY):
        return FencedReply(int(seq)) if kind == _FENCED else OldCopy(int(seq))
    raise error


def is_tombstone(epoch: str) -> bool:
    """Whether this is a recovery tombstone instead of an epoch."""
    return epoch.startswith((RECOVERING, RESTORING))


def lost_changes(seq: int, watermark: int) -> LedgerLostError:
    """The error for a shard that is at `seq` after it was at `watermark`, in another history if `seq` is not
    lower."""
    if seq >= watermark:
        return LedgerLostError(
            "Redis has lost acknowledged changes and was written to since: a shard of the ledger stands at"
            f" {seq}, and what it had at {watermark} is not what was there; the ledger is to be rebuilt"
        )
    return LedgerLostError(
        f"Redis has lost acknowledged changes: a shard of the ledger stands at {seq} and stood "
        f"at {watermark} (a fail-over to a replica that was behind, or an old file was loaded); "
        "the ledger is to be rebuilt"
    )


def other_ledger(found: str) -> LedgerLostError:
    """The error if `found` is in Redis instead of the epoch that this resolver knows."""
    if not found:
        return LedgerLostError("Redis is empty: the ledger that was there is gone and is to be rebuilt")
    if found.startswith(RESTORING):
        return LedgerLostError(
            "the ledger is being restored; if that was broken off, run `hoss ledger restore` again"
        )
    if found.startswith(RECOVERING):
        return LedgerLostError("the ledger is being rebuilt from what the dispatcher knows")
    return LedgerLostError(f"Redis holds another ledger (epoch {found}) than the one that was opened")


def superseded(term: int) -> LedgerUnavailable:
    """The error for a dispatcher after another one has written under this higher term."""
    return LedgerUnavailable(
        f"another dispatcher has taken over (term {term}); the ledger obeys that one, and nothing was changed"
    )


def _refusal(text: str) -> LedgerUnavailable:
    kind, _, rest = text.partition(" ")
    if kind == "WENTBACK":
        seq, watermark = rest.split()
        return lost_changes(int(seq), int(watermark))
    if kind == "OTHERLEDGER":
        return other_ledger("" if rest == "none" else rest)
    if kind == "SUPERSEDED":
        return superseded(int(rest))
    return LedgerUnavailable(f"Redis refuses: {text}")
