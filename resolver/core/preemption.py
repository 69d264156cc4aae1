"""Preemption of unconfirmed reservations, for policies that allow it to pods with a much higher priority.

A pod that was refused for room takes the room of unconfirmed reservations on its first candidate. Their
priority must be lower by the policy's gap. The lowest priority goes first, then the latest commit, and no
more than needed."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hoss.wire.columns import U32, account_dtype
from resolver.core.values import MAX_BATCH_VICTIMS, Decision, Proposal, Reservations, Verdict


def refused_for_room(proposal: Proposal, decision: Decision) -> NDArray[np.intp]:
    """Positions of pods that may preempt reservations."""
    if not proposal.displace_gap or proposal.unchecked or not len(decision.conflicts):
        return np.empty(0, np.intp)
    refused = np.flatnonzero(decision.verdicts == Verdict.CONFLICT_RESOURCE)
    return refused[[position not in proposal.victims for position in refused.tolist()]]


def choose_victims(
    proposal: Proposal, decision: Decision, refused: NDArray[np.intp], assumed: Reservations
) -> tuple[NDArray[np.intp], Proposal] | None:
    """The positions among `refused` that get victims, and a proposal with these pods and victims. None: no
    position."""
    free = _free(decision, proposal.requests.shape[1])
    left = _by_node(assumed)
    chosen: dict[int, tuple[bytes, ...]] = {}
    victims = 0
    urgency = proposal.priorities[proposal.slots[refused]].astype(np.int64)
    for position in refused[np.argsort(-urgency, kind="stable")].tolist():
        node, slot = int(proposal.nodes[position, 0]), int(proposal.slots[position])
        if node not in free:
            continue
        missing = proposal.requests[slot] - free[node]
        highest = int(proposal.priorities[slot]) - proposal.displace_gap
        going = _enough(left.get(node, []), missing, highest)
        if going and victims + len(going) <= MAX_BATCH_VICTIMS:
            victims += len(going)
            left[node] = left[node][len(going) :]
            free[node] = sum((amounts for _, _, amounts in going), free[node]) - proposal.requests[slot]
            chosen[position] = tuple(uid for uid, _, _ in going)
    if not chosen:
        return None
    positions = np.array(sorted(chosen), np.intp)
    return positions, replace(
        proposal,
        uids=proposal.uids[positions],
        slots=proposal.slots[positions],
        nodes=proposal.nodes[positions, :1],
        victims={place: chosen[position] for place, position in enumerate(positions.tolist())},
        victims_must_go=False,
        victims_assumed=True,
        victims_terminate=False,  # they are on no node yet
    )


def merge_decisions(decision: Decision, positions: NDArray[np.intp], second: Decision) -> Decision:
    """The decision after the second one decided these positions again. A pod that got room is a DUPLICATE:
    another commit has reserved it."""
    won = np.isin(second.verdicts, (Verdict.COMMITTED, Verdict.DUPLICATE))
    seqs = np.full(len(positions), second.seq, np.uint64)
    seqs[second.verdicts == Verdict.DUPLICATE] = second.duplicate_seqs
    duplicate_seqs = np.zeros(len(decision.verdicts), np.uint64)
    duplicate_seqs[decision.verdicts == Verdict.DUPLICATE] = decision.duplicate_seqs
    duplicate_seqs[positions[won]] = seqs[won]
    verdicts, nodes = decision.verdicts.copy(), decision.nodes.copy()
    verdicts[positions[won]] = Verdict.DUPLICATE
    nodes[positions[won]] = second.nodes[won]
    return replace(
        decision,
        verdicts=verdicts,
        nodes=nodes,
        conflicts=decision.conflicts[~np.isin(decision.conflicts["position"], positions[won])],
        duplicate_seqs=duplicate_seqs[verdicts == Verdict.DUPLICATE],
        as_of=max(decision.as_of, second.as_of),
    )


_Reserved = tuple[bytes, int, NDArray[np.int64]]  # UID, priority, requests


def _by_node(assumed: Reservations) -> dict[int, list[_Reserved]]:
    """Lowest priority first, then the latest commit first."""
    records = assumed.records
    found: dict[int, list[_Reserved]] = {}
    for row in np.lexsort((-records["seq"].astype(np.int64), records["priority"])).tolist():
        held = assumed.uids[row].tobytes(), int(records["priority"][row]), records["requests"][row]
        found.setdefault(int(records["node"][row]), []).append(held)
    return found


def _enough(held: list[_Reserved], missing: NDArray[np.int64], highest: int) -> list[_Reserved]:
    """The first reservations, up to priority `highest`, that free what is missing; empty if they do not."""
    for count in range(1, len(held) + 1):
        uid_priority_amounts = held[count - 1]
        if uid_priority_amounts[1] > highest:
            return []
        missing = missing - uid_priority_amounts[2][: len(missing)]
        if (missing <= 0).all():
            return held[:count]
    return []


def _free(decision: Decision, resources: int) -> dict[int, NDArray[np.int64]]:
    """What is free on the nodes that refused pods, by node."""
    records = np.frombuffer(decision.fresh.records, account_dtype(decision.fresh.resources))
    amounts = records["amounts"]
    free = np.zeros((len(records), resources), np.int64)
    known = min(resources, amounts.shape[1])
    free[:, :known] = amounts[:, :known, 0] - amounts[:, :known, 1]
    return dict(zip(np.frombuffer(decision.fresh.indexes, U32).tolist(), free, strict=True))
