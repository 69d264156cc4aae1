"""bench compare, and bench report: a comparison that was measured before, shown again."""

import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput, counted
from hossctl.choices import (
    BASE_FILL,
    BASE_NODES,
    BASE_WORKERS,
    DEFAULT_SCHEDULER,
    MODES,
    SCHEDULERS,
    Load,
    Mode,
    TraceFormat,
)
from hossctl.cli import EXIT_FAILED
from hossctl.commands.replay import (
    DEFAULT_MACHINE,
    FORMATS_HELP,
    Speedup,
    read_machine,
    read_window,
    say_left_out,
)
from hossctl.console import Format
from hossctl.options import (
    AgainstPath,
    BaselinePath,
    CsvPath,
    FailOnRegression,
    HtmlPath,
    JsonPath,
    Output,
    ParquetPath,
    PlotsPath,
    Seed,
    complete_lists,
    read_counts,
)

if TYPE_CHECKING:
    from hossctl.compare.cells import Axes
    from hossctl.compare.document import Cell
    from hossctl.compare.measuring import Measuring
    from hossctl.compare.report.publishing import ReportOptions
    from hossctl.load.playing import Trace
    from hossctl.traces.reading import Source


EXIT_INTERRUPTED = 130
MOST_NODES = 100_000
MOST_WORKERS = 64

_QUICK_REPEAT, _REPEAT = 2, 3
_OF_YOUR_OWN = "or your own, as FILE.py:Class or by an entry point"

Modes = Annotated[
    str,
    typer.Option(
        metavar="NAME,...",
        help=f"Of {', '.join(m.value for m in MODES)}; {_OF_YOUR_OWN}; else the first five.",
        autocompletion=complete_lists(*(mode.value for mode in MODES)),
    ),
]
Loads = Annotated[
    str,
    typer.Option(
        metavar="NAME,...",
        help=f"Of {', '.join(load.value for load in Load)}; {_OF_YOUR_OWN}; else uniform.",
        autocompletion=complete_lists(*(load.value for load in Load)),
    ),
]
Schedulers = Annotated[
    str,
    typer.Option(
        metavar="NAME,...",
        help=(
            "What decides: default, a preset profile (fgd), an algorithm (FILE.py:Class), sdk=FILE.py:Class,"
            " or the FILE.yaml of a worker. With this, --modes is multi-hoss unless given."
        ),
        autocompletion=complete_lists(*SCHEDULERS),
    ),
]
Workers = Annotated[str, typer.Option(metavar="N,...", help=f"Where there are several; else {BASE_WORKERS}.")]
Fills = Annotated[
    str, typer.Option(metavar="F,...", help=f"Share of all cpu (openb: cards) requested; else {BASE_FILL}.")
]
Nodes = Annotated[str, typer.Option(metavar="N,...", help=f"Else {BASE_NODES:,}.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIRECTORY",
        help="Write the document, a CSV and a Parquet file, an HTML page and the plots into it.",
    ),
]
# Hidden options: few measurements need them, or --out writes their files.
_File = Annotated[Path | None, typer.Option(hidden=True)]
_Text = Annotated[str, typer.Option(hidden=True)]


