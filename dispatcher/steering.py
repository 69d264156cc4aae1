"""Conflicts and what is done about them, as messages."""

import numpy as np

from dispatcher.core import messages as m
from dispatcher.core.conflicts import AGE_STEPS, Refusals
from dispatcher.core.machine import Machine
from dispatcher.nodes import NodeNames
from hoss.errors import ColumnError, InvalidInput
from hoss.model.overlap import Overlap
from hoss.v1 import dispatcher_pb2 as pb
from hoss.v1 import resolver_pb2, workerlink_pb2
from hoss.wire.columns import U8, U32, U64, decode

AUTO = "auto"
MOST_WORKERS = 10_000

_TOLD_PAIRS = 200
_TOLD_NODES = 20


def steering_wanted(request: pb.SteerRequest, machine: Machine) -> m.SteeringWanted:
    """Check a request; what it leaves empty stays as it is. Raises InvalidInput."""
    rules = machine.guidance.steering.rules
    return m.SteeringWanted(
        read_overlap(request.overlap) if request.overlap else rules.overlap,
        read_workers(request.workers) if request.workers else rules.workers,
    )


def read_overlap(text: str) -> Overlap | None:
    """None for "auto". Raises InvalidInput naming the choices."""
    if text == AUTO:
        return None
    choices = [overlap.value for overlap in Overlap]
    if text not in choices:
        raise InvalidInput(f"{text!r} is none of {', '.join([AUTO, *choices])}", where="overlap")
    return Overlap(text)


def read_workers(text: str) -> int | None:
    """None for "auto". Raises InvalidInput for what is no number from 1 on."""
    if text == AUTO:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MOST_WORKERS:
        raise InvalidInput(f"{text!r} is neither {AUTO!r} nor a number from 1 to {MOST_WORKERS}", where="workers")
    return int(text)


def refusals(message: workerlink_pb2.Heartbeat) -> Refusals | None:
    """What a heartbeat says of refusals; None where there were none. Raises ColumnError where lengths disagree."""
    if not message.refusal_counts:
        return None
    counts = decode(message.refusal_counts, U32, name="heartbeat.refusal_counts").tolist()
    pods = len(counts)
    winners = decode(message.refusal_winners, U64, name="heartbeat.refusal_winners", rows=pods).tolist()
    verdicts = decode(message.refusal_verdicts, U8, name="heartbeat.refusal_verdicts", rows=pods).tolist()
    nodes = decode(message.refusing_nodes, U32, name="heartbeat.refusing_nodes")
    if len(nodes) % 2:
        raise ColumnError(f"{len(nodes)} numbers where nodes stand with their counts", where="heartbeat.refusing_nodes")
    ages = [
        decode(column, U32, name=f"heartbeat.{name}", rows=AGE_STEPS if column else 0)
        for name, column in (
            ("refusal_seqs_behind", message.refusal_seqs_behind),
            ("refusal_ages_ms", message.refusal_ages_ms),
        )
    ]
    return Refusals(
        dict(zip(zip(winners, verdicts, strict=True), counts, strict=True)),
        dict(nodes.reshape(-1, 2).tolist()),
        *ages,
    )


def conflicts_message(machine: Machine, names: NodeNames) -> pb.Conflicts:
    """Who was refused for whom, worst first."""
    conflicts, counters = machine.guidance.conflicts, machine.counters
    return pb.Conflicts(
        pairs=[
            pb.ConflictPair(loser=pair.loser, winner=pair.winner, reason=reason(pair.verdict), pods=pods)
            for pair, pods in conflicts.pairs.most_common(_TOLD_PAIRS)
        ],
        nodes=[
            pb.NodeConflicts(node=names.get(index), pods=pods)
            for index, pods in conflicts.nodes.most_common(_TOLD_NODES)
        ],
        seqs_behind=conflicts.seqs_behind.astype(np.uint64).tolist(),
        ages_ms=conflicts.ages_ms.astype(np.uint64).tolist(),
        steering=steering_message(machine, steps=True),
        proposed=counters["proposed"],
        refused=counters["refused"],
    )


def reason(verdict: int) -> str:
    """A verdict's name, or its number where it has none here."""
    known = resolver_pb2.Verdict.values()
    return resolver_pb2.Verdict.Name(verdict) if verdict in known else str(verdict)


def steering_message(machine: Machine, *, steps: bool) -> pb.Steering:
    """What is in force, and why."""
    steering = machine.guidance.steering
    overlap, workers = steering.stance
    message = pb.Steering(
        overlap=overlap.value,
        workers=workers,
        overlap_fixed=steering.rules.overlap is not None,
        workers_fixed=steering.rules.workers is not None,
    )
    told = [
        pb.SteeringStep(
            at_unix_ms=machine.unix_ms(step.at),
            overlap=step.stance.overlap.value,
            workers=step.stance.workers,
            reason=step.reason,
        )
        for step in steering.steps
    ]
    if told:
        message.since_unix_ms, message.reason = told[-1].at_unix_ms, told[-1].reason
        message.steps.extend(told if steps else ())
    return message
