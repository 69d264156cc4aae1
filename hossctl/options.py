"""Options and arguments that several commands share: their declaration, what Tab offers for them, and how
their text is read, manifests of -f included.

Help and Tab import this module, so it imports nothing that talks to a platform."""

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import HossError, InvalidInput, quoted
from hoss.redis.url import PASSWORD_VARIABLE, parse_redis_url, without_password
from hossctl.console import Format
from hossctl.endpoints import Endpoints
from hossctl.jsonpath import Template, read_template
from hossctl.kinds import ALL, Kind, Query, read_kind

if TYPE_CHECKING:
    from hoss.manifests.documents import Manifest
    from hossctl.local.platform_state import WorkerOptions

_TAB_SECONDS = 1.0  # the user who pressed Tab waits
_MOST_COMPLETIONS = 200  # nobody reads more
MAX_SIMULATED_NODES = 1_000_000  # they are made in memory before the first is registered
MAX_PROCESSES = 1_000  # of one kind that one machine is asked to start
_UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


def complete_kinds(*allowed: Kind) -> Callable[[str], list[str]]:
    """A completion of KIND: of those allowed, or of all."""
    return lambda incomplete: [
        kind.value for kind in allowed or tuple(Kind) if kind.value.startswith(incomplete)
    ]


def complete_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """A completion of NAME by the objects of the kind before it: none where no platform answers in time."""
    return _complete(ctx, ctx.params.get("kind") or "", incomplete)


def complete_names_of(kind: Kind) -> Callable[[typer.Context, str], list[str]]:
    """A completion of NAME where a command is about one kind."""
    return lambda ctx, incomplete: _complete(ctx, kind.value, incomplete)


def complete_objects(*allowed: Kind) -> Callable[[typer.Context, str], list[str]]:
    """A completion of KIND/NAME, of these kinds: of the kind, and of the name once it can be no other
    kind."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        given, slash, name = incomplete.partition("/")
        if not slash:
            begun = [kind.singular for kind in allowed if kind.singular.startswith(given)]
            if len(begun) != 1:
                return [f"{kind}/" for kind in begun]
            given = begun[0]
        return [f"{given}/{known}" for known in _complete(ctx, given, name, allowed)]

    return complete


def complete_words(*words: str) -> Callable[[str], list[str]]:
    """A completion of one of these words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def complete_lists(*words: str) -> Callable[[str], list[str]]:
    """A completion of `word,word,...`: of the last word, by those that are not in the list yet."""

    def complete(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",")
        taken = before.split(",")
        return [f"{before}{comma}{word}" for word in words if word.startswith(begun) and word not in taken]

    return complete


def _complete(
    ctx: typer.Context, kind_given: str, incomplete: str, allowed: Collection[Kind] = tuple(Kind)
) -> list[str]:
    given = ctx.params
    try:
        kind = read_kind(kind_given)
        if kind not in allowed:
            return []
        query = Query(kind, (), ALL if given.get("all_namespaces") else given.get("namespace") or "default")
        endpoints = Endpoints(given.get("dispatcher") or "", given.get("resolver") or "")
        endpoints.check(kind)
        known = _names_of(endpoints, query)
    except HossError:
        return []
    taken = set(given.get("names") or ())
    return [name for name in known if name.startswith(incomplete) and name not in taken][:_MOST_COMPLETIONS]


def _names_of(endpoints: Endpoints, query: Query) -> list[str]:
    import asyncio  # noqa: PLC0415 - only where there is a platform

    from hossctl.views.listing import fetch  # noqa: PLC0415

    try:
        documents = asyncio.run(asyncio.wait_for(fetch(endpoints, query), _TAB_SECONDS))
    except asyncio.TimeoutError:
        return []
    return [str(document["name"]) for document in documents if "name" in document]


Names = Annotated[list[str], typer.Argument(metavar="NAME...", autocompletion=complete_names)]
OptionalNames = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", autocompletion=complete_names)
]
Dispatcher = Annotated[
    str,
    typer.Option(
        "--dispatcher",
        metavar="HOST:PORT,...",
        help="The dispatcher, or all of several; else $HOSS_DISPATCHER, else the local platform.",
    ),
]
Resolver = Annotated[
    str,
    typer.Option(
        "--resolver", metavar="HOST:PORT", help="The resolver; else $HOSS_RESOLVER, else the local platform."
    ),
]


def only(output: Format, *more: Format) -> Format:
    """The format, if it is a table, JSON, YAML or one of `more`. Raises InvalidInput naming the allowed
    ones."""
    allowed = [choice for choice in Format if choice in (Format.TABLE, Format.JSON, Format.YAML, *more)]
    if output not in allowed:
        names = ", ".join(choice.value for choice in allowed)
        raise InvalidInput(f"{output.value!r} is not printed here; choose one of {names}", where="-o")
    return output


def _checked_format(output: Format) -> Format:
    return only(output)


Output = Annotated[Format, typer.Option("-o", "--output", help="How to print.", callback=_checked_format)]
Namespace = Annotated[str, typer.Option("-n", "--namespace", help="The namespace to look in.")]
AllNamespaces = Annotated[bool, typer.Option("-A", "--all-namespaces", help="Look in every namespace.")]


def _checked_redis_url(url: str) -> str:
    """The URL without its password, which services get by the environment: every user can read arguments."""
    if not url:
        return url
    parse_redis_url(url)
    url, password = without_password(url)
    if password:
        os.environ[PASSWORD_VARIABLE] = password
    return url


