"""The journal in Redis: hashes, a set and a string under `{hoss}:journal:`, written under the leader's term.

Submissions that arrive during a write share the next one (group commit), so that a stream of small
submissions needs few round trips. Writes are made one at a time (dispatcher.journal.fenced_redis)."""

import asyncio
import json
import struct
import zlib
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from itertools import count
from typing import NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from dispatcher.journal.fenced_redis import Command, FencedRedis, JournalKeys, hdel, hset
from dispatcher.ports import FaultRecord, GateRemovals, Record, Recovered, SavedPolicy
from hoss.errors import LedgerUnavailable, OutcomeUnknown
from hoss.host import THIS_HOST
from hoss.redis_access import OpenRedis, RedisError, words
from hoss.wire.columns import decode_uids

SUBMISSIONS = "{hoss}:journal:submissions"  # request key -> order, time and SubmitRequest
DELETIONS = "{hoss}:journal:deletions"  # UID prefix -> count and bitmap
WORKERS = "{hoss}:journal:workers"  # names
GATES = "{hoss}:journal:gates"  # UID prefix -> name, count and bitmap of each removed gate
OBJECTS = "{hoss}:journal:objects"  # key -> ClusterObject
ATTEMPTS = "{hoss}:journal:attempts"  # UID prefix -> u16 for each pod of the set
FAULTS = "{hoss}:journal:faults"  # u32 number -> MessagePack of the other fields of FaultRecord
POLICY = "{hoss}:journal:policy"  # SavedPolicy as JSON

_OF_SETS = (DELETIONS, GATES, ATTEMPTS)  # by UID prefix
_KEYS = JournalKeys((SUBMISSIONS, *_OF_SETS, OBJECTS, FAULTS), (WORKERS,), (POLICY,))

_SMALL_BYTES = 512  # not worth compressing
_NUMBER = struct.Struct("<I")
_HEADER = struct.Struct("<Qq")  # order of acceptance, Unix milliseconds
_BITMAP_HEADER = struct.Struct("<I")  # pods in the set
_GATE_HEADER = struct.Struct("<HII")  # bytes of the name, pods in the set, bytes of the bitmap
_TIMEOUT_SECONDS = 2.0


def compress(data: bytes) -> bytes:
    """Compress data unless it is small. The first byte says which."""
    return b"\0" + data if len(data) < _SMALL_BYTES else b"\1" + zlib.compress(data, 1)


