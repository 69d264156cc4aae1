"""Progress on stderr: a moving bar on a terminal, a line now and then elsewhere, and nothing where output is
for programs."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hoss.v1 import dispatcher_pb2 as pb
from hossctl.cli import QUIET
from hossctl.console import PATIENCE_SECONDS, say
from hossctl.load.runner import Tracker


@contextmanager
def bar(
    title: str, total: int, *, quiet: bool, patient: bool = False
) -> Iterator[Callable[[int, str], None]]:
    """A bar; yields a function that takes the number done in all and a remark. `patient`: lines begin after
    two seconds, and the last is left to the command."""
    if quiet or os.environ.get(QUIET):
        yield lambda _done, _remark: None
    elif sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[remark]}"),
        )
        with Progress(*columns, console=Console(stderr=True)) as shown:
            task = shown.add_task(title, total=total, remark="")
            yield lambda done, remark: shown.update(task, completed=done, remark=remark)
    else:
        yield _lines(title, total, patient=patient)


@contextmanager
def counting(title: str, total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar; yields a function that takes the number done since the last call."""
    done = 0
    with bar(title, total, quiet=quiet) as update:

        def add(chunk: int) -> None:
            nonlocal done
            done += chunk
            update(done, "")

        yield add


@contextmanager
def placing(title: str, pods: int, *, quiet: bool) -> Iterator[Callable[[Tracker], None]]:
    """A bar for a load that is being placed."""
    with bar(title, pods, quiet=quiet) as update:
        yield lambda tracker: update(tracker.settled, _remark(tracker))


def _remark(tracker: Tracker) -> str:
    unschedulable = tracker.count(pb.UNSCHEDULABLE)
    return f"{tracker.count(pb.BOUND):,} bound" + (
        f", {unschedulable:,} unschedulable" if unschedulable else ""
    )


def _lines(title: str, total: int, *, patient: bool = False) -> Callable[[int, str], None]:
    last = time.monotonic() - (0.0 if patient else PATIENCE_SECONDS)

    def update(done: int, remark: str) -> None:
        nonlocal last
        now = time.monotonic()
        if (done >= total and not patient) or now - last >= PATIENCE_SECONDS:
            last = now
            say(f"{title}: {done:,} of {total:,}{f' ({remark})' if remark else ''}")

    return update
