"""Configuration documents: YAML with an apiVersion and a kind, checked before anything starts.

Flags override a document, and a document overrides the defaults. pydantic-settings is not used. It would take
25 to 35 ms of each start and give every field a flag. Its errors do not name the flag or the document."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from hoss.document_errors import describe_validation, truth_for_number
from hoss.errors import ConfigError, InvalidInput, quoted

_GROUP = "hoss.dev/"
API_VERSION = f"{_GROUP}v1alpha1"


class Document(BaseModel):
    """Base of configuration documents and their sections. Unknown fields are errors; values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# Of things that documents name, with what an error says about the pattern.
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
NAME_RULE = "a name of lower-case letters, digits, '-' and '.', with a letter or digit at both ends"

DocumentT = TypeVar("DocumentT", bound=Document)


def load_document(path: Path | None, kind: str, model: type[DocumentT]) -> DocumentT:
    """Read and check the document at `path`. Without a path: the defaults. Raises ConfigError with the file,
    the field's path and the value."""
    if path is None:
        return model()
    return parse_document(read_text(path), kind, model, where=str(path))


def read_text(path: Path) -> str:
    """A document's text. Raises ConfigError that names the file. A file that is too large is read no
    further than to where that is known."""
    from hoss.manifests import guarded  # noqa: PLC0415 - not needed without a document

    try:
        return guarded.read_text(path, most_bytes=guarded.MAX_DOCUMENT_BYTES)
    except InvalidInput as exc:
        raise ConfigError(exc.text, where=str(path)) from exc


def parse_document(text: str, kind: str, model: type[DocumentT], *, where: str) -> DocumentT:
    """Check a document's text. `where` begins every error."""
    fields = dict(read_object(text, where))
    for name, expected in (("apiVersion", API_VERSION), ("kind", kind)):
        given = fields.pop(name, None)
        if given != expected:
            raise ConfigError(_mismatch(given, expected), where=f"{where}: {name}" if where else name)
    if "metadata" not in model.model_fields:
        fields.pop("metadata", None)
    if problem := truth_for_number(fields, model):
        raise ConfigError(problem, where=where)
    try:
        return model.model_validate(fields)
    except ValidationError as exc:
        raise ConfigError(describe_validation(exc, model), where=where) from exc


def read_object(text: str, where: str) -> dict[str, Any]:
    """The one mapping that a YAML text holds, of any kind. Raises ConfigError that begins with `where`."""
    from hoss.manifests import guarded  # noqa: PLC0415 - not needed without a document

    try:
        text = guarded.decoded(text, where, most_bytes=guarded.MAX_DOCUMENT_BYTES)
        most_nodes = guarded.MAX_DOCUMENT_NODES
        documents = [value for _, value in guarded.yaml_documents(text, where, most_nodes=most_nodes)]
    except InvalidInput as exc:
        raise ConfigError(exc.text, where=where) from exc
    if len(documents) > 1:
        raise ConfigError(f"holds {len(documents)} documents; give one", where=where)
    raw = documents[0] if documents else None
    if raw is None:
        raise ConfigError("is empty; write a mapping with apiVersion and kind", where=where)
    if not isinstance(raw, dict):
        found = "a list" if isinstance(raw, list) else quoted(raw)
        raise ConfigError(f"holds {found}, not a mapping with apiVersion and kind", where=where)
    return raw


def with_flags(document: DocumentT, flags: Mapping[str, Any]) -> DocumentT:
    """The document, overridden by flags. The value None is a flag that is not given."""
    given = {field: value for field, value in flags.items() if value is not None}
    try:
        return type(document).model_validate({**document.model_dump(), **given})
    except ValidationError as exc:
        raise ConfigError(describe_validation(exc, type(document)), where="flags") from exc


def _mismatch(given: object, expected: str) -> str:
    if given is None:
        return f"is missing; write {expected}"
    text = f"is {quoted(given)}; this release reads {expected!r}"
    if isinstance(given, str) and given.startswith(_GROUP) and expected.startswith(_GROUP):
        text += ": write that; fields with another name or meaning there are reported next"
    return text


def checked(check: Callable[[str, str], str], value: str) -> str:
    """Run a check of hoss.manifests.fields in a validator of pydantic, which expects ValueError."""
    try:
        return check(value, "")
    except InvalidInput as exc:
        raise ValueError(exc.text) from exc
