"""A journal whose Redis loses it, or whose writes get no answer: what is noticed, written again and
undone."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from redis_topologies import RunningRedis
from waiting import until

from dispatcher.core.moves import BegunRun, RunProgress
from dispatcher.journal.fenced_redis import FORMAT, STATE, TERM, Superseded
from dispatcher.journal.redis_store import MOVES, OBJECTS, POLICY, SUBMISSIONS, WORKERS, RedisJournal
from dispatcher.ports import Record, SavedPolicy
from hoss.errors import ConfigError, InvariantViolation, LedgerUnavailable, OutcomeUnknown
from hoss.wire.columns import numbered_uids
from hossctl.local.redis_server import RedisServer

GOLDEN = Path(__file__).parents[1] / "golden" / "journal-0.2.json"
PREFIX = b"p" * 12
RUN = BegunRun(((b"u" * 16, "default/web-0", "n0", "n1"),), (7,), 0, 5.0, "spread", "")


def record(number: int, content: bytes = b"message") -> Record:
    return Record(number.to_bytes(12, "big"), 1_700_000_000_000 + number, content)


def numbers(recovered: Any) -> list[int]:
    return [int.from_bytes(entry.key, "big") for entry in recovered.records]


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_server.port) as connection:
        yield connection


@pytest.fixture
async def journal(redis_server: RedisServer) -> AsyncIterator[RedisJournal]:
    """A journal that its dispatcher has read."""
    made = RedisJournal(redis_server.url)
    await made.recover()
    yield made
    await made.close()


async def read(url: str, term: int = 0) -> Any:
    """What the next dispatcher finds."""
    successor = RedisJournal(url, term)
    try:
        return await successor.recover()
    finally:
        await successor.close()


def kept(client: redis.Redis) -> dict[bytes, bytes | None]:
    return {key: client.dump(key) for key in client.keys("*journal*")}


def roll_back(client: redis.Redis, to: dict[bytes, bytes | None]) -> None:
    client.flushall()
    for key, value in to.items():
        client.restore(key, 0, value)


async def fill(journal: RedisJournal) -> None:
    await journal.record(record(1))
    await journal.delete({PREFIX: np.array([True, False])})
    await journal.add_worker("w1")
    await journal.put_objects({"Namespace a": b"1"})
    await journal.save_policy(SavedPolicy(1, "rules: []\n", "command", 1, ""))
    await journal.save_moves(RUN, RunProgress("Running", "", False, "W", {}))


@pytest.mark.parametrize("lost", [SUBMISSIONS, WORKERS, OBJECTS, MOVES, POLICY, STATE])
async def test_the_loss_of_any_one_key_is_noticed_and_everything_is_written_again(
    journal, client, redis_server, lost
):
    await fill(journal)
    before = await read(redis_server.url)
    assert not await journal.check()
    client.delete(lost)
    assert await journal.check()
    assert not await journal.check()
    after = await read(redis_server.url)
    assert (after.records, after.workers, after.objects) == (before.records, before.workers, before.objects)
    assert after.moves == before.moves is not None
    assert client.exists(POLICY)


async def test_a_journal_that_went_back_is_noticed_by_the_next_write(journal, client, redis_server):
    """Nothing but the journal's own keys changed, so no shard of the ledger shows it."""
    await journal.record(record(1))
    earlier = kept(client)
    await journal.record(record(2))
    roll_back(client, earlier)
    await journal.record(record(3))
    assert numbers(await read(redis_server.url)) == [1, 2, 3]
    assert await journal.check(), "a rewrite since the last check is reported"


async def test_a_journal_that_went_back_to_records_since_dropped_loses_them_again(
    journal, client, redis_server
):
    order = await journal.record(record(1))
    await journal.delete({PREFIX: np.array([True, False])})
    earlier = kept(client)
    await journal.drop(record(1).key, order, [PREFIX])
    successor = RedisJournal(redis_server.url)
    await successor.recover()
    await successor.record(record(2))
    roll_back(client, earlier)
    assert await successor.check()
    recovered = await read(redis_server.url)
    assert (numbers(recovered), recovered.deletions) == ([2], {})
    await successor.close()


