"""The exceptions of HOSS. Expected outcomes (unschedulable, conflict, stale) are values, never exceptions.

HossError
├── InvalidInput          wrong input of a user or peer; says where, what, and what would be right
│   ├── ConfigError       a configuration or policy document
│   ├── ColumnError       a packed column of a message
│   └── NotFound          an unknown name or UID
├── LedgerUnavailable     Redis is unavailable, or holds another ledger than before
│   └── OutcomeUnknown    whether a change was made is not known; the same call again settles it
├── Overloaded            the dispatcher is full; the call changed nothing; says when to try again
├── TransportError        a peer cannot be reached or broke off
├── AccessDenied          the peer does not know the caller, or does not let it do this
└── InvariantViolation    a broken invariant; carries the evidence"""

import contextlib
import re
from collections.abc import Iterator, Sequence

# What an error quotes of a value, and says in all, at most. An error is also a log line and a gRPC status,
# and whoever sends the value chooses its length.
_MOST_QUOTED = 100
_MOST_TEXT = 2000
_MOST_WHERE = 300
# What moves a terminal's cursor, changes its colours or the direction of its text, or begins a line: control
# characters of ASCII and of Latin-1, marks of direction, line separators. Lone surrogates cannot be written
# at all.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LIKENESS = 0.7  # of difflib: a letter or two of a short word


def quoted(value: object) -> str:
    """A value of a user or peer as an error shows it: its repr, of a long one the beginning and the
    length."""
    if isinstance(value, (str, bytes)) and len(value) > _MOST_QUOTED:
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{value[:_MOST_QUOTED]!r}... ({len(value):,} {unit})"
    try:
        return clipped(repr(value), _MOST_QUOTED)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return f"a {type(value).__name__} with a number that is too long to show"


def printable(text: str) -> str:
    """The text as a terminal may show it: control characters are written as in Python (`\\x1b`), but for tabs
    and the ends of lines. Names and reasons come from peers, who could otherwise write over what a command
    has printed."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def clipped(text: str, most: int) -> str:
    """The text, or its beginning and its length."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def counted(count: float, one: str) -> str:
    """A number of things: "1 pod", "1,200 pods", "1.5 pods"."""
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def did_you_mean(written: str, choices: Sequence[str]) -> str:
    """The end of a sentence that names the likeliest choice; empty where none is like it."""
    from difflib import get_close_matches  # noqa: PLC0415 - only errors need it

    likely = get_close_matches(written[:_MOST_QUOTED], choices, n=1, cutoff=_LIKENESS)
    return f"; did you mean {likely[0]!r}?" if likely else ""


class HossError(Exception):
    """Base of HOSS's exceptions."""


class InvalidInput(HossError):  # noqa: N818 - the names say what happened
    """Input that cannot be accepted. `where` is the place: a file, a document, a field's path. Both are
    clipped where they are longer than anybody reads."""

    def __init__(self, text: str, *, where: str = "") -> None:
        text, where = clipped(text, _MOST_TEXT), clipped(where, _MOST_WHERE)
        super().__init__(f"{where}: {text}" if where else text)
        self.text = text
        self.where = where

    def at(self, outer: str) -> "InvalidInput":
        """The same error with an outer place before its own: `at("pods.yaml document 3")`."""
        return type(self)(self.text, where=f"{outer}: {self.where}" if self.where else outer)


@contextlib.contextmanager
def reading(where: str) -> Iterator[None]:
    """Turns the system's error about a file that a user named into InvalidInput. To be held around what reads
    the file and nothing else: an error of a connection is an OSError too."""
    try:
        yield
    except OSError as exc:
        raise InvalidInput(f"cannot be read: {exc.strerror or exc}", where=where) from exc


@contextlib.contextmanager
def writing(where: str) -> Iterator[None]:
    """The same of a file that is written."""
    try:
        yield
    except OSError as exc:
        raise InvalidInput(f"cannot be written: {exc.strerror or exc}", where=where) from exc


class ConfigError(InvalidInput):
    """A configuration or policy document is wrong."""


class ColumnError(InvalidInput):
    """A packed column has the wrong length or holds a value out of range."""


class NotFound(InvalidInput):
    """Nothing has the name or UID that was given."""


class LedgerUnavailable(HossError):  # noqa: N818
    """The ledger does not answer. The call decided nothing; try again."""


class OutcomeUnknown(LedgerUnavailable):
    """Whether the change was made is not known, and a crash may leave it either way. Make the same call
    again, a submission with the same request id."""


class Overloaded(HossError):  # noqa: N818
    """The dispatcher is full. The call changed nothing; try again after `retry_after_seconds`."""

    def __init__(self, text: str, retry_after_seconds: float) -> None:
        super().__init__(text)
        self.retry_after_seconds = retry_after_seconds


class TransportError(HossError):
    """A peer cannot be reached."""


class AccessDenied(HossError):  # noqa: N818
    """The service does not know who calls, or does not let this caller do this."""


class InvariantViolation(HossError):  # noqa: N818
    """A promise of docs/architecture.md is broken. The message carries the numbers."""
