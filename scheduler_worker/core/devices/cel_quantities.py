"""Quantities in expressions.

Kubernetes keeps a quantity as an integer of 64 bits with a power of ten where it can, and else as a decimal
of any length. `isInteger` and `asInteger` tell the two apart: a decimal is no integer for them, whole as it
may be. It stays a decimal whatever is added to it, so sums remember how they are kept."""

import re
from typing import NamedTuple

from hoss.model.quantity import NANO, Quantity
from scheduler_worker.core.devices.cel_values import Value

_WRITTEN = re.compile(r"([+-]?)0*([0-9]*)(?:\.([0-9]*))?([KMGTPE]i)?(.*)", re.ASCII)
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_MOST_DIGITS = 18  # of a text that is kept as an integer
_LEAST, _MOST = -(2**63), 2**63 - 1


class _Scaled(NamedTuple):
    """`number` times ten to the power of `scale`."""

    number: int  # of 64 bits
    scale: int


class ComputedQuantity(Quantity):
    """A sum or a difference. `kept`: as an integer; None: as a decimal."""

    kind = "kubernetes.Quantity"
    kept: _Scaled | None = None


def int64_of(quantity: Quantity) -> int | None:
    """The number, if the quantity is kept as an integer and has neither a fraction nor more than 64 bits."""
    kept = _kept(quantity)
    if kept is None or kept.scale < 0:
        return None
    return _int64(kept.number * 10**kept.scale)


def moved(quantity: Quantity, by: Value, sign: int) -> Quantity:
    """The quantity with another one, or a number, added (1) or subtracted (-1)."""
    other = by if isinstance(by, Quantity) else None
    step, kept = (int(by) * NANO, _Scaled(int(by), 0)) if other is None else (other.nano, _kept(other))
    total = quantity.plus(Quantity(sign * step))
    found = ComputedQuantity(total.nano, total.notation)
    found.kept = _sum(_kept(quantity), kept, sign)
    return found


def _kept(quantity: Quantity) -> _Scaled | None:
    if isinstance(quantity, ComputedQuantity):
        return quantity.kept
    match = _WRITTEN.fullmatch(quantity.text)
    if match is None or not quantity.text:
        return _Scaled(quantity.value, 0) if quantity.whole else None
    sign, digits, fraction, binary, suffix = match.groups("")
    number = int(digits + fraction or "0") * (-1 if sign == "-" else 1)
    if binary:
        shift = _BINARY[binary]
        short = not fraction and 14 - (len(digits) or 1) - shift * 3 // 10 >= 0
        return _Scaled(number << shift, 0) if short else None
    exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    short = (len(digits) or 1) + len(fraction) <= _MOST_DIGITS
    scale = exponent - len(fraction)
    return _Scaled(number, scale) if short and scale >= _DECIMAL["n"] else None


def _sum(a: _Scaled | None, b: _Scaled | None, sign: int) -> _Scaled | None:
    if a is None or b is None:
        return None
    if not b.number:
        return a
    number = b.number * sign
    b = b._replace(number=_LEAST if number > _MOST else number)  # Kubernetes negates in 64 bits
    if not a.number:
        return b
    scale = min(a.scale, b.scale)
    parts = [_int64(part.number * 10 ** (part.scale - scale)) for part in (a, b)]
    total = None if None in parts else _int64(sum(part for part in parts if part is not None))
    return None if total is None else _Scaled(total, scale)


def _int64(number: int) -> int | None:
    return number if _LEAST <= number <= _MOST else None
