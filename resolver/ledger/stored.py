"""Reads what the ledger's hashes and feed entries contain: accounts, reservations, ports, group runs and
evictions.

Accounts and reservations end with bytes for Lua's string hash; see lua/prelude.lua."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.errors import LedgerUnavailable
from hoss.wire.columns import CARDS, FLAG_GONE, FLAG_QUARANTINED, U32, U64, Uids, account_dtype
from hoss.wire.uids import UID_BYTES
from resolver.core.commits import commit_seqs
from resolver.core.quarantine import QuarantineRecord
from resolver.core.values import CLAIM_BYTES, AccountRows, Eviction, GroupRun, PortHold, reservation_dtype

SPREAD_BYTES = 7
MOST_AHEAD_MS = 2000  # as in lua/leases.lua
NONCES_KEPT, NONCE_BYTES = 1024, 12  # as in lua/prelude.lua
_VERSION_BYTES = 24  # of a domain version, for each shard
_QUARANTINE_TIMES = np.dtype([("since", "<i8"), ("until", "<i8")])


@contextmanager
def damage_named(shard: int) -> Iterator[None]:
    """What cannot be read, for it was damaged or written by something else, raises LedgerUnavailable."""
    try:
        yield
    except (IndexError, KeyError, ValueError) as exc:
        raise LedgerUnavailable(
            f"shard {shard} of the ledger has a record that cannot be read ({exc}): it was damaged, or"
            " something else has written it; load a dump with `hoss ledger restore FILE --force`"
        ) from exc


def spread(node: int) -> bytes:
    """The last bytes of a node's record in Redis."""
    index = node_field(node)
    return index[1:2] * (SPREAD_BYTES - 1) + index[:1]


def account_rows(
    resources: Any, indexes: bytes, records: bytes, card_indexes: bytes, cards: bytes
) -> AccountRows:
    """Accounts as a script joined them, without their spread."""
    width = account_dtype(int(resources)).itemsize
    if records:
        records = np.frombuffer(records, np.uint8).reshape(-1, width + SPREAD_BYTES)[:, :width].tobytes()
    return AccountRows(int(resources), indexes, records, card_indexes, cards)


def joined_accounts(accounts: dict[bytes, bytes], cards: dict[bytes, bytes]) -> AccountRows:
    """Accounts and cards of whole hashes, by ascending index. Shorter records are padded with zeros."""
    indexes = sorted(accounts, key=number)
    width = max(
        (len(record) for record in accounts.values()), default=SPREAD_BYTES + account_dtype(0).itemsize
    )
    width -= SPREAD_BYTES
    records = b"".join(accounts[index][:-SPREAD_BYTES].ljust(width, b"\0") for index in indexes)
    card_indexes = sorted((index for index in cards if index in accounts), key=number)
    return AccountRows(
        (width - account_dtype(0).itemsize) // 16,
        b"".join(indexes),
        records,
        b"".join(card_indexes),
        b"".join(cards[index] for index in card_indexes),
    )


def _odd(of_nodes: dict[bytes, bytes], is_wrong: Callable[[int], bool]) -> dict[bytes, bytes]:
    """The records of a wrong length, and those under a name that is no node's index."""
    wrong = set(filter(is_wrong, set(map(len, of_nodes.values()))))
    if not wrong and set(map(len, of_nodes)) <= {U32.itemsize}:
        return {}
    return {
        index: record
        for index, record in of_nodes.items()
        if len(record) in wrong or len(index) != U32.itemsize
    }


class ReadableNodes(NamedTuple):
    """Accounts and cards of a shard's nodes, as stored, without those that are damaged."""

    accounts: dict[bytes, bytes]
    cards: dict[bytes, bytes]
    damaged_accounts: dict[bytes, bytes]  # b"" for one that is missing though its node has a spec
    damaged_cards: dict[bytes, bytes]


