"""Texts in expressions: `format` and `strings.quote` of cel-go, and Kubernetes' named formats."""

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from scheduler_worker.core.devices.cel_network import is_valid, parse_url
from scheduler_worker.core.devices.cel_time import parse_timestamp
from scheduler_worker.core.devices.cel_values import NONE, CelError, Optional, Value, kind_of, text_of

_DIGITS = 6  # after the point, where none are given
_CLAUSE = re.compile(r"%(?:%|(?:\.([0-9]+))?([a-zA-Z])|(.?))", re.DOTALL)


def format_text(text: str, args: list[Value]) -> str:
    """`'%s has %d'.format([name, count])`. Raises CelError."""
    left = iter(enumerate(args))

    def filled(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        if match[2] is None:
            raise CelError(
                "unexpected end of string" if not match[3] else f'unrecognized formatting clause "{match[3]}"'
            )
        found = next(left, None)
        if found is None:
            raise CelError(f"index {len(args)} out of range")
        clause = _CLAUSES.get(match[2])
        if clause is None:
            raise CelError(f'could not parse formatting clause: unrecognized formatting clause "{match[2]}"')
        return clause(found[1], _DIGITS if match[1] is None else int(match[1]))

    return _CLAUSE.sub(filled, text)


def _plain(value: Value, _digits: int) -> str:
    kind = kind_of(value)
    if kind == "null_type":
        return "null"
    if kind == "list":
        return f"[{', '.join(map(_literal, value))}]"
    if kind == "map":
        pairs = sorted((_literal(key), _literal(item)) for key, item in value.items())
        return f"{{{', '.join(f'{key}:{item}' for key, item in pairs)}}}"
    if kind == "type":
        return str(value)
    return text_of(value)


def _literal(value: Value) -> str:
    kind, shown = kind_of(value), _plain(value, 0)
    if kind == "string":
        return quoted_text(shown)
    if kind == "double":
        return f"{value:.{_DIGITS}f}"
    if kind == "bytes":
        return f"b{quoted_text(shown)}"
    if kind in ("google.protobuf.Duration", "google.protobuf.Timestamp"):
        return f"{kind.rpartition('.')[2].lower()}({quoted_text(shown)})"
    return shown


def _whole(form: str, words: str) -> Callable[[Value, int], str]:
    def clause(value: Value, _digits: int) -> str:
        if kind_of(value) == "bool" and form == "b":
            return str(int(value))
        if kind_of(value) in ("string", "bytes") and form in "xX":
            shown = (value.encode() if isinstance(value, str) else value).hex()
            return str(shown.upper() if form == "X" else shown)
        if kind_of(value) not in ("int", "uint"):
            raise CelError(f"error during formatting: {words}, was given {kind_of(value)}")
        return format(int(value), form)

    return clause


def _real(words: str, shown: Callable[[float, int], str]) -> Callable[[Value, int], str]:
    def clause(value: Value, digits: int) -> str:
        if kind_of(value) != "double":
            problem = f"{words} clause can only be used on doubles, was given {kind_of(value)}"
            raise CelError(f"error during formatting: {problem}")
        return shown(value, digits)

    return clause


_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "+")


def _scientific(value: float, digits: int) -> str:
    """As Go's package for texts in English shows it."""
    mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
    return f"{mantissa}×10{exponent.translate(_RAISED)}"  # noqa: RUF001 - the sign of multiplication


