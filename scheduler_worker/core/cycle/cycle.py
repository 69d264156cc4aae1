"""The scheduling cycle: one step takes runs from the backlog and places them into the draft.

Only the cycle, `unplaced` (for pods that fit nowhere) and the scheduler move runs between the backlog, the
proposals and preemption, which do not know each other."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from hoss.model.placing import NO_NODE, FailureStreak
from hoss.wire.columns import MAX_CANDIDATES
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import Demand, DemandTable, PodClass
from scheduler_worker.core.cycle.backlog import Backlog
from scheduler_worker.core.cycle.draft import PendingProposal, depends_on_pods, takes_by_name
from scheduler_worker.core.cycle.permitting import decisions, held_back
from scheduler_worker.core.cycle.proposals import Proposals
from scheduler_worker.core.cycle.unplaced import UnplacedPods
from scheduler_worker.core.cycle.whole_batches import WholeBatches, pods_of
from scheduler_worker.core.framework.extension_points import Diagnosis, PlacedBatch, Reserved
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.framework.sandbox import PluginFailed, PluginFailures
from scheduler_worker.core.messages import Outcome, PreemptionAnswer
from scheduler_worker.core.nodes import Mask, NodeIndexes
from scheduler_worker.core.placement.algorithms import AlgorithmCalls
from scheduler_worker.core.placement.costs import CostMeter
from scheduler_worker.core.placement.diagnosis import (
    ExaminedPod,
    diagnose,
    gang_error,
)
from scheduler_worker.core.placement.ranking import Ranking, Rankings
from scheduler_worker.core.placement.run_placer import Placed, RunPlacer
from scheduler_worker.core.placement.sampling import SampledScoring
from scheduler_worker.core.placement.ties import TieOrder
from scheduler_worker.core.pod_index.selector_query import Matching
from scheduler_worker.core.preemption.evaluator import PreemptionEvaluator
from scheduler_worker.core.work import OutcomeCollector, Run, Work

_IN_CONTENTION = 4  # times as many alternates
_PREPARED_RUNS = 8  # of a gang; so few that what is prepared for one is still kept after the last


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of one worker's scheduling."""

    proposal_pods: int = 1000  # the ledger's script must not run long
    tries: int = 3  # proposals per pod and dispatch; then the dispatcher decides anew
    alternates: int = 2  # further nodes named with each choice; four times as many in contention
    sample_nodes: int = 512  # scored for a single pod of a class never met; 0: all there are
    assumption_seconds: float = 120.0  # an assumption without an answer is given back after this
    ranking_bytes: int = 24 * 2**20  # for the columns of rankings
    step_seconds: float = 0.1  # one step places no more than fits in this time, or heartbeats would be late


