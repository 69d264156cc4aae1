"""Inputs for fuzz tests: valid texts and messages that were damaged, by a seed.

Hypothesis chooses the seeds, keeps a failing one, and prints it. It does not build the inputs itself: that
would take ten times the time of what is tested. `make test-all` and `make soak` try 10,000 of each kind,
`make test` some hundreds.
"""

import contextlib
import gc
import os
import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

QUICK = os.environ.get("HOSS_TESTS", "quick") == "quick"
SEEDS = st.integers(0, 2**64 - 1)
MOST_SECONDS = 3.0  # a second on the machine of docs/benchmarks.md, and three on the slowest
# An error is a log line and a status of gRPC: this is InvalidInput's limit for a place and a text.
LONGEST_ERROR = 2_500


def inputs(most: int = 10_000, *, quick: int = 300) -> settings:
    """Of a fuzz test: how many inputs it tries."""
    return settings(
        max_examples=quick if QUICK else most,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a smaller seed is no smaller input
        suppress_health_check=list(HealthCheck),
        database=None,
    )


@contextlib.contextmanager
def within_a_second() -> Iterator[None]:
    """Fails where the block takes this thread more CPU time. Of the clock a loaded machine may take any
    time, and a pass of the cycle collector is about all objects of the tests."""
    gc.disable()
    try:
        began = time.thread_time()
        yield
        took = time.thread_time() - began
    finally:
        gc.enable()
    assert took < MOST_SECONDS, f"took {took:.1f} s"


# What has been misread by some program: of every kind of number, text and punctuation.
WORDS = (
    *("", " ", "0", "-1", "1e999", "9" * 25, "9" * 5000, "0x" + "f" * 5000, "1:" * 400 + "1", ".nan", "-.inf",
        "1_0"),
    *("~", "null", "true", "no", "2024-01-01", "<<", "=", "!!binary aGk=", "!!python/name:os.system", "&a",
        "*a"),
    *("{", "}", "[", "]", ":", "- ", "? ", ",", "|", ">", "#", "---\n", "...\n", "%YAML 9.9\n", "\t", "\r\n",
        "\0"),
    *("\ufeff", "\u2028", "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"), "\x85",
        "a" * 3000),
    *('"', "'", "\\", "\\ud800", "\\u0000", "NaN", "Infinity", "1Ki", "5%", "-5%", "1e-9", "0.1n", "example.com/x"),
    *("[" * 300, "{a: " * 300, "- " * 300, "<<: *a\n", "&a [*a]", "a: &a b\n"),
)  # fmt: skip


def damaged(rng: Random, texts: Sequence[str]) -> str:
    """One of the texts with up to four changes: a span removed, doubled, moved, repeated or replaced."""
    text = rng.choice(texts)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(text))
        end = min(len(text), at + int(rng.expovariate(0.1)))
        match rng.randrange(7):
            case 0:
                text = text[:at] + text[end:]
            case 1:
                text = text[:end] + text[at:]
            case 2:
                text = text[:at] + rng.choice(WORDS) + text[at:]
            case 3:
                text = text[:at] + rng.choice(WORDS) + text[end:]
            case 4:
                other = rng.choice(texts)
                start = rng.randint(0, len(other))
                text = text[:at] + other[start : start + 40] + text[end:]
            case 5:
                text = text[:at] + text[at:end] * rng.randint(2, 200) + text[end:]
            case 6:
                text = (
                    text[:at] + chr(rng.choice((rng.randrange(128), rng.randrange(0xD800)))) + text[at + 1 :]
                )
    return text[:50_000]


