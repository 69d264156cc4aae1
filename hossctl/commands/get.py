"""get and describe."""

import sys
from typing import Annotated

import typer

from hoss.errors import InvalidInput
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.console import Column, Document, Format, print_document, print_rows, print_summary, say
from hossctl.describing import describe
from hossctl.endpoints import Endpoints
from hossctl.eventloop import run_async
from hossctl.listing import ALL, Kind, Query, fetch, follow_pods, read_kind
from hossctl.objects import COLUMNS, NAMESPACED
from hossctl.options import AllNamespaces, Dispatcher, Namespace, Output, Resolver, only

app = typer.Typer()

_NAMESPACE_COLUMN = Column("NAMESPACE", lambda document: document["namespace"])
_FAILED = (pb.FAILED,)
_WAITING = (pb.UNSCHEDULABLE, pb.BACKOFF)


@app.command()
def get(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="One of: " + ", ".join(kind.value for kind in Kind) + ".")
    ],
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None,
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
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Go on with every change of a pod, until Ctrl-C.")
    ] = False,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """List objects, or show those named."""
    phases = (*(_FAILED if failed else ()), *(_WAITING if waiting else ()))
    query = Query(read_kind(kind), tuple(names or ()), ALL if all_namespaces else namespace, selector, phases)
    query.check()
    endpoints = Endpoints(dispatcher, resolver)
    if watch:
        if query.kind is not Kind.PODS:
            raise InvalidInput(f"{query.kind.value} are not watched; pods are", where="--watch")
        run_async(_watch(endpoints, query, output))
        return
    documents = run_async(fetch(endpoints, query))
    if len(query.names) == 1 and output in (Format.JSON, Format.YAML):
        print_document(documents[0], output)
    elif output in (Format.JSON, Format.YAML):
        print_document({"kind": "List", "items": documents}, output)
    else:
        _print(documents, query, output)


@app.command("describe")
def show(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="pod, node, worker or job.")],
    name: Annotated[str, typer.Argument(metavar="NAME")],
    *,
    namespace: Namespace = "default",
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Show one object in full."""
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    query = Query(read_kind(kind, Kind.PODS, Kind.NODES, Kind.WORKERS, Kind.JOBS), (name,), namespace)
    document = run_async(describe(Endpoints(dispatcher, resolver), query))
    if output.for_people:
        print_summary(f"{document['kind']} {name}", _lines(document))
    else:
        print_document(document, output)


async def _watch(endpoints: Endpoints, query: Query, output: Format) -> None:
    first = True
    async for document in follow_pods(endpoints, query):
        if output in (Format.JSON, Format.YAML):
            print_document(document, output)
        else:
            _print([document], query, output, headings=first)
        first = False
        sys.stdout.flush()


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
    columns = list(COLUMNS[query.kind.value])
    if query.namespace == ALL and query.kind in NAMESPACED:
        columns.insert(0, _NAMESPACE_COLUMN)
    print_rows(documents, columns, wide=output is Format.WIDE, headings=headings)


def _lines(document: Document, indent: str = "") -> list[tuple[str, object]]:
    lines: list[tuple[str, object]] = []
    for key, value in document.items():
        if key in ("kind", "name") and not indent:
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
