"""YAML documents as Kubernetes reads them, built from the parser's events without recursion.

PyYAML's own loaders are not used: they recurse in C (50,000 brackets end the process), let a key stand twice in a
mapping, turn dates into objects, and know no bound for what aliases make of a few lines.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import yaml

from hoss.errors import InvalidInput

_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one where PyYAML was built with libyaml
_RULES: Any = yaml.SafeLoader("")  # resolves and converts single scalars; never parses

# Nodes that a document may gain through aliases. Anchors save honest manifests a few lines; nested tenfold nine
# times over, they mean a billion.
MAX_ALIASED_NODES = 1_000_000
# Real objects are some 20 levels deep.
MAX_DEPTH = 200

_TAG = "tag:yaml.org,2002:"
_CONVERSIONS = {
    _TAG + "null": _RULES.construct_yaml_null,
    _TAG + "bool": _RULES.construct_yaml_bool,
    _TAG + "int": _RULES.construct_yaml_int,
    _TAG + "float": _RULES.construct_yaml_float,
}
# Text to Kubernetes, whatever else YAML 1.1 makes of it.
_TEXT_TAGS = frozenset(_TAG + name for name in ("str", "timestamp", "value", "merge"))

_NO_KEY = object()
_MERGE = object()


def yaml_documents(text: str, where: str) -> Iterator[tuple[str, Any]]:
    """(place, value) of every document that is not empty; the place is "<where> document <n>".

    InvalidInput names the document, the line and the column.
    """
    number = 1
    parser = None
    try:
        parser = _Parser(text)  # reads ahead, and may refuse the very characters
        parser.get_event()  # StreamStart
        while not parser.check_event(yaml.StreamEndEvent):
            place = f"{where} document {number}"
            value = _Document(place).read(parser)
            if value is not None:
                yield place, value
            number += 1
    except yaml.MarkedYAMLError as exc:
        problem = ", ".join(part for part in (exc.context, exc.problem) if part)
        raise _invalid(
            f"is no valid YAML or is cut off: {problem}", f"{where} document {number}", exc.problem_mark
        ) from exc
    except yaml.YAMLError as exc:
        broken = f"is no valid YAML: {' '.join(str(exc).split())}"
        raise InvalidInput(broken, where=f"{where} document {number}") from exc
    finally:
        if parser is not None:
            parser.dispose()


class _Frame:
    """A mapping or sequence that is being filled."""

    __slots__ = ("anchor", "container", "key", "merged", "nodes_before")

    def __init__(self, container: Any, anchor: str | None, nodes_before: int) -> None:
        self.container = container
        self.key: Any = _NO_KEY  # of a mapping, while its value is awaited
        self.merged: list[Any] = []  # values of "<<"
        self.anchor = anchor
        self.nodes_before = nodes_before


class _Document:
    """One document under construction. `_nodes` counts what it means, aliases written out."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._anchors: dict[str, tuple[Any, int]] = {}  # value, nodes it stands for
        self._nodes = 0
        self._aliased_nodes = 0
        self._root: Any = None

    def read(self, parser: Any) -> Any:
        """Consume the events of one document and return its value."""
        frames: list[_Frame] = []
        while True:
            event = parser.get_event()
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self._nodes += 1
                self._add_scalar(frames, event)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self._nodes += 1
                self._open(frames, event, {} if kind is yaml.MappingStartEvent else [])
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._close(frames, event)
            elif kind is yaml.AliasEvent:
                self._add_alias(frames, event)
            elif kind is yaml.DocumentEndEvent:
                return self._root

    def _add_scalar(self, frames: list[_Frame], event: Any) -> None:
        plain = event.implicit[0]
        if frames and type(frames[-1].container) is dict and frames[-1].key is _NO_KEY:
            # Keys are text as written: Kubernetes has no others.
            value: Any = event.value
            self._set_key(frames[-1], _MERGE if plain and value == "<<" else value, event)
        else:
            value = self._convert(event, plain)
            self._add_value(frames, value)
        if event.anchor:
            self._anchors[event.anchor] = (value, 1)

    def _convert(self, event: Any, plain: bool) -> Any:
        if plain:
            return _plain_scalar(event.value)
        tag = event.tag
        if tag is None or tag == "!" or tag in _TEXT_TAGS:
            return event.value
        conversion = _CONVERSIONS.get(tag)
        if conversion is None:
            raise _invalid(f"has the tag {tag}, which no manifest needs", self._place, event.start_mark)
        try:
            return conversion(yaml.ScalarNode(tag, event.value))
        except (ValueError, KeyError) as exc:
            raise _invalid(f"{event.value!r} does not fit its tag {tag}", self._place, event.start_mark) from exc

    def _open(self, frames: list[_Frame], event: Any, container: Any) -> None:
        if len(frames) == MAX_DEPTH:
            raise _invalid(f"is nested more than {MAX_DEPTH} levels deep", self._place, event.start_mark)
        if frames and type(frames[-1].container) is dict and frames[-1].key is _NO_KEY:
            raise _invalid("has a mapping or list as a key; a key is text", self._place, event.start_mark)
        frames.append(_Frame(container, event.anchor, self._nodes - 1))

    def _close(self, frames: list[_Frame], event: Any) -> None:
        frame = frames.pop()
        for value in frame.merged:
            sources = value if isinstance(value, list) else [value]
            for source in sources:
                if not isinstance(source, dict):
                    raise _invalid("merges (<<) something that is no mapping", self._place, event.start_mark)
                frame.container.update({k: v for k, v in source.items() if k not in frame.container})
        if frame.anchor:
            self._anchors[frame.anchor] = (frame.container, self._nodes - frame.nodes_before)
        self._add_value(frames, frame.container)

    def _add_alias(self, frames: list[_Frame], event: Any) -> None:
        if event.anchor not in self._anchors:
            raise _invalid(f"*{event.anchor} names no anchor that ends before it", self._place, event.start_mark)
        value, nodes = self._anchors[event.anchor]
        self._nodes += nodes
        self._aliased_nodes += nodes
        if self._aliased_nodes > MAX_ALIASED_NODES:
            raise _invalid(
                f"means more than {MAX_ALIASED_NODES:,} nodes through its aliases; write out what is meant",
                self._place,
                event.start_mark,
            )
        if frames and type(frames[-1].container) is dict and frames[-1].key is _NO_KEY:
            if not isinstance(value, str):
                raise _invalid("has an alias as a key that is no text", self._place, event.start_mark)
            self._set_key(frames[-1], value, event)
        else:
            self._add_value(frames, value)

    def _set_key(self, frame: _Frame, key: Any, event: Any) -> None:
        if key in frame.container:
            raise _invalid(f"has the key {key!r} twice in one mapping", self._place, event.start_mark)
        frame.key = key

    def _add_value(self, frames: list[_Frame], value: Any) -> None:
        if not frames:
            self._root = value
            return
        frame = frames[-1]
        if type(frame.container) is list:
            frame.container.append(value)
        elif frame.key is _MERGE:
            frame.merged.append(value)
            frame.key = _NO_KEY
        else:
            frame.container[frame.key] = value
            frame.key = _NO_KEY


@lru_cache(maxsize=8192)
def _plain_scalar(text: str) -> Any:
    """What an unquoted scalar means by YAML 1.1's rules."""
    tag = _RULES.resolve(yaml.ScalarNode, text, (True, False))
    conversion = _CONVERSIONS.get(tag)
    if conversion is None:
        return text
    try:
        return conversion(yaml.ScalarNode(tag, text))
    except ValueError:
        # Looks like a number to YAML and is none ("0o", "-_"): text, as most parsers have it.
        return text


def _invalid(problem: str, place: str, mark: Any) -> InvalidInput:
    position = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
    return InvalidInput(problem + position, where=place)
