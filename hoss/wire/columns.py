"""Packed little-endian columns: NumPy arrays on one side, `bytes` fields on the other.

Decoded columns are read-only views of the message's bytes; nothing is copied.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ColumnError

U8 = np.dtype("u1")
U16 = np.dtype("<u2")
U32 = np.dtype("<u4")
U64 = np.dtype("<u8")
I32 = np.dtype("<i4")
I64 = np.dtype("<i8")
F32 = np.dtype("<f4")

NONE_U16 = 0xFFFF
NONE_U32 = 0xFFFFFFFF

UID_BYTES = 16
UID_PREFIX_BYTES = 12

Uids = NDArray[np.uint8]  # (n, 16), C order


def decode(data: bytes, dtype: np.dtype[Any], *, name: str, rows: int | None = None) -> NDArray[Any]:
    """View `data` as a column. Raises ColumnError when its length is not a multiple of the width, or not `rows`."""
    if len(data) % dtype.itemsize:
        raise ColumnError(f"{len(data)} bytes are not a multiple of {dtype.itemsize}", where=name)
    column: NDArray[Any] = np.frombuffer(data, dtype)
    if rows is not None and len(column) != rows:
        raise ColumnError(f"{len(column)} rows where {rows} are expected", where=name)
    return column


def decode_uids(data: bytes, *, name: str = "uids", rows: int | None = None) -> Uids:
    """View `data` as pod UIDs, (n, 16)."""
    if len(data) % UID_BYTES:
        raise ColumnError(f"{len(data)} bytes are not a multiple of {UID_BYTES}", where=name)
    uids: Uids = np.frombuffer(data, np.uint8).reshape(-1, UID_BYTES)
    if rows is not None and len(uids) != rows:
        raise ColumnError(f"{len(uids)} rows where {rows} are expected", where=name)
    return uids


def encode(values: Any, dtype: np.dtype[Any]) -> bytes:
    """Pack values (array or sequence) as a column."""
    return np.ascontiguousarray(values, dtype=dtype).tobytes()


def numbered_uids(prefix: bytes, first: int, count: int) -> Uids:
    """UIDs of pods `first` to `first + count - 1` of a set: its 12-byte prefix, then the ordinal as u32 big-endian."""
    uids = np.empty((count, UID_BYTES), np.uint8)
    uids[:, :UID_PREFIX_BYTES] = np.frombuffer(prefix, np.uint8)
    uids[:, UID_PREFIX_BYTES:] = np.arange(first, first + count, dtype=">u4").view(np.uint8).reshape(count, 4)
    return uids


def uid_text(uid: bytes) -> str:
    """The usual spelling of a 16-byte UID: 8-4-4-4-12 hexadecimal digits."""
    h = uid.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def uid_from_text(text: str) -> bytes:
    """The 16 bytes of a UID as Kubernetes spells it. Raises ColumnError for anything else."""
    try:
        raw = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        raw = b""
    if len(raw) != UID_BYTES:
        raise ColumnError(f"{text!r} is no UID: 32 hexadecimal digits, usually written 8-4-4-4-12", where="uid")
    return raw
