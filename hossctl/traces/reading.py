"""Recorded traces by their format, from the files that a user has."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hoss.errors import InvalidInput
from hossctl.choices import TraceFormat
from hossctl.traces import azure2020, google2019, openb
from hossctl.traces.recording import LARGEST, Recording, TraceMachine, TracePod, TraceWindow, machines


@dataclass(frozen=True, slots=True)
class Source:
    """What to read. `nodes`: a file of the format or a number of equal machines, from the option
    `nodes_option`. Fields that a format does not have stay at their defaults."""

    form: TraceFormat
    nodes: str
    pods: Path
    collections: Path | None = None
    machine: TraceMachine = LARGEST
    machine_type: int | None = None
    window: TraceWindow = field(default_factory=TraceWindow)
    nodes_option: str = "--nodes"


def read(source: Source) -> Recording:
    """Nodes and pods, at least one of each. Raises InvalidInput with file, line and column, or the option
    that the format does not have."""
    _refuse_options_of_others(source)
    recording = _READERS[source.form](source)
    if not recording.nodes:
        raise InvalidInput("holds no nodes", where=source.nodes)
    if not recording.pods:
        left_out = "".join(f"; left out: {count:,} {why}" for why, count in recording.left_out.items())
        raise InvalidInput(f"holds no pods in the requested time{left_out}", where=str(source.pods))
    return recording


def _openb(source: Source) -> Recording:
    nodes = tuple(openb.read_nodes(Path(source.nodes)))
    return Recording(nodes, _windowed(openb.read_trace(source.pods), source.window))


def _google(source: Source) -> Recording:
    count = _count(source)
    found = (
        machines(count, source.machine)
        if count
        else google2019.read_machines(Path(source.nodes), source.machine)
    )
    recording = google2019.read_pods(source.pods, source.collections, source.machine, source.window)
    return Recording(found, recording.pods, recording.left_out)


def _azure(source: Source) -> Recording:
    count = _count(source)
    if not count:
        problem = f"{source.nodes!r} is no number; the trace has no list of its machines, give their number"
        raise InvalidInput(problem, where=source.nodes_option)
    return azure2020.read(source.pods, count, source.machine, source.window, source.machine_type)


_READERS = {TraceFormat.OPENB: _openb, TraceFormat.GOOGLE2019: _google, TraceFormat.AZURE2020: _azure}


def _windowed(pods: Sequence[TracePod], window: TraceWindow) -> list[TracePod]:
    """The pods that exist in the window. A whole recording keeps the order of its file."""
    there = [pod for pod in pods if pod.creation_seconds < window.end and not _gone(pod, window.begin)]
    if (window.begin, window.end) != (0.0, math.inf):
        there = sorted((_cut(pod, window) for pod in there), key=lambda pod: pod.creation_seconds)
    return there[: window.limit or None]


def _gone(pod: TracePod, seconds: float) -> bool:
    return pod.deletion_seconds is not None and pod.deletion_seconds < seconds


def _cut(pod: TracePod, window: TraceWindow) -> TracePod:
    stays = pod.deletion_seconds is None or pod.deletion_seconds >= window.end
    created = max(pod.creation_seconds, window.begin)
    return TracePod(pod.workload, created, None if stays else pod.deletion_seconds)


def _count(source: Source) -> int | None:
    """A number of machines; None where the text is not a number."""
    if not (source.nodes.isascii() and source.nodes.isdigit()):
        return None
    if not int(source.nodes):
        raise InvalidInput("0 machines hold no pod; 1 or more belong here", where=source.nodes_option)
    return int(source.nodes)


def _refuse_options_of_others(source: Source) -> None:
    form = source.form
    if source.collections is not None and form is not TraceFormat.GOOGLE2019:
        raise InvalidInput(f"{form.value} has no collection events", where="--collections")
    if source.machine_type is not None and form is not TraceFormat.AZURE2020:
        raise InvalidInput(f"{form.value} has no types of machines", where="--machine-type")
    if source.machine != LARGEST and form is TraceFormat.OPENB:
        raise InvalidInput("openb itself has the sizes of its machines", where="--machine")
    if form is TraceFormat.OPENB and _count(source):
        raise InvalidInput("openb has a list of its machines; give that file", where=source.nodes_option)
