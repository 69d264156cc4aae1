"""The group simulate: omega, cluster, rebalance, check."""

import importlib
import json
import os
import time
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from hoss.errors import InvalidInput
from hossctl.choices import SimulatedCare, SimulatedPlacer
from hossctl.cli import EXIT_FAILED
from hossctl.console import Column, Document, Format, print_document, print_rows, print_summary, say, warn
from hossctl.options import Output, PlotsPath, Seed, only

app = typer.Typer()
group = typer.Typer(
    no_args_is_help=True, help="Play clusters and hours that no laptop holds, on virtual time."
)
app.add_typer(group, name="simulate")

_CHUNK_PODS = 20_000

_OMEGA_COLUMNS = (
    Column("T_JOB (S)", lambda row: f"{row['serviceTJobSeconds']:g}"),
    Column("SERVICE BUSY", lambda row: f"{row['kinds']['service']['busyness']:.2f}"),
    Column("BATCH BUSY", lambda row: f"{row['kinds']['batch']['busyness']:.2f}"),
    Column("SERVICE WAIT (S)", lambda row: f"{row['kinds']['service']['waitSeconds']:,.2f}"),
    Column("BATCH WAIT (S)", lambda row: f"{row['kinds']['batch']['waitSeconds']:,.2f}"),
    Column("SERVICE CONFLICTS", lambda row: f"{row['kinds']['service']['conflictFraction']:.3f}"),
    Column("BATCH CONFLICTS", lambda row: f"{row['kinds']['batch']['conflictFraction']:.3f}"),
    Column("SERVICE TASKS REFUSED", lambda row: f"{row['kinds']['service']['taskConflictShare']:.2%}"),
    Column("SERVICE TRIES A JOB", lambda row: _tries(row["kinds"]["service"]["triesPerJob"])),
)

_REBALANCE_COLUMNS = (
    Column("CASE", lambda row: row["name"]),
    Column("CPU USED OF NODES IN USE", lambda row: f"{row['utilisation']:.1%}"),
    Column("NODES IN USE", lambda row: f"{row['nodesInUse']:.1f}"),
    Column("PODS WAITING", lambda row: f"{row['podsWaiting']:.2f}"),
    Column("PODS CAME", lambda row: f"{row['podsCame']:,}"),
    Column("MOVES A DAY", lambda row: f"{row['movesPerDay']:,.0f}"),
    Column("PREEMPTED A DAY", lambda row: f"{row['preemptedPerDay']:,.0f}"),
    Column("STOOD OFF", lambda row: row["standOffs"]),
)

_CHECK_COLUMNS = (
    Column("MODE", lambda row: row["mode"]),
    Column("WORKERS", lambda row: str(row["workers"])),
    Column("NODES", lambda row: f"{row['nodes']:,}"),
    Column("FILL", lambda row: f"{row['fill']:.0%}" if row["fill"] else ""),
    Column("PODS", lambda row: f"{row['pods']:,}"),
    Column("PODS/S MEASURED", lambda row: _range(row["podsPerSecond"], "{:,.0f}")),
    Column("SIMULATED", lambda row: f"{row['podsPerSecond']['simulated']:,.0f}"),
    Column("CONFLICTS MEASURED", lambda row: _range(row["conflictShare"], "{:.2%}")),
    Column("SIMULATED", lambda row: f"{row['conflictShare']['simulated']:.2%}"),
    Column("AGREE", lambda row: "yes" if row["agrees"] else "unclear" if row["unclear"] else "no"),
)


