"""Rebuilding and repair a real ledger: stopped after every step, and corrupted by hand in every way that
repair knows."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis_topologies import as_documented

from hoss.errors import LedgerUnavailable
from hoss.tasks import background
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import FLAG_QUARANTINED, FLAG_SHRUNK, NONE_U32, account_dtype
from hossctl.local.redis_server import RedisServer
from resolver.api.auditing import audit_ledger
from resolver.api.feed import ShardFeed
from resolver.api.rebuilding import RebuildService
from resolver.core.accounts import sum_reservations
from resolver.core.consistency.repair import plan_repair
from resolver.core.quarantine import QuarantineRequest
from resolver.core.values import Group, LedgerNodeChange, Position, Proposal, Verdict, Writer
from resolver.ledger.port import LedgerLostError
from resolver.ledger.quarantine import RedisQuarantine
from resolver.ledger.rebuild import RedisRebuild
from resolver.ledger.store import RedisLedger
from resolver.messages.nodes import shard_of
from resolver.messages.parts import LedgerContents, read_parts
from resolver.messages.proposals import group_of

SHARDS = 2
NODES = ("a", "b", "c", "d", "e", "f")


class Opened:
    """A ledger of one resolver, and its rebuilding."""

    def __init__(self, ledger: RedisLedger) -> None:
        self.ledger = ledger
        self.store = RedisRebuild(ledger, feed_window=100, lease_ms=30_000)
        self.rebuilding = RebuildService(ledger, self.store, now_us=lambda: time.time_ns() // 1000)


@pytest_asyncio.fixture
async def open_ledger(own_redis: RedisServer) -> AsyncIterator[Callable[[], Any]]:
    ledgers = []

    async def open_one() -> Opened:
        ledger = RedisLedger(as_documented(own_redis.url, [own_redis], "hoss-resolver"))
        await ledger.open(SHARDS)
        ledgers.append(ledger)
        return Opened(ledger)

    yield open_one
    for ledger in ledgers:
        await ledger.close()


@pytest_asyncio.fixture
async def redis(own_redis: RedisServer) -> AsyncIterator[Redis]:
    client = Redis.from_url(own_redis.url)
    yield client
    await client.aclose()


def _group(app: str, *ports: int) -> Group:
    message = pb.PodGroup(namespace="default", labels=[common_pb2.Label(key="app", value=app)])
    for port in ports:
        message.host_ports.add(port=port)
    return group_of(message.SerializeToString(deterministic=True))


async def _fill(
    opened: Opened, make_node: Callable[..., LedgerNodeChange], make_proposal: Callable[..., Proposal]
) -> None:
    """Six nodes with cards, and on each three pods: one with a port, one with half a card, one not
    confirmed."""
    ledger, number = opened.ledger, 0
    epoch = await ledger.grant("w1")
    for name in NODES:
        shard = shard_of(name, SHARDS)
        upserted = await ledger.upsert_nodes(shard, [make_node(name, cards=2, labels=(("zone", name),))])
        assert upserted is not None
        proposal = make_proposal(
            [number, number + 1, number + 2],
            [[int(upserted.indexes[0])]] * 3,
            cpu=[100, 200, 300],
            devices=[(0, 0), (1, 500), (0, 0)],
            groups=[_group("web", 80), _group("db"), _group("db")],
            epoch=epoch,
        )
        (decision,) = await ledger.commit(shard, [proposal])
        assert (decision.verdicts == 1).all()
        if name != "f":
            await ledger.confirm(shard, np.array([decision.seq], np.uint64))
        number += 3


async def _dump(opened: Opened) -> list[pb.LedgerPart]:
    return [part async for part in opened.rebuilding.dump()]


def _essence(parts: list[pb.LedgerPart]) -> Any:
    """What a ledger holds, apart from its numbers and from the order in which it says so."""
    kept = read_parts(parts)
    schema = list(parts[0].head.schema)
    pods = kept.pods(schema)
    names = {index: spec.name for index, spec in kept.specs.items()}
    assert len({uid.tobytes() for uid in pods.uids}) == len(pods.uids)
    rows = sorted(
        (
            uid.tobytes(),
            names[int(r["node"])],
            r["requests"].tolist(),
            int(r["card_milli"]),
            int(r["group"]),
            bool(a),
        )
        for uid, r, a in zip(pods.uids, pods.records, pods.assumed, strict=True)
    )
    return sorted(spec.SerializeToString() for spec in kept.specs.values()), rows


def _head(parts: list[pb.LedgerPart], **fields: Any) -> pb.LedgerHead:
    head = pb.LedgerHead()
    head.CopyFrom(parts[0].head)
    head.ledger_epoch = ""
    for name, value in fields.items():
        setattr(head, name, value)
    return head


def _kept(parts: list[pb.LedgerPart]) -> LedgerContents:
    return read_parts(parts)


async def _clean(opened: Opened) -> bool:
    reply = await audit_ledger(opened.ledger)
    return not reply.violations and not reply.reports


async def test_an_emptied_ledger_rebuilt_from_parts_holds_what_it_held(
    open_ledger: Any, redis: Redis, make_node: Any, make_proposal: Any
) -> None:
    opened = await open_ledger()
    await _fill(opened, make_node, make_proposal)
    parts = await _dump(opened)
    old_epoch = opened.ledger.epoch
    await redis.flushall()
    with pytest.raises(LedgerLostError):
        await opened.store.recover()
    current = (await opened.rebuilding.status()).epoch
    reply = await opened.rebuilding.rebuild(_head(parts, replaces=current), _kept(parts))
    assert (reply.nodes, reply.reservations, reply.unplaced_uids) == (6, 18, b"")
    assert _essence(await _dump(opened)) == _essence(parts)
    assert opened.ledger.epoch != old_epoch
    assert await _clean(opened)
    assert await opened.ledger.grant("w1") > 10**15, "above every epoch that there can have been"


async def test_a_ledger_that_was_rebuilt_after_a_loss_is_not_taken_for_one_of_an_old_release(
    open_ledger: Any, redis: Redis, make_node: Any, make_proposal: Any
) -> None:
    opened = await open_ledger()
    await _fill(opened, make_node, make_proposal)
    parts = await _dump(opened)
    await redis.flushall()
    with pytest.raises(LedgerLostError):
        await opened.store.recover()
    current, *_ = await opened.rebuilding.status()
    await opened.rebuilding.rebuild(_head(parts, replaces=current), _kept(parts))
    shard = shard_of("f", SHARDS)
    before = (await opened.ledger.state(shard)).commits
    assert before.listed, "the pods of f are not confirmed"
    other = await open_ledger()
    assert (await other.ledger.state(shard)).commits == before
    assert _essence(await _dump(other)) == _essence(parts)
    assert await redis.hget(opened.ledger.keys_of(shard)[0], "format") == b"2"


async def test_of_a_pod_that_shards_reserve_twice_one_reservation_is_left_so_a_rebuild_ends(
    open_ledger: Any, make_node: Any, make_proposal: Any
) -> None:
    """A shard that went back alone has the reservation again that the pod had there before it moved."""
    opened = await open_ledger()
    ledger = opened.ledger
    for name in NODES:
        await ledger.upsert_nodes(shard_of(name, SHARDS), [make_node(name)])
    for shard in range(SHARDS):
        proposal = replace(make_proposal([7], [[shard]], cpu=10), epoch=await ledger.grant("w1"))
        (decision,) = await ledger.commit(shard, [proposal])
        await ledger.confirm(shard, np.array([decision.seq], np.uint64))
    assert not await _clean(opened)
    head = pb.LedgerHead(shards=SHARDS, replaces=ledger.epoch, as_kept=True)
    reply = await opened.rebuilding.rebuild(head, LedgerContents())
    assert reply.reservations == 1
    assert await _clean(opened)
    uids = make_proposal([7], [[0]]).uids
    held = [(await ledger.lookup(shard, uids))["node"].tolist() for shard in range(SHARDS)]
    assert held == [[NONE_U32], [1]], "that of the later epoch stands"


async def test_a_rebuilt_ledger_holds_terminating_pods_in_full_and_not_the_pod_that_they_were_evicted_for(
    open_ledger: Any, make_node: Any, make_proposal: Any
) -> None:
    opened = await open_ledger()
    ledger, shard = opened.ledger, shard_of("a", SHARDS)
    upserted = await ledger.upsert_nodes(shard, [make_node("a", cpu=1000)])
    node, epoch = int(upserted.indexes[0]), await ledger.grant("w1")
    victim = make_proposal([1], [[node]], cpu=900, priorities=[0], epoch=epoch)
    (decision,) = await ledger.commit(shard, [victim])
    await ledger.confirm(shard, np.array([decision.seq], np.uint64))
    preemptor = make_proposal([2], [[node]], cpu=400, priorities=[9], epoch=epoch)
    evicting = replace(preemptor, victims={0: (victim.uids[0].tobytes(),)}, victims_terminate=True)
    (decision,) = await ledger.commit(shard, [evicting])
    assert decision.verdicts.tolist() == [Verdict.COMMITTED]
    await opened.rebuilding.rebuild(
        pb.LedgerHead(shards=SHARDS, replaces=ledger.epoch, as_kept=True), LedgerContents()
    )
    assert (await ledger.lookup(shard, preemptor.uids))["node"].tolist() == [NONE_U32]
    held = await ledger.reservations_of(shard, victim.uids)
    cpu = (await ledger.schema()).index("cpu")
    assert held.records["requests"][:, cpu].tolist() == [900], "the pod is on its node"
    assert await _clean(opened)


@pytest.mark.parametrize("stopped_after", range(3 * SHARDS + 1))
async def test_stopped_after_any_step_nothing_is_committed_nothing_lost_and_the_next_rebuild_finishes(
    open_ledger: Any, redis: Redis, make_node: Any, make_proposal: Any, stopped_after: int
) -> None:
    opened = await open_ledger()
    await _fill(opened, make_node, make_proposal)
    parts = await _dump(opened)
    steps = opened.rebuilding.steps(
        _head(parts, replaces=opened.ledger.epoch), _kept(parts), pb.RebuildReply()
    )
    done = []
    async for step in steps:
        done.append(step)
        if len(done) > stopped_after:
            break
    await steps.aclose()
    assert len(done) == stopped_after + 1
    other = await open_ledger()  # of a resolver that is started now
    whole = len(done) == 3 * SHARDS + 1
    if not whole:
        with pytest.raises(LedgerLostError):
            await other.ledger.grant("w2")
        with pytest.raises(LedgerLostError):
            await other.store.recover()
        assert _essence(await _dump(other)) == _essence(parts), "nothing that was there is lost"
        current = (await other.rebuilding.status()).epoch
        await other.rebuilding.rebuild(pb.LedgerHead(replaces=current, as_kept=True), LedgerContents())
    assert _essence(await _dump(other)) == _essence(parts)
    await opened.store.recover()
    assert opened.ledger.epoch == other.ledger.epoch
    assert await _clean(opened)


async def test_of_two_rebuilds_at_once_only_the_later_finishes(
    open_ledger: Any, make_node: Any, make_proposal: Any
) -> None:
    one, other = await open_ledger(), await open_ledger()
    await _fill(one, make_node, make_proposal)
    parts = await _dump(one)
    steps = one.rebuilding.steps(_head(parts, replaces=one.ledger.epoch), _kept(parts), pb.RebuildReply())
    await steps.__anext__()
    await steps.__anext__()
    current = (await other.rebuilding.status()).epoch
    await other.rebuilding.rebuild(pb.LedgerHead(replaces=current, as_kept=True), LedgerContents())
    with pytest.raises(LedgerLostError):
        async for _ in steps:
            pass
    assert _essence(await _dump(other)) == _essence(parts)
    assert await _clean(other)


async def test_a_rebuild_of_another_ledger_than_stands_changes_nothing(
    open_ledger: Any, make_node: Any, make_proposal: Any
) -> None:
    opened = await open_ledger()
    await _fill(opened, make_node, make_proposal)
    with pytest.raises(LedgerLostError, match="another by now"):
        await opened.rebuilding.rebuild(pb.LedgerHead(replaces="yesterday's"), LedgerContents())
    assert await _clean(opened)
    await opened.ledger.grant("w2")


@pytest.mark.parametrize("shard", range(SHARDS))
async def test_a_dispatcher_has_nothing_rebuilt_after_one_with_a_higher_term_has_written_to_any_shard(
    shard: int, open_ledger: Any, make_node: Any, make_proposal: Any
) -> None:
    opened = await open_ledger()
    await _fill(opened, make_node, make_proposal)
    await opened.ledger.confirm(shard, np.array([99], np.uint64), Writer(term=5))
    before, epoch = _essence(await _dump(opened)), opened.ledger.epoch
    with pytest.raises(LedgerUnavailable, match=r"another dispatcher has taken over \(term 5\)"):
        await opened.rebuilding.rebuild(pb.LedgerHead(replaces=epoch, term=4, as_kept=True), LedgerContents())
    assert _essence(await _dump(opened)) == before
    assert await _clean(opened)
    await opened.ledger.grant("w2")
    await opened.rebuilding.rebuild(pb.LedgerHead(replaces=epoch, term=5, as_kept=True), LedgerContents())
    assert _essence(await _dump(opened)) == before


async def test_a_higher_term_that_comes_while_a_rebuild_begins_stops_it_at_the_shard(
    open_ledger: Any, make_node: Any, make_proposal: Any
) -> None:
    """The dispatcher was deposed after its resolver had asked for the terms."""
    opened = await open_ledger()
    await _fill(opened, make_node, make_proposal)
    epoch = opened.ledger.epoch
    steps = opened.rebuilding.steps(
        pb.LedgerHead(replaces=epoch, term=4, as_kept=True), LedgerContents(), pb.RebuildReply()
    )
    await steps.__anext__()
    await opened.ledger.confirm(1, np.array([99], np.uint64), Writer(term=5))
    with pytest.raises(LedgerUnavailable, match="another dispatcher has taken over"):
        await steps.__anext__()
    assert (await opened.store.status(1)).epoch == epoch


async def test_a_shard_remembers_the_term_under_which_it_was_rebuilt(
    open_ledger: Any, make_node: Any, make_proposal: Any
) -> None:
    opened = await open_ledger()
    await _fill(opened, make_node, make_proposal)
    await opened.rebuilding.rebuild(
        pb.LedgerHead(replaces=opened.ledger.epoch, term=7, as_kept=True), LedgerContents()
    )
    assert [(await opened.store.status(shard)).term for shard in range(SHARDS)] == [7] * SHARDS
    with pytest.raises(LedgerUnavailable, match="another dispatcher has taken over"):
        await opened.ledger.confirm(1, np.array([99], np.uint64), Writer(term=6))


def _corrupt_account(record: bytes) -> bytes:
    return record[:32] + (777).to_bytes(8, "little") + record[40:]


CORRUPTIONS: dict[str, tuple[str, Callable[[bytes], bytes | None], str]] = {
    "an amount": ("accounts", _corrupt_account, "cpu requested 777, now 600"),
    "a card in use": (
        "cards",
        lambda record: b"\x07\x00" + record[2:],
        "card 0 has 7 thousandths in use, now 500",
    ),
    "a port forgotten": ("ports", lambda _: None, "port 80/TCP is again held"),
    "a port too many": (
        "ports",
        lambda record: record + b"x" * 16 + record[16:18] + b"\1\0" + record[20:28],
        "no more held",
    ),
    "a group's count": ("group_pods", lambda _: b"5", "5 pods counted, now"),
    "a port record cut short": ("ports", lambda record: record[:-3], "port 80/TCP is again held"),
    "a whole account": ("accounts", lambda _: b"123", "its account was damaged and is computed anew: 313233"),
    "an account lost": ("accounts", lambda _: None, "its account was damaged and is computed anew: "),
    "cards cut short": (
        "cards",
        lambda record: record[:30],
        "its cards were damaged and are computed anew: ",
    ),
}


@pytest.mark.parametrize("what", CORRUPTIONS)
async def test_repair_changes_what_differs_from_the_reservations_and_says_so(
    open_ledger: Any, redis: Redis, make_node: Any, make_proposal: Any, what: str
) -> None:
    opened = await open_ledger()
    await _fill(opened, make_node, make_proposal)
    parts = await _dump(opened)
    key, corrupt, sentence = CORRUPTIONS[what]
    where = f"{{hoss:0}}:{key}"
    field = min(await redis.hkeys(where))
    changed = corrupt(await redis.hget(where, field))
    await (redis.hset(where, field, changed) if changed is not None else redis.hdel(where, field))
    before = await audit_ledger(opened.ledger)
    assert before.violations
    seq = await opened.ledger.seq(0)
    reply = await opened.rebuilding.repair()
    assert sentence in " ".join(reply.changes)
    assert await _clean(opened)
    assert _essence(await _dump(opened)) == _essence(parts)
    entries = await opened.ledger.feed(0, seq, 1)
    if key in ("ports", "group_pods") or "computed anew" in sentence:
        assert entries is None, "no entry can tell of it: who follows reads the state anew"
    else:
        assert entries is not None
        assert [entry.seq for entry in entries] == [seq + 1]
        # Who waits for room is woken by the repair.
        assert entries[0].released == len(np.frombuffer(entries[0].accounts.indexes, "<u4"))
    assert not (await opened.rebuilding.repair()).changes, "a second time there is nothing to repair"


async def test_the_account_of_a_removed_node_that_is_damaged_does_not_keep_it(
    open_ledger: Any, redis: Redis, make_node: Any, make_proposal: Any
) -> None:
    """The removal was broken off after its first step."""
    opened = await open_ledger()
    await _fill(opened, make_node, make_proposal)
    ledger, shard = opened.ledger, shard_of("a", SHARDS)
    held = len((await ledger.state(shard)).reservations.uids)
    await ledger.run("remove_nodes", shard, names=["a"])
    [node] = await ledger.removals(shard)
    accounts, field = f"{{hoss:{shard}}}:accounts", node.to_bytes(4, "little")
    await redis.hset(accounts, field, b"123")
    [violation] = (await audit_ledger(ledger)).violations
    assert f"the account of node index {node} cannot be read" in violation.text
    await opened.rebuilding.repair()
    assert not (await audit_ledger(ledger)).violations
    removed = await ledger.remove_nodes(shard, ["a"])  # and finishes the removal
    assert (removed.missing, len(removed.uids)) == ([0], 3)
    assert not await redis.hexists(accounts, field)
    assert await ledger.removals(shard) == set()
    assert len((await ledger.state(shard)).reservations.uids) == held - 3


async def test_who_follows_reads_the_state_after_a_repair_that_no_entry_can_tell_of_and_then_every_change(
    open_ledger: Any, redis: Redis, make_node: Any, make_proposal: Any
) -> None:
    opened = await open_ledger()
    await _fill(opened, make_node, make_proposal)
    before = await opened.ledger.seq(0)
    await redis.delete("{hoss:0}:ports")
    name = next(name for name in NODES if shard_of(name, SHARDS) == 0)
    await opened.ledger.upsert_nodes(0, [make_node(name, cpu=5000, cards=2)])
    await opened.rebuilding.repair()
    feed = ShardFeed(opened.ledger, 0)
    async with background(feed.run()), aclosing(feed.follow(Position(before))) as messages:
        told = [await anext(messages) for _ in range(2)]
        await opened.ledger.upsert_nodes(0, [make_node(name, cpu=6000, cards=2)])
        told.append(await anext(messages))
    assert [(message.seq, message.snapshot) for message in told] == [
        (before + 1, False),
        (before + 3, True),
        (before + 4, False),
    ]


async def test_a_repair_read_before_a_commit_is_refused(
    open_ledger: Any, redis: Redis, make_node: Any, make_proposal: Any
) -> None:
    opened = await open_ledger()
    await _fill(opened, make_node, make_proposal)
    field = min(await redis.hkeys("{hoss:0}:accounts"))
    await redis.hset(
        "{hoss:0}:accounts", field, _corrupt_account(await redis.hget("{hoss:0}:accounts", field))
    )
    read_at = await opened.ledger.state(0)
    held, nodes = read_at.reservations, np.frombuffer(read_at.snapshot.accounts.indexes, "<u4")
    sums = sum_reservations(nodes, held.uids, held.records, {})
    repair = plan_repair(read_at, sums, opened.ledger.resources, {})
    await opened.ledger.release(0, held.uids[:1])
    assert not await opened.store.repair(0, read_at.snapshot.seq, repair)


class _LateWriting(RedisRebuild):
    """Something happens between what a repair reads and its first writing."""

    meanwhile: Callable[[], Any] | None = None

    async def repair(self, *args: Any, **more: Any) -> bool:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().repair(*args, **more)


@pytest.mark.parametrize("what", ["the node changes", "its quarantine ends", "it gets its spec back"])
async def test_an_account_is_computed_from_the_node_as_it_is_when_the_repair_is_written(
    open_ledger: Any, redis: Redis, make_node: Any, what: str
) -> None:
    """Such a change of a node whose account is damaged has no seq of its own."""
    opened = await open_ledger()
    ledger, shard = opened.ledger, shard_of("a", SHARDS)
    upserted = await ledger.upsert_nodes(shard, [make_node("a", cpu=1000)])
    quarantine, node = RedisQuarantine(ledger), int(upserted.indexes[0])
    assert await quarantine.take(shard, node, QuarantineRequest("test", 3_600_000, 1000)) == "taken"
    if what == "it gets its spec back":
        await ledger.run("remove_nodes", shard, names=["a"])
    await redis.hset(f"{{hoss:{shard}}}:accounts", node.to_bytes(4, "little"), b"123")
    store = _LateWriting(ledger, feed_window=100, lease_ms=30_000)
    if what == "its quarantine ends":
        store.meanwhile = lambda: quarantine.end(shard, node)
    else:
        store.meanwhile = lambda: ledger.upsert_nodes(shard, [make_node("a", cpu=5000)])
    await RebuildService(ledger, store, now_us=lambda: time.time_ns() // 1000).repair()
    rows = (await ledger.snapshot(shard)).accounts
    [account] = np.frombuffer(rows.records, account_dtype(rows.resources))
    cpu = account["amounts"][(await ledger.schema()).index("cpu")].tolist()
    assert (cpu, int(account["flags"])) == (
        ([1000, 0], 0) if what == "its quarantine ends" else ([5000, 0], FLAG_QUARANTINED)
    )


async def test_a_repair_of_other_things_leaves_the_seq_at_which_a_node_was_last_described(
    open_ledger: Any, redis: Redis, make_node: Any, make_proposal: Any
) -> None:
    opened = await open_ledger()
    await _fill(opened, make_node, make_proposal)

    async def described() -> Any:
        rows = (await opened.ledger.snapshot(0)).accounts
        return np.frombuffer(rows.records, account_dtype(rows.resources))["described"].tolist()

    before = await described()
    assert all(before)
    field = min(await redis.hkeys("{hoss:0}:accounts"))
    corrupted = _corrupt_account(await redis.hget("{hoss:0}:accounts", field))
    await redis.hset("{hoss:0}:accounts", field, corrupted)
    assert (await opened.rebuilding.repair()).changes
    assert await described() == before


async def test_a_node_with_fewer_cards_than_its_pods_hold_has_shrunk_also_when_its_account_is_computed_anew(
    open_ledger: Any, redis: Redis, make_node: Any, make_proposal: Any
) -> None:
    opened = await open_ledger()
    ledger, shard = opened.ledger, shard_of("a", SHARDS)
    await _fill(opened, make_node, make_proposal)
    upserted = await ledger.upsert_nodes(shard, [make_node("a", cards=0, labels=(("zone", "a"),))])
    assert upserted.overcommitted == [0]
    accounts, field = f"{{hoss:{shard}}}:accounts", int(upserted.indexes[0]).to_bytes(4, "little")

    async def flags() -> int:
        return int(np.frombuffer((await redis.hget(accounts, field))[:-7], account_dtype(6))["flags"][0])

    assert await flags() == FLAG_SHRUNK
    await redis.hset(accounts, field, b"123")
    await opened.rebuilding.repair()
    assert await flags() == FLAG_SHRUNK


async def test_a_reservation_on_no_node_is_told_and_left(
    open_ledger: Any, redis: Redis, make_node: Any, make_proposal: Any
) -> None:
    opened = await open_ledger()
    await _fill(opened, make_node, make_proposal)
    field = min(await redis.hkeys("{hoss:0}:accounts"))
    for key in ("accounts", "specs"):
        await redis.hdel(f"{{hoss:0}}:{key}", field)
    reply = await opened.rebuilding.repair()
    assert len(reply.remaining) == 3
    assert all("where there is no node" in text for text in reply.remaining)
