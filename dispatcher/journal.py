"""What the dispatcher must not forget: accepted submissions, deletions, removed gates, attempts and faults of pods, cluster
objects, its policy, and the names of its workers.

The dispatcher owns this port. One record per submission, whatever its size; deletions are one bitmap a pod set. Bound pods
are not recorded here: their reservations are in the ledger.
"""

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hoss.wire.columns import Uids

_SMALL_BYTES = 512

GateRemovals = Mapping[str, NDArray[np.bool_]]  # gate -> which ordinals lost it


@dataclass(frozen=True, slots=True)
class Record:
    """An accepted SubmitRequest, serialised, its request_id included."""

    key: bytes  # 12 bytes, from the request id
    submitted_ms: int
    message: bytes


@dataclass(frozen=True, slots=True, eq=False)
class FaultRecord:
    """A fault (see dispatcher.core.faults) with the pods it concerns."""

    number: int
    at_ms: int
    worker: str
    text: str
    final: bool
    uids: Uids  # (n, 16)


@dataclass(frozen=True, slots=True)
class Recovered:
    """Everything in the journal: records in the order they were accepted, deletion bitmaps by the set's UID prefix."""

    records: list[Record] = field(default_factory=list)
    deletions: dict[bytes, NDArray[np.bool_]] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)
    ungated: dict[bytes, GateRemovals] = field(default_factory=dict)  # by the set's UID prefix
    attempts: dict[bytes, NDArray[np.uint16]] = field(default_factory=dict)  # of each pod, by the set's UID prefix
    faults: list[FaultRecord] = field(default_factory=list)  # by number
    objects: dict[str, bytes] = field(default_factory=dict)  # by key: ClusterObject messages


@dataclass(frozen=True, slots=True)
class KeptPolicy:
    """A policy that was put in force. `source` is as in hoss.v1.Policy; `file_digest` tells the content that the policy file had
    then, whether or not it was this policy; empty: there was no file."""

    version: int
    yaml: str
    source: str
    since_ms: int
    file_digest: str


class Journal(Protocol):
    """Every method raises LedgerUnavailable when it cannot tell that the change is durable; repeating it is harmless."""

    async def record(self, record: Record) -> None:
        """Returns once the record is durable. When it raises, the record is not there, or will be withdrawn."""
        ...

    async def delete(self, deleted: Mapping[bytes, NDArray[np.bool_]]) -> None:
        """Replace the bitmaps of these sets: by UID prefix, which ordinals are deleted."""
        ...

    async def ungate(self, removed: Mapping[bytes, GateRemovals]) -> None:
        """Replace what was removed of the gates of these sets, by UID prefix."""
        ...

    async def note_attempts(self, attempts: Mapping[bytes, NDArray[np.uint16]]) -> None:
        """Replace the counts of attempts of these sets, by UID prefix."""
        ...

    async def note_faults(self, changed: Sequence[FaultRecord], dropped: Collection[int]) -> None:
        """Replace these faults, and forget those with the numbers in `dropped`."""
        ...

    async def drop(self, key: bytes, prefixes: list[bytes]) -> None:
        """Forget a submission, and the bitmaps and attempts of its sets."""
        ...

    async def remember_worker(self, name: str) -> None:
        """Note that a worker of this name may hold pods: after a restart it is fenced before anything else."""
        ...

    async def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Keep these cluster objects, by key, all or none; each replaces what had its key."""
        ...

    async def drop_objects(self, keys: Collection[str]) -> None:
        """Forget the cluster objects of these keys."""
        ...

    async def keep_policy(self, policy: KeptPolicy) -> None:
        """Replace the policy that is kept."""
        ...

    async def kept_policy(self) -> KeptPolicy | None:
        """The policy kept last; None if none ever was."""
        ...

    async def recover(self) -> Recovered:
        """Read everything but the policy."""
        ...

    async def rewrite(self) -> None:
        """Write again all that was read or acknowledged, whatever its kind: the store may have lost it, or a part of it."""
        ...

    async def close(self) -> None:
        """End connections; what was acknowledged stays."""
        ...


class MemoryJournal:
    """A journal for tests and simulations: survives the dispatcher object, not the process."""

    def __init__(self) -> None:
        self._records: dict[bytes, Record] = {}
        self._deletions: dict[bytes, NDArray[np.bool_]] = {}
        self._workers: set[str] = set()
        self._ungated: dict[bytes, GateRemovals] = {}
        self._attempts: dict[bytes, NDArray[np.uint16]] = {}
        self._faults: dict[int, FaultRecord] = {}
        self._objects: dict[str, bytes] = {}
        self._policy: KeptPolicy | None = None

    async def record(self, record: Record) -> None:
        self._records.setdefault(record.key, record)

    async def delete(self, deleted: Mapping[bytes, NDArray[np.bool_]]) -> None:
        self._deletions.update({prefix: bitmap.copy() for prefix, bitmap in deleted.items()})

    async def ungate(self, removed: Mapping[bytes, GateRemovals]) -> None:
        self._ungated.update(
            {prefix: {g: bits.copy() for g, bits in gates.items()} for prefix, gates in removed.items()}
        )

    async def note_attempts(self, attempts: Mapping[bytes, NDArray[np.uint16]]) -> None:
        self._attempts.update({prefix: column.copy() for prefix, column in attempts.items()})

    async def note_faults(self, changed: Sequence[FaultRecord], dropped: Collection[int]) -> None:
        self._faults.update({record.number: record for record in changed})
        for number in dropped:
            self._faults.pop(number, None)

    async def drop(self, key: bytes, prefixes: list[bytes]) -> None:
        self._records.pop(key, None)
        for prefix in prefixes:
            self._attempts.pop(prefix, None)
            self._deletions.pop(prefix, None)
            self._ungated.pop(prefix, None)

    async def remember_worker(self, name: str) -> None:
        self._workers.add(name)

    async def put_objects(self, objects: Mapping[str, bytes]) -> None:
        self._objects.update(objects)

    async def drop_objects(self, keys: Collection[str]) -> None:
        for key in keys:
            self._objects.pop(key, None)

    async def keep_policy(self, policy: KeptPolicy) -> None:
        self._policy = policy

    async def kept_policy(self) -> KeptPolicy | None:
        return self._policy

    async def recover(self) -> Recovered:
        return Recovered(
            list(self._records.values()),
            dict(self._deletions),
            set(self._workers),
            dict(self._ungated),
            dict(self._attempts),
            sorted(self._faults.values(), key=lambda record: record.number),
            dict(self._objects),
        )

    async def rewrite(self) -> None:
        """Nothing is lost while the process lives."""

    async def close(self) -> None:
        """Nothing is open."""


def squeeze(data: bytes) -> bytes:
    """Compress, unless it is too small to be worth it; a first byte tells which."""
    return b"\0" + data if len(data) < _SMALL_BYTES else b"\1" + zlib.compress(data, 1)


def unsqueeze(data: bytes) -> bytes:
    """Undo `squeeze`."""
    return zlib.decompress(data[1:]) if data[:1] == b"\1" else data[1:]
