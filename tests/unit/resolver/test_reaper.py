"""Leases end whatever else is away, and removals of nodes that were broken off are finished."""

import asyncio
from collections import Counter
from types import SimpleNamespace

from waiting import DEADLINE_SECONDS, until

from hoss.errors import LedgerUnavailable
from resolver.api.maintenance import finish_removals, reap_periodically
from resolver.core.shard import LeaseClock
from resolver.ledger.memory import MemoryLedger


class WithoutFirstShard(MemoryLedger):
    """Its shard 0 is away. `reaped` once shard 1 was asked."""

    def __init__(self):
        super().__init__(2, lambda: 0)
        self.reaped = asyncio.Event()

    async def reap(self, shard):
        if shard == 0:
            raise LedgerUnavailable("away")
        self.reaped.set()
        return 3


async def test_leases_end_on_the_other_shards_while_one_is_away():
    ledger, counters = WithoutFirstShard(), Counter()
    reaping = asyncio.create_task(reap_periodically(ledger, counters, period_seconds=0.0))
    await asyncio.wait_for(ledger.reaped.wait(), DEADLINE_SECONDS)
    reaping.cancel()
    await asyncio.gather(reaping, return_exceptions=True)
    assert counters["reaped"] >= 3


async def test_what_moved_pods_left_on_other_shards_is_released_where_the_reaper_found_something():
    ledger, reaped, finished = MemoryLedger(3, lambda: 0), [], set()

    async def reap(shard):
        reaped.append(shard)
        ledger.unfinished_moves[shard] = int(shard == 1)
        return 0

    async def finish_moves(shard):
        finished.add(shard)
        return 0

    ledger.reap, ledger.finish_moves = reap, finish_moves
    reaping = asyncio.create_task(reap_periodically(ledger, Counter(), period_seconds=0.0))
    await until(lambda: len(reaped) > 6, "two rounds")
    reaping.cancel()
    await asyncio.gather(reaping, return_exceptions=True)
    assert finished == {1}


def test_without_a_lease_lease_time_goes_on_in_steps_and_no_lease_is_shorter_for_that():
    clock, steps = LeaseClock(), []
    for now_ms in range(100_000, 120_000, 1000):
        clock.go_on(now_ms, idle=True)
        steps.append(clock.seen_ms)
    assert sorted({*steps}) == [100_000, 105_000, 110_000, 115_000]
    deadline_ms = clock.now(119_500) + 4000  # of a lease that begins then
    ends_ms = next(
        now_ms for now_ms in range(120_000, 130_000, 1000) if clock.go_on(now_ms, idle=False) >= deadline_ms
    )
    assert ends_ms == 124_000


def test_a_clock_that_goes_back_is_followed_at_once_without_a_lease_too():
    clock = LeaseClock()
    clock.go_on(100_000, idle=True)
    clock.go_on(50_000, idle=True)
    assert (clock.time_ms, clock.seen_ms) == (100_000, 50_000)


async def test_commits_with_damaged_records_are_logged_and_counted(monkeypatch):
    ledger, counters, logged = MemoryLedger(1, lambda: 0), Counter(), []
    ledger.damaged_commits[0] = [f"{seq}" for seq in range(12)]
    monkeypatch.setattr(
        "resolver.api.maintenance.logger",
        lambda: SimpleNamespace(warning=lambda event, **fields: logged.append((event, fields))),
    )
    reaping = asyncio.create_task(reap_periodically(ledger, counters, period_seconds=0.0))
    await until(lambda: counters["damaged_commits"] > 0)
    reaping.cancel()
    await asyncio.gather(reaping, return_exceptions=True)
    event, fields = logged[0]
    assert (event, fields["commits"]) == ("commits_damaged", [f"{seq}" for seq in range(10)])
    assert (counters["damaged_commits"], ledger.damaged_commits[0], len(logged)) == (12, [], 1)


async def test_a_removal_is_finished_by_another_resolver_once_it_was_seen_unfinished_twice(make_node):
    ledger, counters = MemoryLedger(1, lambda: 0), Counter()
    await ledger.upsert_nodes(0, [make_node("a"), make_node("b")])
    ledger.arbiters[0].remove(["a"])  # and the resolver dies
    looks = []

    async def removals(shard):
        looks.append(set(ledger.arbiters[shard].removed))
        return looks[-1]

    ledger.removals = removals
    finishing = asyncio.create_task(finish_removals(ledger, counters, period_seconds=0.0))
    await until(lambda: counters["nodes_forgotten"] == 1)
    finishing.cancel()
    await asyncio.gather(finishing, return_exceptions=True)
    assert looks[:2] == [{0}, {0}]
