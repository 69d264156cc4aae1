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
from scheduler_worker.core.devices.cel_formats import FORMATS, NamedFormat, format_text, quoted_text, validate
from scheduler_worker.core.devices.cel_network import Cidr, Ip, Url, is_valid, parse_cidr, parse_ip, parse_url
from scheduler_worker.core.devices.cel_quantities import int64_of, moved
from scheduler_worker.core.devices.cel_time import (
    FIELDS,
    WHOLE,
    field,
    parse_duration,
    parse_timestamp,
    timestamp_of_seconds,
    whole_units,
)
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
    arithmetic,
    compare,
    contains,
    kind_of,
    read_version,
    surely_equal,
    text_of,
    whole,
)


def _version(text: str, *, normalize: bool = False) -> SemanticVersion:
    return read_version(_normalized(text) if normalize else text)


def _normalized(text: str) -> str:
    """Without a leading v and leading zeros, and with a minor and a patch number."""
    parts = [_without_zeros(part) for part in text.removeprefix("v").split(".", 2)]
    if len(parts) < 3 and re.search("[+-]", parts[-1]):
        raise CelError("short version cannot contain PreRelease/Build meta data")
    return ".".join((*parts, *["0"] * (3 - len(parts))))


def _without_zeros(part: str) -> str:
    if len(part) < 2:
        return part
    left = part.lstrip("0")
    return left if left[:1] in tuple("123456789") else f"0{left}"


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
        case "google.protobuf.Duration" if not unsigned:
            return int(value)
        case "google.protobuf.Timestamp" if not unsigned:
            return int(value) // 10**9
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


def _sum(values: Value) -> Value:
    found = values[0] if values else 0
    for value in values[1:]:
        found = arithmetic("+", found, value)
    return found


def _extreme(values: Value, name: str, choose: Callable[[int], bool]) -> Value:
    if not values:
        raise CelError(f"{name} called on empty list")
    found = values[0]
    for value in values[1:]:
        if choose(compare(value, found)):
            found = value
    return found


def _holds_text(network: Cidr, text: str) -> bool:
    if not is_valid(parse_ip, text):
        raise CelError(NO_OVERLOAD)  # as Kubernetes' library says it
    return network.has(parse_ip(text).address)


def _flat(values: Value, depth: int) -> list[Value]:
    """With the members of lists in place of the lists, so many levels deep."""
    if depth < 0:
        raise CelError("level must be non-negative")
    found: list[Value] = []
    for value in values:
        found += _flat(value, depth - 1) if isinstance(value, list) and depth > 0 else [value]
    return found


_LONGEST_RANGE = 1_000_000  # of which each number costs at least 1 of Kubernetes' limit


def _range(count: int) -> list[Value]:
    if count > _LONGEST_RANGE:
        raise CelError("operation cancelled: actual cost limit exceeded")
    return list(range(count))


def _index_from(text: str, part: str, start: int) -> int:
    if not part:
        return start
    if start < 0:
        raise CelError(f"index out of range: {start}")
    return text.find(part, start)


def _last_index_to(text: str, part: str, last: int) -> int:
    if not part:
        return last
    if last < 0:
        raise CelError(f"index out of range: {last}")
    return text.rfind(part, 0, last + len(part)) if last < len(text) else -1


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
_IP, _CIDR, _URL, _FORMAT = Ip.kind, Cidr.kind, Url.kind, NamedFormat.kind
_DURATION, _TIMESTAMP = "google.protobuf.Duration", "google.protobuf.Timestamp"


