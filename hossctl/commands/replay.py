"""replay: a cluster trace; and the options that every command shares which plays one."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput
from hossctl.choices import TraceFormat
from hossctl.cli import EXIT_FAILED
from hossctl.console import Format, print_document, print_summary, say
from hossctl.endpoints import Endpoints
from hossctl.options import MAX_PROCESSES, Dispatcher, Output, RedisUrl, Resolver, Seed, read_duration

if TYPE_CHECKING:
    from hossctl.traces.recording import Recording, TraceMachine, TraceWindow

app = typer.Typer()

FORMATS_HELP = "openb: Alibaba's GPU cluster. google2019: Google's cells. azure2020: Azure's packing trace."

Collections = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="google2019: collection events, for instances without an end of their own."
    ),
]
MachineSize = Annotated[
    str,
    typer.Option(
        "--machine",
        metavar="CPU,MEMORY",
        help="google2019, azure2020: the size of the largest machine, of which the trace has shares.",
    ),
]
MachineType = Annotated[
    int | None,
    typer.Option(
        help="azure2020: the machine to take VMs' shares of; else the one that most types of VM have any of."
    ),
]
Limit = Annotated[int, typer.Option(min=0, metavar="N", help="The first N pods alone.", show_default="all")]
Begin = Annotated[
    str,
    typer.Option(
        "--from", metavar="TIME", help="Of the trace: 90, 15m, 6h, 2d. What was there by then comes at once."
    ),
]
End = Annotated[str, typer.Option("--to", metavar="TIME", help="What would go later stays.")]
Speedup = Annotated[
    float,
    typer.Option(min=0, help="Plays the trace in time, so much faster; 0: all pods at once, and none goes."),
]

DEFAULT_MACHINE = "64,256Gi"


@app.command()
def replay(
    *,
    trace_format: Annotated[TraceFormat, typer.Option("--format", help=FORMATS_HELP)] = TraceFormat.OPENB,
    nodes: Annotated[
        str,
        typer.Option(
            metavar="FILE|N",
            help="openb's node list, google2019's machine events, or a number of equal machines.",
        ),
    ],
    pods: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="openb's pod list, google2019's instance events, azure2020's SQLite file."
        ),
    ],
    collections: Collections = None,
    machine: MachineSize = DEFAULT_MACHINE,
    machine_type: MachineType = None,
    limit: Limit = 0,
    begin: Begin = "",
    end: End = "",
    speedup: Speedup = 0.0,
    workers: Annotated[
        int, typer.Option(min=1, max=MAX_PROCESSES, help="Workers of the platform that is started.")
    ] = 4,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Profile of those workers: spread, binpack, random, best-fit or fgd."
        ),
    ] = "",
    shuffle_seed: Annotated[int | None, typer.Option(help="Submit the pods in another order.")] = None,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Place a trace on a platform of its own, or on the one named, at once or in its own time, and report.
    Exit 1 if an invariant broke or a pod was lost."""
    from hossctl.figures import written_duration
    from hossctl.load import replay as trace
    from hossctl.load.playing import trace_of
    from hossctl.traces.reading import Source, read
    from scheduler_worker.core.plugins.profiles import PRESETS

    if bool(dispatcher) != bool(resolver):
        raise InvalidInput("give both, or none for a platform of its own", where="--dispatcher, --resolver")
    if strategy and strategy not in PRESETS:
        raise InvalidInput(f"{strategy!r} is none of {', '.join(PRESETS)}", where="--strategy")
    if strategy and dispatcher:
        raise InvalidInput(
            "is for workers that are started here; those of a running platform have theirs",
            where="--strategy",
        )
    if speedup and shuffle_seed is not None:
        raise InvalidInput("is for pods that come all at once; leave out --speedup", where="--shuffle-seed")
    window = read_window(begin, end, limit, speedup)
    recording = read(
        Source(trace_format, nodes, pods, collections, read_machine(machine), machine_type, window)
    )
    recorded = recording.pods if shuffle_seed is None else trace.shuffle(recording.pods, shuffle_seed)
    played = trace_of(recording.nodes, recorded, speedup)
    if output.for_people:
        say_left_out(recording)
        if speedup:
            recorded_time, time = (written_duration(played.seconds * x) for x in (speedup, 1))
            say(f"plays {recorded_time} of the trace in {time}")
    result = trace.run(
        played,
        endpoints=Endpoints(dispatcher, resolver) if dispatcher else None,
        workers=workers,
        strategy=strategy,
        redis_url=redis_url,
        seed=seed,
        quiet=not output.for_people,
    )
    if output.for_people:
        print_summary(
            f"replay of {trace_format.value}: {played.pods:,} pods on {len(played.nodes):,} nodes",
            result.lines(),
        )
    else:
        print_document(result.as_json(), output)
    if not result.passed:
        raise typer.Exit(EXIT_FAILED)


def read_window(begin: str, end: str, limit: int, speedup: float) -> "TraceWindow":
    """The part of a trace that the options select. Raises InvalidInput for a malformed time, an end that is
    not after the begin, and an infinite speed."""
    from hossctl.traces.recording import TraceWindow

    if not math.isfinite(speedup):
        raise InvalidInput(f"{speedup} is no number to go by", where="--speedup")
    first = read_duration(begin, where="--from") if begin else 0.0
    last = read_duration(end, where="--to") if end else math.inf
    if last <= first:
        raise InvalidInput(f"{end} is not after --from {begin or 0}", where="--to")
    return TraceWindow(first, last, limit, departures=speedup > 0)


def read_machine(text: str) -> "TraceMachine":
    """`64,256Gi` as a machine. Raises InvalidInput for anything but two positive quantities."""
    from hoss.model.quantity import parse_quantity
    from hossctl.traces.recording import TraceMachine

    cpu, comma, memory = text.partition(",")
    if not comma:
        raise InvalidInput(
            f"{text!r} is no machine; write its CPUs and memory: {DEFAULT_MACHINE}", where="--machine"
        )
    try:
        found = TraceMachine(parse_quantity(cpu).milli, parse_quantity(memory).value)
    except InvalidInput as exc:
        raise InvalidInput(str(exc), where="--machine") from exc
    if min(found.cpu_milli, found.memory_bytes) <= 0:
        raise InvalidInput(
            f"{text!r} has nothing to give; write CPUs and memory: {DEFAULT_MACHINE}", where="--machine"
        )
    return found


def say_left_out(recording: "Recording") -> None:
    """Say what a trace contains and is not played."""
    for why, count in recording.left_out.items():
        say(f"left out: {count:,} {why}")