@group.command()
def omega(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="An hour instead of a day, and fewer decision times.")
    ] = False,
    nodes: Annotated[int, typer.Option(min=1, help="Of 4 CPUs and 16 GiB.")] = 10_000,
    fill: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the CPUs that pods hold throughout.")
    ] = 0.6,
    hours: Annotated[
        float | None,
        typer.Option(min=0.01, help="How long each run lasts, in virtual time.", show_default="24"),
    ] = None,
    t_job: Annotated[
        str,
        typer.Option(
            "--t-job", metavar="S,S", help="Decision times of service jobs, seconds; else 0.001 to 100."
        ),
    ] = "",
    seed: Seed = 1,
    jobs: Annotated[
        int, typer.Option("-j", "--jobs", min=1, help="So many runs at a time, each on a core of its own.")
    ] = 1,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Write the document there after every run; go on with what it has."
        ),
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write a line for each run and kind of jobs.")
    ] = None,
    plots: PlotsPath = None,
    output: Output = Format.TABLE,
) -> None:
    """Omega's experiment (EuroSys 2013): busyness, conflicts and waits as service jobs take longer to decide
    on. Interrupted with --json, the same command continues. Exit 1 if a node is overcommitted."""
    from hossctl.compare.report.publishing import ReportOptions, write, write_plots
    from hossctl.compare.report.publishing import check as check_outputs
    from hossctl.load.progress import bar
    from hossctl.simulate import omega_sweep
    from hossctl.simulate.omega import OmegaCell
    from hossctl.simulate.omega_sweep import DAY_SECONDS, QUICK_SECONDS, QUICK_T_JOBS, T_JOBS, Sweep, play

    check_outputs(output, ReportOptions(json=json_file, csv=csv_file, plots=plots))
    horizon = 3600 * hours if hours is not None else QUICK_SECONDS if quick else DAY_SECONDS
    t_jobs = read_seconds(t_job, where="--t-job") if t_job else QUICK_T_JOBS if quick else T_JOBS
    sweep = Sweep(t_jobs, horizon, OmegaCell(nodes=nodes, fill=fill), seed)
    points = [] if json_file is None else omega_sweep.points_in(json_file, sweep, where=f"--json {json_file}")
    runs, missing = len(sweep.settings()), omega_sweep.missing(sweep, points)
    if output.for_people and missing:
        known = f", {len(points)} of them in {json_file.name}" if points and json_file is not None else ""
        expected = _duration(sweep.expected_seconds(-(-len(missing) // jobs), time.perf_counter))
        say(f"{runs} runs of {horizon / 3600:g} h{known}, about {expected} in all")
    with bar("runs", runs, quiet=not output.for_people) as progress, closing(play(missing, jobs)) as results:
        for result in results:
            points.append(omega_sweep.point(result))
            if json_file is not None:
                _keep(json_file, omega_sweep.as_json(sweep, points))
            progress(
                len(points), f"{result.setting.architecture.value}, t_job {result.setting.service_t_job:g} s"
            )
    document = omega_sweep.as_json(sweep, points)
    if csv_file is not None:
        write(csv_file, omega_sweep.as_csv(document).encode(), "--csv")
    if plots is not None:
        # Imported late, because it needs matplotlib.
        write_plots(plots, importlib.import_module("hossctl.simulate.omega_plots").draw(document))
    if output.for_people:
        _print_omega(document)
    else:
        print_document(document, output)
    _fail_if_overcommitted(sum(point["overcommittedNodes"] for point in points))


@group.command("cluster")
def whole_cluster(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="5,000 nodes, 200,000 pods, 8 workers.")] = False,
    nodes: Annotated[int | None, typer.Option(min=1, show_default="100000")] = None,
    pods: Annotated[int | None, typer.Option(min=1, help="All alike.", show_default="10000000")] = None,
    workers: Annotated[int | None, typer.Option(min=1, show_default="64")] = None,
    resolvers: Annotated[int, typer.Option(min=1)] = 1,
    shards: Annotated[int, typer.Option(min=1, help="Of the ledger, each a Redis of its own.")] = 1,
    cores: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="For all processes together; 0: each has its own. Else 0; with --bench this machine's.",
        ),
    ] = None,
    bench: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Sizes and service times of a `hoss bench throughput --json FILE`."
        ),
    ] = None,
    seed: Seed = 1,
    output: Output = Format.TABLE,
) -> None:
    """A load placed by a whole platform: pods per second, conflicts, and which process is the limit. Exit 1
    if a node is overcommitted."""
    from hossctl.load.progress import bar
    from hossctl.simulate import cluster
    from hossctl.simulate.cluster import Simulation, SimulationSetting
    from hossctl.simulate.measured import ServiceTimes, read_measured

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    measured = None if bench is None else read_measured(bench)
    sizes = (5000, 200_000, 8) if quick else (100_000, 10_000_000, 64)
    if measured is not None:
        sizes = (measured.nodes, measured.pods, measured.workers)
    setting = SimulationSetting(
        nodes or sizes[0],
        pods or sizes[1],
        workers or sizes[2],
        resolvers,
        shards,
        cores if cores is not None else 0 if measured is None else os.cpu_count() or 1,
        ServiceTimes() if measured is None else measured.times,
        seed,
    )
    if output.for_people:
        say(f"filling {setting.workers} caches of {setting.nodes:,} nodes")
    simulation = Simulation(setting)
    with bar("pods", setting.pods, quiet=not output.for_people) as progress:
        while simulation.advance(_CHUNK_PODS):
            progress(simulation.bound, "")
        progress(simulation.bound, "")
    outcome = simulation.outcome()
    if output.for_people:
        title = f"{setting.pods:,} pods, {setting.nodes:,} nodes, {setting.workers} workers, on virtual time"
        print_summary(title, cluster.lines(outcome, measured))
    else:
        print_document(cluster.as_json(outcome, measured), output)
    _fail_if_overcommitted(outcome.overcommitted)


