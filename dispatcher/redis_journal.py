"""The journal in Redis: hashes, a set and a string under `{hoss}:journal:`, written under the term of the active dispatcher.

Writers that come while a write is under way share the next one (group commit), so a stream of small submissions costs
one round trip for many. A write that failed may have reached Redis all the same; what it wrote is withdrawn before the next
write, so a submission that was refused does not come back from the dead.
"""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from itertools import count

import msgpack
import numpy as np
from numpy.typing import NDArray

from dispatcher.fenced_redis import FencedRedis
from dispatcher.journal import FaultRecord, GateRemovals, KeptPolicy, Record, Recovered, squeeze, unsqueeze
from dispatcher.journal_mirror import Mirror, MirroredRedis
from hoss.errors import LedgerUnavailable
from hoss.redis_access import RedisError, reach
from hoss.redis_words import words
from hoss.wire.columns import decode_uids

SUBMISSIONS = "{hoss}:journal:submissions"  # request key -> order, time and SubmitRequest
DELETIONS = "{hoss}:journal:deletions"  # UID prefix -> count and bitmap
WORKERS = "{hoss}:journal:workers"  # names
GATES = "{hoss}:journal:gates"  # UID prefix -> name, count and bitmap of each gate that was removed from pods
OBJECTS = "{hoss}:journal:objects"  # key -> ClusterObject
ATTEMPTS = "{hoss}:journal:attempts"  # UID prefix -> u16 for each pod of the set
FAULTS = "{hoss}:journal:faults"  # u32 number -> MessagePack of the other fields of FaultRecord
POLICY = "{hoss}:journal:policy"  # KeptPolicy as JSON

_NUMBER = struct.Struct("<I")
_HEADER = struct.Struct("<Qq")  # order of acceptance, Unix milliseconds
_BITMAP_HEADER = struct.Struct("<I")  # pods in the set
_GATE_HEADER = struct.Struct("<HII")  # bytes of the name, pods in the set, bytes of the bitmap
_TIMEOUT_SECONDS = 2.0
_SCAN_COUNT = 500


