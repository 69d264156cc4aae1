"""The pods that a watcher knows, so that after a break it gets only what has changed since."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U32, U8, U16, U32, decode, decode_uids, encode
from hoss.wire.uids import UID_BYTES

# Up to this number of rows, batches are not indexed. Most watchers never need the index.
COMPACT_ROWS = 200_000

Keys = NDArray[np.bytes_]  # (n,) UIDs as 16-byte strings; strings of equal length compare like UIDs


class KnownPods:
    """The latest phase and node of every pod in the batches that the caller was given. Deleted pods are
    dropped when the batches are compacted. The index of a removed node may belong to another node later, so a
    node counts as the same only if it has the name that the caller was given last."""

    def __init__(self) -> None:
        self._keys: Keys = _keys(b"")
        self._phases = np.empty(0, np.uint8)
        self._nodes = np.empty(0, np.uint32)
        self._recent: list[pb.WatchBatch] = []
        self._recent_rows = 0
        self._names: dict[int, str] = {}  # of nodes, by index

    def note(self, batch: pb.WatchBatch) -> None:
        """The caller gets this batch."""
        self._recent.append(batch)
        self._names.update((node.index, node.name) for node in batch.node_names)
        self._recent_rows += len(batch.uids) // UID_BYTES
        if self._recent_rows > max(COMPACT_ROWS, 2 * len(self._keys)):
            self._compact()

    def differences(self, states: Iterable[pb.WatchBatch]) -> Iterator[pb.WatchBatch]:
        """The unknown or changed pods of a list of all live pods; then the known pods that are not listed, as
        DELETED. All have the list's revision."""
        self._compact()
        listed: list[Keys] = [_keys(b"")]
        revision, names, renamed = 0, dict(self._names), np.empty(0, np.uint32)
        for batch in states:
            revision = batch.revision
            now = {node.index: node.name for node in batch.node_names}
            other = [index for index, name in now.items() if names.get(index) != name]
            renamed = np.union1d(renamed, np.array(other, np.uint32))
            keys = _keys(batch.uids)
            listed.append(keys)
            rows = len(keys)
            phases = decode(batch.phases, U8, name="phases", rows=rows)
            nodes = decode(batch.nodes, U32, name="nodes", rows=rows)
            at = np.minimum(np.searchsorted(self._keys, keys), max(0, len(self._keys) - 1))
            same = np.zeros(rows, np.bool_)
            if len(self._keys):
                same = (self._keys[at] == keys) & (self._phases[at] == phases) & (self._nodes[at] == nodes)
                same &= ~np.isin(nodes, renamed)
            if not same.any() and rows:
                yield batch
            elif not same.all():
                yield _part(batch, ~same)
        gone = self._keys[~np.isin(self._keys, np.concatenate(listed))]
        if len(gone):
            yield pb.WatchBatch(
                revision=revision,
                uids=gone.tobytes(),
                phases=bytes([pb.DELETED]) * len(gone),
                nodes=encode(np.full(len(gone), NONE_U32, np.uint32), U32),
            )

    def _compact(self) -> None:
        keys = np.concatenate([self._keys, *(_keys(batch.uids) for batch in self._recent)])
        phases = np.concatenate([self._phases, *(decode(b.phases, U8, name="phases") for b in self._recent)])
        nodes = np.concatenate([self._nodes, *(decode(b.nodes, U32, name="nodes") for b in self._recent)])
        # The last row of a pod counts. `unique` takes the first one, so the columns are reversed.
        kept, last = np.unique(keys[::-1], return_index=True)
        last = len(keys) - 1 - last
        alive = phases[last] != pb.DELETED
        self._keys, self._phases, self._nodes = kept[alive], phases[last][alive], nodes[last][alive]
        self._recent, self._recent_rows = [], 0


def _part(batch: pb.WatchBatch, rows: NDArray[np.bool_]) -> pb.WatchBatch:
    """The batch reduced to these rows."""
    count = len(rows)
    part = pb.WatchBatch(
        revision=batch.revision,
        uids=decode_uids(batch.uids)[rows].tobytes(),
        phases=encode(decode(batch.phases, U8, name="phases", rows=count)[rows], U8),
        nodes=encode(decode(batch.nodes, U32, name="nodes", rows=count)[rows], U32),
        reason_texts=batch.reason_texts,
        node_names=batch.node_names,
    )
    if batch.reasons:
        part.reasons = encode(decode(batch.reasons, U16, name="reasons", rows=count)[rows], U16)
    return part


def _keys(uids: bytes) -> Keys:
    return np.ascontiguousarray(decode_uids(uids)).view(f"S{UID_BYTES}").ravel()
