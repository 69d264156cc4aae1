"""get and describe."""

from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput
from hossctl.cli import EXIT_INTERRUPTED, run_async
from hossctl.console import Document, Format, announced, print_document
from hossctl.endpoints import Endpoints
from hossctl.kinds import ALL, Kind, ListOptions, Query, State, read_kind, titled
from hossctl.options import (
    AllNamespaces,
    Dispatcher,
    Namespace,
    OptionalNames,
    OutputOrTemplate,
    Resolver,
    complete_kinds,
    complete_names,
    only,
    read_output,
)

if TYPE_CHECKING:
    from hoss.v1 import dispatcher_pb2 as pb
    from hossctl.jsonpath import Template

app = typer.Typer()

DESCRIBED = (Kind.PODS, Kind.NODES, Kind.WORKERS, Kind.JOBS)


@app.command()
def get(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="One of: " + ", ".join(map(titled, Kind)) + ".",
            autocompletion=complete_kinds(),
        ),
    ],
    names: OptionalNames = None,
    *,
    namespace: Namespace = "default",
    all_namespaces: AllNamespaces = False,
    selector: Annotated[
        str, typer.Option("-l", "--selector", help="Labels, in kubectl's syntax: a=b,c!=d,e in (f,g).")
    ] = "",
    failed: Annotated[
        bool, typer.Option("--failed", help="Pods that were given up, with the reason.")
    ] = False,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Pods that could not be placed yet, with the reason.")
    ] = False,
    node: Annotated[str, typer.Option("--node", help="Reservations on this node.")] = "",
    worker: Annotated[str, typer.Option("--worker", help="Reservations that this worker proposed.")] = "",
    state: Annotated[State | None, typer.Option("--state", help="Reservations in this state.")] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "-w",
            "--watch",
            help="Go on with every change, until Ctrl-C (exit code 130). Pods by their events; "
            "others are listed every second.",
        ),
    ] = False,
    sort_by: Annotated[
        str,
        typer.Option("--sort-by", metavar="PATH", help="In the order of a field: .attempts, .requested.cpu."),
    ] = "",
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output_or_template: OutputOrTemplate = "table",
) -> None:
    """List objects, or show those named."""
    output, template = read_output(output_or_template)
    query = Query(
        read_kind(kind),
        tuple(names or ()),
        ALL if all_namespaces else namespace,
        selector,
        _phases(failed=failed, waiting=waiting),
        ListOptions(node, worker, state),
        with_pods=output not in (Format.TABLE, Format.NAME),
    )
    query.check()
    if watch and sort_by:
        raise InvalidInput("changes come as they happen; leave it out with --watch", where="--sort-by")
    if query.kind is Kind.CONFLICTS and not watch:
        only(output, Format.WIDE)
    endpoints = Endpoints(dispatcher, resolver)
    endpoints.check(query.kind)
    if watch:
        from hossctl.views import watching

        try:
            run_async(watching.watch(endpoints, query, output, template))
        except KeyboardInterrupt:  # how a user ends it
            raise typer.Exit(EXIT_INTERRUPTED) from None
    elif query.kind is Kind.CONFLICTS:
        from hossctl.views.documents.conflicts import fetch_conflicts, print_conflicts

        conflicts = run_async(fetch_conflicts(endpoints))
        print_conflicts(conflicts) if output.for_people else print_document(conflicts, output, template)
    else:
        _list(endpoints, query, sort_by, output, template)


def _phases(*, failed: bool, waiting: bool) -> "tuple[pb.PodPhase, ...]":
    if not (failed or waiting):
        return ()
    from hoss.v1 import dispatcher_pb2 as pb

    return (*((pb.FAILED,) if failed else ()), *((pb.UNSCHEDULABLE, pb.BACKOFF) if waiting else ()))


def _list(
    endpoints: Endpoints, query: Query, sort_by: str, output: Format, template: "Template | None"
) -> None:
    from hossctl.views.listing import fetch
    from hossctl.views.showing import print_listed, sorted_by

    documents = run_async(fetch(endpoints, query))
    if sort_by:
        documents = sorted_by(documents, sort_by)
    if len(query.names) == 1 and output in (Format.JSON, Format.YAML):
        print_document(documents[0], output, template)
    elif output in (Format.JSON, Format.YAML):
        print_document({"kind": "List", "items": documents}, output, template)
    else:
        print_listed(documents, query, output)


@app.command("describe")
def show(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help="pod, node, worker or job.", autocompletion=complete_kinds(*DESCRIBED)
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_names)],
    *,
    namespace: Namespace = "default",
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output_or_template: OutputOrTemplate = "table",
) -> None:
    """Show one object in full, with its history."""
    output, template = read_output(output_or_template)
    only(output)
    query = Query(read_kind(kind, *DESCRIBED), (name,), namespace)
    endpoints = Endpoints(dispatcher, resolver)
    endpoints.check(query.kind)
    from hossctl.views.describing import describe
    from hossctl.views.showing import print_described

    document = run_async(describe(endpoints, query))
    if _waits_for_room(query.kind, document):
        from hossctl.explain.offline import preset
        from hossctl.rebalance.plans import moves_for_job, moves_for_pod
        from scheduler_worker.core.plugins.profiles import DEFAULT_PROFILE

        found = moves_for_pod if query.kind is Kind.PODS else moves_for_job
        with announced("looking for moves that make room"):
            moves = run_async(found(endpoints, preset(DEFAULT_PROFILE), namespace, name))
        document |= {"rebalancing": moves} if moves else {}
    if output.for_people:
        print_described(document, query)
    else:
        print_document(document, output, template)


_WAITING = ("Unschedulable", "Backoff")  # as --waiting and hossctl.rebalance.gathering have it


def _waits_for_room(kind: Kind, document: Document) -> bool:
    """Whether it is a pod that fits nowhere, or a job with such pods. A job's `unschedulable` does not count
    those in backoff."""
    found = [document] if kind is Kind.PODS else document["waiting"] if kind is Kind.JOBS else []
    return any(waiting["phase"] in _WAITING for waiting in found)
