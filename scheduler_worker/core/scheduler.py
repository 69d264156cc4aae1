"""The scheduling cycle: work batches in, proposals out, verdicts in, outcomes out. No step waits for anything.

A pod is in exactly one place: a run still to be placed, the draft, a proposal without a verdict, or an answer.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from hoss.errors import InvalidInput
from hoss.model.cluster import Service
from hoss.model.pod import PodSpec
from hoss.wire.columns import Uids
from scheduler_worker.core.assumptions import Assumption
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.classes import Demand, DemandTable, PodClass
from scheduler_worker.core.codes import Outcome, Verdict
from scheduler_worker.core.diagnosis import Diagnosis, diagnose, gang_error
from scheduler_worker.core.framework import Profile
from scheduler_worker.core.guard import PluginFailed
from scheduler_worker.core.messages import ProposalColumns, Verdicts
from scheduler_worker.core.placement import RunPlacer
from scheduler_worker.core.pod_ranking import PodRanking
from scheduler_worker.core.proposal import Draft, Proposal
from scheduler_worker.core.questions import NamespaceLabels, PodGroup, group_of
from scheduler_worker.core.ranking import Ranking
from scheduler_worker.core.static import StaticFits
from scheduler_worker.core.ties import TieOrder
from scheduler_worker.core.work import Gang, OutcomeColumns, Run, Work, mixed_runs_of, runs_of

_MAX_KNOWN_FAILURES = 100


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one worker's scheduling."""

    proposal_pods: int = 1000  # the ledger's script must not run long
    tries: int = 3  # proposals per pod and dispatch; then the dispatcher decides anew
    alternates: int = 2  # further nodes named with each choice
    assumption_seconds: float = 120.0  # until an assumption nobody answered is given back
    ranking_bytes: int = 24 * 2**20  # for the columns of rankings