def damaged_bytes(rng: Random, data: bytes) -> bytes:
    """The bytes with up to four changes."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(found))
        end = min(len(found), at + rng.randint(0, 8))
        match rng.randrange(5):
            case 0:
                del found[at:end]
            case 1:
                found[at:at] = rng.randbytes(rng.randint(1, 8))
            case 2:
                found[at:end] = bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF))]) * (end - at)
            case 3 if found:
                found[at - 1] ^= 1 << rng.randrange(8)
            case 4:
                del found[at:]
    return bytes(found)


_NUMBERS = (
    0,
    1,
    2,
    3,
    5,
    7,
    100,
    2**16 - 1,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**53 + 1,
    2**63 - 1,
    2**64 - 1,
)
_FLOATS = (0.0, 1.0, -1.0, 0.5, 1e30, 1e308, float("inf"), float("-inf"), float("nan"))
_LIMITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


class MessageMaker:
    """Fills in messages by their descriptors. `texts` and `columns`: values that mean something to the
    receiver, which are taken as often as others."""

    def __init__(self, rng: Random, texts: Sequence[str], columns: Sequence[bytes] = ()) -> None:
        self._rng = rng
        self._texts = texts
        self._columns = columns

    def fill(self, message: Message, depth: int = 5) -> None:
        """Set some fields of a new message."""
        for field in message.DESCRIPTOR.fields:
            if self._rng.random() < 0.5:
                self._set(message, field, depth)

    def damage(self, message: Message) -> None:
        """Change or clear a field of a valid message, or of a message within it."""
        rng = self._rng
        while True:
            given = [
                (field, value) for field, value in message.ListFields() if field.type == field.TYPE_MESSAGE
            ]
            if not given or rng.random() < 0.4:
                break
            field, value = rng.choice(given)
            if field.message_type.GetOptions().map_entry:
                break
            message = rng.choice(list(value)) if field.is_repeated else value
        if not message.DESCRIPTOR.fields:
            return
        field = rng.choice(message.DESCRIPTOR.fields)
        if rng.random() < 0.7:
            self._set(message, field, 3)
        else:
            message.ClearField(field.name)

    def _set(self, message: Message, field: Any, depth: int) -> None:
        rng = self._rng
        if field.type == field.TYPE_MESSAGE:
            if not depth or field.message_type.GetOptions().map_entry:
                return
            if field.is_repeated:
                for _ in range(rng.choice((1, 1, 2, 3))):
                    self.fill(getattr(message, field.name).add(), depth - 1)
            else:
                getattr(message, field.name).SetInParent()
                self.fill(getattr(message, field.name), depth - 1)
        elif field.is_repeated:
            message.ClearField(field.name)
            getattr(message, field.name).extend(self._value(field) for _ in range(rng.choice((1, 2, 3))))
        else:
            setattr(message, field.name, self._value(field))

    def _value(self, field: Any) -> Any:
        rng = self._rng
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_STRING if field.type == field.TYPE_BYTES:
                return self._bytes()
            case FieldDescriptor.CPPTYPE_STRING:
                return rng.choice(self._texts) if rng.random() < 0.7 else rng.choice(WORDS)
            case FieldDescriptor.CPPTYPE_BOOL:
                return rng.random() < 0.5
            case FieldDescriptor.CPPTYPE_ENUM:
                return rng.choice((*field.enum_type.values_by_number, 99))
            case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
                return rng.choice(_FLOATS)
        least, most = _LIMITS[field.cpp_type]
        number = rng.choice(_NUMBERS) * rng.choice((1, 1, 1, -1)) if rng.random() < 0.6 else rng.randrange(4)
        return min(max(number, least), most)

    def _bytes(self) -> bytes:
        rng = self._rng
        if self._columns and rng.random() < 0.5:
            found = rng.choice(self._columns)
            return found if rng.random() < 0.6 else damaged_bytes(rng, found)
        width = rng.choice((1, 2, 4, 8, 16))
        rows = rng.choice((0, 1, 1, 2, 3, 40))
        return rng.choice((b"\0", b"\1", b"\xff", rng.randbytes(1))) * (width * rows) or rng.randbytes(
            rng.randrange(9)
        )
