"""The ledger's packed record of one node, as stored in Redis, sent in feeds and applied by caches.

An *account* of R resources is, little-endian: u64 seq (the shard's sequence number when it last changed), u64 born
(when this node took its index), u32 flags, u32 described (the low half of the seq at which its spec last changed), and R
pairs of i64 (allocatable, requested). Allocatable and requested stand in pairs so that a new resource only appends. Cards, where a node has any, are a
record of their own: 16 u16, thousandths used, 0xFFFF where there is no such card. A card that its node has no more while
pods still hold it counts CARD_CLOSED and what they hold: it never fits again, and becomes 0xFFFF when the last has left.
"""

import hashlib
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

CARD_SLOTS = 16
NO_CARD = 0xFFFF
CARD_CLOSED = 0x8000

FLAG_GONE = 1  # removed; the index waits for its name or another
FLAG_UNSCHEDULABLE = 2  # cordoned: holds what it has, gets nothing more
FLAG_SHRUNK = 4  # has less than is requested on it because it changed, and not because it was overcommitted

FLAG_QUARANTINED = 8  # as if it were cordoned, by the ledger itself and for a time (docs/adr/0022-conflicts.md)
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


def digest(indexes: NDArray[Any], accounts: NDArray[Any], card_indexes: NDArray[Any], cards: NDArray[Any]) -> int:
    """A 64-bit digest of a shard's state, equal for equal state whatever the order and the schema's length.

    Covers, by ascending index, every node that is not gone: index, unschedulable flag and all amounts up to the last resource
    with a non-zero amount anywhere; then every card record of those nodes.
    `accounts` has dtype account_dtype(R), shape (m,); `cards` is (k, 16) u16.
    """
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
