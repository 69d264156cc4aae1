"""Configuration documents: YAML with an apiVersion and a kind, checked before anything starts."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from hoss.errors import ConfigError, InvalidInput

_GROUP = "hoss.dev/"
API_VERSION = f"{_GROUP}v1alpha1"


class Document(BaseModel):
    """Base of every configuration document and of the sections in one. Unknown fields are errors, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


DocumentT = TypeVar("DocumentT", bound=Document)


def load_document(path: Path, kind: str, model: type[DocumentT]) -> DocumentT:
    """Read and check the document at `path`. Raises ConfigError naming the file, the field's path and the value."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror or exc}", where=str(path)) from exc
    return parse_document(text, kind, model, where=str(path))


def parse_document(text: str, kind: str, model: type[DocumentT], *, where: str) -> DocumentT:
    """Check a document's text. `where` begins every error."""
    import yaml  # noqa: PLC0415 - a service that was given flags alone reads none

    try:
        raw = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except yaml.YAMLError as exc:
        raise ConfigError(f"is no valid YAML: {_one_line(exc)}", where=where) from exc
    if not isinstance(raw, dict):
        raise ConfigError(f"holds {type(raw).__name__}, not a mapping with apiVersion and kind", where=where)
    fields = dict(raw)
    for name, expected in (("apiVersion", API_VERSION), ("kind", kind)):
        given = fields.pop(name, None)
        if given != expected:
            raise ConfigError(_other_than(given, expected), where=f"{where}: {name}")
    if "metadata" not in model.model_fields:
        fields.pop("metadata", None)
    try:
        return model.model_validate(fields)
    except ValidationError as exc:
        raise ConfigError(describe_validation(exc), where=where) from exc


def _other_than(given: object, expected: str) -> str:
    if given is None:
        return f"is missing; write {expected}"
    text = f"is {given!r}; this release reads {expected!r}"
    if isinstance(given, str) and given.startswith(_GROUP) and expected.startswith(_GROUP):
        text += ": write that, and a field that has another name or meaning in it is named when you try again"
    return text


def describe_validation(error: ValidationError) -> str:
    """One line a problem: the field's path, what is wrong, and the value given."""
    problems = error.errors(include_url=False)
    # A list of one bad item counts as empty for pydantic; only the item is worth telling.
    causes = [p["loc"] for p in problems if p["type"] != "too_short"]
    lines = []
    for problem in problems:
        if problem["type"] == "too_short" and any(c[: len(problem["loc"])] == problem["loc"] for c in causes):
            continue
        path = ".".join(str(part) for part in problem["loc"]) or "document"
        given = problem.get("input")
        shown = "" if isinstance(given, (dict, list)) or problem["type"] == "missing" else f" (given: {given!r})"
        lines.append(f"{path}: {problem['msg']}{shown}")
    return "; ".join(lines)


def checked(check: Callable[[str, str], str], value: str) -> str:
    """Run one of the model's checks in a validator, where pydantic expects ValueError."""
    try:
        return check(value, "")
    except InvalidInput as exc:
        raise ValueError(exc.text) from exc


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split())
