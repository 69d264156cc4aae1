"""Pods that several shards have a say in: a gang whose nodes lie on several, pods that count on each other, and pods that rules
of pods elsewhere look at (docs/adr/0007-gangs.md, docs/adr/0012-guards-across-shards.md).

First every shard, in ascending order, reserves what fits of its part under a short lease (*holds* it). Where rules look at the
pods, shard 0 *judges* what is held by what its worker knew; what it refuses is withdrawn. If the rest makes the minimum, every hold
is *kept*: from then on the feed tells of its pods, and they wait for their confirmation like those of any commit. If it does
not, or a hold ended meanwhile, all is withdrawn. Nothing waits for another proposal, so there is no deadlock; and as all go
through the shards in the same order, of two gangs that want the same room one gets it. Whoever dies on the way leaves
holds or unconfirmed commits, which end by their leases; the same proposal sent again finds them as DUPLICATE and goes on.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hoss.errors import LedgerUnavailable
from resolver.core.values import CONFLICT, Decision, Proposal, Verdict
from resolver.ledger.port import Ledger

Parts = Sequence[tuple[int, Proposal]]


class Decides(Protocol):
    """A shard's committer."""

    async def decide(self, proposal: Proposal) -> Decision:
        """Raises LedgerUnavailable when it is not known to be decided."""


async def decide_parts(ledger: Ledger, committers: Sequence[Decides], parts: Parts, minimum: int) -> list[Decision]:
    """Decisions in the order of `parts`, each a shard's with its proposal: of at least `minimum` pods, or of none. Raises
    LedgerUnavailable when it is not known to be decided; then the same may be asked again."""
    decisions: dict[int, Decision] = {}
    missed = sum(len(proposal) for _, proposal in parts) - minimum  # so many may be refused, and no more
    for part in _ascending(parts):
        shard, proposal = parts[part]
        if missed >= 0:
            decisions[part] = await committers[shard].decide(replace(proposal, gang_minimum=0, held=True))
            missed -= int((~_reserved(decisions[part])).sum())
        else:
            decisions[part] = _untried(proposal)
    in_order = [decisions[part] for part in range(len(parts))]
    return await settle_holds(ledger, parts, in_order, minimum)


async def settle_holds(ledger: Ledger, parts: Parts, decisions: Sequence[Decision], minimum: int) -> list[Decision]:
    """The second phase: what is held is judged, and kept or withdrawn."""
    decisions = await _judge(ledger, parts, decisions, minimum)
    commits = [_commits(decision) for decision in decisions]
    enough = sum(int(_reserved(decision).sum()) for decision in decisions) >= minimum
    if enough and await _keep(ledger, parts, decisions, commits):
        return [_kept(decision, stands) for decision, stands in zip(decisions, commits, strict=True)]
    if not minimum:
        raise LedgerUnavailable("a hold ended before it could be kept; try again")
    for (shard, proposal), decision, stands in zip(parts, decisions, commits, strict=True):
        at = _reserved(decision)
        if at.any():
            await ledger.withdraw(shard, proposal.uids[at], stands[at])
    return [_aborted(decision, proposal) for decision, (_, proposal) in zip(decisions, parts, strict=True)]


async def _judge(ledger: Ledger, parts: Parts, decisions: Sequence[Decision], minimum: int) -> Sequence[Decision]:
    """The decisions after rules that cross nodes had their say. What they refuse is held no more."""
    asked = [
        (_place(proposal, position), part, position)
        for part, ((_, proposal), decision) in enumerate(zip(parts, decisions, strict=True))
        for position, question in enumerate(decision.questions)
        if question is not None
    ]
    questions = [decisions[part].questions[position] for _, part, position in sorted(asked)]
    if not any(question is not None and question.placed for question in questions):
        return decisions
    reserved = sum(int(_reserved(decision).sum()) for decision in decisions)
    first = parts[0][1]
    answers = await ledger.judge(
        [question for question in questions if question is not None],
        epoch=first.epoch,
        seen=first.seen_of(ledger.shards),
        spare=reserved - minimum,
    )
    refused: list[dict[int, tuple[int, int]]] = [{} for _ in parts]
    for (_, part, position), answer in zip(sorted(asked), answers, strict=True):
        if answer is not None:
            refused[part][position] = answer
    judged = []
    for (shard, proposal), decision, unknown in zip(parts, decisions, refused, strict=True):
        at = sorted(unknown)
        if at:
            await ledger.withdraw(shard, proposal.uids[at], _commits(decision)[at])
        judged.append(_without(decision, proposal, unknown) if at else decision)
    return judged


