"""Runs faults on platforms of real processes: `python -m tools.faults --fault kill-worker --runs 5`, or
all."""

import asyncio
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from hoss.errors import HossError
from tools.faults.catalogue import BY_NAME, FAULTS, DidNotHappen, Fault
from tools.faults.run import HEADER, Outcome, row, runs_of

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def faults(
    *,
    fault: Annotated[
        list[str] | None, typer.Option(help="A fault by name; may be given again. All, if none.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each.")] = 5,
    first: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    listed: Annotated[
        bool, typer.Option("--list", help="Say which there are, and which not on this machine.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Keep logs and the histories of broken runs here.")] = None,
) -> None:
    """Strike platforms with faults, judge what became of them, and print rows of docs/reliability.md. Exit
    code 1: a promise was broken."""
    unknown = [name for name in fault or () if name not in BY_NAME]
    if unknown:
        raise typer.BadParameter(f"there is no {', '.join(unknown)}; --list has the names")
    chosen = [BY_NAME[name] for name in fault] if fault else list(FAULTS)
    if listed:
        for each in chosen:
            _print(f"{each.name:26} {each.missing() or 'can be made here'}")
        return
    # So that processes and namespaces end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    directory = out or Path(tempfile.mkdtemp(prefix="hoss-faults-"))
    _print(HEADER)
    broken = 0
    for each in chosen:
        if missing := each.missing():
            _print(f"| `{each.name}` | not made: {missing} |")
            continue
        broken += asyncio.run(_row(each, range(first, first + runs), directory))
    if broken:
        _print(f"{broken} runs broke a promise; logs and histories are in {directory}")
    elif out is None:
        shutil.rmtree(directory)
    sys.exit(int(broken > 0))


async def _row(fault: Fault, seeds: range, directory: Path) -> int:
    """Print the row. Returns how many runs broke a promise."""
    outcomes: list[Outcome] = []
    try:
        async for outcome in runs_of(fault, seeds, directory):
            outcomes.append(outcome)
            _say(f"{fault.name} {outcome.seed}: {outcome.text}; {outcome.seconds:.1f} s; {outcome.pods} pods")
            for problem in outcome.problems()[:10]:
                _say(f"    {problem}")
    except (DidNotHappen, HossError) as exc:
        _say(f"{fault.name}: {type(exc).__name__}: {exc}")
        _print(row(fault, outcomes))
        return 1
    _print(row(fault, outcomes))
    return sum(bool(outcome.problems()) for outcome in outcomes)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - a command's output


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a command's output


if __name__ == "__main__":
    app(prog_name="python -m tools.faults")
