"""Proposals in the hands of the ledger, and what its verdicts make of their pods: bound, fenced, or to be placed again."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.answers import Answers
from scheduler_worker.core.assumptions import Assumption
from scheduler_worker.core.backlog import Backlog
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.codes import Outcome, Verdict
from scheduler_worker.core.messages import Verdicts
from scheduler_worker.core.preempting import Preempting
from scheduler_worker.core.proposal import Proposal
from scheduler_worker.core.refusals import Refusals
from scheduler_worker.core.work import Run

# What other pods are in the way of, and what a node is, only the feed tells; room comes with the answer.
_TOLD_BY_FEED = (Verdict.CONFLICT_PORT, Verdict.CONFLICT_TOPOLOGY, Verdict.CONFLICT_VERSION)


class Settling:
    """A pod of a proposal leaves it by one verdict, for the answers or for the backlog."""

    def __init__(
        self,
        cache: NodeInfoCache,
        backlog: Backlog,
        preempting: Preempting,
        answers: Answers,
        refusals: Refusals,
        *,
        tries: int,
        assumption_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """A pod is placed again until it was refused `tries` times. `assumption_seconds` is how long after a proposal was
        made its assumption expires."""
        self.conflicts = 0  # refusals by the ledger, ever
        self._cache = cache
        self._backlog = backlog
        self._preempting = preempting
        self._answers = answers
        self._refusals = refusals
        self._tries = tries
        self._assumption_seconds = assumption_seconds
        self._clock = clock
        self._proposals: dict[int, Proposal] = {}

    def __bool__(self) -> bool:
        """Whether the ledger owes a verdict."""
        return bool(self._proposals)

    def work_of(self, batch_id: int) -> int | None:
        """The work batch that a proposal under way belongs to."""
        proposal = self._proposals.get(batch_id)
        return None if proposal is None else proposal.work.batch_id

    def propose(self, proposals: Iterable[Proposal]) -> None:
        """These are sent to the ledger."""
        for proposal in proposals:
            self._proposals[proposal.columns.batch_id] = proposal

    def settle(self, batch_id: int, answer: Verdicts) -> bool:
        """Take in a verdict: bound pods are answered for, refused ones placed again. False: this epoch is fenced."""
        proposal = self._proposals.pop(batch_id, None)
        if proposal is None:
            return True  # of a former epoch, or answered twice
        verdicts, shard = answer.verdicts, proposal.columns.shard
        proposal.work.decided(self._proposed_at(proposal), self._clock())
        committed, duplicate = verdicts == Verdict.COMMITTED, verdicts == Verdict.DUPLICATE
        # A duplicate is bound where it stands, by an earlier commit: mostly of this same proposal, sent again.
        seqs = np.full(len(verdicts), answer.seq, np.uint64)
        seqs[duplicate] = answer.duplicate_seqs
        bound = np.flatnonzero(committed | duplicate)
        moved = np.flatnonzero(duplicate | (committed & (answer.nodes != proposal.columns.candidates[:, 0])))
        self._move(proposal, moved, answer.nodes, seqs)
        self._cache.forget(proposal.assumption, np.flatnonzero(~committed))
        self._cache.confirm(proposal.assumption, shard, answer.seq)
        self._cache.apply_fresh(answer.fresh)
        for seq in np.unique(seqs[bound]).tolist():
            proposal.work.committed_in(shard, seq)
        self._settle_victims(proposal, verdicts, seqs)
        self._answers.give(proposal.work, proposal.rows[bound], Outcome.BOUND, nodes=answer.nodes[bound])
        stale = verdicts == Verdict.STALE_EPOCH
        self._answers.give(proposal.work, proposal.rows[stale], Outcome.FENCED)
        self._refused(proposal, np.flatnonzero(~committed & ~duplicate & ~stale), answer)
        return not stale.any()

    def reject(self, batch_id: int, reason: str) -> None:
        """The resolver called the whole proposal malformed: nothing of it is in the ledger."""
        proposal = self._proposals.pop(batch_id, None)
        if proposal is not None:
            self._cache.forget(proposal.assumption, np.arange(len(proposal.rows)))
            none = np.zeros(len(proposal.rows), np.uint64)
            self._settle_victims(proposal, none, none)
            left = [run.rows for run in proposal.work.take_left()]
            self._answers.give(proposal.work, np.concatenate([proposal.rows, *left]), Outcome.INVALID, reason=reason)

    def clear(self) -> None:
        """The ledger refuses all of them."""
        self._proposals.clear()

    def _move(
        self, proposal: Proposal, rows: NDArray[np.intp], nodes: NDArray[np.uint32], seqs: NDArray[np.uint64]
    ) -> None:
        """These pods of a proposal count where the ledger put them, until the feed shows the commits that did it."""
        assumption = proposal.assumption
        self._cache.forget(assumption, rows)
        slots = assumption.slots[rows]
        for slot, seq in sorted(set(zip(slots.tolist(), seqs[rows].tolist(), strict=True))):
            of_commit = nodes[rows[(slots == slot) & (seqs[rows] == seq)]].astype(np.intp)
            pod_class = proposal.runs[slot].pod_class
            masks = self._cache.assume(of_commit, pod_class.demand, pod_class.group)
            part = Assumption(
                nodes=of_commit,
                slots=np.full(len(of_commit), slot),
                requests=assumption.requests,
                card_masks=masks,
                card_millis=assumption.card_millis,
                expires_at=assumption.expires_at,
                groups=assumption.groups,
            )
            self._cache.track(part)
            self._cache.confirm(part, proposal.columns.shard, seq)

    def _settle_victims(self, proposal: Proposal, verdicts: NDArray[Any], seqs: NDArray[np.uint64]) -> None:
        """Victims are gone with the commit of the pod that they went for, or stay."""
        shard = proposal.columns.shard
        for position, victims in proposal.victims.items():
            reserved = verdicts[position] in (Verdict.COMMITTED, Verdict.DUPLICATE)
            self._preempting.decided(victims, shard=shard, seq=int(seqs[position]) if reserved else 0)
            if reserved:
                self._cache.confirm(victims.vacated, shard, int(seqs[position]))
                proposal.work.others_leave(int(proposal.rows[position]), victims.leaving_ms)
            else:
                self._cache.forget(victims.vacated, np.arange(len(victims.uids)))

    def _proposed_at(self, proposal: Proposal) -> float:
        return proposal.assumption.expires_at - self._assumption_seconds

    def _refused(self, proposal: Proposal, refused: NDArray[np.intp], answer: Verdicts) -> None:
        """Place these again, and what was left of their gang: at once, or when the view stands where they were refused."""
        if not len(refused) and proposal.work.gang is None:
            return
        shard = proposal.columns.shard
        self._note(proposal, refused, answer)
        awaited = {
            of_shard: seq
            for of_shard, seq in sorted(((shard, answer.as_of), *answer.awaits))
            if self._cache.seen(of_shard) < seq
        }
        waiting = np.isin(answer.verdicts, _TOLD_BY_FEED) & bool(awaited)
        # What was left of a gang shares the fate of those refused: it is tried with them, and as often.
        again = self._to_retry(proposal.work.take_left())
        again += self._to_retry(_runs_of(proposal, refused[~waiting[refused]]))
        held = self._to_retry(_runs_of(proposal, refused[waiting[refused]]))
        if held:
            self._answers.want_news()
        if proposal.work.gang is not None:
            self._backlog.put_gang(proposal.work, [*again, *held], awaited if held else {})
            return
        self._backlog.hold(held, awaited)
        # They have waited longest, and the numbers that came with the refusal are fresh now.
        self._backlog.put_first(again)

    def _note(self, proposal: Proposal, refused: NDArray[np.intp], answer: Verdicts) -> None:
        self.conflicts += len(refused)
        if len(refused):
            proposal.work.refused(proposal.rows[refused])
        self._refusals.refused(
            proposal.columns.shard,
            proposal.assumption.nodes[refused],
            answer.verdicts[refused],
            snapshot_seq=proposal.columns.snapshot_seq,
            as_of=answer.as_of,
            age_seconds=self._clock() - self._proposed_at(proposal),
        )

    def _to_retry(self, runs: list[Run]) -> list[Run]:
        """These, refused once more; those refused too often are answered for."""
        again = []
        for run in runs:
            if run.tries + 1 < self._tries:
                again.append(replace(run, tries=run.tries + 1))
                continue
            # Also of those that others were to go for: what the ledger refused them for lies behind them, and nothing
            # that is still to come would wake them.
            self._answers.want_news()
            why_not = "" if run.evicting is None else run.evicting.text
            self._answers.give(run.work, run.rows, Outcome.CONFLICT, reason=why_not)
        return again


def _runs_of(proposal: Proposal, positions: NDArray[np.intp]) -> list[Run]:
    """These pods of a proposal, as parts of the runs they came from."""
    slots = proposal.assumption.slots[positions]
    return [
        replace(proposal.runs[slot], rows=proposal.rows[positions[slots == slot]]) for slot in np.unique(slots).tolist()
    ]
