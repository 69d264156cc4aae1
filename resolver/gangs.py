"""A gang whose nodes lie on several shards: all of it or none, in two phases.

First every shard, in ascending order, reserves what fits of its part under a short lease (*holds* it). If that makes the
minimum, every hold is *kept*: from then on it waits for its confirmation like any commit. If it does not, or a hold ended
meanwhile, all that the gang holds is withdrawn. Nothing waits for another gang, so there is no deadlock; and as all go
through the shards in the same order, of two gangs that want the same room one gets it. Whoever dies on the way leaves
holds or unconfirmed commits, which end by their leases; the same proposal sent again finds them as DUPLICATE and goes on.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from resolver.committer import Committer
from resolver.core.values import Decision, Proposal, Verdict
from resolver.ledger.port import Ledger


async def decide_gang(
    ledger: Ledger, committers: Sequence[Committer], parts: Sequence[tuple[int, Proposal]], minimum: int
) -> list[Decision]:
    """Decisions in the order of `parts`, each a shard's with its proposal. Raises LedgerUnavailable when it is not known
    to be decided; then the same may be asked again."""
    order = sorted(range(len(parts)), key=lambda part: parts[part][0])
    decisions: dict[int, Decision] = {}
    missed = sum(len(proposal) for _, proposal in parts) - minimum  # so many may be refused, and no more
    for part in order:
        shard, proposal = parts[part]
        if missed >= 0:
            decisions[part] = await committers[shard].decide(replace(proposal, gang_minimum=0, held=True))
            missed -= int((~_reserved(decisions[part])).sum())
        else:
            decisions[part] = _untried(proposal)
    if missed >= 0 and await _keep(ledger, parts, decisions):
        return [decisions[part] for part in range(len(parts))]
    for part, decision in decisions.items():
        shard, proposal = parts[part]
        at = _reserved(decision)
        if at.any():
            await ledger.withdraw(shard, proposal.uids[at], _commits(decision)[at])
    return [_aborted(decisions[part], parts[part][1]) for part in range(len(parts))]


async def _keep(ledger: Ledger, parts: Sequence[tuple[int, Proposal]], decisions: dict[int, Decision]) -> bool:
    """Whether all that was held still is, and is kept now."""
    for part, decision in decisions.items():
        shard, proposal = parts[part]
        at = _reserved(decision)
        held = int(at.sum())
        if held and await ledger.keep(shard, proposal.uids[at], _commits(decision)[at]) < held:
            return False
    return True


def _reserved(decision: Decision) -> NDArray[np.bool_]:
    return np.isin(decision.verdicts, (Verdict.COMMITTED, Verdict.DUPLICATE))


def _commits(decision: Decision) -> NDArray[np.uint64]:
    """The commit that holds each pod, where it is reserved."""
    seqs = np.full(len(decision.verdicts), decision.seq, np.uint64)
    seqs[decision.verdicts == Verdict.DUPLICATE] = decision.duplicate_seqs
    return seqs


def _aborted(decision: Decision, proposal: Proposal) -> Decision:
    """The decision as it is after everything was withdrawn."""
    at = _reserved(decision)
    return replace(
        decision,
        seq=0,
        verdicts=np.where(at, np.uint8(Verdict.GANG_ABORTED), decision.verdicts),
        nodes=np.where(at, proposal.nodes[:, 0], decision.nodes),
        duplicate_seqs=decision.duplicate_seqs[:0],
    )


def _untried(proposal: Proposal) -> Decision:
    """Of a shard that was not asked, because the gang had failed before."""
    return Decision.of_none(np.full(len(proposal), Verdict.GANG_ABORTED, np.uint8), proposal)
