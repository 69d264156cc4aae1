"""The resolver's columns, the ledger's script, and the columns of messages, in batches of 1,000 and of 100
pods."""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import numpy as np
import redis
from benchmarks.measuring import Action, Bench, Case

from hoss.model.resources import BASE_RESOURCES, CPU, MEMORY, PODS
from hoss.v1 import common_pb2
from hoss.wire.columns import decode_uids, numbered_uids
from hoss.wire.uids import UID_PREFIX_BYTES
from hossctl.local.redis_server import RedisServer
from resolver.core.rules import RuleBook
from resolver.core.values import CONFLICT, AccountRows, Decision, LedgerNodeChange, Proposal
from resolver.ledger import packing
from resolver.ledger.store import RedisLedger
from resolver.messages.proposals import read_proposal, verdict_message
from tools.bench.resolver import Target, proposals

NODES = 5_000
SCRIPT_PODS = 4_000  # in one go: enough for Redis' clock of microseconds
TIMES = 20  # for columns, which take microseconds
COMMITTED = 1
_WORKER = "benchmarks"


def cases() -> Sequence[Case]:
    found = []
    for batch in (1000, 100):
        of = f"in batches of {batch:,}"
        found += [
            Case(f"resolver: a proposal read, {of}", TIMES * batch, lambda _, n=batch: _reading(n)),
            Case(
                f"resolver: a pod's script arguments, {of}", TIMES * batch, lambda _, n=batch: _arguments(n)
            ),
            Case(f"resolver: a verdict written, {of}", TIMES * batch, lambda _, n=batch: _verdicts(n)),
            Case(f"wire: a pod's UID, {of}", TIMES * batch, lambda _, n=batch: _uids(n)),
            Case(f"ledger: a pod committed, {of}", SCRIPT_PODS, lambda stack, n=batch: _script(stack, n)),
        ]
    beside = "in batches of 1,000, 100,000 reserved"
    found.append(
        Case(f"ledger: a pod committed, {beside}", SCRIPT_PODS, lambda stack: _script(stack, 1000, 100_000))
    )
    return found


def _proposal(batch: int) -> Proposal:
    return read_proposal(_message(batch), shards=1, schema=len(BASE_RESOURCES), allow_unchecked=False)


def _message(batch: int):
    nodes = np.arange(NODES, dtype=np.uint32)
    target = Target(0, roomy=nodes, full=nodes[:1])
    return proposals(target, worker=_WORKER, epoch=1, pods=batch, batch=batch, conflict_share=0.0, seed=1)[0]


def _reading(batch: int) -> Bench:
    message = _message(batch)
    return _repeated(
        lambda: read_proposal(message, shards=1, schema=len(BASE_RESOURCES), allow_unchecked=False)
    )


def _arguments(batch: int) -> Bench:
    proposal, book = _proposal(batch), RuleBook()

    def make() -> object:
        constraints = packing.slot_constraints(proposal, book)
        order = proposal.serving_order()
        return packing.commit_arguments(
            proposal, order, constraints, lease_ms=1000, rules_version=0, shards=1, prepared=False
        )

    return _repeated(make)


def _verdicts(batch: int) -> Bench:
    proposal = _proposal(batch)
    verdicts, none = np.full(batch, COMMITTED, np.uint8), np.empty(0, np.uint64)
    decision = Decision(1, verdicts, proposal.nodes[:, 0], np.empty(0, CONFLICT), none, AccountRows())
    return _repeated(lambda: verdict_message(1, 0, decision).SerializeToString())


def _uids(batch: int) -> Bench:
    prefix = b"p" * UID_PREFIX_BYTES
    return _repeated(lambda: decode_uids(numbered_uids(prefix, 0, batch).tobytes()))


def _repeated(action: Action) -> Bench:
    def often() -> None:
        for _ in range(TIMES):
            action()

    return Bench(lambda: often)


def _script(stack: ExitStack, batch: int, reserved: int = 0) -> Bench:
    """Commits on a Redis of its own, measured by its CPU time."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hoss-benchmarks-")))
    server = RedisServer.start(directory)
    stack.callback(server.kill)
    direct = stack.enter_context(redis.Redis(port=server.port))
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    ledger = RedisLedger(server.url)
    loop.run_until_complete(ledger.open(1))
    stack.callback(lambda: loop.run_until_complete(ledger.close()))
    epoch = loop.run_until_complete(ledger.grant(_WORKER))
    for first in range(0, NODES, 1000):
        loop.run_until_complete(ledger.upsert_nodes(0, [_node(first + i) for i in range(1000)]))
    rounds = count(1)

    def commit(pods: int, size: int) -> Action:
        prefix = next(rounds).to_bytes(UID_PREFIX_BYTES, "big")
        made = [_script_proposal(prefix, first, size, epoch) for first in range(0, pods, size)]
        prepared = ledger.commit_calls(0, made)
        return lambda: loop.run_until_complete(ledger.run_calls(prepared))

    for _ in range(reserved // SCRIPT_PODS):
        commit(SCRIPT_PODS, 1000)()

    def clock() -> float:
        used = direct.info("cpu")
        return used["used_cpu_user"] + used["used_cpu_sys"]

    return Bench(lambda: commit(SCRIPT_PODS, batch), clock)


def _node(number: int) -> LedgerNodeChange:
    spec = common_pb2.NodeSpec(name=f"n{number}").SerializeToString()
    return LedgerNodeChange(f"n{number}", spec, (2**50,) * len(BASE_RESOURCES), unschedulable=False, cards=0)


def _script_proposal(prefix: bytes, first: int, batch: int, epoch: int) -> Proposal:
    chance = np.random.default_rng(first)
    requests = np.zeros((1, len(BASE_RESOURCES)), np.int64)
    requests[0, [CPU, MEMORY, PODS]] = 100, 2**27, 1
    return Proposal(
        worker=_WORKER,
        epoch=epoch,
        snapshot_seq=2**52,
        uids=numbered_uids(prefix, first, batch),
        slots=np.zeros(batch, np.uint16),
        nodes=chance.choice(NODES, batch, replace=False).astype(np.uint32)[:, None],
        requests=requests,
        priorities=np.zeros(1, np.int32),
        attempts=np.zeros(1, np.uint16),
    )
