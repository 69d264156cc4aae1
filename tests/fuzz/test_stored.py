"""Whatever Redis holds in place of the journal, a new leader recovers from it, or says which field cannot be
read: within a second, and before anything is changed, in the journal or in the ledger. Whatever it holds in
place of the ledger, a resolver reads and changes it, or says that it cannot, and has changed nothing then."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
import redis
from fuzz.inputs import LONGEST_ERROR, SEEDS, damaged_bytes, inputs, within_a_second
from hypothesis import given
from unit.dispatcher.test_runtime import Ledger, decode

from dispatcher.core.machine import Machine, Settings
from dispatcher.core.policy.rules import Policy
from dispatcher.journal.fenced_redis import TERM
from dispatcher.journal.records import compress
from dispatcher.journal.redis_store import (
    ATTEMPTS,
    DELETIONS,
    FAULTS,
    GATES,
    OBJECTS,
    POLICY,
    SUBMISSIONS,
    RedisJournal,
)
from dispatcher.recovery import recover
from dispatcher.runtime import Runtime
from hoss.errors import HossError, InvariantViolation
from resolver.ledger.store import RedisLedger

TERM_OF_LEADER = 2
# Of release 0.2: three submissions, one of them compressed, and a field or two of everything else.
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "journal-0.2.json").read_text())
HASHES = {
    key: {bytes.fromhex(name): bytes.fromhex(text) for name, text in GOLDEN[key]["hash"].items()}
    for key in (SUBMISSIONS, DELETIONS, GATES, ATTEMPTS, FAULTS, OBJECTS)
}


def damaged_journal(rng: Random) -> tuple[dict[str, dict[bytes, bytes]], bytes]:
    """Its hashes and the policy, with up to three changes."""
    hashes = {key: dict(fields) for key, fields in HASHES.items()}
    policy = bytes.fromhex(GOLDEN[POLICY]["string"])
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.1:
            policy = damaged_bytes(rng, policy)
            continue
        fields = hashes[rng.choice(tuple(hashes))]
        name = rng.choice(tuple(fields))
        match rng.randrange(5):
            case 0:  # another name, mostly one that nothing knows
                fields[damaged_bytes(rng, name)] = fields.pop(name)
            case 1:  # as a field of another kind, or of another set
                fields[name] = rng.choice([*rng.choice(tuple(hashes.values())).values()])
            case 2:  # damaged before it was compressed
                fields[name] = compress(damaged_bytes(rng, fields[name]) * rng.choice((1, 50)))
            case _:
                fields[name] = damaged_bytes(rng, fields[name])
    return hashes, policy


def load(client: "redis.Redis", hashes: dict[str, dict[bytes, bytes]], policy: bytes) -> None:
    writing = client.pipeline()
    writing.flushdb()
    for key, fields in hashes.items():
        writing.hset(key, mapping=fields)
    writing.set(POLICY, policy)
    writing.set(TERM, TERM_OF_LEADER)
    writing.execute()


def stored(client: "redis.Redis") -> dict[bytes, object]:
    return {key: client.dump(key) for key in client.scan_iter()}


def take_over(url: str, ledger: Ledger) -> None:
    """As a new leader does. Raises what it raises."""

    async def run() -> None:
        journal = RedisJournal(url, TERM_OF_LEADER)
        machine = Machine(Settings(), Policy(), decode, random.Random(1))
        try:
            await journal.saved_policy()
            await recover(Runtime(machine, ledger, journal), term=TERM_OF_LEADER)
        finally:
            await journal.close()

    asyncio.run(run())


@inputs(2_000, quick=60)
@given(SEEDS)
def test_any_journal_is_recovered_or_refused_before_anything_is_changed(redis_server, seed):
    ledger = Ledger()
    with redis.Redis(port=redis_server.port) as client:
        load(client, *damaged_journal(Random(seed)))
        before = stored(client)
        with within_a_second():
            try:
                take_over(redis_server.url, ledger)
            except InvariantViolation as exc:
                assert str(exc)  # noqa: PT017 - whatever it says
                assert len(str(exc)) <= LONGEST_ERROR  # noqa: PT017
                assert ledger.granted == []  # nobody was fenced
                assert stored(client) == before


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (SUBMISSIONS, b"\1" * 9, "requires a buffer of at least 16 bytes"),
        (SUBMISSIONS, b"\1" * 17, "incomplete"),
        (DELETIONS, b"\5\0\0\0\0", "0 bytes for 5 pods"),
        (DELETIONS, b"\6\0\0\0\0\x84", "of 6 pods, and it has 5"),
        (ATTEMPTS, b"\0" * 4, "buffer size must be a multiple"),
        (ATTEMPTS, b"\0" * 3, "of 1 pods, and it has 5"),
        (GATES, b"\xff" * 9, "requires a buffer of at least"),
        (FAULTS, b"\x95\1\1\1\1\1", "int where a str belongs"),
        (OBJECTS, b"\xff", "PriorityClass high cannot be read"),
    ],
)
def test_a_field_that_cannot_be_read_is_named(redis_server, key, value, why):
    hashes = {of: dict(fields) for of, fields in HASHES.items()}
    name = next(iter(hashes[key]))
    hashes[key][name] = value
    with redis.Redis(port=redis_server.port) as client:
        load(client, hashes, bytes.fromhex(GOLDEN[POLICY]["string"]))
    with pytest.raises(InvariantViolation, match=why) as refused:
        take_over(redis_server.url, Ledger())
    assert name.hex() in str(refused.value) or key == OBJECTS


def test_a_policy_that_cannot_be_read_is_named(redis_server):
    with redis.Redis(port=redis_server.port) as client:
        load(client, HASHES, b'{"version": 1}')
    with pytest.raises(InvariantViolation, match=f"{POLICY} in the journal cannot be read"):
        take_over(redis_server.url, Ledger())


# Of release 0.2: two shards with two nodes each, one of them removed; confirmed, assumed and prepared pods.
GOLDEN_LEDGER = json.loads((Path(__file__).parents[1] / "golden" / "ledger-0.2.json").read_text())
GOLDEN_PODS = np.array([list(b"golden-%09d" % pod) for pod in (1, 2, 3, 4)], np.uint8)
# Written also where nothing else is.
BOOKKEEPING = (b"lease_time", b"lease_seen")


def damaged_ledger(rng: Random) -> dict[str, dict[bytes, bytes]]:
    """Its hashes, with one or two changes."""
    hashes = {
        key: {bytes.fromhex(field): bytes.fromhex(text) for field, text in entry["value"].items()}
        for key, entry in GOLDEN_LEDGER.items()
        if entry["type"] == "hash" and entry["value"]
    }
    for _ in range(rng.randint(1, 2)):
        fields = hashes[rng.choice(tuple(hashes))]
        name = rng.choice(tuple(fields))
        match rng.randrange(4):
            case 0:
                fields[damaged_bytes(rng, name)] = fields.pop(name)
            case 1:
                fields[name] = rng.choice([*rng.choice(tuple(hashes.values())).values()])
            case _:
                fields[name] = damaged_bytes(rng, fields[name])
    return hashes


def load_ledger(client: "redis.Redis", hashes: dict[str, dict[bytes, bytes]]) -> None:
    writing = client.pipeline()
    writing.flushdb()
    for key, fields in hashes.items():
        writing.hset(key, mapping=fields)
    schema = GOLDEN_LEDGER["{hoss}:schema"]["value"]
    writing.rpush("{hoss}:schema", *map(bytes.fromhex, schema))
    writing.execute()


def stored_ledger(client: "redis.Redis") -> dict[bytes, object]:
    """Every key's content; of hashes by field, for their order may differ. Reservations that cannot be read
    count as where they were: whoever comes upon one sets it aside, also when refused for something else."""
    found: dict[bytes, object] = {}
    aside: dict[bytes, dict[bytes, bytes]] = {}
    for key in client.scan_iter():
        fields = client.hgetall(key) if client.type(key) == b"hash" else client.dump(key)
        if isinstance(fields, dict):
            fields = {name: text for name, text in fields.items() if name not in BOOKKEEPING}
        if key.endswith(b":damaged"):
            aside[key.replace(b":damaged", b":reservations")] = fields
        else:
            found[key] = fields
    return {**found, **{key: {**found.get(key, {}), **fields} for key, fields in aside.items()}}


async def use(url: str, client: "redis.Redis") -> None:
    """Open the ledger, and read and change it in all ways that damage may stop. What is refused has to be so
    in words, and may have changed nothing."""
    ledger = RedisLedger(url, lease_ms=10_000)

    async def attempt(step: Callable[[], Awaitable[object]], *, opens: bool = False) -> bool:
        before = stored_ledger(client)
        with within_a_second():
            try:
                await step()
            except HossError as exc:
                assert str(exc)  # noqa: PT017 - whatever it says
                assert len(str(exc)) <= LONGEST_ERROR  # noqa: PT017
                # What was brought forward stays so.
                assert opens or stored_ledger(client) == before
                return False
        return True

    try:
        if not await attempt(lambda: ledger.open(2), opens=True):
            return
        for shard in (0, 1):
            for step in (ledger.snapshot, ledger.state, ledger.reap):
                await attempt(lambda step=step, shard=shard: step(shard))
            await attempt(lambda shard=shard: ledger.lookup(shard, GOLDEN_PODS))
            await attempt(lambda shard=shard: ledger.release(shard, GOLDEN_PODS))
        await attempt(ledger.check)
    finally:
        await ledger.close()


async def opened_and_closed(ledger: RedisLedger) -> None:
    try:
        await ledger.open(2)
    finally:
        await ledger.close()


@inputs(2_000, quick=30)
@given(SEEDS)
def test_any_ledger_is_read_and_changed_or_refused_and_then_nothing_is_changed(redis_server, seed):
    with redis.Redis(port=redis_server.port) as client:
        load_ledger(client, damaged_ledger(Random(seed)))
        asyncio.run(use(redis_server.url, client))


def test_a_ledger_of_0_2_with_a_damaged_lease_is_not_brought_forward_in_part(redis_server):
    """Or the next try would take the first eight bytes off again, which are a pod's by then."""
    hashes = damaged_ledger(Random(0))
    pending = "{hoss:0}:pending"
    hashes[pending] = {b"1": bytes(8) + GOLDEN_PODS[0].tobytes(), b"2": b"short"}
    with redis.Redis(port=redis_server.port) as client:
        load_ledger(client, hashes)
        with pytest.raises(HossError, match="pending has a record without a deadline"):
            asyncio.run(opened_and_closed(RedisLedger(redis_server.url)))
        assert client.hgetall(pending) == hashes[pending]
