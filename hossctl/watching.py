"""`hoss get --watch` of what has no stream of changes: looked at once a second, and told where it differs from the last look."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable

from hoss.errors import LedgerUnavailable, TransportError
from hossctl.console import Document, warn

LOOK_SECONDS = 1.0


async def changes(
    look: Callable[[], Awaitable[list[Document]]],
    identity: Callable[[Document], Hashable],
    shown: Callable[[Document], object],
    *,
    name: str,
    interval_seconds: float = LOOK_SECONDS,
) -> AsyncIterator[list[Document]]:
    """All of them, then at each look those of which something `shown` has changed; never ends. What is gone is said on stderr, and so is,
    once, that nobody answers, as through a dispatcher's fail-over; the first look raises whatever it raises."""
    last: dict[Hashable, object] = {}
    found = await look()
    silent = False
    while True:
        present = {identity(document): (shown(document), document) for document in found}
        changed = [document for key, (text, document) in present.items() if last.get(key) != text]
        for key in last.keys() - present.keys():
            warn(f"{name} {key} is gone")
        last = {key: text for key, (text, _) in present.items()}
        yield changed
        while True:
            await asyncio.sleep(interval_seconds)
            try:
                found = await look()
                break
            except (TransportError, LedgerUnavailable) as exc:
                if not silent:
                    warn(f"{exc}; the watch goes on when that is over")
                silent = True
        silent = False