async def test_a_rewrite_that_breaks_off_leaves_word_of_it(journal, client, redis_server, monkeypatch):
    await fill(journal)
    client.delete(SUBMISSIONS, OBJECTS)
    store, written = journal._store, 0
    inner = store._run

    async def dying(*arguments: Any, **options: Any) -> Any:
        nonlocal written
        written += 1
        if written > 2:
            raise redis.ConnectionError("the dispatcher was killed here")
        return await inner(*arguments, **options)

    monkeypatch.setattr(store, "_run", dying)
    with pytest.raises(LedgerUnavailable):
        await journal.check()
    monkeypatch.undo()
    assert "broke off" in (await read(redis_server.url)).gap
    assert await journal.check()
    assert (await read(redis_server.url)).gap == ""


async def test_under_an_older_term_nothing_is_written_again(journal, client):
    await fill(journal)
    client.delete(SUBMISSIONS)
    client.set(TERM, 2)
    with pytest.raises(Superseded):
        await journal.check()
    assert not client.exists(SUBMISSIONS)


async def test_a_store_that_lost_the_term_is_written_again_once_the_lease_is_renewed(redis_server, client):
    client.set(TERM, 3)
    journal = RedisJournal(redis_server.url, 3)
    await journal.recover()
    await journal.record(record(1))
    client.flushall()
    with pytest.raises(LedgerUnavailable, match="lease") as refused:
        await journal.record(record(2))
    assert not isinstance(refused.value, (Superseded, OutcomeUnknown))
    client.set(TERM, 3)
    assert await journal.check()
    assert numbers(await read(redis_server.url, 3)) == [1]
    await journal.close()


class Deaf:
    """A Redis that carries commands out and whose answers do not come."""

    def __init__(self, journal: RedisJournal, monkeypatch: pytest.MonkeyPatch) -> None:
        self._journal, self._monkeypatch = journal, monkeypatch

    def __enter__(self) -> None:
        inner = self._journal._store._send

        async def send(*arguments: Any) -> Any:
            await inner(*arguments)
            raise redis.TimeoutError("Timeout reading from socket")

        self._monkeypatch.setattr(self._journal._store, "_send", send)

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.undo()


async def test_what_got_no_answer_is_unknown_and_undone_before_anything_else_is_written(
    journal, redis_server, monkeypatch
):
    """Submissions, deletions, gates and objects alike."""
    await journal.record(record(1))
    await journal.delete({PREFIX: np.array([True, False])})
    await journal.put_objects({"Namespace a": b"1"})
    writes = [
        lambda: journal.record(record(2)),
        lambda: journal.delete({PREFIX: np.array([True, True]), b"q" * 12: np.ones(1, np.bool_)}),
        lambda: journal.ungate({PREFIX: {"a.io/g": np.ones(2, np.bool_)}}),
        lambda: journal.put_objects({"Namespace a": b"2", "Namespace b": b"1"}),
        lambda: journal.drop_objects(["Namespace a"]),
        lambda: journal.save_policy(SavedPolicy(1, "rules: []\n", "command", 1, "")),
        lambda: journal.save_moves(RUN, RunProgress("Running", "", False, "W", {})),
        lambda: journal.add_worker("w1"),
    ]
    with Deaf(journal, monkeypatch):
        for write in writes:
            with pytest.raises(OutcomeUnknown, match="unknown"):
                await write()
    assert not await journal.check()
    recovered = await read(redis_server.url)
    assert numbers(recovered) == [1]
    assert {prefix: bits.tolist() for prefix, bits in recovered.deletions.items()} == {PREFIX: [True, False]}
    assert (recovered.ungated, recovered.objects, recovered.workers) == ({}, {"Namespace a": b"1"}, set())
    assert recovered.moves is None
    assert await journal.saved_policy() is None


async def test_a_caller_that_gives_up_leaves_no_deletion_behind(journal, redis_server, monkeypatch):
    inner, sent = journal._store._send, asyncio.Event()

    async def slow(*arguments: Any) -> Any:
        await inner(*arguments)
        sent.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(journal._store, "_send", slow)
    deleting = asyncio.ensure_future(journal.delete({PREFIX: np.ones(1, np.bool_)}))
    await sent.wait()
    deleting.cancel()
    await asyncio.gather(deleting, return_exceptions=True)
    monkeypatch.undo()
    await journal.check()
    assert (await read(redis_server.url)).deletions == {}


