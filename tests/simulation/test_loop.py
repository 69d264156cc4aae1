"""The simulation's event loop: virtual time, an order by seed, and processes that end at any step."""

import asyncio
import gc
import random
import warnings
from itertools import count

import pytest

from tools.simulation.loop import Deadlock, OutOfSteps, SimulationLoop, current_process, discarding


@pytest.fixture
def loop():
    made = SimulationLoop(random.Random(7))
    yield made
    made.close()


def test_time_moves_to_the_next_timer_and_takes_none_of_ours(loop):
    loop.run_until_complete(asyncio.sleep(86_400))
    assert 86_400 <= loop.time() < 86_401


def test_equal_seeds_choose_equal_orders_and_other_seeds_other_ones():
    def order(seed):
        loop, seen = SimulationLoop(random.Random(seed)), []

        async def note(name):
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append(name)

        async def all_of_them():
            await asyncio.gather(*(note(i) for i in range(5)))

        loop.run_until_complete(all_of_them())
        loop.close()
        return seen

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(10)}) > 5


def test_what_a_process_starts_belongs_to_it(loop):
    async def child():
        await asyncio.sleep(1)
        return current_process()

    async def parent():
        return await asyncio.create_task(child())

    process = loop.process("a")
    assert loop.run_until_complete(loop.spawn(process, parent())) is process
    assert current_process() is None


def test_a_killed_process_does_not_even_clean_up(loop):
    cleaned = []

    async def job():
        try:
            await asyncio.sleep(10)
        finally:
            cleaned.append("up")

    process = loop.process("a")
    loop.spawn(process, job())
    loop.run_for(1)
    loop.kill(process)
    loop.run_for(100)
    assert not cleaned


def test_nobody_misses_the_error_of_a_task_whose_process_was_killed_before_it_looked_at_it(loop):
    process = loop.process("a")

    async def job():
        raise ValueError("not looked at yet")

    async def parent():
        task = asyncio.create_task(job())
        task.add_done_callback(asyncio.Task.exception)
        del task
        await asyncio.sleep(10)

    def kill_before_the_callback(running):
        if running.steps == 2:
            running.before_step = None
            loop.kill(running)

    process.before_step = kill_before_the_callback
    loop.spawn(process, parent())
    loop.run_for(1)
    gc.collect()
    assert not process.alive
    assert loop.errors == []


def test_a_process_can_be_killed_at_any_of_its_steps(loop):
    seen = []

    async def job():
        for i in range(10):
            seen.append(i)
            await asyncio.sleep(0)

    process = loop.process("a")

    def before_step(running):
        if running.steps == 4:
            loop.kill(running)

    process.before_step = before_step
    loop.spawn(process, job())
    loop.run_for(1)
    assert seen == [0, 1, 2, 3]


def test_a_frozen_process_goes_on_where_it_stood_and_finds_its_timers_over(loop):
    seen = []

    async def job():
        while True:
            await asyncio.sleep(1)
            seen.append(loop.time())

    process = loop.process("a")
    loop.spawn(process, job())
    loop.run_for(2.5)
    loop.freeze(process)
    loop.run_for(10)
    assert len(seen) == 2
    loop.thaw(process)
    loop.run_for(0.1)
    assert len(seen) == 3
    assert seen[-1] == pytest.approx(12.5, abs=0.01)


def test_a_cancelled_timer_does_not_move_the_clock(loop):
    loop.call_later(1, print).cancel()
    loop.call_later(100, print)
    loop.run_for(10)
    assert loop.time() == 10


def test_timeouts_and_cancellation_work_as_asyncio_has_them(loop):
    async def job():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        task = asyncio.create_task(asyncio.sleep(100))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return loop.time()

    assert 6 <= loop.run_until_complete(job()) < 6.1


def test_an_error_that_nobody_handles_is_kept(loop):
    loop.call_soon(lambda: 1 / 0)
    loop.run_for(1)
    assert isinstance(loop.errors[0]["exception"], ZeroDivisionError)


def test_waiting_for_what_cannot_come_is_told_at_once(loop):
    with pytest.raises(Deadlock):
        loop.run_until_complete(loop.create_future())


def test_what_is_busy_for_ever_is_told():
    loop = SimulationLoop(random.Random(7), most_steps=1_000)

    async def busy():
        for _ in count():
            await asyncio.sleep(0)

    with pytest.raises(OutOfSteps):
        loop.run_until_complete(busy())
    loop.close()


def test_a_task_that_its_killed_process_had_not_begun_is_freed_in_silence(recwarn):
    loop = SimulationLoop(random.Random(7))
    process = loop.process("killed")
    loop.spawn(process, asyncio.sleep(1))
    loop.kill(process)
    loop.close()
    gc.collect()
    assert [str(told.message) for told in recwarn] == []


def test_what_killed_processes_leave_is_freed_at_once_with_what_that_leaves():
    async def cleans_up():
        """As redis-py: it closes its connections at once, by coroutines that nobody runs any more."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            closing = [asyncio.sleep(0)]
            closing.append(closing)

    with discarding():
        loop = SimulationLoop(random.Random(7))
        process = loop.process("killed")
        loop.spawn(process, cleans_up())
        loop.run_for(1)
        loop.kill(process)
        loop.close()
        del loop, process
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(one.message) for one in told] == []


async def closing(seen=None):
    """Closes a connection."""
    if seen is not None:
        seen.append("closed")


async def closes_its_connections():
    """As redis-py does: at once, by tasks."""
    try:
        await asyncio.sleep(1)
    finally:
        await asyncio.gather(closing(), closing())


async def asks_again(process):
    """As a client of the API server does: a request is a task of the server's process."""
    try:
        await asyncio.sleep(1)
    finally:
        asyncio.get_running_loop().spawn(process, closing())


@pytest.mark.parametrize("seconds", [0, 0.5, 1.5])
@pytest.mark.parametrize("is_killed", [True, False])
def test_what_a_closed_loop_leaves_complains_neither_then_nor_when_it_is_collected(seconds, is_killed):
    loop = SimulationLoop(random.Random(7))
    process, other = loop.process("one"), loop.process("other")
    loop.spawn(process, closes_its_connections())
    loop.spawn(process, asks_again(other))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loop.run_for(seconds)
        if is_killed:
            loop.kill(process)
        loop.freeze(other)
        loop.close()
        del loop, process, other
        gc.collect()
    assert [str(one.message) for one in told] == []


def test_a_task_that_is_begun_on_a_closed_loop_does_nothing(loop):
    loop.close()
    seen = []
    task = loop.create_task(closing(seen))
    del task
    assert seen == []
