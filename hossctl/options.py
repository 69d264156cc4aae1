"""Options that several commands have, said once."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput
from hoss.redis_url import PASSWORD_VARIABLE, parse_redis_url, without_password
from hossctl.console import Format
from hossctl.jsonpath import Template, read_template

if TYPE_CHECKING:
    from hossctl.platform import WorkerOptions

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
    typer.Option("--resolver", metavar="HOST:PORT", help="The resolver; else $HOSS_RESOLVER, else the local platform."),
]
Output = Annotated[Format, typer.Option("-o", "--output", help="How to print.")]
Namespace = Annotated[str, typer.Option("-n", "--namespace", help="The namespace to look in.")]
AllNamespaces = Annotated[bool, typer.Option("-A", "--all-namespaces", help="Look in every namespace.")]


def _checked_redis_url(url: str) -> str:
    """Services get a password by their environment, not by their arguments, which every user of the machine can read."""
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
        help="A Redis of yours instead of an embedded one: redis://, rediss://, redis+sentinel:// or redis+cluster://.",
        callback=_checked_redis_url,
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", help="For simulated nodes, loads and ties: the same seed, the same input.")
]
Repeat = Annotated[int, typer.Option(min=1, help="Runs, each on a fresh platform; figures are medians.")]


# Of commands that have a comparison, or draw.
JsonPath = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the document there.")]
CsvPath = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write a line for each run.")]
PlotsPath = Annotated[
    Path | None, typer.Option("--plots", metavar="DIRECTORY", help="Draw the plots into it, as PNG and SVG.")
]
HtmlPath = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a report that needs no other file.")
]
BaselinePath = Annotated[
    Path | None,
    typer.Option(
        "--baseline", metavar="FILE", help="An earlier document: say what got better or worse beyond the noise."
    ),
]
FailOnRegression = Annotated[
    bool,
    typer.Option(
        "--fail-on-regression", help="Exit 1 if anything got worse than in the baseline, 2 if it has no cell of these."
    ),
]

JSONPATH = "jsonpath="

# Of commands that print a template's text, too.
OutputOrTemplate = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        metavar="table|wide|json|yaml|name|jsonpath=TEMPLATE",
        help="How to print. A template: '{.items[*].name}', '{range .items[*]}{.name} {.node}{\"\\n\"}{end}'.",
    ),
]


def read_output(text: str) -> tuple[Format, Template | None]:
    """The format; with a template, JSON's, and it. Raises InvalidInput naming those that there are."""
    if text.startswith(JSONPATH):
        return Format.JSON, read_template(text.removeprefix(JSONPATH))
    try:
        return Format(text), None
    except ValueError as exc:
        names = ", ".join(choice.value for choice in Format)
        raise InvalidInput(f"{text!r} is no format; choose one of {names}, {JSONPATH}TEMPLATE", where="-o") from exc


def only(output: Format, *allowed: Format) -> Format:
    """The format, if the command has it. Raises InvalidInput naming those it has."""
    if output not in allowed:
        names = ", ".join(choice.value for choice in allowed)
        raise InvalidInput(f"{output.value!r} is not printed here; choose one of {names}", where="-o")
    return output


def read_counts(text: str, *, where: str, least: int = 1) -> list[int]:
    """`1,4` as numbers. InvalidInput for anything but whole numbers from `least` on."""
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
            raise InvalidInput(f"label {key!r} is given twice; a worker has one value for each key", where=where)
        labels[key] = value
    return tuple(sorted(labels.items()))


def read_workers(count: int, named: list[str]) -> "tuple[WorkerOptions, ...]":
    """`count` workers without labels, named w1 and on, and those given as `name:label=value,...`."""
    from hossctl.platform import WorkerOptions  # noqa: PLC0415 - for those who start workers

    workers = [WorkerOptions(f"w{number}") for number in range(1, count + 1)]
    for text in named:
        name, _, labels = text.partition(":")
        if not name:
            raise InvalidInput(f"{text!r} has no name; write name:label=value,label=value", where="--worker")
        workers.append(WorkerOptions(name, read_labels(labels, where=f"--worker {name}")))
    names = [worker.name for worker in workers]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInput(f"name {repeated[0]!r} is given twice; workers need names of their own", where="--worker")
    if not workers:
        raise InvalidInput("no worker; give --workers 1 or more, or --worker NAME", where="--workers")
    return tuple(workers)
