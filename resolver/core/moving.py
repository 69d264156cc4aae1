"""A move in one step, of a pod whose source and target are on one shard: the pod gets the target as its
reservation, confirmed, and gives the source up, or nothing changes (docs/adr/0097-moves-in-one-step.md).

No row of a target, no lease and no confirmation are in between: `resolver/core/moves.py` has the two steps that
pods on two shards need, and successors. All rules of a commit hold: the target must fit while the source
stands, and pods that are judged later may take the room that earlier ones left. `lua/move.lua` does the same
in Redis."""

import numpy as np
from numpy.typing import NDArray

from hoss.wire.columns import NONE_U32
from resolver.core.serving import Ruling, Serving
from resolver.core.shard import Ordered, Reservation, Shard, ShardChange, Uid, group_runs
from resolver.core.values import Proposal, Verdict


def move(shard: Shard, proposal: Proposal, source_seqs: NDArray[np.uint64]) -> list[Ruling]:
    """Rulings in the proposal's order. COMMITTED: the pod is on the target. DUPLICATE: it does not hold its source
    as it was, and nothing was changed; the node and commit are those of what it holds, and NONE_U32 and 0 if
    that is nothing, or only prepared."""
    seq, changed = shard.seq + 1, Ordered()
    serving = Serving(shard, proposal)
    shard.constraints.begin()
    rulings: dict[int, Ruling] = {}
    sources: dict[Uid, Reservation] = {}  # of moved pods
    order = proposal.serving_order()
    for position in range(len(proposal)) if order is None else order.tolist():
        uid = proposal.uids[position].tobytes()
        held = shard.reservations.get(uid)
        if held is None or shard.prepared.open(held.seq):
            rulings[position] = Ruling(Verdict.DUPLICATE, NONE_U32)
        elif held.seq != source_seqs[position] or held.is_terminating:
            rulings[position] = Ruling(Verdict.DUPLICATE, held.node, held.seq)
        else:
            rulings[position] = serving.place(position)
            if rulings[position].verdict is Verdict.COMMITTED:
                sources[uid] = held
                changed.add(rulings[position].node)
                _leave(shard, uid, held, seq, changed)
                # At once: the next pod must not get what this one's victims hold again.
                shard.settle_evictions((uid,))
    if sources:
        for node in changed:
            shard.fit_again(shard.accounts[node])
        came = group_runs((shard.reservations[uid] for uid in sources), gone=False)
        left = group_runs(sources.values(), gone=True)
        shard.publish(
            ShardChange(seq, tuple(changed), released=len(sources), runs=came + left, epoch=proposal.epoch)
        )
    return [rulings[position] for position in range(len(proposal))]


def _leave(shard: Shard, uid: Uid, held: Reservation, seq: int, changed: Ordered) -> None:
    if held.node in shard.accounts:  # else it is forgotten, or its account is damaged
        shard.return_resources(uid, held)
        shard.accounts[held.node].seq = seq
        changed.add(held.node)
