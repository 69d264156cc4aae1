"""Text from outside becomes values here, and nowhere else: YAML as Kubernetes reads it, and JSON.

Each text has a limit of size, depth, nodes and the length of numbers, so that no text ends the process or
holds it up. The parsers alone have none. PyYAML recurses in C (50,000 brackets end the process), accepts a
key twice in a mapping, turns dates into objects, and expands aliases without end. Python's own JSON parser
raises an error of its own for a number of 5,000 digits."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import orjson
import yaml

from hoss.errors import InvalidInput, quoted, reading

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where PyYAML was built with libyaml

# Ten times the largest manifests in use, and what one Submit message can carry after parsing.
MAX_MANIFEST_BYTES = 32 * 1024 * 1024
# Of a configuration or policy document: what a ConfigMap may have.
MAX_DOCUMENT_BYTES = 1024 * 1024
# Scalars, lists and mappings of a YAML text. A manifest of MAX_MANIFEST_BYTES has some two million. Each
# takes a kilobyte while it is read.
MAX_NODES = 3_000_000
# Those of a configuration or policy document. A policy of 1,000 rules has a tenth of them.
MAX_DOCUMENT_NODES = 100_000
# The most nodes that aliases may add. Ten aliases at each of nine levels would add a billion.
MAX_ALIASED_NODES = 1_000_000
# Real objects are some 20 levels deep.
MAX_DEPTH = 200
# A float has 17 significant digits. Python's time to read an integer grows with the square of its length.
MAX_NUMBER_LENGTH = 400

_TAG = "tag:yaml.org,2002:"
_CONVERSIONS = {
    _TAG + "bool": _Base.construct_yaml_bool,
    _TAG + "int": _Base.construct_yaml_int,
    _TAG + "float": _Base.construct_yaml_float,
}


def read_bytes(file: Path | BinaryIO, where: str, *, most_bytes: int = MAX_MANIFEST_BYTES) -> bytes:
    """What a file holds, up to one byte more than `most_bytes`, by which `decoded` sees that it is too large.
    Raises InvalidInput where it cannot be read."""
    try:
        with (
            reading(where),
            file.open("rb") if isinstance(file, Path) else contextlib.nullcontext(file) as opened,
        ):
            return opened.read(most_bytes + 1)
    except ValueError as exc:  # a path in a document may have a NUL
        raise InvalidInput(f"cannot be read: {exc}", where=where) from exc


def decoded(data: bytes | str, where: str, *, most_bytes: int = MAX_MANIFEST_BYTES) -> str:
    """The text of a document. Raises InvalidInput for too many bytes and for what is no UTF-8."""
    if len(data) > most_bytes:
        what, remedy = "manifest", "Split it, or ask for equal pods by one Job"
        if most_bytes != MAX_MANIFEST_BYTES:
            what, remedy = "document", "Leave out what is not needed"
        raise InvalidInput(
            f"has more than {most_bytes:,} bytes, which is the most that a {what} has. {remedy}", where=where
        )
    if isinstance(data, str):
        return data.removeprefix("\ufeff")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        problem = f"is no UTF-8 text: byte {exc.start} is {data[exc.start]:#04x}"
        raise InvalidInput(problem, where=where) from exc


def json_value(data: bytes | str, where: str) -> Any:
    """The value of a JSON text. Raises InvalidInput."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        raise InvalidInput(f"is no JSON: {exc}", where=where) from exc
    return _not_too_deep(value, where)


def read_text(file: Path, *, most_bytes: int) -> str:
    """The text of a file, which is read no further than to where it is known to be too large. Raises
    InvalidInput that names the file."""
    data = read_bytes(file, str(file), most_bytes=most_bytes)
    return decoded(data, str(file), most_bytes=most_bytes)


def read_json(file: Path, *, most_bytes: int) -> Any:
    """The value of a file of JSON. Raises InvalidInput that names the file."""
    return json_value(read_text(file, most_bytes=most_bytes), str(file))


def json_documents(text: str, where: str) -> Iterator[tuple[str, Any]]:
    """(place, value) of each JSON value of a text: one, or several in a row. Raises InvalidInput."""
    # The last one of equal keys in an object counts, as in every JSON parser.
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        # Several values in a row, or a syntax error, for which the slower parser names the position.
        yield from _json_values(text, where)
    else:
        place = f"{where} document 1"
        yield place, _not_too_deep(value, place)


def _json_values(text: str, where: str) -> Iterator[tuple[str, Any]]:
    decoder = json.JSONDecoder(parse_int=_json_integer, parse_constant=_no_json_number)
    position, number, end = len(text) - len(text.lstrip()), 1, len(text.rstrip())
    while position < end:
        place = f"{where} document {number}"
        try:
            value, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as exc:
            problem = f"is no valid JSON or is cut off: {exc.msg} (line {exc.lineno}, column {exc.colno})"
            raise InvalidInput(problem, where=place) from exc
        except InvalidInput as exc:
            raise exc.at(place) from None
        except RecursionError as exc:
            raise _too_deep(place) from exc
        yield place, _not_too_deep(value, place)
        number += 1
        while position < end and text[position].isspace():
            position += 1


def _json_integer(digits: str) -> int:
    if len(digits) > MAX_NUMBER_LENGTH:
        raise InvalidInput(_too_long(digits))
    return int(digits)


def _no_json_number(text: str) -> Any:
    raise InvalidInput(f"has {text}, which is no JSON")


def _not_too_deep(value: Any, where: str) -> Any:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return value
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
    raise _too_deep(where)


def _too_deep(where: str) -> InvalidInput:
    return InvalidInput(f"is nested more than {MAX_DEPTH} levels deep", where=where)


