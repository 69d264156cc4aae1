"""Records about commits and groups that cannot be read: the list of a commit's pods, the number of pods of a
prepared commit or of a group. No call fails for one, no pod is confirmed by one, and a repair writes them
anew from the reservations. In Redis alone: the model has no bytes. Shard 0 of two, so node indexes are
even."""

from dataclasses import replace

import numpy as np
import pytest

from resolver.core.accounts import sum_reservations
from resolver.core.consistency.repair import plan_repair
from resolver.core.moves import Moves
from resolver.core.values import ANYBODY, ReservationState, Verdict
from resolver.ledger.rebuild import RedisRebuild
from resolver.ledger.shards import SHARD_KEYS

pytestmark = pytest.mark.parametrize("ledger_url", ["server"], indirect=True)
NONE, PREPARED, ASSUMED = ReservationState.NONE, ReservationState.PREPARED, ReservationState.ASSUMED
LISTS = {"nothing is left": b"", "its end is missing": bytes(40), "bytes of something else": b"stranger"}
COUNTS = {"nothing is left": b"", "no number": b"2x", "too large": b"9" * 30, "in words": b"two"}


async def stored(ledger, name):
    """The key of that name, and a client of its server."""
    key = ledger.keys_of(0)[SHARD_KEYS.index(name)]
    return key, await ledger.scripts.access.at(key)


async def damage(ledger, name, record):
    """All records of that key, and one under a name of nothing; returns them as they are now."""
    key, redis = await stored(ledger, name)
    damaged = dict.fromkeys([*await redis.hgetall(key), b"stranger's", b"007"], record)
    await redis.hset(key, mapping=damaged)
    return damaged


async def repair(ledger, **damaged):
    """The repair of what the shard has; only these records are damaged."""
    state = await ledger.state(0)
    assert state.damaged_records == damaged
    nodes, held = np.frombuffer(state.snapshot.accounts.indexes, "<u4"), state.reservations
    planned = plan_repair(state, sum_reservations(nodes, held.uids, held.records, {}), ["cpu"], {})
    assert await RedisRebuild(ledger, feed_window=100, lease_ms=0).repair(0, state.snapshot.seq, planned)
    after = await ledger.state(0)
    assert (after.damaged_records, after.commit_faults) == ({}, [])


def told(ledger):
    """The damaged commits that were found since this was last asked."""
    found, ledger.damaged_commits[0] = ledger.damaged_commits[0], []
    return found


async def states(ledger, proposal):
    return (await ledger.lookup(0, proposal.uids))["state"].tolist()


@pytest.fixture
async def nodes(ledger, make_node):
    """Nodes 0 and 2, and worker w1 with epoch 1."""
    await ledger.upsert_nodes(0, [make_node("a"), make_node("b")])
    assert await ledger.grant("w1") == 1
    return ledger


@pytest.mark.parametrize("record", LISTS.values(), ids=list(LISTS))
async def test_a_lease_whose_list_of_pods_is_damaged_confirms_nobody_and_ends_after_a_repair(
    nodes, make_proposal, record
):
    first, second = make_proposal([1, 2], [[0], [0]]), make_proposal([3], [[2]])
    [decision] = await nodes.commit(0, [first])
    damaged = await damage(nodes, "pending", record)
    await nodes.commit(0, [second])
    assert await nodes.reap(0) == 1
    assert set(told(nodes)) == {f"{decision.seq}"}
    assert await states(nodes, first) == [ASSUMED, ASSUMED]
    assert await states(nodes, second) == [NONE]
    assert len((await nodes.assumed(0, np.array([0], np.uint32))).uids) in (0, 2)
    assert await nodes.reap(0) == 0
    assert told(nodes) == []  # it is told of once
    await repair(nodes, pending=damaged)
    assert await nodes.reap(0) == 2
    assert told(nodes) == []
    assert await states(nodes, first) == [NONE, NONE]


async def test_a_list_that_lacks_a_pod_of_its_commit_is_found_and_written_anew(nodes, make_proposal):
    proposal = make_proposal([1, 2], [[0], [0]])
    [decision] = await nodes.commit(0, [proposal])
    key, redis = await stored(nodes, "pending")
    field = b"%d" % decision.seq
    listed = await redis.hget(key, field)
    await redis.hset(key, field, b"\xff" + listed[1:])
    await repair(nodes, pending={field: b"\xff" + listed[1:]})
    written = await redis.hget(key, field)
    assert {written[:16], written[16:]} == {listed[:16], listed[16:]}
    assert await nodes.reap(0) == 2


async def test_a_lost_list_of_a_commit_that_holds_nothing_is_forgotten(nodes, make_proposal):
    proposal = make_proposal([1], [[0]])
    await nodes.commit(0, [proposal])
    damaged = await damage(nodes, "pending", b"")
    await nodes.release(0, proposal.uids)
    await repair(nodes, pending=damaged)
    key, redis = await stored(nodes, "pending")
    assert await redis.hgetall(key) == {}


