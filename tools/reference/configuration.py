"""docs/reference/configuration.md: documents, flags, environment, annotations and exit codes, from the code
that reads them.

A field's meaning is the comment above it in its class: the same words for who reads the code and who
configures."""

import argparse
import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from dispatcher.config import KIND as DISPATCHER
from dispatcher.config import DispatcherConfig
from dispatcher.flags import parser as dispatcher_flags
from dispatcher.policy.documents import KIND as POLICY
from dispatcher.policy.documents import PolicyDocument
from hoss.config import API_VERSION
from hoss.security.users import KIND as AUTHENTICATION
from hoss.security.users import AuthenticationConfig
from hossctl import cli
from hossctl.load.nodes import POOLS_KIND as NODES
from hossctl.load.nodes import SimulatedNodes
from hossctl.local.pools import PLATFORM_KIND, PlatformDocument
from hossctl.rebalance.policy import KIND as REBALANCE_POLICY
from hossctl.rebalance.policy import RebalancePolicy
from resolver.__main__ import _parser as resolver_flags
from resolver.config import KIND as RESOLVER
from resolver.config import ResolverConfig
from scheduler_worker.__main__ import _parser as worker_flags
from scheduler_worker.config import KIND as WORKER
from scheduler_worker.config import WorkerConfig
from tools.reference import GENERATED, cell, rows
from tools.reference.names import ANNOTATIONS, VARIABLES

_LIMITS = {
    "minimum": "{} or more",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
}
_SCALARS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true, false",
    "time": "HH:MM",
    "null": "",
}

_INTRODUCTION = (
    f"Documents are YAML with `apiVersion: {API_VERSION}` and a `kind`. Each is checked whole before "
    "anything starts: an unknown field, or a "
    "value out of range, is an error that names the field's path, the value and what would be right."
)
_OF_SERVICES = (
    "A service ends with 0 after SIGTERM, and with 1 and one sentence on standard error when it cannot start."
)


def page() -> str:
    return (
        "\n\n".join(
            [
                "# Configuration",
                GENERATED,
                _INTRODUCTION,
                *_service("dispatcher", DISPATCHER, DispatcherConfig, dispatcher_flags()),
                *_service("scheduler_worker", WORKER, WorkerConfig, worker_flags()),
                *_service("resolver", RESOLVER, ResolverConfig, resolver_flags()),
                *_document(
                    AUTHENTICATION,
                    AuthenticationConfig,
                    "For `--authentication FILE` of dispatchers and resolvers.",
                ),
                *_document(POLICY, PolicyDocument, "How it is used: [policy.md](../operations/policy.md)."),
                *_document(NODES, SimulatedNodes, "For `hoss up --nodes-file` and `hoss nodes add -f`."),
                *_document(
                    PLATFORM_KIND,
                    PlatformDocument,
                    "For `hoss up --config` and `hoss apply -f`: [workers and"
                    " pools](../operations/workers.md).",
                ),
                *_document(
                    REBALANCE_POLICY,
                    RebalancePolicy,
                    "For `hoss up --rebalance` and `hoss rebalance controller -f`: "
                    "[fragmentation](../operations/fragmentation.md#always-on).",
                ),
                "## Environment",
                rows(
                    ("variable", "read by", "meaning"),
                    ((f"`{v.name}`", v.reader, v.meaning) for v in VARIABLES),
                ),
                "## Annotations and labels",
                rows(("name", "of", "meaning"), ((f"`{a.name}`", a.owner, a.meaning) for a in ANNOTATIONS)),
                "## Exit codes",
                f"Of `hoss`: {(cli.app.info.epilog or '').removeprefix('Exit codes: ')} {_OF_SERVICES}",
            ]
        )
        + "\n"
    )


def _service(
    module: str, kind: str, model: type[BaseModel], parser: argparse.ArgumentParser
) -> Iterator[str]:
    yield from _document(kind, model, f"For `python -m {module} --config FILE`.")
    yield f"### Flags of {module}"
    actions = parser._actions  # noqa: SLF001 - argparse has no other way to list them
    yield rows(
        ("flag", "takes", "meaning"), [_flag(action, model) for action in actions if action.dest != "help"]
    )


