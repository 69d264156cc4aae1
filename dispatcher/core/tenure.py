"""How long the active dispatcher may take itself for the active one, by its own clock."""

# The store's clock may run faster than ours, and a renewal takes effect before its answer is here.
SAFETY = 0.9


class Tenure:
    """Certain from a renewal that was granted, counted from when it was asked for, until a little before it can have ended."""

    def __init__(self, lease_seconds: float, asked_at: float) -> None:
        self._seconds = lease_seconds * SAFETY
        self._until = asked_at + self._seconds

    def renewed(self, asked_at: float) -> None:
        """A renewal asked for at that monotonic time was granted."""
        self._until = max(self._until, asked_at + self._seconds)

    def certain(self, now: float) -> bool:
        """Whether nobody else can be active yet."""
        return now < self._until