class Scheduler:
    """Places pods in one worker's cache and keeps track of them until they are answered for."""

    def __init__(
        self, cache: NodeInfoCache, profile: Profile, rng: np.random.Generator, limits: Limits | None = None
    ) -> None:
        self.cache = cache
        self.limits = limits or Limits()
        self.conflicts = 0  # refusals by the ledger, ever
        self.news_wanted = False  # whether a newer view would have helped some pod; for the caller to take back
        self._profile = profile
        self._rng = rng
        self._ties = TieOrder(rng)
        self._statics = StaticFits(profile, cache)
        self._placer = RunPlacer(cache, self._ties, alternates=self.limits.alternates)
        census = cache.census if cache.counts_pods else None
        self._demands = DemandTable(cache.schema, cache.catalogue.images, census)
        self._classes: dict[int, PodClass] = {}
        self._rankings: OrderedDict[Demand, Ranking] = OrderedDict()
        self._ranking_bytes_per_node = 0  # of all of them
        self._runs: deque[Run] = deque()
        self._held: list[tuple[dict[int, int], Run]] = []  # until the cache stands at these seqs, by shard
        self._draft = Draft()
        self._proposals: dict[int, Proposal] = {}
        self._answered: dict[Work, None] = {}  # with answers to take, an ordered set
        self._failures: dict[str, PluginFailed | None] = {}  # by text; None: taken
        self._next_id = 1

    # Work

    def look_around(self, namespaces: NamespaceLabels, services: Iterable[Service]) -> None:
        """These namespaces and services are there from now on, and no others."""
        self.cache.census.set_namespaces(namespaces)
        self._demands.set_services(services)

    def define_class(self, number: int, spec: PodSpec) -> None:
        """Class `number` is `spec` from now on."""
        self._classes[number] = self._demands.compile(spec)

    def forget_classes(self, numbers: Iterable[int]) -> None:
        """These numbers come no more."""
        for number in numbers:
            self._classes.pop(number, None)

    def accept(
        self,
        batch_id: int,
        uids: Uids,
        run_classes: NDArray[np.uint32],
        run_counts: NDArray[np.uint32],
        run_attempts: NDArray[np.uint16],
        *,
        gang: Gang | None = None,
    ) -> None:
        """Queue a work batch. InvalidInput for classes never defined and counts that do not add up."""
        if int(run_counts.sum()) != len(uids):
            raise InvalidInput(f"runs of {run_counts.sum()} pods with {len(uids)} UIDs", where=f"work batch {batch_id}")
        unknown = [n for n in run_classes.tolist() if n not in self._classes]
        if unknown:
            raise InvalidInput(f"class {unknown[0]} was never defined", where=f"work batch {batch_id}")
        if gang is not None and gang.minimum > len(uids):
            raise InvalidInput(f"{gang.minimum} of {len(uids)} pods", where=f"work batch {batch_id}, gang {gang.name}")
        classes = [self._classes[n] for n in run_classes.tolist()]
        self._observe(classes, run_counts, run_attempts)
        work = Work(batch_id, uids, gang)
        if self._profile.mixes and gang is None:
            self._runs.extend(mixed_runs_of(work, classes, run_counts, run_attempts, self._rng))
        else:
            self._runs.extend(runs_of(work, classes, run_counts, run_attempts))

    @property
    def backlog(self) -> int:
        """Pods not yet placed."""
        return sum(len(run.rows) for run in (*self._runs, *(run for _, run in self._held)))

    @property
    def idle(self) -> bool:
        """Whether every pod is answered for and the ledger owes no answer."""
        return not (self._runs or self._held or self._draft.pods or self._proposals or self.cache.undecided)

    def step(self) -> int:
        """Place the next run, as far as the draft has room. How many pods that settled; 0: nothing can be done now.

        0 with runs left means that the draft must be taken first, or a verdict be heard.
        """
        room = self.limits.proposal_pods - self._draft.pods
        if not self._runs or room <= 0 or self._draft.work not in (None, self._runs[0].work):
            return 0
        work = self._runs[0].work
        together = takewhile(lambda run: run.work is work, self._runs) if work.missing else (self._runs[0],)
        if self._proposals and any(_counts_on_others(run) for run in together):
            return 0  # spreading counts on pods placed before, and some of them may be refused
        if work.missing:
            return 0 if self._draft.pods else self._step_gang()
        run = self._current(self._runs.popleft())
        if len(run.rows) > room:
            self._runs.appendleft(replace(run, rows=run.rows[room:]))
            run = replace(run, rows=run.rows[:room])
        count, why_not = self._place(run)
        if why_not is not None:
            self._refuse(run.work, run.rows[count:], why_not)
        return len(run.rows)

    def take_proposals(self, now: float) -> list[ProposalColumns]:
        """What was placed since the last time, to be sent to the ledger."""
        proposals = self._close_draft(now + self.limits.assumption_seconds)
        for proposal in proposals:
            self._proposals[proposal.columns.batch_id] = proposal
        columns = [proposal.columns for proposal in proposals]
        if proposals and proposals[0].work.missing:
            return [replace(columns[0], gang_minimum=proposals[0].work.missing, parts=tuple(columns[1:]))]
        return columns

    def take_outcomes(self) -> list[OutcomeColumns]:
        """Answers since the last time, one message a work batch."""
        works, self._answered = self._answered, {}
        return [outcomes for work in works if (outcomes := work.take_outcomes()) is not None]

    def take_failures(self) -> list[PluginFailed]:
        """What went wrong in plugins from outside, each kind of failure once."""
        taken = [failure for failure in self._failures.values() if failure is not None]
        if taken:
            self._failures = dict.fromkeys(self._failures)
            if len(self._failures) > _MAX_KNOWN_FAILURES:
                self._failures.clear()  # their texts differ each time; better told twice than remembered for ever
        return taken

    # Verdicts

    def settle(self, batch_id: int, answer: Verdicts) -> bool:
        """Take in a verdict: bound pods are answered for, refused ones placed again. False: this epoch is fenced.

        The verdicts on all parts of a gang are to be taken in before the next step.
        """
        proposal = self._proposals.pop(batch_id, None)
        if proposal is None:
            return True  # of a former epoch, or answered twice
        verdicts, shard = answer.verdicts, proposal.columns.shard
        committed, duplicate = verdicts == Verdict.COMMITTED, verdicts == Verdict.DUPLICATE
        # A duplicate is bound where it stands, by an earlier commit: mostly of this same proposal, sent again.
        seqs = np.full(len(verdicts), answer.seq, np.uint64)
        seqs[duplicate] = answer.duplicate_seqs
        bound = np.flatnonzero(committed | duplicate)
        moved = np.flatnonzero(duplicate | (committed & (answer.nodes != proposal.columns.candidates[:, 0])))
        self._move(proposal, moved, answer.nodes, seqs)
        self.cache.forget(proposal.assumption, np.flatnonzero(~committed))
        self.cache.confirm(proposal.assumption, shard, answer.seq)
        self.cache.apply_fresh(answer.fresh)
        for seq in np.unique(seqs[bound]).tolist():
            proposal.work.committed_in(shard, seq)
        self._answer(proposal.work, proposal.rows[bound], Outcome.BOUND, nodes=answer.nodes[bound])
        fenced = np.flatnonzero(verdicts == Verdict.STALE_EPOCH)
        self._answer(proposal.work, proposal.rows[fenced], Outcome.FENCED)
        self._retry(proposal, np.flatnonzero(~committed & ~duplicate & (verdicts != Verdict.STALE_EPOCH)), answer)
        return len(fenced) == 0

    def resume(self, shard: int, *, snapshot: bool = False) -> bool:
        """The cache has heard of the shard: try those again that waited for it. Whether there are any.

        A snapshot ends every wait: the shard's history may have begun anew.
        """
        seq = self.cache.seqs.get(shard, 0)
        for awaited, _ in self._held:
            if shard in awaited and (snapshot or awaited[shard] <= seq):
                del awaited[shard]
        due = [run for awaited, run in self._held if not awaited]
        if due:
            self._held = [held for held in self._held if held[0]]
            self._runs.extendleft(reversed(due))
        return bool(due)

    def reject(self, batch_id: int, reason: str) -> None:
        """The resolver called the whole proposal malformed: nothing of it is in the ledger."""
        proposal = self._proposals.pop(batch_id, None)
        if proposal is not None:
            self.cache.forget(proposal.assumption, np.arange(len(proposal.rows)))
            left = [run.rows for run in proposal.work.take_left()]
            self._answer(proposal.work, np.concatenate([proposal.rows, *left]), Outcome.INVALID, reason=reason)

    # Endings

    def drain(self) -> None:
        """Give back what was not started."""
        for run in (*self._runs, *(run for _, run in self._held)):
            self._answer(run.work, run.rows, Outcome.RETURNED)
        self._runs.clear()
        self._held.clear()

    def drop_everything(self) -> None:
        """Another epoch begins: the dispatcher gives all pods in hand to whom it likes, and the ledger refuses ours."""
        self._runs.clear()
        self._held.clear()
        for pod_class, nodes in self._draft.placements:
            self.cache.forget_group(self._group(pod_class), nodes)
        self._draft.clear()
        self._proposals.clear()
        self._answered.clear()
        self._classes.clear()
        self.cache.forget_unanswered()

    # Within

    def _observe(self, classes: list[PodClass], counts: NDArray[np.uint32], attempts: NDArray[np.uint16]) -> None:
        for observer in self._profile.observers:
            for index in np.flatnonzero(attempts == 0).tolist():
                observer.observe(classes[index].demand, int(counts[index]))

    def _answer(
        self,
        work: Work,
        rows: NDArray[np.intp],
        code: Outcome,
        *,
        nodes: NDArray[np.uint32] | None = None,
        reason: str = "",
    ) -> None:
        if len(rows):
            work.answer(rows, code, nodes=nodes, reason=reason)
            self._answered[work] = None

    def _refuse(self, work: Work, rows: NDArray[np.intp], why: Diagnosis) -> None:
        work.refuse(rows, why, self.cache.seqs)
        self._answered[work] = None
        self.news_wanted = True

    def _step_gang(self) -> int:
        """Place what fits of the next gang if that makes its minimum, else nothing of it."""
        work = self._runs[0].work
        runs: list[Run] = []
        while self._runs and self._runs[0].work is work:
            runs.append(self._current(self._runs.popleft()))
        # Large pods first: small ones spread, and would leave none of the nodes to them.
        runs.sort(key=lambda run: self.cache.share(run.pod_class.demand), reverse=True)
        if any(
            _counts_on_others(run) for run in runs
        ):  # in the ledger's order, so that it judges what was counted on first
            runs.sort(key=lambda run: -run.pod_class.priority)
        reason: Diagnosis | None = None
        for run in runs:
            count, why_not = self._place(run)
            if why_not is not None:
                work.left.append(replace(run, rows=run.rows[count:]))
                reason = reason or why_not
        fitting, needed = self._draft.pods, work.missing
        if fitting < needed and work.gang is not None and reason is not None:
            self._forget_draft()
            work.take_left()
            why = Diagnosis(gang_error(work.gang.name, fitting, needed, reason.text), reason.refused_by)
            self._refuse(work, np.concatenate([run.rows for run in runs]), why)
        return sum(len(run.rows) for run in runs)

    def _place(self, run: Run) -> tuple[int, Diagnosis | None]:
        """Put into the draft what fits of a run: how many pods, and why not the others."""
        count = 0
        try:
            ranking = self._ranking(run.pod_class.demand)
            placed = self._placer.place(ranking, len(run.rows), self._group(run.pod_class))
            count = len(placed.nodes)
            if count:
                self._draft.add(run, placed)
            if count == len(run.rows):
                return count, None
            ranking.refresh()
            return count, ranking.diagnosis(lambda: diagnose(ranking, self._profile, self.cache))
        except PluginFailed as failure:
            self._failures.setdefault(str(failure), failure)
            return count, Diagnosis(str(failure), frozenset())

    def _close_draft(self, expires_at: float) -> list[Proposal]:
        cache = self.cache
        proposals = self._draft.close(
            self._next_id,
            cache.seqs,
            max(cache.shards, 1),
            len(cache.schema),
            expires_at,
            counted=cache.counts_pods,
        )
        self._next_id += len(proposals)
        for proposal in proposals:
            cache.track(proposal.assumption)
        return proposals

    def _forget_draft(self) -> None:
        """Placed, and not to be proposed after all."""
        for proposal in self._close_draft(0.0):
            self.cache.forget(proposal.assumption, np.arange(len(proposal.rows)))

    def _current(self, run: Run) -> Run:
        pod_class = self._demands.current(run.pod_class)
        return run if pod_class is run.pod_class else replace(run, pod_class=pod_class)

    def _group(self, pod_class: PodClass) -> PodGroup | None:
        """What the census counts pods of the class as; None where it counts none."""
        return group_of(pod_class.spec) if self.cache.counts_pods else None

    def _ranking(self, demand: Demand) -> Ranking:
        ranking = self._rankings.get(demand)
        if ranking is not None:
            self._rankings.move_to_end(demand)
            return ranking
        kind = PodRanking if demand.about_pods else Ranking
        ranking = kind(demand, self._statics.of(demand), self._profile, self.cache, self._ties)
        self._rankings[demand] = ranking
        self._ranking_bytes_per_node += ranking.bytes_per_node
        while self._ranking_bytes_per_node * self.cache.size > self.limits.ranking_bytes and len(self._rankings) > 1:
            _, dropped = self._rankings.popitem(last=False)
            self._ranking_bytes_per_node -= dropped.bytes_per_node
        return ranking

    def _move(
        self, proposal: Proposal, rows: NDArray[np.intp], nodes: NDArray[np.uint32], seqs: NDArray[np.uint64]
    ) -> None:
        """These pods of a proposal count where the ledger put them, until the feed shows the commits that did it."""
        assumption = proposal.assumption
        self.cache.forget(assumption, rows)
        slots = assumption.slots[rows]
        for slot, seq in sorted(set(zip(slots.tolist(), seqs[rows].tolist(), strict=True))):
            of_commit = nodes[rows[(slots == slot) & (seqs[rows] == seq)]].astype(np.intp)
            pod_class = proposal.runs[slot].pod_class
            masks = self.cache.assume(of_commit, pod_class.demand, self._group(pod_class))
            part = Assumption(
                nodes=of_commit,
                slots=np.full(len(of_commit), slot),
                requests=assumption.requests,
                card_masks=masks,
                card_millis=assumption.card_millis,
                expires_at=assumption.expires_at,
                groups=assumption.groups,
            )
            self.cache.track(part)
            self.cache.confirm(part, proposal.columns.shard, seq)

    def _retry(self, proposal: Proposal, refused: NDArray[np.intp], answer: Verdicts) -> None:
        self.conflicts += len(refused)
        slots = proposal.assumption.slots[refused]
        shard = proposal.columns.shard
        # What other pods are in the way of only the feed tells; room came with the answer.
        unseen = np.isin(answer.verdicts, (Verdict.CONFLICT_PORT, Verdict.CONFLICT_TOPOLOGY))
        unseen &= self.cache.seqs.get(shard, 0) < answer.as_of
        # What was left of a gang shares the fate of those refused: it is tried with them, and as often.
        unbound = [(run, False) for run in proposal.work.take_left()]
        for slot in np.unique(slots).tolist():
            of_slot = refused[slots == slot]
            for waits in (False, True):
                rows = proposal.rows[of_slot[unseen[of_slot] == waits]]
                if len(rows):
                    unbound.append((replace(proposal.runs[slot], rows=rows), waits))
        again: list[Run] = []
        held: list[Run] = []
        for run, waits in unbound:
            if run.tries + 1 >= self.limits.tries:
                self._answer(run.work, run.rows, Outcome.CONFLICT)
                self.news_wanted = True
            else:
                (held if waits else again).append(replace(run, tries=run.tries + 1))
        self.news_wanted |= bool(held)
        if proposal.work.gang is not None:
            self._retry_gang(proposal.work, [*again, *held], {shard: answer.as_of} if held else {})
            return
        self._held.extend(({shard: answer.as_of}, run) for run in held)
        # They have waited longest, and the numbers that came with the refusal are fresh now.
        self._runs.extendleft(reversed(again))

    def _retry_gang(self, work: Work, runs: list[Run], awaited: dict[int, int]) -> None:
        """Try these pods of a gang again, with those that verdicts on other parts left: all once nothing is awaited."""
        waiting = next((seqs for seqs, run in self._held if run.work is work), {})
        waiting.update(awaited)
        if waiting:
            runs = [*(run for run in self._runs if run.work is work), *runs]
            self._runs = deque(run for run in self._runs if run.work is not work)
            self._held.extend((waiting, run) for run in runs)
        else:
            self._runs.extendleft(reversed(runs))


def _counts_on_others(run: Run) -> bool:
    return any(constraint.required for constraint in run.pod_class.spec.spread)
