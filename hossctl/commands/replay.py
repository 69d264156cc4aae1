"""replay: a cluster trace."""

from pathlib import Path
from typing import Annotated

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
from hossctl.console import Format, print_document, print_summary, say
from hossctl.endpoints import Endpoints
from hossctl.options import Dispatcher, Output, RedisUrl, Resolver, Seed, only

app = typer.Typer()


@app.command()
def replay(
    *,
    trace_format: Annotated[TraceFormat, typer.Option("--format", help=FORMATS_HELP)] = TraceFormat.OPENB,
    nodes: Annotated[
        str,
        typer.Option(
            metavar="FILE|N", help="openb's node list, google2019's machine events, or so many machines alike."
        ),
    ],
    pods: Annotated[
        Path,
        typer.Option(metavar="FILE", help="openb's pod list, google2019's instance events, azure2020's SQLite file."),
    ],
    collections: Collections = None,
    machine: MachineSize = DEFAULT_MACHINE,
    machine_type: MachineType = None,
    limit: Limit = 0,
    begin: Begin = "",
    end: End = "",
    speedup: Speedup = 0.0,
    workers: Annotated[int, typer.Option(min=1, help="Workers of the platform that is started.")] = 4,
    strategy: Annotated[
        str, typer.Option(metavar="NAME", help="Profile of those workers: spread, binpack, random, best-fit or fgd.")
    ] = "",
    shuffle_seed: Annotated[int | None, typer.Option(help="Submit the pods in another order.")] = None,
    redis_url: RedisUrl = "",
    seed: Seed = 1,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Place a trace on a platform of its own, or on the one named, at once or in its own time, and report. Exit 1 if an invariant broke or a pod was lost."""
    from hossctl import replay as trace
    from hossctl.compare.traces import replayed
    from hossctl.figures import written_duration
    from hossctl.traces.reading import Source, read
    from scheduler_worker.core.profiles import PRESETS

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    if bool(dispatcher) != bool(resolver):
        raise InvalidInput("give both, or none for a platform of its own", where="--dispatcher, --resolver")
    if strategy and strategy not in PRESETS:
        raise InvalidInput(f"{strategy!r} is none of {', '.join(PRESETS)}", where="--strategy")
    if strategy and dispatcher:
        raise InvalidInput(
            "is for workers that are started here; those of a running platform have theirs", where="--strategy"
        )
    if speedup and shuffle_seed is not None:
        raise InvalidInput("is for pods that come all at once; leave out --speedup", where="--shuffle-seed")
    window = read_window(begin, end, limit, speedup)
    recording = read(Source(trace_format, nodes, pods, collections, read_machine(machine), machine_type, window))
    recorded = recording.pods if shuffle_seed is None else trace.shuffled(recording.pods, shuffle_seed)
    played = replayed(recording.nodes, recorded, speedup)
    if output.for_people:
        tell_left_out(recording)
        if speedup:
            say(
                f"plays {written_duration(played.seconds * speedup)} of the trace in {written_duration(played.seconds)}"
            )
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
            f"replay of {trace_format.value}: {played.pods:,} pods on {len(played.nodes):,} nodes", result.lines()
        )
    else:
        print_document(result.as_json(), output)
    if not result.passed:
        raise typer.Exit(EXIT_FAILED)