async def test_a_move_does_not_end_the_lease_of_a_damaged_list(nodes, make_proposal):
    """Pods of the list may be there that it does not name."""
    source, both = make_proposal([1], [[0]]), make_proposal([1, 2], [[2], [2]])
    [decision] = await nodes.commit(0, [source])
    [target] = await nodes.commit(0, [replace(both, moves=True)])
    damaged = await damage(nodes, "pending", b"short")
    moves = Moves(
        both.uids[:1],
        np.array([2], np.uint32),
        np.array([target.seq], np.uint64),
        np.array([0], np.uint32),
        np.array([decision.seq], np.uint64),
    )
    await nodes.confirm_moves(0, moves, ANYBODY)
    key, redis = await stored(nodes, "pending")
    assert await redis.hget(key, b"%d" % target.seq) == damaged[b"%d" % target.seq]


@pytest.mark.parametrize("record", COUNTS.values(), ids=list(COUNTS))
async def test_a_prepared_commit_whose_number_of_pods_is_damaged_stays_prepared_until_its_lease_ends(
    nodes, make_proposal, record
):
    proposal = replace(make_proposal([1, 2, 3], [[0], [0], [2]]), prepared=True)
    [decision] = await nodes.commit(0, [proposal])
    await damage(nodes, "holds", record)
    assert await nodes.release(0, proposal.uids[:1]) == 1
    assert await states(nodes, proposal) == [NONE, PREPARED, PREPARED]
    assert len((await nodes.snapshot(0, groups=True)).prepared) == 1
    assert await nodes.reap(0) == 2
    assert told(nodes) == [f"{decision.seq}"]
    assert await states(nodes, proposal) == [NONE, NONE, NONE]
    key, redis = await stored(nodes, "holds")
    assert set(await redis.hgetall(key)) == {b"stranger's", b"007"}


async def test_pods_of_a_prepared_commit_are_counted_anew_by_a_repair(nodes, make_proposal):
    proposal = replace(make_proposal([1, 2], [[0], [2]]), prepared=True)
    [decision] = await nodes.commit(0, [proposal])
    damaged = await damage(nodes, "holds", b"many")
    await repair(nodes, holds=damaged)
    key, redis = await stored(nodes, "holds")
    assert await redis.hgetall(key) == {b"%d" % decision.seq: b"2"}


async def test_a_prepared_commit_that_counts_right_is_not_reported_as_damaged(nodes, make_proposal):
    proposal = replace(make_proposal([1, 2, 3], [[0], [0], [2]]), prepared=True)
    await nodes.commit(0, [proposal])
    assert await nodes.release(0, proposal.uids[:1]) == 1
    assert await nodes.reap(0) == 2
    assert told(nodes) == []


async def test_a_lease_of_a_stranger_ends(nodes, make_proposal):
    key, redis = await stored(nodes, "leases")
    holds, _ = await stored(nodes, "holds")
    await redis.zadd(key, {"stranger's": 1})
    await redis.hset(holds, "stranger's", "1")
    await nodes.commit(0, [make_proposal([1], [[0]])])
    assert await nodes.reap(0) == 1
    assert set(told(nodes)) == {"stranger's"}
    assert (await redis.zcard(key), await redis.hlen(holds)) == (0, 0)


@pytest.mark.parametrize("record", COUNTS.values(), ids=list(COUNTS))
async def test_a_group_whose_number_of_pods_is_damaged_keeps_its_definition_until_it_is_counted(
    nodes, make_proposal, record
):
    first = make_proposal([1, 2], [[0], [0]], groups=["web", "web"])
    second = make_proposal([3], [[0]], groups=["web"])
    await nodes.commit(0, [first])
    damaged = await damage(nodes, "group_pods", record)
    [decision] = await nodes.commit(0, [second])
    assert decision.verdicts.tolist() == [Verdict.COMMITTED]
    assert await nodes.release(0, first.uids[:1]) == 1
    [run] = (await nodes.snapshot(0, groups=True)).runs
    assert run.definition
    await repair(nodes, group_pods=damaged)
    [(_, pods)] = (await nodes.state(0)).groups.values()
    assert pods == 2
    assert await nodes.release(0, np.concatenate([first.uids[1:], second.uids])) == 2
    assert (await nodes.state(0)).groups == {}


async def test_the_definition_of_new_pods_is_kept_where_their_number_cannot_be(nodes, make_proposal):
    await nodes.commit(0, [make_proposal([1], [[0]], groups=["web"])])
    await damage(nodes, "group_pods", b"x")
    key, redis = await stored(nodes, "groups")
    await redis.delete(key)
    await nodes.commit(0, [make_proposal([2], [[0]], groups=["web"])])
    assert len(await redis.hgetall(key)) == 1


async def test_a_group_whose_damaged_number_is_none_is_forgotten(nodes, make_proposal):
    proposal = make_proposal([1], [[0]], groups=["web"])
    await nodes.commit(0, [proposal])
    damaged = await damage(nodes, "group_pods", b"x")
    await nodes.release(0, proposal.uids)
    await repair(nodes, group_pods=damaged)
    for name in ("groups", "group_pods"):
        key, redis = await stored(nodes, name)
        assert await redis.hgetall(key) == {}
