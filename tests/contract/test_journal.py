"""What every journal promises, held against each implementation."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import numpy as np
import pytest
from redis_topologies import SENTINEL_AND_CLUSTER, servers

from dispatcher.core.moves import BegunEviction, BegunRun, RunProgress
from dispatcher.journal.memory import MemoryJournal
from dispatcher.journal.redis_store import RedisJournal
from dispatcher.ports import FaultRecord, Journal, Record, SavedPolicy
from hoss.errors import OutcomeUnknown


@pytest.fixture(params=["memory", *servers(), *SENTINEL_AND_CLUSTER])
async def journal(request: pytest.FixtureRequest, empty_redis: Callable[..., str]) -> AsyncIterator[Journal]:
    if request.param == "memory":
        made: Journal = MemoryJournal()
    else:
        made = RedisJournal(empty_redis(request.param, "hoss-dispatcher"))
    yield made
    await made.close()


def record(number: int, content: bytes = b"message") -> Record:
    return Record(number.to_bytes(12, "big"), 1_700_000_000_000 + number, content)


async def test_an_empty_journal_recovers_nothing(journal):
    recovered = await journal.recover()
    assert (recovered.records, recovered.deletions, recovered.workers) == ([], {}, set())


@pytest.mark.parametrize("content", [b"", b"\1small", b"\0" * 100_000])
async def test_what_was_recorded_comes_back_whole(journal, content):
    await journal.record(record(1, content))
    assert (await journal.recover()).records == [record(1, content)]


async def test_records_come_back_in_the_order_they_were_accepted(journal):
    for number in (3, 1, 2):
        await journal.record(record(number))
    await asyncio.gather(*(journal.record(record(number)) for number in (9, 7, 8)))
    recovered = await journal.recover()
    assert [int.from_bytes(r.key, "big") for r in recovered.records] == [3, 1, 2, 9, 7, 8]


async def test_many_records_come_back_each_once(journal):
    await asyncio.gather(*(journal.record(record(number)) for number in range(2000)))
    assert len((await journal.recover()).records) == 2000


async def test_a_record_repeated_is_one_record(journal):
    await journal.record(record(1))
    await journal.record(record(1))
    assert len((await journal.recover()).records) == 1


async def test_the_last_bitmap_of_a_set_stands(journal):
    prefix = b"p" * 12
    await journal.delete({prefix: np.array([True, False, False])})
    await journal.delete({prefix: np.array([True, False, True]), b"q" * 12: np.ones(100_000, np.bool_)})
    deletions = (await journal.recover()).deletions
    assert deletions[prefix].tolist() == [True, False, True]
    assert deletions[b"q" * 12].all()
    assert len(deletions[b"q" * 12]) == 100_000


async def test_what_was_dropped_is_gone_and_dropping_again_is_harmless(journal):
    order = await journal.record(record(1))
    await journal.delete({b"p" * 12: np.ones(3, np.bool_)})
    for _ in range(2):
        await journal.drop(record(1).key, order, [b"p" * 12])
    recovered = await journal.recover()
    assert (recovered.records, recovered.deletions) == ([], {})


async def test_a_late_drop_spares_the_request_that_was_submitted_again_under_the_same_id(journal):
    """The first drop got no answer. The next one comes after the id was used again."""
    prefix = b"p" * 12
    former = await journal.record(replace(record(1, b"former"), prefixes=(prefix,)))
    await journal.delete({prefix: np.ones(3, np.bool_)})
    await journal.ungate({prefix: {"a.io/g": np.ones(3, np.bool_)}})
    await journal.save_attempts({prefix: np.ones(3, np.uint16)})
    again = await journal.record(replace(record(1, b"again"), prefixes=(prefix,)))
    assert again > former
    recovered = await journal.recover()
    assert [entry.message for entry in recovered.records] == [b"again"]
    assert (recovered.deletions, recovered.ungated, recovered.attempts) == ({}, {}, {})
    await journal.delete({prefix: np.array([True, False, False])})
    await journal.drop(record(1).key, former, [prefix])
    recovered = await journal.recover()
    assert [(entry.message, entry.order) for entry in recovered.records] == [(b"again", again)]
    assert recovered.deletions[prefix].tolist() == [True, False, False]
    await journal.drop(record(1).key, again, [prefix])
    recovered = await journal.recover()
    assert (recovered.records, recovered.deletions) == ([], {})


async def test_workers_are_remembered_once_each_until_they_are_dropped(journal):
    for name in ("w1", "w2", "w1"):
        await journal.add_worker(name)
    assert (await journal.recover()).workers == {"w1", "w2"}
    for _ in range(2):
        await journal.drop_workers(["w1", "w3"])
    assert (await journal.recover()).workers == {"w2"}


async def test_a_journal_that_lost_nothing_is_not_written_again(journal):
    await journal.recover()
    for number in range(3):
        await journal.record(record(number))
        await journal.add_worker(f"w{number}")
        assert not await journal.check()
    await journal.drop_workers(["w0", "w1", "w2"])
    assert not await journal.check()
    assert (await journal.recover()).gap == ""


async def test_records_after_a_recovery_follow_those_before(redis_server):
    for number in (5, 4):
        journal = RedisJournal(redis_server.url)
        await journal.recover()
        await journal.record(record(number))
        await journal.close()
    journal = RedisJournal(redis_server.url)
    assert [int.from_bytes(r.key, "big") for r in (await journal.recover()).records] == [5, 4]
    await journal.close()


async def test_with_redis_away_every_write_says_unavailable_and_later_ones_succeed(own_redis, tmp_path):
    journal = RedisJournal(own_redis.url)
    await journal.record(record(1))
    port = own_redis.port
    own_redis.stop()
    results = await asyncio.gather(*(journal.record(record(n)) for n in (2, 3)), return_exceptions=True)
    assert all(isinstance(result, OutcomeUnknown) for result in results)
    with pytest.raises(OutcomeUnknown):
        await journal.delete({b"p" * 12: np.ones(1, np.bool_)})
    restarted = type(own_redis).start(tmp_path / "redis", port=port, append_only=True)
    try:
        await journal.record(record(4))
        assert [int.from_bytes(r.key, "big") for r in (await journal.recover()).records] == [1, 4]
    finally:
        await journal.close()
        restarted.kill()


async def test_concurrent_records_share_writes(redis_server):
    journal = RedisJournal(redis_server.url)
    writes = 0
    inner = journal._write

    async def counted(batch):
        nonlocal writes
        writes += 1
        await inner(batch)

    journal._write = counted
    await asyncio.gather(*(journal.record(record(n)) for n in range(100)))
    assert writes <= 2
    await journal.close()


async def test_what_was_removed_of_gates_comes_back_until_the_submission_is_dropped(journal):
    prefix = b"p" * 12
    order = await journal.record(record(1))
    await journal.ungate({prefix: {"a.io/first": np.array([True, False, False])}})
    removed = {"a.io/first": np.array([True, True, False]), "z" * 300: np.arange(70_000) % 3 == 0}
    await journal.ungate({prefix: removed, b"q" * 12: {"b": np.ones(1, np.bool_)}})
    ungated = (await journal.recover()).ungated
    assert {gate: bits.tolist() for gate, bits in ungated[prefix].items()} == {
        g: b.tolist() for g, b in removed.items()
    }
    await journal.drop(record(1).key, order, [prefix])
    assert (await journal.recover()).ungated.keys() == {b"q" * 12}


async def test_the_last_counts_of_attempts_stand_until_the_submission_is_dropped(journal):
    order = await journal.record(record(1))
    await journal.save_attempts({b"p" * 12: np.array([1, 0, 0], np.uint16)})
    await journal.save_attempts(
        {b"p" * 12: np.array([2, 0, 65_535], np.uint16), b"q" * 12: np.ones(70_000, np.uint16)}
    )
    attempts = (await journal.recover()).attempts
    assert attempts[b"p" * 12].tolist() == [2, 0, 65_535]
    assert attempts[b"q" * 12].sum() == 70_000
    await journal.drop(record(1).key, order, [b"p" * 12])
    assert (await journal.recover()).attempts.keys() == {b"q" * 12}


def fault(number: int, pods: int, *, final: bool = False) -> FaultRecord:
    uids = np.arange(pods * 16, dtype=np.uint8).reshape(pods, 16)
    return FaultRecord(number, 1_700_000_000_000 + number, "w1", "worker w1 was lost", final, uids)


async def test_faults_are_replaced_and_forgotten_by_number(journal):
    await journal.save_faults([fault(3, 4), fault(1, 2), fault(2, 1, final=True)], [])
    await journal.save_faults([fault(3, 1)], [1, 77])
    told = (await journal.recover()).faults
    assert [(f.number, f.at_ms, f.worker, f.text, f.final) for f in told] == [
        (2, 1_700_000_000_002, "w1", "worker w1 was lost", True),
        (3, 1_700_000_000_003, "w1", "worker w1 was lost", False),
    ]
    assert [len(f.uids) for f in told] == [1, 1]
    assert told[0].uids.tobytes() == bytes(range(16))


async def test_cluster_objects_come_back_as_last_put_until_they_are_dropped(journal):
    await journal.put_objects({"Namespace a": b"1", "Service a/s": b""})
    await journal.put_objects({"Namespace a": b"\0\xff"})
    assert (await journal.recover()).objects == {"Namespace a": b"\0\xff", "Service a/s": b""}
    for _ in range(2):
        await journal.drop_objects(["Namespace a"])
    assert (await journal.recover()).objects == {"Service a/s": b""}


async def test_the_last_policy_is_kept_whole(journal):
    assert await journal.saved_policy() is None
    first = SavedPolicy(1, "rules: 'é'\n", "command", 1_700_000_000_000, "")
    last = SavedPolicy(2, "rules: []\n", "file /etc/policy.yaml", 1_700_000_000_001, "5e1f")
    for policy in (first, last, last):
        await journal.save_policy(policy)
    assert await journal.saved_policy() == last
    assert (await journal.recover()).records == []


def a_run(*pods, purpose="spread"):
    moves = tuple((bytes([i]) * 16, f"default/{pod}", "n0", "n1") for i, pod in enumerate(pods))
    return BegunRun(moves, (7, 2**60), 3, 2.5, purpose, "")


async def test_the_last_run_of_moves_comes_back_with_how_far_it_is(journal):
    assert (await journal.recover()).moves is None
    first, last = a_run("a", "b"), a_run("c", "d", "e", purpose="é")
    await journal.save_moves(first, RunProgress("Running", "", False, "WW", {}))
    await journal.save_progress(RunProgress("Paused", "by hand", True, "MR", {1: "no room"}))
    assert (await journal.recover()).moves == (
        first,
        RunProgress("Paused", "by hand", True, "MR", {1: "no room"}),
    )
    evictions = {
        0: BegunEviction(b'{"spec": {}}', 2**60),
        2: BegunEviction(b"{}", 7, (b"s" * 16, "default/é")),
    }
    evicted = RunProgress("Running", "", False, "EWE", {0: "evicted"}, evictions)
    await journal.save_moves(last, evicted)
    assert (await journal.recover()).moves == (last, evicted)
    assert (await journal.recover()).controller_paused is None
    for paused in (True, False, True):
        await journal.save_controller_pause(paused)
        recovered = await journal.recover()
        assert (recovered.controller_paused, recovered.moves) == (paused, (last, evicted))
    begun = RunProgress("Running", "", False, "WWW", {})
    await journal.save_moves(last, begun)
    assert (await journal.recover()).moves == (last, begun)