def _too_long(number: str) -> str:
    return f"has a number of {len(number):,} characters; {MAX_NUMBER_LENGTH} are the most"


def yaml_documents(text: str, where: str, *, most_nodes: int = MAX_NODES) -> Iterator[tuple[str, Any]]:
    """(place, value) of every document that is not empty. The place is "<where> document <n>".

    InvalidInput names the document, the line and the column."""
    place = f"{where} document 1"
    loader = None
    try:
        for number in _checked(yaml.parse(text, Loader=_Base), most_nodes):
            place = f"{where} document {number}"
        number = 1
        loader = _Loader(text)
        while loader.check_data():
            place = f"{where} document {number}"
            value = loader.get_data()
            if value is not None:
                yield place, value
            number += 1
    except yaml.constructor.ConstructorError as exc:
        raise InvalidInput(f"{exc.problem}{_position(exc.problem_mark)}", where=place) from exc
    except yaml.MarkedYAMLError as exc:
        if "nesting depth" in (exc.problem or ""):  # libyaml's own limit, which is a higher one
            raise _too_deep(place) from exc
        problem = ", ".join(part for part in (exc.context, exc.problem) if part)
        broken = f"is no valid YAML or is cut off: {problem}{_position(exc.problem_mark)}"
        raise InvalidInput(broken, where=place) from exc
    except yaml.YAMLError as exc:
        raise InvalidInput(f"is no valid YAML: {' '.join(str(exc).split())}", where=place) from exc
    finally:
        if loader is not None:
            loader.dispose()


def _checked(events: Iterable[Any], most_nodes: int) -> Iterator[int]:  # noqa: C901 - a branch for each kind
    """The number of each document that begins. Raises ConstructorError where a limit is exceeded.

    An alias counts as many nodes as its anchor has with its own aliases expanded."""
    number = nodes = aliased = 0
    sizes: dict[str, int] = {}  # nodes by anchor
    open_nodes: list[tuple[str | None, int]] = []  # anchor, nodes before it
    for event in events:
        kind = type(event)
        if kind is yaml.ScalarEvent:
            nodes += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            if len(open_nodes) == MAX_DEPTH:
                raise _error(f"is nested more than {MAX_DEPTH} levels deep", event)
            open_nodes.append((event.anchor, nodes))
            sizes.pop(event.anchor, None)
            nodes += 1
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            anchor, before = open_nodes.pop()
            if anchor:
                sizes[anchor] = nodes - before
        elif kind is yaml.AliasEvent:
            if event.anchor not in sizes:
                raise _error(f"*{event.anchor} names no anchor that ends before it", event)
            nodes += sizes[event.anchor]
            aliased += sizes[event.anchor]
            if aliased > MAX_ALIASED_NODES:
                more = f"means more than {MAX_ALIASED_NODES:,} nodes through its aliases"
                raise _error(f"{more}; write out what is meant", event)
        elif kind is yaml.DocumentStartEvent:
            number += 1
            sizes.clear()
            yield number
        if nodes - aliased > most_nodes:
            raise _error(f"has more than {most_nodes:,} values, lists and mappings; split it", event)


class _Loader(_Base):  # type: ignore[misc]
    """Keys are text as written and unique in a mapping; dates are text; only YAML's own tags are known."""

    # Timestamps and the lone "=" are text to Kubernetes.
    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, rule) for tag, rule in rules if tag not in (_TAG + "timestamp", _TAG + "value")]
        for first, rules in _Base.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._flattened: set[int] = set()  # ids of nodes, because merged mappings are visited repeatedly

    def flatten_mapping(self, node: Any) -> None:
        """Check the keys, and put in what is merged (<<): own keys come before merged ones, and the first
        merged mapping before the others, as YAML has it. Releases of PyYAML differ in that."""
        if id(node) in self._flattened:
            return
        self._flattened.add(id(node))
        own: dict[str, tuple[Any, Any]] = {}
        merged: dict[str, tuple[Any, Any]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _error("has a mapping or list as a key; a key is text", key)
            if key.tag == _TAG + "merge":
                for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if not isinstance(source, yaml.MappingNode):
                        raise _error("merges (<<) something that is no mapping", source)
                    self.flatten_mapping(source)
                    for name_and_value in source.value:
                        merged.setdefault(name_and_value[0].value, name_and_value)
                continue
            if key.value in own:
                raise _error(f"has the key {quoted(key.value)} twice in one mapping", key)
            key.tag = _TAG + "str"
            own[key.value] = key, value
        node.value = [*(merged | own).values()]

    def construct_checked(self, node: Any) -> Any:
        """A number or truth value. Text that only looks like a number ("0o", "-_") stays text."""
        if len(node.value) > MAX_NUMBER_LENGTH:
            raise _error(_too_long(node.value), node)
        try:
            return _CONVERSIONS[node.tag](self, node)
        except (ValueError, KeyError):
            if self.resolve(yaml.ScalarNode, node.value, (True, False)) == node.tag:
                return node.value
            raise _error(f"{quoted(node.value)} does not fit its tag {node.tag}", node) from None

    def construct_undefined(self, node: Any) -> Any:
        raise _error(f"has the tag {node.tag}, which no manifest needs", node)


for _tag in _CONVERSIONS:
    _Loader.add_constructor(_tag, _Loader.construct_checked)
for _name in ("timestamp", "value", "merge"):
    _Loader.add_constructor(_TAG + _name, _Loader.construct_yaml_str)
for _name in ("binary", "omap", "pairs", "set"):
    _Loader.add_constructor(_TAG + _name, _Loader.construct_undefined)
_Loader.add_constructor(None, _Loader.construct_undefined)


def _error(problem: str, at: Any) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, at.start_mark)


def _position(mark: Any) -> str:
    return f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
