"""bench compare."""

import math
import shlex
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from hoss.errors import InvalidInput
from hossctl.choices import TraceFormat
from hossctl.cli import EXIT_FAILED
from hossctl.commands.trace_options import (
    DEFAULT_MACHINE,
    FORMATS_HELP,
    Begin,
    Collections,
    End,
    Limit,
    MachineSize,
    MachineType,
    Speedup,
    read_machine,
    read_window,
    tell_left_out,
)
from hossctl.compare.axes import BASE_FILL, BASE_NODES, BASE_WORKERS, MODES, ON_KUBERNETES, Load, Mode
from hossctl.console import Format
from hossctl.options import (
    BaselinePath,
    CsvPath,
    FailOnRegression,
    HtmlPath,
    JsonPath,
    Output,
    PlotsPath,
    RedisUrl,
    Seed,
    read_counts,
)

if TYPE_CHECKING:
    from hossctl.compare.document import Cell, Comparison
    from hossctl.compare.traces import Trace
    from hossctl.traces.reading import Source


EXIT_INTERRUPTED = 130


class Peer(str, Enum):
    """With whom HOSS is compared on Kubernetes."""

    KUBE_SCHEDULER = "kube-scheduler"


MOST_NODES = 100_000
MOST_WORKERS = 64

_QUICK_REPEAT, _REPEAT = 2, 3
_NameT = TypeVar("_NameT", bound=Enum)


def compare(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two loads on 400 nodes; under three minutes on two cores.")
    ] = False,
    modes: Annotated[
        str, typer.Option(metavar="NAME,...", help=f"Of {', '.join(m.value for m in MODES)}; else all.")
    ] = "",
    loads: Annotated[
        str, typer.Option(metavar="NAME,...", help=f"Of {', '.join(load.value for load in Load)}; else uniform.")
    ] = "",
    workers: Annotated[str, typer.Option(metavar="N,...", help=f"Where there are several; else {BASE_WORKERS}.")] = "",
    fills: Annotated[
        str, typer.Option(metavar="F,...", help=f"Share of all cpu (openb: cards) asked for; else {BASE_FILL}.")
    ] = "",
    nodes: Annotated[str, typer.Option(metavar="N,...", help=f"Else {BASE_NODES:,}.")] = "",
    pods: Annotated[int, typer.Option(min=0, help="So many pods instead of a fill.")] = 0,
    peer: Annotated[
        Peer | None,
        typer.Option(
            help="Also this one and HOSS, each on a control plane of its own (`make controlplane` builds it)."
        ),
    ] = None,
    decision_job_ms: Annotated[
        float, typer.Option("--decision-job-ms", min=0, max=60_000, help="Added to every decision of a worker.")
    ] = 0.0,
    decision_task_ms: Annotated[
        float, typer.Option("--decision-task-ms", min=0, max=50, help="Added for every pod of a decision.")
    ] = 0.0,
    trace_format: Annotated[TraceFormat, typer.Option(help=f"Of the load trace. {FORMATS_HELP}")] = TraceFormat.OPENB,
    trace_nodes: Annotated[
        str, typer.Option(metavar="FILE|N", help="Its nodes, as `hoss replay --nodes` takes them.")
    ] = "",
    trace_pods: Annotated[Path | None, typer.Option(metavar="FILE", help="And its pods.")] = None,
    collections: Collections = None,
    machine_size: MachineSize = DEFAULT_MACHINE,
    machine_type: MachineType = None,
    limit: Limit = 0,
    begin: Begin = "",
    end: End = "",
    speedup: Speedup = 0.0,
    repeat: Annotated[
        int | None,
        typer.Option(min=1, help="Runs of each cell.", show_default=f"{_REPEAT}; {_QUICK_REPEAT} with --quick"),
    ] = None,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    json: JsonPath = None,
    csv: CsvPath = None,
    plots: PlotsPath = None,
    html: HtmlPath = None,
    baseline: BaselinePath = None,
    fail_on_regression: FailOnRegression = False,
    output: Output = Format.TABLE,
) -> None:
    """One scheduler, several uncoordinated, partitioned, locked, and with HOSS, under the same loads on real services.

    Without lists: a matrix that varies one thing at a time, in some 20 minutes on two cores. With any: the product of those given.
    Ctrl-C ends it early (130); what was measured is kept. Exit 1 if any mode but the uncoordinated overcommits a node, or a run failed.
    """
    from hossctl.compare.cells import Axes, default_cells, of_axes, peer_cells, quick_cells
    from hossctl.compare.document import Decision
    from hossctl.compare.machine import this_machine
    from hossctl.compare.measuring import Measuring
    from hossctl.compare.publishing import Wanted, check, publish
    from hossctl.compare.running import Plan
    from hossctl.kube_binaries import find_binaries
    from hossctl.progress import bar
    from hossctl.traces.reading import Source

    wanted = Wanted(json, csv, plots, html, baseline, fail_on_regression)
    check(output, wanted)
    control_plane = find_binaries() if peer else None
    if trace_nodes and trace_pods is not None:
        window = read_window(begin, end, limit, speedup)
        size = read_machine(machine_size)
        source = Source(
            trace_format, trace_nodes, trace_pods, collections, size, machine_type, window, nodes_option="--trace-nodes"
        )
        trace = _played(source, speedup)
    else:
        only_of_a_trace = {
            "--speedup": speedup,
            "--from": begin,
            "--to": end,
            "--limit": limit,
            "--collections": collections,
        }
        _refuse_half_a_trace(trace_nodes, trace_pods, only_of_a_trace)
        trace = None
    decision = Decision(job_ms=decision_job_ms, task_ms=decision_task_ms)
    if any((modes, loads, workers, fills, nodes, pods, decision_job_ms, decision_task_ms, trace)):
        if quick:
            raise InvalidInput("is a matrix of its own; leave out the lists, or --quick", where="--quick")
        axes = Axes(
            modes=_named(modes, Mode, MODES, where="--modes"),
            loads=(Load.TRACE,) if trace and not loads else _named(loads, Load, (Load.UNIFORM,), where="--loads"),
            workers=_counts(workers, BASE_WORKERS, MOST_WORKERS, where="--workers"),
            fills=_shares(fills, where="--fills"),
            nodes=_counts(nodes, BASE_NODES, MOST_NODES, where="--nodes"),
            pods=pods,
            decision=decision,
            peer=peer is not None,
        )
        cells = _with_trace(of_axes(axes), trace)
    else:
        cells = quick_cells() if quick else default_cells()
        cells = list(dict.fromkeys([*cells, *peer_cells(quick=quick)])) if peer else cells
    plan = Plan(cells, repeat or (_QUICK_REPEAT if quick else _REPEAT), seed, redis_url, trace)
    machine = this_machine(redis_url, control_plane)
    check(output, wanted, machine, plan.cells)
    measuring = Measuring(plan, machine, shlex.join(["hoss", *sys.argv[1:]]))
    title = f"{len(plan.cells)} cell{'s' * (len(plan.cells) != 1)}, {plan.repeat} run{'s' * (plan.repeat != 1)} of each"
    with bar(title, plan.runs, quiet=not output.for_people) as progress:
        measuring.run(progress)
    comparison = measuring.comparison
    code = publish(comparison, output, wanted)
    if measuring.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if code or measuring.left_out or _broken(comparison):
        raise typer.Exit(code or EXIT_FAILED)


