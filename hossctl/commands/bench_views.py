"""bench sync, bench reconnect, bench rebuild: what workers know of the ledger, how soon, and how soon it is there again."""

from typing import Annotated

import typer

from hoss.errors import InvalidInput
from hossctl.cli import EXIT_FAILED
from hossctl.commands.bench_file import JsonFile, check, publish
from hossctl.console import Column, Document, Format, print_rows, print_summary
from hossctl.options import Output, RedisUrl, Repeat, Seed, read_counts

_COLUMNS = (
    Column("FILL", lambda row: f"{row['fill']:.0%}"),
    Column("SYNC", lambda row: row["mode"] + (f" {row['intervalMs']} ms" if row["intervalMs"] else "")),
    Column("PODS/S", lambda row: f"{row['podsPerSecond']:,.0f}"),
    Column("CONFLICTS", lambda row: f"{row['conflicts']:,.0f}"),
    Column("OF PODS", lambda row: f"{row['conflictPercent']:.2f} %"),
    Column("BOUND", lambda row: f"{row['bound']:,.0f}"),
    Column("UNSCHEDULABLE", lambda row: f"{row['unschedulable']:,.0f}"),
    Column("OVERCOMMITTED NODES", lambda row: f"{row['overcommittedNodes']:,}"),
)


def sync(
    *,
    nodes: Annotated[int, typer.Option(min=1)] = 1000,
    workers: Annotated[int, typer.Option(min=1)] = 4,
    fill: Annotated[str, typer.Option(metavar="N,N", help="Per cent of all cpu that the load asks for.")] = "95,99",
    repeat: Repeat = 1,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """The same load with workers that follow the feed, pull, or hear of refusals alone. Exit 1 if any overcommits."""
    from hossctl.bench import sync as staleness

    check(output, json)
    fills = [percent / 100 for percent in read_counts(fill, where="--fill")]
    if max(fills) > 1:
        raise InvalidInput(f"{fill!r} is more than there is; give up to 100", where="--fill")
    setting = staleness.Setting(nodes, workers, fills, seed, repeat, redis_url)
    cases = staleness.measure(setting, quiet=not output.for_people)
    document: Document = {
        "nodes": nodes,
        "workers": workers,
        "seed": seed,
        "repeat": repeat,
        "cases": [case.as_json() for case in cases],
    }
    publish(document, output, json)
    if output.for_people:
        print_rows(document["cases"], _COLUMNS, wide=False)
    if any(case.overcommitted for case in cases):
        raise typer.Exit(EXIT_FAILED)


def reconnect(
    *,
    nodes: Annotated[int, typer.Option(min=1)] = 5000,
    pods: Annotated[int, typer.Option(min=1, help="In the ledger, and of each of the two loads after that.")] = 100_000,
    workers: Annotated[int, typer.Option(min=1, help="Besides the one that comes back.")] = 2,
    repeat: Repeat = 1,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """A worker is killed and comes back under load: when it is up to date, and what the others place meanwhile."""
    from hossctl.bench import reconnect as returning
    from hossctl.bench.losses import Setting

    check(output, json)
    setting = Setting(nodes, pods, workers, seed, repeat, redis_url)
    result = returning.measure(setting, quiet=not output.for_people)
    publish(result.as_json(), output, json)
    if output.for_people:
        print_summary(f"a worker comes back beside {pods:,} pods on {nodes:,} nodes", result.lines())
    if result.findings:
        raise typer.Exit(EXIT_FAILED)


def rebuild(
    *,
    nodes: Annotated[int, typer.Option(min=1)] = 5000,
    pods: Annotated[int, typer.Option(min=1, help="Bound when Redis is killed.")] = 100_000,
    workers: Annotated[int, typer.Option(min=1)] = 2,
    repeat: Repeat = 1,
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Redis is killed and comes back empty: how soon commits are accepted again. Exit 1 if a bound pod moved or an audit finds anything."""
    from hossctl.bench import rebuild as rebuilding
    from hossctl.bench.losses import Setting

    check(output, json)
    result = rebuilding.measure(Setting(nodes, pods, workers, seed, repeat), quiet=not output.for_people)
    publish(result.as_json(), output, json)
    if output.for_people:
        print_summary(f"Redis loses {pods:,} bound pods on {nodes:,} nodes", result.lines())
    if result.findings or result.moved_pods:
        raise typer.Exit(EXIT_FAILED)
