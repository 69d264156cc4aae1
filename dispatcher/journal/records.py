"""What the fields of the journal in Redis contain: how each kind is written, and read again.

A field that nobody can have written (a damaged one, or one of another program) is a broken invariant. The
error names its place, so that it can be restored from a copy of Redis, or removed by somebody who knows what
is forgotten with it."""

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import asdict, astuple
from typing import Any, TypeVar

import msgpack
import numpy as np
from numpy.typing import NDArray

from dispatcher.core.moves import BegunEviction, BegunRun, RunProgress, RunState
from dispatcher.ports import FaultRecord, GateRemovals, Record, SavedPolicy
from hoss.errors import InvalidInput, InvariantViolation, clipped
from hoss.wire.columns import decode_uids

_SMALL_BYTES = 512  # not worth compressing
_NUMBER = struct.Struct("<I")
_HEADER = struct.Struct("<Qq")  # order of acceptance, Unix milliseconds
_BITMAP_HEADER = struct.Struct("<I")  # pods in the set
_GATE_HEADER = struct.Struct("<HII")  # bytes of the name, pods in the set, bytes of the bitmap
_MOST_SHOWN = 200

# What reading a damaged field raises.
_UNREADABLE = (
    *(struct.error, zlib.error, msgpack.UnpackException, msgpack.ExtraData, InvalidInput),
    *(UnicodeDecodeError, RecursionError, TypeError, ValueError),
)

_T = TypeVar("_T")


def read_field(key: str, name: bytes, read: Callable[[bytes], _T], value: bytes) -> _T:
    """What a field contains. Raises InvariantViolation with its place where it cannot be read."""
    try:
        return read(value)
    except _UNREADABLE as exc:
        raise unreadable(key, name, str(exc)) from exc


def unreadable(key: str, name: bytes, why: str) -> InvariantViolation:
    """The error for a field; "" as name: for a plain value."""
    place = f"the field {name.hex()} of {key}" if name else key
    return InvariantViolation(
        f"{place} in the journal cannot be read: {clipped(why, _MOST_SHOWN)}; restore it from a copy of"
        " Redis, or remove it, and what it says is forgotten"
    )


def compress(data: bytes) -> bytes:
    """Compress data unless it is small. The first byte says which."""
    return b"\0" + data if len(data) < _SMALL_BYTES else b"\1" + zlib.compress(data, 1)


def decompress(data: bytes) -> bytes:
    """The reverse of `compress`."""
    return zlib.decompress(data[1:]) if data[:1] == b"\1" else data[1:]


def pack_record(order: int, record: Record) -> bytes:
    """A submission: `<u64 order, i64 Unix milliseconds>`, then the compressed SubmitRequest."""
    return _HEADER.pack(order, record.submitted_ms) + compress(record.message)


def unpack_record(key: bytes, value: bytes) -> Record:
    """With its order."""
    order, submitted_ms = _HEADER.unpack_from(value)
    return Record(key, submitted_ms, decompress(value[_HEADER.size :]), order=order)


def order_of(value: bytes) -> int:
    """The order of a packed record."""
    order: int = _HEADER.unpack_from(value)[0]
    return order


def pack_deletions(bitmap: NDArray[np.bool_]) -> bytes:
    """Which pods of a set are deleted: `<u32 pods>`, then a compressed bitmap."""
    return _BITMAP_HEADER.pack(len(bitmap)) + compress(np.packbits(bitmap).tobytes())


def unpack_deletions(value: bytes) -> NDArray[np.bool_]:
    """(pods,)."""
    (pods,) = _BITMAP_HEADER.unpack_from(value)
    return _bits(decompress(value[_BITMAP_HEADER.size :]), pods)


def pack_removals(gates: GateRemovals) -> bytes:
    """Which pods of a set have lost which gates. Of each gate: `<u16 bytes of the name, u32 pods, u32 bytes
    of the bitmap>`, the name in UTF-8, and a compressed bitmap."""
    parts = []
    for gate, bitmap in gates.items():
        name, bits = gate.encode(), compress(np.packbits(bitmap).tobytes())
        parts += [_GATE_HEADER.pack(len(name), len(bitmap), len(bits)), name, bits]
    return b"".join(parts)


def unpack_removals(value: bytes) -> dict[str, NDArray[np.bool_]]:
    """(pods,), by the name of the gate."""
    gates, at = {}, 0
    while at < len(value):
        name_bytes, pods, bitmap_bytes = _GATE_HEADER.unpack_from(value, at)
        name_end = at + _GATE_HEADER.size + name_bytes
        at = name_end + bitmap_bytes
        gates[value[name_end - name_bytes : name_end].decode()] = _bits(decompress(value[name_end:at]), pods)
    return gates


def _bits(packed: bytes, pods: int) -> NDArray[np.bool_]:
    # unpackbits makes up bits that are missing.
    if len(packed) != (pods + 7) // 8:
        raise ValueError(f"{len(packed)} bytes for {pods} pods")
    return np.unpackbits(np.frombuffer(packed, np.uint8), count=pods).astype(np.bool_)


