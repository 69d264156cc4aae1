"""A Redis of the user's own, lent to a demo or benchmark for its length."""

import contextlib
from collections.abc import AsyncIterator, Iterator

from hoss.errors import HossError, LedgerUnavailable
from hoss.redis_access import RedisAccess, RedisError, reach
from hossctl.eventloop import run_async

_KEYS = "{hoss*"  # see docs/architecture.md, the ledger's keys
_TIMEOUT_SECONDS = 5.0
_SCAN_COUNT = 1000


@contextlib.contextmanager
def borrowed(url: str) -> Iterator[None]:
    """Make sure that the database holds no ledger, and leave it as it was. An empty URL: nothing to do.

    Raises ConfigError for what is no URL, LedgerUnavailable when nobody answers, HossError when a ledger is there.
    """
    if not url:
        yield
        return
    run_async(_refuse_a_ledger(url))
    try:
        yield
    finally:
        # What is left is ours: there was nothing before.
        with contextlib.suppress(RedisError, OSError):
            run_async(_unlink_all(url))


async def _refuse_a_ledger(url: str) -> None:
    try:
        async with _reached(url) as access:
            held = [key async for key in _keys(access)]
    except (RedisError, OSError) as exc:
        raise LedgerUnavailable(f"--redis-url: {url} does not answer: {exc}") from exc
    if held:
        raise HossError(f"--redis-url: {url} holds a ledger already; name an empty database, as in redis://HOST:PORT/9")


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