def _place(proposal: Proposal, position: int) -> tuple[int, int]:
    """Sorts as the worker placed pods: by priority first."""
    place = position if proposal.places is None else int(proposal.places[position])
    return -int(proposal.priorities[proposal.slots[position]]), place


async def _keep(
    ledger: Ledger, parts: Parts, decisions: Sequence[Decision], commits: Sequence[NDArray[np.uint64]]
) -> bool:
    """Whether all that was held still is, and is kept now. Brings `commits`, of every pod that stands, up to date."""
    for part in _ascending(parts):
        shard, proposal = parts[part]
        at, stands = _reserved(decisions[part]), commits[part]
        if at.any():
            kept = await ledger.keep(shard, proposal.uids[at], stands[at])
            stands[at] = np.where(kept > 0, kept, stands[at])
            if not kept.all():
                return False
    return True


def _ascending(parts: Parts) -> list[int]:
    """Which part when, by shards."""
    return sorted(range(len(parts)), key=lambda part: parts[part][0])


def _kept(decision: Decision, commits: NDArray[np.uint64]) -> Decision:
    """The decision once its pods stand by these commits."""
    committed = commits[decision.verdicts == Verdict.COMMITTED]
    duplicate_seqs = commits[decision.verdicts == Verdict.DUPLICATE]
    return replace(
        decision, seq=int(committed[0]) if len(committed) else 0, duplicate_seqs=duplicate_seqs, questions=()
    )


def _reserved(decision: Decision) -> NDArray[np.bool_]:
    return np.isin(decision.verdicts, (Verdict.COMMITTED, Verdict.DUPLICATE))


def _commits(decision: Decision) -> NDArray[np.uint64]:
    """The commit that holds each pod, where it is reserved."""
    seqs = np.full(len(decision.verdicts), decision.seq, np.uint64)
    seqs[decision.verdicts == Verdict.DUPLICATE] = decision.duplicate_seqs
    return seqs


def _without(decision: Decision, proposal: Proposal, unknown: dict[int, tuple[int, int]]) -> Decision:
    """The decision with these pods refused for what their worker did not know."""
    at = sorted(unknown)
    verdicts, nodes = decision.verdicts.copy(), decision.nodes.copy()
    standing = decision.verdicts == Verdict.DUPLICATE
    verdicts[at], nodes[at] = Verdict.CONFLICT_TOPOLOGY, proposal.nodes[at, 0]
    evidence = [(position, int(proposal.nodes[position, 0]), 0, unknown[position][1], 0) for position in at]
    awaits = dict(decision.awaits)
    for shard, seq in unknown.values():
        awaits[shard] = max(awaits.get(shard, 0), seq)
    return replace(
        decision,
        verdicts=verdicts,
        nodes=nodes,
        conflicts=np.sort(np.concatenate([decision.conflicts, np.array(evidence, CONFLICT)]), order="position"),
        duplicate_seqs=_commits(decision)[standing & (verdicts == Verdict.DUPLICATE)],
        awaits=tuple(sorted(awaits.items())),
    )


def _aborted(decision: Decision, proposal: Proposal) -> Decision:
    """The decision as it is after everything was withdrawn."""
    at = _reserved(decision)
    return replace(
        decision,
        seq=0,
        verdicts=np.where(at, np.uint8(Verdict.GANG_ABORTED), decision.verdicts),
        nodes=np.where(at, proposal.nodes[:, 0], decision.nodes),
        duplicate_seqs=decision.duplicate_seqs[:0],
        questions=(),
    )


def _untried(proposal: Proposal) -> Decision:
    """Of a shard that was not asked, because the gang had failed before."""
    return Decision.of_none(np.full(len(proposal), Verdict.GANG_ABORTED, np.uint8), proposal)
