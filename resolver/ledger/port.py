"""The ledger as the resolver needs it. Redis keeps the real one; the model in resolver.core is another, for
tests.

Every operation is atomic on its shard and may be repeated: the second call finds the first one's work done.
All raise LedgerUnavailable if the ledger is away, or is not the one that was opened. Then all or nothing was
done."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hoss.errors import LedgerUnavailable
from hoss.wire.columns import Uids
from resolver.core.moves import Moves
from resolver.core.quarantine import QuarantineRecord
from resolver.core.rules import RuleQuery
from resolver.core.values import (
    ANYBODY,
    Decision,
    DispatcherMarks,
    FeedEntry,
    Group,
    LedgerNodeChange,
    Proposal,
    Removed,
    Reservations,
    ShardState,
    Snapshot,
    Upserted,
    Writer,
)


class LedgerLostError(LedgerUnavailable):
    """Redis answers, but does not have the ledger that was opened, or not all of it."""


@dataclass
class LedgerSummary:
    """What a status says of all shards, each as of one moment of its own."""

    nodes: int = 0
    reservations: int = 0
    marks: DispatcherMarks = field(default_factory=DispatcherMarks)  # the newest that a shard knows
    quarantined: dict[int, QuarantineRecord] = field(default_factory=dict)  # by node


class Ledger(Protocol):
    """Operations name their shard. docs/architecture.md says how nodes and pods are distributed over
    shards."""

    epoch: str
    shards: int
    leases_ended: list[int]  # by shard, the seq of the last change that a lease made by ending, as of `reap`
    # By shard, the commits whose leases `reap` found over and of which it found a record damaged: each once,
    # until whoever tells of them empties the list.
    damaged_commits: list[list[str]]
    unfinished_moves: list[int]  # by shard, how many moves `finish_moves` has to finish, as of `reap`

    async def commit(self, shard: int, proposals: Sequence[Proposal]) -> list[Decision]:
        """Decide the proposals one after the other, each on its own."""

    async def release(
        self, shard: int, uids: Uids, writer: Writer = ANYBODY, *, as_of: int | None = None
    ) -> int:
        """Release what the pods hold, if anything. `as_of`: the seq up to which the writer knew the shard; a
        newer reservation stays. Returns how many pods were released."""

    async def confirm(self, shard: int, seqs: NDArray[np.uint64], writer: Writer = ANYBODY) -> int:
        """End the lease of commits; a prepared one keeps its own. Returns how many were assumed."""

    async def validate(
        self, queries: Sequence[RuleQuery], *, epoch: int, seen: Sequence[int], may_refuse: int
    ) -> list[tuple[int, int] | None]:
        """Validate prepared pods of a worker's epoch, in the order in which the worker placed them. For each
        pod, the (shard, seq) of what the worker did not know. None: it knew everything, and the pod's
        placement is recorded. If more than `may_refuse` pods are refused, no placement is recorded. `seen`:
        by shard, the seq up to which the worker knew it."""

    async def register_rules(self, groups: Sequence[Group]) -> list[int]:
        """Register the rules that these groups bear. Returns for each shard the seq that a worker must have
        seen to know all of them; 0: any."""

    async def forget_rules(self, low_watermarks: Sequence[int]) -> int:
        """Forget what matters only to proposals older than these seqs, one per shard. From now on such
        proposals are refused if rules might concern their pods. Returns the number of forgotten rules."""

    async def commit_prepared(
        self, shard: int, uids: Uids, seqs: NDArray[np.uint64], writer: Writer, *, lease_ms: int = 0
    ) -> NDArray[np.uint64]:
        """Turn prepared pods into a commit, which the feed shows. `seqs`: the commit that reserved each pod.
        Returns the commit that each pod belongs to now; 0: none, or the writer is fenced. Commits that are
        not prepared get a new lease. `lease_ms`: how long it lasts; 0: as usual."""

    async def renew(
        self, shard: int, uids: Uids, seqs: NDArray[np.uint64], writer: Writer, *, lease_ms: int
    ) -> NDArray[np.bool_]:
        """Prolong the leases of these commits to at least `lease_ms` from now; a prepared one keeps its own.
        Returns which pods hold what that commit reserved and is more than prepared; none if the writer is
        fenced."""

    async def abort(self, shard: int, uids: Uids, seqs: NDArray[np.uint64], writer: Writer) -> int:
        """Release what those very commits reserved and nobody has confirmed, and nothing else. Returns the
        number of pods; 0 if the writer is fenced: then the dispatcher decides what becomes of them."""

    async def confirm_moves(self, shard: int, moves: Moves, writer: Writer) -> NDArray[np.uint8]:
        """End moves with targets on this shard: MoveResult of each. A target becomes the pod's reservation,
        and a source on this shard is released, in one step. `finish_moves` releases the others. A successor
        gets the target as its own reservation, and the source stays."""

    async def finish_moves(self, shard: int) -> int:
        """Release on other shards what pods held there before they were moved to this shard. Returns the
        number of pods. Anybody may do it, at any time: the shard has noted what is meant."""

    async def reservations_of(self, shard: int, uids: Uids) -> Reservations:
        """What these pods hold on the shard, in no particular order."""

    async def reap(self, shard: int) -> int:
        """Release what expired commits still hold. Returns the number of pods."""

    async def lookup(self, shard: int, uids: Uids) -> NDArray[Any]:
        """Fields node (NONE_U32: no reservation), seq, epoch and state (ReservationState) for each UID. What
        was prepared under a fenced epoch is aborted first."""

    async def nominated(self, shard: int, uids: Uids) -> NDArray[np.bool_]:
        """Which of these pods were reserved for room that evicted pods, which are terminating, still take."""

    async def definitions(self, shard: int, uids: Uids) -> list[bytes]:
        """The definition of each UID's group, as it was reserved; b"": no reservation, or no group."""

    async def grant(self, worker: str, writer: Writer = ANYBODY) -> int:
        """Grant the worker a new epoch, on every shard."""

    async def upsert_nodes(
        self,
        shard: int,
        nodes: Sequence[LedgerNodeChange],
        expected: bytes = b"",
        writer: Writer = ANYBODY,
    ) -> Upserted | None:
        """Each name at most once. A node whose resource version is older than the present one is not changed.
        `expected`: the current spec of the only node; None if it has another one."""

    async def remove_nodes(self, shard: int, names: Sequence[str], writer: Writer = ANYBODY) -> Removed:
        """Close the nodes, then release what they hold, and forget them."""

    async def damaged_versions(self, shard: int) -> dict[bytes, bytes]:
        """Domain versions that cannot be read, by field, as stored. Pods that rely on one are refused."""

    async def removals(self, shard: int) -> set[int]:
        """The nodes whose removal is not finished: somebody is at it, or it was broken off."""

    async def forget_removed(self, shard: int, nodes: Iterable[int]) -> int:
        """Finish the removals of those of these nodes that still are not. Returns how many nodes were
        forgotten: their indexes are free for new nodes."""

    async def node_indexes(self, shard: int, names: Sequence[str]) -> NDArray[np.uint32]:
        """The index of each node on this shard; NONE_U32: there is none. A name keeps its index while the
        node is there. The index of a removed node may belong to another one later: a proposal whose
        `snapshot_seq` is older than that node is refused."""

    async def schema(self, names: Sequence[str] = (), *, incomplete: bool = False) -> list[str]:
        """Resource names by index, after new names are appended. `incomplete`: also of a ledger that waits to
        be rebuilt."""

    async def seq(self, shard: int) -> int:
        """The seq of the shard's last change."""

    async def nonce_at(self, shard: int, seq: int) -> str:
        """The nonce of the change that had this seq; "": unknown."""

    async def snapshot(self, shard: int, *, groups: bool = False, incomplete: bool = False) -> Snapshot:
        """The shard's nodes at one moment. `groups`: also where the pods of each group are, which costs more.
        `incomplete`: also of a ledger that waits to be rebuilt."""

    async def node_names(self, shard: int) -> list[str]:
        """The names of the shard's nodes, in no order. A node that is being removed may be among them."""

    async def snapshot_of(self, shard: int, names: Sequence[str]) -> Snapshot:
        """Those of these nodes that exist, at one moment; without groups and prepared commits."""

    async def nodes_named(self, shard: int, names: Sequence[str]) -> dict[str, tuple[int, bytes]]:
        """Index and spec of the nodes that exist."""

    async def state(self, shard: int) -> ShardState:
        """The whole shard at one moment, also if it waits to be rebuilt. Nothing else runs in the ledger
        during the read."""

    def reservations(self, shard: int) -> AsyncIterator[Reservations]:
        """All reservations in parts, also while the ledger waits to be rebuilt. A concurrent change may be
        missing, and a reservation may come twice."""

    async def leases(self, shard: int, seqs: NDArray[np.uint64]) -> NDArray[np.int64]:
        """(n, 2): since when each commit's reservations are assumed, and when its lease ends, in Unix
        milliseconds by the ledger's clock. Zeros once the commit is confirmed."""

    async def workers_of(self, epochs: Sequence[int]) -> dict[int, str]:
        """The workers that got these epochs. The ledger remembers the last 10,000 epochs."""

    async def feed(self, shard: int, after: int, wait_ms: int) -> list[FeedEntry] | None:
        """Entries after `after`, up to a gap; waits up to `wait_ms` for the first. None: the gap is right
        there, because the window begins later or a repair skipped a number."""

    async def is_registered(self, shard: int, worker: str) -> bool:
        """Whether a worker of that name was ever granted an epoch."""

    async def assumed(self, shard: int, nodes: NDArray[np.uint32]) -> Reservations:
        """Unconfirmed reservations on these nodes; if there are very many, those of the latest commits."""

    async def summary(self) -> LedgerSummary:
        """Counts, marks and quarantined nodes, with one read of each shard."""

    async def table_sizes(self) -> dict[str, int]:
        """The number of entries by key, summed over shards, and the reservations of the fullest shard."""

    async def check(self) -> dict[str, str]:
        """Check that the ledger is there and the same. Returns facts about it (version, mode,
        persistence)."""


async def lookup_on_shards(ledger: Ledger, uids: Uids) -> list[NDArray[Any]]:
    """What `lookup` says of these pods, by shard: a script sees the reservations of its own shard only."""
    return await asyncio.gather(*(ledger.lookup(shard, uids) for shard in range(ledger.shards)))
