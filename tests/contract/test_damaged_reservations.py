"""A reservation that cannot be read stops nothing: whoever finds it sets it aside, and the others are read,
ended and released as ever. An audit names it. On any ledger; shard 0 of two."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.wire.columns import NONE_U32, account_dtype
from resolver.core.moves import MoveResult, Moves
from resolver.core.values import Verdict, Writer
from resolver.ledger.memory import MemoryLedger
from resolver.ledger.shards import SHARD_KEYS

DAMAGES = {"nothing is left": b"", "its end is missing": bytes(40), "a byte too many": bytes(96)}
WORKER = Writer(0, "w1", 1)


async def damage(ledger, uid, record=b"\1\2\3"):
    """As a faulty disk or another program would."""
    if isinstance(ledger, MemoryLedger):
        ledger.damage(0, uid.tobytes(), record)
        return
    key = ledger.keys_of(0)[SHARD_KEYS.index("reservations")]
    await (await ledger.scripts.access.at(key)).hset(key, uid.tobytes(), record)


async def requested_cpu(ledger):
    """Of the nodes, in the order of their indexes."""
    rows = (await ledger.state(0)).snapshot.accounts
    return np.frombuffer(rows.records, account_dtype(rows.resources))["amounts"][:, 0, 1].tolist()


@pytest.fixture
async def placed(ledger, make_node, make_proposal):
    """Pods 1 and 2 on node 0 and pod 3 on node 2, with 300 milli cpu each: the ledger, their UIDs, and the
    decision."""
    await ledger.upsert_nodes(0, [make_node("a"), make_node("b")])
    await ledger.grant("w1")
    proposal = make_proposal([1, 2, 3], [[0], [0], [2]], cpu=300)
    [decision] = await ledger.commit(0, [proposal])
    return ledger, proposal.uids, decision


@pytest.mark.parametrize("record", DAMAGES.values(), ids=list(DAMAGES))
@pytest.mark.topologies
async def test_the_rest_of_an_expired_commit_is_released_and_the_damaged_reservation_is_set_aside(
    placed, record
):
    ledger, uids, _ = placed
    await damage(ledger, uids[1], record)
    assert await ledger.reap(0) == 2
    assert await ledger.reap(0) == 0
    state = await ledger.state(0)
    assert (len(state.reservations.uids), state.damaged) == (0, {uids[1].tobytes(): record})
    assert not state.commits.deadlines
    assert await requested_cpu(ledger) == [300, 0]  # until a repair: nobody knows what it held
    assert (await ledger.table_sizes())["damaged"] == 1


async def test_a_damaged_pod_of_another_commit_does_not_keep_leases_from_ending(placed, make_proposal):
    ledger, uids, _ = placed
    later = make_proposal([7, 8], [[2], [2]])
    await ledger.commit(0, [later])
    await damage(ledger, uids[0])
    assert await ledger.reap(0) == 4
    assert (await ledger.lookup(0, later.uids))["node"].tolist() == [NONE_U32, NONE_U32]


async def test_lookups_releases_and_lists_go_on_with_the_others(placed):
    ledger, uids, decision = placed
    await damage(ledger, uids[1])
    assert (await ledger.lookup(0, uids))["node"].tolist() == [0, NONE_U32, 2]
    listed = [part.uids async for part in ledger.reservations(0)]
    assert sorted(map(bytes, np.concatenate(listed))) == sorted(map(bytes, uids[[0, 2]]))
    assert len((await ledger.reservations_of(0, uids)).uids) == 2
    assert await ledger.release(0, uids) == 2
    assert await ledger.confirm(0, np.array([decision.seq], np.uint64)) == 1


READS = {
    "the whole shard": lambda ledger, _uids: ledger.state(0),
    "a snapshot with groups": lambda ledger, _uids: ledger.snapshot(0, groups=True),
    "these pods": lambda ledger, uids: ledger.reservations_of(0, uids),
    "their groups": lambda ledger, uids: ledger.definitions(0, uids),
    "the latest on some nodes": lambda ledger, _uids: ledger.assumed(0, np.array([0, 2], np.uint32)),
}


@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
async def test_whoever_reads_a_damaged_reservation_sets_it_aside(placed, read):
    ledger, uids, _ = placed
    await damage(ledger, uids[1])
    await read(ledger, uids)
    assert (await ledger.table_sizes())["damaged"] == 1
    assert (await ledger.summary()).reservations == 2


async def test_a_pod_whose_reservation_is_damaged_is_placed_again(placed, make_proposal):
    ledger, uids, _ = placed
    await damage(ledger, uids[1])
    [decision] = await ledger.commit(0, [make_proposal([1, 2], [[2], [2]], cpu=300)])
    assert decision.verdicts.tolist() == [Verdict.DUPLICATE, Verdict.COMMITTED]
    assert await requested_cpu(ledger) == [600, 600]  # what it held is counted, so nothing is sold twice


@pytest.mark.parametrize("commits", [False, True], ids=["nobody commits it", "the rest is committed"])
async def test_a_prepared_commit_with_a_damaged_pod_ends_with_its_lease(placed, make_proposal, commits):
    """Else it would hold up every view: one is complete up to the first prepared commit."""
    ledger, _, _ = placed
    prepared = replace(make_proposal([7, 8], [[2], [2]]), prepared=True)
    [decision] = await ledger.commit(0, [prepared])
    await damage(ledger, prepared.uids[0])
    if commits:
        seqs = np.full(2, decision.seq, np.uint64)
        now = await ledger.commit_prepared(0, prepared.uids, seqs, prepared.writer)
        assert (now > 0).tolist() == [False, True]
    before = (await ledger.state(0)).snapshot
    assert before.prepared == (decision.seq,)
    await ledger.reap(0)
    after = (await ledger.state(0)).snapshot
    assert after.prepared == ()
    entries = await ledger.feed(0, before.seq, 0)
    assert decision.seq in {seq for entry in entries for seq in entry.ended}


async def test_a_prepared_commit_of_a_damaged_pod_alone_ends_too(placed, make_proposal):
    ledger, uids, _ = placed
    await ledger.release(0, uids)
    prepared = replace(make_proposal([7], [[2]]), prepared=True)
    [decision] = await ledger.commit(0, [prepared])
    await damage(ledger, prepared.uids[0])
    assert await ledger.reap(0) == 0
    [ending] = [entry for entry in await ledger.feed(0, decision.seq, 0) if entry.ended]
    assert ending.ended == (decision.seq,)


async def test_a_damaged_target_of_a_move_is_no_target(placed):
    ledger, uids, decision = placed
    await damage(ledger, uids[1])
    seqs = np.full(1, decision.seq, np.uint64)
    moves = Moves(uids[1:2], np.array([2], np.uint32), seqs, np.array([0], np.uint32), seqs)
    assert (await ledger.confirm_moves(0, moves, WORKER)).tolist() == [MoveResult.TARGET_GONE]
    assert (await ledger.table_sizes())["damaged"] == 1


redis_alone = pytest.mark.parametrize("ledger_url", ["server"], indirect=True)  # the model has no bytes


async def stored(ledger, name):
    """The key of that name, and a client of its server."""
    key = ledger.keys_of(0)[SHARD_KEYS.index(name)]
    return key, await ledger.scripts.access.at(key)


@redis_alone
async def test_amounts_that_its_node_never_counted_are_not_given_back(placed):
    ledger, uids, _ = placed
    key, redis = await stored(ledger, "reservations")
    record = await redis.hget(key, uids[1].tobytes())
    await redis.hset(key, uids[1].tobytes(), record[:-7] + bytes([1] * 16) + record[-7:])
    assert await ledger.release(0, uids) == 3
    assert await requested_cpu(ledger) == [0, 0]


@redis_alone
@pytest.mark.parametrize("terminate", [False, True])
async def test_a_victim_with_amounts_that_its_node_never_counted_makes_room_for_what_it_counts(
    placed, make_proposal, terminate
):
    """It stopped every proposal that came with the eviction."""
    ledger, uids, _ = placed
    key, redis = await stored(ledger, "reservations")
    record = await redis.hget(key, uids[1].tobytes())
    await redis.hset(key, uids[1].tobytes(), record[:-7] + bytes([1] * 16) + record[-7:])
    preemptor = make_proposal([7, 8], [[0], [2]], cpu=[9600, 100], priorities=[9, 9])
    victims = {0: (uids[1].tobytes(),)}
    [decision] = await ledger.commit(0, [replace(preemptor, victims=victims, victims_terminate=terminate)])
    assert decision.verdicts.tolist() == [Verdict.COMMITTED, Verdict.COMMITTED]
    assert await requested_cpu(ledger) == [10_000 if terminate else 9900, 400]
    assert await ledger.release(0, np.concatenate([uids, preemptor.uids])) == (5 if terminate else 4)
    assert await requested_cpu(ledger) == [0, 0]


@redis_alone
@pytest.mark.parametrize("damage", ["lost", "cut short"])
async def test_a_pod_is_released_though_the_cards_of_its_node_are_not_known(
    ledger, make_node, make_proposal, damage
):
    await ledger.upsert_nodes(0, [make_node("a", cards=2)])
    await ledger.grant("w1")
    proposal = make_proposal([1], [[0]], devices=[(1, 1000)])
    await ledger.commit(0, [proposal])
    key, redis = await stored(ledger, "cards")
    await (redis.delete(key) if damage == "lost" else redis.hset(key, bytes(4), b"short"))
    assert await ledger.release(0, proposal.uids) == 1
    if damage == "cut short":  # nobody gets a card, also when the node is changed
        await ledger.upsert_nodes(0, [make_node("a", cards=2, cpu=5000)])
        [decision] = await ledger.commit(0, [make_proposal([2], [[0]], devices=[(1, 1000)])])
        assert decision.verdicts.tolist() == [Verdict.CONFLICT_DEVICE]


@redis_alone
async def test_a_reservation_under_a_name_that_is_no_uid_is_set_aside(placed):
    ledger, uids, _ = placed
    key, redis = await stored(ledger, "reservations")
    await redis.hset(key, b"short", await redis.hget(key, uids[1].tobytes()))
    state = await ledger.state(0)
    assert (len(state.reservations.uids), list(state.damaged)) == (3, [b"short"])
    assert (await ledger.table_sizes())["damaged"] == 1


@redis_alone
@pytest.mark.parametrize("damage", ["lost", "cut short"])
async def test_a_preemptor_is_released_whole_though_what_it_took_from_a_victim_is_not_known(
    placed, make_proposal, damage
):
    ledger, uids, _ = placed
    proposal = make_proposal([7], [[0]], cpu=9600, priorities=[9])
    proposal = replace(proposal, victims={0: (uids[0].tobytes(),)}, victims_terminate=True)
    [decision] = await ledger.commit(0, [proposal])
    assert decision.verdicts.tolist() == [Verdict.COMMITTED]
    key, redis = await stored(ledger, "terminating")
    taken = await redis.hget(key, uids[0].tobytes())
    await (
        redis.hdel(key, uids[0].tobytes())
        if damage == "lost"
        else redis.hset(key, uids[0].tobytes(), taken[:20])
    )
    assert await ledger.release(0, proposal.uids) == 1
    assert not (await ledger.nominated(0, proposal.uids)).any()
    assert await ledger.release(0, uids) == 3
