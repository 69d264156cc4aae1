"""The values of expressions: those of CEL itself, and Kubernetes' quantities and versions.

Errors have cel-go's words, because kube-scheduler repeats them."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, TypeVar

from hoss.model.quantity import Quantity
from scheduler_worker.core.devices.cel_syntax import UnsignedInteger

Value = Any  # bool, int, UnsignedInteger, float, str, bytes, None, list, dict, or one of the types below

NO_OVERLOAD = "no such overload"
OVERFLOW = "integer overflow"


class CelError(Exception):
    """An expression that has no value: cel-go's words."""


@dataclass(frozen=True, slots=True)
class SemanticVersion:
    """A version by semver.org 2.0.0. Build metadata does not take part in comparisons."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[int | str, ...] = ()

    @property
    def order(self) -> tuple[object, ...]:
        """A key that sorts versions: a version with a pre-release comes before the one without."""
        parts = tuple((isinstance(p, str), p) for p in self.prerelease)
        return self.major, self.minor, self.patch, not self.prerelease, parts


_TimeT = TypeVar("_TimeT", bound="_Nanoseconds")


class _Nanoseconds(int):
    """So many nanoseconds, which 64 bits hold."""

    @classmethod
    def checked(cls: type[_TimeT], nanoseconds: int) -> _TimeT:  # noqa: PYI019 - Python 3.10 has no Self
        """Raises CelError beyond what the type has."""
        if not cls._LEAST <= nanoseconds <= cls._MOST:
            raise CelError(cls._BEYOND)
        return cls(nanoseconds)

    _LEAST, _MOST, _BEYOND = -(2**63), 2**63 - 1, OVERFLOW


class Duration(_Nanoseconds):
    """A length of time."""

    def __str__(self) -> str:
        seconds, rest = divmod(abs(int(self)), 10**9)
        fraction = f".{rest:09}".rstrip("0") if rest else ""
        return f"{'-' if self < 0 else ''}{seconds}{fraction}s"


class Timestamp(_Nanoseconds):
    """A point in time, since the epoch. The years 1 to 9999."""

    _LEAST, _MOST = -62_135_596_800 * 10**9, 253_402_300_800 * 10**9 - 1
    _BEYOND = "timestamp overflow"

    def __str__(self) -> str:
        seconds, rest = divmod(int(self), 10**9)
        at = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds)
        fraction = f".{rest:09}".rstrip("0") if rest else ""
        return f"{at.year:04}-{at:%m-%dT%H:%M:%S}{fraction}Z"


class Optional:
    """A value that may be missing (cel-go's optional_type)."""

    __slots__ = ("present", "value")

    def __init__(self, value: Value = None, *, present: bool = True) -> None:
        self.value = value
        self.present = present


NONE = Optional(present=False)


def key_missing(key: Value) -> CelError:
    """What cel-go says of a map or an object without this key."""
    return CelError(f"no such key: {text_of(key) if not isinstance(key, (list, dict)) else key}")


_KINDS: dict[type, str] = {
    type(None): "null_type",
    bool: "bool",
    UnsignedInteger: "uint",
    int: "int",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    dict: "map",
    Quantity: "kubernetes.Quantity",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    SemanticVersion: "kubernetes.Semver",
    Optional: "optional_type",
}


def kind_of(value: Value) -> str:
    """The name of a value's type in CEL."""
    kind = _KINDS.get(type(value))
    if kind is None:
        return "map" if isinstance(value, Mapping) else getattr(value, "kind", "type")
    return kind


# What cel-go says of a value that cannot become a bool of Go. Most types have words of their own.
_NO_BOOL = {
    "int": "unsupported type conversion from 'int' to bool",
    "uint": "unsupported type conversion from 'uint' to bool",
    "string": "unsupported native conversion from string to 'bool'",
    "bytes": "type conversion error from Bytes to 'bool'",
    "double": "type conversion error from Double to 'bool'",
    "google.protobuf.Duration": "type conversion error from 'Duration' to 'bool'",
    "google.protobuf.Timestamp": "type conversion error from 'Timestamp' to 'bool'",
    "kubernetes.Semver": "type conversion error from 'Semver' to 'bool'",
}


def no_truth(value: Value) -> str:
    """Why a value that is not true or false selects nothing, in kube-scheduler's words."""
    kind = kind_of(value)
    words = _NO_BOOL.get(kind, f"type conversion error from {kind} to 'bool'")
    return f"CEL result of type {kind} could not be converted to bool: {words}"


class TypeName(str):
    """A type as a value of CEL."""

    __slots__ = ()


TYPES = {
    name: TypeName(name)
    for name in ("bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type")
}

NUMBERS = ("int", "uint", "double")
_SIMPLE = (int, str, bool)  # most values, and quicker by their type


def equal(left: Value, right: Value) -> bool:
    """`==`: values of different types are different, but numbers compare by value."""
    if type(left) is type(right) and type(left) in _SIMPLE:
        return bool(left == right)
    kinds = kind_of(left), kind_of(right)
    if kinds[0] != kinds[1]:
        return kinds[0] in NUMBERS and kinds[1] in NUMBERS and _as_numbers(left, right)
    same = _SAME.get(kinds[0])
    return bool(left == right) if same is None else same(left, right)


def _as_numbers(left: Value, right: Value) -> bool:
    """Whether numbers are equal: as doubles, where one of them is one."""
    if isinstance(left, float) or isinstance(right, float):
        return float(left) == float(right)
    return bool(left == right)


def _may_be_equal(left: Value, right: Value) -> bool:
    """Members of lists and maps that cannot be compared do not make these different (cel-go)."""
    try:
        return equal(left, right)
    except CelError:
        return True


def surely_equal(left: Value, right: Value) -> bool:
    """What cannot be compared is not equal."""
    try:
        return equal(left, right)
    except CelError:
        return False


def _same_lists(left: Value, right: Value) -> bool:
    return len(left) == len(right) and all(map(_may_be_equal, left, right))


def _same_maps(left: Value, right: Value) -> bool:
    return len(left) == len(right) and all(
        key in right and _may_be_equal(value, right[key]) for key, value in left.items()
    )


def _same_quantities(left: Value, right: Value) -> bool:
    if (
        not right.text
    ):  # a result of add() or sub(): Kubernetes' library has another type for it, and no overload
        raise CelError(NO_OVERLOAD)
    return bool(left.nano == right.nano)


def _same_optionals(left: Value, right: Value) -> bool:
    if not left.present or not right.present:
        return left.present is right.present
    return equal(left.value, right.value)


_SAME: dict[str, Callable[[Value, Value], bool]] = {  # by kind; others compare as Python does
    "list": _same_lists,
    "map": _same_maps,
    "kubernetes.Quantity": _same_quantities,
    "kubernetes.Semver": lambda left, right: bool(left.order == right.order),
    "optional_type": _same_optionals,
}


_ORDERED = {"bool", "string", "bytes", "google.protobuf.Duration", "google.protobuf.Timestamp"}


def compare(left: Value, right: Value) -> int:
    """Below, equal or above as -1, 0, 1. Raises CelError for types without an order."""
    if type(left) is type(right) and type(left) in _SIMPLE:
        return int(left > right) - int(left < right)
    kinds = {kind_of(left), kind_of(right)}
    if not (kinds <= set(NUMBERS) or (len(kinds) == 1 and kinds <= _ORDERED)):
        raise CelError(NO_OVERLOAD)
    if "double" in kinds:
        left, right = float(left), float(right)
    return int(left > right) - int(left < right)


def contains(container: Value, value: Value) -> bool:
    """`value in container`."""
    match container:
        case list():
            return any(surely_equal(value, item) for item in container)
        case Mapping():
            return kind_of(value) in ("bool", "int", "uint", "string") and value in container
    raise CelError(NO_OVERLOAD)


def whole(number: int, *, unsigned: bool = False) -> int:
    """A result of integer arithmetic, if 64 bits hold it."""
    if unsigned:
        if not 0 <= number < 2**64:
            raise CelError(f"unsigned {OVERFLOW}")
        return UnsignedInteger(number)
    if not -(2**63) <= number < 2**63:
        raise CelError(OVERFLOW)
    return number


def arithmetic(sign: str, left: Value, right: Value) -> Value:
    """`+ - * / %` of two values of one type."""
    if isinstance(left, _Nanoseconds) or isinstance(right, _Nanoseconds):
        return _of_times(sign, left, right)
    kind = kind_of(left)
    if kind != kind_of(right):
        raise CelError(NO_OVERLOAD)
    if kind in ("int", "uint"):
        return _of_integers(sign, int(left), int(right), unsigned=kind == "uint")
    if kind == "double" and sign != "%":
        return _of_doubles(sign, left, right)
    if sign == "+" and kind in ("string", "bytes", "list"):
        return left + right
    raise CelError(NO_OVERLOAD)


def _of_times(sign: str, left: Value, right: Value) -> Value:
    kinds = type(left), type(right)
    if sign == "+" and kinds in ((Duration, Duration), (Timestamp, Duration), (Duration, Timestamp)):
        return (Duration if kinds == (Duration, Duration) else Timestamp).checked(int(left) + int(right))
    if sign == "-" and kinds in ((Duration, Duration), (Timestamp, Timestamp), (Timestamp, Duration)):
        return (Timestamp if kinds == (Timestamp, Duration) else Duration).checked(int(left) - int(right))
    raise CelError(NO_OVERLOAD)


def _of_integers(sign: str, left: int, right: int, *, unsigned: bool) -> int:
    if sign in "/%" and right == 0:
        raise CelError("division by zero" if sign == "/" else "modulus by zero")
    match sign:
        case "+":
            found = left + right
        case "-":
            found = left - right
        case "*":
            found = left * right
        case _:
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            found = quotient if sign == "/" else left - quotient * right
    return whole(found, unsigned=unsigned)


def _of_doubles(sign: str, left: float, right: float) -> float:
    match sign:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
    if right:
        return left / right
    return math.nan if not left or math.isnan(left) else math.copysign(math.inf, left)


def negated(value: Value) -> Value:
    """Unary minus."""
    if kind_of(value) == "int":
        return whole(-value)
    if kind_of(value) == "double":
        return -value
    raise CelError(NO_OVERLOAD)


_NUMBER, _ALPHANUMERIC = re.compile("[0-9]*"), re.compile("[0-9A-Za-z-]*")


def read_version(text: str) -> SemanticVersion:
    """The version of a text by semver.org. Raises CelError with the words of the library that Kubernetes uses
    (blang/semver)."""
    if not text:
        raise CelError("Version string empty")
    parts = text.split(".", 2)
    if len(parts) < 3:
        raise CelError("No Major.Minor.Patch elements found")
    major, minor = (_number(name, part) for name, part in zip(("major", "minor"), parts, strict=False))
    rest, plus, build = parts[2].partition("+")
    rest, dash, before = rest.partition("-")
    patch = _number("patch", rest)
    prerelease = tuple(map(_identifier, before.split("."))) if dash else ()
    for part in build.split(".") if plus else ():
        if not part:
            raise CelError("Build meta data is empty")
        if not _ALPHANUMERIC.fullmatch(part):
            raise CelError(f'Invalid character(s) found in build meta data "{part}"')
    return SemanticVersion(major, minor, patch, prerelease)


def _number(name: str, digits: str) -> int:
    if not _NUMBER.fullmatch(digits):
        raise CelError(f'Invalid character(s) found in {name} number "{digits}"')
    if len(digits) > 1 and digits[0] == "0":
        raise CelError(f'{name.title()} number must not contain leading zeroes "{digits}"')
    return _uint64(digits)


def _identifier(part: str) -> int | str:
    if not part:
        raise CelError("Prerelease is empty")
    if not _NUMBER.fullmatch(part):
        if not _ALPHANUMERIC.fullmatch(part):
            raise CelError(f'Invalid character(s) found in prerelease "{part}"')
        return part
    if len(part) > 1 and part[0] == "0":
        raise CelError(f'Numeric PreRelease version must not contain leading zeroes "{part}"')
    return _uint64(part)


def _uint64(digits: str) -> int:
    if not digits or len(digits) > _MOST_DIGITS or int(digits) >= 2**64:
        problem = "value out of range" if digits else "invalid syntax"
        raise CelError(f'strconv.ParseUint: parsing "{digits}": {problem}')
    return int(digits)


_MOST_DIGITS = 20  # of a number of 64 bits


def parse_version(text: str) -> SemanticVersion | None:
    """The version of a text; None if it is none."""
    try:
        return read_version(text)
    except CelError:
        return None


def _text_of_double(value: float) -> str:
    """As Go's %g: the shortest digits, with an exponent for very small numbers and from a million on."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    power = len(digits) + int(exponent) - 1
    shown = "".join(map(str, digits))
    if -4 <= power < 6:
        plain = f"{Decimal((0, digits, int(exponent))):f}"
        return f"{'-' if sign else ''}{plain}"
    fraction = f".{shown[1:]}" if len(shown) > 1 else ""
    return f"{'-' if sign else ''}{shown[0]}{fraction}e{'-' if power < 0 else '+'}{abs(power):02}"


def text_of(value: Value) -> str:
    """A value as text, as the function string() converts it. Raises CelError."""
    match kind_of(value):
        case "string":
            return str(value)
        case "bool":
            return "true" if value else "false"
        case "int" | "uint":
            return str(int(value))
        case "double":
            return _text_of_double(value)
        case "bytes":
            try:
                return bytes(value).decode()
            except UnicodeDecodeError:
                raise CelError("invalid UTF-8 in bytes, cannot convert to string") from None
        case "google.protobuf.Duration" | "google.protobuf.Timestamp" | "net.IP" | "net.CIDR":
            return str(value)
    raise CelError(NO_OVERLOAD)
