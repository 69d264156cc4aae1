"""The exceptions of HOSS. Expected outcomes (unschedulable, conflict, stale) are values, never exceptions.

HossError
├── InvalidInput          what a user or peer sent is wrong; says where, what, and what would be right
│   ├── ConfigError       a configuration or policy document
│   ├── ColumnError       a packed column of a message
│   └── NotFound          a name that nothing has
├── LedgerUnavailable     Redis is away, or is not the ledger that we knew
├── Overloaded            the dispatcher holds as much as it may; nothing was accepted, and it says when to try again
├── TransportError        a peer cannot be reached or broke off
└── InvariantViolation    a broken promise of our own; carries the evidence
"""


class HossError(Exception):
    """Base of everything HOSS raises on purpose."""


class InvalidInput(HossError):  # noqa: N818 - named for what happened, as the tree above
    """Input that cannot be accepted. `where` is the place: a file, a document, a field's path."""

    def __init__(self, text: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {text}" if where else text)
        self.text = text
        self.where = where

    def at(self, outer: str) -> "InvalidInput":
        """Same error with the place seen from further out: `at("pods.yaml document 3")`."""
        return type(self)(self.text, where=f"{outer}: {self.where}" if self.where else outer)


class ConfigError(InvalidInput):
    """A configuration or policy document is wrong."""


class ColumnError(InvalidInput):
    """A packed column has the wrong length or holds a value out of range."""


class NotFound(InvalidInput):
    """Nothing has the name or UID that was given."""


class LedgerUnavailable(HossError):  # noqa: N818
    """The ledger cannot answer. Nothing was decided; try again."""


class Overloaded(HossError):  # noqa: N818
    """The dispatcher is full. Nothing was accepted; the same again may be after `retry_after_seconds`."""

    def __init__(self, text: str, retry_after_seconds: float) -> None:
        super().__init__(text)
        self.retry_after_seconds = retry_after_seconds


class TransportError(HossError):
    """A peer cannot be reached."""


class InvariantViolation(HossError):  # noqa: N818
    """A promise of docs/architecture.md is broken. The message carries the numbers."""
