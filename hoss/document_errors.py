"""What is wrong in a document of ours, told in our words: where, what is there, and what belongs there.

Pydantic finds the problems. Its own sentences are about its own types, and it tells one for each type that a
field may have. The words here come from the annotations of the document's model, so a new field has them by
itself. `description` of a field says what its pattern means."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import time
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from hoss.errors import did_you_mean, quoted

_MOST_PROBLEMS = 10  # of an error
_MOST_NAMES = 12  # of fields that are listed
_KEY = "[key]"  # how pydantic ends the place of a mapping's key
_PLAIN = {bool: "true or false", dict: "a mapping", Path: "a path", time: "a time of the day such as '22:00'"}


def describe_validation(error: ValidationError, model: type[BaseModel], *, most: int = _MOST_PROBLEMS) -> str:
    """Each problem, or the first `most`, with the field's path, the value, and what belongs there. Several
    have a line each."""
    lines = [problem.sentence() for problem in _causes(error, model)]
    shown = lines[:most]
    if len(lines) == 1 or most == 1:
        return lines[0]
    more = [f"and {len(lines) - len(shown):,} more"] if len(lines) > len(shown) else []
    return "\n  ".join((f"{len(lines):,} problems:", *shown, *more))


def truth_for_number(fields: object, model: type[BaseModel]) -> str:
    """The first place of a document with a truth value where a number belongs; "" without one. YAML reads
    `yes` and `on` as true, and pydantic reads true as 1."""
    return _truth_for_number(fields, _Place(model), "")


def _truth_for_number(value: object, place: "_Place", path: str) -> str:
    if isinstance(value, bool):
        wrong = place.counts()
        return f"{path}: is {_written(value)}, where {place.words()} belongs" if wrong else ""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, inner in items:
        below = place.inner(part) if isinstance(inner, (bool, dict, list)) else None
        if below is not None and (problem := _truth_for_number(inner, below, _path(path, part))):
            return problem
    return ""


def _path(outer: str, part: object) -> str:
    """The path of a field, an item or a value below another one."""
    if isinstance(part, str) and part.replace("-", "_").isidentifier():
        return f"{outer}.{part}" if outer else part
    return f"{outer}[{part}]"


def describe_value(error: ValidationError, annotation: Any, limits: Sequence[Any] = ()) -> str:
    """What is wrong with a value that is not part of a document: one of that type, with limits of
    annotated_types."""
    details = error.errors(include_url=False)[0]
    place = _Place(annotation, limits)
    of_list = details["loc"] and isinstance(details["loc"][0], int)
    inner = (place.inner(0) or place) if of_list else place
    return _Problem("", details["type"], details.get("input"), None, inner, of_alternative=False).told()


@dataclass(frozen=True, slots=True)
class _Problem:
    """One of pydantic's problems, at its place in the model."""

    path: str
    kind: str  # pydantic's name of it
    given: Any
    cause: Any  # the exception of a check of ours
    place: "_Place"  # for what is no field: the section that it was written in
    of_alternative: bool  # about one of several types that the field may have

    def sentence(self) -> str:
        """The path, and what is wrong there."""
        return f"{self.path}: {self.told()}" if self.path else self.told()

    def told(self) -> str:
        """What is wrong, without the path."""
        if self.kind == "missing":
            return f"is missing; {self.place.words()} belongs there"
        if self.kind == "extra_forbidden":
            names = self.place.fields
            written = self.path.rpartition(".")[2]
            return f"is no field here{did_you_mean(written, names) or f'; there are {_listed(names)}'}"
        if self.kind == "json_invalid":
            return f"is no JSON: {self.cause}"
        if self.kind == "value_error" and self.cause is not None:
            text, shown = str(self.cause), quoted(self.given)
            whole = isinstance(self.given, (dict, list, tuple, BaseModel)) or shown in text
            return text if whole else f"{text} (given: {shown})"
        text = f"is {_written(self.given)}, where {self.place.words()} belongs"
        if self.kind == "string_type" and isinstance(self.given, (int, float)):
            return f"{text}; put it in quotes"
        return text + (did_you_mean(self.given, self.place.names) if isinstance(self.given, str) else "")


def _causes(error: ValidationError, model: type[BaseModel]) -> list[_Problem]:
    """One problem for each place. Pydantic has one for each type that a field may have, and calls a list
    whose only item is wrong empty as well."""
    found = [_located(details, model) for details in error.errors(include_url=False)]
    causes: dict[str, _Problem] = {}
    for problem in found:
        vague = problem.of_alternative or problem.kind == "too_short"
        if vague and any(other.path.startswith((f"{problem.path}.", f"{problem.path}[")) for other in found):
            continue
        causes.setdefault(problem.path, problem)
    return list(causes.values())


