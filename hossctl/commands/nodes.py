"""nodes add, nodes remove: the pool."""

from pathlib import Path
from typing import Annotated

import typer

from hoss.errors import InvalidInput
from hossctl.cli import EXIT_FAILED
from hossctl.console import Document, Format, complain, print_document, say, warn
from hossctl.endpoints import Endpoints, resolver_of
from hossctl.eventloop import run_async
from hossctl.options import Output, Resolver, Seed, only

app = typer.Typer()
group = typer.Typer(no_args_is_help=True, help="Add nodes to the pool or remove them.")
app.add_typer(group, name="nodes")


@group.command()
def add(
    *,
    count: Annotated[int | None, typer.Option(min=1, help="That many simulated nodes.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("-f", "--file", help="Manifests of kind Node, SimulatedNodes, or the openb trace's list (.csv)."),
    ] = None,
    prefix: Annotated[
        str, typer.Option(help="Simulated nodes are named PREFIX-00000 and on; known names are changed.")
    ] = "node",
    seed: Seed = 1,
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Add nodes, or change those of the same names. What is requested on a node stays."""
    from hossctl import nodes as pool
    from hossctl.progress import counting

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    if (count is None) == (file is None):
        raise InvalidInput("give one of the two: how many simulated nodes, or a file of nodes", where="--count, --file")
    nodes = pool.read_nodes_file(file) if file is not None else pool.simulated(count or 0, seed=seed, prefix=prefix)

    async def run() -> list[str]:
        async with resolver_of(Endpoints(resolver=resolver)) as client:
            with counting("nodes", len(nodes), quiet=not output.for_people) as registered:
                return await pool.register(client, nodes, registered)

    shrunken = run_async(run())
    for name in shrunken:
        warn(f"node {name} now offers less than what is requested on it; it keeps that and gets nothing more")
    if output.for_people:
        say(f"{len(nodes):,} nodes are in the pool or changed")
    else:
        print_document({"nodes": len(nodes), "shrunkenBelowRequested": shrunken}, output)


@group.command()
def remove(
    names: Annotated[list[str], typer.Argument(help="Names of nodes.")],
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Remove nodes. What is reserved on them is released."""
    from hoss.wire.columns import UID_BYTES

    only(output, Format.TABLE, Format.JSON, Format.YAML)

    async def run() -> Document:
        async with resolver_of(Endpoints(resolver=resolver)) as client:
            reply = await client.remove_nodes(names)
        missing = list(reply.not_found)
        return {
            "removed": [name for name in names if name not in missing],
            "releasedPods": len(reply.released_uids) // UID_BYTES,
            "notFound": missing,
        }

    result = run_async(run())
    if output.for_people:
        say(f"removed {len(result['removed'])} nodes, released {result['releasedPods']} pods")
        for name in result["notFound"]:
            complain(f"node {name!r} is not there; `hoss get nodes` lists those that are")
    else:
        print_document(result, output)
    if result["notFound"]:
        raise typer.Exit(EXIT_FAILED)
