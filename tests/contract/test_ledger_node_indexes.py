"""The index of a removed node is free again, and nobody takes the next node for the old one. Shard 0 of two,
so node indexes are even."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.wire.columns import FLAG_GONE, NONE_U32, account_dtype
from resolver.core.values import Verdict


@pytest.fixture
async def nodes(ledger, make_node):
    """Nodes 0 and 2, and worker w1 with epoch 1."""
    await ledger.upsert_nodes(0, [make_node("a", cpu=1000, cards=2), make_node("b", cpu=1000)])
    assert await ledger.grant("w1") == 1
    return ledger


async def index_of(ledger, *names):
    return (await ledger.node_indexes(0, names)).tolist()


@pytest.mark.topologies
async def test_the_index_of_a_removed_node_is_free_for_the_next_one(nodes, make_node, make_proposal):
    await nodes.commit(0, [make_proposal([1, 2], [[0], [2]])])
    assert len((await nodes.remove_nodes(0, ["a"])).uids) == 1
    assert await index_of(nodes, "a", "b") == [NONE_U32, 2]
    added = await nodes.upsert_nodes(0, [make_node("c", cpu=500), make_node("d", cpu=500)])
    assert added.indexes.tolist() == [0, 4]


async def test_a_thousand_nodes_that_come_and_go_leave_nothing(nodes, make_node, make_proposal):
    for round_number in range(10):
        names = [f"n{round_number}-{number}" for number in range(100)]
        await nodes.upsert_nodes(
            0, [make_node(name, cpu=100, cards=1, labels=(("k", "v"),)) for name in names]
        )
        await nodes.remove_nodes(0, names)
    state = await nodes.state(0)
    assert np.frombuffer(state.snapshot.accounts.indexes, "<u4").tolist() == [0, 2]
    added = await nodes.upsert_nodes(0, [make_node(f"m{number}") for number in range(101)])
    assert max(added.indexes.tolist()) == 2 * 102


@pytest.mark.topologies
async def test_a_proposal_for_the_node_that_had_the_index_before_is_refused(nodes, make_node, make_proposal):
    known = await nodes.seq(0)
    await nodes.remove_nodes(0, ["a"])
    [unknown] = await nodes.commit(0, [replace(make_proposal([1], [[0]]), snapshot_seq=known)])
    assert unknown.verdicts.tolist() == [Verdict.NODE_GONE], "an index without a node"
    await nodes.upsert_nodes(0, [make_node("c", cpu=1000)])
    [refused] = await nodes.commit(0, [replace(make_proposal([1], [[0]]), snapshot_seq=known)])
    assert refused.verdicts.tolist() == [Verdict.NODE_GONE]
    [decided] = await nodes.commit(0, [replace(make_proposal([1], [[0]]), snapshot_seq=await nodes.seq(0))])
    assert decided.verdicts.tolist() == [Verdict.COMMITTED]


async def test_the_next_node_inherits_nothing(nodes, make_node, make_proposal):
    await nodes.upsert_nodes(0, [replace(make_node("a", cpu=1000, cards=2), resource_version=9)])
    await nodes.commit(0, [make_proposal([1], [[0]], cpu=700)])
    await nodes.remove_nodes(0, ["a"])
    await nodes.upsert_nodes(0, [replace(make_node("c", cpu=1000), resource_version=3)])
    rows = (await nodes.snapshot(0)).accounts
    account = np.frombuffer(rows.records, account_dtype(rows.resources))[0]
    assert account["amounts"][0].tolist() == [1000, 0]
    assert account["flags"] & FLAG_GONE == 0
    assert rows.card_indexes == b""
    await nodes.upsert_nodes(0, [replace(make_node("c", cpu=2000), resource_version=4)])
    rows = (await nodes.snapshot(0)).accounts
    assert np.frombuffer(rows.records, account_dtype(rows.resources))[0]["amounts"][0, 0] == 2000


async def test_a_removed_node_that_comes_back_keeps_its_name_and_gets_a_free_index(nodes, make_node):
    await nodes.remove_nodes(0, ["a"])
    await nodes.upsert_nodes(0, [make_node("c")])
    assert (await nodes.upsert_nodes(0, [make_node("a")])).indexes.tolist() == [4]
    assert await index_of(nodes, "a", "c") == [4, 0]


async def test_the_feed_tells_of_the_old_node_before_the_new_one(nodes, make_node):
    before = await nodes.seq(0)
    await nodes.remove_nodes(0, ["a"])
    await nodes.upsert_nodes(0, [make_node("c", cpu=500)])
    entries = await nodes.feed(0, before, 1)
    assert [entry.removed for entry in entries] == [(0,), ()]
    assert [index for index, _ in entries[-1].specs] == [0]
    rows = entries[0].accounts
    assert np.frombuffer(rows.records, account_dtype(rows.resources))[0]["flags"] & FLAG_GONE