def pack_attempts(attempts: NDArray[np.uint16]) -> bytes:
    """How often each pod of a set was tried: compressed `<u2`."""
    return compress(attempts.astype("<u2").tobytes())


def unpack_attempts(value: bytes) -> NDArray[np.uint16]:
    """(pods,)."""
    return np.frombuffer(decompress(value), "<u2").astype(np.uint16)


def fault_field(number: int) -> bytes:
    """The name of a fault's field."""
    return _NUMBER.pack(number)


def pack_fault(record: FaultRecord) -> bytes:
    """MessagePack: Unix milliseconds, worker, text, whether it is final, and the UIDs."""
    fields = [record.at_ms, record.worker, record.text, record.final, record.uids.tobytes()]
    packed: bytes = msgpack.packb(fields)
    return packed


def unpack_fault(number: bytes, value: bytes) -> FaultRecord:
    """The fault in a field with this name."""
    at_ms, worker, text, final, uids = msgpack.unpackb(value)
    _of_types((at_ms, int), (worker, str), (text, str), (final, bool), (uids, bytes))
    return FaultRecord(_NUMBER.unpack(number)[0], at_ms, worker, text, final, decode_uids(uids))


def pack_run(run: BegunRun) -> bytes:
    """A run of moves as it began: compressed MessagePack of its fields, in their order."""
    packed: bytes = msgpack.packb(astuple(run))
    return compress(packed)


def unpack_run(value: bytes) -> BegunRun:
    """The run. One of an earlier release has no field `undo`."""
    moves, seen, waiting, rate, purpose, controller, *undo = msgpack.unpackb(decompress(value))
    (undo,) = undo or (False,)  # a journal of before has none
    for uid, *names in moves:
        decode_uids(uid)
        _of_types(*((name, str) for name in names))
        if len(names) != 3:
            raise ValueError(f"a move with {len(names)} names")
    _of_types(*((seq, int) for seq in seen), (waiting, int), (rate, float), (purpose, str))
    _of_types((controller, str), (undo, bool))
    if not rate > 0:
        raise ValueError(f"a rate of {rate}")
    return BegunRun(tuple(map(tuple, moves)), tuple(seen), waiting, rate, purpose, controller, undo)


def pack_progress(progress: RunProgress) -> bytes:
    """How far a run of moves is: compressed MessagePack of its fields, evictions last."""
    evictions = {number: astuple(eviction) for number, eviction in progress.evictions.items()}
    packed: bytes = msgpack.packb(
        [progress.state, progress.reason, progress.undone, progress.states, dict(progress.texts), evictions]
    )
    return compress(packed)


def unpack_progress(moves: int, value: bytes) -> RunProgress:
    """Of a run with so many moves."""
    # Versions before the evictions wrote five fields.
    state, reason, undone, states, texts, *rest = msgpack.unpackb(decompress(value), strict_map_key=False)
    _of_types((reason, str), (undone, bool), (states, str), (texts, dict))
    _of_types(*((number, int) for number in texts), *((text, str) for text in texts.values()))
    RunState(state)
    if len(states) != moves or not RunProgress.known(states):
        raise ValueError(f"the states {states!r} of {moves} moves")
    evictions = {number: _eviction(*fields) for number, fields in rest[0].items()} if rest else {}
    if any(number >= moves for number in evictions):
        raise ValueError(f"evictions of {max(evictions) + 1} moves, and there are {moves}")
    return RunProgress(state, reason, undone, states, texts, evictions)


def _eviction(pod: bytes, seq: int, successor: list[Any] | None) -> BegunEviction:
    _of_types((pod, bytes), (seq, int))
    if successor is None:
        return BegunEviction(pod, seq)
    uid, name = successor
    decode_uids(uid, rows=1)
    _of_types((name, str))
    return BegunEviction(pod, seq, (uid, name))


def pack_flag(flag: bool) -> bytes:
    """b"1" or b"0"."""
    return b"1" if flag else b"0"


def unpack_flag(value: bytes) -> bool:
    """The reverse of `pack_flag`."""
    if value not in (b"0", b"1"):
        raise ValueError(f"{value!r} where b'0' or b'1' belongs")
    return value == b"1"


def pack_policy(policy: SavedPolicy) -> str:
    """The policy in force, as JSON."""
    return json.dumps(asdict(policy))


def unpack_policy(value: bytes) -> SavedPolicy:
    """The reverse of `pack_policy`."""
    found = SavedPolicy(**json.loads(value))
    numbers, texts = (found.version, found.since_ms), (found.yaml, found.source)
    _of_types(*((number, int) for number in numbers), *((text, str) for text in texts))
    return found


def _of_types(*values: tuple[Any, type]) -> None:
    for value, wanted in values:
        if not isinstance(value, wanted):
            raise TypeError(f"a {type(value).__name__} where a {wanted.__name__} belongs")
