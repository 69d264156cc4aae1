"""Two-phase commit of a proposal that several shards decide: a gang with nodes on several shards, pods that
count on each other, pods that rules of pods elsewhere concern, and a pod that may hold nothing elsewhere
(docs/adr/0007-gangs.md, docs/adr/0012-guards-across-shards.md,
docs/adr/0114-a-binding-looks-before-it-counts.md).

First every shard, in ascending order, *prepares*: it reserves what fits of its part under a short lease. If
rules concern the pods, shard 0 *validates* the prepared pods by what their worker knew, and refused ones are
*aborted*. If the rest reaches the minimum, every shard *commits*: from then on the feed shows the pods, and
they wait for their confirmation like any other. If not, or if a lease ended meanwhile, everything is aborted.

Nothing waits for another proposal, so there is no deadlock. All proposals go through the shards in the same
order, so of two gangs that want the same room one gets it. A resolver that dies on the way leaves prepared or
unconfirmed commits, which end by their leases. The same proposal sent again finds its pods as DUPLICATE and
continues."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hoss.errors import LedgerUnavailable
from hoss.wire.columns import NONE_U32
from resolver.api.committing import Committer
from resolver.core.values import CONFLICT, Decision, Proposal, ReservationState, Verdict
from resolver.ledger.port import Ledger, lookup_on_shards

Parts = Sequence[tuple[int, Proposal]]


async def commit_parts(
    ledger: Ledger, committers: Sequence[Committer], parts: Parts, minimum: int
) -> list[Decision]:
    """Decisions in the order of `parts`, (shard, proposal): with at least `minimum` reserved pods, or with
    none. Raises LedgerUnavailable if the outcome is unknown; then the same call may be repeated."""
    decisions: dict[int, Decision] = {}
    missed = sum(len(proposal) for _, proposal in parts) - minimum  # more refusals fail the gang
    for part in _ascending(parts):
        shard, proposal = parts[part]
        if missed < 0 and not proposal.sending:
            decisions[part] = _untried(proposal)
            continue
        # A copy is decided by every shard, so that each refuses earlier copies from then on. Where the gang
        # has failed already, it reserves nothing.
        least = 0 if missed >= 0 else len(proposal) + 1
        decisions[part] = require_decided(
            await committers[shard].decide(replace(proposal, gang_minimum=least, prepared=True))
        )
        missed -= int((~_reserved(decisions[part])).sum())
    in_order = [decisions[part] for part in range(len(parts))]
    return await finish_prepared(ledger, parts, in_order, minimum)


def require_decided(decision: Decision) -> Decision:
    """The decision. Raises LedgerUnavailable for an old copy. Whoever sent the latest one sends it again,
    with a higher number; what an earlier copy prepared is its own, or ends by its lease."""
    if decision.old_copy:
        raise LedgerUnavailable("the worker has sent something again since; send this again, too")
    return decision


async def decide_alone(
    ledger: Ledger, decide: Callable[[Proposal], Awaitable[Decision]], shard: int, proposal: Proposal
) -> Decision:
    """The decision on a proposal whose pods are all on this shard, after the second phase where it takes one.
    `decide`: the first. Raises LedgerUnavailable."""
    looks_elsewhere = proposal.exclusive and ledger.shards > 1
    if looks_elsewhere:
        proposal = replace(proposal, prepared=True)
    decision = require_decided(await decide(proposal))
    if looks_elsewhere and _reserved(decision).any():
        elsewhere = await _held_elsewhere(ledger, shard, proposal, decision)
        if elsewhere is not None:
            return elsewhere
    elif not (decision.queries or decision.prepared):
        return decision
    (settled,) = await finish_prepared(ledger, [(shard, proposal)], [decision], proposal.gang_minimum)
    return settled


async def _held_elsewhere(
    ledger: Ledger, shard: int, proposal: Proposal, decision: Decision
) -> Decision | None:
    """DUPLICATE, if the only pod holds something that it was not proposed for. What is prepared for it here
    is aborted then. None: it may be committed. Of two proposals of one pod on two shards, each is prepared
    before it looks, so one at least sees the other."""
    if decision.nodes[0] != proposal.nodes[0, 0]:
        return decision
    found = await lookup_on_shards(ledger, proposal.uids)
    others = [held[0] for at, held in enumerate(found) if at != shard and held["node"][0] != NONE_U32]
    if not others or found[shard]["state"][0] != ReservationState.PREPARED:
        return None
    await ledger.abort(shard, proposal.uids, _commits(decision), proposal.writer)
    return replace(
        decision,
        seq=0,
        verdicts=np.full(1, Verdict.DUPLICATE, np.uint8),
        nodes=np.array([others[0]["node"]], np.uint32),
        duplicate_seqs=np.array([others[0]["seq"]], np.uint64),
        queries=(),
    )


async def finish_prepared(
    ledger: Ledger, parts: Parts, decisions: Sequence[Decision], minimum: int
) -> list[Decision]:
    """The second phase: validate the prepared pods, then commit or abort them."""
    decisions = await _validate(ledger, parts, decisions, minimum)
    commits = [_commits(decision) for decision in decisions]
    enough = sum(int(_reserved(decision).sum()) for decision in decisions) >= minimum
    if enough and await _commit_prepared(ledger, parts, decisions, commits):
        return [_with_commits(decision, seqs) for decision, seqs in zip(decisions, commits, strict=True)]
    if not minimum:
        raise LedgerUnavailable("a prepared commit expired before it could be committed; try again")
    for (shard, proposal), decision, seqs in zip(parts, decisions, commits, strict=True):
        at = _reserved(decision)
        if at.any():
            await ledger.abort(shard, proposal.uids[at], seqs[at], proposal.writer)
    return [_aborted(decision, proposal) for decision, (_, proposal) in zip(decisions, parts, strict=True)]


async def _validate(
    ledger: Ledger, parts: Parts, decisions: Sequence[Decision], minimum: int
) -> Sequence[Decision]:
    """The decisions after validation. Pods that it refuses are aborted."""
    to_validate = [
        (_place(proposal, position), part, position)
        for part, ((_, proposal), decision) in enumerate(zip(parts, decisions, strict=True))
        for position, query in enumerate(decision.queries)
        if query is not None
    ]
    queries = [decisions[part].queries[position] for _, part, position in sorted(to_validate)]
    if not any(query is not None and query.placed for query in queries):
        return decisions
    reserved = sum(int(_reserved(decision).sum()) for decision in decisions)
    first = parts[0][1]
    answers = await ledger.validate(
        [query for query in queries if query is not None],
        epoch=first.epoch,
        seen=first.seen_of(ledger.shards),
        may_refuse=reserved - minimum,
    )
    refused: list[dict[int, tuple[int, int]]] = [{} for _ in parts]
    for (_, part, position), answer in zip(sorted(to_validate), answers, strict=True):
        if answer is not None:
            refused[part][position] = answer
    validated = []
    for (shard, proposal), decision, unknown in zip(parts, decisions, refused, strict=True):
        at = sorted(unknown)
        if at:
            await ledger.abort(shard, proposal.uids[at], _commits(decision)[at], proposal.writer)
        validated.append(_with_refusals(decision, proposal, unknown) if at else decision)
    return validated


def _place(proposal: Proposal, position: int) -> tuple[int, int]:
    """A key that sorts pods in the order in which the worker placed them: by priority first."""
    place = position if proposal.places is None else int(proposal.places[position])
    return -int(proposal.priorities[proposal.slots[position]]), place


async def _commit_prepared(
    ledger: Ledger, parts: Parts, decisions: Sequence[Decision], commits: Sequence[NDArray[np.uint64]]
) -> bool:
    """Commit all prepared pods. False: some are gone. Updates `commits`, the commit of each reserved pod."""
    for part in _ascending(parts):
        shard, proposal = parts[part]
        at, seqs = _reserved(decisions[part]), commits[part]
        if at.any():
            committed_seqs = await ledger.commit_prepared(
                shard, proposal.uids[at], seqs[at], proposal.writer, lease_ms=proposal.lease_ms
            )
            seqs[at] = np.where(committed_seqs > 0, committed_seqs, seqs[at])
            if not committed_seqs.all():
                return False
    return True


def _ascending(parts: Parts) -> list[int]:
    """The parts in ascending order of their shards."""
    return sorted(range(len(parts)), key=lambda part: parts[part][0])


def _with_commits(decision: Decision, commits: NDArray[np.uint64]) -> Decision:
    """The decision with these commits."""
    committed = commits[decision.verdicts == Verdict.COMMITTED]
    duplicate_seqs = commits[decision.verdicts == Verdict.DUPLICATE]
    return replace(
        decision, seq=int(committed[0]) if len(committed) else 0, duplicate_seqs=duplicate_seqs, queries=()
    )


def _reserved(decision: Decision) -> NDArray[np.bool_]:
    return np.isin(decision.verdicts, (Verdict.COMMITTED, Verdict.DUPLICATE))


def _commits(decision: Decision) -> NDArray[np.uint64]:
    """The commit that reserved each pod, for pods that are reserved."""
    seqs = np.full(len(decision.verdicts), decision.seq, np.uint64)
    seqs[decision.verdicts == Verdict.DUPLICATE] = decision.duplicate_seqs
    return seqs


def _with_refusals(decision: Decision, proposal: Proposal, unknown: dict[int, tuple[int, int]]) -> Decision:
    """The decision with these pods refused for what their worker did not know."""
    at = sorted(unknown)
    verdicts, nodes = decision.verdicts.copy(), decision.nodes.copy()
    duplicate = decision.verdicts == Verdict.DUPLICATE
    verdicts[at], nodes[at] = Verdict.CONFLICT_TOPOLOGY, proposal.nodes[at, 0]
    evidence = [(position, int(proposal.nodes[position, 0]), 0, unknown[position][1], 0) for position in at]
    awaits = dict(decision.awaits)
    for shard, seq in unknown.values():
        awaits[shard] = max(awaits.get(shard, 0), seq)
    return replace(
        decision,
        verdicts=verdicts,
        nodes=nodes,
        conflicts=np.sort(
            np.concatenate([decision.conflicts, np.array(evidence, CONFLICT)]), order="position"
        ),
        duplicate_seqs=_commits(decision)[duplicate & (verdicts == Verdict.DUPLICATE)],
        awaits=tuple(sorted(awaits.items())),
    )


def _aborted(decision: Decision, proposal: Proposal) -> Decision:
    """The decision after everything was aborted."""
    at = _reserved(decision)
    return replace(
        decision,
        seq=0,
        verdicts=np.where(at, np.uint8(Verdict.GANG_ABORTED), decision.verdicts),
        nodes=np.where(at, proposal.nodes[:, 0], decision.nodes),
        duplicate_seqs=decision.duplicate_seqs[:0],
        queries=(),
    )


def _untried(proposal: Proposal) -> Decision:
    """The decision of a shard that was not asked, because the gang had failed before."""
    return Decision.of_none(np.full(len(proposal), Verdict.GANG_ABORTED, np.uint8), proposal)