RedisUrl = Annotated[
    str,
    typer.Option(
        "--redis-url",
        metavar="URL",
        help="A Redis of yours instead of an embedded one: redis://, rediss://, redis+sentinel:// or "
        "redis+cluster://.",
        callback=_checked_redis_url,
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", help="For simulated nodes, loads and ties: the same seed, the same input.")
]
Repeat = Annotated[int, typer.Option(min=1, help="Runs, each on a fresh platform; figures are medians.")]

# Of commands that compare or draw.
JsonPath = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the document there.")]
CsvPath = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write a line for each run.")]
ParquetPath = Annotated[
    Path | None,
    typer.Option("--parquet", metavar="FILE", help="The same as columns with types, for notebooks."),
]
PlotsPath = Annotated[
    Path | None, typer.Option("--plots", metavar="DIRECTORY", help="Draw the plots into it, as PNG and SVG.")
]
HtmlPath = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a report that needs no other file.")
]
AgainstPath = Annotated[
    Path | None,
    typer.Option(
        "--against",
        metavar="FILE",
        help="An earlier document: report what got better or worse beyond the noise.",
    ),
]
# The name of --against in 0.1 and 0.2.
BaselinePath = Annotated[Path | None, typer.Option("--baseline", hidden=True)]
FailOnRegression = Annotated[
    bool,
    typer.Option(
        "--fail-on-regression",
        help="Exit 1 if anything got worse than --against FILE, 2 if that has no cell of these.",
    ),
]

JSONPATH = "jsonpath="

# Of commands that also print by a template.
OutputOrTemplate = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        metavar="table|wide|json|yaml|name|jsonpath=TEMPLATE",
        help="How to print. A template: '{.items[*].name}', "
        "'{range .items[*]}{.name} {.node}{\"\\n\"}{end}'.",
        autocompletion=complete_words(*(choice.value for choice in Format)),
    ),
]


def read_output(text: str) -> tuple[Format, Template | None]:
    """The format and, for jsonpath=TEMPLATE, the template. Raises InvalidInput naming the formats."""
    if text.startswith(JSONPATH):
        return Format.JSON, read_template(text.removeprefix(JSONPATH))
    try:
        return Format(text), None
    except ValueError as exc:
        names = ", ".join(choice.value for choice in Format)
        raise InvalidInput(
            f"{text!r} is no format; choose one of {names}, {JSONPATH}TEMPLATE", where="-o"
        ) from exc


def read_duration(text: str, *, where: str) -> float:
    """`90`, `15m`, `6h` or `2d` as seconds. Raises InvalidInput."""
    found = _DURATION.fullmatch(text)
    if not found:
        raise InvalidInput(f"{text!r} is no time; write seconds, or 15m, 6h, 2d", where=where)
    return float(found[1]) * _UNIT_SECONDS[found[2]]


def read_counts(text: str, *, where: str, least: int = 1) -> list[int]:
    """`1,4` as numbers. Raises InvalidInput for anything but whole numbers from `least` on."""
    counts = [int(part) if part.isdecimal() else -1 for part in text.split(",")]
    if min(counts) < least:
        raise InvalidInput(f"{text!r} is no list of whole numbers, {least} or more", where=where)
    return counts


def read_labels(text: str, *, where: str) -> tuple[tuple[str, str], ...]:
    """`k=v,k2=v2` as sorted pairs. Raises InvalidInput for a missing "=" or a key given twice."""
    labels: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise InvalidInput(f"{part!r} is no label; write key=value", where=where)
        if key in labels:
            raise InvalidInput(
                f"label {key!r} is given twice; a worker has one value for each key", where=where
            )
        labels[key] = value
    return tuple(sorted(labels.items()))


def read_workers(count: int, named: list[str], *, where: str = "--worker") -> "tuple[WorkerOptions, ...]":
    """`count` workers w1, w2, ... without labels, and those named as `name:label=value,...`. `where`: what
    the names are given with."""
    from hoss.config import NAME_PATTERN, NAME_RULE  # noqa: PLC0415 - only commands that start workers
    from hossctl.local.platform_state import WorkerOptions  # noqa: PLC0415

    workers = [WorkerOptions(f"w{number}") for number in range(1, count + 1)]
    for text in named:
        name, _, labels = text.partition(":")
        if not name:
            raise InvalidInput(f"{text!r} has no name; write name:label=value,label=value", where=where)
        if not re.fullmatch(NAME_PATTERN, name):
            raise InvalidInput(f"{quoted(name)} is no name of a worker; write {NAME_RULE}", where=where)
        workers.append(WorkerOptions(name, read_labels(labels, where=f"{where} {name}")))
    names = Counter(worker.name for worker in workers)
    if repeated := [name for name, times in names.items() if times > 1]:
        raise InvalidInput(
            f"name {min(repeated)!r} is given twice; workers need names of their own", where=where
        )
    if not workers:
        raise InvalidInput("no worker; give --workers 1 or more, or --worker NAME", where="--workers")
    return tuple(workers)


def read_input(name: str) -> "Manifest":
    """The manifest of a file, or of standard input for "-". Raises InvalidInput naming the file."""
    from hoss.manifests.documents import read_manifest  # noqa: PLC0415 - few commands

    where, data = read_manifest_bytes(name)
    return read_manifest(data, where=where)


def read_manifest_bytes(name: str) -> tuple[str, bytes]:
    """What errors call a file, or standard input for "-", and its content. Raises InvalidInput with the
    file's name."""
    from hoss.manifests.guarded import read_bytes  # noqa: PLC0415 - few commands

    where = "stdin" if name == "-" else name
    if not name:
        raise InvalidInput("names no file", where="-f")
    return where, read_bytes(sys.stdin.buffer if name == "-" else Path(name), where)
