"""One global lock: one holder at a time, each with what those before it have done."""

import asyncio

import pytest
from waiting import until

from scheduler_worker.turns import Turns


@pytest.fixture
def new_turns(tmp_path):
    made = []

    def make():
        made.append(Turns(tmp_path / "lock"))
        return made[-1]

    yield make
    for turns in made:
        turns.close()


async def test_two_workers_are_never_in_their_turn_at_once(new_turns):
    inside, seen_together = [], []

    async def work(turns):
        for _ in range(20):
            async with turns.turn(dict, {}):
                inside.append(turns)
                seen_together.append(len(inside))
                await asyncio.sleep(0)
                inside.remove(turns)

    await asyncio.gather(work(new_turns()), work(new_turns()))
    assert seen_together == [1] * 40


async def test_a_turn_begins_when_the_cache_has_seen_what_the_last_one_did(new_turns):
    first, second = new_turns(), new_turns()
    async with first.turn(dict, {0: 7}):
        pass
    seen = {0: 5}
    order, asked = [], []

    def look():
        asked.append(seen[0])
        return seen

    async def work():
        async with second.turn(look, {}):
            order.append(("turn", seen[0]))

    working = asyncio.create_task(work())
    for seq in (6, 7):
        await until(lambda: seen[0] in asked, "it to see that this is not enough")
        seen[0] = seq
        order.append(("feed", seq))
        second.heard()
    await working
    assert order == [("feed", 6), ("feed", 7), ("turn", 7)]


async def test_a_turn_that_fails_gives_the_lock_back(new_turns):
    first, second = new_turns(), new_turns()

    async def fail():
        async with first.turn(dict, {}):
            raise ValueError("failed in its turn")

    with pytest.raises(ValueError, match="failed in its turn"):
        await fail()
    async with second.turn(dict, {}):
        pass
