"""cordon, uncordon, drain."""

from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput, NotFound
from hossctl import completing
from hossctl.cli import EXIT_FAILED
from hossctl.console import Document, Format, complain, print_document, say
from hossctl.endpoints import Endpoints, dispatcher_of, resolver_of
from hossctl.eventloop import run_async
from hossctl.kinds import Kind, read_kind
from hossctl.options import Dispatcher, Output, Resolver, only

if TYPE_CHECKING:
    from hoss.client.dispatcher import DispatcherClient
    from hoss.client.resolver import ResolverClient


app = typer.Typer()

NodeOrWorker = Annotated[
    str,
    typer.Argument(metavar="KIND", help="node or worker.", autocompletion=completing.kinds(Kind.NODES, Kind.WORKERS)),
]
Names = Annotated[list[str], typer.Argument(metavar="NAME...", autocompletion=completing.names)]


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
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    if read_kind(kind) is not Kind.WORKERS:
        raise InvalidInput(f"a {kind} is not drained; cordon it, and delete its pods", where="kind")
    _finish(run_async(_set_workers(Endpoints(dispatcher), names, "Draining")), output)


def _set(kind: str, names: list[str], endpoints: Endpoints, output: Format, *, closed: bool) -> None:
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    if read_kind(kind, Kind.NODES, Kind.WORKERS) is Kind.NODES:
        _finish(run_async(_set_nodes(endpoints, names, closed=closed)), output)
    else:
        _finish(run_async(_set_workers(endpoints, names, "Cordoned" if closed else "Ready")), output)


async def _set_nodes(endpoints: Endpoints, names: list[str], *, closed: bool) -> list[Document]:
    async with resolver_of(endpoints) as client:
        return [await _set_node(client, name, closed=closed) for name in names]


async def _set_node(client: "ResolverClient", name: str, *, closed: bool) -> Document:
    try:
        node = (await client.cordon_node(name, closed)).node
    except NotFound as exc:
        return {"kind": "Node", "name": name, "error": exc.text}
    return {"kind": "Node", "name": name, "state": "Cordoned" if node.unschedulable else "Ready"}


async def _set_workers(endpoints: Endpoints, names: list[str], state: str) -> list[Document]:
    async with dispatcher_of(endpoints) as client:
        return [await _set_worker(client, name, state) for name in names]


async def _set_worker(client: "DispatcherClient", name: str, state: str) -> Document:
    from hossctl.objects import worker_document

    try:
        return worker_document(await client.set_worker_state(name, state))
    except NotFound as exc:
        return {"kind": "Worker", "name": name, "error": exc.text}


def _finish(changed: list[Document], output: Format) -> None:
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
