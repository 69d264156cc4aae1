"""Proposals as workers would send them, made beforehand and driven through a resolver as fast as it answers."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hoss.client.resolver import ResolverClient
from hoss.errors import HossError
from hoss.model.resources import BASE_RESOURCES, CPU, MEMORY, PODS
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import I32, I64, U8, U16, U32, UID_PREFIX_BYTES, decode, decode_uids, encode, numbered_uids

# In flight on one stream: what keeps a resolver and Redis busy, as a few workers with their windows would.
STREAM_PODS = 4000
STREAM_BATCHES = 64

_RELEASED_PODS = 10_000  # in a call


@dataclass(frozen=True, slots=True)
class Target:
    """Nodes of one shard, by index: with room for everything, and full."""

    shard: int
    roomy: NDArray[np.uint32]
    full: NDArray[np.uint32]


@dataclass(slots=True)
class Driven:
    """What came back."""

    pods: int = 0
    committed: int = 0
    seconds: float = 0.0
    latencies_ms: tuple[float, ...] = ()  # of each batch
    commits: tuple[int, ...] = ()  # seqs of the shard


def proposals(
    target: Target,
    *,
    worker: str,
    epoch: int,
    pods: int,
    batch: int,
    conflict_share: float,
    seed: int,
    first_batch_id: int = 1,
) -> list[pb.ProposalBatch]:
    """At most `pods` pods of one class in batches of `batch`, each on a node drawn from those with room; a share of them on
    a full one, at random places. No two calls with another `seed` name a pod alike."""
    rng = np.random.default_rng(seed)
    requests = np.zeros(len(BASE_RESOURCES), np.int64)
    requests[[CPU, MEMORY, PODS]] = 100, 2**27, 1
    prefix = seed.to_bytes(UID_PREFIX_BYTES, "big")
    batches: list[pb.ProposalBatch] = []
    for first in range(0, pods, batch):
        count = min(batch, pods - first)
        nodes = rng.choice(target.roomy, count, replace=count > len(target.roomy))
        refused = rng.random(count) < conflict_share
        nodes[refused] = rng.choice(target.full, int(refused.sum()))
        batches.append(
            pb.ProposalBatch(
                worker=worker,
                epoch=epoch,
                batch_id=first_batch_id + len(batches),
                shard=target.shard,
                snapshot_seq=2**52,
                resources=len(requests),
                uids=numbered_uids(prefix, first, count).tobytes(),
                slots=encode(np.zeros(count), U16),
                candidates=1,
                nodes=encode(nodes, U32),
                requests=encode(requests, I64),
                priorities=encode([0], I32),
                attempts=encode([0], U16),
            )
        )
    return batches


async def drive(client: ResolverClient, batches: Sequence[pb.ProposalBatch], *, in_flight: int | None = None) -> Driven:
    """Send them on one stream, `in_flight` batches unanswered at most (default: as the constants above say).

    Raises HossError when the resolver answers anything but verdicts.
    """
    window = in_flight or max(2, min(STREAM_BATCHES, STREAM_PODS // _pods_in(batches[0])))
    credit, sent = asyncio.Semaphore(window), deque[float]()
    sent_at: dict[int, float] = {}
    latencies: list[float] = []
    commits: list[int] = []
    result = Driven()

    async def outgoing() -> AsyncIterator[pb.ProposalBatch]:
        for batch in batches:
            await credit.acquire()
            sent_at[batch.batch_id] = time.perf_counter()
            sent.append(sent_at[batch.batch_id])
            yield batch

    async for answer in client.stub.Propose(outgoing()):
        if answer.invalid or answer.unavailable:
            raise HossError(f"the resolver did not decide a proposal: {answer.invalid or answer.unavailable}")
        result.seconds = time.perf_counter() - sent[0]
        latencies.append(1000 * (time.perf_counter() - sent_at.pop(answer.batch_id)))
        verdicts = decode(answer.verdicts, U8, name="verdicts")
        result.pods += len(verdicts)
        result.committed += int((verdicts == pb.COMMITTED).sum())
        commits.append(answer.seq)
        credit.release()
    result.latencies_ms = tuple(latencies)
    result.commits = tuple(filter(None, commits))
    return result


async def take_back(client: ResolverClient, batches: Sequence[pb.ProposalBatch], driven: Driven) -> None:
    """Leave nothing of them in the ledger: the next ones find it as these did."""
    await client.confirm({batches[0].shard: np.array(driven.commits, np.uint64)})
    uids = np.concatenate([decode_uids(batch.uids) for batch in batches])
    nodes = np.concatenate([decode(batch.nodes, U32, name="nodes") for batch in batches])  # one candidate each
    for first in range(0, len(uids), _RELEASED_PODS):
        step = slice(first, first + _RELEASED_PODS)
        await client.release(uids[step], nodes[step])


def _pods_in(batch: pb.ProposalBatch) -> int:
    return len(batch.slots) // U16.itemsize