class Cycle:
    """Moves pods from the backlog into the draft, or to the outcomes. Placed pods are assumed in the
    cache."""

    def __init__(
        self,
        cache: NodeInfoCache,
        profile: Profile,
        demands: DemandTable,
        ties: TieOrder,
        rng: np.random.Generator,
        *,
        clock: Callable[[], float],
        limits: SchedulerLimits,
        backlog: Backlog,
        proposals: Proposals,
        preemption: PreemptionEvaluator,
        outcomes: OutcomeCollector,
        algorithm: AlgorithmCalls | None = None,
        is_used: Callable[[Demand], bool] = lambda _: True,
    ) -> None:
        """`is_used`: see Rankings. `algorithm` places whole batches of the pods that suit it; None: every pod
        is ranked."""
        self.costs = CostMeter()
        self.failures = PluginFailures()
        self.streak = FailureStreak()
        if profile.permits:
            # An alternate is a node that no plugin permitted.
            limits = replace(limits, alternates=0)
        self._cache = cache
        self._profile = profile
        self._demands = demands
        self._clock = clock
        self._limits = limits
        self._backlog = backlog
        self._proposals = proposals
        self._draft = proposals.draft
        self._preemption = preemption
        self._outcomes = outcomes
        self._placer = RunPlacer(cache, ties, alternates=limits.alternates)
        self._rankings = Rankings(profile, cache, ties, limit_bytes=limits.ranking_bytes, is_used=is_used)
        self._sampled = SampledScoring(
            cache, profile, self._rankings, ties, rng, nodes=limits.sample_nodes, alternates=limits.alternates
        )
        self._whole = None if algorithm is None else WholeBatches(algorithm, cache)
        self._unplaced = UnplacedPods(
            cache,
            backlog=backlog,
            draft=self._draft,
            preemption=preemption,
            outcomes=outcomes,
            failures=self.failures,
            examine=self._examined,
        )

    @property
    def rankings_kept(self) -> int:
        """How many rankings of nodes are remembered."""
        return len(self._rankings)

    @property
    def asked_pods(self) -> int:
        """Pods at the algorithm."""
        return 0 if self._whole is None else pods_of(self._whole.asked)

    def take_asked(self) -> tuple[Run, ...]:
        """Take the runs from the algorithm; its answer to them is dropped."""
        return () if self._whole is None else self._whole.give_back()

    def forget(self, demands: list[Demand]) -> None:
        """No class has these demands."""
        self._rankings.forget(demands)

    def observe(
        self, classes: list[PodClass], counts: NDArray[np.uint32], attempts: NDArray[np.uint16]
    ) -> None:
        """Show observers the work that came in: runs of these classes, n of each."""
        for observer in self._profile.observers:
            try:
                for index in np.flatnonzero(attempts == 0).tolist():
                    observer.observe(classes[index].demand, int(counts[index]))
            except PluginFailed as failure:  # noqa: PERF203 - only its own scores suffer
                self.failures.note(failure)

    def step(self) -> int:
        """See Scheduler.step."""
        if not self._prepared():
            return 1
        noted = self.failures.noted
        settled = self._step()
        # What permit plugins say of it comes later.
        self._judge(noted, succeeded=settled > 0 and not self._profile.permits)
        return settled

    def _judge(self, noted: int, *, succeeded: bool) -> None:
        """Count the work since so many failures were noted as a failure or a success of code of others."""
        if self.failures.noted > noted:
            self.streak.failed(self.failures.latest, self._clock())
        elif succeeded:
            self.streak.succeeded()

    def _prepared(self) -> bool:
        """Look up a part of what the next pods depend on; whether nothing that takes long is left of it."""
        runs = (run for run in self._backlog.together() if run.pod_class.spec.claims is not None)
        demands = [self._current(run).pod_class.demand for run in islice(runs, _PREPARED_RUNS)]
        return all(self._rankings.prepare(demand) for demand in demands)

    def _step(self) -> int:
        self._backlog.resume_ended()
        if self._whole is not None and self._whole.asked:
            return self._take_answer(self._whole)
        room = self._limits.proposal_pods - self._draft.pods
        following = self._backlog.next
        if following is None or room <= 0 or self._draft.work not in (None, following.work):
            return 0
        work = following.work
        if work.transactional and self._draft.pods:
            return 0
        together = self._backlog.together()
        if self._proposals.undecided and any(depends_on_pods(run.pod_class.spec) for run in together):
            return 0  # it would depend on pods of which some may be refused
        if work.missing:
            return 0 if self._draft.pods else self._step_gang(work)
        return self._step_runs(following, room) if self._draft.precedes(following) else 0

    def _step_runs(self, following: Run, room: int) -> int:
        """Place the next run: by the algorithm if it suits one, else on sampled nodes or on all."""
        work = following.work
        if self._whole is not None and self._whole.suits(following):
            return 0 if self._draft.pods else self._ask(self._whole, following, room)
        run = self._current(self._backlog.take())
        sampled = self._sampled.suits(run) and not work.transactional
        return self._step_sampled(run, room) if sampled else self._step_run(run, room)

    def permit(self) -> None:
        """Ask the profile's permit plugins about the draft. Pods that may not go are answered, and those that
        may depend on them are placed again."""
        if not self._profile.permits:
            return
        noted, drafted = self.failures.noted, self._draft.pods
        held = held_back(self._draft, self._profile.permits, self._cache, self.failures)
        self._judge(noted, succeeded=drafted > 0)
        if held is None:
            return
        self._proposals.discard(held.assumed)
        for pods in held.answered:
            self._outcomes.refuse(held.work, pods.rows, pods.why, self._cache.seqs)
        self._backlog.put_first(held.again)

    def _permit_preemptors(self, run: Run, closed: Sequence[PendingProposal]) -> None:
        """As `permit`, for the first pods of a run that have victims. If one is held back, the others are
        placed again too."""
        nodes = np.concatenate([proposal.assumption.nodes for proposal in closed])
        rows = np.concatenate([proposal.rows for proposal in closed])
        pods = PlacedBatch((run.pod_class.spec,), np.zeros(len(rows), np.intp), self._cache.specs(nodes))
        decided = decisions(pods, self._profile.permits, self.failures)
        if not decided:
            return
        for settled in self._proposals.withdraw(closed):
            self._preemption.settled(settled.shard, settled.victims)
        left = np.ones(len(rows), np.bool_)
        for held, why in decided:
            self._outcomes.refuse(run.work, rows[held], why, self._cache.seqs)
            left &= ~held
        if left.any():
            self._backlog.put_first([replace(run, pod_class=run.pod_class.undecided(), rows=rows[left])])

    def preempt(self, answer: PreemptionAnswer, now: float) -> None:
        """See Scheduler.preempt."""
        pending = self._preemption.take(answer)
        if pending is None:
            return
        if answer.held:
            why_not = pending.why_not
            held = why_not._replace(text=f"{why_not.text} preemption: {answer.held}")
            self._unplaced.refuse(pending.run, held, pending.seqs)
            return
        run = pending.run = self._current(pending.run)
        if self._proposals and depends_on_pods(run.pod_class.spec):
            self._backlog.add([run])
            return
        try:
            pod = self._examined(run)
            first = _is_first_of_its_kind(run.pod_class, self._cache)
            expires_at = now + self._limits.assumption_seconds
            preemptors = self._preemption.place(pending, pod, answer, run.pod_class.group, expires_at)
        except PluginFailed as failure:
            self._unplaced.refuse(run, self.failures.note(failure))
            return
        # Pods that take something by its name preempt one at a time.
        if preemptors:
            reservation = pod.plugin_state.reserve(preemptors[0].node)
            placed = self._with_choices(run, reservation, preemptors[0].node)
            closed = self._proposals.preempt(
                placed, preemptors, first=first, reserved_names=reservation.names, now=now
            )
            if self._profile.permits:
                self._permit_preemptors(placed, closed)
        left = run.rows[len(preemptors) :]
        if len(left) and len(pending.nodes):
            self._preemption.ask_again(pending, left, pod)
        elif len(left):
            why_not = pending.diagnosis(int(self._cache.present.sum()))
            self._unplaced.refuse(replace(run, rows=left), why_not, pending.seqs)

    # Steps

    def _step_run(self, run: Run, room: int) -> int:
        """Place the run as far as there is room and time."""
        room = min(room, self.costs.pods_in(self._limits.step_seconds, run.pod_class.number) or room)
        if len(run.rows) > room:
            self._backlog.put_first([replace(run, rows=run.rows[room:])])
            run = replace(run, rows=run.rows[:room])
        count, why_not = self._place(run)
        if why_not is not None:
            self._unplaced.settle(replace(run, rows=run.rows[count:]), why_not)
        return len(run.rows)

    def _step_sampled(self, first: Run, room: int) -> int:
        """Place this run and those alike behind it on sampled nodes. Runs without a good node among these are
        ranked on all nodes."""
        started, runs = self._clock(), list(self._suitable_runs(first, room))
        try:
            placed = self._sampled.place([run.pod_class for run in runs])
        except PluginFailed:
            placed = [None] * len(runs)  # the plugin fails again when they are ranked
        left = []
        for run, place in zip(runs, placed, strict=True):
            if place is None:
                left.append(run)
            else:
                self._draft.add(run, place)
        pods = len(runs) - len(left)
        self.costs.sampled(pods, self._clock() - started)
        self._backlog.put_first(left)
        return pods or self._step()

    def _suitable_runs(self, first: Run, room: int) -> Iterator[Run]:
        """This run and those behind it that suit sampled scoring, as many as go at once."""
        yield first
        for _ in range(1, min(room, self._sampled.room)):
            following = self._backlog.next
            if following is None or following.work is not first.work:
                return
            if following.pod_class.priority != first.pod_class.priority:
                return
            if not self._sampled.suits(self._current(following)):
                return
            yield self._current(self._backlog.take())

    def _step_gang(self, work: Work) -> int:
        """Place what fits of the next gang if that makes its minimum, else nothing of it."""
        runs = [self._current(run) for run in self._backlog.take_work(work)]
        # Large pods first: small ones spread, and would leave no node to the large ones.
        runs.sort(key=lambda run: self._cache.share(run.pod_class.demand), reverse=True)
        if any(depends_on_pods(run.pod_class.spec) for run in runs):
            # In the ledger's order, so that it decides first on the pods that others depend on.
            runs.sort(key=lambda run: -run.pod_class.priority)
        reason: Diagnosis | None = None
        for run in runs:
            count, why_not = self._place(run)
            if why_not is not None:
                work.unplaced.append(replace(run, rows=run.rows[count:]))
                reason = reason or why_not
        pods = sum(len(run.rows) for run in runs)
        fitting, needed = self._draft.pods, work.missing
        if fitting < needed and work.gang is not None and reason is not None:
            in_flight = [self._unplaced.room_in_flight(run, reason) for run in work.unplaced]
            self._proposals.discard(self._draft)
            work.take_unplaced()
            if fitting + sum(room for room, _ in in_flight) >= needed:
                self._backlog.await_room([a for _, in_the_way in in_flight for a in in_the_way], runs)
                return pods
            why = reason._replace(text=gang_error(work.gang.name, fitting, needed, reason.text))
            self._outcomes.refuse(work, np.concatenate([run.rows for run in runs]), why, self._cache.seqs)
        return pods

    # By an algorithm

    def _ask(self, whole: WholeBatches, first: Run, room: int) -> int:
        """Ask the algorithm about this run and those behind it that suit it, of the same work and in the
        order of their priorities. Runs whose feasible nodes cannot be told are answered."""
        asked: list[tuple[Run, Mask]] = []
        refused, priority = 0, first.pod_class.priority
        while room and len(asked) != whole.most_runs and (following := self._backlog.next) is not None:
            if following.work is not first.work or following.pod_class.priority > priority:
                break
            if not whole.suits(following):
                break
            run = self._current(self._backlog.take())
            priority = run.pod_class.priority
            if len(run.rows) > room:
                self._backlog.put_first([replace(run, rows=run.rows[room:])])
                run = replace(run, rows=run.rows[:room])
            try:
                ranking = self._rankings.of(run.pod_class.demand)
                ranking.refresh()
            except PluginFailed as failure:
                self._unplaced.refuse(run, self.failures.note(failure))
                refused += len(run.rows)
                continue
            asked.append((run, ranking.keys >= 0))
            room -= len(run.rows)
        if not asked:
            return refused
        whole.ask(asked)
        return refused + self._take_answer(whole)

    def _take_answer(self, whole: WholeBatches) -> int:
        """Put into the draft what the algorithm placed, once it has answered."""
        answer = whole.take()
        if answer is None:
            return 0
        pods = pods_of(answer.runs)
        if answer.failure is not None:
            why = self.failures.note(answer.failure)
            if len(answer.runs) > 1:
                # Each run alone: pods on which the algorithm fails must keep no others from being placed.
                self._backlog.put_first(answer.runs)
            else:
                # Not unschedulable: no change of a node would wake the pods, and others may place them.
                run = answer.runs[0]
                self._outcomes.refuse(run.work, run.rows, why, self._cache.seqs)
            return pods
        again: list[Run] = []
        for run, nodes in zip(answer.runs, answer.nodes, strict=True):
            again += self._place_at(whole, self._current(run), nodes)
            self.costs.placed(
                run.pod_class.number, len(run.rows), answer.seconds * len(run.rows) / pods, first=False
            )
        self._backlog.put_first(again)
        return pods

    def _place_at(self, whole: WholeBatches, run: Run, nodes: NodeIndexes) -> list[Run]:
        """Place a run's pods on these nodes, where they still fit. Returns the pods for which the algorithm
        is to be asked again."""
        placed = 0
        try:
            ranking = self._rankings.of(run.pod_class.demand)
            ranking.refresh()
            chosen = nodes[nodes != NO_NODE]
            fitting = chosen[whole.still_fitting(ranking, chosen)]
            placed, later = len(fitting), len(chosen)
            if placed:
                masks = self._cache.assume(fitting, ranking.demand, run.pod_class.group)
                none = np.full((placed, self._limits.alternates), -1, np.intp)
                self._draft.add(replace(run, rows=run.rows[:placed]), Placed(fitting, none, masks))
            left = replace(run, rows=run.rows[later:])
            if len(left.rows):
                self._not_chosen(whole, left, ranking)
        except PluginFailed as failure:
            self._unplaced.refuse(replace(run, rows=run.rows[placed:]), self.failures.note(failure))
            return []
        return [replace(run, rows=run.rows[placed:later])] if later > placed else []

    def _not_chosen(self, whole: WholeBatches, run: Run, ranking: Ranking) -> None:
        """Pods for which the algorithm named no node have the reasons of the filters, or that the algorithm
        left them out although there is room."""
        ranking.refresh()
        feasible = int((ranking.keys >= 0).sum())
        if feasible:
            why = Diagnosis(f"algorithm {whole.name} named no node; {feasible} are feasible")
            self._outcomes.give(run.work, run.rows, Outcome.CONFLICT, why=why)
        else:
            why = ranking.diagnosis(lambda: diagnose(ranking, self._profile, self._cache))
            self._unplaced.settle(run, why)

    # Placing

    def _current(self, run: Run) -> Run:
        """The run with its class compiled against the present schema, images and pods."""
        pod_class = self._demands.current(run.pod_class)
        return run if pod_class is run.pod_class else replace(run, pod_class=pod_class)

    def _examined(self, run: Run) -> ExaminedPod:
        """The run's pods, with plugin state that is up to date. Raises PluginFailed."""
        ranking = self._rankings.of(run.pod_class.demand)
        ranking.refresh()
        return ExaminedPod(ranking.demand, ranking.static, ranking.plugin_state)

    def _place(self, run: Run) -> tuple[int, Diagnosis | None]:
        """Put into the draft what fits of a run: how many pods, and why not the others."""
        count, first, started = 0, not self._rankings.has_ranked(run.pod_class.demand), self._clock()
        try:
            ranking = self._rankings.of(run.pod_class.demand)
            count = placed = self._place_slot(run, ranking)
            while takes_by_name(run.pod_class.spec) and placed and count < len(run.rows):
                placed = self._place_slot(replace(run, rows=run.rows[count:]), ranking)
                count += placed
            if count == len(run.rows):
                return count, None
            ranking.refresh()
            return count, ranking.diagnosis(lambda: diagnose(ranking, self._profile, self._cache))
        except PluginFailed as failure:
            return count, self.failures.note(failure)
        finally:
            self.costs.placed(run.pod_class.number, len(run.rows), self._clock() - started, first=first)

    def _place_slot(self, run: Run, ranking: Ranking) -> int:
        """Put into the draft the first pods of a run as one slot: all that fit, or one pod of those that take
        something by a name that depends on the node. Returns how many."""
        first_of_kind = _is_first_of_its_kind(run.pod_class, self._cache)
        alone = takes_by_name(run.pod_class.spec)
        alternates = self._limits.alternates
        more = min(_IN_CONTENTION * alternates, MAX_CANDIDATES - 1)
        self._placer.alternates = more if self._proposals.contention else alternates
        placed = self._placer.place(ranking, 1 if alone else len(run.rows), run.pod_class.group)
        if len(placed.nodes) and alone:
            node = int(placed.nodes[0])
            reservation = ranking.plugin_state.reserve(node)
            # The names are those of this node.
            placed = placed._replace(alternates=np.full_like(placed.alternates, -1))
            run = self._with_choices(run, reservation, node)
            self._draft.add(run, placed, first=first_of_kind, reserved_names=reservation.names)
        elif len(placed.nodes):
            self._draft.add(run, placed, first=first_of_kind)
        return len(placed.nodes)

    def _with_choices(self, run: Run, reserved: Reserved, node: int) -> Run:
        """The run, whose first pod is assumed on the node: its group says from now on which volumes and
        devices the pod's claims get there."""
        after = run.pod_class.choosing(reserved.volumes, reserved.held)
        if after is run.pod_class:
            return run
        self._cache.regroup(run.pod_class.group, after.group, np.array((node,)))
        return replace(run, pod_class=after)


def _is_first_of_its_kind(pod_class: PodClass, cache: NodeInfoCache) -> bool:
    """Whether a pod of the class has affinity to pods like itself and there are none yet: it may go
    anywhere."""
    affinity = pod_class.spec.pod_affinity
    terms = affinity.required if affinity else ()
    query = Matching(terms)
    if not terms or not query.includes(pod_class.group, cache.pod_index.namespaces):
        return False
    counter = cache.pod_index.counter(query)
    domains = [counter.by_domain(term.topology_key) for term in terms]
    for sums in domains:
        sums.refresh()
    return not any(sums.sums.any() for sums in domains)
