"""The group bench, with bench throughput and bench gpu."""

from pathlib import Path
from typing import Annotated

import typer

from hossctl.choices import Mix
from hossctl.cli import EXIT_FAILED
from hossctl.commands.bench.compare import compare, report
from hossctl.commands.bench.figures_file import JsonFile, check, publish
from hossctl.commands.bench.guard import guard
from hossctl.commands.bench.kubernetes import kubernetes
from hossctl.commands.bench.plan import plan
from hossctl.console import Column, Document, Format, warn
from hossctl.options import MAX_PROCESSES, Output, RedisUrl, Repeat, Seed, read_counts

app = typer.Typer()
group = typer.Typer(
    no_args_is_help=True, help="Measure throughput, or compare schedulers with and without HOSS."
)
app.add_typer(group, name="bench")
group.command()(plan)
group.command()(compare)
group.command()(report)
group.command()(guard)
group.command()(kubernetes)


@group.command()
def throughput(
    *,
    nodes: Annotated[int, typer.Option(min=1)] = 5000,
    pods: Annotated[int, typer.Option(min=1)] = 100_000,
    workers: Annotated[int, typer.Option(min=1, max=MAX_PROCESSES)] = 2,
    mix: Annotated[
        Mix,
        typer.Option(
            help="uniform: all pods alike; openb: as in the trace; unique: no two alike; "
            "constrained: rules about other pods."
        ),
    ] = Mix.UNIFORM,
    trace: Annotated[
        Path | None, typer.Option(help="The trace's pod list for --mix openb; else a built-in list like it.")
    ] = None,
    repeat: Repeat = 1,
    overlap: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Of workers' node preferences: auto, shared, shuffled or soft-partition."
        ),
    ] = "",
    worker_start: Annotated[
        bool, typer.Option("--worker-start", help="Also time the start of one more worker afterwards.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without TLS and without a password of Redis.")
    ] = False,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Pods per second from Submit to reported as bound, and what it costs. Exit 1 if the audit finds
    anything."""
    from hossctl.bench import throughput as speed
    from hossctl.bench.throughput import trace_classes
    from hossctl.load.generated import OPENB_SHAPE

    check(output, json)
    shape = trace_classes(trace) if trace else OPENB_SHAPE
    setting = speed.ThroughputSetting(
        nodes, pods, workers, mix, seed, repeat, redis_url, shape, worker_start, overlap, insecure=insecure
    )
    result = speed.measure(setting, quiet=not output.for_people)
    title = f"{pods:,} {mix.value} pods, {nodes:,} nodes, {workers} workers"
    publish(result.as_json(), output, json, title=title, lines=result.lines())
    if result.audit.exit_code:
        raise typer.Exit(EXIT_FAILED)


_GPU_COLUMNS = (
    Column("POLICY", lambda row: row["policy"]),
    Column("WORKERS", lambda row: str(row["workers"])),
    Column("GPU ALLOCATED", lambda row: f"{row['allocatedPercent']:.1f} %"),
    Column("LOWEST", lambda row: f"{row['lowest']:.1f} %"),
    Column("HIGHEST", lambda row: f"{row['highest']:.1f} %"),
    Column("PAPER", lambda row: "-" if row["paperPercent"] is None else f"{row['paperPercent']:.1f} %"),
    Column("PODS", lambda row: f"{row['pods']:,}"),
    Column("SECONDS", lambda row: f"{row['seconds']:.1f}"),
    Column("CONFLICTS", lambda row: f"{row['conflicts']:,}"),
)


@group.command("gpu")
def gpu_allocation(
    *,
    nodes: Annotated[Path, typer.Option(help="The openb trace's node list (.csv).")],
    pods: Annotated[Path, typer.Option(help="Its pod list, to draw from (.csv).")],
    policy: Annotated[
        str, typer.Option(metavar="NAME,NAME", help="Of random, best-fit and fgd.")
    ] = "random,best-fit,fgd",
    workers: Annotated[
        str,
        typer.Option(metavar="N,N", help="1: in this process, pod by pod; more: a platform of their own."),
    ] = "1,4",
    seeds: Annotated[int, typer.Option(min=1, help="Loads drawn; figures are means over them.")] = 3,
    seed: Seed = 1,
    redis_url: RedisUrl = "",
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """How much GPU each policy allocates when 130 % of it is requested, as in the FGD paper. Exit 1 if an
    audit finds anything."""
    from hossctl.bench import gpu
    from hossctl.traces.openb import read_nodes, read_pods

    check(output, json)
    setting = gpu.GpuSetting(
        nodes=read_nodes(nodes),
        pods=read_pods(pods),
        policies=gpu.read_policies(policy),
        workers=read_counts(workers, where="--workers"),
        seeds=range(seed, seed + seeds),
        redis_url=redis_url,
        pod_list=pods.name.partition(".")[0],
    )
    results = gpu.measure(setting, quiet=not output.for_people)
    document: Document = {
        "nodes": len(setting.nodes),
        "cardsMilli": setting.cards_milli,
        "overload": gpu.OVERLOAD,
        "seeds": list(setting.seeds),
        "results": [result.as_json() for result in results],
    }
    publish(document, output, json, table=(document["results"], _GPU_COLUMNS))
    violations = [text for result in document["results"] for text in result["violations"]]
    if violations:
        warn("; ".join(violations))
        raise typer.Exit(EXIT_FAILED)
