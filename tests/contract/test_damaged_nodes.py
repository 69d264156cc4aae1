"""An account or a record of cards that cannot be read stops nothing: its node gets nothing, the others are
placed on, released and read as ever, and the node's pods stay where they are. An audit names it. On any
ledger; shard 0 of two."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.wire.columns import FLAG_GONE, FLAG_QUARANTINED, account_dtype
from resolver.core.moves import target_proposal
from resolver.core.quarantine import QuarantineRequest
from resolver.core.values import Verdict, Writer
from resolver.ledger.memory import MemoryLedger
from resolver.ledger.quarantine import RedisQuarantine
from resolver.ledger.shards import SHARD_KEYS

DAMAGES = {
    "nothing is left": b"",
    "its end is missing": bytes(30),
    "shorter than any account by one resource": bytes(15),
    "a byte too many": bytes(80),
}
FIRST, SECOND = 0, 2  # indexes of the nodes


async def stored(ledger, name):
    """The key of that name, and a client of its server."""
    key = ledger.keys_of(0)[SHARD_KEYS.index(name)]
    return key, await ledger.scripts.access.at(key)


async def damage(ledger, record=b"\1\2\3"):
    """The first node's account, as a faulty disk or another program would."""
    if isinstance(ledger, MemoryLedger):
        ledger.damage_account(0, FIRST, record)
        return
    key, redis = await stored(ledger, "accounts")
    await redis.hset(key, FIRST.to_bytes(4, "little"), record)


def read(shown):
    """Of a snapshot or a decision, by node: flags, and allocatable and requested of the first resource."""
    rows = shown.accounts if hasattr(shown, "accounts") else shown.fresh
    accounts = np.frombuffer(rows.records, account_dtype(rows.resources))
    return {
        node: (int(account["flags"]), *account["amounts"][0].tolist())
        for node, account in zip(np.frombuffer(rows.indexes, "<u4").tolist(), accounts, strict=True)
    }


@pytest.fixture
async def placed(ledger, make_node, make_proposal):
    """Pods 1 and 2 on the first node and pod 3 on the second, with 300 milli cpu each: the ledger, their
    UIDs, and the decision."""
    await ledger.upsert_nodes(0, [make_node("a", cpu=1000), make_node("b", cpu=1000)])
    await ledger.grant("w1")
    proposal = make_proposal([1, 2, 3], [[FIRST], [FIRST], [SECOND]], cpu=300)
    [decision] = await ledger.commit(0, [proposal])
    return ledger, proposal.uids, decision


@pytest.mark.parametrize("record", DAMAGES.values(), ids=list(DAMAGES))
@pytest.mark.topologies
async def test_a_node_with_a_damaged_account_gets_nothing_and_alternates_are_taken(
    placed, make_proposal, record
):
    ledger, _, _ = placed
    await damage(ledger, record)
    [decision] = await ledger.commit(
        0, [make_proposal([7, 8, 9], [[FIRST], [FIRST, SECOND], [SECOND]], cpu=300)]
    )
    assert decision.verdicts.tolist() == [Verdict.NODE_GONE, Verdict.COMMITTED, Verdict.COMMITTED]
    assert decision.nodes.tolist()[1:] == [SECOND, SECOND]


@pytest.mark.parametrize("minimum", [0, 2], ids=["pods", "gang"])
async def test_a_refusal_shows_its_node_without_room_so_that_its_worker_avoids_it_until_a_repair(
    placed, make_proposal, minimum
):
    ledger, _, _ = placed
    await damage(ledger)
    asked = replace(make_proposal([7, 8, 9], [[FIRST], [SECOND], [SECOND]], cpu=600), gang_minimum=minimum)
    [decision] = await ledger.commit(0, [asked])
    assert read(decision) == {FIRST: (FLAG_QUARANTINED, 0, 0), SECOND: (0, 1000, 300 if minimum else 900)}
    rows = decision.fresh
    seqs = np.frombuffer(rows.records, account_dtype(rows.resources))["seq"].tolist()
    assert seqs[0] == await ledger.seq(0), "as new as anything that its worker knows"


