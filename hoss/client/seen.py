"""What a watcher has been told of each pod, so that after a break it can be told what is different now and nothing else."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U32, U8, U16, U32, UID_BYTES, decode, decode_uids, encode

# Batches are kept as they came until there are so many rows: what most watchers never need costs them nothing.
COMPACT_ROWS = 200_000

Keys = NDArray[np.bytes_]  # (n,) UIDs as 16-byte strings; right to compare, as all are equally long


class Seen:
    """The latest phase and node of every pod in the batches that were noted. Deleted pods are forgotten in time."""

    def __init__(self) -> None:
        self._keys: Keys = _keys(b"")
        self._phases = np.empty(0, np.uint8)
        self._nodes = np.empty(0, np.uint32)
        self._recent: list[pb.WatchBatch] = []
        self._recent_rows = 0

    def note(self, batch: pb.WatchBatch) -> None:
        """The caller was given this batch."""
        self._recent.append(batch)
        self._recent_rows += len(batch.uids) // UID_BYTES
        if self._recent_rows > max(COMPACT_ROWS, 2 * len(self._keys)):
            self._compact()

    def differences(self, states: Iterable[pb.WatchBatch]) -> Iterator[pb.WatchBatch]:
        """Of a list of all live pods, what was not known; then pods that were known and are not listed, as DELETED. All under
        the list's revision."""
        self._compact()
        listed: list[Keys] = [_keys(b"")]
        revision = 0
        for batch in states:
            revision = batch.revision
            keys = _keys(batch.uids)
            listed.append(keys)
            rows = len(keys)
            phases = decode(batch.phases, U8, name="phases", rows=rows)
            nodes = decode(batch.nodes, U32, name="nodes", rows=rows)
            at = np.minimum(np.searchsorted(self._keys, keys), max(0, len(self._keys) - 1))
            same = np.zeros(rows, np.bool_)
            if len(self._keys):
                same = (self._keys[at] == keys) & (self._phases[at] == phases) & (self._nodes[at] == nodes)
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
        # The last word about a pod stands: unique takes the first, so everything is turned round.
        kept, last = np.unique(keys[::-1], return_index=True)
        last = len(keys) - 1 - last
        alive = phases[last] != pb.DELETED
        self._keys, self._phases, self._nodes = kept[alive], phases[last][alive], nodes[last][alive]
        self._recent, self._recent_rows = [], 0


def _part(batch: pb.WatchBatch, rows: NDArray[np.bool_]) -> pb.WatchBatch:
    """A batch with these rows only."""
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
