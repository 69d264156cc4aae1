"""The scheduling cycle: work batches in, proposals out, verdicts in, outcomes out. No step waits for anything.

A pod is in exactly one place: a run still to be placed, the draft, a proposal without a verdict, or an answer.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hoss.errors import InvalidInput
from hoss.model.cluster import Service
from hoss.model.conflicts import DEFAULT_CONFLICT_RULE, ConflictRule
from hoss.model.overlap import Preference
from hoss.model.pod import PodSpec
from hoss.model.selectors import NodeScope
from hoss.wire.columns import Uids
from scheduler_worker.core.announcements import Announcement, Announcements
from scheduler_worker.core.answers import Answers
from scheduler_worker.core.assumptions import Assumption
from scheduler_worker.core.backlog import Backlog
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.class_book import ClassBook
from scheduler_worker.core.classes import DemandTable, PodClass
from scheduler_worker.core.codes import Outcome
from scheduler_worker.core.costs import CostMeter
from scheduler_worker.core.diagnosis import Diagnosis, diagnose, gang_error
from scheduler_worker.core.framework import Profile
from scheduler_worker.core.glances import Glances
from scheduler_worker.core.guard import PluginFailed
from scheduler_worker.core.judge import Subject
from scheduler_worker.core.messages import ProposalColumns, Verdicts
from scheduler_worker.core.placement import RunPlacer
from scheduler_worker.core.preempting import Preempting, PreemptionAnswer, PreemptionQuestion
from scheduler_worker.core.preemption import NEVER
from scheduler_worker.core.proposal import Draft, Proposal
from scheduler_worker.core.questions import NamespaceLabels
from scheduler_worker.core.rankings import Rankings
from scheduler_worker.core.refusals import Refusals
from scheduler_worker.core.reliance import begins_a_kind, counts_on_others
from scheduler_worker.core.settling import Settling
from scheduler_worker.core.ties import NEAR_POINTS, TieOrder
from scheduler_worker.core.work import MAX_PRIORITY, Gang, OutcomeColumns, Run, Work, mixed_runs_of, runs_of

_MAX_KNOWN_FAILURES = 100

_ABOUT_ROOM = frozenset(
    {"NodeResourcesFit", "DeviceCards"}
)  # filters that own pods under way may make refuse for a moment


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one worker's scheduling."""

    proposal_pods: int = 1000  # the ledger's script must not run long
    tries: int = 3  # proposals per pod and dispatch; then the dispatcher decides anew
    alternates: int = 2  # further nodes named with each choice
    glance_nodes: int = 512  # looked at for a single pod of a class never met; 0: all there are
    assumption_seconds: float = 120.0  # until an assumption nobody answered is given back
    ranking_bytes: int = 24 * 2**20  # for the columns of rankings
    step_seconds: float = 0.1  # a step places no more than it should do in this time, or heartbeats would be late


