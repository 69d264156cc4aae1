"""history record, history check: what happened on a platform as a file, and whether it kept its promises."""

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput, reading, writing
from hossctl.cli import EXIT_FAILED, run_async
from hossctl.console import Column, Document, Format, print_document, print_lines, print_rows, say, warn
from hossctl.endpoints import Endpoints, clients_of
from hossctl.options import Dispatcher, Output, Resolver

if TYPE_CHECKING:
    from hossctl.history.checker_judgement import Judgement

app = typer.Typer()
group = typer.Typer(
    no_args_is_help=True, help="Record what happens on a platform, and check whether it kept its promises."
)
app.add_typer(group, name="history")

_MOST_SHOWN = 20  # violations in a table; -o json has all
_STANDARD = Path("-")

_COLUMNS = (
    Column("PROMISE", lambda row: row["promise"]),
    Column("JUDGED", lambda row: f"{row['judged']:,}"),
    Column("NOT JUDGED", lambda row: f"{sum(row['notJudged'].values()):,}"),
    Column("VIOLATIONS", lambda row: f"{row['violations']:,}"),
)


@group.command()
def record(
    *,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write; it is replaced.")],
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="N", help="How long to record.", show_default="until Ctrl-C"),
    ] = None,
    every: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Between two lists of all reservations.")
    ] = 2.0,
    settle: Annotated[
        float,
        typer.Option(
            min=0.0, metavar="SECONDS", help="How long to wait at the end until nothing changes any more."
        ),
    ] = 60.0,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
) -> None:
    """Record the history of a live platform, from outside. A second Ctrl-C ends it at once. Exit 1 if the
    platform changed to the last, so that its end cannot be judged."""
    endpoints = Endpoints(dispatcher, resolver)
    endpoints.dispatcher_addresses()
    endpoints.resolver_addresses()
    import asyncio

    from hossctl.history.events import written
    from hossctl.history.recorder import Recorder, live_history

    async def run() -> tuple[bool, int]:
        stop, loop, task = asyncio.Event(), asyncio.get_running_loop(), asyncio.current_task()

        def end() -> None:
            if stop.is_set() and task is not None:
                task.cancel()
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end)
        if seconds is not None:
            loop.call_later(seconds, stop.set)
        async with clients_of(endpoints) as clients:
            await clients.dispatcher.status()
            await clients.resolver.status()
            # Lines, and not blocks: whoever kills the recorder has what it saw.
            with writing(f"--out {out}"):
                opened = out.open("w", encoding="utf-8", buffering=1)
            with opened as file:
                history = live_history(lambda event: file.write(written(event)))
                recorder = Recorder(clients, history, every_seconds=every, settle_seconds=settle)
                say(f"recording to {out}" + ("; Ctrl-C ends it" if seconds is None else ""))
                return await recorder.record(stop), history.lines

    try:
        still, lines = run_async(run())
    except asyncio.CancelledError:
        warn(f"{out} has no final states: of its end, only what was acknowledged can be judged")
        raise typer.Exit(EXIT_FAILED) from None
    say(f"{lines:,} events are in {out}; see what they say with: hoss history check {out}")
    if not still:
        warn("the platform changed to the last; its end cannot be judged (--settle waits longer)")
        raise typer.Exit(EXIT_FAILED)


@group.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A history; - for standard input.")],
    output: Output = Format.TABLE,
) -> None:
    """Check a history. Exit 0: every promise that could be judged was kept; 1: one was broken, with the lines
    that show it; 2: bad input, or nothing could be judged."""
    from hossctl.history.checker import check as judge
    from hossctl.history.events import BadHistory, read

    where = "stdin" if file == _STANDARD else str(file)
    try:
        with reading(where), sys.stdin.buffer if file == _STANDARD else file.open("rb") as source:
            judgement = judge(read(source))
    except BadHistory as exc:
        raise InvalidInput(exc.text, where=f"{where} line {exc.line}") from exc
    document = judgement.as_json()
    if output.for_people:
        _print(judgement, document)
    else:
        print_document(document, output)
    if judgement.exit_code:
        raise typer.Exit(judgement.exit_code)


def _print(judgement: "Judgement", document: Document) -> None:
    print_rows(document["promises"], _COLUMNS)
    for promise in document["promises"]:
        print_lines(
            f"not judged: {promise['promise']}, {count:,} times: {why}"
            for why, count in promise["notJudged"].items()
        )
    for found in judgement.violations[:_MOST_SHOWN]:
        lines = ", ".join(map(str, found.lines))
        print_lines([f"violated: {found.promise.value} at {found.at:.3f} s, lines {lines}: {found.text}"])
    if (more := len(judgement.violations) - _MOST_SHOWN) > 0:
        print_lines([f"and {more:,} more; -o json has all"])
    if not judgement.judged.total():
        warn("nothing could be judged: the history has no events that promises are about")
