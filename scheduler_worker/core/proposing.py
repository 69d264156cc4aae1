"""What is placed and not yet sent: the draft, and proposals of pods for which others are to go."""

from dataclasses import replace

import numpy as np

from scheduler_worker.core.backlog import Backlog
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.messages import ProposalColumns
from scheduler_worker.core.proposal import Draft, Proposal
from scheduler_worker.core.settling import Settling


class Proposing:
    """Numbers proposals, and has the cache keep track of what they assume."""

    def __init__(
        self, cache: NodeInfoCache, backlog: Backlog, settling: Settling, *, assumption_seconds: float
    ) -> None:
        self.draft = Draft()
        self.proposed = 0  # pods proposed, ever, each as often as it was
        self._cache = cache
        self._backlog = backlog
        self._settling = settling
        self._assumption_seconds = assumption_seconds
        self._evicting: list[Proposal] = []
        self._next_id = 1

    def __bool__(self) -> bool:
        """Whether anything is placed and not sent."""
        return bool(self.draft.pods or self._evicting)

    @property
    def evicting(self) -> bool:
        """Whether others are to go for pods that are placed and not sent."""
        return bool(self._evicting)

    def take_id(self) -> int:
        """A number that no other message to the ledger has."""
        self._next_id += 1
        return self._next_id - 1

    def take(self, now: float) -> list[ProposalColumns]:
        """All of it, to be sent at `now`."""
        together = self.draft.counts_on_others
        proposals = self._close_draft(now + self._assumption_seconds)
        evicting, self._evicting = self._evicting, []
        self._settling.propose((*proposals, *evicting))
        self.proposed += sum(len(proposal.rows) for proposal in proposals)
        columns = [proposal.columns for proposal in proposals]
        if proposals and proposals[0].work.goes_alone:
            pods = sum(len(proposal.rows) for proposal in proposals)
            columns = [replace(columns[0], gang_minimum=pods, parts=tuple(columns[1:]))]
        elif proposals and proposals[0].work.missing:
            columns = [replace(columns[0], gang_minimum=proposals[0].work.missing, parts=tuple(columns[1:]))]
        elif together:
            columns = [replace(columns[0], parts=tuple(columns[1:]))]
        return columns + [proposal.columns for proposal in evicting]

    def evict(self, draft: Draft, expires_at: float) -> None:
        """These pods are placed where others are to go for them, and assumed until then."""
        self._evicting += self._close(draft, expires_at)

    def forget_draft(self) -> None:
        """Placed, and not to be proposed after all."""
        for proposal in self._close_draft(0.0):
            self._cache.forget(proposal.assumption, np.arange(len(proposal.rows)))

    def drop(self) -> None:
        """The ledger would refuse all of it. What is tracked is not given back here, see `forget_unanswered`."""
        for pod_class, nodes in self.draft.placements:
            self._cache.forget_group(pod_class.group, nodes)
        self.draft.clear()
        self._evicting.clear()

    def _close_draft(self, expires_at: float) -> list[Proposal]:
        proposals = self._close(self.draft, expires_at)
        self._backlog.drafted([proposal.assumption for proposal in proposals])
        return proposals

    def _close(self, draft: Draft, expires_at: float) -> list[Proposal]:
        cache = self._cache
        seen = tuple(map(cache.seen, range(cache.shards))) if cache.shards > 1 else ()
        proposals = draft.close(
            self._next_id,
            cache.seqs,
            max(cache.shards, 1),
            len(cache.schema),
            expires_at,
            seen=seen,
        )
        self._next_id += len(proposals)
        for proposal in proposals:
            cache.track(proposal.assumption)
        return proposals
