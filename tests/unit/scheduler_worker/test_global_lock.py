"""One global lock: one holder at a time, each with what those before it have done."""

import asyncio

import pytest
from waiting import until

from scheduler_worker.experiments import GlobalLock


@pytest.fixture
def new_lock(tmp_path):
    made = []

    def make():
        made.append(GlobalLock(tmp_path / "lock"))
        return made[-1]

    yield make
    for lock in made:
        lock.close()


async def test_two_workers_are_never_in_their_turn_at_once(new_lock):
    inside, seen_together = [], []

    async def work(lock):
        for _ in range(20):
            async with lock.held(dict, {}):
                inside.append(lock)
                seen_together.append(len(inside))
                await asyncio.sleep(0)
                inside.remove(lock)

    await asyncio.gather(work(new_lock()), work(new_lock()))
    assert seen_together == [1] * 40


async def test_a_turn_begins_when_the_cache_has_seen_what_the_last_one_did(new_lock):
    first, second = new_lock(), new_lock()
    async with first.held(dict, {0: 7}):
        pass
    seen = {0: 5}
    order, asked = [], []

    def look():
        asked.append(seen[0])
        return seen

    async def work():
        async with second.held(look, {}):
            order.append(("turn", seen[0]))

    working = asyncio.create_task(work())
    for seq in (6, 7):
        await until(lambda: seen[0] in asked, "it to see that this is not enough")
        seen[0] = seq
        order.append(("feed", seq))
        second.notify()
    await working
    assert order == [("feed", 6), ("feed", 7), ("turn", 7)]


async def test_a_turn_that_fails_gives_the_lock_back(new_lock):
    first, second = new_lock(), new_lock()

    async def fail():
        async with first.held(dict, {}):
            raise ValueError("failed in its turn")

    with pytest.raises(ValueError, match="failed in its turn"):
        await fail()
    async with second.held(dict, {}):
        pass
