"""Lists that come in pages: what a server puts into one, and how a client reads on.

A request has `limit` (entries of a page, 0: all in one reply) and `page_token`, a reply `next_page_token`,
which is empty after the last page. Where a list is in order of keys, the token is the last key of the page.
So an entry that comes or goes between two pages neither hides another one nor shows it twice."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from hoss.errors import InvalidInput, quoted

# Entries that a client asks for in one call: a page takes a server some tens of milliseconds, in slices.
PAGE_ENTRIES = 1000

# Before the key, so that no token of an entry is empty: a tenant may have the name "".
_AFTER = "/"

EntryT = TypeVar("EntryT")


def key_before(page_token: str) -> str | None:
    """The key after which a page begins; None: with the first entry. Raises InvalidInput."""
    if page_token and not page_token.startswith(_AFTER):
        raise not_from_a_reply(page_token)
    return page_token.removeprefix(_AFTER) if page_token else None


def not_from_a_reply(page_token: str) -> InvalidInput:
    """What is wrong with a token that no server made."""
    return InvalidInput(f"{quoted(page_token)} is not from an earlier reply", where="page_token")


def first_page(
    entries: Sequence[EntryT], limit: int, key: Callable[[EntryT], str]
) -> tuple[Sequence[EntryT], str]:
    """The first page of what is left of a list in order of keys, and the token of the next page."""
    if not limit or len(entries) <= limit:
        return entries, ""
    return entries[:limit], _AFTER + key(entries[limit - 1])


async def pages(call: Callable[[Any], Awaitable[Any]], request: Any) -> AsyncIterator[Any]:
    """Every reply, from the page that the request names. Changes the request's `page_token`."""
    while True:
        reply = await call(request)
        yield reply
        if not reply.next_page_token:
            return
        request.page_token = reply.next_page_token
