"""The scheduler: work batches in, proposals out, verdicts in, outcomes out. No call waits for anything.

A pod in hand is in exactly one place: the backlog, preemption, the proposals or the outcomes. The scheduler
owns these four and moves pods between them."""

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from hoss.errors import InvalidInput
from hoss.model.cluster import DeviceUpdate, Service, StorageUpdate
from hoss.model.conflicts import DEFAULT_CONFLICT_RULE, ConflictRule, Preference
from hoss.model.devices import DeviceObject
from hoss.model.pod import PodSpec
from hoss.model.selectors import NodeScope
from hoss.wire.columns import Uids
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import ClassTable, DemandTable
from scheduler_worker.core.cycle.backlog import Backlog, RuleRegistration
from scheduler_worker.core.cycle.cycle import Cycle, SchedulerLimits
from scheduler_worker.core.cycle.pre_binding import PreBindCalls, PreBinding
from scheduler_worker.core.cycle.proposals import Proposals
from scheduler_worker.core.cycle.refusals import ConflictAttribution
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.framework.sandbox import PluginFailed
from scheduler_worker.core.messages import (
    Outcome,
    PreemptionAnswer,
    PreemptionQuestion,
    ProposalColumns,
    Verdicts,
)
from scheduler_worker.core.placement.algorithms import AlgorithmCalls
from scheduler_worker.core.placement.ties import NEAR_POINTS, TieOrder
from scheduler_worker.core.pod_index.selector_query import NamespaceLabels
from scheduler_worker.core.preemption.evaluator import PreemptionEvaluator
from scheduler_worker.core.work import (
    MAX_PRIORITY,
    GangInHand,
    OutcomeCollector,
    OutcomeColumns,
    Work,
    mixed_runs_of,
    runs_of,
)


