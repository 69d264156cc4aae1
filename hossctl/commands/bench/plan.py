"""bench plan."""

from pathlib import Path
from typing import Annotated

import typer

from hossctl.cli import EXIT_FAILED
from hossctl.console import Column, Document, Format, print_document, print_rows, print_summary, say, warn
from hossctl.options import Output, Seed, only

_COLUMNS = (
    Column("WORKERS", lambda row: str(row["workers"])),
    Column("RESOLVERS", lambda row: str(row["resolvers"])),
    Column("SHARDS", lambda row: str(row["shards"])),
    Column("PODS/S", lambda row: f"{row['podsPerSecond']:,.0f}"),
    Column("LIMIT", lambda row: row["limit"]),
    Column("BUSY", lambda row: f"{row['busyness']:.0%}"),
)


def plan(
    *,
    pods_per_second: Annotated[
        float, typer.Option("--pods-per-second", min=1, help="To be bound, all equal.")
    ],
    nodes: Annotated[int, typer.Option(min=1)],
    bench: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Service times of a `hoss bench throughput --json FILE`; else this project's.",
        ),
    ] = None,
    seed: Seed = 1,
    output: Output = Format.TABLE,
) -> None:
    """How many workers, resolvers, shards and Redis cores a load needs, by simulation, and what saturates
    first. Exit 1 if nothing that there can be more of would do."""
    from hossctl.simulate import planning
    from hossctl.simulate.measured import ServiceTimes, read_measured

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    times = ServiceTimes() if bench is None else read_measured(bench).times
    request = planning.PlanRequest(pods_per_second, nodes, times, seed)
    steps = []
    for step in planning.plan(request):
        steps.append(step)
        if output.for_people:
            say(
                f"tried {step.workers} workers, {step.resolvers} resolvers, {step.shards} shards: "
                f"{step.pods_per_second:,.0f} pods/s"
            )
    document = planning.as_json(request, steps)
    if output.for_people:
        print_rows(document["steps"], _COLUMNS, wide=False)
        print_summary(f"{pods_per_second:,.0f} pods/s on {nodes:,} nodes", _lines(document))
    else:
        print_document(document, output)
    if not document["reached"]:
        warn(
            f"{pods_per_second:,.0f} pods/s are not reached: the {steps[-1].limit} is the limit, and "
            "there can be no more of it"
        )
        raise typer.Exit(EXIT_FAILED)


def _lines(document: Document) -> list[tuple[str, object]]:
    needed = [(name, document[name]) for name in ("workers", "resolvers", "shards")]
    return [*needed, ("Redis cores", document["redisCores"]), ("saturates first", document["firstLimit"])]
