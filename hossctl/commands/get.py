"""get and describe."""

import sys
import time
from collections.abc import AsyncIterator, Callable, Collection
from typing import Annotated

import typer

from hoss.errors import InvalidInput
from hoss.v1 import dispatcher_pb2 as pb
from hossctl import completing, job_story, pod_story, worker_story
from hossctl.conflicts import PAIR_COLUMNS, fetch_conflicts, print_conflicts
from hossctl.console import Column, Document, Format, print_document, print_lines, print_rows, print_summary, say
from hossctl.describing import describe
from hossctl.endpoints import Endpoints
from hossctl.eventloop import run_async
from hossctl.jsonpath import Template
from hossctl.listing import ALL, Kind, Query, fetch, follow_pods, read_kind, titled
from hossctl.node_story import print_story
from hossctl.objects import COLUMNS, NAMESPACED
from hossctl.options import AllNamespaces, Dispatcher, Namespace, OutputOrTemplate, Resolver, only, read_output
from hossctl.ordering import sorted_by
from hossctl.reservations import State, Wanted
from hossctl.timeline import Line, written
from hossctl.watching import changes

app = typer.Typer()

INTERRUPTED = 130  # as shells say of what Ctrl-C has ended

_NAMESPACE_COLUMN = Column("NAMESPACE", lambda document: document["namespace"])
_GROWS = ("AGE", "SINCE", "SEEN")  # columns that change by themselves
DESCRIBED = (Kind.PODS, Kind.NODES, Kind.WORKERS, Kind.JOBS)
# Fields that a kind's story tells, and how it is told at a moment.
_STORIES: dict[Kind, tuple[Collection[str], Callable[[Document, int], list[Line]]]] = {
    Kind.PODS: (pod_story.TOLD, pod_story.pod_lines),
    Kind.JOBS: (job_story.TOLD, job_story.job_lines),
    Kind.WORKERS: (worker_story.TOLD, lambda worker, _now_ms: worker_story.worker_lines(worker)),
}
_FAILED = (pb.FAILED,)
_WAITING = (pb.UNSCHEDULABLE, pb.BACKOFF)


@app.command()
def get(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help="One of: " + ", ".join(map(titled, Kind)) + ".", autocompletion=completing.kinds()
        ),
    ],
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", autocompletion=completing.names)] = None,
    *,
    namespace: Namespace = "default",
    all_namespaces: AllNamespaces = False,
    selector: Annotated[
        str, typer.Option("-l", "--selector", help="Labels, in kubectl's syntax: a=b,c!=d,e in (f,g).")
    ] = "",
    failed: Annotated[bool, typer.Option("--failed", help="Pods that were given up, with the reason.")] = False,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Pods that could not be placed yet, with the reason.")
    ] = False,
    node: Annotated[str, typer.Option("--node", help="Reservations on this node.")] = "",
    worker: Annotated[str, typer.Option("--worker", help="Reservations that this worker proposed.")] = "",
    state: Annotated[State | None, typer.Option("--state", help="Reservations that are assumed, or confirmed.")] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "-w",
            "--watch",
            help="Go on with every change, until Ctrl-C (exit code 130). Pods by their events, others by a look a second.",
        ),
    ] = False,
    sort_by: Annotated[
        str, typer.Option("--sort-by", metavar="PATH", help="In the order of a field: .attempts, .requested.cpu.")
    ] = "",
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output_or_template: OutputOrTemplate = "table",
) -> None:
    """List objects, or show those named."""
    output, template = read_output(output_or_template)
    phases = (*(_FAILED if failed else ()), *(_WAITING if waiting else ()))
    query = Query(
        read_kind(kind),
        tuple(names or ()),
        ALL if all_namespaces else namespace,
        selector,
        phases,
        Wanted(node, worker, state),
        pods=output not in (Format.TABLE, Format.NAME),
    )
    query.check()
    endpoints = Endpoints(dispatcher, resolver)
    if watch:
        if sort_by:
            raise InvalidInput("changes come as they happen; leave it out with --watch", where="--sort-by")
        try:
            run_async(_watch(endpoints, query, output, template))
        except KeyboardInterrupt:  # how it is ended
            raise typer.Exit(INTERRUPTED) from None
        return
    if query.kind is Kind.CONFLICTS:
        only(output, Format.TABLE, Format.WIDE, Format.JSON, Format.YAML)
        conflicts = run_async(fetch_conflicts(endpoints))
        print_conflicts(conflicts) if output.for_people else print_document(conflicts, output, template)
        return
    documents = run_async(fetch(endpoints, query))
    if sort_by:
        documents = sorted_by(documents, sort_by)
    if len(query.names) == 1 and output in (Format.JSON, Format.YAML):
        print_document(documents[0], output, template)
    elif output in (Format.JSON, Format.YAML):
        print_document({"kind": "List", "items": documents}, output, template)
    else:
        _print(documents, query, output)