def compare(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two loads on 400 nodes; under three minutes on two cores.")
    ] = False,
    modes: Modes = "",
    loads: Loads = "",
    schedulers: Schedulers = "",
    workers: Workers = "",
    fills: Fills = "",
    nodes: Nodes = "",
    repeat: Annotated[
        int | None,
        typer.Option(
            min=1, help="Runs of each cell.", show_default=f"{_REPEAT}; {_QUICK_REPEAT} with --quick"
        ),
    ] = None,
    trace_format: Annotated[
        TraceFormat, typer.Option(help=f"Of the load trace. {FORMATS_HELP}")
    ] = TraceFormat.OPENB,
    trace_nodes: Annotated[
        str, typer.Option(metavar="FILE|N", help="Its nodes, as `hoss replay --nodes` takes them.")
    ] = "",
    trace_pods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="And its pods. Several files, or a pattern such as 'csv/openb_pod_list_*.csv': a load each.",
        ),
    ] = None,
    speedup: Speedup = 0.0,
    seed: Seed = 1,
    out: Out = None,
    against: AgainstPath = None,
    baseline: BaselinePath = None,
    output: Output = Format.TABLE,
    pods: Annotated[int, typer.Option(min=0, hidden=True)] = 0,
    decision_job_ms: Annotated[
        float, typer.Option("--decision-job-ms", min=0, max=60_000, hidden=True)
    ] = 0.0,
    decision_task_ms: Annotated[float, typer.Option("--decision-task-ms", min=0, max=50, hidden=True)] = 0.0,
    collections: _File = None,
    machine_size: Annotated[str, typer.Option("--machine", hidden=True)] = DEFAULT_MACHINE,
    machine_type: Annotated[int | None, typer.Option(hidden=True)] = None,
    limit: Annotated[int, typer.Option(min=0, hidden=True)] = 0,
    begin: Annotated[str, typer.Option("--from", hidden=True)] = "",
    end: Annotated[str, typer.Option("--to", hidden=True)] = "",
    redis_url: _Text = "",
    json: _File = None,
    csv: _File = None,
    parquet: _File = None,
    plots: _File = None,
    html: _File = None,
    fail_on_regression: Annotated[bool, typer.Option("--fail-on-regression", hidden=True)] = False,
) -> None:
    """One scheduler, several uncoordinated, partitioned, locked, and with HOSS, under the same loads on real
    services.

    Without lists: a matrix that varies one thing at a time, in some 20 minutes on two cores. With any: the
    product of those given. Ctrl-C ends it early (130); what was measured is kept. Exit 1 if any mode but the
    uncoordinated overcommits a node, or a run failed."""
    from hossctl.compare.cells import Plan, default_cells, of_axes, quick_cells
    from hossctl.compare.document import DecisionTimes
    from hossctl.compare.measuring import Measuring, this_machine
    from hossctl.compare.report.publishing import ReportOptions, check
    from hossctl.traces.reading import Source

    files = ReportOptions(
        json=json,
        csv=csv,
        parquet=parquet,
        plots=plots,
        html=html,
        against=against or baseline,
        fail_on_regression=fail_on_regression,
        out=out,
    )
    check(output, files)
    traces: dict[str, Trace] = {}
    if trace_nodes and trace_pods:
        window = read_window(begin, end, limit, speedup)
        size = read_machine(machine_size)
        for name, file in _trace_files(trace_pods).items():
            source = Source(
                trace_format,
                trace_nodes,
                file,
                collections,
                size,
                machine_type,
                window,
                nodes_option="--trace-nodes",
            )
            traces[name] = _read_trace(source, speedup)
    else:
        options = {"--speedup": speedup, "--from": begin, "--to": end, "--limit": limit}
        _refuse_half_a_trace(trace_nodes, trace_pods, options | {"--collections": collections})
    decision = DecisionTimes(job_ms=decision_job_ms, task_ms=decision_task_ms)
    axes_given = (modes, loads, schedulers, workers, fills, nodes, pods, decision_job_ms, decision_task_ms)
    if any((*axes_given, traces)):
        if quick:
            raise InvalidInput("is a matrix of its own; leave out the lists, or --quick", where="--quick")
        default = Load.TRACE if traces else Load.UNIFORM
        axes = read_axes(modes, loads, workers, fills, nodes, default_load=default, schedulers=schedulers)
        cells = _with_traces(of_axes(replace(axes, pods=pods, decision=decision)), traces)
    else:
        cells = quick_cells() if quick else default_cells()
    plan = Plan(cells, repeat or (_QUICK_REPEAT if quick else _REPEAT), seed, redis_url, traces)
    machine = this_machine(redis_url)
    command = shlex.join(["hoss", *sys.argv[1:]])
    run_comparison(Measuring(plan, machine, command), files, output)


def read_axes(
    modes: str,
    loads: str,
    workers: str,
    fills: str,
    nodes: str,
    *,
    default_load: Load = Load.UNIFORM,
    schedulers: str = "",
) -> "Axes":
    """The lists as the options give them, empty ones at their defaults. InvalidInput names the option."""
    from hossctl.compare.cells import Axes
    from hossctl.compare.loads import LOAD_REGISTRY
    from hossctl.compare.modes import MODE_REGISTRY
    from hossctl.compare.schedulers import find_scheduler

    return Axes(
        modes=_named(
            modes,
            (Mode.HOSS,) if schedulers else MODES,
            lambda name: MODE_REGISTRY.find(name, where="--modes"),
        ),
        loads=_named(loads, (default_load,), lambda name: LOAD_REGISTRY.find(name, where="--loads")),
        schedulers=_named(schedulers, (DEFAULT_SCHEDULER,), find_scheduler),
        workers=_counts(workers, BASE_WORKERS, MOST_WORKERS, where="--workers"),
        fills=_shares(fills, where="--fills"),
        nodes=_counts(nodes, BASE_NODES, MOST_NODES, where="--nodes"),
    )


