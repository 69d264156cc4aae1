"""The ceiling of a Redis: the most reservations per second that any number of workers and resolvers can make
on it.

Measured in a scratch ledger beside the real one (keys of its own, deleted at the end). Arguments are made in
advance and scripts queue up in Redis, so only Redis is timed."""

import time
from collections.abc import Iterator
from itertools import islice

import numpy as np

from hoss.model.resources import CPU, MEMORY, PODS
from hoss.v1 import common_pb2
from hoss.wire.columns import numbered_uids
from hoss.wire.uids import UID_PREFIX_BYTES
from resolver.core.values import LedgerNodeChange, Proposal
from resolver.ledger.store import RedisLedger

_PREFIX = "hoss-ceiling"
_WORKER = "ceiling"

# At most this many reservations in the scratch ledger: as many as the benchmarks place, to bound memory.
_ROUND_PODS = 100_000
_TRIP_BATCHES = 4


async def measure_ceiling(
    redis_url: str, *, nodes: int, batch: int, seconds: float, resources: int = 6
) -> float:
    """Reservations per second of wall time: batches of `batch` pods of one class, each spread over as many of
    `nodes` nodes as possible."""
    committed, spent, round_number = 0, 0.0, 0
    while spent < seconds:
        round_number += 1
        ledger = RedisLedger(redis_url, prefix=_PREFIX)
        try:
            await ledger.open(1)
            epoch = await ledger.grant(_WORKER)
            await ledger.upsert_nodes(0, [_node(number, resources) for number in range(nodes)])
            for trip in _trips(round_number, epoch, nodes, batch, resources):
                calls = ledger.commit_calls(0, trip)
                began = time.perf_counter()
                decisions = await ledger.run_calls(calls)
                spent += time.perf_counter() - began
                committed += sum(
                    int((decision.verdicts == 1).sum()) for decision in decisions if decision is not None
                )
                if spent >= seconds:
                    break
            await ledger.erase()
        finally:
            await ledger.close()
    return committed / spent


def _node(number: int, resources: int) -> LedgerNodeChange:
    spec = common_pb2.NodeSpec(name=f"ceiling-{number}").SerializeToString()
    return LedgerNodeChange(f"ceiling-{number}", spec, (2**50,) * resources, unschedulable=False, cards=0)


def _trips(round_number: int, epoch: int, nodes: int, batch: int, resources: int) -> Iterator[list[Proposal]]:
    rng = np.random.default_rng(round_number)
    requests = np.zeros((1, resources), np.int64)
    requests[0, [CPU, MEMORY, PODS]] = 100, 2**27, 1
    prefix = round_number.to_bytes(UID_PREFIX_BYTES, "big")
    proposals = (
        Proposal(
            worker=_WORKER,
            epoch=epoch,
            snapshot_seq=2**52,
            uids=numbered_uids(prefix, first, batch),
            slots=np.zeros(batch, np.uint16),
            nodes=rng.choice(nodes, batch, replace=batch > nodes).astype(np.uint32)[:, None],
            requests=requests,
            priorities=np.zeros(1, np.int32),
            attempts=np.zeros(1, np.uint16),
        )
        for first in range(0, _ROUND_PODS, batch)
    )
    while trip := list(islice(proposals, _TRIP_BATCHES)):
        yield trip