@app.command("describe")
def show(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help="pod, node, worker or job.", autocompletion=completing.kinds(*DESCRIBED)),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=completing.names)],
    *,
    namespace: Namespace = "default",
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output_or_template: OutputOrTemplate = "table",
) -> None:
    """Show one object in full, and how it came where it is, in order of time."""
    output, template = read_output(output_or_template)
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    query = Query(read_kind(kind, *DESCRIBED), (name,), namespace)
    document = run_async(describe(Endpoints(dispatcher, resolver), query))
    if output.for_people and query.kind is Kind.NODES:
        print_story(document)
    elif output.for_people:
        told, lines = _STORIES[query.kind]
        now_ms = int(time.time() * 1000)
        print_summary(f"{document['kind']} {name}", _lines(document, without=told))
        print_lines(["", *written(lines(document, now_ms), now_ms)])
    else:
        print_document(document, output, template)


async def _watch(endpoints: Endpoints, query: Query, output: Format, template: Template | None) -> None:
    first, headings = True, True
    async for documents in _changes(endpoints, query, output):
        if output in (Format.JSON, Format.YAML):
            for document in documents:
                print_document(document, output, template)
        elif documents or first:
            _print(documents, query, output, headings=headings)
        first, headings = False, headings and not documents
        sys.stdout.flush()


async def _changes(endpoints: Endpoints, query: Query, output: Format) -> AsyncIterator[list[Document]]:
    """What there is, then what changed: of a table's objects where a cell did."""
    if query.kind is Kind.PODS:
        async for document in follow_pods(endpoints, query):
            yield [document]
        return

    def identity(document: Document) -> str:
        if query.kind is Kind.CONFLICTS:
            return f"of {document['loser']} with {document['winner'] or 'nobody'}, {document['reason']}"
        name = document["uid"] if query.kind is Kind.RESERVATIONS else document["name"]
        return f"{document['namespace']}/{name}" if "namespace" in document else str(name)

    def shown(document: Document) -> object:
        told = [c for c in _columns(query) if c.heading not in _GROWS and (output is not Format.TABLE or not c.wide)]
        return tuple(str(column.cell(document)) for column in told)

    async def look() -> list[Document]:
        if query.kind is Kind.CONFLICTS:
            pairs: list[Document] = (await fetch_conflicts(endpoints))["pairs"]
            return pairs
        return await fetch(endpoints, query)

    async for documents in changes(look, identity, shown, name=query.kind.singular):
        yield documents


def _print(documents: list[Document], query: Query, output: Format, *, headings: bool = True) -> None:
    if output is Format.NAME:
        key = "uid" if query.kind is Kind.RESERVATIONS else "name"
        for document in documents:
            sys.stdout.write(f"{query.kind.singular}/{document[key]}\n")
        return
    if not documents:
        where = f" in namespace {query.namespace}" if query.kind in NAMESPACED and query.namespace != ALL else ""
        say(f"no {query.kind.value} found{where}")
        return
    print_rows(documents, _columns(query), wide=output is Format.WIDE, headings=headings)


def _columns(query: Query) -> list[Column]:
    if query.kind is Kind.CONFLICTS:
        return list(PAIR_COLUMNS)
    named = [_NAMESPACE_COLUMN] if query.namespace == ALL and query.kind in NAMESPACED else []
    return [*named, *COLUMNS[query.kind.value]]


def _lines(document: Document, indent: str = "", *, without: Collection[str] = ()) -> list[tuple[str, object]]:
    """What there is; of `without` the story tells."""
    lines: list[tuple[str, object]] = []
    for key, value in document.items():
        if key in without or (key in ("kind", "name") and not indent) or value in ("", [], {}):
            continue
        if isinstance(value, dict) and value:
            lines += [(f"{indent}{key}", "\u200b"), *_lines(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [(f"{indent}{key}", ", ".join(f"{k}={v}" for k, v in item.items() if v != "")) for item in value]
        elif isinstance(value, (dict, list)):
            lines.append((f"{indent}{key}", ", ".join(map(str, value))))
        else:
            lines.append((f"{indent}{key}", value))
    return lines
