"""The functions of expressions.

They are after cel-go's standard library, its `ext.Strings`, `ext.Sets`, `ext.Lists` and optionals, and
Kubernetes' k8s.io/apiserver/pkg/cel/library. Errors have cel-go's words."""

import math
import re
from collections.abc import Callable
from functools import cmp_to_key, lru_cache
from itertools import pairwise
from typing import Any

from hoss.errors import InvalidInput
from hoss.model.quantity import NANO, Quantity, parse_quantity
from scheduler_worker.core.devices.cel_values import (
    NO_OVERLOAD,
    NONE,
    NUMBERS,
    OVERFLOW,
    CelError,
    Optional,
    SemanticVersion,
    TypeName,
    Value,
    compare,
    contains,
    equal,
    kind_of,
    parse_version,
    text_of,
    whole,
)


def _version(text: str, *, normalize: bool = False) -> SemanticVersion | None:
    if normalize:
        text = text.removeprefix("v")
        core, sign, rest = re.match(r"([0-9.]*)([-+]?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
        numbers = core.split(".")
        if len(numbers) <= 3 and all(n.isdigit() and len(n) <= 20 for n in numbers):
            core = ".".join(str(int(n)) for n in (*numbers, *["0"] * (3 - len(numbers))))
        text = core + sign + rest
    return parse_version(text)


def _no_version(text: str) -> str:
    """Kubernetes' words for a text that is no version, as far as its parts go."""
    if not text:
        return "Version string empty"
    if text.count(".") < 2:
        return "No Major.Minor.Patch elements found"
    for name, number in zip(("major", "minor"), text.split(".", 2), strict=False):
        if not re.fullmatch("[0-9]+", number, re.ASCII):
            return f'Invalid character(s) found in {name} number "{number}"'
        if len(number) > 1 and number[0] == "0":
            return f'{name.title()} number must not contain leading zeroes "{number}"'
    return f"{text!r} is no semantic version"


_NO_QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def _quantity(text: str) -> Quantity | None:
    try:
        return parse_quantity(text)
    except InvalidInput:
        return None


def _integer(value: Value, *, unsigned: bool = False) -> int:
    match kind_of(value):
        case "int" | "uint":
            return whole(int(value), unsigned=unsigned)
        case "double":
            if not math.isfinite(value) or value == -(2.0**63):  # the least integer is no result of this
                raise CelError(OVERFLOW)
            return whole(int(value), unsigned=unsigned)
        case "string":
            if re.fullmatch(r"[+-]?[0-9]{1,20}", value, re.ASCII):
                return whole(int(value), unsigned=unsigned)
            raise CelError(f"type conversion error from 'string' to '{'uint' if unsigned else 'int'}'")
    raise CelError(NO_OVERLOAD)


def _double(value: Value) -> float:
    if kind_of(value) in NUMBERS:
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise CelError("type conversion error from 'string' to 'double'") from None
    raise CelError(NO_OVERLOAD)


def _boolean(value: Value) -> bool:
    if isinstance(value, bool):
        return value
    truth = {"1": True, "t": True, "true": True, "TRUE": True, "True": True, "T": True}
    untruth = dict.fromkeys(("0", "f", "false", "FALSE", "False", "F"), False)
    if isinstance(value, str) and value in truth | untruth:
        return (truth | untruth)[value]
    raise CelError("type conversion error from 'string' to 'bool'")


def _need(value: object, problem: str) -> Value:
    if value is None:
        raise CelError(problem)
    return value


def _size(value: Value) -> int:
    if kind_of(value) in ("string", "bytes", "list", "map"):
        return len(value)
    raise CelError(NO_OVERLOAD)


# Python tries the parts of a repeated group in all ways, which may take for ever; RE2, which Kubernetes uses,
# does not. RE2 has no (?=...), (?<...) and backreferences either.
_BEYOND = re.compile(r"\)[*+{]|\(\?[=!<]|\\[1-9]")
_POSIX = {  # names of sets in brackets, which Python does not know
    "[:alnum:]": "0-9A-Za-z",
    "[:alpha:]": "A-Za-z",
    "[:digit:]": "0-9",
    "[:lower:]": "a-z",
    "[:punct:]": r"!-/:-@\[-`{-~",
    "[:space:]": r"\t\n\v\f\r ",
    "[:upper:]": "A-Z",
    "[:xdigit:]": "0-9A-Fa-f",
}


@lru_cache(maxsize=256)
def _expression(pattern: str) -> re.Pattern[str]:
    if _BEYOND.search(pattern):
        raise CelError(f"regexp `{pattern}`: repeated groups and looking around are not supported")
    python = re.sub(r"\[:[a-z]+:\]", lambda match: _POSIX.get(match[0], match[0]), pattern)
    try:
        return re.compile(python, re.ASCII)
    except re.error:
        raise CelError(f"error parsing regexp: `{pattern}`") from None


def _matches(text: str, pattern: str) -> bool:
    return _expression(pattern).search(text) is not None


def _find(text: str, pattern: str) -> str:
    found = _expression(pattern).search(text)
    return found[0] if found else ""


def _find_all(text: str, pattern: str, most: int = -1) -> list[Value]:
    found = [match[0] for match in _expression(pattern).finditer(text)]
    return found if most < 0 else found[:most]


def _substring(text: str, start: int, end: int | None = None) -> str:
    if end is not None and start > end:
        raise CelError(f"invalid substring range. start: {start}, end: {end}")
    end = len(text) if end is None else end
    if not 0 <= start <= end <= len(text):
        raise CelError(f"index out of range: {start if not 0 <= start <= len(text) else end}")
    return text[start:end]


def _split(text: str, by: str, most: int) -> list[Value]:
    """At most so many parts, the last with all that is left; below 0: all."""
    if most == 0:
        return []
    if not by:
        characters = list(text)
        rest = "".join(characters[most - 1 :]) if 0 < most < len(characters) else None
        return characters if rest is None else [*characters[: most - 1], rest]
    return [*text.split(by, most - 1)] if most > 0 else [*text.split(by)]


def _in_order(values: Value) -> bool:
    return all(compare(a, b) <= 0 for a, b in pairwise(values))


def _distinct(values: Value) -> Value:
    found: list[Value] = []
    for value in values:
        if not contains(found, value):
            found.append(value)
    return found


def _slice(values: Value, start: int, end: int) -> Value:
    if not 0 <= start <= end <= len(values):
        raise CelError(f"cannot slice({start}, {end}), list is length {len(values)}")
    return values[start:end]


def _extreme(values: Value, name: str, choose: Callable[[int], bool]) -> Value:
    if not values:
        raise CelError(f"{name} called on empty list")
    found = values[0]
    for value in values[1:]:
        if choose(compare(value, found)):
            found = value
    return found


def _value_of(optional: Value) -> Value:
    if not optional.present:
        raise CelError("optional.none() dereference")
    return optional.value


def _is_zero(value: Value) -> bool:
    return value is None or (
        kind_of(value) in ("string", "bytes", "list", "map", *NUMBERS, "bool") and not value
    )


Function = Callable[..., Value]
Overload = tuple[tuple[str, ...], Function]  # kinds of the arguments, the target first; "any" is every kind

_INT, _STR, _LIST, _ANY, _BOOL = "int", "string", "list", "any", "bool"
_Q, _V, _OPT = "kubernetes.Quantity", "kubernetes.Semver", "optional_type"


def _ordering(kind: str, key: Callable[[Value], Any]) -> dict[str, list[Overload]]:
    def order(a: Value, b: Value) -> int:
        return int(key(a) > key(b)) - int(key(a) < key(b))

    return {
        "compareTo": [((kind, kind), order)],
        "isGreaterThan": [((kind, kind), lambda a, b: order(a, b) > 0)],
        "isLessThan": [((kind, kind), lambda a, b: order(a, b) < 0)],
    }


def _moved(a: Quantity, b: Value, sign: int) -> Quantity:
    nano = b.nano if isinstance(b, Quantity) else int(b) * NANO
    return a.plus(Quantity(sign * nano))


FUNCTIONS: dict[str, list[Overload]] = {
    "size": [((_ANY,), _size)],
    "string": [((_ANY,), text_of)],
    "int": [((_ANY,), _integer)],
    "uint": [((_ANY,), lambda v: _integer(v, unsigned=True))],
    "double": [((_ANY,), _double)],
    "bool": [((_ANY,), _boolean)],
    "bytes": [((_STR,), str.encode)],
    "dyn": [((_ANY,), lambda v: v)],
    "type": [((_ANY,), lambda v: TypeName(kind_of(v)))],
    "matches": [((_STR, _STR), _matches)],
    "quantity": [((_STR,), lambda t: _need(_quantity(t), _NO_QUANTITY))],
    "isQuantity": [((_STR,), lambda t: _quantity(t) is not None)],
    "semver": [
        ((_STR,), lambda t: _need(_version(t), _no_version(t))),
        ((_STR, _BOOL), lambda t, n: _need(_version(t, normalize=n), _no_version(t))),
    ],
    "isSemver": [
        ((_STR,), lambda t: _version(t) is not None),
        ((_STR, _BOOL), lambda t, n: _version(t, normalize=n) is not None),
    ],
    "sets.contains": [((_LIST, _LIST), lambda a, b: all(contains(a, v) for v in b))],
    "sets.intersects": [((_LIST, _LIST), lambda a, b: any(contains(a, v) for v in b))],
    "sets.equivalent": [
        ((_LIST, _LIST), lambda a, b: all(contains(a, v) for v in b) and all(contains(b, v) for v in a))
    ],
    "optional.of": [((_ANY,), Optional)],
    "optional.none": [((), lambda: NONE)],
    "optional.ofNonZeroValue": [((_ANY,), lambda v: NONE if _is_zero(v) else Optional(v))],
}
METHODS: dict[str, list[Overload]] = {
    "size": [((_ANY,), _size)],
    "startsWith": [((_STR, _STR), str.startswith)],
    "endsWith": [((_STR, _STR), str.endswith)],
    "contains": [((_STR, _STR), lambda a, b: b in a)],
    "matches": [((_STR, _STR), _matches)],
    "lowerAscii": [((_STR,), lambda t: re.sub("[A-Z]", lambda m: m[0].lower(), t))],
    "upperAscii": [((_STR,), lambda t: re.sub("[a-z]", lambda m: m[0].upper(), t))],
    "trim": [((_STR,), str.strip)],
    "charAt": [((_STR, _INT), lambda t, i: _substring(t, i)[:1])],
    "substring": [((_STR, _INT), _substring), ((_STR, _INT, _INT), _substring)],
    "replace": [
        ((_STR, _STR, _STR), str.replace),
        ((_STR, _STR, _STR, _INT), lambda t, a, b, n: t.replace(a, b, int(n))),
    ],
    "split": [
        ((_STR, _STR), lambda t, by: t.split(by) if by else list(t)),
        ((_STR, _STR, _INT), lambda t, by, most: _split(t, by, int(most))),
    ],
    "find": [((_STR, _STR), _find)],
    "findAll": [
        ((_STR, _STR), _find_all),
        ((_STR, _STR, _INT), lambda t, p, most: _find_all(t, p, int(most))),
    ],
    "join": [((_LIST,), "".join), ((_LIST, _STR), lambda parts, by: by.join(parts))],
    "indexOf": [
        ((_STR, _STR), str.find),
        ((_LIST, _ANY), lambda items, v: next((i for i, x in enumerate(items) if equal(x, v)), -1)),
    ],
    "lastIndexOf": [((_STR, _STR), str.rfind)],
    "isSorted": [((_LIST,), _in_order)],
    "distinct": [((_LIST,), _distinct)],
    "reverse": [((_LIST,), lambda v: v[::-1])],
    "slice": [((_LIST, _INT, _INT), _slice)],
    "sort": [((_LIST,), lambda v: sorted(v, key=cmp_to_key(compare)))],
    "min": [((_LIST,), lambda v: _extreme(v, "min", lambda order: order < 0))],
    "max": [((_LIST,), lambda v: _extreme(v, "max", lambda order: order > 0))],
    "sum": [((_LIST,), lambda v: sum(v) if v and isinstance(v[0], float) else whole(sum(v)))],
    "major": [((_V,), lambda v: v.major)],
    "minor": [((_V,), lambda v: v.minor)],
    "patch": [((_V,), lambda v: v.patch)],
    "sign": [((_Q,), lambda q: int(q.nano > 0) - int(q.nano < 0))],
    "isInteger": [((_Q,), lambda q: q.whole and abs(q.value) < 2**63)],
    "asInteger": [
        ((_Q,), lambda q: whole(q.value) if q.whole else _need(None, "cannot convert value to integer"))
    ],
    "asApproximateFloat": [((_Q,), lambda q: q.nano / NANO)],
    "add": [((_Q, _Q), lambda a, b: _moved(a, b, 1)), ((_Q, _INT), lambda a, b: _moved(a, b, 1))],
    "sub": [((_Q, _Q), lambda a, b: _moved(a, b, -1)), ((_Q, _INT), lambda a, b: _moved(a, b, -1))],
    "hasValue": [((_OPT,), lambda o: o.present)],
    "value": [((_OPT,), _value_of)],
    "orValue": [((_OPT, _ANY), lambda o, v: o.value if o.present else v)],
    "or": [((_OPT, _OPT), lambda o, p: o if o.present else p)],
}
for _name, _overloads in _ordering(_Q, lambda q: q.nano).items():
    METHODS[_name] = _overloads + _ordering(_V, lambda v: v.order)[_name]


def call(overloads: list[Overload], args: list[Value]) -> Value:
    """The result of the first overload that takes arguments of these kinds."""
    kinds = [kind_of(arg) for arg in args]
    for wanted, function in overloads:
        if len(wanted) == len(kinds) and all(w in ("any", k) for w, k in zip(wanted, kinds, strict=True)):
            try:
                return function(*args)
            except (TypeError, AttributeError):  # a list with values of several types
                raise CelError(NO_OVERLOAD) from None
    raise CelError(NO_OVERLOAD)
