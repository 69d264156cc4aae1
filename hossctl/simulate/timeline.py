"""Virtual time: what happens when, in order, and nothing in between."""

import heapq
from collections.abc import Callable

Happening = Callable[[], None]


class Timeline:
    """Happenings by time; those of one moment in the order in which they were planned. `now` is in seconds from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self._serial = 0
        self._planned: list[tuple[float, int, Happening]] = []

    def after(self, seconds: float, happening: Happening) -> None:
        """Plan something; `seconds` from now, not negative."""
        self._serial += 1
        heapq.heappush(self._planned, (self.now + seconds, self._serial, happening))

    def every(self, seconds: float, happening: Happening) -> None:
        """Plan something again and again, the first time `seconds` from now."""

        def again() -> None:
            happening()
            self.after(seconds, again)

        self.after(seconds, again)

    def run(self, until: float) -> None:
        """Let time go by to `until`; what is planned for later stays planned."""
        while self._planned and self._planned[0][0] <= until:
            self.now, _, happening = heapq.heappop(self._planned)
            happening()
        self.now = until

    def run_while(self, condition: Callable[[], bool]) -> None:
        """Let time go by while the condition holds and anything is planned."""
        while self._planned and condition():
            self.now, _, happening = heapq.heappop(self._planned)
            happening()
