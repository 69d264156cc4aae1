"""Kubernetes quantities ("500m", "2Gi", "1e3"): exact numbers with their notation.

The grammar is that of apimachinery's `resource.Quantity`: sign, digits, a fraction, and a suffix. Missing
digits mean zero. The finest step is one billionth. Finer numbers are rounded away from zero, so that no
request becomes zero. Numbers with a binary suffix are at most 2^63 - 1."""

import re
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from hoss.errors import InvalidInput, quoted

NANO = 10**9  # a quantity's finest step is 1/NANO
_MICRO_PER_MILLI = 10**6

_BINARY_CAP = (2**63 - 1) * NANO

# No quantity needs more, and Python's own limit for parsing integers is 4300 digits.
_LONGEST_TEXT = 1024
_LARGEST_EXPONENT = 1024


class Notation(Enum):
    """How a quantity is written. A sum has the notation of its first part that is not zero."""

    DECIMAL = "decimal"  # 12M
    EXPONENT = "exponent"  # 12e6
    BINARY = "binary"  # 12Mi


_DECIMAL_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
# Missing digits mean zero, but apimachinery reads numbers with these suffixes in another way.
_NEEDS_DIGITS = re.compile(r"[PE]i|[eE]-0*[1-9][0-9]+")
_DECIMAL_NAMES = {exponent: suffix for suffix, exponent in _DECIMAL_SUFFIXES.items()}
_BINARY_NAMES = ("", *_BINARY_SUFFIXES)

_PARTS = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(.*)", re.DOTALL)
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)")
_NO_QUANTITY = "is no quantity: write a number and a suffix, such as 500m, 1.5 or 2Gi"


