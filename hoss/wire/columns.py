"""Packed little-endian columns: NumPy arrays in memory, `bytes` fields in messages.

Decoded columns are read-only views of the message's bytes, not copies.

An *account* is the ledger's packed record of one node, as stored in Redis, sent in feeds and applied by
caches. With R resources its fields are: u64 seq (the shard's sequence number of its last change), u64 born
(the sequence number at which this node got its index), u32 flags, u32 described (the low half of the sequence
number at which its spec last changed), and R pairs of i64 (allocatable, requested). A new resource appends a
pair.

Cards are a second record: 16 u16, thousandths used, 0xFFFF for an absent card. A card that the node lost
while pods still hold it has the value CARD_CLOSED plus what they hold, so that it never fits. It becomes
0xFFFF when the last of these pods has left."""

import hashlib
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.errors import ColumnError
from hoss.wire.uids import UID_BYTES, UID_PREFIX_BYTES

U8 = np.dtype("u1")
U16 = np.dtype("<u2")
U32 = np.dtype("<u4")
U64 = np.dtype("<u8")
I32 = np.dtype("<i4")
I64 = np.dtype("<i8")
F32 = np.dtype("<f4")

NONE_U16 = 0xFFFF
NONE_U32 = 0xFFFFFFFF


Uids = NDArray[np.uint8]  # (n, 16), C order


def decode(data: bytes, dtype: np.dtype[Any], *, name: str, rows: int | None = None) -> NDArray[Any]:
    """View `data` as a column. Raises ColumnError where it has no whole number of rows, or not `rows`."""
    if len(data) % dtype.itemsize:
        raise ColumnError(f"{len(data)} bytes are not a multiple of {dtype.itemsize}", where=name)
    column: NDArray[Any] = np.frombuffer(data, dtype)
    if rows is not None and len(column) != rows:
        raise ColumnError(f"{len(column)} rows where {rows} are expected", where=name)
    return column


def decode_nodes(data: bytes, *, name: str, rows: int | None = None) -> NDArray[np.uint32]:
    """View `data` as node indexes. Raises ColumnError for one that no cluster has: readers make room for
    it."""
    column: NDArray[np.uint32] = decode(data, U32, name=name, rows=rows)
    check_node_index(int(column.max(initial=0)), name=name)
    return column


def check_node_index(index: int, *, name: str) -> None:
    """Raises ColumnError for the index of a node that no cluster has."""
    if index >= MAX_NODES:
        raise ColumnError(f"node index {index} where there are up to {MAX_NODES:,}", where=name)


def decode_uids(data: bytes, *, name: str = "uids", rows: int | None = None) -> Uids:
    """View `data` as pod UIDs, (n, 16)."""
    if len(data) % UID_BYTES:
        raise ColumnError(f"{len(data)} bytes are not a multiple of {UID_BYTES}", where=name)
    uids: Uids = np.frombuffer(data, np.uint8).reshape(-1, UID_BYTES)
    if rows is not None and len(uids) != rows:
        raise ColumnError(f"{len(uids)} rows where {rows} are expected", where=name)
    return uids


def uid_list(uids: Uids) -> list[bytes]:
    """Each UID as bytes, in a third of the time that `map(bytes, uids)` takes."""
    found: list[bytes] = np.ascontiguousarray(uids).view(f"V{UID_BYTES}").ravel().tolist()
    return found


def encode(values: Any, dtype: np.dtype[Any]) -> bytes:
    """Pack values (array or sequence) as a column."""
    return np.ascontiguousarray(values, dtype=dtype).tobytes()


def numbered_uids(prefix: bytes, first: int, count: int) -> Uids:
    """UIDs of pods `first` to `first + count - 1` of a set: a 12-byte prefix, and the ordinal as big-endian
    u32."""
    uids = np.empty((count, UID_BYTES), np.uint8)
    uids[:, :UID_PREFIX_BYTES] = np.frombuffer(prefix, np.uint8)
    uids[:, UID_PREFIX_BYTES:] = np.arange(first, first + count, dtype=">u4").view(np.uint8).reshape(count, 4)
    return uids


CARD_SLOTS = 16
NO_CARD = 0xFFFF
CARD_CLOSED = 0x8000

FLAG_GONE = 1  # removed: the index is free for a node of this name or another
FLAG_UNSCHEDULABLE = 2  # cordoned: keeps its pods, gets no others
FLAG_SHRUNK = 4  # requested > allocatable because the node changed, and not because of overcommitment
# Cordoned by the ledger itself, for a time (docs/adr/0022-conflicts.md).
FLAG_QUARANTINED = 8
FLAGS_CLOSED = FLAG_UNSCHEDULABLE | FLAG_QUARANTINED

CARDS = np.dtype(("<u2", (CARD_SLOTS,)))


@cache
def account_dtype(resources: int) -> np.dtype[Any]:
    """Structured dtype of an account of `resources` resources, 24 + 16 x resources bytes."""
    return np.dtype(
        [
            ("seq", "<u8"),
            ("born", "<u8"),
            ("flags", "<u4"),
            ("described", "<u4"),
            ("amounts", "<i8", (resources, 2)),  # [:, 0] allocatable, [:, 1] requested
        ]
    )


# Nodes of a ledger, also those that were: a thousand times Kubernetes' largest clusters.
MAX_NODES = 5_000_000
# Nodes that a proposal names for a pod: the choice and its alternates.
MAX_CANDIDATES = 16
# Names of resources that a ledger may have. Ten times what any cluster offers.
MAX_RESOURCES = 1024


def decode_accounts(
    data: bytes, resources: int, *, name: str = "accounts.records", most: int = MAX_RESOURCES
) -> NDArray[Any]:
    """View `data` as accounts of so many resources. Raises ColumnError, also for more resources than
    `most`."""
    if resources > most:
        raise ColumnError(f"{resources} resources where there are {most}", where=name)
    return decode(data, account_dtype(resources), name=name)


def digest(
    indexes: NDArray[Any], accounts: NDArray[Any], card_indexes: NDArray[Any], cards: NDArray[Any]
) -> int:
    """A 64-bit digest of a shard's state. The order of rows and the schema's length do not change it.

    Covers, by ascending index, every node that is not gone: index, unschedulable flag, and all amounts up to
    the last resource with a non-zero amount on any node. Then every card record of those nodes. `accounts`
    has dtype account_dtype(R), shape (m,); `cards` is (k, 16) u16."""
    alive = (accounts["flags"] & FLAG_GONE) == 0
    indexes, accounts = indexes[alive], accounts[alive]
    order = np.argsort(indexes, kind="stable")
    amounts = accounts["amounts"][order]
    used = np.flatnonzero(amounts.any(axis=(0, 2))) if len(amounts) else np.empty(0, np.int64)
    amounts = amounts[:, : used[-1] + 1 if len(used) else 0]
    state = hashlib.blake2b(digest_size=8)
    state.update(np.ascontiguousarray(indexes[order], "<u4").tobytes())
    state.update(np.ascontiguousarray(accounts["flags"][order] & FLAG_UNSCHEDULABLE, "<u4").tobytes())
    state.update(np.ascontiguousarray(amounts, "<i8").tobytes())
    kept = np.isin(card_indexes, indexes)
    card_indexes, cards = card_indexes[kept], cards[kept]
    order = np.argsort(card_indexes, kind="stable")
    state.update(np.ascontiguousarray(card_indexes[order], "<u4").tobytes())
    state.update(np.ascontiguousarray(cards[order], "<u2").tobytes())
    return int.from_bytes(state.digest(), "little")
