"""The journal in Redis: hashes, a set and a string under `{hoss}:journal:`, written under the leader's term.

Submissions that arrive during a write share the next one (group commit), so that a stream of small
submissions needs few round trips. Writes are made one at a time (dispatcher.journal.fenced_redis)."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.moves import BegunRun, RunProgress
from dispatcher.journal import records
from dispatcher.journal.fenced_redis import Command, FencedRedis, JournalKeys, hdel, hset
from dispatcher.journal.records import read_field
from dispatcher.ports import FaultRecord, GateRemovals, Record, Recovered, SavedPolicy
from hoss.errors import LedgerUnavailable, OutcomeUnknown
from hoss.host import THIS_HOST
from hoss.redis.access import OpenRedis, RedisError, words

SUBMISSIONS = "{hoss}:journal:submissions"  # request key -> order, time and SubmitRequest
DELETIONS = "{hoss}:journal:deletions"  # UID prefix -> count and bitmap
WORKERS = "{hoss}:journal:workers"  # names
GATES = "{hoss}:journal:gates"  # UID prefix -> name, count and bitmap of each removed gate
OBJECTS = "{hoss}:journal:objects"  # key -> ClusterObject
ATTEMPTS = "{hoss}:journal:attempts"  # UID prefix -> u16 for each pod of the set
FAULTS = "{hoss}:journal:faults"  # u32 number -> MessagePack of the other fields of FaultRecord
# "begun" and "progress" -> MessagePack of BegunRun and RunProgress; "paused" -> b"0" or b"1", of the
# controller
MOVES = "{hoss}:journal:moves"
POLICY = "{hoss}:journal:policy"  # SavedPolicy as JSON

_OF_SETS = (DELETIONS, GATES, ATTEMPTS)  # by UID prefix
_KEYS = JournalKeys((SUBMISSIONS, *_OF_SETS, OBJECTS, FAULTS, MOVES), (WORKERS,), (POLICY,))

_BEGUN, _PROGRESS, _PAUSED = b"begun", b"progress", b"paused"  # fields of MOVES
_TIMEOUT_SECONDS = 2.0


class _Pending(NamedTuple):
    """A record that waits to be written."""

    key: bytes
    value: bytes
    prefixes: tuple[bytes, ...]
    written: asyncio.Future[None]


class RedisJournal:
    """See dispatcher.ports.Journal."""

    def __init__(self, url: str, term: int = 0, *, open_redis: OpenRedis = THIS_HOST.redis) -> None:
        # A write that hangs must end for the client, which repeats it with the same request id.
        self._access = open_redis(url, timeout_seconds=_TIMEOUT_SECONDS)
        self._store = FencedRedis(self._access, term, _KEYS)
        self._one_at_a_time = asyncio.Lock()
        self._rewrites_reported = 0
        self._order = count(1)
        self._pending: list[_Pending] = []
        self._writer: asyncio.Task[None] | None = None

    async def record(self, record: Record) -> int:
        order = next(self._order)
        value = records.pack_record(order, record)
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(record.key, value, record.prefixes, written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_pending())
        # Shielded: a caller that gives up must not cancel the write that others wait for.
        await asyncio.shield(written)
        return order

    async def delete(self, deleted: Mapping[bytes, NDArray[np.bool_]]) -> None:
        fields = {prefix: records.pack_deletions(bitmap) for prefix, bitmap in deleted.items()}
        async with self._server() as redis:
            await redis.write(*hset(DELETIONS, fields))

    async def ungate(self, removed: Mapping[bytes, GateRemovals]) -> None:
        fields = {prefix: records.pack_removals(gates) for prefix, gates in removed.items()}
        async with self._server() as redis:
            await redis.write(*hset(GATES, fields))

    async def save_attempts(self, attempts: Mapping[bytes, NDArray[np.uint16]]) -> None:
        fields = {prefix: records.pack_attempts(column) for prefix, column in attempts.items()}
        async with self._server() as redis:
            await redis.write(*hset(ATTEMPTS, fields))

    async def save_faults(self, changed: Sequence[FaultRecord], dropped: Collection[int]) -> None:
        fields = {records.fault_field(record.number): records.pack_fault(record) for record in changed}
        async with self._server() as redis:
            await redis.write(*hset(FAULTS, fields), *hdel(FAULTS, *map(records.fault_field, dropped)))

    async def drop(self, key: bytes, order: int, prefixes: list[bytes]) -> None:
        async with self._server() as redis:
            # By the copy, for the script that writes holds Redis to it.
            value = redis.copy.hashes[SUBMISSIONS].get(key)
            if value is not None and records.order_of(value) == order:
                await redis.write(*hdel(SUBMISSIONS, key), *_without_sets(redis, prefixes))

    async def add_worker(self, name: str) -> None:
        async with self._server() as redis:
            await redis.write(("SADD", WORKERS, name))

    @property
    def last_write(self) -> int:
        """The number of the last write in this term; 0: none."""
        return self._store.answered

    async def raise_term(self, least: int) -> None:
        async with self._server() as redis:
            await redis.raise_term(least)

    async def drop_workers(self, names: Collection[str]) -> None:
        async with self._server() as redis:
            known = redis.copy.sets[WORKERS].intersection(name.encode() for name in names)
            if known:
                await redis.write(("SREM", WORKERS, *sorted(known)))

    async def put_objects(self, objects: Mapping[str, bytes]) -> None:
        async with self._server() as redis:
            await redis.write(*hset(OBJECTS, {key.encode(): value for key, value in objects.items()}))

    async def drop_objects(self, keys: Collection[str]) -> None:
        async with self._server() as redis:
            await redis.write(*hdel(OBJECTS, *keys))

    async def save_policy(self, policy: SavedPolicy) -> None:
        async with self._server() as redis:
            await redis.write(("SET", POLICY, records.pack_policy(policy)))

    async def save_moves(self, begun: BegunRun, progress: RunProgress) -> None:
        fields = {_BEGUN: records.pack_run(begun), _PROGRESS: records.pack_progress(progress)}
        async with self._server() as redis:
            await redis.write(*hset(MOVES, fields))

    async def save_progress(self, progress: RunProgress) -> None:
        async with self._server() as redis:
            await redis.write(*hset(MOVES, {_PROGRESS: records.pack_progress(progress)}))

    async def save_controller_pause(self, paused: bool) -> None:
        async with self._server() as redis:
            await redis.write(*hset(MOVES, {_PAUSED: records.pack_flag(paused)}))

    async def saved_policy(self) -> SavedPolicy | None:
        async with self._server(reads=True) as redis:
            saved = await redis.get(POLICY)
        return None if saved is None else read_field(POLICY, b"", records.unpack_policy, saved)

    async def recover(self) -> Recovered:
        async with self._server(reads=True) as redis:
            await redis.begin_reading()
            await redis.get(POLICY)
            submitted = {
                key: read_field(SUBMISSIONS, key, partial(records.unpack_record, key), value)
                async for key, value in redis.fields(SUBMISSIONS)
            }
            deletions = {
                prefix: read_field(DELETIONS, prefix, records.unpack_deletions, value)
                async for prefix, value in redis.fields(DELETIONS)
            }
            ungated: dict[bytes, GateRemovals] = {
                prefix: read_field(GATES, prefix, records.unpack_removals, value)
                async for prefix, value in redis.fields(GATES)
            }
            objects = {
                read_field(OBJECTS, key, bytes.decode, key): value
                async for key, value in redis.fields(OBJECTS)
            }
            attempts = {
                prefix: read_field(ATTEMPTS, prefix, records.unpack_attempts, value)
                async for prefix, value in redis.fields(ATTEMPTS)
            }
            faults = {
                key: read_field(FAULTS, key, partial(records.unpack_fault, key), value)
                async for key, value in redis.fields(FAULTS)
            }
            moves = {name: value async for name, value in redis.fields(MOVES)}
            workers = {read_field(WORKERS, name, bytes.decode, name) for name in await redis.members(WORKERS)}
            await redis.end_reading()
            gap, last_write = redis.gap, redis.last_write
        accepted = sorted(submitted.values(), key=lambda record: record.order)
        self._order = count(accepted[-1].order + 1 if accepted else 1)
        return Recovered(
            accepted,
            deletions,
            workers,
            ungated,
            attempts,
            sorted(faults.values(), key=lambda fault: fault.number),
            objects,
            _run_of(moves),
            gap,
            last_write,
            _pause_of(moves),
        )

    async def check(self) -> bool:
        async with self._server(reads=True) as redis:
            await redis.check()
            before, self._rewrites_reported = self._rewrites_reported, redis.rewrites
            return redis.rewrites > before

    async def rewrite(self) -> None:
        async with self._server() as redis:
            await redis.restore()

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer
        await self._access.close()

    @asynccontextmanager
    async def _server(self, *, reads: bool = False) -> AsyncIterator[FencedRedis]:
        """The journal's store, for one caller at a time. Errors of Redis and of the network become
        OutcomeUnknown, or LedgerUnavailable for one that only reads."""
        try:
            async with self._one_at_a_time:
                yield self._store
        except (RedisError, OSError) as exc:
            self._access.doubt()
            if reads:
                raise LedgerUnavailable(f"the journal cannot be read now ({words(exc)}); try again") from exc
            raise OutcomeUnknown(
                f"the journal cannot be written now ({words(exc)}), so whether this was accepted is unknown: "
                "make the same call again, a submission with the same request id"
            ) from exc

    async def _write_pending(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, []
            try:
                await self._write(batch)
            except Exception as exc:  # noqa: BLE001 - raised by the callers
                for entry in batch:
                    entry.written.set_exception(exc)
                    # Marked as retrieved: every caller may have given up.
                    entry.written.exception()
            else:
                for entry in batch:
                    entry.written.set_result(None)

    async def _write(self, batch: list[_Pending]) -> None:
        async with self._server() as redis:
            prefixes = [prefix for entry in batch for prefix in entry.prefixes]
            values = {entry.key: entry.value for entry in batch}
            await redis.write(*_without_sets(redis, prefixes), *hset(SUBMISSIONS, values))


def _run_of(fields: Mapping[bytes, bytes]) -> tuple[BegunRun, RunProgress] | None:
    if _BEGUN not in fields and _PROGRESS not in fields:
        return None
    begun = read_field(MOVES, _BEGUN, records.unpack_run, fields.get(_BEGUN, b""))
    unpack = partial(records.unpack_progress, len(begun.moves))
    return begun, read_field(MOVES, _PROGRESS, unpack, fields.get(_PROGRESS, b""))


def _pause_of(fields: Mapping[bytes, bytes]) -> bool | None:
    return read_field(MOVES, _PAUSED, records.unpack_flag, fields[_PAUSED]) if _PAUSED in fields else None


def _without_sets(redis: FencedRedis, prefixes: Collection[bytes]) -> Iterator[Command]:
    """Commands that remove all that the journal has of these sets."""
    for key in _OF_SETS:
        fields = redis.copy.hashes[key]
        yield from hdel(key, *(prefix for prefix in prefixes if prefix in fields))