def decompress(data: bytes) -> bytes:
    return zlib.decompress(data[1:]) if data[:1] == b"\1" else data[1:]


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
        value = _HEADER.pack(order, record.submitted_ms) + compress(record.message)
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(record.key, value, record.prefixes, written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_pending())
        # Shielded: a caller that gives up must not cancel the write that others wait for.
        await asyncio.shield(written)
        return order

    async def delete(self, deleted: Mapping[bytes, NDArray[np.bool_]]) -> None:
        fields = {
            prefix: _BITMAP_HEADER.pack(len(bitmap)) + compress(np.packbits(bitmap).tobytes())
            for prefix, bitmap in deleted.items()
        }
        async with self._server() as redis:
            await redis.write(*hset(DELETIONS, fields))

    async def ungate(self, removed: Mapping[bytes, GateRemovals]) -> None:
        fields = {prefix: _pack_removals(gates) for prefix, gates in removed.items()}
        async with self._server() as redis:
            await redis.write(*hset(GATES, fields))

    async def save_attempts(self, attempts: Mapping[bytes, NDArray[np.uint16]]) -> None:
        fields = {prefix: compress(column.astype("<u2").tobytes()) for prefix, column in attempts.items()}
        async with self._server() as redis:
            await redis.write(*hset(ATTEMPTS, fields))

    async def save_faults(self, changed: Sequence[FaultRecord], dropped: Collection[int]) -> None:
        fields = {_NUMBER.pack(record.number): _pack_fault(record) for record in changed}
        async with self._server() as redis:
            await redis.write(*hset(FAULTS, fields), *hdel(FAULTS, *map(_NUMBER.pack, dropped)))

    async def drop(self, key: bytes, order: int, prefixes: list[bytes]) -> None:
        async with self._server() as redis:
            # By the copy, for the script that writes holds Redis to it.
            value = redis.copy.hashes[SUBMISSIONS].get(key)
            if value is not None and _HEADER.unpack_from(value)[0] == order:
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
            await redis.write(("SET", POLICY, json.dumps(asdict(policy))))

    async def saved_policy(self) -> SavedPolicy | None:
        async with self._server(reads=True) as redis:
            saved = await redis.get(POLICY)
        return None if saved is None else SavedPolicy(**json.loads(saved))

    async def recover(self) -> Recovered:
        async with self._server(reads=True) as redis:
            await redis.begin_reading()
            await redis.get(POLICY)
            ordered: dict[bytes, tuple[int, Record]] = {}
            async for key, value in redis.fields(SUBMISSIONS):
                order, submitted_ms = _HEADER.unpack_from(value)
                ordered[key] = (
                    order,
                    Record(key, submitted_ms, decompress(value[_HEADER.size :]), order=order),
                )
            deletions = {}
            async for prefix, value in redis.fields(DELETIONS):
                (pods,) = _BITMAP_HEADER.unpack_from(value)
                bits = np.frombuffer(decompress(value[_BITMAP_HEADER.size :]), np.uint8)
                deletions[prefix] = np.unpackbits(bits, count=pods).astype(np.bool_)
            ungated: dict[bytes, GateRemovals] = {
                prefix: _unpack_removals(value) async for prefix, value in redis.fields(GATES)
            }
            objects = {key.decode(): value async for key, value in redis.fields(OBJECTS)}
            attempts = {
                prefix: np.frombuffer(decompress(value), "<u2").astype(np.uint16)
                async for prefix, value in redis.fields(ATTEMPTS)
            }
            faults = {key: _unpack_fault(key, value) async for key, value in redis.fields(FAULTS)}
            workers = {name.decode() for name in await redis.members(WORKERS)}
            await redis.end_reading()
            gap, last_write = redis.gap, redis.last_write
        entries = sorted(ordered.values(), key=lambda entry: entry[0])
        self._order = count(entries[-1][0] + 1 if entries else 1)
        return Recovered(
            [record for _, record in entries],
            deletions,
            workers,
            ungated,
            attempts,
            sorted(faults.values(), key=lambda fault: fault.number),
            objects,
            gap,
            last_write,
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
            records = {entry.key: entry.value for entry in batch}
            await redis.write(*_without_sets(redis, prefixes), *hset(SUBMISSIONS, records))


def _without_sets(redis: FencedRedis, prefixes: Collection[bytes]) -> Iterator[Command]:
    """Commands that remove all that the journal has of these sets."""
    for key in _OF_SETS:
        fields = redis.copy.hashes[key]
        yield from hdel(key, *(prefix for prefix in prefixes if prefix in fields))


def _pack_removals(gates: GateRemovals) -> bytes:
    parts = []
    for gate, bitmap in gates.items():
        name, bits = gate.encode(), compress(np.packbits(bitmap).tobytes())
        parts += [_GATE_HEADER.pack(len(name), len(bitmap), len(bits)), name, bits]
    return b"".join(parts)


def _pack_fault(record: FaultRecord) -> bytes:
    packed: bytes = msgpack.packb(
        [record.at_ms, record.worker, record.text, record.final, record.uids.tobytes()]
    )
    return packed


def _unpack_fault(number: bytes, data: bytes) -> FaultRecord:
    at_ms, worker, text, final, uids = msgpack.unpackb(data)
    return FaultRecord(_NUMBER.unpack(number)[0], at_ms, worker, text, final, decode_uids(uids))


def _unpack_removals(data: bytes) -> dict[str, NDArray[np.bool_]]:
    gates, at = {}, 0
    while at < len(data):
        name_bytes, pods, bitmap_bytes = _GATE_HEADER.unpack_from(data, at)
        name_end = at + _GATE_HEADER.size + name_bytes
        bits = np.frombuffer(decompress(data[name_end : name_end + bitmap_bytes]), np.uint8)
        gates[data[name_end - name_bytes : name_end].decode()] = np.unpackbits(bits, count=pods).astype(
            np.bool_
        )
        at = name_end + bitmap_bytes
    return gates
