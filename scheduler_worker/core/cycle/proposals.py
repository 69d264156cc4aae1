"""Proposals: the draft, what is closed and not sent, and what waits for the ledger's verdict.

A pod of a proposal leaves it by one verdict: it is answered, or it goes back to the backlog as part of a
`SettledProposals`. The cache counts the pod until then."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.cache.assumptions import Assumption
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.draft import Draft, PendingProposal
from scheduler_worker.core.cycle.pre_binding import PodsToPrepare, PreBinding
from scheduler_worker.core.cycle.refusals import ConflictAttribution, Contention
from scheduler_worker.core.framework.extension_points import NO_REASON, Diagnosis
from scheduler_worker.core.messages import Outcome, ProposalColumns, VerdictCode, Verdicts
from scheduler_worker.core.placement.run_placer import Placed
from scheduler_worker.core.preemption.evaluator import Preemptor, Victims
from scheduler_worker.core.work import OutcomeCollector, Run, Work

# Refusals that only the feed can explain: it shows other pods and node specs. Verdicts bring amounts, but
# only of the nodes that refused. In contention the other nodes are as likely to be taken.
_EXPLAINED_BY_FEED = (VerdictCode.CONFLICT_PORT, VerdictCode.CONFLICT_TOPOLOGY, VerdictCode.CONFLICT_VERSION)


@dataclass(slots=True)
class SettledProposals:
    """A verdict's consequences for the backlog and for preemption."""

    work: Work
    shard: int
    fenced: bool = False  # the ledger refuses everything of this epoch
    again: list[Run] = field(default_factory=list)  # refused: to be placed again at once
    later: list[Run] = field(default_factory=list)  # the same, once the view stands at `awaited`
    awaited: dict[int, int] = field(default_factory=dict)  # seqs by shard
    victims: list[tuple[Victims, int]] = field(default_factory=list)  # with the seq of the eviction; 0: none