class Quantity(NamedTuple):
    """A number of billionths and its notation. Quantities compare by their numbers first."""

    nano: int
    notation: Notation = Notation.DECIMAL
    text: str = ""  # as parsed; empty for a computed quantity

    @property
    def value(self) -> int:
        """The number of units, rounded away from zero."""
        return _divide_away_from_zero(self.nano, NANO)

    @property
    def milli(self) -> int:
        """The number of thousandths, rounded away from zero."""
        return _divide_away_from_zero(self.nano, _MICRO_PER_MILLI)

    @property
    def whole(self) -> bool:
        """Whether it has no fraction."""
        return self.nano % NANO == 0

    @property
    def normalized(self) -> str:
        """The canonical text of this number in its notation: no fraction, the largest suffix with an integer.

        The decimal notation replaces the binary one below 1024 and where there is a fraction."""
        if self.nano == 0:
            return "0"
        if self.notation is Notation.BINARY and self.whole and abs(self.nano) >= 1024 * NANO:
            return _with_binary_suffix(self.nano // NANO)
        mantissa, exponent = self.nano, -9
        while mantissa % 1000 == 0 and (exponent < 18 or self.notation is Notation.EXPONENT):
            mantissa, exponent = mantissa // 1000, exponent + 3
        if self.notation is Notation.EXPONENT:
            return f"{mantissa}e{exponent}" if exponent else str(mantissa)
        return f"{mantissa}{_DECIMAL_NAMES[exponent]}"

    @property
    def canonical(self) -> str:
        """What Kubernetes prints after parsing: the given text where that passes its quick check."""
        return self.text if self.text and _is_kept_as_written(self.text) else self.normalized

    def plus(self, other: "Quantity") -> "Quantity":
        """The sum, in the notation of this one; if this one is zero, in that of the other, as in
        apimachinery."""
        return Quantity(self.nano + other.nano, self.notation if self.nano else other.notation)


ZERO = Quantity(0)


# Manifests repeat a few texts thousands of times. A miss of the cache costs 0.3 us.
@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Quantity:
    """The quantity of a text. Raises InvalidInput with the text, what is wrong, and what would be right."""
    if not text or len(text) > _LONGEST_TEXT:
        shown = f"{text[:20]!r}... ({len(text)} characters)" if text else "''"
        raise InvalidInput(f"{shown} {_NO_QUANTITY}")
    sign, digits, fraction, suffix = _split(text)
    if not digits + fraction and _NEEDS_DIGITS.fullmatch(suffix):
        raise InvalidInput(f"{text!r} {_NO_QUANTITY}")
    unscaled = int(digits + fraction) if digits or fraction else 0
    shift = _BINARY_SUFFIXES.get(suffix)
    if shift is not None:
        nano = -(-(unscaled * NANO << shift) // 10 ** len(fraction))
        nano = min(nano, _BINARY_CAP)
        notation = Notation.BINARY if nano >= NANO or nano == 0 else Notation.DECIMAL
    else:
        exponent = _DECIMAL_SUFFIXES.get(suffix)
        notation = Notation.DECIMAL
        if exponent is None:
            exponent, notation = _read_exponent(suffix, text), Notation.EXPONENT
        scale = exponent - len(fraction) + 9
        nano = unscaled * 10**scale if scale >= 0 else -(-unscaled // 10**-scale)
    return Quantity(-nano if sign == "-" else nano, notation, text)


def read_quantity(value: object) -> Quantity:
    """A quantity of a manifest: text or a number. Raises InvalidInput."""
    if isinstance(value, str):
        return parse_quantity(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # A longer integer is over every limit, and Python writes none of more than 4,300 digits.
        if isinstance(value, int) and value.bit_length() > 3 * _LONGEST_TEXT:
            raise InvalidInput(f"{quoted(value)} {_NO_QUANTITY}")
        return parse_quantity(repr(value))
    raise InvalidInput(f"{'null' if value is None else quoted(value)} {_NO_QUANTITY}")


def _split(text: str) -> tuple[str, ...]:
    """(sign, digits, fraction, suffix)."""
    return _PARTS.fullmatch(text).groups("")  # type: ignore[union-attr]  # the expression matches every text


def _read_exponent(suffix: str, text: str) -> int:
    match = _EXPONENT.fullmatch(suffix)
    if match is None:
        known = ", ".join(s for s in (*_DECIMAL_SUFFIXES, *_BINARY_SUFFIXES) if s)
        problem = f"unknown suffix {suffix!r}; suffixes are {known}, or an exponent as in 1e3"
        raise InvalidInput(f"{text!r} is no quantity: {problem}")
    exponent = int(match[1])
    if abs(exponent) > _LARGEST_EXPONENT:
        allowed = f"exponents go from -{_LARGEST_EXPONENT} to {_LARGEST_EXPONENT}"
        raise InvalidInput(f"{text!r} is out of range: {allowed}")
    return exponent


def _divide_away_from_zero(number: int, divisor: int) -> int:
    return -(-number // divisor) if number > 0 else number // divisor


def _with_binary_suffix(value: int) -> str:
    step = 0
    while value % 1024 == 0 and step < len(_BINARY_NAMES) - 1:
        value, step = value // 1024, step + 1
    return f"{value}{_BINARY_NAMES[step]}"


def _is_kept_as_written(text: str) -> bool:
    # ParseQuantity keeps the text of a number in its 64-bit path where a quick check finds no larger suffix
    # for it. Not all of these texts are canonical ("+1", "1.500").
    if text == "0":
        return True
    _, digits, fraction, suffix = _split(text)
    digits = digits.lstrip("0") or "0"
    shift = _BINARY_SUFFIXES.get(suffix)
    if shift is not None:
        fits_64_bits = not fraction and len(digits) + shift * 3 // 10 <= 14
        return fits_64_bits and int(digits) % 8 != 0
    exponent = _DECIMAL_SUFFIXES[suffix] if suffix in _DECIMAL_SUFFIXES else _read_exponent(suffix, text)
    scale = exponent - len(fraction)
    if len(digits + fraction) > 18 or scale < -9:
        return False
    return scale % 3 == 0 and not (digits + fraction).endswith("000") and digits != "0"


_MOST_DIGITS = 20  # those of 2^64


def whole_number(text: str) -> int | None:
    """The number that a text of ASCII digits says, below 10^20. None for any other text: Python raises
    ValueError for one with thousands of digits."""
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdecimal() else None
