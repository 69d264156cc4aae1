"""The benchmarks that start whole platforms, as commands of `python -m tools.bench`."""

from typing import Annotated

import typer

from hoss.errors import InvalidInput
from hossctl.choices import Mix
from hossctl.cli import EXIT_FAILED
from hossctl.commands.bench.figures_file import JsonFile, check, publish
from hossctl.console import Column, Document, Format
from hossctl.options import Output, RedisUrl, Repeat, Seed, read_counts


def tracing(
    *,
    nodes: Annotated[int, typer.Option(min=1)] = 5000,
    pods: Annotated[int, typer.Option(min=1)] = 100_000,
    workers: Annotated[int, typer.Option(min=1)] = 2,
    ratio: Annotated[
        float, typer.Option(min=0, max=1, metavar="SHARE", help="Of work batches whose traces are kept.")
    ] = 0.01,
    repeat: Annotated[int, typer.Option(min=1, help="Pairs of runs, without and with tracing.")] = 5,
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """What tracing costs: CPU per pod of platforms without and with it, in turn."""
    from hossctl.bench import throughput as speed
    from tools.bench.tracing import measure_tracing

    check(output, json)
    setting = speed.ThroughputSetting(nodes, pods, workers, Mix.UNIFORM, seed, repeat, trace_ratio=ratio)
    cost = measure_tracing(setting, quiet=not output.for_people)
    title = f"{pods:,} pods, {nodes:,} nodes, {workers} workers, traces of {ratio:.1%}"
    publish(cost.as_json(), output, json, title=title, lines=cost.lines())


def access(
    *,
    checks: Annotated[int, typer.Option(min=1, help="Batches of 1,000 checks of a known token.")] = 200,
    nodes: Annotated[int, typer.Option(min=1)] = 2000,
    pods: Annotated[int, typer.Option(min=1)] = 100_000,
    workers: Annotated[int, typer.Option(min=1)] = 2,
    repeat: Annotated[
        int, typer.Option(min=0, help="Pairs of runs, with and without TLS; 0: tokens alone.")
    ] = 5,
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """What a check of a token costs, and TLS: throughput and CPU per pod of platforms with and without it, in
    turn."""
    from hossctl.bench import throughput as speed
    from tools.bench import access as doors

    check(output, json)
    token, tls = doors.measure_tokens(checks), None
    if repeat:
        setting = speed.ThroughputSetting(nodes, pods, workers, Mix.UNIFORM, seed, repeat)
        tls = doors.measure_tls(setting, quiet=not output.for_people)
    document = {"token": token.as_json(), "throughput": tls and tls.as_json()}
    lines = [*token.lines(), *(tls.lines() if tls else ())]
    title = f"{pods:,} pods, {nodes:,} nodes, {workers} workers" if repeat else "tokens"
    publish(document, output, json, title=title, lines=lines)


_SYNC_COLUMNS = (
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
    fill: Annotated[
        str, typer.Option(metavar="N,N", help="Per cent of all cpu that the load requests.")
    ] = "95,99",
    repeat: Repeat = 1,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """The same load with workers that follow the feed, pull, or learn from refusals alone. Exit 1 if any
    overcommits."""
    from tools.bench import sync as staleness

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
    publish(document, output, json, table=(document["cases"], _SYNC_COLUMNS))
    if any(case.overcommitted for case in cases):
        raise typer.Exit(EXIT_FAILED)


def sdk(
    *,
    scheduler: Annotated[
        str, typer.Option(metavar="FILE.py:CLASS", help="The scheduler of your own.")
    ] = "examples/emptiest_first.py:EmptiestFirst",
    nodes: Annotated[int, typer.Option(min=1)] = 1000,
    pods: Annotated[int, typer.Option(min=1)] = 50_000,
    repeat: Annotated[int, typer.Option(min=1, help="Runs; the figure is their median.")] = 3,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """What a scheduler of your own costs that hoss.sdk runs: CPU time of its process per pod."""
    from tools.bench import sdk as own

    check(output, json)
    cost = own.measure(
        own.SdkSetting(scheduler, nodes, pods, seed, repeat, redis_url), quiet=not output.for_people
    )
    title = f"{pods:,} equal pods, {nodes:,} nodes, {scheduler}"
    publish(cost.as_json(), output, json, title=title, lines=cost.lines())
    if cost.audit.findings:
        raise typer.Exit(EXIT_FAILED)


def reconnect(
    *,
    nodes: Annotated[int, typer.Option(min=1)] = 5000,
    pods: Annotated[
        int, typer.Option(min=1, help="In the ledger, and of each of the two loads after that.")
    ] = 100_000,
    workers: Annotated[int, typer.Option(min=1, help="Besides the one that comes back.")] = 2,
    repeat: Repeat = 1,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """A worker is killed and comes back under load: when it is up to date, and what the others place
    meanwhile."""
    from tools.bench import reconnect as returning
    from tools.bench.losses import Setting

    check(output, json)
    setting = Setting(nodes, pods, workers, seed, repeat, redis_url)
    result = returning.measure(setting, quiet=not output.for_people)
    title = f"a worker comes back beside {pods:,} pods on {nodes:,} nodes"
    publish(result.as_json(), output, json, title=title, lines=result.lines())
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
    """Redis is killed and comes back empty: how soon commits are accepted again. Exit 1 if a bound pod moved
    or an audit finds anything."""
    from tools.bench.losses import REBUILD, Setting, measure

    check(output, json)
    result = measure(REBUILD, Setting(nodes, pods, workers, seed, repeat), quiet=not output.for_people)
    title = f"Redis loses {pods:,} bound pods on {nodes:,} nodes"
    publish(result.as_json(), output, json, title=title, lines=result.lines())
    if result.findings or result.moved_pods:
        raise typer.Exit(EXIT_FAILED)


def takeover(
    *,
    nodes: Annotated[int, typer.Option(min=1)] = 5000,
    pods: Annotated[int, typer.Option(min=1, help="Bound, and as many waiting, at the kill.")] = 100_000,
    workers: Annotated[int, typer.Option(min=1)] = 2,
    repeat: Repeat = 1,
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """The active dispatcher is killed: how soon the standby serves. Exit 1 if a bound pod moved or an audit
    finds anything."""
    from tools.bench.losses import TAKEOVER, Setting, measure

    check(output, json)
    result = measure(TAKEOVER, Setting(nodes, pods, workers, seed, repeat), quiet=not output.for_people)
    title = f"A takeover with {pods:,} bound and {pods:,} waiting pods on {nodes:,} nodes"
    publish(result.as_json(), output, json, title=title, lines=result.lines())
    if result.findings or result.moved_pods:
        raise typer.Exit(EXIT_FAILED)


def mirror(
    *,
    nodes: Annotated[int, typer.Option(min=1)] = 5000,
    pods: Annotated[int, typer.Option(min=1, help="Of other schedulers, on these nodes.")] = 100_000,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Kubernetes mode beside a full cluster, without an API server: memory of the mirror, start and
    takeover."""
    from tools.bench import mirror as mirroring

    check(output, json)
    result = mirroring.measure(mirroring.MirrorSetting(nodes, pods))
    title = f"{pods:,} pods on {nodes:,} nodes of a cluster"
    publish(result.as_json(), output, json, title=title, lines=result.lines())
