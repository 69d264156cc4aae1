"""What a proposal takes as a conflict although it fits, as the ledger's model judges it (docs/adr/0022-conflicts.md)."""

from collections.abc import Sequence
from typing import Protocol

from hoss.model.conflicts import Criteria
from resolver.core.values import Proposal

HISTORY = 64  # entries that are looked at; of older snapshots every change of a node counts


class Touched(Protocol):
    """An entry of a shard's history."""

    @property
    def seq(self) -> int:
        """Its number."""

    @property
    def nodes(self) -> Sequence[int]:
        """What changed."""

    @property
    def epoch(self) -> int:
        """Of the worker that committed it; 0: something else happened."""


def unaccepted_change(proposal: Proposal, node: int, changed: tuple[int, int], history: Sequence[Touched]) -> int:
    """The seq of a change since the proposal's snapshot that refuses its pods; 0: nothing does.

    `changed`: the seqs at which the node and its spec last changed. `history`: every entry of the shard, from 1 on.
    """
    seq, described = changed
    if proposal.criteria is Criteria.STRICT:
        return described if described > proposal.snapshot_seq else 0
    if proposal.criteria is Criteria.FIT or seq <= proposal.snapshot_seq:
        return 0
    since = history[proposal.snapshot_seq :]
    if len(since) > HISTORY:
        return seq
    return max((entry.seq for entry in since if entry.epoch != proposal.epoch and node in entry.nodes), default=0)
