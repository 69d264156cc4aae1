"""plugin new, plugin check: plugins, algorithms and schedulers of others, to begin with and before they
run."""

import time
from pathlib import Path
from typing import Annotated

import typer

from hossctl.cli import EXIT_FAILED
from hossctl.console import Document, Format, announced, complain, print_document, print_summary, say, warn
from hossctl.options import Output, RedisUrl, Seed, only

app = typer.Typer()
group = typer.Typer(
    no_args_is_help=True, help="Begin and check plugins, algorithms and schedulers of your own."
)
app.add_typer(group, name="plugin")


@group.command("new")
def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="plugin, pre-bind, algorithm or scheduler.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="As green-energy; the class is GreenEnergy.")],
) -> None:
    """Write a file to begin with, NAME.py, into this directory. A file that is there is left as it is."""
    from hoss.errors import InvalidInput
    from hossctl.checking.templates import written_template

    file, text = written_template(kind, name)
    try:
        with Path(file).open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError as exc:
        raise InvalidInput("is there already; choose another name", where=file) from exc
    say(f"wrote {file}; check it with: hoss plugin check {file}")


@group.command("check")
def check(
    *,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="FILE.py, FILE.py:Class, module:Class, or the name of an entry point."
        ),
    ],
    args: Annotated[str, typer.Option(metavar="JSON", help="Arguments of a plugin, as in a profile.")] = "{}",
    count: Annotated[int, typer.Option(min=10, max=10_000, help="Nodes of a generated cluster.")] = 200,
    file: Annotated[
        Path | None,
        typer.Option(
            "-f", "--file", help="Nodes with labels of your own; manifests or a SimulatedNodes document."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long a call may take.")
    ] = 10.0,
    seed: Seed = 1,
    output: Output = Format.TABLE,
) -> None:
    """Import a plugin, an algorithm or the class of a scheduler, ask it about generated clusters, and say
    what is wrong with its answers. Exit 1 if anything is."""
    from hoss.model.placing import places_cards
    from hossctl.checking.algorithms import check_algorithm
    from hossctl.checking.clusters import generated_batches, generated_clusters
    from hossctl.checking.plugins import check_plugin
    from hossctl.checking.questions import Questions, in_time
    from hossctl.checking.targets import PLUGIN, load_target
    from hossctl.load.nodes import read_nodes_file

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    arguments = _arguments(args)
    given = [] if file is None else read_nodes_file(file)
    call = in_time(timeout)
    found = load_target(target, call)
    questions = Questions(call, time.perf_counter)
    methods = ["place"]
    with announced(f"checking {found.name}"):
        if found.kind == PLUGIN:
            clusters = generated_clusters(count, seed=seed, given=given)
            methods = check_plugin(found.name, found.make, arguments, clusters, questions)
        else:
            batches = generated_batches(count, seed=seed, given=given, cards=places_cards(found.make))
            check_algorithm(found.make, batches, questions)
    document: Document = {
        "name": found.name,
        "kind": found.kind,
        "methods": methods,
        "calls": questions.asked,
        "nodes": count,
        "milliseconds": {method: round(seconds * 1000, 3) for method, seconds in questions.seconds.items()},
        "problems": questions.problems,
        "warnings": questions.warnings,
    }
    if output.for_people:
        _print(document)
    else:
        print_document(document, output)
    if questions.problems:
        raise typer.Exit(EXIT_FAILED)


@group.command(
    "check-scheduler", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
def check_scheduler_command(
    *,
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND...",
            help="It is started with {name}, {dispatcher} and {resolver} filled in; $HOSS_NAME,"
            " $HOSS_DISPATCHER and $HOSS_RESOLVER say the same.",
        ),
    ],
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="How long it may take to register, to answer for pods and to end, each.",
        ),
    ] = 10.0,
    redis_url: RedisUrl = "",
    output: Output = Format.TABLE,
) -> None:
    """Run a scheduler in any language on a platform of its own, give it pods, cut its connection once, and
    say what is wrong with its messages. It speaks plain text there. Exit 1 if anything is wrong."""
    from hossctl.checking.schedulers import check_scheduler

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    with announced(f"checking {command[0]}"):
        found = check_scheduler(command, timeout_seconds=timeout, redis_url=redis_url)
    document: Document = {
        "command": command,
        "bound": found.bound,
        "problems": found.problems,
        "warnings": found.warnings,
        "output": found.output.splitlines(),
    }
    if output.for_people:
        lines = [("pods bound", str(found.bound)), ("problems", str(len(found.problems)))]
        print_summary(f"scheduler {' '.join(command)}", lines)
        _say_findings(document)
        if found.problems and found.output:
            say(f"it wrote last:\n{found.output}")
    else:
        print_document(document, output)
    if found.problems:
        raise typer.Exit(EXIT_FAILED)


def _arguments(text: str) -> Document:
    import orjson

    from hoss.errors import InvalidInput, quoted

    try:
        arguments = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise InvalidInput(f"{quoted(text)} is no JSON: {exc}", where="--args") from exc
    if not isinstance(arguments, dict):
        raise InvalidInput(f"{quoted(text)} is no object of names and values", where="--args")
    return arguments


def _print(document: Document) -> None:
    times = ", ".join(f"{method} {took:g} ms" for method, took in document["milliseconds"].items())
    lines = [
        ("has", ", ".join(document["methods"])),
        ("was asked", f"{document['calls']:,} questions"),
        (f"time at {document['nodes']} nodes", times),
        ("problems", str(len(document["problems"]))),
    ]
    print_summary(f"{document['kind']} {document['name']}", lines)
    _say_findings(document)


def _say_findings(document: Document) -> None:
    for warning in document["warnings"]:
        warn(warning)
    for problem in document["problems"]:
        complain(problem)
