"""What commands that play a recorded trace ask for besides its files, said once."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput
from hossctl.console import say

if TYPE_CHECKING:
    from hossctl.traces.recording import Machine, Recording, Window


FORMATS_HELP = "openb: Alibaba's GPU cluster. google2019: Google's cells. azure2020: Azure's packing trace."

Collections = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="google2019: collection events, for instances without an end of their own."),
]
MachineSize = Annotated[
    str,
    typer.Option(
        "--machine", metavar="CPU,MEMORY", help="google2019, azure2020: what the largest machine has; shares are of it."
    ),
]
MachineType = Annotated[
    int | None,
    typer.Option(help="azure2020: the machine to take VMs' shares of; else the one that most types of VM have any of."),
]
Limit = Annotated[int, typer.Option(min=0, metavar="N", help="The first N pods alone.", show_default="all")]
Begin = Annotated[
    str,
    typer.Option("--from", metavar="TIME", help="Of the trace: 90, 15m, 6h, 2d. What was there by then comes at once."),
]
End = Annotated[str, typer.Option("--to", metavar="TIME", help="What would go later stays.")]
Speedup = Annotated[
    float, typer.Option(min=0, help="Plays the trace in time, so much faster; 0: all pods at once, and none goes.")
]

DEFAULT_MACHINE = "64,256Gi"
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_TIME = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


def read_window(begin: str, end: str, limit: int, speedup: float) -> "Window":
    """What the options say. InvalidInput for what is no time, an end that is not after the begin, or no speed to play at."""
    from hossctl.traces.recording import Window

    if not math.isfinite(speedup):
        raise InvalidInput(f"{speedup} is no number to go by", where="--speedup")
    first = _seconds(begin, "--from") if begin else 0.0
    last = _seconds(end, "--to") if end else math.inf
    if last <= first:
        raise InvalidInput(f"{end} is not after --from {begin or 0}", where="--to")
    return Window(first, last, limit, departures=speedup > 0)


def read_machine(text: str) -> "Machine":
    """`64,256Gi` as a machine. InvalidInput for anything but two quantities that are more than nothing."""
    from hoss.model.quantity import parse_quantity
    from hossctl.traces.recording import Machine

    cpu, comma, memory = text.partition(",")
    if not comma:
        raise InvalidInput(f"{text!r} is no machine; write its CPUs and memory: {DEFAULT_MACHINE}", where="--machine")
    try:
        found = Machine(parse_quantity(cpu).milli, parse_quantity(memory).value)
    except InvalidInput as exc:
        raise InvalidInput(str(exc), where="--machine") from exc
    if min(found.cpu_milli, found.memory_bytes) <= 0:
        raise InvalidInput(f"{text!r} has nothing to give; write CPUs and memory: {DEFAULT_MACHINE}", where="--machine")
    return found


def tell_left_out(recording: "Recording") -> None:
    """For people: what a trace holds and is not played."""
    for why, count in recording.left_out.items():
        say(f"left out: {count:,} {why}")


def _seconds(text: str, where: str) -> float:
    found = _TIME.fullmatch(text)
    if not found:
        raise InvalidInput(f"{text!r} is no time; write seconds, or 15m, 6h, 2d", where=where)
    return float(found[1]) * _UNITS[found[2]]
