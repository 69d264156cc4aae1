"""The syntax of the Common Expression Language: from a text to a tree of nodes.

After the specification of CEL (github.com/google/cel-spec, langdef.md) with optional field selection,
`a.?b` and `a[?b]`. Macros are calls here; `cel` knows them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

MOST_CHARACTERS = 10 * 1024  # Kubernetes' limit for the selector of a device
_MOST_DIGITS = 20  # of a number of 64 bits
_DEEPEST = 40  # of brackets and operators around one another


class CelSyntaxError(Exception):
    """A text that is no expression."""


class UnsignedInteger(int):
    """CEL's uint."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: None, bool, int, UnsignedInteger, float, str or bytes."""

    value: object


@dataclass(frozen=True, slots=True)
class Identifier:
    """A variable, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """`of.field`, or `of.?field`."""

    of: "Node"
    field: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    """`of[key]`, or `of[?key]`."""

    of: "Node"
    key: "Node"
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """`name(args)`, or with a target `target.name(args)`. Operators are calls of their sign; `-_` negates."""

    name: str
    args: "tuple[Node, ...]"
    target: "Node | None" = None


@dataclass(frozen=True, slots=True)
class Junction:
    """`&&` or `||` of two and more."""

    operator: str
    parts: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Conditional:
    """`condition ? then : otherwise`."""

    condition: "Node"
    then: "Node"
    otherwise: "Node"


@dataclass(frozen=True, slots=True)
class ListOf:
    """`[item, ...]`."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class MapOf:
    """`{key: value, ...}`, in the order written."""

    entries: "tuple[tuple[Node, Node], ...]"


Node = Literal | Identifier | Select | Index | Call | Junction | Conditional | ListOf | MapOf


class _Token(NamedTuple):
    kind: str  # a group of _TOKENS, or "end"
    text: str
    at: int