@group.command()
def rebalance(
    *,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A RebalancePolicy; else fit-pending and empty-nodes, at any time."
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(min=2, help="Of 16 CPUs and 64 GiB.")] = 40,
    days: Annotated[float, typer.Option(min=0.05, help="Of virtual time; it begins on a Monday.")] = 7.0,
    placer: Annotated[
        SimulatedPlacer, typer.Option(help="Where pods go when they come, of the nodes that accept them.")
    ] = SimulatedPlacer.FULLEST,
    urgent: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the pods that preempt others.")
    ] = 0.0,
    seed: Seed = 1,
    output: Output = Format.TABLE,
) -> None:
    """Play days of pods that come and go: without rebalancing, packed anew each night, and with the rebalance
    controller. How full the nodes in use are, and how many pods are moved for it."""
    from hossctl.load.progress import bar
    from hossctl.rebalance.policy import read_policy
    from hossctl.simulate import rebalancing

    chosen = rebalancing.DEFAULT_POLICY if policy is None else read_policy(policy)[0]
    setting = rebalancing.RebalancingSetting(chosen, nodes, days, placer, seed, urgent)
    results = []
    with bar("cases", len(SimulatedCare), quiet=not output.for_people) as progress:
        for result in rebalancing.play(setting):
            results.append(result)
            progress(len(results), result.name)
    document = rebalancing.as_json(setting, results)
    if output.for_people:
        print_rows(document["cases"], _REBALANCE_COLUMNS)
    else:
        print_document(document, output)


@group.command()
def check(
    *,
    measured: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="The comparison.json of `hoss bench compare --out`: modes single and multi-hoss.",
        ),
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Simulated runs of each cell; their mean is shown.")] = 20,
    output: Output = Format.TABLE,
) -> None:
    """Measured beside simulated throughput and conflicts, with the same service times. Exit
    1 if they are further apart than 20 %, unless the measured runs differ too much from one another to
    tell."""
    from hossctl.compare.document import read as read_comparison
    from hossctl.load.progress import bar
    from hossctl.simulate.agreement import Check

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    comparison = Check(read_comparison(measured), seeds)
    cells = []
    if not comparison.cells:
        problem = "holds no whole run of the modes single or multi-hoss under the load uniform"
        raise InvalidInput(problem, where=f"--measured {measured}")
    with bar("cells", len(comparison.cells), quiet=not output.for_people) as progress:
        for cell in comparison.beside():
            cells.append(cell)
            progress(len(cells), "")
    document = comparison.as_json(cells)
    if output.for_people:
        print_rows(document["cells"], _CHECK_COLUMNS, wide=False)
        if comparison.not_played:
            say(f"not simulated: {comparison.not_played} runs of other modes or loads, or interrupted")
    else:
        print_document(document, output)
    unclear = sum(cell.unclear for cell in cells)
    if unclear:
        warn(
            f"{unclear} of {len(cells)} cells are unclear: their measured runs differ too much; repeat "
            "them more often"
        )
    apart = sum(not cell.agrees for cell in cells) - unclear
    if apart:
        warn(f"{apart} of {len(cells)} cells are further apart than 20 %")
        raise typer.Exit(EXIT_FAILED)


def _keep(path: Path, document: Document) -> None:
    """Replace the file at once: after an interruption it has the former document or this one."""
    from hossctl.compare.report.publishing import write

    unfinished = path.with_name(f"{path.name}.part")
    write(unfinished, f"{json.dumps(document, indent=1)}\n".encode(), "--json")
    unfinished.replace(path)


def _fail_if_overcommitted(nodes: int) -> None:
    if nodes:
        warn(f"{nodes} nodes are overcommitted; this is a fault in the simulation's ledger")
        raise typer.Exit(EXIT_FAILED)


def read_seconds(text: str, *, where: str) -> tuple[float, ...]:
    """`0.1,5` as seconds. InvalidInput for anything but numbers of 0 to a day."""
    from hossctl.simulate.omega_sweep import DAY_SECONDS

    try:
        seconds = tuple(map(float, text.split(",")))
    except ValueError as exc:
        raise InvalidInput(f"{text!r} is no list of seconds; write 0.1,1,10", where=where) from exc
    wrong = [value for value in seconds if not 0 <= value <= DAY_SECONDS]
    if wrong:
        raise InvalidInput(
            f"{wrong[0]:g} is no decision time; give seconds from 0 to {DAY_SECONDS:g}", where=where
        )
    return seconds


def _print_omega(document: Document) -> None:
    def variant(point: Document) -> str:
        return f"{point['architecture']}, {point['conflicts']}, {point['transactions']}"

    for title, points in groupby(document["points"], variant):
        typer.echo(f"\n{title}")
        print_rows(list(points), _OMEGA_COLUMNS, wide=False)


def _range(figure: Document, form: str) -> str:
    middle, lowest, highest = (form.format(figure[name]) for name in ("measured", "lowest", "highest"))
    return f"{middle} ({lowest} to {highest})"


def _tries(tries: float | None) -> str:
    return "" if tries is None else f"{tries:.2f}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