class Scheduler:
    """Places pods in one worker's cache and keeps track of them until they are answered."""

    def __init__(
        self,
        cache: NodeInfoCache,
        profile: Profile,
        rng: np.random.Generator,
        limits: SchedulerLimits | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        *,
        registers_rules: bool = False,
        algorithm: AlgorithmCalls | None = None,
        pre_binds: PreBindCalls | None = None,
    ) -> None:
        """`clock` is read, in seconds, to measure what placing takes; without one everything takes no time.
        `registers_rules`: pods wait until the ledger knows their rules, so the caller has to send what
        `take_registrations` returns. `algorithm` places whole batches in place of the ranking; pods that it
        cannot take are ranked all the same. `pre_binds` asks the profile's pre-bind plugins, which nobody
        else asks; None: what is reserved is bound."""
        self.cache = cache
        self.limits = limits = limits or SchedulerLimits()
        self.refusals = ConflictAttribution()
        self._clock = clock
        self._rng = rng
        self._registers_rules = registers_rules
        # A profile that packs scores finely, and pays for every point that it gives away.
        self._ties = TieOrder(rng, near_points=1 if profile.mixes else NEAR_POINTS)
        self._demands = DemandTable(cache.schema, cache.catalogue.images, cache.pod_index)
        self._demands.set_spread_by_default(profile.spread_by_default)
        self._classes = ClassTable(self._demands)
        self._outcomes = OutcomeCollector()
        self._backlog = Backlog()
        self._preemption = PreemptionEvaluator(cache, profile, rng)
        self._pre_binding = None if pre_binds is None else PreBinding(pre_binds, cache, self._outcomes)
        self._proposals = Proposals(
            cache,
            self._outcomes,
            self.refusals,
            tries=limits.tries,
            assumption_seconds=limits.assumption_seconds,
            clock=clock,
            pre_binding=self._pre_binding,
        )
        self._cycle = Cycle(
            cache,
            profile,
            self._demands,
            self._ties,
            rng,
            clock=clock,
            limits=limits,
            backlog=self._backlog,
            proposals=self._proposals,
            preemption=self._preemption,
            outcomes=self._outcomes,
            algorithm=algorithm,
            is_used=self._classes.is_used,
        )
        # An algorithm sees a batch whole, and mixes it as it likes.
        self._mixes = profile.mixes and algorithm is None
        self.costs = self._cycle.costs

    @property
    def backlog(self) -> int:
        """Pods not yet placed."""
        return self._backlog.pods + self._cycle.asked_pods

    @property
    def proposed(self) -> int:
        """Pods proposed, ever, each as often as it was."""
        return self._proposals.proposed

    @property
    def conflicts(self) -> int:
        """Refusals by the ledger, ever."""
        return self._proposals.conflicts

    @property
    def preemption_attempts(self) -> int:
        """Pods that fitted nowhere and for which victims were looked for, ever."""
        return self._preemption.attempts

    @property
    def idle(self) -> bool:
        """Whether every pod is answered and the ledger owes no answer."""
        waiting = self._backlog or self._cycle.asked_pods or self._preemption or self._pre_binding
        return not (waiting or self._proposals or self.cache.undecided)

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {
            "classes": len(self._classes),
            "demands": len(self._demands),
            "class_costs": len(self.costs),
            "registered_groups": self._backlog.registered_groups,
            "rankings": self._cycle.rankings_kept,
            **self.cache.table_sizes(),
        }

    # Definitions and work

    def set_namespaces(self, namespaces: NamespaceLabels, services: Iterable[Service]) -> None:
        """Exactly these namespaces and services exist from now on."""
        self.cache.pod_index.set_namespaces(namespaces)
        self._demands.set_services(services)

    def update_storage(self, update: StorageUpdate) -> None:
        """The cluster's storage objects or nominated pods change."""
        self.cache.apply_objects(update)

    def update_devices(self, update: DeviceUpdate, now: float) -> None:
        """Device objects of the cluster change, in seconds since the epoch."""
        self.cache.devices.apply(update, now)
        self._demands.set_device_resources(frozenset(self.cache.devices.extended_resources))

    def set_devices(self, objects: Iterable[DeviceObject], now: float) -> None:
        """Exactly these device objects exist from now on, in seconds since the epoch."""
        self.update_devices(DeviceUpdate(tuple(objects), complete=True), now)

    def set_preference(self, preference: Preference) -> None:
        """How to order nodes of about the same score, from now on."""
        self._ties.set_preference(preference)

    def define_class(self, number: int, spec: PodSpec) -> None:
        """Class `number` is `spec` from now on."""
        self._classes.define(number, spec)

    def forget_classes(self, numbers: Collection[int]) -> None:
        """No further work has these classes."""
        self._classes.forget(numbers)
        self.costs.forget(numbers)
        self._cycle.forget(self._classes.take_unused())
        self._backlog.forget_groups(self._classes.take_groups())

    def accept(
        self,
        batch_id: int,
        uids: Uids,
        run_classes: NDArray[np.uint32],
        run_counts: NDArray[np.uint32],
        run_attempts: NDArray[np.uint16],
        *,
        gang: GangInHand | None = None,
        scope: NodeScope | None = None,
        conflicts: ConflictRule = DEFAULT_CONFLICT_RULE,
        lowest_priority: int = MAX_PRIORITY,
    ) -> None:
        """Queue a work batch; `scope` and `conflicts` are the policy's rules for its nodes and proposals.
        Pods of more than `lowest_priority` may preempt. InvalidInput for classes never defined and counts
        that do not add up."""
        if int(run_counts.sum()) != len(uids):
            raise InvalidInput(
                f"runs of {run_counts.sum()} pods with {len(uids)} UIDs", where=f"work batch {batch_id}"
            )
        unknown = self._classes.unknown(run_classes.tolist())
        if unknown:
            raise InvalidInput(f"class {unknown[0]} was never defined", where=f"work batch {batch_id}")
        if gang is not None and gang.minimum > len(uids):
            raise InvalidInput(
                f"{gang.minimum} of {len(uids)} pods", where=f"work batch {batch_id}, gang {gang.name}"
            )
        classes = [self._classes.get(number, scope) for number in run_classes.tolist()]
        self._cycle.observe(classes, run_counts, run_attempts)
        work = Work(batch_id, uids, gang, lowest_priority, conflicts, received_at=self._clock())
        if self._mixes and gang is None:
            runs = mixed_runs_of(work, classes, run_counts, run_attempts, self._rng)
        else:
            runs = runs_of(work, classes, run_counts, run_attempts)
        if self._registers_rules:
            self._backlog.add_registered(runs, self._proposals.take_id())
        else:
            self._backlog.add(runs)

    # Placing

    def step(self) -> int:
        """Place the next run, as far as the draft has room. Returns how many pods that settled, or 1 if all
        of the step went into looking for devices, which the next step goes on with.

        0 means that nothing can be done now. If the backlog is not empty, the proposals must be taken first,
        or a verdict or the feed has to come."""
        return self._cycle.step() if self.cache.whole else 0

    def preempt(self, answer: PreemptionAnswer, now: float) -> None:
        """Place pods that fitted nowhere where others can be evicted for them; answer those for which none
        can. The cache must be whole."""
        self._cycle.preempt(answer, now)

    def take_proposals(self, now: float) -> list[ProposalColumns]:
        """Proposals of pods placed since the last call that plugins permit, to be sent to the ledger at
        `now`."""
        self._cycle.permit()
        columns, drafted = self._proposals.take(now)
        self._backlog.drafted(drafted)
        return columns

    def take_registrations(self) -> list[RuleRegistration]:
        """Rules that the ledger has to register before some pods are placed, since the last call."""
        return self._backlog.take_registrations()

    def take_questions(self) -> list[PreemptionQuestion]:
        """Questions to the dispatcher about pods that fit nowhere, since the last call."""
        return self._preemption.take_questions()

    def take_outcomes(self) -> list[OutcomeColumns]:
        """Outcomes since the last call, one message a work batch."""
        return self._outcomes.take()

    def take_refresh_wanted(self) -> bool:
        """Whether a newer view would have helped some pod since the last call."""
        return self._outcomes.take_refresh_wanted()

    def take_failures(self) -> list[PluginFailed]:
        """Failures of plugins from outside, each kind once."""
        return self._cycle.failures.take()

    def failing(self, now: float) -> str:
        """Why plugins or the algorithm fail at everything; empty: they do not (see FailureStreak)."""
        return self._cycle.streak.failing(now)

    @property
    def plugin_stuck(self) -> str:
        """Which plugin from outside is off, because a call of it did not end; empty: none."""
        return self._cycle.failures.stuck

    # Verdicts and the feed

    def work_of(self, batch_id: int) -> int | None:
        """The work batch that a proposal without a verdict belongs to."""
        return self._proposals.work_of(batch_id)

    def settle(self, batch_id: int, answer: Verdicts) -> bool:
        """Take in a verdict: bound pods are answered, refused ones placed again. False: this epoch is fenced.

        The verdicts on all parts of a gang must be taken in before the next step."""
        settled = self._proposals.settle(batch_id, answer)
        if settled is None:
            return True
        self._preemption.settled(settled.shard, settled.victims)
        self._backlog.retry(settled.work, settled.again, settled.later, settled.awaited)
        return not settled.fenced

    def reject(self, batch_id: int, reason: str) -> None:
        """The resolver called the whole proposal malformed: nothing of it is in the ledger."""
        settled = self._proposals.reject(batch_id, reason)
        if settled is not None:
            self._preemption.settled(settled.shard, settled.victims)

    def pre_bind(self) -> None:
        """Answer the pods that plugins have prepared, and have them prepare those that were reserved since.
        To be called after verdicts, and when plugins have answered."""
        if self._pre_binding is not None:
            self._pre_binding.step(self._cycle.failures)

    def pre_bind_stuck(self, why: str) -> None:
        """A plugin does not answer: give back all pods that it should prepare, also later ones."""
        if self._pre_binding is not None:
            self._pre_binding.give_up(why)

    def rules_registered(self, number: int, awaited: Mapping[int, int]) -> None:
        """The ledger has registered these rules. The pods that bear them are placed once the view stands at
        these seqs, by shard."""
        missing = {shard: seq for shard, seq in awaited.items() if self.cache.seen(shard) < seq}
        if self._backlog.rules_registered(number, missing):
            self._outcomes.want_refresh()

    def resume(self, shard: int, *, snapshot: bool = False) -> bool:
        """The cache took in the shard's feed: try pods again that waited for it. Whether there are any.

        A snapshot ends every wait: the shard's history may have begun anew."""
        return self._backlog.resume(shard, None if snapshot else self.cache.seen(shard))

    # Endings

    def drain(self) -> None:
        """Give back what was not started."""
        asked = self._cycle.take_asked()
        for run in (*asked, *self._backlog.take_all(), *self._preemption.take_waiting()):
            self._outcomes.give(run.work, run.rows, Outcome.RETURNED)

    def give_back(self, batch_ids: Collection[int], pods: int) -> None:
        """Return up to `pods` pods of these batches that were never tried, the last ones first. A gang goes
        only as a whole, even if it has more pods than that."""
        for work, rows in self._backlog.take_untried(batch_ids, pods):
            self._outcomes.give(work, rows, Outcome.RETURNED)

    def drop_everything(self) -> None:
        """Another epoch: the dispatcher gives all pods in hand to any worker, and the ledger refuses this
        worker's."""
        self._backlog.restart()
        self._cycle.take_asked()
        self._proposals.drop()
        if self._pre_binding is not None:
            self._pre_binding.drop()
        self._preemption.restart()
        self._outcomes.clear()
        self._classes.clear()
        self.costs.restart()
        self.cache.forget_unanswered()
