"""No wait after a fault is out of proportion to a platform's start on the same machine at the same time.

Coarse, and with few pods, so that `make test` finds what takes a minute too long. What documents promise is
measured by `make bench-check`, with as many nodes and pods as they say."""

import time
from collections.abc import Callable, Iterator

import pytest
from e2e.cluster import LEASE_SECONDS
from e2e.promises import Fault, FaultyPlatform, faulty_platform, start_interpreter, start_platform
from fork_server import FORK_SERVER

LOOK_SECONDS = 1.0  # at the ledger, between two looks of the dispatcher
STILL_SECONDS = 3.0  # a machine may be, as CONTRIBUTING.md has it
PATIENCE = 5  # times all of this: less than one is usual
PATIENCE_AT_START = 20  # interpreters: one is usual


@pytest.fixture(scope="module")
def start_seconds(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Of a platform."""
    FORK_SERVER.run("hossctl", ["--help"])  # which imports everything before it answers
    directory = tmp_path_factory.mktemp("measure")
    began = time.monotonic()
    cluster = start_platform(directory)
    seconds = time.monotonic() - began
    cluster.stop()
    return seconds


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyPlatform]:
    with faulty_platform(tmp_path_factory.mktemp("platform"), nodes=200, pods=2_000) as platform:
        yield platform


def seconds_of(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def test_a_platform_starts_in_a_few_times_what_an_interpreter_takes(start_seconds: float) -> None:
    assert start_seconds < PATIENCE_AT_START * seconds_of(start_interpreter)


@pytest.mark.parametrize(
    ("fault", "configured_seconds"),
    [
        pytest.param(FaultyPlatform.lost_ledger, LOOK_SECONDS, id="rebuild"),
        pytest.param(FaultyPlatform.restarted_resolver, 0.0, id="reconnection to a resolver"),
        pytest.param(FaultyPlatform.killed_worker, 0.0, id="pods of a killed worker"),
        pytest.param(FaultyPlatform.returning_worker, 0.0, id="return of a worker"),
        pytest.param(FaultyPlatform.killed_dispatcher, LEASE_SECONDS, id="takeover"),
    ],
)
def test_a_fault_is_over_in_a_few_starts_of_a_platform(
    platform: FaultyPlatform, start_seconds: float, fault: Fault, configured_seconds: float
) -> None:
    most_seconds = PATIENCE * (configured_seconds + start_seconds + STILL_SECONDS)
    assert seconds_of(platform.ready(fault)) < most_seconds
