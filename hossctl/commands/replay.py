"""replay: a cluster trace."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from hoss.errors import InvalidInput
from hossctl import replay as trace
from hossctl.cli import EXIT_FAILED
from hossctl.console import Format, print_document, print_summary
from hossctl.endpoints import Endpoints
from hossctl.openb import read_nodes, read_pods
from hossctl.options import Dispatcher, Output, RedisUrl, Resolver, Seed, only
from scheduler_worker.core.profiles import PRESETS

app = typer.Typer()


class TraceFormat(str, Enum):
    """Traces that can be read."""

    OPENB = "openb"


@app.command()
def replay(
    *,
    trace_format: Annotated[
        TraceFormat, typer.Option("--format", help="openb: the Alibaba GPU cluster trace.")
    ] = TraceFormat.OPENB,
    nodes: Annotated[Path, typer.Option(help="The trace's node list (.csv).")],
    pods: Annotated[Path, typer.Option(help="The trace's pod list (.csv).")],
    workers: Annotated[int, typer.Option(min=1, help="Workers of the platform that is started.")] = 4,
    strategy: Annotated[
        str, typer.Option(metavar="NAME", help="Profile of those workers: spread, binpack, random, best-fit or fgd.")
    ] = "",
    shuffle_seed: Annotated[int | None, typer.Option(help="Submit the pods in another order.")] = None,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Place a trace on a platform of its own, or on the one named, and report. Exit 1 if an invariant broke or a pod was lost."""
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    if bool(dispatcher) != bool(resolver):
        raise InvalidInput("give both, or none for a platform of its own", where="--dispatcher, --resolver")
    if strategy and strategy not in PRESETS:
        raise InvalidInput(f"{strategy!r} is none of {', '.join(PRESETS)}", where="--strategy")
    if strategy and dispatcher:
        raise InvalidInput(
            "is for workers that are started here; those of a running platform have theirs", where="--strategy"
        )
    pool, workloads = read_nodes(nodes), read_pods(pods)
    if not pool or not workloads:
        raise InvalidInput("holds no rows", where=str(pods if pool else nodes))
    if shuffle_seed is not None:
        workloads = trace.shuffled(workloads, shuffle_seed)
    result = trace.run(
        pool,
        workloads,
        endpoints=Endpoints(dispatcher, resolver) if dispatcher else None,
        workers=workers,
        strategy=strategy,
        redis_url=redis_url,
        seed=seed,
        quiet=not output.for_people,
    )
    if output.for_people:
        print_summary(f"replay of {trace_format.value}: {len(workloads):,} pods on {len(pool):,} nodes", result.lines())
    else:
        print_document(result.as_json(), output)
    if not result.passed:
        raise typer.Exit(EXIT_FAILED)
