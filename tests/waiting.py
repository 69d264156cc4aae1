"""The one way to wait in tests: for what is to hold, however long it takes.

The deadline is there so that a test that hangs ends, and says for what it waited; no promise is measured by
it."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import psutil

from hoss.errors import LedgerUnavailable, TransportError
from hossctl.local.process import has_ended

DEADLINE_SECONDS = 120.0
COMMAND_SECONDS = 540.0  # of a command that starts, fills and ends platforms of its own

# To look costs all that are asked something, so it is done ever more seldom: what has taken long takes a
# little longer.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, _GROWTH = 0.02, 0.2, 1.25

_T = TypeVar("_T")
_What = str | Callable[[], object]  # what is waited for; or what to show where it does not come


def wait_until(holds: Callable[[], _T], what: _What = "it", *, seconds: float = DEADLINE_SECONDS) -> _T:
    """The first true value that `holds` returns."""
    deadline = time.monotonic() + seconds
    pauses = _pauses()
    while not (found := holds()):
        assert time.monotonic() < deadline, _told(what, seconds)
        time.sleep(next(pauses))
    return found


async def until(
    holds: Callable[[], Awaitable[_T] | _T], what: _What = "it", *, seconds: float = DEADLINE_SECONDS
) -> _T:
    """The first true value that `holds` returns, or awaits. A service that was killed does not answer for a
    moment, a channel may take a while to notice that it is back, and who has missed Redis refuses until the
    lease is renewed: that is waited for too."""
    deadline = time.monotonic() + seconds
    pauses = _pauses()
    unreachable: LedgerUnavailable | TransportError | None = None
    while True:
        try:
            found = holds()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            unreachable = None
        except (LedgerUnavailable, TransportError) as error:
            unreachable = error
        assert time.monotonic() < deadline, f"{_told(what, seconds)}; {unreachable or 'all answered'}"
        await asyncio.sleep(next(pauses))


def lives(process: psutil.Process) -> bool:
    """Whether it runs; a later process with its id is another one."""
    return process.is_running() and not has_ended(process)


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(_GROWTH * pause, _LONGEST_PAUSE_SECONDS)


def _told(what: _What, seconds: float) -> str:
    return f"waited {seconds:g} s for {what if isinstance(what, str) else what()}"
