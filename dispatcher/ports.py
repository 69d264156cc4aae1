"""The dispatcher's two stores as ports: the journal (dispatcher.journal) and the ledger
(dispatcher.ledger.client).

The journal keeps what must survive a restart: accepted submissions, deletions, removed gates, attempts and
faults of pods, cluster objects, the policy, the last run of moves, and the names of workers. It has one
record per submission, whatever its size, and one bitmap of deletions per pod set. It does not record bound
pods: the ledger has their reservations."""

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.messages import Commits
from dispatcher.core.moves import BegunRun, RunProgress
from hoss.v1 import resolver_pb2
from hoss.wire.columns import Uids

GateRemovals = Mapping[str, NDArray[np.bool_]]  # gate -> which ordinals lost it


@dataclass(frozen=True, slots=True)
class Record:
    """An accepted SubmitRequest, serialised with its request_id."""

    key: bytes  # 12 bytes, from the request id
    submitted_ms: int
    message: bytes
    # UID prefixes of its sets; not kept, because they follow from the request id.
    prefixes: tuple[bytes, ...] = field(default=(), compare=False)
    order: int = field(default=0, compare=False)  # given by the journal when it accepts the record


@dataclass(frozen=True, slots=True, eq=False)
class FaultRecord:
    """A fault (dispatcher.core.pods.faults) and its pods."""

    number: int
    at_ms: int
    worker: str
    text: str
    final: bool
    uids: Uids  # (n, 16)


@dataclass(frozen=True, slots=True)
class Recovered:
    """Everything in the journal but the policy. Bytes as keys are UID prefixes of pod sets."""

    records: list[Record] = field(default_factory=list)  # in the order of acceptance
    deletions: dict[bytes, NDArray[np.bool_]] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)
    ungated: dict[bytes, GateRemovals] = field(default_factory=dict)
    attempts: dict[bytes, NDArray[np.uint16]] = field(default_factory=dict)
    faults: list[FaultRecord] = field(default_factory=list)  # by number
    objects: dict[str, bytes] = field(default_factory=dict)  # ClusterObject messages by key
    moves: tuple[BegunRun, RunProgress] | None = None  # the last run of moves
    gap: str = ""  # why the journal may be incomplete; "" if nothing is known of that
    last_write: tuple[int, int] = (0, 0)  # the last write of an earlier term: its term and number
    controller_paused: bool | None = None  # the rebalance controller; None: nobody ever said


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    """A policy that was put in force. `source` is that of hoss.v1.Policy. `file_digest` is that of the policy
    file's content at that time, whether or not the file held this policy; empty without a file."""

    version: int
    yaml: str
    source: str
    since_ms: int
    file_digest: str


class Journal(Protocol):
    """Methods raise OutcomeUnknown when the change may have been made or not, and LedgerUnavailable when it
    was not made. Repeating a call is harmless.

    A change of unknown outcome is undone before the next change, or by the next `check`. If the dispatcher
    ends before that, its successor may find it made."""

    async def record(self, record: Record) -> int:
        """Return the record's order once it is durable. It replaces an earlier record of the same key with
        all that the journal has of its sets."""

    async def delete(self, deleted: Mapping[bytes, NDArray[np.bool_]]) -> None:
        """Replace the bitmaps of deleted ordinals of these sets, by UID prefix."""

    async def ungate(self, removed: Mapping[bytes, GateRemovals]) -> None:
        """Replace the removed gates of these sets, by UID prefix."""

    async def save_attempts(self, attempts: Mapping[bytes, NDArray[np.uint16]]) -> None:
        """Replace the attempts of these sets' pods, by UID prefix."""

    async def save_faults(self, changed: Sequence[FaultRecord], dropped: Collection[int]) -> None:
        """Replace these faults, and delete those with the numbers in `dropped`."""

    async def drop(self, key: bytes, order: int, prefixes: list[bytes]) -> None:
        """Delete a submission, and the bitmaps and attempts of its sets. Nothing happens if the record of
        this key has another order: the request id was used again."""

    async def add_worker(self, name: str) -> None:
        """Record that a worker of this name may hold pods. A restarted dispatcher fences it first."""

    async def raise_term(self, least: int) -> None:
        """The next term is higher than this one, and this term ends."""

    async def drop_workers(self, names: Collection[str]) -> None:
        """Forget workers: each is fenced, and what it had in hand is known."""

    async def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Add or replace these cluster objects, by key: all or none."""

    async def drop_objects(self, keys: Collection[str]) -> None:
        """Delete the cluster objects of these keys."""

    async def save_policy(self, policy: SavedPolicy) -> None:
        """Replace the policy."""

    async def save_moves(self, begun: BegunRun, progress: RunProgress) -> None:
        """Replace the last run of moves."""

    async def save_progress(self, progress: RunProgress) -> None:
        """Replace how far that run is."""

    async def save_controller_pause(self, paused: bool) -> None:
        """Replace whether people have paused the rebalance controller."""

    async def saved_policy(self) -> SavedPolicy | None:
        """The policy saved last; None if there never was one."""

    async def recover(self) -> Recovered:
        """Read everything but the policy."""

    async def check(self) -> bool:
        """Compare the store with what was read and acknowledged, and write everything again if the store has
        lost a part of it. Returns whether this was necessary since the last check. Called now and then."""

    async def rewrite(self) -> None:
        """Write everything again that was read or acknowledged: the store may have lost all or a part of
        it."""

    async def close(self) -> None:
        """Close connections."""


class PodLocations(NamedTuple):
    """Where pods hold reservations: `nodes` in the order of the UIDs, NONE_U32 for nowhere; their commits;
    and which of the pods were evicted and are on their nodes until they have ended. `seqs`: of the
    reservations, each on the shard of its node."""

    nodes: NDArray[np.uint32]
    commits: Commits  # without those of pods that are being prepared
    terminating: NDArray[np.bool_]  # (n,)
    pre_binding: NDArray[np.bool_]  # (n,): not confirmed, and plugins of the worker prepare the pod
    seqs: NDArray[np.uint64]  # (n,)


class ReservationColumns(NamedTuple):
    """A part of the reservations; every column is (n,) unless it says otherwise."""

    uids: Uids  # (n, 16)
    nodes: NDArray[np.uint32]
    shards: NDArray[np.uint32]
    seqs: NDArray[np.uint64]  # of the commit, on its shard
    assumed: NDArray[np.bool_]  # not confirmed
    epochs: NDArray[np.uint64]  # of the worker that made it
    terminating: NDArray[np.bool_]  # evicted, and on their nodes until they have ended
    pre_binding: NDArray[np.bool_]  # assumed, and plugins of the worker prepare the pod
    # What each holds (dispatcher.ledger.contents); 0: nobody asked, or the resolver does not say.
    digests: NDArray[np.uint64]

    def of(self, chosen: NDArray[np.bool_]) -> "ReservationColumns":
        """Those of a mask, (n,)."""
        columns: Iterable[Any] = self
        return ReservationColumns(*(column[chosen] for column in columns))


class LedgerStatus(NamedTuple):
    """The ledger's epoch. If the ledger is lost, the recovery tombstone in its place, and `recovering`."""

    epoch: str
    recovering: bool
    shards: int