class Proposals:
    """See the module. Numbers proposals, and has the cache track what they assume."""

    def __init__(
        self,
        cache: NodeInfoCache,
        outcomes: OutcomeCollector,
        refusals: ConflictAttribution,
        *,
        tries: int,
        assumption_seconds: float,
        clock: Callable[[], float],
        pre_binding: PreBinding | None = None,
    ) -> None:
        """See SchedulerLimits for the first two numbers. `pre_binding`: has reserved pods prepared; None:
        they are bound."""
        self.draft = Draft()
        self.proposed = 0  # pods of drafts proposed, ever, each as often as it was
        self.conflicts = 0  # refusals by the ledger, ever
        self.contention = Contention()
        self._cache = cache
        self._outcomes = outcomes
        self._refusals = refusals
        self._tries = tries
        self._assumption_seconds = assumption_seconds
        self._clock = clock
        self._pre_binding = pre_binding
        self._preempting: list[PendingProposal] = []  # closed and not sent
        self._sent: dict[int, PendingProposal] = {}
        self._next_id = 1

    def __bool__(self) -> bool:
        """Whether any pod is placed and not decided."""
        return bool(self.draft.pods) or self.undecided

    @property
    def undecided(self) -> bool:
        """Whether any proposal is closed and without a verdict."""
        return bool(self._sent or self._preempting)

    def work_of(self, batch_id: int) -> int | None:
        """The work batch that a sent proposal belongs to."""
        proposal = self._sent.get(batch_id)
        return None if proposal is None else proposal.work.batch_id

    def take_id(self) -> int:
        """A number that no other message to the ledger has."""
        self._next_id += 1
        return self._next_id - 1

    # Before they are sent

    def preempt(
        self,
        run: Run,
        preemptors: Sequence[Preemptor],
        *,
        first: bool,
        reserved_names: tuple[str, ...],
        now: float,
    ) -> list[PendingProposal]:
        """Close proposals for the first pods of the run, which are placed where others are to be evicted.
        `first`: as the first of their kind. `reserved_names`: see Draft.add."""
        nodes, masks, victims = zip(*preemptors, strict=True)
        no_alternates = np.empty((len(preemptors), 0), np.intp)
        draft = Draft()
        placed = Placed(np.array(nodes), no_alternates, np.concatenate(masks))
        draft.add(run, placed, victims, first=first, reserved_names=reserved_names)
        closed = self._close(draft, now)
        self._preempting += closed
        return closed

    def withdraw(self, closed: Sequence[PendingProposal]) -> list[SettledProposals]:
        """Give back what these proposals of preemptors assumed, and keep their victims. They are not sent."""
        settled = []
        for proposal in closed:
            self._preempting.remove(proposal)
            none = np.zeros(len(proposal.rows), np.uint64)
            self._cache.forget(proposal.assumption, np.arange(len(proposal.rows)))
            victims = self._settle_victims(proposal, none, none)
            settled.append(SettledProposals(proposal.work, proposal.columns.shard, victims=victims))
        return settled

    def discard(self, draft: Draft) -> None:
        """Give back what the draft's pods assumed; nothing of it is proposed."""
        for proposal in self._close(draft, 0.0):
            self._cache.forget(proposal.assumption, np.arange(len(proposal.rows)))

    def take(self, now: float) -> tuple[list[ProposalColumns], list[Assumption]]:
        """All that is to be sent to the ledger at `now`; and what the draft's proposals assume."""
        together = self.draft.depends_on_pods
        drafted = self._close(self.draft, now)
        preempting, self._preempting = self._preempting, []
        self._sent.update((proposal.columns.batch_id, proposal) for proposal in (*drafted, *preempting))
        pods = sum(len(proposal.rows) for proposal in drafted)
        self.proposed += pods
        columns = [proposal.columns for proposal in drafted]
        if drafted:
            work = drafted[0].work
            minimum = pods if work.transactional else work.missing
            if minimum or together:
                columns = [replace(columns[0], gang_minimum=minimum, parts=tuple(columns[1:]))]
        columns += [proposal.columns for proposal in preempting]
        return columns, [proposal.assumption for proposal in drafted]

    def _close(self, draft: Draft, now: float) -> list[PendingProposal]:
        expires_at = now + self._assumption_seconds
        proposals = draft.close(self._cache, self._next_id, proposed_at=now, expires_at=expires_at)
        self._next_id += len(proposals)
        for proposal in proposals:
            self._cache.track(proposal.assumption)
        return proposals

    # Verdicts

    def settle(self, batch_id: int, answer: Verdicts) -> SettledProposals | None:
        """Take in a verdict: bound pods are answered, refused ones are to be placed again. None for a
        proposal of a former epoch, or one decided before."""
        proposal = self._sent.pop(batch_id, None)
        if proposal is None:
            return None
        verdicts, shard, work = answer.verdicts, proposal.columns.shard, proposal.work
        work.decided(proposal.proposed_at, self._clock())
        committed, duplicate = verdicts == VerdictCode.COMMITTED, verdicts == VerdictCode.DUPLICATE
        # A duplicate is bound where it stands, by an earlier commit: mostly of this same proposal, which was
        # sent again.
        seqs = np.full(len(verdicts), answer.seq, np.uint64)
        seqs[duplicate] = answer.duplicate_seqs
        bound = np.flatnonzero(committed | duplicate)
        moved = np.flatnonzero(duplicate | (committed & (answer.nodes != proposal.columns.candidates[:, 0])))
        self._move(proposal, moved, answer.nodes, seqs)
        self._cache.forget(proposal.assumption, np.flatnonzero(~committed))
        self._cache.confirm(proposal.assumption, shard, answer.seq)
        self._cache.apply_fresh(answer.fresh)
        stale = verdicts == VerdictCode.STALE_EPOCH
        settlement = SettledProposals(work, shard, fenced=bool(stale.any()))
        settlement.victims = self._settle_victims(proposal, verdicts, seqs)
        self._reserved(proposal, bound, answer.nodes[bound], seqs[bound])
        self._outcomes.give(work, proposal.rows[stale], Outcome.FENCED)
        self._retry(settlement, proposal, np.flatnonzero(~committed & ~duplicate & ~stale), answer)
        return settlement

    def _reserved(
        self,
        proposal: PendingProposal,
        bound: NDArray[np.intp],
        nodes: NDArray[np.uint32],
        seqs: NDArray[np.uint64],
    ) -> None:
        """These pods of a proposal are bound by the entries `seqs` of the shard, or first to be prepared."""
        work, rows, shard = proposal.work, proposal.rows[bound], proposal.columns.shard
        work.reserved(len(bound))
        commits = tuple((shard, seq) for seq in np.unique(seqs).tolist())
        if self._pre_binding is None:
            for commit in commits:
                work.committed_in(*commit)
            self._outcomes.give(work, rows, Outcome.BOUND, nodes=nodes)
            return
        specs = tuple(run.pod_class.spec for run in proposal.runs)
        classes = proposal.assumption.slots[bound]
        whole = proposal.runs if work.gang is None else work
        self._pre_binding.add(PodsToPrepare(work, rows, nodes, specs, classes, commits, whole))

    def reject(self, batch_id: int, reason: str) -> SettledProposals | None:
        """The resolver called the whole proposal malformed: nothing of it is in the ledger, and its pods are
        answered as invalid."""
        proposal = self._sent.pop(batch_id, None)
        if proposal is None:
            return None
        work, none = proposal.work, np.zeros(len(proposal.rows), np.uint64)
        self._cache.forget(proposal.assumption, np.arange(len(proposal.rows)))
        victims = self._settle_victims(proposal, none, none)
        rows = np.concatenate([proposal.rows, *(run.rows for run in work.take_unplaced())])
        self._outcomes.give(work, rows, Outcome.INVALID, why=Diagnosis(reason))
        return SettledProposals(work, proposal.columns.shard, victims=victims)

    def drop(self) -> None:
        """Another epoch: the ledger refuses all of it. The cache gives back what is tracked, see
        `NodeInfoCache.forget_unanswered`."""
        for group, nodes in self.draft.placements:
            self._cache.forget_group(group, nodes)
        self.draft.clear()
        self._preempting.clear()
        self._sent.clear()

    def _move(
        self,
        proposal: PendingProposal,
        rows: NDArray[np.intp],
        nodes: NDArray[np.uint32],
        seqs: NDArray[np.uint64],
    ) -> None:
        """Count these pods where the ledger put them, until the feed shows the commits that did it."""
        assumption = proposal.assumption
        self._cache.forget(assumption, rows)
        slots = assumption.slots[rows]
        for slot, seq in sorted(set(zip(slots.tolist(), seqs[rows].tolist(), strict=True))):
            of_commit = nodes[rows[(slots == slot) & (seqs[rows] == seq)]].astype(np.intp)
            pod_class = proposal.runs[slot].pod_class
            masks = self._cache.assume(of_commit, pod_class.demand, pod_class.group)
            part = replace(
                assumption, nodes=of_commit, slots=np.full(len(of_commit), slot), card_masks=masks, seq=0
            )
            self._cache.track(part)
            self._cache.confirm(part, proposal.columns.shard, seq)

    def _settle_victims(
        self, proposal: PendingProposal, verdicts: NDArray[Any], seqs: NDArray[np.uint64]
    ) -> list[tuple[Victims, int]]:
        """Victims are evicted by the commit of their preemptor, or stay. With each the commit's seq, or 0."""
        settled = []
        for position, victims in proposal.victims.items():
            evicted = verdicts[position] in (VerdictCode.COMMITTED, VerdictCode.DUPLICATE)
            seq = int(seqs[position]) if evicted else 0
            if evicted:
                self._cache.confirm(victims.vacated, proposal.columns.shard, seq)
                proposal.work.victims_leave(int(proposal.rows[position]), victims.leaving_ms)
            else:
                self._cache.forget(victims.vacated, np.arange(len(victims.uids)))
            settled.append((victims, seq))
        return settled

    def _retry(
        self,
        settlement: SettledProposals,
        proposal: PendingProposal,
        refused: NDArray[np.intp],
        answer: Verdicts,
    ) -> None:
        """Have these placed again, with what was left of their gang: at once, or when the view stands where
        they were refused."""
        work, shard = proposal.work, proposal.columns.shard
        aborted = int((answer.verdicts == VerdictCode.GANG_ABORTED).sum())
        self.contention.decided(len(answer.verdicts), len(refused) - aborted)
        if len(refused):
            self._count_refusals(proposal, refused, answer)
        elif work.gang is None:
            return
        settlement.awaited = {
            of_shard: seq
            for of_shard, seq in sorted(((shard, answer.as_of), *answer.awaits))
            if self._cache.seen(of_shard) < seq
        }
        waiting = np.isin(answer.verdicts, _EXPLAINED_BY_FEED) | bool(self.contention)
        waiting &= bool(settlement.awaited)
        # What was left of a gang is tried with the refused ones, and as often.
        again = [*work.take_unplaced(), *_runs_of(proposal, refused[~waiting[refused]])]
        # They have waited longest, and the numbers that came with the refusal are fresh now.
        settlement.again = self._tried_once_more(again)
        settlement.later = self._tried_once_more(_runs_of(proposal, refused[waiting[refused]]))
        if settlement.later:
            self._outcomes.want_refresh()

    def _count_refusals(self, proposal: PendingProposal, refused: NDArray[np.intp], answer: Verdicts) -> None:
        self.conflicts += len(refused)
        proposal.work.refused(proposal.rows[refused])
        self._refusals.refused(
            proposal.columns.shard,
            proposal.assumption.nodes[refused],
            answer.verdicts[refused],
            snapshot_seq=proposal.columns.snapshot_seq,
            as_of=answer.as_of,
            age_seconds=self._clock() - proposal.proposed_at,
        )

    def _tried_once_more(self, runs: list[Run]) -> list[Run]:
        """Count one more refusal of these runs. Returns those to be tried again; the others are answered."""
        again = []
        for run in runs:
            if run.tries + 1 < self._tries:
                again.append(replace(run, tries=run.tries + 1))
                continue
            # Preemptors as well: the ledger refused them for something that has happened already, and nothing
            # that is still to come would wake them.
            self._outcomes.want_refresh()
            self._outcomes.give(run.work, run.rows, Outcome.CONFLICT, why=run.evicting or NO_REASON)
        return again


def _runs_of(proposal: PendingProposal, positions: NDArray[np.intp]) -> list[Run]:
    """These pods of a proposal, as parts of the runs they came from."""
    slots = proposal.assumption.slots[positions]
    return [
        replace(
            proposal.runs[slot],
            pod_class=proposal.runs[slot].pod_class.undecided(),
            rows=proposal.rows[positions[slots == slot]],
        )
        for slot in np.unique(slots).tolist()
    ]
