"""How much of something there was per second lately."""

import math
from dataclasses import dataclass

# Half of what a rate shows comes from the last 3.5 s: long enough to be read, short enough to be of now.
_MEMORY_SECONDS = 5.0


@dataclass(slots=True)
class Rate:
    """An exponentially fading mean. Its cost does not depend on how much is counted."""

    _level: float = 0.0
    _at: float = 0.0

    def count(self, amount: float, now: float) -> None:
        """So much happened at this moment."""
        self._level = self.per_second(now) + amount / _MEMORY_SECONDS
        self._at = now

    def per_second(self, now: float) -> float:
        """The rate at this moment."""
        return self._level * math.exp(-max(0.0, now - self._at) / _MEMORY_SECONDS)
