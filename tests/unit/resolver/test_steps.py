"""What a resolver does with a large ledger, it does in steps between which others get their turn. On the
ledger in memory, which never waits: every turn of the event loop is one that was given."""

import asyncio
import random

import pytest

from resolver.api import nodes
from resolver.api.auditing import audit_ledger
from resolver.api.feed import ShardFeed
from resolver.api.rebuilding import RebuildService
from resolver.ledger.memory import MemoryLedger
from resolver.messages import parts


@pytest.fixture(autouse=True)
def steps_of_one_row(monkeypatch):
    monkeypatch.setattr(nodes, "_SLICE_ROWS", 1)
    monkeypatch.setattr(parts, "_ROWS", 1)


@pytest.fixture
def turns(make_node):
    """How many turns others get while the work is done on a ledger of so many shards and nodes on the
    first."""

    async def count(work, *, of_nodes=1, shards=1):
        ledger, turns = MemoryLedger(shards, lambda: 0), 0
        described = [make_node(f"n{number}", labels=(("rack", "r"),)) for number in range(of_nodes)]
        await ledger.upsert_nodes(0, described)
        task = asyncio.ensure_future(work(ledger))
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        await task
        return turns

    return count


async def left_of(ledger):
    """What a rebuild reads of the ledger that is there."""
    rebuilding = RebuildService(ledger, None, now_us=lambda: 0, rng=random.Random(1))
    return [part async for part in rebuilding._left()]


@pytest.mark.parametrize(
    ("work", "steps_a_node"),
    [
        (audit_ledger, 3),  # nodes are read, their labels compared, and pods that are together looked for
        (lambda ledger: ShardFeed(ledger, 0)._take_snapshot(), 1),
        (left_of, 1),
    ],
    ids=["an audit", "a snapshot for followers", "what a rebuild reads"],
)
async def test_others_get_their_turn_after_each_slice_of_the_nodes(turns, work, steps_a_node):
    assert await turns(work, of_nodes=9) - await turns(work, of_nodes=3) == 6 * steps_a_node


async def test_an_audit_gives_a_turn_after_each_shard(turns):
    assert await turns(audit_ledger, shards=4) - await turns(audit_ledger, shards=1) == 3