def readable_nodes(
    accounts: dict[bytes, bytes], cards: dict[bytes, bytes], specs: Mapping[bytes, Any]
) -> ReadableNodes:
    """Tells apart what can be read and what cannot. A node whose account is damaged is there all the same,
    for its pods run: it has a blank account, with which it offers nothing, as the scripts give it nothing."""
    least = account_dtype(0).itemsize + SPREAD_BYTES
    step = account_dtype(1).itemsize - account_dtype(0).itemsize
    odd = _odd(accounts, lambda length: length < least or (length - least) % step > 0)
    lost = (index for index in specs.keys() - accounts.keys() if len(index) == U32.itemsize)
    odd |= dict.fromkeys(lost, b"")
    odd_cards = _odd(cards, lambda length: length != CARDS.itemsize)
    if odd:
        blank = np.zeros(1, account_dtype(0))
        accounts = {index: record for index, record in accounts.items() if index not in odd}
        for index in odd:
            if len(index) == U32.itemsize:
                blank["flags"] = FLAG_QUARANTINED if index in specs else FLAG_GONE
                accounts[index] = blank.tobytes() + spread(number(index))
    if odd_cards:
        cards = {index: record for index, record in cards.items() if index not in odd_cards}
    return ReadableNodes(accounts, cards, odd, odd_cards)


def node_field(node: int) -> bytes:
    """A node's index as a field of a hash."""
    return node.to_bytes(4, "little")


def number(field: bytes) -> int:
    """The node index, or group key, that a field is."""
    return int.from_bytes(field, "little")


def milliseconds(seconds: int, micros: int) -> int:
    """The server's clock, as it answers to TIME."""
    return int(seconds) * 1000 + int(micros) // 1000


def behind_clock_ms(lease_time: bytes | None, lease_seen: bytes | None, seconds: int, micros: int) -> int:
    """How far lease time is behind the server's clock (see lua/leases.lua)."""
    clock_ms = milliseconds(seconds, micros)
    if lease_time is None or lease_seen is None:
        return 0
    return clock_ms - int(lease_time) - max(0, min(clock_ms - int(lease_seen), MOST_AHEAD_MS))


def nonce_range(seq: int) -> tuple[int, int]:
    """First and last byte of the nonce of the change with this seq, if it is among the last NONCES_KEPT."""
    first = seq % NONCES_KEPT * NONCE_BYTES
    return first, first + NONCE_BYTES - 1


def unreadable(pairs: dict[bytes, bytes]) -> list[bytes]:
    """The fields of a part of the reservations hash that are no reservations: they were damaged, or something
    else has written them (lua/reservation.lua has the same rule)."""
    least = reservation_dtype(0, spread_bytes=SPREAD_BYTES).itemsize
    wrong = {length for length in set(map(len, pairs.values())) if length < least or (length - least) % 8}
    if not wrong and set(map(len, pairs)) <= {UID_BYTES}:
        return []
    return [uid for uid, record in pairs.items() if len(uid) != UID_BYTES or len(record) in wrong]


