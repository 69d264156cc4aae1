"""How long to wait before trying a peer again."""

import random


class Backoff:
    """Delays that double from `first_seconds` to `longest_seconds`, each shortened by up to half by chance, so that many who
    lost the same peer do not come back together. None once `patience_seconds` have passed without a success."""

    def __init__(self, first_seconds: float, longest_seconds: float, patience_seconds: float = float("inf")) -> None:
        self._first = self._next = first_seconds
        self._longest = longest_seconds
        self._patience = patience_seconds
        self._failing_since: float | None = None

    def failed(self, now: float) -> float | None:
        """An attempt failed at monotonic time `now`; how long to wait before the next."""
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._patience:
            return None
        delay, self._next = self._next, min(2 * self._next, self._longest)
        return delay * random.uniform(0.5, 1.0)

    def succeeded(self, patience_seconds: float | None = None) -> None:
        """Begin anew, from now on with this patience if one is given."""
        self._next, self._failing_since = self._first, None
        if patience_seconds is not None:
            self._patience = patience_seconds
