"""Whether this dispatcher is the leader, and for how long it may rely on that by its own clock.

`Leadership` is the one port for this question: everything that accepts a request, or changes the ledger or
the API server, asks it first. Invariant: the lease counts as valid only while no other dispatcher can hold
it.

A renewal that is overdue makes the lease *uncertain*. Then nothing is accepted and the ledger is not changed,
but the state in memory stays, because most often only Redis was away. A dispatcher drops its state once
another dispatcher has had a newer term."""

from collections.abc import Callable
from typing import Protocol

from hoss.errors import LedgerUnavailable

# The store's clock may run faster than ours, and a renewal takes effect before its answer arrives.
SAFETY = 0.9


class Leadership(Protocol):
    """One term as the leader."""

    @property
    def term(self) -> int:
        """The number of the term. It fences every write to the journal (dispatcher.journal.fenced_redis)."""

    @property
    def address(self) -> str:
        """host:port at which others reach this dispatcher."""

    def lease_valid(self) -> bool:
        """Whether no other dispatcher can be the leader at this moment."""

    def uncertainty(self) -> str:
        """Why the lease is uncertain, as a sentence for users; meaningful only while it is."""

    def require_valid_lease(self) -> None:
        """Raises LedgerUnavailable while the lease is uncertain."""


class LeaseValidity:
    """A granted lease is valid from the request for it until a little before it can have expired. Times are
    monotonic seconds."""

    def __init__(self, lease_seconds: float, requested_at: float) -> None:
        self._seconds = lease_seconds * SAFETY
        self._until = requested_at + self._seconds

    def renewed(self, requested_at: float) -> None:
        """A renewal that was requested at that time was granted."""
        self._until = max(self._until, requested_at + self._seconds)

    def valid(self, now: float) -> bool:
        """Whether no other dispatcher can hold the lease yet."""
        return now < self._until


class LeaderTerm:
    """The Leadership that an elector grants (see dispatcher.leader.elector)."""

    def __init__(self, term: int, address: str, validity: LeaseValidity, clock: Callable[[], float]) -> None:
        self.term = term
        self.address = address
        self.renewal_error = ""  # of the last renewal, if it failed
        self._validity = validity
        self._clock = clock

    def renewed(self, requested_at: float) -> None:
        self.renewal_error = ""
        self._validity.renewed(requested_at)

    def lease_valid(self) -> bool:
        return self._validity.valid(self._clock())

    def uncertainty(self) -> str:
        return self.renewal_error or "the lease could not be renewed in time"

    def require_valid_lease(self) -> None:
        if not self.lease_valid():
            raise LedgerUnavailable(
                "the dispatcher's lease could not be renewed in time; another may be active"
            )