def read_reservations(pairs: dict[bytes, bytes], resources: int) -> tuple[Uids, NDArray[Any]]:
    """UIDs and records (reservation_dtype) of a part of the reservations hash, in which all are readable. Of
    `resources` resources, or of more if a record has more."""
    least = reservation_dtype(0, spread_bytes=SPREAD_BYTES).itemsize
    widths = set(map(len, pairs.values()))
    resources = max(resources, (max(widths, default=0) - least) // 8)
    dtype = reservation_dtype(resources, spread_bytes=SPREAD_BYTES)
    width = dtype.itemsize
    if widths == {width}:
        records = b"".join(pairs.values())  # in a tenth of the time
    else:
        records = b"".join(
            record if len(record) == width else record[:-SPREAD_BYTES].ljust(width, b"\0")
            for record in pairs.values()
        )
    uids: Uids = np.frombuffer(b"".join(pairs), np.uint8).reshape(-1, UID_BYTES)
    return uids, np.frombuffer(records, dtype)


def unreadable_versions(versions: Mapping[bytes, bytes], shards: int) -> dict[bytes, bytes]:
    """Those of these domain versions that were damaged (lua/domain_versions.lua has the same rule)."""
    return {field: record for field, record in versions.items() if len(record) != _VERSION_BYTES * shards}


def pod_counts(counts: Mapping[bytes, bytes]) -> tuple[dict[bytes, int], dict[bytes, bytes]]:
    """Numbers of pods by field, and the records that are none."""
    read = {field: int(count) for field, count in counts.items() if commit_seqs([count])}
    return read, {field: count for field, count in counts.items() if field not in read}


def unreadable_lists(
    lists: Mapping[bytes, bytes], uids: Uids, seqs: NDArray[np.uint64]
) -> dict[bytes, bytes]:
    """The damaged ones of these lists of commits' pods, by field. A damaged list has no UIDs, or no whole
    ones, or lacks a pod that the commit has reserved. `uids` and `seqs`: each reservation's pod and
    commit."""
    listed = {
        int(field): {packed[at : at + UID_BYTES] for at in range(0, len(packed), UID_BYTES)}
        for field, packed in lists.items()
        if commit_seqs([field]) and packed and len(packed) % UID_BYTES == 0
    }
    held = np.flatnonzero(np.isin(seqs, np.array(list(listed), np.uint64))).tolist()
    lacking = {int(seqs[row]) for row in held if uids[row].tobytes() not in listed[int(seqs[row])]}
    readable = {b"%d" % seq for seq in listed.keys() - lacking}
    return {field: packed for field, packed in lists.items() if field not in readable}


def version_record(seqs: Sequence[int]) -> bytes:
    """A domain version by which nobody knows its pods who has not seen these seqs, by shard. No worker has
    the epoch 0."""
    return np.array([(seq, 0, seq) for seq in seqs], U64).tobytes()


def read_source(record: bytes) -> tuple[int, int]:
    """Node and commit of a move's source."""
    return int.from_bytes(record[:4], "little"), int.from_bytes(record[4:], "little")


def read_quarantine(records: Mapping[bytes, bytes]) -> dict[int, QuarantineRecord]:
    """Nodes in quarantine. A damaged record is left out: it ends at the next look."""
    found = {}
    for field, record in records.items():
        if len(record) >= _QUARANTINE_TIMES.itemsize:
            since, until = np.frombuffer(record, _QUARANTINE_TIMES, 1)[0].tolist()
            reason = record[_QUARANTINE_TIMES.itemsize :].decode(errors="replace")
            found[number(field)] = QuarantineRecord(reason, since, until)
    return found


def read_share(record: bytes) -> tuple[bytes, tuple[int, ...]]:
    """Of a terminating pod: its preemptor, and what that has taken, in schema order."""
    amounts = np.frombuffer(record, np.dtype("<i8"), offset=UID_BYTES)
    return record[:UID_BYTES], tuple(amounts.tolist())


def read_runs(packed_runs: bytes) -> tuple[GroupRun, ...]:
    """Runs of a feed entry: `<i32 sign, u32 length of the definition, u32 pods>`, the definition, and a u32
    for each pod."""
    runs, at = [], 0
    while at < len(packed_runs):
        sign, length, pods = np.frombuffer(packed_runs, "<i4", 3, at).tolist()
        end = at + 12 + length + 4 * pods
        runs.append(
            GroupRun(packed_runs[at + 12 : end - 4 * pods], packed_runs[end - 4 * pods : end], gone=sign < 0)
        )
        at = end
    return tuple(runs)


def runs_of_reservations(records: NDArray[Any], definitions: dict[int, bytes]) -> tuple[GroupRun, ...]:
    """Where the pods of each group are. `records` has the fields node and group."""
    records = records[records["group"] != 0]
    order = np.argsort(records["group"], kind="stable")
    keys, starts = np.unique(records["group"][order], return_index=True)
    parts = np.split(records["node"][order], starts[1:])
    return tuple(
        GroupRun(definitions.get(key, b""), nodes.tobytes())
        for key, nodes in zip(keys.tolist(), parts, strict=False)
    )


def read_evictions(packed_evictions: bytes) -> tuple[Eviction, ...]:
    """Evictions of a feed entry: the new pod's UID, `<u32 node, u32 victims>`, and the victims' UIDs."""
    evictions, at = [], 0
    while at < len(packed_evictions):
        uid = packed_evictions[at : at + UID_BYTES]
        node, victims = np.frombuffer(packed_evictions, U32, 2, at + UID_BYTES).tolist()
        first = at + UID_BYTES + 8
        at = first + UID_BYTES * victims
        evictions.append(Eviction(uid, node, packed_evictions[first:at]))
    return tuple(evictions)


def read_ports(record: bytes) -> list[PortHold]:
    """The ports that pods hold on one node; without a last one that was cut off, which a repair brings
    back."""
    width = UID_BYTES + CLAIM_BYTES
    return [
        (record[at : at + UID_BYTES], record[at + UID_BYTES : at + width])
        for at in range(0, len(record) - width + 1, width)
    ]
