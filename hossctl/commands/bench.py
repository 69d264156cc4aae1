"""bench throughput, compare, gpu, plugins, policy, dispatch, resolver; more of them in bench_views."""

from pathlib import Path
from typing import Annotated

import typer

from hossctl.choices import Mix, Submitted
from hossctl.cli import EXIT_FAILED
from hossctl.commands import bench_guard, bench_kubernetes, bench_views
from hossctl.commands.bench_file import JsonFile, check, publish
from hossctl.commands.compare import compare
from hossctl.commands.compare_report import report
from hossctl.commands.plan import plan
from hossctl.console import Column, Document, Format, print_rows, print_summary, warn
from hossctl.options import Output, RedisUrl, Repeat, Seed, read_counts

app = typer.Typer()
group = typer.Typer(no_args_is_help=True, help="Measure throughput, or compare schedulers with and without HOSS.")
app.add_typer(group, name="bench")
group.command()(plan)
group.command()(compare)
group.command()(report)
group.command("sync")(bench_views.sync)
group.command("reconnect")(bench_views.reconnect)
group.command("rebuild")(bench_views.rebuild)
group.command("guard")(bench_guard.guard)
group.command("kubernetes")(bench_kubernetes.kubernetes)


@group.command()
def throughput(
    *,
    nodes: Annotated[int, typer.Option(min=1)] = 5000,
    pods: Annotated[int, typer.Option(min=1)] = 100_000,
    workers: Annotated[int, typer.Option(min=1)] = 2,
    mix: Annotated[
        Mix,
        typer.Option(
            help="uniform: all pods alike; openb: as in the trace; unique: no two alike; constrained: rules about other pods."
        ),
    ] = Mix.UNIFORM,
    trace: Annotated[
        Path | None, typer.Option(help="The trace's pod list for --mix openb; else a built-in list like it.")
    ] = None,
    repeat: Repeat = 1,
    overlap: Annotated[
        str,
        typer.Option(metavar="NAME", help="Of workers' node preferences: auto, shared, shuffled or soft-partition."),
    ] = "",
    worker_start: Annotated[
        bool, typer.Option("--worker-start", help="Also time the start of one more worker afterwards.")
    ] = False,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Pods per second from Submit to reported as bound, and what it costs. Exit 1 if the audit finds anything."""
    from hossctl.bench import throughput as speed
    from hossctl.bench.trace import trace_classes
    from hossctl.load import OPENB_SHAPE

    check(output, json)
    shape = trace_classes(trace) if trace else OPENB_SHAPE
    setting = speed.Setting(nodes, pods, workers, mix, seed, repeat, redis_url, shape, worker_start, overlap)
    result = speed.measure(setting, quiet=not output.for_people)
    publish(result.as_json(), output, json)
    if output.for_people:
        print_summary(f"{pods:,} {mix.value} pods, {nodes:,} nodes, {workers} workers", result.lines())
    if result.audit.exit_code:
        raise typer.Exit(EXIT_FAILED)


@group.command()
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
    from hossctl.bench.tracing import measure_tracing

    check(output, json)
    setting = speed.Setting(nodes, pods, workers, Mix.UNIFORM, seed, repeat, trace_ratio=ratio)
    cost = measure_tracing(setting, quiet=not output.for_people)
    publish(cost.as_json(), output, json)
    if output.for_people:
        print_summary(f"{pods:,} pods, {nodes:,} nodes, {workers} workers, traces of {ratio:.1%}", cost.lines())


_GPU_COLUMNS = (
    Column("POLICY", lambda row: row["policy"]),
    Column("WORKERS", lambda row: str(row["workers"])),
    Column("GPU ALLOCATED", lambda row: f"{row['allocatedPercent']:.1f} %"),
    Column("LOWEST", lambda row: f"{row['lowest']:.1f} %"),
    Column("HIGHEST", lambda row: f"{row['highest']:.1f} %"),
    Column("PAPER", lambda row: f"{row['paperPercent']:.1f} %"),
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
        str, typer.Option(metavar="N,N", help="1: in this process, pod by pod; more: a platform of their own.")
    ] = "1,4",
    seeds: Annotated[int, typer.Option(min=1, help="Loads drawn; figures are means over them.")] = 3,
    seed: Seed = 1,
    redis_url: RedisUrl = "",
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """How much GPU each policy allocates when 130 % of it is asked for, as in the FGD paper. Exit 1 if an audit finds anything."""
    from hossctl.bench import gpu
    from hossctl.openb import read_nodes, read_pods

    check(output, json)
    setting = gpu.Setting(
        nodes=read_nodes(nodes),
        pods=read_pods(pods),
        policies=gpu.read_policies(policy),
        workers=read_counts(workers, where="--workers"),
        seeds=range(seed, seed + seeds),
        redis_url=redis_url,
    )
    results = gpu.measure(setting, quiet=not output.for_people)
    document: Document = {
        "nodes": len(setting.nodes),
        "cardsMilli": setting.cards_milli,
        "overload": gpu.OVERLOAD,
        "seeds": list(setting.seeds),
        "results": [result.as_json() for result in results],
    }
    publish(document, output, json)
    if output.for_people:
        print_rows(document["results"], _GPU_COLUMNS, wide=False)
    violations = [text for result in document["results"] for text in result["violations"]]
    if violations:
        warn("; ".join(violations))
        raise typer.Exit(EXIT_FAILED)


_PLUGIN_COLUMNS = (
    Column("PLUGIN", lambda row: row["plugin"]),
    Column("NEW CLASS (US)", lambda row: f"{row['newMicros']:.1f}"),
    Column("KNOWN (US)", lambda row: f"{row['knownMicros']:.1f}"),
    Column(
        "GOALS",
        lambda row: "" if row["goalNewMicros"] is None else f"{row['goalNewMicros']:g}, {row['goalKnownMicros']:g}",
    ),
    Column("NEW, 1/10 OF THE PODS", lambda row: f"{row['newMicrosFewer']:.1f}"),
    Column("KNOWN, 1/10", lambda row: f"{row['knownMicrosFewer']:.1f}"),
)


@group.command()
def plugins(
    *,
    nodes: Annotated[int, typer.Option(min=1)] = 5000,
    pods: Annotated[int, typer.Option(min=0, help="Bound already; measured again with a tenth of them.")] = 50_000,
    repeat: Annotated[int, typer.Option(min=1, help="Classes, and placements of a class; figures are medians.")] = 300,
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """What each scheduling plugin costs for one pod, of a class never seen and of a known one, in a worker's own core."""
    from hossctl.bench import plugins as plugin_costs

    check(output, json)
    document = plugin_costs.measure(plugin_costs.Setting(nodes, pods, repeat, seed))
    publish(document, output, json)
    if output.for_people:
        print_rows(document["plugins"], _PLUGIN_COLUMNS, wide=False)


@group.command()
def dispatch(
    *,
    mode: Annotated[
        Submitted, typer.Option(help="replicas: one job; distinct: bare pods, no two alike, 500 a message.")
    ] = Submitted.REPLICAS,
    pods: Annotated[
        int | None, typer.Option(min=1, help="1,000,000; 100,000 where they are distinct.", show_default=False)
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Stand-ins that take every pod at once.")] = 2,
    rules: Annotated[int, typer.Option(min=1, help="Of the policy in force; the last one matches.")] = 1,
    tenants: Annotated[int, typer.Option(min=1, help="Namespaces that the pods are of.")] = 1,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Measure memory instead: so many queued pods in one job, and in 10,000 classes."),
    ] = False,
    repeat: Repeat = 1,
    redis_url: RedisUrl = "",
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """What the dispatcher alone accepts, queues and dispatches on one core, its journal included."""
    from hossctl.bench import dispatch as dispatching

    check(output, json)
    count = pods or dispatching.DEFAULT_PODS[mode]
    if memory:
        rows = dispatching.measure_memory(count, redis_url)
        title, document, lines = "memory", {"memory": rows}, list(dispatching.memory_lines(rows))
    else:
        result = dispatching.measure(dispatching.Setting(mode, count, workers, rules, tenants, repeat, redis_url))
        title, document, lines = f"{count:,} pods, {mode.value}", result.as_json(), result.lines()
    publish(document, output, json)
    if output.for_people:
        print_summary(title, lines)


_RESOLVER_COLUMNS = (
    Column("RESOLVERS", lambda row: str(row["resolvers"])),
    Column("SHARDS", lambda row: str(row["shards"])),
    Column("BATCH", lambda row: f"{row['batch']:,}"),
    Column("CONFLICTS", lambda row: "one node" if row["hotNode"] else f"{row['conflictPercent']} %"),
    Column("PODS/S", lambda row: f"{row['podsPerSecond']:,.0f}"),
    Column("COMMITTED/S", lambda row: f"{row['committedPerSecond']:,.0f}"),
    Column("P99 (MS)", lambda row: f"{row['p99Ms']:.2f}"),
    Column("SCRIPT ALONE/S", lambda row: f"{row['ceilingPerSecond']:,.0f}"),
    Column("RATIO", lambda row: "" if row["ratio"] is None else f"{row['ratio']:.2f}"),
    Column("REDIS US/POD", lambda row: "" if row["redisMicros"] is None else f"{row['redisMicros']:.2f}"),
    Column("RESOLVER US/POD", lambda row: f"{row['resolverMicros']:.2f}"),
)


@group.command("resolver")
def resolvers(
    *,
    nodes: Annotated[int, typer.Option(min=1)] = 5000,
    resolvers: Annotated[str, typer.Option(metavar="N,N")] = "1,2",
    shards: Annotated[str, typer.Option(metavar="N,N")] = "1,4,16",
    batch: Annotated[str, typer.Option(metavar="N,N", help="Pods of a proposal.")] = "1,10,100,1000",
    conflicts: Annotated[str, typer.Option(metavar="N,N", help="Per cent of pods that do not fit.")] = "0,10,50",
    pods: Annotated[int, typer.Option(min=1, help="Of each case.")] = 40_000,
    quick: Annotated[bool, typer.Option("--quick", help="One resolver, one shard, batches of 100 and 1,000.")] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Runs; of each case the one with the median rate is shown.")] = 1,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Pods that resolvers decide in a second, beside the ledger's script alone; the last case of each batch is one node for all."""
    from hossctl.bench import resolver as deciding

    check(output, json)
    setting = deciding.Setting(
        nodes=nodes,
        resolvers=(1,) if quick else read_counts(resolvers, where="--resolvers"),
        shards=(1,) if quick else read_counts(shards, where="--shards"),
        batches=(100, 1000) if quick else read_counts(batch, where="--batch"),
        conflicts=read_counts(conflicts, where="--conflicts", least=0),
        pods=pods,
        seed=seed,
        redis_url=redis_url,
        repeat=repeat,
    )
    cases = list(deciding.measure(setting))
    rows = [case.as_json() for case in cases]
    document: Document = {"nodes": nodes, "podsPerCase": pods, "seed": seed, "repeat": repeat, "cases": rows}
    publish(document, output, json)
    if output.for_people:
        print_rows(rows, _RESOLVER_COLUMNS, wide=False)
        print_summary("goals", deciding.goals(cases))


@group.command("policy")
def policy_cost(
    *,
    rules: Annotated[int, typer.Option(min=1)] = 100,
    classes: Annotated[int, typer.Option(min=1, help="All different.")] = 10_000,
    repeat: Annotated[int, typer.Option(min=1, help="Figures are medians.")] = 15,
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """What a policy of many rules costs for each class seen for the first time, in the dispatcher's own core."""
    from hossctl.bench import policy as policies

    check(output, json)
    document = policies.measure(policies.Setting(rules, classes, repeat, seed))
    publish(document, output, json)
    if output.for_people:
        lines = [
            ("one rule for all pods", f"{document['microsAlike']:.1f} us a class"),
            (f"{rules} rules", f"{document['micros']:.1f} us a class"),
            ("the policy", f"{document['policyMicros']:.1f} us a class"),
            ("index of the rules", f"{document['compileMillis']:.1f} ms a policy"),
        ]
        print_summary(f"{classes:,} classes", lines)
