"""Ctrl-C and SIGTERM during a comparison: a load under way ends, its figures are still taken, and nothing new begins.

No signal raises anything here: whatever would be cut short, a platform's start or its end, would leave processes behind.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether the end was asked for, and the event that tells a running load."""

    def __init__(self) -> None:
        self.asked = False
        self._tell: Callable[[], Any] = lambda: None

    def hear(self) -> None:
        """From now on the signals ask, whoever else handled them."""
        for number in _SIGNALS:
            signal.signal(number, self._ask)

    def event(self) -> asyncio.Event:
        """Set once the end was asked for. Of the running loop, and the last one asked for is the one that is told."""
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        if self.asked:
            event.set()
        self._tell = lambda: None if loop.is_closed() else loop.call_soon_threadsafe(event.set)
        return event

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        self._tell()


@contextlib.contextmanager
def stoppable() -> Iterator[Stop]:
    """Signals ask for the end, for the length of the block."""
    stop = Stop()
    previous = [signal.getsignal(number) for number in _SIGNALS]
    stop.hear()
    try:
        yield stop
    finally:
        for number, handler in zip(_SIGNALS, previous, strict=True):
            signal.signal(number, handler)