class RedisJournal:
    """See dispatcher.journal.Journal."""

    def __init__(self, url: str, term: int = 0) -> None:
        # A write that hangs must become UNAVAILABLE for the client, who repeats it by request id.
        self._access = reach(url, timeout_seconds=_TIMEOUT_SECONDS)
        self._term = term
        self._mirror = Mirror()
        self._turn = asyncio.Lock()  # nothing is written while all is written again: the old would follow the new
        self._order = count(1)
        self._pending: dict[bytes, bytes] = {}
        self._doubtful: set[bytes] = set()  # keys of writes that failed
        self._written: asyncio.Future[None] | None = None  # of those pending
        self._writer: asyncio.Task[None] | None = None

    async def record(self, record: Record) -> None:
        self._pending[record.key] = _HEADER.pack(next(self._order), record.submitted_ms) + squeeze(record.message)
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        written = self._written
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_pending())
        # Shielded: one caller that gives up must not cancel the write the others wait for.
        await asyncio.shield(written)

    async def delete(self, deleted: Mapping[bytes, NDArray[np.bool_]]) -> None:
        fields = {
            prefix: _BITMAP_HEADER.pack(len(bitmap)) + squeeze(np.packbits(bitmap).tobytes())
            for prefix, bitmap in deleted.items()
        }
        async with self._server() as redis:
            await redis.hset(DELETIONS, mapping=fields)

    async def ungate(self, removed: Mapping[bytes, GateRemovals]) -> None:
        fields = {prefix: _pack_removals(gates) for prefix, gates in removed.items()}
        async with self._server() as redis:
            await redis.hset(GATES, mapping=fields)

    async def note_attempts(self, attempts: Mapping[bytes, NDArray[np.uint16]]) -> None:
        fields = {prefix: squeeze(column.astype("<u2").tobytes()) for prefix, column in attempts.items()}
        async with self._server() as redis:
            await redis.hset(ATTEMPTS, mapping=fields)

    async def note_faults(self, changed: Sequence[FaultRecord], dropped: Collection[int]) -> None:
        fields = {_NUMBER.pack(record.number): _pack_fault(record) for record in changed}
        async with self._server() as redis, redis.pipeline(transaction=True) as pipe:
            pipe.hset(FAULTS, mapping=fields)
            pipe.hdel(FAULTS, *map(_NUMBER.pack, dropped))
            await pipe.execute()

    async def drop(self, key: bytes, prefixes: list[bytes]) -> None:
        async with self._server() as redis, redis.pipeline(transaction=True) as pipe:
            pipe.hdel(SUBMISSIONS, key)
            if prefixes:
                pipe.hdel(DELETIONS, *prefixes)
                pipe.hdel(GATES, *prefixes)
                pipe.hdel(ATTEMPTS, *prefixes)
            await pipe.execute()

    async def remember_worker(self, name: str) -> None:
        async with self._server() as redis:
            await redis.sadd(WORKERS, name)

    async def put_objects(self, objects: Mapping[str, bytes]) -> None:
        async with self._server() as redis:
            await redis.hset(OBJECTS, mapping={key.encode(): message for key, message in objects.items()})

    async def drop_objects(self, keys: Collection[str]) -> None:
        async with self._server() as redis:
            await redis.hdel(OBJECTS, *keys)

    async def keep_policy(self, policy: KeptPolicy) -> None:
        async with self._server() as redis:
            await redis.set(POLICY, json.dumps(asdict(policy)))

    async def kept_policy(self) -> KeptPolicy | None:
        async with self._server("try again") as redis:
            kept = await redis.get(POLICY)
        return None if kept is None else KeptPolicy(**json.loads(kept))

    async def recover(self) -> Recovered:
        async with self._server("try again") as redis:
            ordered: dict[bytes, tuple[int, Record]] = {}
            async for key, value in redis.hscan_iter(SUBMISSIONS, count=_SCAN_COUNT):
                order, submitted_ms = _HEADER.unpack_from(value)
                ordered[key] = (order, Record(key, submitted_ms, unsqueeze(value[_HEADER.size :])))
            deletions = {}
            async for prefix, value in redis.hscan_iter(DELETIONS, count=_SCAN_COUNT):
                (pods,) = _BITMAP_HEADER.unpack_from(value)
                bits = np.frombuffer(unsqueeze(value[_BITMAP_HEADER.size :]), np.uint8)
                deletions[prefix] = np.unpackbits(bits, count=pods).astype(np.bool_)
            ungated: dict[bytes, GateRemovals] = {}
            async for prefix, value in redis.hscan_iter(GATES, count=_SCAN_COUNT):
                ungated[prefix] = _unpack_removals(value)
            objects: dict[str, bytes] = {}
            async for key, value in redis.hscan_iter(OBJECTS, count=_SCAN_COUNT):
                objects[key.decode()] = value
            attempts = {}
            async for prefix, value in redis.hscan_iter(ATTEMPTS, count=_SCAN_COUNT):
                attempts[prefix] = np.frombuffer(unsqueeze(value), "<u2").astype(np.uint16)
            faults = {}
            async for number, value in redis.hscan_iter(FAULTS, count=_SCAN_COUNT):
                record = _unpack_fault(number, value)
                faults[record.number] = record
            workers = {name.decode() for name in await redis.smembers(WORKERS)}
        entries = sorted(ordered.values(), key=lambda entry: entry[0])
        self._order = count(entries[-1][0] + 1 if entries else 1)
        return Recovered(
            [record for _, record in entries],
            deletions,
            workers,
            ungated,
            attempts,
            [faults[number] for number in sorted(faults)],
            objects,
        )

    async def rewrite(self) -> None:
        try:
            async with self._turn:
                await self._mirror.restore(await self._fenced())
        except (RedisError, OSError) as exc:
            self._access.doubt()
            raise LedgerUnavailable(f"the journal cannot be written now ({words(exc)})") from exc

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer
        await self._access.close()

    async def _fenced(self) -> FencedRedis:
        return FencedRedis(await self._access.at(SUBMISSIONS), self._term)

    @asynccontextmanager
    async def _server(self, therefore: str = "nothing was accepted, try again") -> AsyncIterator[MirroredRedis]:
        """The server that has the journal, written under our term. What it or the network say against it, and what follows from
        that for who asked: LedgerUnavailable."""
        try:
            async with self._turn:
                yield MirroredRedis(await self._fenced(), self._mirror)
        except (RedisError, OSError) as exc:
            self._access.doubt()
            raise LedgerUnavailable(f"the journal cannot be written or read now ({words(exc)}); {therefore}") from exc

    async def _write_pending(self) -> None:
        while self._pending and self._written is not None:
            batch, written = self._pending, self._written
            self._pending, self._written = {}, None
            try:
                await self._write(batch)
            except LedgerUnavailable as exc:
                self._doubtful.update(batch)
                written.set_exception(exc)
                # Every waiter may have given up; then nobody reads the exception, and that is no fault.
                written.exception()
            else:
                written.set_result(None)

    async def _write(self, batch: dict[bytes, bytes]) -> None:
        async with self._server() as redis, redis.pipeline(transaction=True) as pipe:
            if self._doubtful:
                pipe.hdel(SUBMISSIONS, *self._doubtful)
            pipe.hset(SUBMISSIONS, mapping=batch)
            await pipe.execute()
        self._doubtful.clear()


def _pack_removals(gates: GateRemovals) -> bytes:
    parts = []
    for gate, bitmap in gates.items():
        name, bits = gate.encode(), squeeze(np.packbits(bitmap).tobytes())
        parts += [_GATE_HEADER.pack(len(name), len(bitmap), len(bits)), name, bits]
    return b"".join(parts)


def _pack_fault(record: FaultRecord) -> bytes:
    packed: bytes = msgpack.packb([record.at_ms, record.worker, record.text, record.final, record.uids.tobytes()])
    return packed


def _unpack_fault(number: bytes, data: bytes) -> FaultRecord:
    at_ms, worker, text, final, uids = msgpack.unpackb(data)
    return FaultRecord(_NUMBER.unpack(number)[0], at_ms, worker, text, final, decode_uids(uids))


def _unpack_removals(data: bytes) -> dict[str, NDArray[np.bool_]]:
    gates, at = {}, 0
    while at < len(data):
        name_bytes, pods, bitmap_bytes = _GATE_HEADER.unpack_from(data, at)
        name_end = at + _GATE_HEADER.size + name_bytes
        bits = np.frombuffer(unsqueeze(data[name_end : name_end + bitmap_bytes]), np.uint8)
        gates[data[name_end - name_bytes : name_end].decode()] = np.unpackbits(bits, count=pods).astype(np.bool_)
        at = name_end + bitmap_bytes
    return gates