class Knowledge(NamedTuple):
    """How far somebody knows a ledger: its epoch, and the highest seq of each shard."""

    ledger_epoch: str
    seqs: Mapping[int, int]


class LedgerMarks(NamedTuple):
    """The highest term that has written to the ledger, and the newest write to the journal that the ledger
    was told of: its term, and its number there."""

    term: int
    journal: tuple[int, int]


class LedgerPort(Protocol):
    """Methods raise LedgerUnavailable or TransportError if the outcome is unknown. All may be repeated."""

    async def grant_epoch(self, worker: str) -> int:
        """A new epoch of this worker. Its earlier epochs are fenced on every shard."""

    async def lookup(self, uids: Uids) -> PodLocations:
        """Which of these pods hold reservations."""

    async def confirm(self, commits: Commits) -> int:
        """End the leases of commits. Returns how many of the commits were still pending."""

    async def release(self, uids: Uids, nodes: NDArray[np.uint32] | None, as_of: Knowledge) -> None:
        """Release reservations; those that do not exist are ignored. `as_of`: what `known` returned when it
        was decided. A newer reservation stays: the pod was placed again since. If the ledger was rebuilt
        since, from this dispatcher's own record, what is there is released."""

    async def move(self, request: resolver_pb2.MoveRequest) -> resolver_pb2.MoveReply:
        """Make a step of moves under this dispatcher's term, in the ledger that it knows."""

    def note(self, seqs: Mapping[int, int]) -> None:
        """The shards have been at these seqs."""

    def known(self) -> Knowledge:
        """How far this dispatcher knows the ledger."""

    def reservations(self, *, digests: bool = False) -> AsyncGenerator[ReservationColumns, None]:
        """All reservations, in parts. `digests`: with what each holds."""

    def granted_in_term(self, epochs: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of these worker epochs this dispatcher has granted. None, once the ledger was rebuilt."""

    async def dispatcher_marks(self) -> LedgerMarks:
        """What the ledger knows of earlier dispatchers."""

    async def shard_count(self) -> int:
        """The number of shards, which never changes. A node index i is on shard i modulo that."""


def commits_of(shards: NDArray[np.uint32], seqs: NDArray[np.uint64]) -> Commits:
    """The distinct commits among rows of (shard, seq)."""
    return {shard: np.unique(seqs[shards == shard]) for shard in np.unique(shards).tolist()}


def latest(commits: Commits) -> dict[int, int]:
    """The highest seq of each shard."""
    return {shard: int(seqs.max()) for shard, seqs in commits.items() if len(seqs)}


def merge_commits(parts: list[Commits]) -> dict[int, NDArray[np.uint64]]:
    """The commits of all parts: by shard, their seqs in ascending order, each once."""
    shards = {shard for part in parts for shard in part}
    return {s: np.unique(np.concatenate([part[s] for part in parts if s in part])) for s in shards}
