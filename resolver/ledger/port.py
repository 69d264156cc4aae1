"""What the resolver needs of a ledger. Redis keeps the real one; the model in resolver.core is another, for tests.

Every operation is atomic on its shard and may be repeated: a second time it finds done what the first one did. All
raise LedgerUnavailable when the ledger is away or is another than the one that was opened; then nothing, or all, was done.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hoss.errors import LedgerUnavailable
from hoss.wire.columns import Uids
from resolver.core.rules import Question
from resolver.core.values import (
    Decision,
    FeedEntry,
    Group,
    NodeChange,
    Proposal,
    Removed,
    Reservations,
    ShardState,
    Snapshot,
    Upserted,
)


class LedgerLost(LedgerUnavailable):
    """Redis answers, and what it has is not, or not whole, the ledger that was opened."""


class Ledger(Protocol):
    """Operations name their shard; nodes and pods lie on shards as docs/architecture.md says."""

    epoch: str
    shards: int

    def heard_of(self, shard: int, seq: int) -> None:
        """The shard stood at `seq`. Found below that later it has lost what it acknowledged, and is unavailable."""

    async def commit(self, shard: int, proposals: Sequence[Proposal]) -> list[Decision]:
        """Decide each proposal by itself, one after the other."""

    async def release(self, shard: int, uids: Uids) -> int:
        """Give back what the pods hold; those that hold nothing are passed over. Returns how many held something."""

    async def confirm(self, shard: int, seqs: NDArray[np.uint64]) -> int:
        """End the lease of commits. Returns how many were still pending."""

    async def judge(
        self, questions: Sequence[Question], *, epoch: int, seen: Sequence[int], spare: int
    ) -> list[tuple[int, int] | None]:
        """Of each pod that a worker of this epoch placed, in the order in which it did, the (shard, seq) of what it did not know
        then; None: nothing, and others have to know of its placement from now on. Where more than `spare` are refused,
        nobody has to. `seen`: the seq up to which the worker knew each shard."""

    async def announce(self, groups: Sequence[Group]) -> list[int]:
        """Register the rules that these groups bear where they are not registered. Returns for each shard what a worker must
        have seen of it for none of them to be new to it; 0: nothing."""

    async def forget_rules(self, floors: Sequence[int]) -> int:
        """Forget what only matters to proposals made in ignorance of the `floors`, a seq of each shard: from here on such
        proposals are refused, if rules might see their pods. Returns how many rules that were."""

    async def keep(self, shard: int, uids: Uids, seqs: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Make what was held a commit of now, of which the feed tells. Returns for each of the pods, beside the commit that
        reserved it in `seqs`, the commit it stands by now; 0: none. Commits that are no holds get a new lease."""

    async def withdraw(self, shard: int, uids: Uids, seqs: NDArray[np.uint64]) -> int:
        """As `release`, of what those very commits reserved and nothing else."""

    async def reap(self, shard: int) -> int:
        """Release what commits still hold whose lease is over. Returns the number of pods."""

    async def lookup(self, shard: int, uids: Uids) -> NDArray[Any]:
        """Fields node (NONE_U32: no reservation), seq, epoch for each UID."""

    async def grant(self, worker: str) -> int:
        """A new epoch, on every shard."""

    async def upsert_nodes(self, shard: int, nodes: Sequence[NodeChange], expected: bytes = b"") -> Upserted | None:
        """Names at most once each. `expected`: the spec the only node must have now; None where it has another."""

    async def remove_nodes(self, shard: int, names: Sequence[str]) -> Removed:
        """Nodes get nothing from here on; then what they hold is released."""

    async def node_indexes(self, shard: int, names: Sequence[str]) -> NDArray[np.uint32]:
        """By what index each node of these names is known on this shard, if only since it is gone; NONE_U32: it never was. A
        name keeps its index for as long as the ledger has its epoch."""

    async def schema(self, names: Sequence[str] = (), *, left: bool = False) -> list[str]:
        """Resource names by index, after appending those of `names` that are new. `left`: of a ledger that waits to be rebuilt,
        too."""

    async def seq(self, shard: int) -> int:
        """The number of the shard's last change."""

    async def snapshot(self, shard: int, *, groups: bool = False, left: bool = False) -> Snapshot:
        """The shard's nodes at one moment; with `groups` also where pods of each group are, which costs more. `left`: of a
        ledger that waits to be rebuilt, too."""

    async def nodes_named(self, shard: int, names: Sequence[str]) -> dict[str, tuple[int, bytes]]:
        """Index and spec of those of these nodes that are there."""

    async def state(self, shard: int) -> ShardState:
        """The shard whole, at one moment, also what is left of one that waits to be rebuilt. Holds the ledger up for as long
        as it takes to read."""

    def reservations(self, shard: int) -> AsyncIterator[Reservations]:
        """All reservations in parts; made or released meanwhile: maybe. One may come twice. Also what is left of them while the
        ledger waits to be rebuilt."""

    async def leases(self, shard: int, seqs: NDArray[np.uint64]) -> NDArray[np.int64]:
        """(n, 2): since when what each of these commits reserved is assumed, and when its lease ends, Unix milliseconds by the
        ledger's clock. Zeros once it is confirmed."""

    async def workers_of(self, epochs: Sequence[int]) -> dict[int, str]:
        """To whom these epochs were granted, as far as that is still known: of the last 10,000."""

    async def feed(self, shard: int, after: int, wait_ms: int) -> list[FeedEntry] | None:
        """Entries after `after` up to a gap, waiting up to `wait_ms` for the first. None where the gap is there: the window begins later,
        or a repair left a number out."""

    async def knows(self, shard: int, worker: str) -> bool:
        """Whether a worker of that name was ever granted an epoch."""

    async def assumed(self, shard: int, nodes: NDArray[np.uint32]) -> Reservations:
        """Reservations on these nodes that nobody has confirmed yet; where there are very many, those of the last commits."""

    async def counts(self) -> tuple[int, int]:
        """How many nodes and how many reservations there are."""

    async def check(self) -> dict[str, str]:
        """That the ledger is there and the same; facts about it (version, mode, persistence)."""
