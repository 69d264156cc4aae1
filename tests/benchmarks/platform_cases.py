"""What documents promise in seconds, on real services: time by the clock, less what configuration explains.

Faults happen to one platform with as many nodes and pods as the documents have. They are measured by the
start of the smallest platform, and that by the start of an interpreter."""

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from benchmarks.measuring import Action, Bench, Case
from e2e.promises import LONE_PODS, Fault, FaultyPlatform, faulty_platform, start_interpreter, start_platform
from fork_server import FORK_SERVER

NODES = 5_000
PODS = 50_000

# What configuration explains, as docs/operations/failures.md has it.
_LEASE_SECONDS = 1.5
_SILENCE_SECONDS = 2.0  # of a worker
_STILLNESS_SECONDS = 4.0  # of a dispatcher, after which clients and workers leave it
_LOOK_SECONDS = 1.0  # between two of the dispatcher at the ledger


def cases() -> Sequence[Case]:
    """All of them; the faults in an order in which each leaves little for the next to mend."""
    platform = cache(_platform)

    def of(what: str, fault: Fault, *, explained_seconds: float = 0.0, times: int = 1) -> Case:
        def build(stack: ExitStack) -> Bench:
            ready = platform(stack).ready
            return Bench(lambda: ready(fault), time.perf_counter, explained_seconds)

        return Case(f"platform: {what}", times, build)

    return [
        Case(
            "platform: an interpreter started",
            1,
            lambda _: Bench(lambda: start_interpreter, time.perf_counter),
        ),
        Case("platform: a start", 1, _starting),
        of("a pod alone", FaultyPlatform.lone_pods, times=LONE_PODS),
        of("a resolver restarted", FaultyPlatform.restarted_resolver),
        of("a worker back", FaultyPlatform.returning_worker),
        of("a worker killed", FaultyPlatform.killed_worker),
        of("a worker silent", FaultyPlatform.silent_worker, explained_seconds=_SILENCE_SECONDS),
        of("a dispatcher ended", FaultyPlatform.ended_dispatcher),
        of("a dispatcher killed", FaultyPlatform.killed_dispatcher, explained_seconds=_LEASE_SECONDS),
        of("a dispatcher frozen", FaultyPlatform.frozen_dispatcher, explained_seconds=_STILLNESS_SECONDS),
        of("a ledger lost", FaultyPlatform.lost_ledger, explained_seconds=_LOOK_SECONDS),
    ]


def _platform(stack: ExitStack) -> FaultyPlatform:
    lease = ("--lease-seconds", str(_LEASE_SECONDS))
    return stack.enter_context(
        faulty_platform(_directory(stack), nodes=NODES, pods=PODS, dispatcher_flags=lease),
    )


def _starting(stack: ExitStack) -> Bench:
    """Each is stopped before the next one starts."""
    FORK_SERVER.run("hossctl", ["--help"])  # which imports everything before it answers
    directory, started = _directory(stack), ExitStack()
    stack.push(started)

    def start() -> None:
        started.callback(start_platform(Path(tempfile.mkdtemp(dir=directory))).stop)

    def fresh() -> Action:
        started.close()
        return start

    return Bench(fresh, time.perf_counter)


def _directory(stack: ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hoss-benchmarks-")))