def _broken(comparison: "Comparison") -> bool:
    """Whether anybody overcommitted who promises not to."""
    return any(run.overcommit.nodes for run in comparison.runs if run.cell.mode is not Mode.UNCOORDINATED)


def _named(text: str, kind: type[_NameT], default: tuple[_NameT, ...], *, where: str) -> tuple[_NameT, ...]:
    """Members of an enumeration by their values, each once, in the order given."""
    known = {member.value: member for member in kind if member not in ON_KUBERNETES}
    names = list(dict.fromkeys(part.strip() for part in text.split(","))) if text else []
    for name in names:
        if name not in known:
            raise InvalidInput(f"{name!r} is none of {', '.join(known)}", where=where)
    return tuple(known[name] for name in names) or default


def _counts(text: str, default: int, most: int, *, where: str) -> tuple[int, ...]:
    counts = tuple(dict.fromkeys(read_counts(text, where=where))) if text else (default,)
    if max(counts) > most:
        raise InvalidInput(f"{max(counts):,} is more than {most:,}", where=where)
    return counts


def _shares(text: str, *, where: str) -> tuple[float, ...]:
    found = []
    for part in text.split(",") if text else [str(BASE_FILL)]:
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not 0 < value <= 2:
            raise InvalidInput(f"{part!r} is no share; write 0.8 for 80 %, 2 at most", where=where)
        found.append(value)
    return tuple(dict.fromkeys(found))


def _played(source: "Source", speedup: float) -> "Trace":
    from hossctl.compare.traces import replayed
    from hossctl.traces.reading import read

    recording = read(source)
    tell_left_out(recording)
    return replayed(recording.nodes, recording.pods, speedup)


def _refuse_half_a_trace(nodes: str, pods: Path | None, options: Mapping[str, object]) -> None:
    if nodes or pods is not None:
        raise InvalidInput("a trace is both --trace-nodes and --trace-pods", where="--trace-nodes, --trace-pods")
    given = [name for name, value in options.items() if value]
    if given:
        raise InvalidInput("needs a trace: --trace-nodes and --trace-pods", where=given[0])


def _with_trace(cells: "list[Cell]", trace: "Trace | None") -> "list[Cell]":
    """Cells of the load trace say what it is: its own nodes and pods, whatever the axes say of other loads."""
    if trace is None and any(cell.load is Load.TRACE for cell in cells):
        raise InvalidInput("trace needs --trace-nodes and --trace-pods", where="--loads")
    size = {} if trace is None else {"nodes": len(trace.nodes), "pods": trace.pods, "fill": 0.0}
    sized = [cell.model_copy(update=size) if cell.load is Load.TRACE else cell for cell in cells]
    return list(dict.fromkeys(sized))
