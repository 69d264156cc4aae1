"""A Redis of the user's own, lent to a demo or benchmark for its length."""

import contextlib
from collections.abc import Iterator

import redis

from hoss.errors import HossError, InvalidInput, LedgerUnavailable

_KEYS = "{hoss*"  # see docs/architecture.md, the ledger's keys
_CONNECT_SECONDS = 5.0
_SCAN_COUNT = 1000


@contextlib.contextmanager
def borrowed(url: str) -> Iterator[None]:
    """Make sure that the database holds no ledger, and leave it as it was. An empty URL: nothing to do.

    Raises InvalidInput for what is no URL, LedgerUnavailable when nobody answers, HossError when a ledger is there.
    """
    if not url:
        yield
        return
    try:
        client = redis.Redis.from_url(url, socket_connect_timeout=_CONNECT_SECONDS)
    except ValueError as exc:
        raise InvalidInput(f"{url!r}: {exc}; write redis://HOST:PORT/DATABASE", where="--redis-url") from exc
    with contextlib.closing(client):
        try:
            if next(client.scan_iter(match=_KEYS, count=_SCAN_COUNT), None) is not None:
                raise HossError(
                    f"--redis-url: {url} holds a ledger already; name an empty database, as in redis://HOST:PORT/9"
                )
        except redis.RedisError as exc:
            raise LedgerUnavailable(f"--redis-url: {url} does not answer: {exc}") from exc
        try:
            yield
        finally:
            # What is left is ours: there was nothing before.
            with contextlib.suppress(redis.RedisError):
                for key in client.scan_iter(match=_KEYS, count=_SCAN_COUNT):
                    client.unlink(key)
