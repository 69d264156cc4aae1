"""simulate cluster, simulate omega."""

import os
import time
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from hoss.errors import InvalidInput
from hossctl.cli import EXIT_FAILED
from hossctl.console import Column, Document, Format, print_document, print_rows, print_summary, say, warn
from hossctl.options import Output, Seed, only
from hossctl.progress import bar
from hossctl.simulate import cluster_report
from hossctl.simulate.cluster import ServiceTimes, Setting, Simulation
from hossctl.simulate.measured import read_measured
from hossctl.simulate.omega_setting import Cell
from hossctl.simulate.omega_sweep import DAY_SECONDS, QUICK_SECONDS, QUICK_T_JOBS, T_JOBS, Sweep

app = typer.Typer()
group = typer.Typer(no_args_is_help=True, help="Play clusters and hours that no laptop holds, on virtual time.")
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


@group.command()
def omega(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="An hour instead of a day, and fewer decision times.")] = False,
    nodes: Annotated[int, typer.Option(min=1, help="Of 4 CPUs and 16 GiB.")] = 10_000,
    fill: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the CPUs that pods hold throughout.")] = 0.6,
    hours: Annotated[
        float | None, typer.Option(min=0.01, help="How long each run lasts, in virtual time.", show_default="24")
    ] = None,
    t_job: Annotated[
        str,
        typer.Option("--t-job", metavar="S,S", help="Decision times of service jobs, seconds; else 0.001 to 100."),
    ] = "",
    seed: Seed = 1,
    output: Output = Format.TABLE,
) -> None:
    """Omega's experiment (EuroSys 2013): busyness, conflicts and waits as service jobs take longer to decide on. Exit 1 if a node is
    overcommitted."""
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    horizon = 3600 * hours if hours is not None else QUICK_SECONDS if quick else DAY_SECONDS
    t_jobs = read_seconds(t_job, where="--t-job") if t_job else QUICK_T_JOBS if quick else T_JOBS
    sweep = Sweep(t_jobs, horizon, Cell(nodes=nodes, fill=fill), seed)
    runs = len(sweep.settings())
    if output.for_people:
        say(f"{runs} runs of {horizon / 3600:g} h, about {_duration(sweep.expected_seconds(time.perf_counter))} in all")
    results = []
    with bar("runs", runs, quiet=not output.for_people) as progress:
        for result in sweep.run():
            results.append(result)
            progress(len(results), f"{result.setting.architecture.value}, t_job {result.setting.service_t_job:g} s")
    document = sweep.as_json(results)
    if output.for_people:
        _print_omega(document)
    else:
        print_document(document, output)
    _fail_if_overcommitted(sum(result.overcommitted for result in results))


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
            min=0, help="For all processes together; 0: each has its own. Else 0; with --bench this machine's."
        ),
    ] = None,
    bench: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Sizes and service times of a `hoss bench throughput --json FILE`."),
    ] = None,
    seed: Seed = 1,
    output: Output = Format.TABLE,
) -> None:
    """A load placed by a whole platform: pods per second, conflicts, and which process is the limit. Exit 1 if a node is
    overcommitted."""
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    measured = None if bench is None else read_measured(bench)
    sizes = (5000, 200_000, 8) if quick else (100_000, 10_000_000, 64)
    if measured is not None:
        sizes = (measured.nodes, measured.pods, measured.workers)
    setting = Setting(
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
        print_summary(title, cluster_report.lines(outcome, measured))
    else:
        print_document(cluster_report.as_json(outcome, measured), output)
    _fail_if_overcommitted(outcome.overcommitted)


def _fail_if_overcommitted(nodes: int) -> None:
    if nodes:
        warn(f"{nodes} nodes are overcommitted; this is a fault in the simulation's ledger")
        raise typer.Exit(EXIT_FAILED)


def read_seconds(text: str, *, where: str) -> tuple[float, ...]:
    """`0.1,5` as seconds. InvalidInput for anything but numbers of 0 to a day."""
    try:
        seconds = tuple(map(float, text.split(",")))
    except ValueError as exc:
        raise InvalidInput(f"{text!r} is no list of seconds; write 0.1,1,10", where=where) from exc
    wrong = [value for value in seconds if not 0 <= value <= DAY_SECONDS]
    if wrong:
        raise InvalidInput(f"{wrong[0]:g} is no decision time; give seconds from 0 to {DAY_SECONDS:g}", where=where)
    return seconds


def _print_omega(document: Document) -> None:
    def variant(point: Document) -> str:
        return f"{point['architecture']}, {point['conflicts']}, {point['transactions']}"

    for title, points in groupby(document["points"], variant):
        typer.echo(f"\n{title}")
        print_rows(list(points), _OMEGA_COLUMNS, wide=False)


def _tries(tries: float | None) -> str:
    return "" if tries is None else f"{tries:.2f}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