def _flag(action: argparse.Action, model: type[BaseModel]) -> tuple[str, str, str]:
    takes = (
        "flag" if action.nargs == 0 else ", ".join(f"`{c}`" for c in action.choices) if action.choices else ""
    )
    takes = takes or f"`{action.metavar or action.dest.upper()}`"
    field = f"`{action.dest}`" if action.dest in model.model_fields else ""
    return f"`{action.option_strings[0]}`", takes, cell(action.help or f"the field {field}")


def _document(kind: str, model: type[BaseModel], use: str) -> Iterator[str]:
    schema = model.model_json_schema()
    sections = {name: found for name, found in _models(model).items() if found is not model}
    types = _Types(
        kind, schema.get("$defs", {}), {section.__name__: name for name, section in sections.items()}
    )
    yield f"## {kind}"
    yield use
    yield _fields(model, schema, types)
    for name, section in sections.items():
        yield f"### {kind}: {name}"
        yield cell(inspect.getdoc(section) or "")
        yield _fields(section, schema["$defs"][section.__name__], types)


def _models(model: type[BaseModel], prefix: str = "") -> dict[str, type[BaseModel]]:
    """Every section of a document by the path of the first field that holds it, in the order of the
    fields."""
    found: dict[str, type[BaseModel]] = {prefix: model}
    for name, field in model.model_fields.items():
        for part in _parts(field.annotation):
            path = f"{prefix}.{name}" if prefix else name
            found |= {p: m for p, m in _models(part, path).items() if m not in found.values()}
    return found


def _parts(annotation: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _parts(argument)


def _fields(model: type[BaseModel], schema: Mapping[str, Any], types: "_Types") -> str:
    meanings = meanings_of(model)
    required = schema.get("required", ())
    lines = []
    for name, about in schema["properties"].items():
        default = "required" if name in required else _default(model, name)
        lines.append((f"`{name}`", cell(types.of(about)), default, cell(meanings[name])))
    return rows(("field", "type", "default", "meaning"), lines)


def _default(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    if field.default_factory in (dict, list):
        return "none"
    if field.default_factory is not None:
        return "made at the start"
    value = field.get_default()
    if isinstance(value, BaseModel):
        return "its fields'"
    if value is None or value in ((), ""):
        return "none" if value != "" else '`""`'
    value = getattr(value, "value", value)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{', '.join(map(str, value)) if isinstance(value, (tuple, list)) else value}`"


@dataclass(frozen=True, slots=True)
class _Types:
    """The types of one document as words, from its JSON Schema."""

    kind: str
    definitions: Mapping[str, Any]
    sections: Mapping[str, str]  # paths by the names of their classes

    def of(self, about: Mapping[str, Any]) -> str:
        """The type of a field."""
        if "$ref" in about:
            name = about["$ref"].rpartition("/")[2]
            return (
                self._section(self.sections[name])
                if name in self.sections
                else self.of(self.definitions[name])
            )
        if "anyOf" in about:
            return ", or ".join(filter(None, map(self.of, about["anyOf"])))
        if choices := about.get("enum", [about["const"]] if "const" in about else []):
            return ", ".join(f"`{choice}`" for choice in choices)
        if about.get("type") == "array":
            return f"list of {self.of(about['items'])}"
        if about.get("type") == "object":
            inner = about.get("additionalProperties")
            return f"mapping to {self.of(inner)}" if isinstance(inner, dict) else "mapping"
        form = about.get("format", "")
        words = "path" if form == "path" else _SCALARS[form if form == "time" else about["type"]]
        return ", ".join([words, *(text.format(about[key]) for key, text in _LIMITS.items() if key in about)])

    def _section(self, path: str) -> str:
        anchor = f"{self.kind}-{path}".lower().replace(".", "")
        return f"[{path}](#{anchor})"


def meanings_of(model: type[BaseModel]) -> dict[str, str]:
    """Of each field, the comment above it; fields that follow one another without a blank line share one."""
    meanings: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if issubclass(owner, BaseModel) and owner is not BaseModel:
            meanings |= _commented(textwrap.dedent(inspect.getsource(owner)))
    return meanings


def _commented(source: str) -> dict[str, str]:
    lines = [line.strip() for line in source.splitlines()]
    body: list[Any] = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    meanings: dict[str, str] = {}
    shared = ""
    for statement in body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        row = first = statement.lineno - 1
        while lines[first - 1].startswith("#"):
            first -= 1
        own = " ".join(line.lstrip("# ") for line in lines[first:row])
        shared = own or (shared if lines[row - 1] else "")
        meanings[statement.target.id] = shared
    return meanings
