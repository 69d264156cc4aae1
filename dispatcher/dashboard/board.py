"""What viewers are shown at this moment, and whether there are any: without one nobody takes looks."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from dispatcher.dashboard.picture import Look


@dataclass(frozen=True, slots=True)
class Away:
    """There is nothing to show; `active` is the address of the dispatcher that would have it, if it is known."""

    why: str
    active: str = ""


class Board:
    """One value, replaced now and then. A viewer that is slow misses what came between."""

    def __init__(self) -> None:
        self.shown: Look | Away | None = Away("this dispatcher is starting")
        self._viewers = 0
        self._replaced = asyncio.Event()
        self._viewed = asyncio.Event()

    @property
    def viewers(self) -> int:
        """How many look."""
        return self._viewers

    def show(self, value: Look | Away | None) -> None:
        """Replace what is shown; None: a look will come as soon as somebody wants one."""
        self.shown = value
        self._replaced.set()
        self._replaced = asyncio.Event()

    async def other_than(self, seen: Look | Away | None, seconds: float) -> Look | Away | None:
        """What is shown once that is not `seen`; `seen` after so many seconds without."""
        if self.shown is seen:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._replaced.wait(), seconds)
        return self.shown

    async def viewed(self) -> None:
        """Return once somebody looks."""
        await self._viewed.wait()

    @contextlib.contextmanager
    def viewer(self) -> Iterator[None]:
        """Somebody looks for the length of the block."""
        self._viewers += 1
        self._viewed.set()
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._viewed.clear()
                if isinstance(self.shown, Look):  # of no use to who comes later
                    self.shown = None