def _located(details: Any, model: type[BaseModel]) -> _Problem:
    place, path, of_alternative = _Place(model), "", False
    for part in details["loc"]:
        if part == _KEY:
            place = _Place(str)
        elif (inner := place.inner(part)) is not None:
            place, path, of_alternative = inner, _path(path, part), False
        elif details["type"] == "extra_forbidden" and part == details["loc"][-1]:
            path = f"{path}.{part}" if path else str(part)
        else:  # pydantic's name of one of the types that the field may have
            of_alternative = True
    cause = details.get("ctx", {}).get("error")
    return _Problem(path, details["type"], details.get("input"), cause, place, of_alternative)


class _Place:
    """A place of a document, by the annotation and the limits of the field."""

    def __init__(self, annotation: Any, limits: Sequence[Any] = ()) -> None:
        while get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            limits = (*limits, *more)
        self.annotation, self.limits = annotation, tuple(limits)
        self.origin, self.arguments = get_origin(annotation), get_args(annotation)

    def inner(self, part: Any) -> "_Place | None":
        """What is below it at a name or a number; None: nothing has that."""
        for one in self.alternatives():
            if one.model is not None:
                if (field := one.model_fields().get(part)) is not None:
                    return _Place(field.annotation, (field, *field.metadata))
            elif one.origin is dict:
                return _Place(one.arguments[1])
            elif one.origin in (tuple, list) and isinstance(part, int):
                return _Place(one.arguments[0])
        return None

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of a section's fields."""
        return tuple(name for one in self.alternatives() for name in one.model_fields())

    @property
    def names(self) -> tuple[str, ...]:
        """The texts that belong there, where these are a few."""
        return tuple(name for one in self.alternatives() for name in one.own_names())

    def counts(self) -> bool:
        """Whether numbers belong there, and no truth value."""
        types = {one.annotation for one in self.alternatives()}
        return bool(types & {int, float}) and bool not in types

    def words(self) -> str:
        """What belongs there."""
        return " or ".join(one.own_words() for one in self.alternatives())

    def alternatives(self) -> "Iterator[_Place]":
        """The types that it may have. None is left out: such a field can be."""
        if self.origin not in (Union, UnionType):
            yield self
            return
        for argument in self.arguments:
            if argument is not NoneType:
                yield from _Place(argument, self.limits).alternatives()

    @property
    def model(self) -> type[BaseModel] | None:
        of_class = isinstance(self.annotation, type)
        return self.annotation if of_class and issubclass(self.annotation, BaseModel) else None

    def model_fields(self) -> dict[str, FieldInfo]:
        fields = self.model.model_fields if self.model is not None else {}
        return {field.alias or name: field for name, field in fields.items()}

    def own_names(self) -> tuple[str, ...]:
        if self.origin is Literal:
            return tuple(map(str, self.arguments))
        if isinstance(self.annotation, type) and issubclass(self.annotation, Enum):
            return tuple(str(member.value) for member in self.annotation)
        return ()

    def own_words(self) -> str:
        if names := self.own_names():
            *others, last = names
            return f"{', '.join(others)} or {last}" if others else last
        if self.model is not None:
            return f"a mapping with {_listed(self.fields)}"
        if self.origin in (tuple, list):
            return f"a list{self._lengths('items')}"
        if self.annotation is str:
            return self._limit("description") or f"a text{self._lengths('characters')}"
        if self.annotation in (int, float):
            return ("a whole number" if self.annotation is int else "a number") + self._range()
        return _PLAIN.get(self.origin or self.annotation, "a value")

    def _limit(self, name: str) -> Any:
        """A limit of pydantic's, or of annotated_types, by its name."""
        limits = [
            inner
            for limit in self.limits
            for inner in ((limit, *limit.metadata) if isinstance(limit, FieldInfo) else (limit,))
        ]
        return next((value for limit in limits if (value := getattr(limit, name, None)) is not None), None)

    def _range(self) -> str:
        least, above = self._limit("ge"), self._limit("gt")
        most, below = self._limit("le"), self._limit("lt")
        if least is not None and most is not None:
            return f" from {_number(least)} to {_number(most)}"
        if isinstance(least, int) and isinstance(below, int) and self.annotation is int:
            return f" from {_number(least)} to {_number(below - 1)}"
        limits = (
            (" of at least {}", least),
            (" above {}", above),
            (" of at most {}", most),
            (" below {}", below),
        )
        return " and".join(words.format(_number(limit)) for words, limit in limits if limit is not None)

    def _lengths(self, of: str) -> str:
        least, most = self._limit("min_length"), self._limit("max_length")
        if most is not None:
            return f" of {least or 0} to {most:,} {of}"
        return f" of {least} {of if least > 1 else of[:-1]} or more" if least else ""


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def _written(value: object) -> str:
    """A value as its document has it."""
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    if isinstance(value, str) and not value:
        return "an empty text"
    if value is None:
        return "empty"
    return str(value).lower() if isinstance(value, bool) else quoted(value)


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMES
    return ", ".join((*names[:_MOST_NAMES], *([f"and {rest} more"] if rest > 0 else [])))
