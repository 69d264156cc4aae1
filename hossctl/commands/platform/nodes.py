"""nodes add, nodes remove, cordon, uncordon, drain: the nodes and workers that get pods."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput, NotFound, counted
from hossctl.cli import EXIT_FAILED, run_async
from hossctl.console import Document, Format, complain, print_document, say, warn
from hossctl.endpoints import Endpoints, ask_resolver, dispatcher_of, resolver_of
from hossctl.kinds import Kind, not_there, read_kind
from hossctl.options import (
    MAX_SIMULATED_NODES,
    Dispatcher,
    Names,
    Output,
    Resolver,
    Seed,
    complete_kinds,
    complete_names_of,
)

if TYPE_CHECKING:
    from hoss.client.dispatcher import DispatcherClient
    from hoss.client.resolver import ResolverClient

app = typer.Typer()
group = typer.Typer(no_args_is_help=True, help="Add nodes to the pool or remove them.")
app.add_typer(group, name="nodes")


@group.command()
def add(
    *,
    count: Annotated[
        int | None, typer.Option(min=1, max=MAX_SIMULATED_NODES, help="That many simulated nodes.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "-f", "--file", help="Manifests of kind Node, SimulatedNodes, or the openb trace's list (.csv)."
        ),
    ] = None,
    prefix: Annotated[
        str, typer.Option(help="Simulated nodes are named PREFIX-00000 and on; known names are changed.")
    ] = "node",
    seed: Seed = 1,
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Add nodes, or change those of the same names. What is requested on a node stays."""
    from hoss.manifests.fields import check_name
    from hossctl.load import nodes as pool
    from hossctl.load.progress import counting

    if (count is None) == (file is None):
        raise InvalidInput(
            "give one of the two: how many simulated nodes, or a file of nodes", where="--count, --file"
        )
    check_name(f"{prefix}-00000", "--prefix")
    nodes = (
        pool.read_nodes_file(file)
        if file is not None
        else pool.simulated_nodes(count or 0, seed=seed, prefix=prefix)
    )

    with counting("nodes", len(nodes), quiet=not output.for_people) as registered:
        shrunken = ask_resolver(
            Endpoints(resolver=resolver), lambda client: pool.register(client, nodes, registered)
        )
    for name in shrunken:
        warn(f"node {name} now offers less than what is requested on it; it keeps that and gets nothing more")
    if output.for_people:
        say(f"{counted(len(nodes), 'node')} added or changed")
    else:
        print_document({"nodes": len(nodes), "shrunkenBelowRequested": shrunken}, output)


@group.command()
def remove(
    names: Annotated[
        list[str],
        typer.Argument(help="Names of nodes.", autocompletion=complete_names_of(Kind.NODES)),
    ],
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Remove nodes. What is reserved on them is released."""
    from hoss.wire.uids import UID_BYTES

    reply = ask_resolver(Endpoints(resolver=resolver), lambda client: client.remove_nodes(names))
    result: Document = {
        "removed": [name for name in names if name not in reply.not_found],
        "releasedPods": len(reply.released_uids) // UID_BYTES,
        "notFound": list(reply.not_found),
    }
    if output.for_people:
        say(
            f"removed {counted(len(result['removed']), 'node')}, released"
            f" {counted(result['releasedPods'], 'pod')}"
        )
        for name in result["notFound"]:
            complain(f"node {name!r} is {not_there(Kind.NODES)}")
    else:
        print_document(result, output)
    if result["notFound"]:
        raise typer.Exit(EXIT_FAILED)


NodeOrWorker = Annotated[
    str,
    typer.Argument(
        metavar="KIND", help="node or worker.", autocompletion=complete_kinds(Kind.NODES, Kind.WORKERS)
    ),
]


@app.command()
def cordon(
    kind: NodeOrWorker,
    names: Names,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Give nodes or workers nothing more. They keep what they have."""
    _set(kind, names, Endpoints(dispatcher, resolver), output, closed=True)


@app.command()
def uncordon(
    kind: NodeOrWorker,
    names: Names,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Give nodes or workers work again."""
    _set(kind, names, Endpoints(dispatcher, resolver), output, closed=False)


@app.command()
def drain(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="worker.")],
    names: Names,
    dispatcher: Dispatcher = "",
    output: Output = Format.TABLE,
) -> None:
    """Cordon workers and take back what they have not started; others get it."""
    if read_kind(kind) is not Kind.WORKERS:
        raise InvalidInput(f"a {kind} is not drained; cordon it, and delete its pods", where="kind")
    _report(run_async(_set_workers(Endpoints(dispatcher), names, "Draining")), output)


def _set(kind: str, names: list[str], endpoints: Endpoints, output: Format, *, closed: bool) -> None:
    if read_kind(kind, Kind.NODES, Kind.WORKERS) is Kind.NODES:
        _report(run_async(_set_nodes(endpoints, names, closed=closed)), output)
    else:
        _report(run_async(_set_workers(endpoints, names, "Cordoned" if closed else "Ready")), output)


async def _set_nodes(endpoints: Endpoints, names: list[str], *, closed: bool) -> list[Document]:
    async with resolver_of(endpoints) as client:
        return [await _set_node(client, name, closed=closed) for name in names]


async def _set_node(client: "ResolverClient", name: str, *, closed: bool) -> Document:
    try:
        node = (await client.cordon_node(name, closed)).node
    except NotFound:
        return {"kind": "Node", "name": name, "error": f"is {not_there(Kind.NODES)}"}
    return {"kind": "Node", "name": name, "state": "Cordoned" if node.unschedulable else "Ready"}


async def _set_workers(endpoints: Endpoints, names: list[str], state: str) -> list[Document]:
    async with dispatcher_of(endpoints) as client:
        return [await _set_worker(client, name, state) for name in names]


async def _set_worker(client: "DispatcherClient", name: str, state: str) -> Document:
    from hossctl.views.documents.objects import worker_document

    try:
        return worker_document(await client.set_worker_state(name, state))
    except NotFound:
        return {"kind": "Worker", "name": name, "error": f"is {not_there(Kind.WORKERS)}"}


def _report(changed: list[Document], output: Format) -> None:
    if not output.for_people:
        print_document({"kind": "List", "items": changed}, output)
    for document in changed:
        kind, name = document["kind"].lower(), document["name"]
        if "error" in document:
            complain(f"{kind} {name}: {document['error']}")
        elif output.for_people:
            say(f"{kind} {name}: {document['state']}")
    if any("error" in document for document in changed):
        raise typer.Exit(EXIT_FAILED)