def run_comparison(measuring: "Measuring", files: "ReportOptions", output: Format) -> None:
    """Measure, publish, and raise typer.Exit where the exit code is not 0."""
    from hossctl.compare.report.publishing import check, publish
    from hossctl.compare.report.summary import validated
    from hossctl.load.progress import bar

    plan = measuring.plan
    check(output, files, measuring.machine, plan.cells)
    title = f"{counted(len(plan.cells), 'cell')}, {counted(plan.repeat, 'run')} of each"
    with bar(title, plan.runs, quiet=not output.for_people) as progress:
        measuring.run(progress)
    comparison = measuring.comparison
    code = publish(comparison, output, files)
    if measuring.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    promised = (run for run in comparison.runs if validated(run))
    if code or measuring.left_out or any(run.overcommit.nodes for run in promised):
        raise typer.Exit(code or EXIT_FAILED)


def _named(text: str, default: Sequence[str], check: Callable[[str], object]) -> tuple[str, ...]:
    """Names, each once, in the order given. `check` raises for one that cannot be used, before anything is
    measured."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text else ()
    for name in names:
        check(name)
    return names or tuple(default)


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


def _read_trace(source: "Source", speedup: float) -> "Trace":
    from hossctl.load.playing import trace_of
    from hossctl.traces.reading import read

    recording = read(source)
    say_left_out(recording)
    return trace_of(recording.nodes, recording.pods, speedup)


def _trace_files(given: Sequence[str]) -> dict[str, Path]:
    """Files of pods by the names of their loads: a single one is the load trace, of several each has the name
    of its file. InvalidInput where a pattern finds nothing, and for two files of one name."""
    files: dict[str, Path] = {}
    for text in given:
        found = [text] if Path(text).exists() else sorted(glob(text))  # noqa: PTH207 - may begin with /
        if not found and has_magic(text):
            raise InvalidInput(f"no file is named like {text}", where="--trace-pods")
        for file in map(Path, found or [text]):
            name = file.name.partition(".")[0]
            if files.setdefault(name, file) != file:
                raise InvalidInput(
                    f"{files[name]} and {file} would both be the load {name}; rename one",
                    where="--trace-pods",
                )
    return files if len(files) > 1 else dict(zip([Load.TRACE.value], files.values(), strict=True))


def _refuse_half_a_trace(nodes: str, pods: Sequence[str] | None, options: Mapping[str, object]) -> None:
    if nodes or pods:
        raise InvalidInput(
            "a trace is both --trace-nodes and --trace-pods", where="--trace-nodes, --trace-pods"
        )
    given = [name for name, value in options.items() if value]
    if given:
        raise InvalidInput("needs a trace: --trace-nodes and --trace-pods", where=given[0])


def _with_traces(cells: "list[Cell]", traces: "Mapping[str, Trace]") -> "list[Cell]":
    """The cells, those of the load trace once for each trace, with its numbers of nodes and pods."""
    if not traces and any(cell.load == Load.TRACE for cell in cells):
        raise InvalidInput("trace needs --trace-nodes and --trace-pods", where="--loads")
    others = [cell for cell in cells if cell.load != Load.TRACE]
    sized = [
        cell.model_copy(update={"load": name, "nodes": len(trace.nodes), "pods": trace.pods, "fill": 0.0})
        for name, trace in traces.items()
        for cell in cells
        if cell.load == Load.TRACE
    ]
    return list(dict.fromkeys([*others, *sized]))


def report(
    document: Annotated[
        Path, typer.Argument(metavar="FILE", help="The comparison.json of bench compare --out.")
    ],
    *,
    json: JsonPath = None,
    csv: CsvPath = None,
    parquet: ParquetPath = None,
    plots: PlotsPath = None,
    html: HtmlPath = None,
    against: AgainstPath = None,
    baseline: BaselinePath = None,
    fail_on_regression: FailOnRegression = False,
    output: Output = Format.TABLE,
) -> None:
    """Tables, plots and report of a comparison measured before, or what changed since an earlier one."""
    from hossctl.compare.document import read
    from hossctl.compare.report.publishing import ReportOptions, check, publish

    comparison = read(document)
    files = ReportOptions(
        json=json,
        csv=csv,
        parquet=parquet,
        plots=plots,
        html=html,
        against=against or baseline,
        fail_on_regression=fail_on_regression,
    )
    check(output, files, comparison.machine)
    if code := publish(comparison, output, files):
        raise typer.Exit(code)