def _ordering(kind: str, key: Callable[[Value], Any]) -> dict[str, list[Overload]]:
    def order(a: Value, b: Value) -> int:
        return int(key(a) > key(b)) - int(key(a) < key(b))

    return {
        "compareTo": [((kind, kind), order)],
        "isGreaterThan": [((kind, kind), lambda a, b: order(a, b) > 0)],
        "isLessThan": [((kind, kind), lambda a, b: order(a, b) < 0)],
    }


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
        ((_STR,), _version),
        ((_STR, _BOOL), lambda t, n: _version(t, normalize=n)),
    ],
    "isSemver": [
        ((_STR,), lambda t: is_valid(_version, t)),
        ((_STR, _BOOL), lambda t, n: is_valid(lambda u: _version(u, normalize=n), t)),
    ],
    "sets.contains": [((_LIST, _LIST), lambda a, b: all(contains(a, v) for v in b))],
    "sets.intersects": [((_LIST, _LIST), lambda a, b: any(contains(a, v) for v in b))],
    "sets.equivalent": [
        ((_LIST, _LIST), lambda a, b: all(contains(a, v) for v in b) and all(contains(b, v) for v in a))
    ],
    "lists.range": [((_INT,), _range)],
    "strings.quote": [((_STR,), quoted_text)],
    "duration": [((_STR,), parse_duration), ((_DURATION,), lambda d: d)],
    "timestamp": [((_STR,), parse_timestamp), ((_INT,), timestamp_of_seconds), ((_TIMESTAMP,), lambda t: t)],
    "ip": [((_STR,), parse_ip)],
    "isIP": [((_STR,), lambda t: is_valid(parse_ip, t))],
    "ip.isCanonical": [((_STR,), lambda t: str(parse_ip(t)) == t)],
    "cidr": [((_STR,), parse_cidr)],
    "isCIDR": [((_STR,), lambda t: is_valid(parse_cidr, t))],
    "url": [((_STR,), parse_url)],
    "isURL": [((_STR,), lambda t: is_valid(parse_url, t))],
    "format.named": [((_STR,), lambda n: Optional(FORMATS[n]) if n in FORMATS else NONE)],
    **{f"format.{name}": [((), lambda found=found: found)] for name, found in FORMATS.items()},
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
        ((_STR, _STR, _INT), _index_from),
        ((_LIST, _ANY), lambda items, v: next((i for i, x in enumerate(items) if surely_equal(x, v)), -1)),
    ],
    "lastIndexOf": [
        ((_STR, _STR), str.rfind),
        ((_STR, _STR, _INT), _last_index_to),
        (
            (_LIST, _ANY),
            lambda items, v: max((i for i, x in enumerate(items) if surely_equal(x, v)), default=-1),
        ),
    ],
    "format": [((_STR, _LIST), format_text)],
    "flatten": [((_LIST,), lambda v: _flat(v, 1)), ((_LIST, _INT), _flat)],
    "family": [((_IP,), lambda ip: ip.address.version)],
    "isUnspecified": [((_IP,), lambda ip: ip.address.is_unspecified)],
    "isLoopback": [((_IP,), lambda ip: ip.address.is_loopback)],
    "isLinkLocalMulticast": [((_IP,), lambda ip: ip.is_link_local_multicast)],
    "isLinkLocalUnicast": [((_IP,), lambda ip: ip.is_link_local)],
    "isGlobalUnicast": [((_IP,), lambda ip: ip.is_global_unicast)],
    "containsIP": [
        ((_CIDR, _IP), lambda net, ip: net.has(ip.address)),
        ((_CIDR, _STR), _holds_text),
    ],
    "containsCIDR": [
        ((_CIDR, _CIDR), lambda net, other: net.contains(other)),
        ((_CIDR, _STR), lambda net, t: net.contains(parse_cidr(t))),
    ],
    "ip": [((_CIDR,), lambda net: Ip(net.address))],
    "prefixLength": [((_CIDR,), lambda net: net.bits)],
    "masked": [((_CIDR,), lambda net: net.masked)],
    "getScheme": [((_URL,), lambda url: url.scheme)],
    "getHost": [((_URL,), lambda url: url.host)],
    "getHostname": [((_URL,), lambda url: url.hostname)],
    "getPort": [((_URL,), lambda url: url.port)],
    "getEscapedPath": [((_URL,), lambda url: url.escaped_path)],
    "getQuery": [((_URL,), lambda url: url.parameters)],
    "validate": [((_FORMAT, _STR), validate)],
    "isSorted": [((_LIST,), _in_order)],
    "distinct": [((_LIST,), _distinct)],
    "reverse": [((_LIST,), lambda v: v[::-1])],
    "slice": [((_LIST, _INT, _INT), _slice)],
    "sort": [((_LIST,), lambda v: sorted(v, key=cmp_to_key(compare)))],
    "min": [((_LIST,), lambda v: _extreme(v, "min", lambda order: order < 0))],
    "max": [((_LIST,), lambda v: _extreme(v, "max", lambda order: order > 0))],
    "sum": [((_LIST,), _sum)],
    "major": [((_V,), lambda v: v.major)],
    "minor": [((_V,), lambda v: v.minor)],
    "patch": [((_V,), lambda v: v.patch)],
    "sign": [((_Q,), lambda q: int(q.nano > 0) - int(q.nano < 0))],
    "isInteger": [((_Q,), lambda q: int64_of(q) is not None)],
    "asInteger": [((_Q,), lambda q: _need(int64_of(q), "cannot convert value to integer"))],
    "asApproximateFloat": [((_Q,), lambda q: q.nano / NANO)],
    "add": [((_Q, _Q), lambda a, b: moved(a, b, 1)), ((_Q, _INT), lambda a, b: moved(a, b, 1))],
    "sub": [((_Q, _Q), lambda a, b: moved(a, b, -1)), ((_Q, _INT), lambda a, b: moved(a, b, -1))],
    "hasValue": [((_OPT,), lambda o: o.present)],
    "value": [((_OPT,), _value_of)],
    "orValue": [((_OPT, _ANY), lambda o, v: o.value if o.present else v)],
    "or": [((_OPT, _OPT), lambda o, p: o if o.present else p)],
}
for _name, _overloads in _ordering(_Q, lambda q: q.nano).items():
    METHODS[_name] = _overloads + _ordering(_V, lambda v: v.order)[_name]
for _name in FIELDS:
    METHODS[_name] = [((_TIMESTAMP,), field(_name)), ((_TIMESTAMP, _STR), field(_name))]
    if _name in WHOLE:
        METHODS[_name].append(((_DURATION,), whole_units(_name)))


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
