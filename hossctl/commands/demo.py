"""demo: everything at once, on this machine."""

import os
from typing import Annotated

import typer

from hossctl.cli import EXIT_FAILED
from hossctl.console import Format, print_document, print_summary, say
from hossctl.options import Output, RedisUrl, Seed, only

app = typer.Typer()


@app.command()
def demo(
    *,
    nodes: Annotated[int, typer.Option(min=1, help="Simulated nodes.")] = 1000,
    pods: Annotated[int, typer.Option(min=1, help="Pods of a mixed load.")] = 50_000,
    workers: Annotated[int, typer.Option(min=1, help="Scheduler workers; their labels differ.")] = 4,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    output: Output = Format.TABLE,
) -> None:
    """Start a cluster, place a mixed load, audit, delete a job, audit again. Exit 0 only if everything held."""
    from hossctl import demo as show

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    quiet = not output.for_people
    if not quiet:
        say(
            f"a cluster on this machine: {nodes:,} nodes, {workers} workers, {os.cpu_count()} cores; it goes when it is done"
        )
    result = show.run(nodes=nodes, pods=pods, workers=workers, redis_url=redis_url, seed=seed, quiet=quiet)
    if quiet:
        print_document(result.as_json(), output)
    else:
        print_summary("demo", result.lines())
    if result.failures:
        raise typer.Exit(EXIT_FAILED)
