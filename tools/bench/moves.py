"""`python -m tools.bench moves`: the rate at which the ledger moves pods, beside that at which it commits
them, in turn, on one shard of a scratch ledger in a Redis of its own.

A commit is a batch of pods, proposed and confirmed. A move is the same batch: what the pods hold is read, and
one step gives them their targets. With `--two-steps` it is made as between shards: targets are reserved, and
another step makes these the pods' reservations. All go through the ledger's client in this process, so all
have the same way to Redis.

The JSON document (camel case):

    nodes, pods, batch, seed, repeat
    commitsPerSecond, movesPerSecond      medians over the repetitions
    ratio                                 of the two
    commitMicros, moveMicros              CPU time of Redis for each pod
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from hoss.errors import HossError
from hoss.model.resources import CPU, MEMORY, PODS
from hoss.v1 import common_pb2
from hoss.wire.columns import Uids, numbered_uids
from hoss.wire.uids import UID_PREFIX_BYTES
from hossctl.cli import run_async
from hossctl.console import Document
from hossctl.figures import median
from hossctl.local.redis_server import RedisServer
from resolver.core.moves import MoveResult, Moves, target_proposal
from resolver.core.values import Decision, Group, LedgerNodeChange, Proposal, Reservations, Verdict, Writer
from resolver.ledger.store import RedisLedger

_RESOURCES = 6
_WORKER = "bench"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured."""

    nodes: int
    pods: int
    batch: int
    seed: int
    repeat: int
    two_steps: bool = False


@dataclass(frozen=True, slots=True)
class _Rate:
    pods_per_second: float
    redis_micros: float  # CPU time for each pod


def measure(setting: Setting) -> Document:
    """The document."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer.start(Path(folder))
        try:
            rounds = [run_async(_round(setting, server, number)) for number in range(setting.repeat)]
        finally:
            server.kill()
    commits, moves = zip(*rounds, strict=True)
    per_second = median([rate.pods_per_second for rate in commits])
    moved = median([rate.pods_per_second for rate in moves])
    return {
        "nodes": setting.nodes,
        "pods": setting.pods,
        "batch": setting.batch,
        "seed": setting.seed,
        "repeat": setting.repeat,
        "commitsPerSecond": round(per_second),
        "movesPerSecond": round(moved),
        "ratio": round(median([m.pods_per_second / c.pods_per_second for c, m in rounds]), 3),
        "commitMicros": round(median([rate.redis_micros for rate in commits]), 2),
        "moveMicros": round(median([rate.redis_micros for rate in moves]), 2),
    }


async def _round(setting: Setting, server: RedisServer, number: int) -> tuple[_Rate, _Rate]:
    """The rates of commits and of moves of the same pods."""
    ledger = RedisLedger(server.url, prefix="hoss-bench-moves")
    rng = np.random.default_rng((setting.seed, number))
    try:
        await ledger.open(1)
        writer = Writer(worker=_WORKER, epoch=await ledger.grant(_WORKER))
        await ledger.upsert_nodes(0, [_node(index) for index in range(setting.nodes)])
        batches = list(_proposals(setting, writer, rng))
        began = time.perf_counter(), _cpu_seconds(server)
        for batch in batches:
            [decision] = await ledger.commit(0, [batch])
            await ledger.confirm(0, np.array([decision.seq], np.uint64))
        commits = _rate(setting, server, *began)
        targets = [(batch.nodes[:, 0] + rng.integers(1, setting.nodes)) % setting.nodes for batch in batches]
        began = time.perf_counter(), _cpu_seconds(server)
        for batch, nodes in zip(batches, targets, strict=True):
            move = _move_in_two_steps if setting.two_steps else _move
            await move(ledger, batch.uids, nodes.astype(np.uint32), writer)
        moves = _rate(setting, server, *began)
        await ledger.erase()
    finally:
        await ledger.close()
    return commits, moves


async def _move(ledger: RedisLedger, uids: Uids, nodes: NDArray[np.uint32], writer: Writer) -> None:
    """As resolver/api/moving.py does it. Raises HossError if any pod is not moved."""
    _, decision = await _decided(ledger, uids, nodes, writer, at_once=True)
    if (decision.verdicts != Verdict.COMMITTED).any():
        raise HossError("not all pods were moved")


async def _decided(
    ledger: RedisLedger, uids: Uids, nodes: NDArray[np.uint32], writer: Writer, *, at_once: bool
) -> tuple[Reservations, Decision]:
    held = await ledger.reservations_of(0, uids)  # in the order asked for
    groups: list[Group | None] = [None] * len(uids)
    seen = (await ledger.seq(0),)
    proposal = target_proposal(held, groups, nodes, writer=writer, seen=seen, at_once=at_once)
    [decision] = await ledger.commit(0, [proposal])
    return held, decision


async def _move_in_two_steps(
    ledger: RedisLedger, uids: Uids, nodes: NDArray[np.uint32], writer: Writer
) -> None:
    held, decision = await _decided(ledger, uids, nodes, writer, at_once=False)
    seqs = np.full(len(uids), decision.seq, np.uint64)
    moves = Moves(uids, nodes, seqs, held.records["node"], held.records["seq"])
    if (await ledger.confirm_moves(0, moves, writer) != MoveResult.MOVED).any():
        raise HossError("not all pods were moved")


def _cpu_seconds(server: RedisServer) -> float:
    times = psutil.Process(server.pid).cpu_times()
    return times.user + times.system


def _rate(setting: Setting, server: RedisServer, began: float, cpu_began: float) -> _Rate:
    seconds, cpu = time.perf_counter() - began, _cpu_seconds(server) - cpu_began
    pods = setting.pods // setting.batch * setting.batch
    return _Rate(pods / seconds, 1e6 * cpu / pods)


def _node(number: int) -> LedgerNodeChange:
    spec = common_pb2.NodeSpec(name=f"bench-{number}").SerializeToString()
    return LedgerNodeChange(f"bench-{number}", spec, (2**50,) * _RESOURCES, unschedulable=False, cards=0)


def _proposals(setting: Setting, writer: Writer, rng: np.random.Generator) -> Iterator[Proposal]:
    requests = np.zeros((1, _RESOURCES), np.int64)
    requests[0, [CPU, MEMORY, PODS]] = 100, 2**27, 1
    prefix = setting.seed.to_bytes(UID_PREFIX_BYTES, "big")
    for first in range(0, setting.pods - setting.batch + 1, setting.batch):
        nodes = rng.choice(setting.nodes, setting.batch, replace=setting.batch > setting.nodes)
        yield Proposal(
            worker=writer.worker,
            epoch=writer.epoch or 0,
            snapshot_seq=2**52,
            uids=numbered_uids(prefix, first, setting.batch),
            slots=np.zeros(setting.batch, np.uint16),
            nodes=nodes.astype(np.uint32)[:, None],
            requests=requests,
            priorities=np.zeros(1, np.int32),
            attempts=np.zeros(1, np.uint16),
        )
