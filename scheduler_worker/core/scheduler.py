"""The scheduling cycle: work batches in, proposals out, verdicts in, outcomes out. No step waits for anything.

A pod is in exactly one place: a run still to be placed, the draft, a proposal without a verdict, or an answer.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

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
from scheduler_worker.core.backlog import Backlog
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.class_book import ClassBook
from scheduler_worker.core.classes import DemandTable
from scheduler_worker.core.codes import Outcome
from scheduler_worker.core.cycle import Cycle
from scheduler_worker.core.guard import PluginFailed
from scheduler_worker.core.messages import PreemptionAnswer, PreemptionQuestion, ProposalColumns, Verdicts
from scheduler_worker.core.placing import Placing
from scheduler_worker.core.preempting import Preempting
from scheduler_worker.core.profile import Profile
from scheduler_worker.core.proposing import Proposing
from scheduler_worker.core.questions import NamespaceLabels
from scheduler_worker.core.refusals import Refusals
from scheduler_worker.core.settling import Settling
from scheduler_worker.core.ties import NEAR_POINTS, TieOrder
from scheduler_worker.core.work import MAX_PRIORITY, Gang, OutcomeColumns, Work, mixed_runs_of, runs_of


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
        self.refusals = Refusals()
        self._clock = clock
        self._profile = profile
        self._rng = rng
        # A profile that packs scores finely, and pays for every point that it gives away.
        self._ties = TieOrder(rng, near_points=1 if profile.mixes else NEAR_POINTS)
        self._demands = DemandTable(cache.schema, cache.catalogue.images, cache.census)
        self._classes = ClassBook(self._demands)
        self._placing = Placing(
            cache,
            profile,
            self._demands,
            self._ties,
            rng=rng,
            clock=clock,
            alternates=self.limits.alternates,
            glance_nodes=self.limits.glance_nodes,
            ranking_bytes=self.limits.ranking_bytes,
        )
        self.costs = self._placing.costs
        self._backlog = Backlog()
        self._announces = announces
        self._announcements = Announcements()
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
        self._proposing = Proposing(
            cache, self._backlog, self._settling, assumption_seconds=self.limits.assumption_seconds
        )
        self._cycle = Cycle(
            cache,
            self._backlog,
            self._placing,
            proposing=self._proposing,
            settling=self._settling,
            preempting=self._preempting,
            answers=self._answers,
            proposal_pods=self.limits.proposal_pods,
            step_seconds=self.limits.step_seconds,
            assumption_seconds=self.limits.assumption_seconds,
        )

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
        self._placing.observe(classes, run_counts, run_attempts)
        work = Work(batch_id, uids, gang, lowest_priority, conflicts, received_at=self._clock())
        if self._profile.mixes and gang is None:
            runs = mixed_runs_of(work, classes, run_counts, run_attempts, self._rng)
        else:
            runs = runs_of(work, classes, run_counts, run_attempts)
        if self._announces:
            runs = self._announcements.admit(runs, self._proposing.take_id())
        self._backlog.add(runs)

    @property
    def backlog(self) -> int:
        """Pods not yet placed."""
        return self._backlog.pods + self._announcements.pods

    @property
    def proposed(self) -> int:
        """Pods proposed, ever, each as often as it was."""
        return self._proposing.proposed

    @property
    def conflicts(self) -> int:
        """Refusals by the ledger, ever."""
        return self._settling.conflicts

    @property
    def idle(self) -> bool:
        """Whether every pod is answered for and the ledger owes no answer."""
        waiting = self._backlog or self._announcements or self._preempting or self._proposing
        return not (waiting or self._settling or self.cache.undecided)

    def step(self) -> int:
        """Place the next run, as far as the draft has room. How many pods that settled; 0: nothing can be done now.

        0 with runs left means that the draft must be taken first, or a verdict be heard.
        """
        return self._cycle.step()

    def take_proposals(self, now: float) -> list[ProposalColumns]:
        """What was placed since the last time, to be sent to the ledger at `now`."""
        return self._proposing.take(now)

    @property
    def preemption_attempts(self) -> int:
        """Pods that fitted nowhere and for which less urgent ones were looked at."""
        return self._preempting.attempts

    def take_questions(self) -> list[PreemptionQuestion]:
        """What is to be asked about pods that fit nowhere, since the last time."""
        return self._preempting.take_questions()

    def preempt(self, answer: PreemptionAnswer, now: float) -> None:
        """Place pods that fitted nowhere where others can go for them; answer for those for which nobody can."""
        self._cycle.preempt(answer, now)

    def take_outcomes(self) -> list[OutcomeColumns]:
        """Answers since the last time, one message a work batch."""
        return self._answers.take()

    def take_news_wanted(self) -> bool:
        """Whether a newer view would have helped some pod since the last time."""
        return self._answers.take_news_wanted()

    def take_failures(self) -> list[PluginFailed]:
        """What went wrong in plugins from outside, each kind of failure once."""
        return self._placing.failures.take()

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
        self._proposing.drop()
        self._settling.clear()
        self._preempting.take_waiting()
        self._preempting.forget_victims()
        self._answers.clear()
        self._classes.clear()
        self.costs.restart()
        self.cache.forget_unanswered()
