"""A Redis of the user's, used by a demo or benchmark: it must hold no ledger before, and holds none after."""

import contextlib
from collections.abc import AsyncIterator, Iterator

from hoss.errors import HossError, LedgerUnavailable
from hoss.redis.access import RedisAccess, RedisError, reach
from hossctl.cli import run_async

_KEYS = "{hoss*"  # see docs/architecture.md, the ledger's keys
_TIMEOUT_SECONDS = 5.0
_SCAN_COUNT = 1000


@contextlib.contextmanager
def borrowed(url: str) -> Iterator[None]:
    """Check that the database holds no ledger, and remove ours at the end. Does nothing for an empty URL.

    Raises ConfigError for a malformed URL, LedgerUnavailable where Redis does not answer, HossError where it
    holds a ledger."""
    if not url:
        yield
        return
    run_async(_refuse_a_ledger(url))
    try:
        yield
    finally:
        # All keys are ours: there was none before.
        with contextlib.suppress(RedisError, OSError):
            run_async(_unlink_all(url))


async def _refuse_a_ledger(url: str) -> None:
    try:
        async with _reached(url) as access:
            held = [key async for key in _keys(access)]
    except (RedisError, OSError) as exc:
        raise LedgerUnavailable(f"--redis-url: {url} does not answer: {exc}") from exc
    if held:
        raise HossError(
            f"--redis-url: {url} holds a ledger already; name an empty database, as in redis://HOST:PORT/9"
        )


async def _unlink_all(url: str) -> None:
    async with _reached(url) as access:
        for key in [key async for key in _keys(access)]:
            await (await access.at(key)).unlink(key)


async def _keys(access: RedisAccess) -> AsyncIterator[str]:
    for server in await access.every():
        async for key in server.scan_iter(match=_KEYS, count=_SCAN_COUNT):
            yield key.decode()


@contextlib.asynccontextmanager
async def _reached(url: str) -> AsyncIterator[RedisAccess]:
    access = reach(url, timeout_seconds=_TIMEOUT_SECONDS)
    try:
        yield access
    finally:
        await access.close()
