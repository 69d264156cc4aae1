"""Benchmarks of single parts of HOSS: `python -m tools.bench --help`."""

from pathlib import Path
from typing import Annotated

import typer
from typer.main import get_command

from hoss.errors import InvalidInput
from hossctl.__main__ import run
from hossctl.choices import Submitted
from hossctl.commands.bench.figures_file import JsonFile, check, publish
from hossctl.console import Column, Document, Format
from hossctl.options import Output, RedisUrl, Repeat, Seed, read_counts
from tools.bench import platform_commands

app = typer.Typer(no_args_is_help=True, help="Measure single parts of HOSS. For its developers.")


@app.command()
def steps(
    *,
    pods: Annotated[int, typer.Option(min=1, help="Of one large job.")] = 9_000_000,
    part: Annotated[str, typer.Option(help="Only this one.", metavar="NAME")] = "",
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """The longest steps of the dispatcher's event loop, in CPU time: with a job of nine million pods, 50,000
    pods of as many classes, a gang of 100,000, a million pods watched, and their recovery."""
    from tools.bench import steps as measured

    check(output, json)
    if part and part not in measured.PARTS:
        raise InvalidInput(f"{part!r} is none of {', '.join(measured.PARTS)}", where="--part")
    document = measured.measure(measured.Setting(pods), part)
    publish(document, output, json, title=f"steps with {pods:,} pods", lines=measured.lines(document))


_DEFRAGMENT_COLUMNS = (
    Column("MOVED BY", lambda row: row["by"]),
    Column("PODS", lambda row: f"{row['pods']:.0f}"),
    Column("MOVES", lambda row: f"{row['moves']:.0f}"),
    Column("UNPLACED", lambda row: f"{row['unplaced']:.1f}"),
    Column("CARDS FREE", lambda row: f"{row['freeMilli'] / 1000:.0f}"),
    Column("FRAGMENTS", lambda row: _before_and_after(row, "fragments")),
    Column("LESS", lambda row: f"{row['fallPercent']:.1f}%"),
    Column("LEAST", lambda row: f"{row['leastFragments'] / 1000:.0f}"),
    Column("OF CARD CLASSES", lambda row: _before_and_after(row, "fragmentsOfCards")),
    Column(
        "LESS",
        lambda row: (
            f"{row['fallOfCardsPercent']:.1f}% ({row['fallOfCardsRange'][0]:.1f} to "
            f"{row['fallOfCardsRange'][1]:.1f})"
        ),
    ),
    Column(
        "LARGE PODS BOUND",
        lambda row: (
            f"{row['largeBoundBefore']:.0f} to {row['largeBoundAfter']:.0f} of {row['largePending']:.0f}"
        ),
    ),
    Column("CPU SECONDS", lambda row: f"{row['cpuSeconds']:.1f}"),
)


def _before_and_after(row: Document, field: str) -> str:
    return f"{row[f'{field}Before'] / 1000:.0f} to {row[f'{field}After'] / 1000:.0f}"


@app.command()
def defragment(
    *,
    nodes: Annotated[Path, typer.Option(metavar="FILE", help="The openb trace's list of nodes.")],
    pods: Annotated[Path, typer.Option(metavar="FILE", help="One of its lists of pods.")],
    filling: Annotated[
        str, typer.Option(help="random, spread, best-fit or fgd: how it was filled.")
    ] = "random",
    share: Annotated[float, typer.Option(min=0, max=1, help="Of the pods that may be moved.")] = 0.05,
    seeds: Annotated[int, typer.Option(min=1, help="Clusters, with the seeds from 1 on.")] = 10,
    descheduled: Annotated[
        bool,
        typer.Option(
            "--descheduler/--no-descheduler", help="Beside fit-pending and the descheduler's strategies."
        ),
    ] = True,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """What moves win back of a GPU cluster of which a third of the pods has gone at random."""
    from hossctl.traces import openb
    from tools.bench import defragment as part

    check(output, json)
    try:
        filled = part.Filling(filling)
    except ValueError:
        names = ", ".join(known.value for known in part.Filling)
        raise InvalidInput(f"is {filling!r}; it must be one of {names}", where="--filling") from None
    specs, workloads = openb.read_nodes(nodes), openb.read_pods(pods)
    rows = []
    for seed in range(1, seeds + 1):
        decayed = part.decay(specs, workloads, seed, filled)
        found = part.study(decayed, share, descheduled=descheduled, seed=seed)
        rows += part.as_json(seed, found, len(decayed.large))
    means = part.summary(rows)
    document: Document = {"share": share, "filling": filled.value, "results": rows, "means": means}
    publish(document, output, json, table=(means, _DEFRAGMENT_COLUMNS))


_PLAN_COLUMNS = (
    Column("PLAN", lambda row: row["goal"]),
    Column("MOVES", lambda row: row["moves"]),
    Column("CPU SECONDS", lambda row: f"{row['cpuSeconds']:.2f}"),
    Column("BY THE CLOCK", lambda row: f"{row['clockSeconds']:.2f}"),
)


@app.command("plans")
def plan_costs(
    *,
    nodes: Annotated[int, typer.Option(min=5)] = 5000,
    pods: Annotated[int, typer.Option(min=200, help="20 a node, as a mean, or fewer.")] = 100_000,
    moves: Annotated[int, typer.Option(min=1, help="The most moves of a plan.")] = 200,
    repeat: Annotated[int, typer.Option(min=1, help="Figures are medians.")] = 3,
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """What `hoss fragmentation` and a plan of moves for each goal cost, without reading the platform."""
    from tools.bench import plans

    check(output, json)
    if pods > 20 * nodes:
        raise InvalidInput(f"are {pods:,}, and {20 * nodes:,} find room", where="--pods")
    document = plans.measure(plans.Setting(nodes, pods, moves, repeat, seed))
    spent = document["measuring"]
    lines = (
        ("measuring", f"{spent['cpuMillis']:.1f} ms of CPU time, {spent['clockMillis']:.1f} by the clock"),
    )
    title = f"{nodes:,} nodes, {pods:,} pods"
    publish(document, output, json, table=(document["plans"], _PLAN_COLUMNS), title=title, lines=lines)


@app.command()
def devices(
    *,
    nodes: Annotated[int, typer.Option(min=1)] = 5000,
    each: Annotated[int, typer.Option(min=1, help="Devices of each node.")] = 8,
    pods: Annotated[int, typer.Option(min=2)] = 300,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """What pods with claims to devices cost in a worker's own core."""
    from tools.bench.devices import DeviceSetting, measure_devices

    check(output, json)
    document = measure_devices(DeviceSetting(nodes, each, pods))
    first, further = document["firstMillis"], document["furtherMillis"]
    lines = (
        ("first pod", f"{first:.1f} ms"),
        ("each further one", f"{further:.2f} ms, with a claim of its own"),
    )
    publish(document, output, json, title=f"{nodes:,} nodes, {nodes * each:,} devices", lines=lines)


_PLUGIN_COLUMNS = (
    Column("PLUGIN", lambda row: row["plugin"]),
    Column("NEW CLASS (US)", lambda row: f"{row['newMicros']:.1f}"),
    Column("KNOWN (US)", lambda row: f"{row['knownMicros']:.1f}"),
    Column(
        "GOALS",
        lambda row: (
            "" if row["goalNewMicros"] is None else f"{row['goalNewMicros']:g}, {row['goalKnownMicros']:g}"
        ),
    ),
    Column("NEW, 1/10 OF THE PODS", lambda row: f"{row['newMicrosFewer']:.1f}"),
    Column("KNOWN, 1/10", lambda row: f"{row['knownMicrosFewer']:.1f}"),
)


@app.command()
def plugins(
    *,
    nodes: Annotated[int, typer.Option(min=1)] = 5000,
    pods: Annotated[
        int, typer.Option(min=0, help="Bound already; measured again with a tenth of them.")
    ] = 50_000,
    repeat: Annotated[
        int, typer.Option(min=1, help="Classes, and placements of a class; figures are medians.")
    ] = 300,
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """What each scheduling plugin costs for one pod, of a class never seen and of a known one, in a worker's
    own core."""
    from tools.bench import plugins as plugin_costs

    check(output, json)
    document = plugin_costs.measure(plugin_costs.Setting(nodes, pods, repeat, seed))
    publish(document, output, json, table=(document["plugins"], _PLUGIN_COLUMNS))


@app.command()
def dispatch(
    *,
    mode: Annotated[
        Submitted, typer.Option(help="replicas: one job; distinct: bare pods, no two alike, 500 a message.")
    ] = Submitted.REPLICAS,
    pods: Annotated[
        int | None,
        typer.Option(min=1, help="1,000,000; 100,000 where they are distinct.", show_default=False),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Stand-ins that take every pod at once.")] = 2,
    rules: Annotated[int, typer.Option(min=1, help="Of the policy in force; the last one matches.")] = 1,
    tenants: Annotated[int, typer.Option(min=1, help="Namespaces that the pods are of.")] = 1,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory", help="Measure memory instead: so many queued pods in one job, and in 10,000 classes."
        ),
    ] = False,
    repeat: Repeat = 1,
    redis_url: RedisUrl = "",
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """What the dispatcher alone accepts, queues and dispatches on one core, its journal included."""
    from tools.bench import dispatch as dispatching

    check(output, json)
    count = pods or dispatching.DEFAULT_PODS[mode]
    if memory:
        rows = dispatching.measure_memory(count, redis_url)
        title, document, lines = "memory", {"memory": rows}, list(dispatching.memory_lines(rows))
    else:
        result = dispatching.measure(
            dispatching.Setting(mode, count, workers, rules, tenants, repeat, redis_url)
        )
        title, document, lines = f"{count:,} pods, {mode.value}", result.as_json(), result.lines()
    publish(document, output, json, title=title, lines=lines)


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


@app.command("resolver")
def resolvers(
    *,
    nodes: Annotated[int, typer.Option(min=1)] = 5000,
    resolvers: Annotated[str, typer.Option(metavar="N,N")] = "1,2",
    shards: Annotated[str, typer.Option(metavar="N,N")] = "1,4,16",
    batch: Annotated[str, typer.Option(metavar="N,N", help="Pods of a proposal.")] = "1,10,100,1000",
    conflicts: Annotated[
        str, typer.Option(metavar="N,N", help="Per cent of pods that do not fit.")
    ] = "0,10,50",
    pods: Annotated[int, typer.Option(min=1, help="Of each case.")] = 40_000,
    quick: Annotated[
        bool, typer.Option("--quick", help="One resolver, one shard, batches of 100 and 1,000.")
    ] = False,
    repeat: Annotated[
        int, typer.Option(min=1, help="Runs; of each case the one with the median rate is shown.")
    ] = 1,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Pods that resolvers decide in a second, beside the ledger's script alone; the last case of each batch
    is one node for all."""
    from tools.bench import resolver as deciding

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
    publish(
        document, output, json, table=(rows, _RESOLVER_COLUMNS), title="goals", lines=deciding.goals(cases)
    )


@app.command("policy")
def policy_cost(
    *,
    rules: Annotated[int, typer.Option(min=1)] = 100,
    classes: Annotated[int, typer.Option(min=1, help="All different.")] = 10_000,
    repeat: Annotated[int, typer.Option(min=1, help="Figures are medians.")] = 15,
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """What a policy of many rules costs for each class seen for the first time, in the dispatcher's own
    core."""
    from tools.bench import policy as policies

    check(output, json)
    document = policies.measure(policies.Setting(rules, classes, repeat, seed))
    lines = [
        ("one rule for all pods", f"{document['microsAlike']:.1f} us a class"),
        (f"{rules} rules", f"{document['micros']:.1f} us a class"),
        ("the policy", f"{document['policyMicros']:.1f} us a class"),
        ("index of the rules", f"{document['compileMillis']:.1f} ms a policy"),
    ]
    publish(document, output, json, title=f"{classes:,} classes", lines=lines)


@app.command("moves")
def move_rate(
    *,
    nodes: Annotated[int, typer.Option(min=2)] = 5000,
    pods: Annotated[int, typer.Option(min=1)] = 50_000,
    batch: Annotated[int, typer.Option(min=1, max=1000, help="Pods in a proposal.")] = 500,
    repeat: Annotated[int, typer.Option(min=1, help="Figures are medians.")] = 5,
    two_steps: Annotated[
        bool, typer.Option("--two-steps", help="Move as between shards: reserve, then confirm.")
    ] = False,
    seed: Seed = 1,
    json: JsonFile = None,
    output: Output = Format.TABLE,
) -> None:
    """The rate at which the ledger moves pods, beside that at which it commits and confirms them."""
    from tools.bench import moves

    check(output, json)
    document = moves.measure(moves.Setting(nodes, pods, batch, seed, repeat, two_steps))
    lines = [
        ("commits", f"{document['commitsPerSecond']:,} pods/s, {document['commitMicros']} us of Redis a pod"),
        ("moves", f"{document['movesPerSecond']:,} pods/s, {document['moveMicros']} us of Redis a pod"),
        ("ratio", f"{document['ratio']:.2f} (goal 0.5)"),
    ]
    publish(
        document, output, json, title=f"{pods:,} pods in batches of {batch}, {nodes:,} nodes", lines=lines
    )


for command in (
    platform_commands.tracing,
    platform_commands.access,
    platform_commands.sync,
    platform_commands.sdk,
    platform_commands.reconnect,
    platform_commands.rebuild,
    platform_commands.takeover,
    platform_commands.mirror,
):
    app.command()(command)


def main() -> None:
    """Run one benchmark; a problem is one line and an exit code, as with `hoss`."""
    run(get_command(app), "python -m tools.bench")


if __name__ == "__main__":
    main()
