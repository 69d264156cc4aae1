"""What the queue asks about tenants; dispatcher.core.tenants answers."""

from typing import Protocol

from dispatcher.core.podtable import Rows


class Shares(Protocol):
    """Tenants by number."""

    def share(self, tenant: int) -> float:
        """What it holds for its weight: the least is next."""
        ...

    def charge(self, tenant: int, rows: Rows) -> None:
        """Its pods were taken, and shares are asked for at once."""
        ...

    def note(self, tenant: int, rows: Rows) -> None:
        """Its pods were taken, and nobody asks for shares now."""
        ...

    def refresh(self, now: float) -> None:
        """Shares will be asked for."""
        ...

    def relax(self, now: float) -> None:
        """Shares will not be asked for."""
        ...