async def test_a_refusal_shows_nothing_of_a_node_that_is_not_there(placed, make_proposal):
    ledger, _, _ = placed
    await ledger.remove_nodes(0, ["a"])
    [decision] = await ledger.commit(0, [make_proposal([7], [[FIRST]], cpu=300)])
    assert decision.verdicts.tolist() == [Verdict.NODE_GONE]
    assert read(decision) == {}


@pytest.mark.parametrize("record", DAMAGES.values(), ids=list(DAMAGES))
async def test_its_node_is_shown_with_its_spec_and_without_room_so_that_nobody_takes_it_for_gone(
    placed, record
):
    ledger, uids, _ = placed
    await damage(ledger, record)
    for snapshot in (await ledger.snapshot(0, groups=True), await ledger.snapshot_of(0, ["a", "b"])):
        assert read(snapshot) == {FIRST: (FLAG_QUARANTINED, 0, 0), SECOND: (0, 1000, 300)}
        assert set(snapshot.specs) == {FIRST, SECOND}
    state = await ledger.state(0)
    assert state.damaged_accounts == {FIRST.to_bytes(4, "little"): record}
    assert read(state.snapshot)[FIRST] == (FLAG_QUARANTINED, 0, 0)
    assert len(state.reservations.uids) == 3
    assert (await ledger.lookup(0, uids))["node"].tolist() == [FIRST, FIRST, SECOND]


async def test_its_pods_are_released_and_the_other_node_gets_back_what_its_pod_held(placed):
    ledger, uids, _ = placed
    await damage(ledger)
    assert await ledger.release(0, uids) == 3
    assert read(await ledger.snapshot(0)) == {FIRST: (FLAG_QUARANTINED, 0, 0), SECOND: (0, 1000, 0)}


async def test_its_pods_are_moved_away_in_one_step(placed):
    ledger, uids, _ = placed
    await damage(ledger)
    held = await ledger.reservations_of(0, uids[:1])
    proposal = target_proposal(
        held,
        [None],
        np.array([SECOND], np.uint32),
        writer=Writer(worker="w1", epoch=1),
        seen=(await ledger.seq(0), 0),
        at_once=True,
    )
    [decision] = await ledger.commit(0, [proposal])
    assert decision.verdicts.tolist() == [Verdict.COMMITTED]
    assert read((await ledger.state(0)).snapshot)[SECOND] == (0, 1000, 600)


async def test_leases_on_it_end(placed):
    ledger, _, _ = placed
    await damage(ledger)
    assert await ledger.reap(0) == 3


async def test_a_change_of_its_node_is_kept_and_does_not_replace_what_its_pods_hold(placed, make_node):
    ledger, _, _ = placed
    await damage(ledger)
    changed = make_node("a", cpu=5000)
    upserted = await ledger.upsert_nodes(0, [changed, make_node("c", cpu=100)])
    assert (upserted.indexes.tolist(), upserted.overcommitted) == ([FIRST, 4], [])
    snapshot = await ledger.snapshot(0)
    assert snapshot.specs[FIRST] == changed.spec
    assert read(snapshot)[FIRST] == (FLAG_QUARANTINED, 0, 0)


async def test_an_older_node_object_does_not_replace_a_newer_one_while_the_account_is_damaged(
    placed, make_node
):
    ledger, _, _ = placed
    newer, older = make_node("a", cpu=5000), make_node("a", cpu=2000)
    await ledger.upsert_nodes(0, [replace(make_node("a", cpu=1500), resource_version=10)])
    await damage(ledger)
    await ledger.upsert_nodes(0, [replace(newer, resource_version=30)])
    await ledger.upsert_nodes(0, [replace(older, resource_version=20)])
    assert (await ledger.snapshot(0)).specs[FIRST] == newer.spec


async def first_step_of_removal(ledger):
    if isinstance(ledger, MemoryLedger):
        ledger.arbiters[0].remove(["a"])
    else:
        await ledger.run("remove_nodes", 0, names=["a"])


async def last_step_of_removal(ledger):
    """How many nodes it forgot."""
    if isinstance(ledger, MemoryLedger):
        return ledger.arbiters[0].forget_nodes([FIRST])
    return await ledger.run("forget_nodes", 0, nodes=[FIRST.to_bytes(4, "little")])


