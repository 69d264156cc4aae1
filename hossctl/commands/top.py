"""top."""

import contextlib
import sys
from typing import Annotated

import typer

from hoss.errors import LedgerUnavailable, TransportError
from hossctl.console import Format, print_document, print_rows
from hossctl.endpoints import Endpoints
from hossctl.eventloop import run_async
from hossctl.options import Dispatcher, Output, Resolver, only

app = typer.Typer()


@app.command("top")
def show(
    *,
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="One look, as in a pipe.")] = False,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Workers, queues and throughput, live; one look where the output is no terminal."""
    from hossctl import status, top

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    endpoints = Endpoints(dispatcher, resolver)
    if output.for_people and sys.stdout.isatty() and not once:
        with contextlib.suppress(KeyboardInterrupt):  # how it is ended
            run_async(_live(endpoints, interval))
        return
    seen = top.frame(run_async(status.look(endpoints)))
    if not output.for_people:
        print_document(seen.as_json(), output)
        return
    sys.stdout.write(seen.headline + "\n")
    print_rows(seen.workers, top.COLUMNS, wide=False)
    for problem in seen.problems:
        sys.stdout.write(f"PROBLEM {problem}\n")


async def _live(endpoints: Endpoints, interval_seconds: float) -> None:
    import asyncio

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from hossctl import status, top

    seen = await status.look(endpoints)  # whom it never reached it does not wait for
    with Live(top.frame(seen).drawn(), console=Console(highlight=False), auto_refresh=False, screen=True) as screen:
        while True:
            screen.refresh()
            await asyncio.sleep(interval_seconds)
            try:
                screen.update(top.frame(await status.look(endpoints)).drawn())
            except (LedgerUnavailable, TransportError) as exc:  # a service restarts; it goes on when that is back
                screen.update(Text(f"PROBLEM {exc}", style="red"))
