"""The ledger as the dispatcher needs it: a port of its own, and the adapter over the resolver's client.

Methods raise LedgerUnavailable or TransportError when nothing is known; all may be repeated.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.messages import Commits
from hoss.client.resolver import ResolverClient
from hoss.errors import LedgerUnavailable
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import NONE_U32, U8, U32, U64, Uids, decode, decode_uids

# A lookup of more pods would block the ledger's Redis for milliseconds and outgrow a message.
LOOKUP_PODS = 10_000

AnswerT = TypeVar("AnswerT")


class Whereabouts(NamedTuple):
    """Where pods hold reservations: `nodes` u32 beside the UIDs asked for, NONE_U32 for nowhere, and the commits."""

    nodes: NDArray[np.uint32]
    commits: Commits


class Held(NamedTuple):
    """Some reservations, as columns of n."""

    uids: Uids  # (n, 16)
    nodes: NDArray[np.uint32]
    shards: NDArray[np.uint32]
    seqs: NDArray[np.uint64]  # of the commit, on its shard
    assumed: NDArray[np.bool_]  # not confirmed yet


class Standing(NamedTuple):
    """How the ledger stands: its epoch, or where it has been lost, the mark in its place and `recovering`."""

    epoch: str
    recovering: bool
    shards: int


class Ledger(Protocol):
    """What the dispatcher asks of the ledger."""

    async def grant_epoch(self, worker: str) -> int:
        """A new epoch; earlier ones of this worker are fenced everywhere."""
        ...

    async def lookup(self, uids: Uids) -> Whereabouts:
        """Which of these pods are reserved."""
        ...

    async def confirm(self, commits: Commits) -> int:
        """End leases; how many of the commits were still pending."""
        ...

    async def release(self, uids: Uids, nodes: NDArray[np.uint32] | None) -> None:
        """Give back reservations; those not there are passed over."""
        ...

    def reservations(self) -> AsyncIterator[Held]:
        """All there are, in parts."""
        ...


class ResolverLedger:
    """The ledger behind a resolver."""

    def __init__(self, client: ResolverClient) -> None:
        self.known_epoch = ""  # see dispatcher.rebuilding.Rebuildable
        self._client = client
        self._shards = 0  # fixed when the ledger was made; asked once

    async def grant_epoch(self, worker: str) -> int:
        granted = await self._client.grant(worker)
        self._check(granted.ledger_epoch)
        return int(granted.epoch)

    async def lookup(self, uids: Uids) -> Whereabouts:
        shards = await self._shard_count()
        parts = [await self._client.lookup(uids[i : i + LOOKUP_PODS]) for i in range(0, len(uids), LOOKUP_PODS)]
        for part in parts:
            self._check(part.ledger_epoch)
        nodes = np.concatenate([part.nodes for part in parts] or [np.empty(0, np.uint32)])
        seqs = np.concatenate([part.seqs for part in parts] or [np.empty(0, np.uint64)])
        found = nodes != NONE_U32
        return Whereabouts(nodes, commits_of(nodes[found] % np.uint32(shards), seqs[found]))

    async def confirm(self, commits: Commits) -> int:
        return await self._client.confirm(commits)

    async def release(self, uids: Uids, nodes: NDArray[np.uint32] | None) -> None:
        for i in range(0, len(uids), LOOKUP_PODS):
            part = slice(i, i + LOOKUP_PODS)
            await self._client.release(uids[part], None if nodes is None else nodes[part])

    async def reservations(self) -> AsyncIterator[Held]:
        shards = await self._shard_count()
        async for chunk in self._client.reservations():
            uids = decode_uids(chunk.uids)
            nodes = decode(chunk.nodes, U32, name="nodes", rows=len(uids))
            yield Held(
                uids=uids,
                nodes=nodes,
                shards=nodes % np.uint32(shards),  # node index i lies on shard i mod S
                seqs=decode(chunk.seqs, U64, name="seqs", rows=len(uids)),
                assumed=decode(chunk.assumed, U8, name="assumed", rows=len(uids)) != 0,
            )

    async def standing(self) -> Standing:
        status = await self._client.status()
        return Standing(status.standing or status.ledger_epoch, status.recovering, status.shards or 1)

    async def rebuild(self, parts: Iterable[pb.LedgerPart]) -> pb.RebuildReply:
        return await self._client.rebuild(parts)

    def _check(self, ledger_epoch: str) -> None:
        if ledger_epoch and self.known_epoch not in ("", ledger_epoch):
            raise LedgerUnavailable(
                "the resolver answers for another ledger than the one that was known; it is to be rebuilt"
            )

    async def _shard_count(self) -> int:
        if not self._shards:
            self._shards = (await self._client.status()).shards or 1
        return self._shards


class FencedLedger:
    """A ledger that is changed only while it is `certain` that nobody else is the active dispatcher: LedgerUnavailable else."""

    def __init__(self, inner: Ledger, certain: Callable[[], bool]) -> None:
        self._inner = inner
        self._certain = certain
        self.lookup = inner.lookup
        self.reservations = inner.reservations

    async def grant_epoch(self, worker: str) -> int:
        return await self._if_certain(lambda: self._inner.grant_epoch(worker))

    async def confirm(self, commits: Commits) -> int:
        return await self._if_certain(lambda: self._inner.confirm(commits))

    async def release(self, uids: Uids, nodes: NDArray[np.uint32] | None) -> None:
        await self._if_certain(lambda: self._inner.release(uids, nodes))

    async def _if_certain(self, ask: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
        if not self._certain():
            raise LedgerUnavailable("the dispatcher's lease could not be renewed in time; another may be active")
        return await ask()


def commits_of(shards: NDArray[np.uint32], seqs: NDArray[np.uint64]) -> Commits:
    """The distinct commits among rows of (shard, seq)."""
    return {shard: np.unique(seqs[shards == shard]) for shard in np.unique(shards).tolist()}


def merge_commits(parts: list[Commits]) -> dict[int, NDArray[np.uint64]]:
    """All commits of several, each once."""
    shards = {shard for part in parts for shard in part}
    return {s: np.unique(np.concatenate([part[s] for part in parts if s in part])) for s in shards}
