"""Tasks that are ended have ended, whatever becomes of a cancellation on the way."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Generator, Iterator

import pytest
from waiting import DEADLINE_SECONDS

from hoss.rpc import written
from hoss.tasks import background, end_tasks, in_turns
from hoss.telemetry.collector import ENDPOINT, INTERVAL, PROTOCOL, metrics_pushed
from hoss.telemetry.metrics import Metrics


async def test_a_background_job_that_loses_a_cancellation_is_told_again():
    """As asyncio.wait_for does before Python 3.12, where it comes together with the result."""
    told: list[int] = []

    async def job() -> None:
        for time in (1, 2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            told.append(time)

    async def body() -> None:
        async with background(job()):
            await asyncio.sleep(0)

    await asyncio.wait_for(body(), DEADLINE_SECONDS)
    assert told == [1, 2]


async def test_whoever_ends_jobs_leaves_none_behind_though_told_twice_to_end():
    """As a dispatcher's term, which is told again when one of its jobs takes long."""
    ended: list[str] = []

    async def slow_job() -> None:
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        ended.append("job")

    async def term() -> None:
        async with background(slow_job()):
            await asyncio.sleep(60)

    running = asyncio.ensure_future(term())
    for _ in range(2):
        await asyncio.sleep(0.01)
        running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, DEADLINE_SECONDS)
    assert ended == ["job"]


class Stubborn:
    """What a job waits for, and loses its first cancellation in."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.told = 0

    async def wait(self) -> None:
        self.entered.set()
        while self.told < 2:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            self.told += 1
        raise asyncio.CancelledError


async def test_a_writer_of_requests_that_loses_a_cancellation_is_told_again() -> None:
    stubborn = Stubborn()

    class Call:
        def cancel(self) -> None:
            pass

    async def requests() -> AsyncIterator[object]:
        await stubborn.wait()
        yield None

    async def body() -> None:
        async with written(Call(), requests()):  # type: ignore[arg-type] # no more of a call is used
            await stubborn.entered.wait()

    await asyncio.wait_for(body(), DEADLINE_SECONDS)
    assert stubborn.told == 2


async def test_a_push_of_metrics_that_loses_a_cancellation_is_told_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stubborn = Stubborn()
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv(INTERVAL, "1")
    monkeypatch.delenv(PROTOCOL, raising=False)
    real_to_thread = asyncio.to_thread

    async def to_thread(function: object, *args: object) -> object:
        if not stubborn.entered.is_set():
            await stubborn.wait()
        return await real_to_thread(lambda: None)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)

    async def body() -> None:
        async with metrics_pushed("tests", Metrics(list)):
            await stubborn.entered.wait()

    await asyncio.wait_for(body(), DEADLINE_SECONDS)
    assert stubborn.told == 2


async def test_the_error_of_an_ended_task_is_the_callers_to_ask_for_and_is_not_reported_by_python() -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    async def broken() -> None:
        raise ValueError("broken")

    task = asyncio.ensure_future(broken())
    await asyncio.sleep(0)
    await end_tasks((task,))
    assert str(task.exception()) == "broken"
    other = asyncio.ensure_future(broken())
    await asyncio.sleep(0)
    await end_tasks((other,))
    del other, task
    gc.collect()
    assert reported == []


@pytest.fixture
def passes() -> Iterator[list[tuple[int, int]]]:
    """Passes of the cycle collector: the generation, and how many young objects there were. None starts by
    itself."""
    found: list[tuple[int, int]] = []

    def noted(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append((info["generation"], gc.get_count()[0]))

    enabled, thresholds = gc.isenabled(), gc.get_threshold()
    gc.enable()
    gc.set_threshold(1_000_000)
    gc.collect()
    gc.callbacks.append(noted)
    yield found
    gc.callbacks.remove(noted)
    gc.set_threshold(*thresholds)
    if not enabled:
        gc.disable()


def three_slices_of_1000_objects(kept: list[object]) -> Generator[float, None, None]:
    for _ in range(3):
        kept += [[] for _ in range(1000)]
        yield 10_000.0


async def test_the_collector_looks_at_what_each_slice_of_lasting_work_made(
    passes: list[tuple[int, int]],
) -> None:
    await in_turns(three_slices_of_1000_objects([]), keeps=True)
    assert [generation for generation, _ in passes] == [0, 0, 0]
    assert all(1000 <= young < 1500 for _, young in passes)


async def test_other_long_work_and_a_process_without_the_collector_leave_it_alone(
    passes: list[tuple[int, int]],
) -> None:
    await in_turns(three_slices_of_1000_objects([]))
    gc.disable()
    await in_turns(three_slices_of_1000_objects([]), keeps=True)
    assert passes == []
