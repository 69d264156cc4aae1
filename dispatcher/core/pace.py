"""How long news of a cluster is collected before it is taken in."""

from dataclasses import dataclass

# After quiet a pod is not to wait. Of a burst, what a pod costs every service, and every core that they share, falls to less than half with
# larger batches; both are far below the second in which what is bound has to be in the ledger.
MOMENT_SECONDS = 0.01
BURST_SECONDS = 0.1
_BURST_RATE = 300  # changes a second


@dataclass(slots=True)
class Pace:
    """A moment after quiet, and longer while much comes."""

    seconds: float = MOMENT_SECONDS

    def took(self, changes: int) -> None:
        """So many had come in the last `seconds`."""
        self.seconds = BURST_SECONDS if changes > _BURST_RATE * self.seconds else MOMENT_SECONDS
