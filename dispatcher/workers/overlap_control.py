"""Conflicts between workers, and the overlap control that responds to them, as messages."""

import numpy as np

from dispatcher.core import messages as m
from dispatcher.core.machine import Machine
from dispatcher.core.workers.reports import AGE_STEPS, ConflictReport
from dispatcher.ledger.nodes import ClusterNodes
from hoss.errors import ColumnError, InvalidInput, quoted
from hoss.model.conflicts import Overlap
from hoss.model.quantity import whole_number
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1 import resolver_pb2, workerlink_pb2
from hoss.wire.columns import U8, U32, U64, decode

AUTO = "auto"
MOST_WORKERS = 10_000

_MOST_PAIRS = 200  # of one reply
_MOST_NODES = 20


def overlap_request(request: pb.SteerRequest, machine: Machine) -> m.OverlapRequested:
    """Check a request. Its empty fields keep the present setting. Raises InvalidInput."""
    rules = machine.overlap.control.rules
    return m.OverlapRequested(
        read_overlap(request.overlap) if request.overlap else rules.overlap,
        read_workers(request.workers) if request.workers else rules.workers,
    )


def read_overlap(text: str) -> Overlap | None:
    """None for "auto". Raises InvalidInput naming the choices."""
    if text == AUTO:
        return None
    choices = [overlap.value for overlap in Overlap]
    if text not in choices:
        raise InvalidInput(f"{quoted(text)} is none of {', '.join([AUTO, *choices])}", where="overlap")
    return Overlap(text)


def read_workers(text: str) -> int | None:
    """None for "auto". Raises InvalidInput."""
    if text == AUTO:
        return None
    workers = whole_number(text)
    if workers is None or not 1 <= workers <= MOST_WORKERS:
        raise InvalidInput(
            f"{quoted(text)} is neither {AUTO!r} nor a number from 1 to {MOST_WORKERS}", where="workers"
        )
    return workers


def read_refusals(message: workerlink_pb2.Heartbeat) -> ConflictReport | None:
    """The refusals in a heartbeat; None if there were none. Raises ColumnError where lengths disagree."""
    if not message.refusal_counts:
        return None
    counts = decode(message.refusal_counts, U32, name="heartbeat.refusal_counts").tolist()
    pods = len(counts)
    winners = decode(message.refusal_winners, U64, name="heartbeat.refusal_winners", rows=pods).tolist()
    verdicts = decode(message.refusal_verdicts, U8, name="heartbeat.refusal_verdicts", rows=pods).tolist()
    nodes = decode(message.refusing_nodes, U32, name="heartbeat.refusing_nodes")
    if len(nodes) % 2:
        raise ColumnError(
            f"{len(nodes)} numbers, but nodes and counts alternate", where="heartbeat.refusing_nodes"
        )
    ages = [
        decode(column, U32, name=f"heartbeat.{name}", rows=AGE_STEPS if column else 0)
        for name, column in (
            ("refusal_seqs_behind", message.refusal_seqs_behind),
            ("refusal_ages_ms", message.refusal_ages_ms),
        )
    ]
    return ConflictReport(
        dict(zip(zip(winners, verdicts, strict=True), counts, strict=True)),
        dict(nodes.reshape(-1, 2).tolist()),
        *ages,
    )


def conflicts_message(machine: Machine, cluster_nodes: ClusterNodes) -> pb.Conflicts:
    """Pairs of the refused worker and the winner, and nodes, each with the most refusals first."""
    conflicts, counters = machine.overlap.conflicts, machine.counters
    return pb.Conflicts(
        pairs=[
            pb.ConflictPair(loser=pair.loser, winner=pair.winner, reason=reason(pair.verdict), pods=pods)
            for pair, pods in conflicts.pairs.most_common(_MOST_PAIRS)
        ],
        nodes=[
            pb.NodeConflicts(node=cluster_nodes.name(index), pods=pods)
            for index, pods in conflicts.nodes.most_common(_MOST_NODES)
        ],
        seqs_behind=conflicts.seqs_behind.astype(np.uint64).tolist(),
        ages_ms=conflicts.ages_ms.astype(np.uint64).tolist(),
        steering=overlap_message(machine, steps=True),
        proposed=counters["proposed"],
        refused=counters["refused"],
    )


def reason(verdict: int) -> str:
    """A verdict's name; its number if this release does not know it."""
    known = resolver_pb2.Verdict.values()
    return resolver_pb2.Verdict.Name(verdict) if verdict in known else str(verdict)


def overlap_message(machine: Machine, *, steps: bool) -> pb.Steering:
    """The setting in force, and the reason."""
    steering = machine.overlap.control
    overlap, workers = steering.setting
    message = pb.Steering(
        overlap=overlap.value,
        workers=workers,
        overlap_fixed=steering.rules.overlap is not None,
        workers_fixed=steering.rules.workers is not None,
    )
    changes = [
        pb.SteeringStep(
            at_unix_ms=machine.unix_ms(step.at),
            overlap=step.setting.overlap.value,
            workers=step.setting.workers,
            reason=step.reason,
        )
        for step in steering.steps
    ]
    if changes:
        message.since_unix_ms, message.reason = changes[-1].at_unix_ms, changes[-1].reason
        message.steps.extend(changes if steps else ())
    return message
