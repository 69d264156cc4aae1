"""Conditions in the scripts that race with something else, so that no ordinary call meets them: what a script
is told may be older than the shard. On any ledger where both have the operation; shard 0 of two, so node
indexes are even."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from hoss.model.pod import HostPort
from hoss.wire.columns import CARD_CLOSED, CARDS, FLAG_QUARANTINED, FLAG_SHRUNK, NO_CARD, account_dtype
from resolver.core.quarantine import QuarantineRequest
from resolver.ledger import packing
from resolver.ledger.memory import MemoryLedger
from resolver.ledger.port import LedgerLostError
from resolver.ledger.quarantine import RedisQuarantine
from resolver.ledger.scripts import source
from resolver.ledger.shards import SHARD_KEYS

HOUR_MS = 3_600_000

redis_alone = pytest.mark.parametrize("ledger_url", ["server"], indirect=True)


async def rows_of(ledger):
    """Accounts by node, and cards by node."""
    rows = (await ledger.snapshot(0)).accounts
    accounts = np.frombuffer(rows.records, account_dtype(rows.resources))
    cards = np.frombuffer(rows.cards, CARDS.base).reshape(-1, *CARDS.shape)
    return (
        dict(zip(np.frombuffer(rows.indexes, "<u4").tolist(), accounts, strict=True)),
        dict(zip(np.frombuffer(rows.card_indexes, "<u4").tolist(), cards.tolist(), strict=True)),
    )


async def close(ledger, name):
    """The first step of a removal, after which its resolver died."""
    if isinstance(ledger, MemoryLedger):
        ledger.arbiters[0].remove([name])
    else:
        await ledger.run("remove_nodes", 0, names=[name])


async def forget(ledger, *nodes):
    """The last step."""
    if isinstance(ledger, MemoryLedger):
        return ledger.arbiters[0].forget_nodes(nodes)
    return await ledger.run("forget_nodes", 0, nodes=[node.to_bytes(4, "little") for node in nodes])


@pytest.fixture
async def nodes(ledger, make_node):
    """Nodes 0 and 2, and worker w1 with epoch 1."""
    await ledger.upsert_nodes(0, [make_node("a", cpu=1000, cards=2), make_node("b", cpu=1000)])
    assert await ledger.grant("w1") == 1
    return ledger


# -- what Lua allows


@redis_alone
@pytest.mark.parametrize("script", ["commit", "confirm_moves"])
async def test_a_script_has_room_for_more_local_names(ledger, script):
    """Lua allows 200 at once. What the simulation puts before a script takes some, and so does the next
    change."""
    _, redis = await stored(ledger, "meta")
    more = "\n".join(f"local room_{number}" for number in range(10))
    assert await redis.script_load(f"{more}\n{source(script)}")


# -- another history, or another ledger


@redis_alone
@pytest.mark.parametrize(("ahead", "is_recognised"), [(1023, True), (1024, False)])
async def test_a_change_is_compared_as_long_as_its_nonce_is_kept(nodes, ahead, is_recognised):
    """Whoever is further behind cannot tell, and must not be refused for that."""
    known = await nodes.position(0)
    key, redis = await stored(nodes, "meta")
    await redis.hset(key, "seq", known.seq + ahead)
    nonces, _ = await stored(nodes, "nonces")
    await redis.setrange(nonces, known.seq % 1024 * 12, b"0" * 12)
    confirm = nodes.confirm(0, np.array([99], np.uint64))
    if is_recognised:
        with pytest.raises(LedgerLostError, match="written to since"):
            await confirm
    else:
        assert await confirm == 0


@redis_alone
async def test_another_ledger_is_called_by_its_epoch_and_takes_nothing(nodes, make_proposal):
    key, redis = await stored(nodes, "meta")
    await redis.hset(key, "epoch", "another")
    for call in (nodes.commit(0, [make_proposal([1], [[0]])]), nodes.confirm(0, np.array([1], np.uint64))):
        with pytest.raises(LedgerLostError, match=r"Redis holds another ledger \(epoch another\)"):
            await call


# -- nodes that go


async def test_a_closed_node_on_which_something_is_reserved_is_not_forgotten(nodes, make_proposal):
    await nodes.commit(0, [make_proposal([1], [[0]])])
    await close(nodes, "a")
    assert await forget(nodes, 0) == 0
    assert await nodes.removals(0) == {0}


async def test_a_closed_node_whose_port_a_pod_holds_is_not_forgotten(nodes, make_proposal):
    proposal = make_proposal([1], [[0]], cpu=0, ports=[[HostPort(80)]])
    proposal.requests[:] = 0
    await nodes.commit(0, [proposal])
    await close(nodes, "a")
    assert await forget(nodes, 0) == 0
    assert await nodes.release(0, proposal.uids) == 1
    assert await forget(nodes, 0) == 1


async def test_a_node_that_came_back_meanwhile_is_not_forgotten(nodes, make_node):
    await close(nodes, "a")
    await nodes.upsert_nodes(0, [make_node("a", cpu=500)])
    assert await forget(nodes, 0, 2, 8) == 0
    assert (await nodes.node_indexes(0, ["a", "b"])).tolist() == [0, 2]


async def test_a_removal_of_nothing_is_no_change(nodes):
    before = await nodes.seq(0)
    assert (await nodes.remove_nodes(0, ["x", "y"])).missing == [0, 1]
    assert await nodes.seq(0) == before


# -- nodes that change


async def test_a_node_is_changed_only_from_the_spec_that_the_caller_knew(nodes, make_node):
    known, changed = make_node("a", cpu=1000, cards=2), make_node("a", cpu=500, cards=2)
    before = await nodes.seq(0)
    for node in (changed, make_node("x")):
        assert await nodes.upsert_nodes(0, [node], expected=changed.spec) is None
    assert await nodes.seq(0) == before
    assert (await nodes.upsert_nodes(0, [changed], expected=known.spec)).indexes.tolist() == [0]
    assert (await nodes.snapshot(0)).specs[0] == changed.spec


async def test_a_node_that_is_told_again_is_no_change_and_is_overcommitted_still(
    nodes, make_node, make_proposal
):
    await nodes.commit(0, [make_proposal([1], [[0]], cpu=800)])
    smaller = make_node("a", cpu=500, cards=2)
    assert (await nodes.upsert_nodes(0, [make_node("b", cpu=1000), smaller])).overcommitted == [1]
    before = await nodes.seq(0)
    assert (await nodes.upsert_nodes(0, [make_node("b", cpu=1000), smaller])).overcommitted == [1]
    assert await nodes.seq(0) == before


async def test_versions_of_a_node_object_never_go_back(nodes, make_node):
    for version, cpu in ((9, 900), (3, 300), (5, 500)):
        await nodes.upsert_nodes(0, [replace(make_node("b", cpu=cpu), resource_version=version)])
    accounts, _ = await rows_of(nodes)
    assert accounts[2]["amounts"][0, 0] == 900


async def test_a_closed_node_comes_back_with_any_version_of_its_object(nodes, make_node):
    """The API server may have been restored from a copy."""
    await nodes.upsert_nodes(0, [replace(make_node("b", cpu=900), resource_version=9)])
    await close(nodes, "b")
    await nodes.upsert_nodes(0, [replace(make_node("b", cpu=300), resource_version=3)])
    accounts, _ = await rows_of(nodes)
    assert accounts[2]["amounts"][0, 0] == 300


async def test_what_pods_exceeded_before_a_change_is_no_shrinking(nodes, make_node, make_proposal):
    await nodes.commit(0, [make_proposal([1], [[2]], cpu=2000, unchecked=True)])
    await nodes.upsert_nodes(0, [make_node("b", cpu=1500)])
    accounts, _ = await rows_of(nodes)
    assert accounts[2]["flags"] & FLAG_SHRUNK == 0
    await nodes.upsert_nodes(0, [make_node("b", cpu=3000)])
    await nodes.upsert_nodes(0, [make_node("b", cpu=1500)])
    accounts, _ = await rows_of(nodes)
    assert accounts[2]["flags"] & FLAG_SHRUNK


async def test_cards_in_use_outlive_changes_of_their_node(nodes, make_node, make_proposal):
    await nodes.commit(0, [make_proposal([1, 2], [[0], [0]], devices=[(1, 400), (1, 700)])])
    for change in ({"cards": 2, "cpu": 5000}, {"cards": 1}, {"cards": 0}, {"cards": 3}):
        upserted = await nodes.upsert_nodes(0, [make_node("a", **change)])
        count = change["cards"]
        in_use = (700, 400) if (await rows_of(nodes))[1][0][0] % CARD_CLOSED == 700 else (400, 700)
        closed = [used if slot < count else CARD_CLOSED + used for slot, used in enumerate(in_use)]
        _, cards = await rows_of(nodes)
        assert cards[0] == [*closed, *([0] * max(0, count - 2)), *([NO_CARD] * (16 - max(2, count)))]
        assert upserted.overcommitted == ([0] if count < 2 else [])
    assert 2 not in cards, "it never had any"


@redis_alone
async def test_a_quarantine_that_cannot_be_read_is_over_and_keeps_no_other_from_ending(nodes):
    quarantine = RedisQuarantine(nodes)
    for node in (0, 2):
        assert await quarantine.take(0, node, QuarantineRequest("test", 0, 1000)) == "taken"
    key, redis = await stored(nodes, "quarantine")
    await redis.hset(key, bytes(4), b"short")
    assert list(await quarantine.quarantined(0)) == [2]
    assert sorted(await quarantine.end(0)) == [0, 2]
    accounts, _ = await rows_of(nodes)
    assert [int(accounts[node]["flags"]) for node in (0, 2)] == [0, 0]


@redis_alone
async def test_a_node_that_comes_back_is_in_quarantine_as_long_as_that_lasts(nodes, make_node):
    quarantine = RedisQuarantine(nodes)
    for name, node, ends in (("a", 0, True), ("b", 2, False)):
        lasts = QuarantineRequest("test", 0 if ends else 3_600_000, 1000)
        assert await quarantine.take(0, node, lasts) == "taken"
        await close(nodes, name)
        assert list(await quarantine.end(0)) == ([node] if ends else [])
        await nodes.upsert_nodes(0, [make_node(name, cpu=500)])
    accounts, _ = await rows_of(nodes)
    assert [bool(int(accounts[node]["flags"]) & FLAG_QUARANTINED) for node in (0, 2)] == [False, True]


class _ModelQuarantine:
    """As RedisQuarantine, at the hour 0."""

    def __init__(self, ledger):
        self._arbiter = ledger.arbiters[0]

    async def take(self, _shard, node, taking):
        return self._arbiter.quarantine_node(node, taking, 0)

    async def end(self, _shard, node=None):
        return self._arbiter.end_quarantine(node, 0)


def quarantine_of(ledger):
    return _ModelQuarantine(ledger) if isinstance(ledger, MemoryLedger) else RedisQuarantine(ledger)


def taking(*, per_mille=1000, unchanged_since=0, milliseconds=HOUR_MS):
    return QuarantineRequest("test", milliseconds, per_mille, unchanged_since)


async def test_a_node_is_quarantined_once_and_only_as_it_was_seen_and_while_it_is_there(nodes, make_node):
    quarantine, seen = quarantine_of(nodes), await nodes.seq(0)
    await nodes.upsert_nodes(0, [make_node("a", cpu=500)])
    assert await quarantine.take(0, 0, taking(unchanged_since=seen)) == "changed"
    assert await quarantine.take(0, 2, taking(unchanged_since=seen)) == "taken"
    assert await quarantine.take(0, 2, taking()) == "already"
    await close(nodes, "a")
    assert [await quarantine.take(0, node, taking()) for node in (0, 8)] == ["gone", "gone"]
    accounts, _ = await rows_of(nodes)
    assert {node: int(account["flags"]) for node, account in accounts.items()} == {2: FLAG_QUARANTINED}


@pytest.mark.parametrize(("per_mille", "most"), [(0, 1), (499, 1), (500, 2), (999, 3)])
async def test_a_share_of_the_nodes_and_one_in_any_case_may_be_in_quarantine(
    nodes, make_node, per_mille, most
):
    await nodes.upsert_nodes(0, [make_node("c"), make_node("d")])
    quarantine = quarantine_of(nodes)
    taken = [await quarantine.take(0, node, taking(per_mille=per_mille)) for node in (0, 2, 4, 6)]
    assert taken == ["taken"] * most + ["limit"] * (4 - most)


async def test_a_quarantine_ends_by_hand_or_when_its_time_is_over_also_where_the_node_is_gone(nodes):
    quarantine = quarantine_of(nodes)
    assert await quarantine.take(0, 0, taking()) == "taken"
    assert await quarantine.take(0, 2, taking(milliseconds=0)) == "taken"
    assert await quarantine.end(0, 4) == []
    before = await nodes.seq(0)
    assert await quarantine.end(0) == [2]
    [entry] = await nodes.feed(0, before, 1)
    assert entry.released == 1, "pods that wait may fit there"
    assert await quarantine.end(0) == []
    await close(nodes, "a")
    before = await nodes.seq(0)
    assert await quarantine.end(0, 0) == [0]
    assert await nodes.seq(0) == before
    assert await quarantine.end(0, 0) == []


# -- rules


@redis_alone
async def test_rules_that_are_newer_than_the_low_watermark_or_in_use_or_unknown_stay(ledger):
    key, redis = await stored(ledger, "rules")
    born = {b"old rule": 3, b"new rule": 7, b"in use..": 2}
    await redis.hset(key, mapping={name: struct.pack("<Q", at) + b"rule" for name, at in born.items()})
    await redis.hset((await stored(ledger, "stamps"))[0], b"in use..u", bytes(48))
    asked = [b"unknown.", *born]
    assert await ledger.run("forget_rules", 0, keys=asked, low_watermark=3) == b"old rule"
    assert sorted(await redis.hkeys(key)) == [b"in use..", b"new rule"]
    before = await ledger.seq(0)
    assert await ledger.run("forget_rules", 0, keys=asked, low_watermark=3) == b""
    assert await ledger.seq(0) == before


@redis_alone
async def test_domain_versions_above_the_low_watermark_of_any_shard_stay(ledger):
    """By whomever: prepared pods are not validated in the order of their commits."""
    await ledger.run("raise_low_watermarks", 0, seqs=packing.seqs([5, 5]))
    key, redis = await stored(ledger, "stamps")
    versions = {  # of either shard: seq and epoch of the last worker, seq of all others
        b"seen": (5, 1, 4, 3, 2, 5),
        b"last": (6, 1, 4, 3, 2, 5),
        b"other": (4, 1, 6, 3, 2, 5),
        b"elsewhere": (5, 1, 4, 3, 2, 6),
    }
    await redis.hset(key, mapping={name: struct.pack("<6Q", *numbers) for name, numbers in versions.items()})
    assert await ledger.run("forget_versions", 0, fields=[b"gone meanwhile", *versions]) == 1
    assert sorted(await redis.hkeys(key)) == [b"elsewhere", b"last", b"other"]


@redis_alone
async def test_low_watermarks_never_go_back(ledger):
    for asked in ([5, 2], [3, 4]):
        await ledger.run("raise_low_watermarks", 0, seqs=packing.seqs(asked))
    key, redis = await stored(ledger, "meta")
    assert struct.unpack("<2Q", await redis.hget(key, "floors")) == (5, 4)


async def stored(ledger, name):
    """The key of that name, and a client of its server."""
    key = ledger.keys_of(0)[SHARD_KEYS.index(name)]
    return key, await ledger.scripts.access.at(key)


# -- what is prepared


async def test_a_prepared_commit_that_is_committed_has_ended_and_shows_each_pod_of_each_group_once(
    nodes, make_proposal
):
    groups = ["web", "", "db", ""]
    proposal = replace(
        make_proposal([1, 2, 3, 4, 5], [[0], [2], [0], [2], [0]], slots=[0, 0, 1, 2, 3]), prepared=True
    )
    proposal = replace(proposal, groups=make_proposal([1] * 4, [[0]] * 4, groups=groups).groups)
    [decision] = await nodes.commit(0, [proposal])
    assert (await nodes.snapshot(0, groups=True)).prepared == (decision.seq,)
    seqs = np.full(5, decision.seq, np.uint64)
    committed = await nodes.commit_prepared(0, proposal.uids, seqs, proposal.writer)
    [entry] = await nodes.feed(0, decision.seq, 1)
    assert committed.tolist() == [entry.seq] * 5
    assert entry.ended == (decision.seq,)
    placed = {run.definition: np.frombuffer(run.nodes, "<u4").tolist() for run in entry.runs}
    assert sorted(placed.values()) == [[0, 2], [2]]
    assert len(entry.runs) == 2
    assert (await nodes.snapshot(0, groups=True)).prepared == ()