_CLAUSES: dict[str, Callable[[Value, int], str]] = {
    "s": _plain,
    "d": _whole("d", "decimal clause can only be used on integers"),
    "f": _real("fixed-point", lambda value, digits: f"{value:,.{digits}f}"),
    "e": _real("scientific", _scientific),
    "b": _whole("b", "only integers and bools can be formatted as binary"),
    "x": _whole("x", "only integers, byte buffers, and strings can be formatted as hex"),
    "X": _whole("X", "only integers, byte buffers, and strings can be formatted as hex"),
    "o": _whole("o", "octal clause can only be used on integers"),
}
_ESCAPES = {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"}
_ESCAPES |= {"\\": r"\\", '"': r"\""}


def quoted_text(text: str) -> str:
    """The text as a literal of the language."""
    return '"' + "".join(_ESCAPES.get(character, character) for character in text) + '"'


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A format that texts may have: what is wrong with a text, in Kubernetes' words."""

    name: str
    problems: Callable[[str], list[str]]
    kind = "kubernetes.NamedFormat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedFormat) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def validate(given: NamedFormat, text: str) -> Optional:
    """None if the text has the format, else what is wrong."""
    problems = given.problems(text)
    return Optional(list(problems)) if problems else NONE


def _label(text: str, pattern: str, most: int, words: str) -> list[str]:
    found = [f"must be no more than {most} bytes"] if len(text.encode()) > most else []
    return (
        found
        if re.fullmatch(pattern, text, re.ASCII)
        else [*found, f"{words}, regex used for validation is '{pattern}')"]
    )


_LABEL, _OLD_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?", "[a-z]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_VALUE = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_NAME = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_NO_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must "
    "start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc'"
)
_NO_OLD_LABEL = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123'"
)
_NO_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and "
    "end with an alphanumeric character (e.g. 'example.com'"
)
_NO_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and"
    " must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345'"
)
_NO_NAME = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with "
    "an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc'"
)


def _prefix(text: str) -> str:
    """A name's prefix may end with a dash, where Kubernetes adds a suffix."""
    return text[:-1] + "a" if len(text) > 1 and text.endswith("-") else text


_NO_QUALIFIED_NAME = (
    "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with "
    "an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    f"'{_NAME}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
)


def _qualified(text: str) -> list[str]:
    if text.count("/") > 1:
        return [_NO_QUALIFIED_NAME]
    prefix, slash, name = text.rpartition("/")
    found = []
    if slash:
        given = _label(prefix, _SUBDOMAIN, 253, _NO_SUBDOMAIN) if prefix else ["must be non-empty"]
        found = [f"prefix part {problem}" for problem in given]
    if not name:
        return [*found, "name part must be non-empty"]
    return [
        *found,
        *(p if p.startswith("name") else f"name part {p}" for p in _label(name, _NAME, 63, _NO_NAME)),
    ]


def _base64(text: str) -> list[str]:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return ["invalid base64"]
    return []


def _day(text: str) -> list[str]:
    try:
        date.fromisoformat(text)
    except ValueError:
        return ["invalid date"]
    return [] if re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text, re.ASCII) else ["invalid date"]


_UUID = re.compile(
    "[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE | re.ASCII
)
FORMATS = {
    "dns1123Label": NamedFormat("DNS1123Label", lambda t: _label(t, _LABEL, 63, _NO_LABEL)),
    "dns1123Subdomain": NamedFormat("DNS1123Subdomain", lambda t: _label(t, _SUBDOMAIN, 253, _NO_SUBDOMAIN)),
    "dns1035Label": NamedFormat("DNS1035Label", lambda t: _label(t, _OLD_LABEL, 63, _NO_OLD_LABEL)),
    "qualifiedName": NamedFormat("QualifiedName", _qualified),
    "dns1123LabelPrefix": NamedFormat(
        "DNS1123LabelPrefix", lambda t: _label(_prefix(t), _LABEL, 63, _NO_LABEL)
    ),
    "dns1123SubdomainPrefix": NamedFormat(
        "DNS1123SubdomainPrefix", lambda t: _label(_prefix(t), _SUBDOMAIN, 253, _NO_SUBDOMAIN)
    ),
    "dns1035LabelPrefix": NamedFormat(
        "DNS1035LabelPrefix", lambda t: _label(_prefix(t), _OLD_LABEL, 63, _NO_OLD_LABEL)
    ),
    "labelValue": NamedFormat("LabelValue", lambda t: _label(t, _VALUE, 63, _NO_VALUE)),
    "uri": NamedFormat(
        "URI", lambda t: [] if is_valid(parse_url, t) else [f'parse "{t}": invalid URI for request']
    ),
    "uuid": NamedFormat("uuid", lambda t: [] if _UUID.fullmatch(t) else ["does not match the UUID format"]),
    "byte": NamedFormat("byte", _base64),
    "date": NamedFormat("date", _day),
    "datetime": NamedFormat(
        "datetime", lambda t: [] if is_valid(parse_timestamp, t) else ["invalid datetime"]
    ),
}
