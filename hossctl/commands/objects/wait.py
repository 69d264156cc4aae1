"""wait, events: until something is so, and what happened."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput
from hossctl.cli import EXIT_FAILED, EXIT_INTERRUPTED, run_async
from hossctl.console import Document, Format, print_document, print_rows, say
from hossctl.endpoints import Endpoints, clients_of
from hossctl.figures import written_duration
from hossctl.kinds import ALL, Kind, Query, read_kind
from hossctl.options import (
    AllNamespaces,
    Dispatcher,
    Namespace,
    Output,
    OutputOrTemplate,
    Resolver,
    complete_objects,
    complete_words,
    only,
    read_duration,
    read_output,
)

if TYPE_CHECKING:
    from hossctl.jsonpath import Template

app = typer.Typer()

_KINDS = (Kind.PODS, Kind.JOBS, Kind.WORKERS, Kind.NODES)


def _read_object(text: str) -> tuple[Kind, str]:
    """`pod/NAME` as kind and name. Raises InvalidInput."""
    kind, slash, name = text.partition("/")
    if not slash or not name or "/" in name:
        raise InvalidInput(f"{text!r} names no object; write KIND/NAME, as in job/web", where="KIND/NAME")
    return read_kind(kind, *_KINDS), name


@app.command("wait")
def wait_for(
    objects: Annotated[
        list[str],
        typer.Argument(
            metavar="KIND/NAME...",
            help="pod, job, worker or node.",
            autocompletion=complete_objects(*_KINDS),
        ),
    ],
    *,
    condition: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="bound|deleted|failed|ready",
            help=(
                "Of pods bound, deleted or failed; of jobs bound (all pods) or deleted; of workers and nodes "
                "ready or deleted."
            ),
            autocompletion=complete_words("bound", "deleted", "failed", "ready"),
        ),
    ] = "bound",
    timeout: Annotated[str, typer.Option(metavar="TIME", help="At most so long: 30s, 5m, 1h.")] = "30s",
    namespace: Namespace = "default",
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Wait until objects are in a state. Exit code 1 when the time is over, with what is missing."""
    from hossctl.load.progress import bar
    from hossctl.views.waiting import Awaited, WaitCondition, until

    seconds = read_duration(timeout, where="--timeout")
    try:
        wanted = WaitCondition(condition)
    except ValueError:
        names = ", ".join(known.value for known in WaitCondition)
        raise InvalidInput(f"{condition!r} is no state; it is one of {names}", where="--for") from None
    awaited = [Awaited(*_read_object(text)) for text in dict.fromkeys(objects)]
    for one in awaited:
        one.check(wanted)
    endpoints = Endpoints(dispatcher, resolver)

    async def run() -> list[Document]:
        with bar("waiting", len(awaited), quiet=not output.for_people, patient=True) as report:
            async with clients_of(endpoints) as clients:
                return await until(
                    clients, awaited, wanted, namespace, timeout_seconds=seconds, report=report
                )

    found = run_async(run())
    if output.for_people:
        for state in found:
            missing = "" if state["reached"] else f" after {written_duration(seconds)}: {state['remark']}"
            say(f"{state['object']} is {'not ' if missing else ''}{wanted.value}{missing}")
    else:
        print_document({"kind": "List", "items": found}, output)
    if not all(state["reached"] for state in found):
        raise typer.Exit(EXIT_FAILED)


@app.command()
def events(
    one: Annotated[
        str,
        typer.Argument(
            metavar="[KIND/NAME]",
            help="Of this pod, job, worker or node alone.",
            autocompletion=complete_objects(*_KINDS),
        ),
    ] = "",
    *,
    namespace: Namespace = "default",
    all_namespaces: AllNamespaces = False,
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Go on with every new event, until Ctrl-C (exit code 130).")
    ] = False,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output_or_template: OutputOrTemplate = "table",
) -> None:
    """What happened to jobs, pods, workers and nodes, oldest first. Of a job's pods, how many went through
    each step."""
    output, template = read_output(output_or_template)
    only(output)
    query = None
    if one:
        kind, name = _read_object(one)
        query = Query(kind, (name,), namespace)
    endpoints = Endpoints(dispatcher, resolver)
    endpoints.check(Kind.PODS)
    place = ALL if all_namespaces else namespace
    if watch:
        try:
            run_async(_follow(endpoints, place, query, output, template))
        except KeyboardInterrupt:  # how a user ends it
            raise typer.Exit(EXIT_INTERRUPTED) from None
        return
    from hossctl.views.events import fetch_events

    found = run_async(fetch_events(endpoints, place, query))
    if output.for_people:
        _print(found)
        if not found:
            say("no events")
    else:
        print_document({"kind": "List", "items": found}, output, template)


async def _follow(
    endpoints: Endpoints, place: str, query: Query | None, output: Format, template: "Template | None"
) -> None:
    from hossctl.views.events import follow_events

    headings = True
    async for found in follow_events(endpoints, place, query):
        if output.for_people:
            _print(found, headings=headings)
            headings = headings and not found
        else:
            for event in found:
                print_document(event, output, template)
        sys.stdout.flush()


def _print(found: list[Document], *, headings: bool = True) -> None:
    from hossctl.views.events import EVENT_COLUMNS

    if found:
        print_rows(found, EVENT_COLUMNS, headings=headings)
