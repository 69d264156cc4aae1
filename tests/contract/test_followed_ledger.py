"""What a worker's cache is told of a ledger, held against the real feed of one, and against the accounts that
tests of the worker's core make by hand."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from accounts_in_memory import AccountsInMemory

from hoss.model.node import NodeSpec
from hoss.model.resources import BASE_RESOURCES
from hoss.wire.columns import FLAG_GONE, numbered_uids
from hoss.wire.convert import node_to_proto
from resolver.api.feed import ShardFeed
from resolver.core.values import Proposal, Verdict
from resolver.ledger.memory import MemoryLedger
from resolver.messages.nodes import node_change
from scheduler_worker import messages
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.messages import FeedUpdate

AMOUNTS = (("cpu", 4000), ("memory", 2**33), ("pods", 110))
NODES = [
    NodeSpec("a", allocatable=AMOUNTS),
    NodeSpec("b", allocatable=AMOUNTS, cards=2),
    NodeSpec("c", allocatable=AMOUNTS),
]
ONE_POD = np.array([500, 2**30, 0, 1, 0, 0], np.int64)


class ByHand:
    """The accounts of the worker's tests."""

    def __init__(self) -> None:
        self._ledger = AccountsInMemory()
        for index, node in enumerate(NODES):
            self._ledger.add(index, cards=node.cards, name=node.name, allocatable=dict(node.allocatable))

    async def snapshot(self) -> FeedUpdate:
        return self._ledger.snapshot()

    async def reserve(self, nodes: list[int]) -> FeedUpdate:
        return self._ledger.reserve(nodes, [ONE_POD] * len(nodes))

    async def remove(self, index: int) -> FeedUpdate:
        return self._ledger.remove(index)


class Followed:
    """A ledger that is held to the contract of all, by the messages of its feed."""

    def __init__(self) -> None:
        self._ledger = MemoryLedger(1, lambda: 0)
        self._feed = ShardFeed(self._ledger, 0)
        self._pods = 0

    async def snapshot(self) -> FeedUpdate:
        schema = await self._ledger.schema()
        await self._ledger.upsert_nodes(0, [node_change(node_to_proto(node), schema) for node in NODES])
        self._epoch = await self._ledger.grant("w")
        return messages.feed_update(await self._feed._read_snapshot())

    async def reserve(self, nodes: list[int]) -> FeedUpdate:
        count = len(nodes)
        proposal = Proposal(
            worker="w", epoch=self._epoch, snapshot_seq=await self._ledger.seq(0),
            uids=numbered_uids(b"twelve bytes", self._pods, count), slots=np.zeros(count, np.uint16),
            nodes=np.array(nodes, np.uint32)[:, None], requests=ONE_POD[None, :],
            priorities=np.zeros(1, np.int32), attempts=np.zeros(1, np.uint16),
        )  # fmt: skip
        self._pods += count
        [decision] = await self._ledger.commit(0, [proposal])
        assert decision.verdicts.tolist() == [Verdict.COMMITTED] * count
        return await self._newest()

    async def remove(self, index: int) -> FeedUpdate:
        await self._ledger.remove_nodes(0, [NODES[index].name])
        return await self._newest()

    async def _newest(self) -> FeedUpdate:
        entries = await self._ledger.feed(0, await self._ledger.seq(0) - 1, 1)
        return messages.feed_update(await self._feed._message(entries[-1]))


@dataclass
class Told:
    """A cache and where what it is told comes from."""

    source: Any
    cache: NodeInfoCache

    async def reserve(self, nodes: list[int]) -> FeedUpdate:
        update = await self.source.reserve(nodes)
        self.cache.apply_feed(update)
        return update


@pytest.fixture(params=[ByHand, Followed], ids=["by hand", "followed"])
async def told(request: pytest.FixtureRequest) -> Told:
    told = Told(request.param(), NodeInfoCache())
    told.cache.apply_feed(await told.source.snapshot())
    return told


async def test_a_snapshot_shows_every_node_with_all_that_it_offers_and_nothing_requested(told):
    cache = told.cache
    assert cache.size == len(NODES)
    cpu, pods = (BASE_RESOURCES.index(name) for name in ("cpu", "pods"))
    assert cache.accounts.allocatable[cpu, :3].tolist() == [4000] * 3
    assert cache.accounts.allocatable[pods, :3].tolist() == [110] * 3
    assert not cache.requested[:, :3].any()


async def test_an_entry_has_the_next_number_and_the_changed_nodes_accounts_as_absolute_values(told):
    before = told.cache.seqs[0]
    first, second = await told.reserve([0, 0, 2]), await told.reserve([0])
    assert (first.seq, second.seq) == (before + 1, before + 2)
    assert (first.shard, first.snapshot, second.snapshot) == (0, False, False)
    assert first.accounts.indexes.tolist() == [0, 2]
    assert second.accounts.indexes.tolist() == [0]
    assert second.accounts.records["seq"].tolist() == [second.seq]
    assert second.accounts.records["amounts"][0, : len(ONE_POD), 1].tolist() == (3 * ONE_POD).tolist()
    assert told.cache.requested[: len(ONE_POD), 0].tolist() == (3 * ONE_POD).tolist()
    assert told.cache.requested[: len(ONE_POD), 2].tolist() == ONE_POD.tolist()


async def test_cards_come_with_the_nodes_that_have_some(told):
    update = await told.reserve([0, 1])
    assert update.accounts.card_indexes.tolist() == [1]
    assert update.accounts.cards[0, :2].tolist() == [0, 0]
    assert len(set(update.accounts.cards[0, 2:].tolist())) == 1  # no card there


async def test_a_removed_node_is_flagged_as_gone_and_has_no_spec(told):
    update = await told.source.remove(1)
    assert update.specs == ((1, None),)
    assert update.accounts.indexes.tolist() == [1]
    assert update.accounts.records["flags"].tolist() == [FLAG_GONE]
    told.cache.apply_feed(update)
    assert told.cache.seqs[0] == update.seq