class Scheduler:
    """Places pods in one worker's cache and keeps track of them until they are answered for."""

    def __init__(
        self,
        cache: NodeInfoCache,
        profile: Profile,
        rng: np.random.Generator,
        limits: Limits | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        *,
        announces: bool = False,
    ) -> None:
        """`clock` is read, in seconds, to measure what placing takes; without one all is free. `announces`: pods wait until the
        ledger knows their rules, so whoever says so has to send what `take_announcements` returns."""
        self.cache = cache
        self.limits = limits or Limits()
        self.proposed = 0  # pods proposed, ever, each as often as it was
        self.costs = CostMeter()
        self.refusals = Refusals()
        self._clock = clock
        self._profile = profile
        self._rng = rng
        # A profile that packs scores finely, and pays for every point that it gives away.
        self._ties = TieOrder(rng, near_points=1 if profile.mixes else NEAR_POINTS)
        self._placer = RunPlacer(cache, self._ties, alternates=self.limits.alternates)
        self._demands = DemandTable(cache.schema, cache.catalogue.images, cache.census)
        self._classes = ClassBook(self._demands)
        self._rankings = Rankings(profile, cache, self._ties, limit_bytes=self.limits.ranking_bytes)
        self._glances = Glances(
            cache,
            profile,
            self._rankings,
            self._ties,
            rng,
            nodes=self.limits.glance_nodes,
            alternates=self.limits.alternates,
        )
        self._backlog = Backlog()
        self._announces = announces
        self._announcements = Announcements()
        self._draft = Draft()
        self._answers = Answers()
        self._preempting = Preempting(cache, profile, rng)
        self._settling = Settling(
            cache,
            self._backlog,
            self._preempting,
            self._answers,
            self.refusals,
            tries=self.limits.tries,
            assumption_seconds=self.limits.assumption_seconds,
            clock=clock,
        )
        self._evicting: list[Proposal] = []  # to be sent
        self._failures: dict[str, PluginFailed | None] = {}  # by text; None: taken
        self._next_id = 1

    # Work

    def look_around(self, namespaces: NamespaceLabels, services: Iterable[Service]) -> None:
        """These namespaces and services are there from now on, and no others."""
        self.cache.census.set_namespaces(namespaces)
        self._demands.set_services(services)

    def prefer(self, preference: Preference) -> None:
        """How to order nodes that are about equally good, from now on."""
        self._ties.prefer(preference)

    def define_class(self, number: int, spec: PodSpec) -> None:
        """Class `number` is `spec` from now on."""
        self._classes.define(number, spec)

    def forget_classes(self, numbers: Collection[int]) -> None:
        """These numbers come no more."""
        self._classes.forget(numbers)
        self.costs.forget(numbers)

    def accept(
        self,
        batch_id: int,
        uids: Uids,
        run_classes: NDArray[np.uint32],
        run_counts: NDArray[np.uint32],
        run_attempts: NDArray[np.uint16],
        *,
        gang: Gang | None = None,
        scope: NodeScope | None = None,
        conflicts: ConflictRule = DEFAULT_CONFLICT_RULE,
        lowest_priority: int = MAX_PRIORITY,
    ) -> None:
        """Queue a work batch; `scope` and `conflicts` are what the policy says of its nodes and proposals. Pods of more than `lowest_priority` may have others
        go for them. InvalidInput for classes never defined and counts that do not add up."""
        if int(run_counts.sum()) != len(uids):
            raise InvalidInput(f"runs of {run_counts.sum()} pods with {len(uids)} UIDs", where=f"work batch {batch_id}")
        unknown = self._classes.unknown(run_classes.tolist())
        if unknown:
            raise InvalidInput(f"class {unknown[0]} was never defined", where=f"work batch {batch_id}")
        if gang is not None and gang.minimum > len(uids):
            raise InvalidInput(f"{gang.minimum} of {len(uids)} pods", where=f"work batch {batch_id}, gang {gang.name}")
        classes = [self._classes.get(number, scope) for number in run_classes.tolist()]
        self._observe(classes, run_counts, run_attempts)
        work = Work(batch_id, uids, gang, lowest_priority, conflicts, received_at=self._clock())
        if self._profile.mixes and gang is None:
            runs = mixed_runs_of(work, classes, run_counts, run_attempts, self._rng)
        else:
            runs = runs_of(work, classes, run_counts, run_attempts)
        if self._announces:
            runs = self._announcements.admit(runs, self._next_id)
            self._next_id += 1
        self._backlog.add(runs)

    @property
    def backlog(self) -> int:
        """Pods not yet placed."""
        return self._backlog.pods + self._announcements.pods

    @property
    def conflicts(self) -> int:
        """Refusals by the ledger, ever."""
        return self._settling.conflicts

    @property
    def idle(self) -> bool:
        """Whether every pod is answered for and the ledger owes no answer."""
        waiting = self._backlog or self._announcements or self._draft.pods or self._preempting or self._evicting
        return not (waiting or self._settling or self.cache.undecided)

    def step(self) -> int:
        """Place the next run, as far as the draft has room. How many pods that settled; 0: nothing can be done now.

        0 with runs left means that the draft must be taken first, or a verdict be heard.
        """
        self._backlog.look_again()
        room = self.limits.proposal_pods - self._draft.pods
        following = self._backlog.next
        if following is None or room <= 0 or self._draft.work not in (None, following.work):
            return 0
        work = following.work
        if work.goes_alone and self._draft.pods:
            return 0
        together = self._backlog.of_work(work) if work.missing else (following,)
        if (self._settling or self._evicting) and any(counts_on_others(run.pod_class.spec) for run in together):
            return 0  # it would count on pods of which some may be refused
        if work.missing:
            return 0 if self._draft.pods else self._step_gang(work)
        if not self._draft.precedes(following):
            return 0
        run = self._current(self._backlog.take())
        glance = self._glances.suits(run) and not work.goes_alone
        return self._glance(run, room) if glance else self._step_run(run, room)

    def _step_run(self, run: Run, room: int) -> int:
        """Place the run as far as there is room and time."""
        room = min(room, self.costs.pods_in(self.limits.step_seconds, run.pod_class.number) or room)
        if len(run.rows) > room:
            self._backlog.put_first([replace(run, rows=run.rows[room:])])
            run = replace(run, rows=run.rows[:room])
        count, why_not = self._place(run)
        if why_not is not None:
            self._not_placed(replace(run, rows=run.rows[count:]), why_not)
        return len(run.rows)

    def take_proposals(self, now: float) -> list[ProposalColumns]:
        """What was placed since the last time, to be sent to the ledger at `now`."""
        together = self._draft.counts_on_others
        proposals = self._close_draft(now + self.limits.assumption_seconds)
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

    @property
    def _undecided(self) -> bool:
        """Whether pods are placed of which the ledger may refuse some."""
        return bool(self._settling or self._evicting or self._draft.pods)

    @property
    def preemption_attempts(self) -> int:
        """Pods that fitted nowhere and for which less urgent ones were looked at."""
        return self._preempting.attempts

    def take_questions(self) -> list[PreemptionQuestion]:
        """What is to be asked about pods that fit nowhere, since the last time."""
        return self._preempting.take_questions()

    def preempt(self, answer: PreemptionAnswer, now: float) -> None:
        """Place pods that fitted nowhere where others can go for them; answer for those for which nobody can."""
        asked = self._preempting.take(answer)
        if asked is None:
            return
        run = asked.run = self._current(asked.run)
        if self._undecided and counts_on_others(run.pod_class.spec):
            self._backlog.add([run])
            return
        try:
            subject = self._subject(run)
            expires_at = now + self.limits.assumption_seconds
            draft, count = self._preempting.place(asked, subject, answer, run.pod_class.group, expires_at)
            self._evicting += self._close(draft, expires_at)
        except PluginFailed as failure:
            self._refuse_for(failure, run)
            return
        left = run.rows[count:]
        if len(left) and len(asked.nodes):
            self._preempting.ask_again(asked, left, subject)
        elif len(left):
            self._refuse(replace(run, rows=left), asked.diagnosis(int(self.cache.present.sum())), asked.seqs)

    def take_outcomes(self) -> list[OutcomeColumns]:
        """Answers since the last time, one message a work batch."""
        return self._answers.take()

    def take_news_wanted(self) -> bool:
        """Whether a newer view would have helped some pod since the last time."""
        return self._answers.take_news_wanted()

    def take_failures(self) -> list[PluginFailed]:
        """What went wrong in plugins from outside, each kind of failure once."""
        taken = [failure for failure in self._failures.values() if failure is not None]
        if taken:
            self._failures = dict.fromkeys(self._failures)
            if len(self._failures) > _MAX_KNOWN_FAILURES:
                self._failures.clear()  # their texts differ each time; better told twice than remembered for ever
        return taken

    def take_announcements(self) -> list[Announcement]:
        """What the ledger has to be told before pods in hand are placed, since the last time."""
        return self._announcements.take()

    # Verdicts

    def rules_known(self, number: int, awaited: Mapping[int, int]) -> None:
        """The answer to an announcement: place what waited for it, once the view stands at these seqs, by shard."""
        runs = self._announcements.answered(number)
        missing = {shard: seq for shard, seq in awaited.items() if self.cache.seen(shard) < seq}
        if not missing:
            self._backlog.put_first(runs)
        elif runs:
            self._backlog.hold(runs, missing)
            self._answers.want_news()

    def work_of(self, batch_id: int) -> int | None:
        """The work batch that a proposal under way belongs to."""
        return self._settling.work_of(batch_id)

    def settle(self, batch_id: int, answer: Verdicts) -> bool:
        """Take in a verdict: bound pods are answered for, refused ones placed again. False: this epoch is fenced.

        The verdicts on all parts of a gang are to be taken in before the next step.
        """
        return self._settling.settle(batch_id, answer)

    def resume(self, shard: int, *, snapshot: bool = False) -> bool:
        """The cache has heard of the shard: try those again that waited for it. Whether there are any.

        A snapshot ends every wait: the shard's history may have begun anew.
        """
        seen = self.cache.seen(shard)
        return self._backlog.resume(shard, lambda seq: snapshot or seq <= seen)

    def reject(self, batch_id: int, reason: str) -> None:
        """The resolver called the whole proposal malformed: nothing of it is in the ledger."""
        self._settling.reject(batch_id, reason)

    # Endings

    def drain(self) -> None:
        """Give back what was not started."""
        waiting = *self._announcements.take_all(), *self._preempting.take_waiting()
        for run in (*self._backlog.take_all(), *waiting):
            self._answers.give(run.work, run.rows, Outcome.RETURNED)

    def give_back(self, batch_ids: Collection[int], pods: int) -> None:
        """Return up to `pods` pods of these batches that were never tried, the last ones first; a gang only as a whole, and
        also where that is more."""
        for work, rows in self._backlog.take_untried(batch_ids, pods):
            self._answers.give(work, rows, Outcome.RETURNED)

    def drop_everything(self) -> None:
        """Another epoch begins: the dispatcher gives all pods in hand to whom it likes, and the ledger refuses ours."""
        self._backlog.take_all()
        self._announcements.forget()
        for pod_class, nodes in self._draft.placements:
            self.cache.forget_group(pod_class.group, nodes)
        self._draft.clear()
        self._settling.clear()
        self._preempting.take_waiting()
        self._preempting.forget_victims()
        self._evicting.clear()
        self._answers.clear()
        self._classes.clear()
        self.costs.restart()
        self.cache.forget_unanswered()

    # Within

    def _observe(self, classes: list[PodClass], counts: NDArray[np.uint32], attempts: NDArray[np.uint16]) -> None:
        for observer in self._profile.observers:
            try:
                for index in np.flatnonzero(attempts == 0).tolist():
                    observer.observe(classes[index].demand, int(counts[index]))
            except PluginFailed as failure:  # noqa: PERF203 - it scores by what it saw: its own loss, and no pod's
                self._failures.setdefault(str(failure), failure)

    def _step_gang(self, work: Work) -> int:
        """Place what fits of the next gang if that makes its minimum, else nothing of it."""
        runs = [self._current(run) for run in self._backlog.take_work(work)]
        # Large pods first: small ones spread, and would leave none of the nodes to them.
        runs.sort(key=lambda run: self.cache.share(run.pod_class.demand), reverse=True)
        if any(
            counts_on_others(run.pod_class.spec) for run in runs
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
            under_way = [self._room_under_way(run, reason) for run in work.left]
            self._forget_draft()
            work.take_left()
            if fitting + sum(room for room, _ in under_way) >= needed:
                self._backlog.wait_for([found for _, in_the_way in under_way for found in in_the_way], runs)
                return sum(len(run.rows) for run in runs)
            why = Diagnosis(gang_error(work.gang.name, fitting, needed, reason.text), reason.refused_by)
            self._answers.refuse(work, np.concatenate([run.rows for run in runs]), why, self.cache.seqs)
        return sum(len(run.rows) for run in runs)

    def _place(self, run: Run) -> tuple[int, Diagnosis | None]:
        """Put into the draft what fits of a run: how many pods, and why not the others."""
        count, first, started = 0, run.pod_class.demand not in self._rankings, self._clock()
        try:
            ranking = self._rankings.of(run.pod_class.demand)
            begins = begins_a_kind(run.pod_class, self.cache)
            placed = self._placer.place(ranking, len(run.rows), run.pod_class.group)
            count = len(placed.nodes)
            if count:
                self._draft.add(run, placed, first=begins)
            if count == len(run.rows):
                return count, None
            ranking.refresh()
            return count, ranking.diagnosis(lambda: diagnose(ranking, self._profile, self.cache))
        except PluginFailed as failure:
            self._failures.setdefault(str(failure), failure)
            return count, Diagnosis(str(failure), frozenset())
        finally:
            self.costs.placed(run.pod_class.number, len(run.rows), self._clock() - started, first=first)

    def _glance(self, first: Run, room: int) -> int:
        """Place this run and those behind it that a glance will do for, as many as go at once. How many pods that settled."""
        started, runs = self._clock(), [first]
        while len(runs) < min(room, self._glances.room) and (following := self._backlog.next) is not None:
            alike = following.work is first.work and following.pod_class.priority == first.pod_class.priority
            if not alike or not self._glances.suits(self._current(following)):
                break
            runs.append(self._current(self._backlog.take()))
        try:
            placed = self._glances.place([run.pod_class for run in runs])
        except PluginFailed:
            placed = [None] * len(runs)  # whoever it failed meets it again
        for run, place in zip(runs, placed, strict=True):
            if place is not None:
                self._draft.add(run, place)
        left = [run for run, place in zip(runs, placed, strict=True) if place is None]
        self._backlog.put_first(left)
        self.costs.glanced(len(runs) - len(left), self._clock() - started)
        return len(runs) - len(left) or self.step()  # they get a look at all nodes

    def _not_placed(self, run: Run, why_not: Diagnosis) -> None:
        """These pods fit nowhere: perhaps others can go for them."""
        spec = run.pod_class.spec
        drafted = self._draft.assumed(len(self.cache.schema))
        _, in_the_way = self._room_under_way(run, why_not, drafted)
        if drafted in in_the_way:
            self._backlog.wait_for_draft(run)
        elif in_the_way:
            self._backlog.wait_for(in_the_way, [run])
        elif spec.priority <= run.work.lowest_priority or run.work.gang is not None:
            self._refuse(run, why_not)
        elif not spec.may_preempt:
            self._refuse(run, Diagnosis(f"{why_not.text} preemption: {NEVER}", why_not.refused_by))
        else:
            asking = replace(run, evicting=why_not)
            try:
                useless = self._preempting.ask(asking, why_not, self._subject(run))
            except PluginFailed as failure:
                self._refuse_for(failure, run)
                return
            if useless is not None:
                self._refuse(run, useless)

    def _room_under_way(
        self, run: Run, why_not: Diagnosis, drafted: Assumption | None = None
    ) -> tuple[int, list[Assumption]]:
        """How many of these pods, that fit nowhere now, there may be room for once this worker's assumptions that are in the way
        have ended, those among them that are only `drafted`. To say of such pods that they are unschedulable would strand them: nothing that happens to the cluster
        would wake them."""
        if not why_not.refused_by & _ABOUT_ROOM:
            return 0, []
        try:
            admitted = self._subject(run).static.mask
        except PluginFailed as failure:
            self._failures.setdefault(str(failure), failure)
            return 0, []
        room, in_the_way = self.cache.room_under_way(run.pod_class.demand, admitted, drafted)
        return min(room, len(run.rows)), in_the_way

    def _refuse(self, run: Run, why_not: Diagnosis, seqs: Mapping[int, int] | None = None) -> None:
        self._answers.refuse(run.work, run.rows, why_not, self.cache.seqs if seqs is None else seqs)

    def _refuse_for(self, failure: PluginFailed, run: Run) -> None:
        self._failures.setdefault(str(failure), failure)
        self._refuse(run, Diagnosis(str(failure), frozenset()))

    def _subject(self, run: Run) -> Subject:
        ranking = self._rankings.of(run.pod_class.demand)
        ranking.refresh()
        return Subject(ranking.demand, ranking.static, ranking.standings)

    def _close_draft(self, expires_at: float) -> list[Proposal]:
        proposals = self._close(self._draft, expires_at)
        self._backlog.drafted([proposal.assumption for proposal in proposals])
        return proposals

    def _close(self, draft: Draft, expires_at: float) -> list[Proposal]:
        cache = self.cache
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

    def _forget_draft(self) -> None:
        """Placed, and not to be proposed after all."""
        for proposal in self._close_draft(0.0):
            self.cache.forget(proposal.assumption, np.arange(len(proposal.rows)))

    def _current(self, run: Run) -> Run:
        pod_class = self._demands.current(run.pod_class)
        return run if pod_class is run.pod_class else replace(run, pod_class=pod_class)