async def test_a_write_that_arrives_after_the_next_one_changes_nothing(journal, redis_server, monkeypatch):
    """As when a frozen Redis finds two connections with commands, and reads the newer one first."""
    inner = journal._store._send
    late: list[tuple[Any, ...]] = []

    async def held_up(*arguments: Any) -> Any:
        late.append(arguments)
        raise redis.TimeoutError("Timeout reading from socket")

    monkeypatch.setattr(journal._store, "_send", held_up)
    with pytest.raises(OutcomeUnknown):
        await journal.record(record(1))
    monkeypatch.undo()
    await journal.record(record(2))
    with pytest.raises(redis.ResponseError, match="LOST"):
        await inner(*late[0])
    assert numbers(await read(redis_server.url)) == [2]


async def test_the_same_request_after_an_unknown_outcome_is_accepted_once(journal, redis_server, monkeypatch):
    with Deaf(journal, monkeypatch), pytest.raises(OutcomeUnknown):
        await journal.record(record(1, b"first"))
    await journal.record(record(1, b"second"))
    assert [entry.message for entry in (await read(redis_server.url)).records] == [b"second"]


async def test_one_write_that_cannot_be_packed_fails_alone(journal):
    with pytest.raises(TypeError):
        await journal.record(Record(b"k" * 12, 1, None))  # type: ignore[arg-type]
    await journal.record(record(1))
    assert numbers(await journal.recover()) == [1]


def load_golden(client: redis.Redis) -> None:
    for key, value in json.loads(GOLDEN.read_text()).items():
        for name, text in value.get("hash", {}).items():
            client.hset(key, bytes.fromhex(name), bytes.fromhex(text))
        for member in value.get("set", ()):
            client.sadd(key, bytes.fromhex(member))
        if "string" in value:
            client.set(key, bytes.fromhex(value["string"]))


async def test_a_journal_of_0_2_is_read_and_brought_forward(redis_server, client):
    load_golden(client)
    journal = RedisJournal(redis_server.url, 1)
    policy = await journal.saved_policy()
    recovered = await journal.recover()
    assert policy is not None
    assert (policy.version, policy.source) == (2, "command")
    assert [entry.submitted_ms for entry in recovered.records] == [1_763_800_000_000 + n for n in range(3)]
    assert [b"golden-web/0" in entry.message for entry in recovered.records] == [True, False, False]
    (web,), (gated,) = recovered.deletions, recovered.ungated
    assert recovered.deletions[web].tolist() == [True, False, False, False, True]
    assert recovered.ungated[gated]["a.io/quota"].tolist() == [False, True, False]
    assert recovered.attempts[web].tolist() == [0, 3, 1, 0, 0]
    (fault,) = recovered.faults
    assert (fault.number, fault.worker) == (7, "w1")
    assert fault.uids.tobytes() == numbered_uids(web, 1, 2).tobytes()
    assert recovered.workers == {"w1", "w2"}
    assert recovered.objects.keys() == {"PriorityClass high"}
    assert recovered.gap == ""
    await journal.record(record(4))
    assert client.hget(STATE, "format") == str(FORMAT).encode()
    assert len((await journal.recover()).records) == 4
    await journal.close()


async def test_a_journal_of_a_newer_format_is_refused_with_what_to_do(redis_server, client):
    load_golden(client)
    client.hset(STATE, "format", FORMAT + 1)
    journal = RedisJournal(redis_server.url, 1)
    for reading in (journal.recover, journal.saved_policy):
        with pytest.raises(ConfigError, match=f"format {FORMAT + 1}.*up to {FORMAT}.*start"):
            await reading()
    await journal.close()


async def test_a_rolled_back_master_of_a_cluster_is_noticed_too(empty_redis, running_redis: RunningRedis):
    url = empty_redis("cluster", "hoss-dispatcher")
    journal = RedisJournal(url)
    await journal.recover()
    await journal.record(record(1))
    for server in running_redis["cluster"].masters:
        with redis.Redis(port=server.port) as connection:
            connection.flushall()

    assert await until(journal.check, "the loss to be noticed")
    assert numbers(await journal.recover()) == [1]
    await journal.close()


@pytest.mark.parametrize("field", [b"begun", b"progress"])
@pytest.mark.parametrize(
    "value", [b"", b"\0\x01", b"\1damaged", b"\0\x96" + b"\x90" * 6, b"\0\x95\x01\x01\x01\x01\x80"]
)
async def test_a_damaged_run_of_moves_is_named(journal, client, redis_server, field, value):
    await fill(journal)
    client.hset(MOVES, field, value)
    with pytest.raises(InvariantViolation, match=f"field {field.hex()} of {MOVES}"):
        await read(redis_server.url)