@pytest.mark.parametrize("record", DAMAGES.values(), ids=list(DAMAGES))
async def test_its_node_is_not_forgotten_while_a_pod_is_reserved_on_it(placed, record):
    """As one that was only prepared when the node was removed, and was committed afterwards."""
    ledger, uids, _ = placed
    await damage(ledger, record)
    await first_step_of_removal(ledger)
    await ledger.release(0, uids[:1])
    assert await last_step_of_removal(ledger) == 0
    assert await ledger.removals(0) == {FIRST}
    await ledger.release(0, uids[1:2])
    assert await last_step_of_removal(ledger) == 1
    assert await ledger.removals(0) == set()


async def test_its_node_is_removed_and_its_index_is_free_afterwards(placed, make_node):
    ledger, uids, _ = placed
    await damage(ledger)
    before = (await ledger.state(0)).snapshot.seq
    removed = await ledger.remove_nodes(0, ["a"])
    assert removed.missing == []
    assert sorted(map(bytes, removed.uids)) == sorted(map(bytes, uids[:2]))
    gone = [node for entry in await ledger.feed(0, before, 0) for node in entry.removed]
    assert gone == [FIRST]
    assert await ledger.removals(0) == set()
    assert (await ledger.state(0)).damaged_accounts == {}
    assert (await ledger.remove_nodes(0, ["a"])).missing == [0]
    upserted = await ledger.upsert_nodes(0, [make_node("new", cpu=700)])
    assert upserted.indexes.tolist() == [FIRST]
    assert read(await ledger.snapshot(0))[FIRST] == (0, 700, 0)


async def test_a_node_with_a_damaged_account_comes_back_with_any_version_of_its_object(placed, make_node):
    ledger, _, _ = placed
    newer, older = make_node("a", cpu=5000), make_node("a", cpu=2000)
    await ledger.upsert_nodes(0, [replace(newer, resource_version=30)])
    await damage(ledger)
    await first_step_of_removal(ledger)
    await ledger.upsert_nodes(0, [replace(older, resource_version=20)])
    assert (await ledger.snapshot(0)).specs[FIRST] == older.spec
    assert await ledger.removals(0) == set()


async def test_a_damaged_node_is_neither_quarantined_nor_published_again(placed):
    ledger, _, _ = placed
    await damage(ledger)
    if isinstance(ledger, MemoryLedger):
        arbiter = ledger.arbiters[0]
        assert arbiter.quarantine_node(FIRST, QuarantineRequest("test", 1000, 1000), 0) == "gone"
        assert not arbiter.republish(FIRST)
        return
    quarantine = RedisQuarantine(ledger)
    assert await quarantine.take(0, FIRST, QuarantineRequest("test", 1000, 1000)) == "gone"
    assert await quarantine.republish(0, FIRST) is None


redis_alone = pytest.mark.parametrize("ledger_url", ["server"], indirect=True)  # the model has no bytes


@redis_alone
async def test_a_lost_account_is_shown_as_a_damaged_one_and_a_change_does_not_make_a_new_one(
    placed, make_node
):
    ledger, _, _ = placed
    key, redis = await stored(ledger, "accounts")
    await redis.hdel(key, FIRST.to_bytes(4, "little"))
    await ledger.upsert_nodes(0, [make_node("a", cpu=5000)])
    assert read(await ledger.snapshot(0))[FIRST] == (FLAG_QUARANTINED, 0, 0)
    assert (await ledger.state(0)).damaged_accounts == {FIRST.to_bytes(4, "little"): b""}


@redis_alone
async def test_a_node_whose_account_is_lost_is_not_forgotten_while_a_pod_is_reserved_on_it(placed):
    ledger, uids, _ = placed
    await first_step_of_removal(ledger)
    key, redis = await stored(ledger, "accounts")
    await redis.hdel(key, FIRST.to_bytes(4, "little"))
    assert await last_step_of_removal(ledger) == 0
    await ledger.release(0, uids)
    assert await last_step_of_removal(ledger) == 1


@redis_alone
async def test_a_new_node_is_born_when_it_comes_also_where_a_damaged_record_was_left(placed, make_node):
    """Who knew another node under the index must not place pods there."""
    ledger, _, _ = placed
    key, redis = await stored(ledger, "accounts")
    await redis.hset(key, (4).to_bytes(4, "little"), b"left")
    upserted = await ledger.upsert_nodes(0, [make_node("c", cpu=700)])
    assert upserted.indexes.tolist() == [4]
    rows = (await ledger.snapshot_of(0, ["c"])).accounts
    [account] = np.frombuffer(rows.records, account_dtype(rows.resources))
    assert (account["born"], account["flags"]) == (upserted.seq, 0)


