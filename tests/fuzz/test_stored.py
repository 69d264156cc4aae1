"""Whatever Redis holds in place of the journal, a new leader recovers from it, or says which field cannot be
read: within a second, and before anything is changed, in the journal or in the ledger."""

import asyncio
import json
import random
from pathlib import Path
from random import Random

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
from hoss.errors import InvariantViolation

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
