"""docs/reference/grpc.md: services, methods, messages and fields with their comments, as protoc reads them
from proto/."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf import descriptor_pb2 as pb

from hoss.errors import ConfigError
from tools.reference import GENERATED, cell, rows

_FIELD = pb.FieldDescriptorProto
_SCALARS = {number: name.removeprefix("TYPE_").lower() for name, number in _FIELD.Type.items()}
# Numbers of fields in descriptor.proto, of which paths to comments are made.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED, _METHODS, _VALUES = 2, 3, 2, 2

_INTRODUCTION = (
    "Every server also has `grpc.health.v1`, and reflection where it was started with `--reflection`. Errors"
    " are gRPC's status codes, with a sentence that names the field and what would be right. Fields are only"
    " ever added; a field that a message does not name has its type's zero."
)

Place = tuple[int, ...]


class _Comments:
    """The comments of one file, by the path of their subject."""

    def __init__(self, file: pb.FileDescriptorProto) -> None:
        self._by_path = {tuple(place.path): place for place in file.source_code_info.location}

    def of(self, *path: int) -> str:
        """The leading and trailing comments as one text; empty where there are none."""
        place = self._by_path.get(path)
        if place is None:
            return ""
        found = (place.leading_comments, place.trailing_comments)
        return "\n".join(
            "\n".join(line.strip() for line in text.splitlines()).strip() for text in found if text
        ).strip()

    def of_file(self) -> str:
        """The comment at the top of the file, above `syntax`."""
        place = self._by_path.get((12,))
        return "" if place is None else "\n".join(line[1:] for line in place.leading_comments.splitlines())


def descriptors(directory: Path) -> list[pb.FileDescriptorProto]:
    """HOSS's files under `directory`, with their comments. Raises ConfigError where protoc is missing or
    rejects them."""
    try:
        from grpc_tools import protoc  # noqa: PLC0415 - of the development extra
    except ImportError as exc:
        raise ConfigError(
            "is missing; install HOSS with its extra: pip install -e '.[dev]'", where="grpcio-tools"
        ) from exc
    files = sorted(directory.glob("hoss/v1/*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "set.pb"
        code = protoc.main(
            [
                "protoc",
                f"-I{directory}",
                "--include_source_info",
                f"--descriptor_set_out={out}",
                *map(str, files),
            ]
        )
        if code:
            raise ConfigError("protoc refuses these files", where=str(directory))
        return list(pb.FileDescriptorSet.FromString(out.read_bytes()).file)


def page(directory: Path) -> str:
    files = descriptors(directory)
    parts = [
        "# gRPC",
        GENERATED,
        _INTRODUCTION,
        *(_services(file) for file in files if file.service),
        *(_file(file) for file in files),
    ]
    return "\n\n".join(parts) + "\n"


def undescribed(files: Sequence[pb.FileDescriptorProto]) -> list[str]:
    """Services and methods without a comment."""
    missing = []
    for file in files:
        comments = _Comments(file)
        for i, service in enumerate(file.service):
            paths: list[tuple[str, Place]] = [(service.name, (_SERVICES, i))]
            paths += [
                (f"{service.name}.{m.name}", (_SERVICES, i, _METHODS, k))
                for k, m in enumerate(service.method)
            ]
            missing += [name for name, path in paths if not comments.of(*path)]
    return missing


def _services(file: pb.FileDescriptorProto) -> str:
    comments, parts = _Comments(file), []
    for i, service in enumerate(file.service):
        parts += [f"## {file.package}.{service.name}", comments.of(_SERVICES, i)]
        lines = []
        for k, method in enumerate(service.method):
            asks = f"{'stream ' if method.client_streaming else ''}{_link(method.input_type)}"
            answers = f"{'stream ' if method.server_streaming else ''}{_link(method.output_type)}"
            lines.append((f"`{method.name}`", asks, answers, cell(comments.of(_SERVICES, i, _METHODS, k))))
        parts.append(rows(("method", "request", "reply", "meaning and errors"), lines))
    return "\n\n".join(parts)


def _file(file: pb.FileDescriptorProto) -> str:
    comments = _Comments(file)
    parts = [f"## {file.name}", comments.of_file()]
    for i, message in enumerate(file.message_type):
        parts += _message(message, comments, (_MESSAGES, i), message.name)
    for i, enum in enumerate(file.enum_type):
        parts += _enum(enum, comments, (_ENUMS, i))
    return "\n\n".join(part for part in parts if part)


def _message(message: pb.DescriptorProto, comments: _Comments, path: Place, name: str) -> Iterator[str]:
    yield f"### {name}"
    yield comments.of(*path)
    if not message.field:
        yield "No fields."
    else:
        lines = []
        for k, field in enumerate(message.field):
            text = comments.of(*path, _FIELDS, k)
            lines.append((str(field.number), f"`{field.name}`", _type(field, message), cell(text)))
        yield rows(("no.", "field", "type", "meaning"), lines)
    for k, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from _message(nested, comments, (*path, _NESTED, k), f"{name}.{nested.name}")


def _enum(enum: pb.EnumDescriptorProto, comments: _Comments, path: Place) -> Iterator[str]:
    yield f"### {enum.name}"
    yield comments.of(*path)
    lines = [
        (str(v.number), f"`{v.name}`", cell(comments.of(*path, _VALUES, k))) for k, v in enumerate(enum.value)
    ]
    yield rows(("no.", "value", "meaning"), lines)


def _type(field: pb.FieldDescriptorProto, message: pb.DescriptorProto) -> str:
    for nested in message.nested_type:
        if nested.options.map_entry and field.type_name.endswith(f".{message.name}.{nested.name}"):
            key, value = nested.field
            return f"map of {_kind(key)} to {_kind(value)}"
    words = _kind(field)
    if field.label == _FIELD.LABEL_REPEATED:
        return f"repeated {words}"
    if field.proto3_optional:
        return f"optional {words}"
    return (
        f"{words}, one of `{message.oneof_decl[field.oneof_index].name}`"
        if field.HasField("oneof_index")
        else words
    )


def _kind(field: pb.FieldDescriptorProto) -> str:
    return _link(field.type_name) if field.type_name else _SCALARS[field.type]


def _link(type_name: str) -> str:
    name = type_name.removeprefix(".hoss.v1.")
    return f"[{name}](#{name.lower().replace('.', '')})"