@redis_alone
async def test_a_removed_node_with_a_damaged_account_that_comes_back_is_there_and_gets_nothing(
    placed, make_node
):
    """Between the two steps of a removal."""
    ledger, _, _ = placed
    await damage(ledger)
    await ledger.run("remove_nodes", 0, names=["a"])
    assert (await ledger.run("remove_nodes", 0, names=["a"]))[2] == [0]
    assert read(await ledger.snapshot(0)) == {SECOND: (0, 1000, 300)}
    assert read((await ledger.state(0)).snapshot)[FIRST][0] == FLAG_GONE
    await ledger.upsert_nodes(0, [make_node("a", cpu=1000)])
    assert await ledger.removals(0) == set()
    assert read(await ledger.snapshot(0))[FIRST] == (FLAG_QUARANTINED, 0, 0)


@redis_alone
async def test_fields_that_are_no_nodes_are_no_part_of_a_snapshot(placed):
    ledger, _, _ = placed
    for name in ("accounts", "cards"):
        key, redis = await stored(ledger, name)
        await redis.hset(key, b"short", bytes(32))
    assert set(read(await ledger.snapshot(0))) == {FIRST, SECOND}
    state = await ledger.state(0)
    assert (list(state.damaged_accounts), list(state.damaged_cards)) == ([b"short"], [b"short"])


@redis_alone
async def test_a_spec_of_no_node_is_no_lost_account_and_no_spec_of_another_node(placed, make_node):
    """No repair could end what such a field is the cause of."""
    ledger, _, _ = placed
    key, redis = await stored(ledger, "specs")
    await redis.hset(key, bytes(3), b"odd")
    state = await ledger.state(0)
    assert state.damaged_accounts == {}
    assert state.snapshot.specs[FIRST] == make_node("a", cpu=1000).spec


@pytest.fixture
async def with_cards(ledger, make_node, make_proposal):
    """Pod 1 holds a card of the first node, whose record of cards is damaged."""
    await ledger.upsert_nodes(0, [make_node("a", cpu=1000, cards=2), make_node("b", cpu=1000, cards=2)])
    await ledger.grant("w1")
    proposal = make_proposal([1], [[FIRST]], cpu=300, devices=[(1, 1000)])
    await ledger.commit(0, [proposal])
    key, redis = await stored(ledger, "cards")
    await redis.hset(key, FIRST.to_bytes(4, "little"), b"short")
    return ledger, proposal.uids


@redis_alone
async def test_damaged_cards_are_no_part_of_a_snapshot_and_the_account_is(with_cards):
    ledger, _ = with_cards
    for snapshot in (await ledger.snapshot(0), await ledger.snapshot_of(0, ["a", "b"])):
        assert read(snapshot)[FIRST] == (0, 1000, 300)
        assert np.frombuffer(snapshot.accounts.card_indexes, "<u4").tolist() == [SECOND]
    assert (await ledger.state(0)).damaged_cards == {FIRST.to_bytes(4, "little"): b"short"}


@redis_alone
@pytest.mark.parametrize("terminate", [False, True])
async def test_a_victim_on_a_node_with_damaged_cards_makes_room_and_gives_no_card(
    with_cards, make_proposal, terminate
):
    """It stopped every proposal that came with the eviction."""
    ledger, uids = with_cards
    victim = {0: (uids[0].tobytes(),)}
    preemptor = make_proposal([7, 8], [[FIRST], [SECOND]], cpu=800, priorities=[9])
    preemptor = replace(preemptor, victims=victim, victims_terminate=terminate)
    [decision] = await ledger.commit(0, [preemptor])
    assert decision.verdicts.tolist() == [Verdict.COMMITTED, Verdict.COMMITTED]
    wants_card = make_proposal([9], [[FIRST]], cpu=0, devices=[(1, 1000)])
    [decision] = await ledger.commit(0, [wants_card])
    assert decision.verdicts.tolist() == [Verdict.CONFLICT_DEVICE]
