"""Decides a proposal whose pods may displace others that nobody has confirmed yet (docs/adr/0022-conflicts.md).

Two commits: the second, of the pods that the first refused for room, names who goes. The script looks again whether these still
stand unconfirmed, so whatever happens in between, nobody goes in vain and no confirmed pod goes at all.
"""

from resolver.committer import Committer
from resolver.core.displacing import displacing, refused_for_room, with_displaced
from resolver.core.values import Decision, Proposal, Verdict
from resolver.ledger.port import Ledger


async def decide_displacing(ledger: Ledger, committer: Committer, proposal: Proposal) -> tuple[Decision, int]:
    """The decision, and how many pods were displaced. Raises LedgerUnavailable; the same may be asked again."""
    decision = await committer.decide(proposal)
    refused = refused_for_room(proposal, decision)
    if not len(refused) or decision.questions:
        return decision, 0
    assumed = await ledger.assumed(committer.shard, proposal.nodes[refused, 0])
    found = displacing(proposal, decision, refused, assumed)
    if found is None:
        return decision, 0
    positions, second_proposal = found
    second = await committer.decide(second_proposal)
    if second.questions:  # held for the judge of several shards: nobody went, and the holds end by themselves
        return decision, 0
    won = [place for place, verdict in enumerate(second.verdicts.tolist()) if verdict == Verdict.COMMITTED]
    displaced = sum(len(second_proposal.victims[place]) for place in won)
    return with_displaced(decision, positions, second), displaced