_STRING = r"""(?:[rR]?(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''"""
_STRING += r"""|"(?:\\.|[^"\\\n\r])*"|'(?:\\.|[^'\\\n\r])*'))"""
_RAW = r"""(?:[rR](?:\"\"\".*?\"\"\"|'''.*?'''|"[^"\n\r]*"|'[^'\n\r]*'))"""
_TOKENS = re.compile(
    rf"""(?P<space>[ \t\r\n\f]+|//[^\n]*)
    |(?P<bytes>[bB]{_STRING})|(?P<raw>{_RAW})|(?P<string>{_STRING})
    |(?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    |(?P<integer>0x[0-9a-fA-F]+[uU]?|[0-9]+[uU]?)
    |(?P<name>[_a-zA-Z][_a-zA-Z0-9]*)
    |(?P<sign>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{{}}])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:(?P<char>[abfnrtv\\\"'`?])|x(?P<hex>[0-9a-fA-F]{2})|X(?P<Hex>[0-9a-fA-F]{2})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|(?P<octal>[0-3][0-7]{2})|(?P<other>.))",
    re.DOTALL,
)
_CHARS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_RESERVED = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)
_BINDING = {  # of the operators with two sides; the higher binds first
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), 1),
    **dict.fromkeys(("+", "-"), 2),
    **dict.fromkeys(("*", "/", "%"), 3),
}


def parse(text: str) -> Node:
    """The tree of an expression. Raises CelSyntaxError with the position."""
    if len(text) > MOST_CHARACTERS:
        raise CelSyntaxError(f"{len(text)} characters; an expression has at most {MOST_CHARACTERS}")
    parser = _Parser(list(_tokens(text)))
    found = parser.expression()
    if parser.next.kind != "end":
        parser.fail()
    return found


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while at < len(text):
        match = _TOKENS.match(text, at)
        if match is None:
            raise CelSyntaxError(f"syntax error at {at + 1}: {text[at : at + 10]!r}")
        kind = match.lastgroup or ""
        if kind != "space":
            found.append(_Token(kind, match[0], at))
        at = match.end()
    return [*found, _Token("end", "", len(text))]


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    @property
    def next(self) -> _Token:
        return self._tokens[self._position]

    def fail(self) -> NoReturn:
        token = self.next
        raise CelSyntaxError(f"syntax error at {token.at + 1}: {token.text or 'it ends here'}")

    def expression(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise CelSyntaxError(f"more than {_DEEPEST} brackets and operators around one another")
        found = self._junction("||", lambda: self._junction("&&", lambda: self._binary(1)))
        if self._took("?"):
            then = self._junction("||", lambda: self._junction("&&", lambda: self._binary(1)))
            self._take(":")
            found = Conditional(found, then, self.expression())
        self._depth -= 1
        return found

    def _took(self, sign: str) -> bool:
        if self.next.kind == "sign" and self.next.text == sign:
            self._position += 1
            return True
        return False

    def _take(self, sign: str) -> None:
        if not self._took(sign):
            self.fail()

    def _name(self) -> str:
        if self.next.kind != "name":
            self.fail()
        self._position += 1
        return self._tokens[self._position - 1].text

    def _junction(self, operator: str, part: Callable[[], Node]) -> Node:
        parts = [part()]
        while self._took(operator):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Junction(operator, tuple(parts))

    def _binary(self, least: int) -> Node:
        left, operators = self._unary(), 0
        while True:
            token = self.next
            binding = _BINDING.get(token.text, 0) if token.kind in ("sign", "name") else 0
            if binding < least:
                return left
            operators += 1
            if operators > _DEEPEST:
                raise CelSyntaxError(f"more than {_DEEPEST} operators in a row")
            self._position += 1
            left = Call(token.text, (left, self._binary(binding + 1)))

    def _unary(self) -> Node:
        signs = 0
        sign = self.next.text if self.next.kind == "sign" and self.next.text in ("!", "-") else ""
        while sign and self._took(sign):
            signs += 1
        found = self._member()
        if sign == "-" and signs % 2 and isinstance(found, Literal) and type(found.value) in (int, float):
            value = found.value
            return Literal(-value)  # type: ignore[operator]  # the type was looked at
        if signs % 2 == 0:
            return found
        return Call("!" if sign == "!" else "-_", (found,))

    def _member(self) -> Node:
        found, steps = self._primary(), 0
        while True:
            steps += 1
            if steps > _DEEPEST:
                raise CelSyntaxError(f"more than {_DEEPEST} selections in a row")
            if self._took("."):
                optional = self._took("?")
                name = self._name()
                if not optional and self._took("("):
                    found = Call(name, self._list(")"), found)
                else:
                    found = Select(found, name, optional)
            elif self._took("["):
                optional = self._took("?")
                key = self.expression()
                self._take("]")
                found = Index(found, key, optional)
            else:
                return found

    def _primary(self) -> Node:
        token = self.next
        if token.kind == "sign":
            return self._bracket()
        self._position += 1
        if token.kind == "name":
            return self._named(token)
        read = _LITERALS.get(token.kind)
        if read is None:
            self._position -= 1
            self.fail()
        return Literal(read(token))

    def _named(self, token: _Token) -> Node:
        words = {"true": True, "false": False, "null": None}
        if token.text in words:
            return Literal(words[token.text])
        if token.text in _RESERVED or token.text == "in":
            raise CelSyntaxError(f"reserved identifier at {token.at + 1}: {token.text}")
        return Call(token.text, self._list(")")) if self._took("(") else Identifier(token.text)

    def _bracket(self) -> Node:
        if self._took("("):
            found = self.expression()
            self._take(")")
            return found
        if self._took("["):
            return ListOf(self._list("]"))
        self._take("{")
        entries: list[tuple[Node, Node]] = []
        while not self._took("}"):
            key = self.expression()
            self._take(":")
            entries.append((key, self.expression()))
            if not self._took(","):
                self._take("}")
                break
        return MapOf(tuple(entries))

    def _list(self, end: str) -> tuple[Node, ...]:
        items: list[Node] = []
        while not self._took(end):
            items.append(self.expression())
            if not self._took(","):
                self._take(end)
                break
        return tuple(items)


def _quotes(text: str) -> int:
    return 3 if text[:3] in ('"""', "'''") else 1


def _unescaped(text: str, width: int) -> str:
    def character(match: re.Match[str]) -> str:
        if match["char"]:
            return _CHARS.get(match["char"], match["char"])
        if match["octal"]:
            return chr(int(match["octal"], 8))
        digits = match["hex"] or match["Hex"] or match["short"] or match["long"]
        code = int(digits, 16) if digits else -1
        if not 0 <= code <= 0x10FFFF or 0xD800 <= code < 0xE000:
            raise CelSyntaxError(f"invalid escape sequence {match[0]!r}")
        return chr(code)

    return _ESCAPE.sub(character, text[width:-width])


def _integer(token: _Token) -> int:
    digits = token.text.rstrip("uU")
    unsigned = digits != token.text
    number = -1
    if len(digits) <= _MOST_DIGITS:
        number = int(digits, 16) if digits.startswith("0x") else int(digits)
    # 2**63 is no number of 64 bits, but -2**63 is, and its sign is read apart.
    if not 0 <= number < (2**64 if unsigned else 2**63 + 1):
        raise CelSyntaxError(f"invalid int literal at {token.at + 1}")
    return UnsignedInteger(number) if unsigned else number


def _raw(text: str) -> str:
    width = _quotes(text[1:])
    return text[1 + width : -width]


def _bytes(token: _Token) -> bytes:
    text = token.text[1:]
    return (_raw(text) if text[0] in "rR" else _unescaped(text, _quotes(text))).encode()


_LITERALS: dict[str, Callable[[_Token], object]] = {
    "integer": _integer,
    "float": lambda token: float(token.text),
    "string": lambda token: _unescaped(token.text, _quotes(token.text)),
    "raw": lambda token: _raw(token.text),
    "bytes": _bytes,
}
