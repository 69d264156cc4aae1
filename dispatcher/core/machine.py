"""The dispatcher as a state machine: events go in, instructions come out, and nothing is awaited.

The machine owns every pod from admission until the pod is bound or deleted. `check` tests its invariants.
A SCHEDULING pod is unanswered in exactly one batch of one worker. A QUEUED, BACKOFF or UNSCHEDULABLE pod is
with no worker. A worker never has more pods outstanding than its window, or one gang, and its estimated work
is the sum of its batches. An incomplete gang has no bound pod. A row that a queue refers to is marked
`in_queue`, so it is not reused."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.bound.evictions import Evictions
from dispatcher.core.bound.feed_updates import FeedUpdates
from dispatcher.core.bound.nominations import Nominations
from dispatcher.core.bound.outcomes import Outcomes
from dispatcher.core.bound.preemption_holds import PreemptionHolds
from dispatcher.core.bound.settlement import Settlement
from dispatcher.core.bound.taint_eviction import TaintEviction
from dispatcher.core.cluster.nodes import KnownNodes
from dispatcher.core.cluster.objects import ClusterObjects, ClusterObjectUpdates
from dispatcher.core.cluster.storage import StorageObjects, StorageUpdates
from dispatcher.core.dispatch.balance import Chance
from dispatcher.core.dispatch.batches import DEFAULT_BATCH_RULES, BatchRules, Dispatch
from dispatcher.core.dispatch.estimates import Estimates
from dispatcher.core.dispatch.overlap_control import (
    DEFAULT_OVERLAP_RULES,
    OverlapControlRules,
    OverlapEnforcer,
)
from dispatcher.core.dispatch.routing import Routes, Routing
from dispatcher.core.dispatch.work_stealing import DEFAULT_STEAL_RULES, Stealing, StealRules
from dispatcher.core.kubernetes.assignments import Assignments
from dispatcher.core.overdue_work import OverdueWork
from dispatcher.core.pods.faults import MAX_FAULTS, Fault
from dispatcher.core.pods.history import EventLog
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.sets import Submission
from dispatcher.core.pods.table import NO_REASON, Phase, Rows
from dispatcher.core.policy.rules import ClassFacts, Policy
from dispatcher.core.queue.active import Aging
from dispatcher.core.queue.pressure import DEFAULT_LIMITS, Pressure, PressureLimits
from dispatcher.core.queue.queues import POD_ADD, Queues
from dispatcher.core.queue.tenants import Tenants, held_by
from dispatcher.core.worker_registry import WorkerRegistry
from dispatcher.core.workers.membership import Membership, Worker
from dispatcher.core.workers.work_timeline import WorkTimeline
from hoss.errors import InvariantViolation
from hoss.model.pod import PodSpec
from hoss.model.slices import Steps

# A tick this late means that the dispatcher itself did not run: heartbeats may be unread.
LATE_TICK_SECONDS = 0.5

FORGET_SECONDS = 1.0
FORGET_WORKERS_SECONDS = 60.0

# Pods deleted while they waited are swept from the queues before they are forgotten. A sweep costs some
# microseconds per queue entry, so sweeps are rarer when there are more entries.
SWEEP_SECONDS_PER_ENTRY = 1e-4

# What a look at a gang takes, by estimate.
_GANG_MICROS, _GANG_POD_MICROS = 20.0, 0.02


@dataclass(frozen=True, slots=True)
class Settings:
    """`unix_offset_seconds` + the monotonic `now` of events is Unix time. The event log starts at
    `first_revision`."""

    batches: BatchRules = DEFAULT_BATCH_RULES
    stealing: StealRules = DEFAULT_STEAL_RULES
    overlap_control: OverlapControlRules = DEFAULT_OVERLAP_RULES
    worker_timeout_seconds: float = 2.0
    work_timeout_seconds: float = 30.0  # see dispatcher.core.overdue_work
    aging_seconds: float = 300.0
    limits: PressureLimits = DEFAULT_LIMITS
    event_log_pods: int = 1_000_000
    unix_offset_seconds: float = 0.0
    first_revision: int = 1
    max_faults: int = MAX_FAULTS
    victims_end_by_event: bool = False  # see bound.nominations
    controllers_evict: bool = False  # see bound.taint_eviction


class Machine:
    """`handle` is the only entrance for events; everything else reads. The machine itself handles pod events
    and time. Events about workers, the feed and cluster objects have handler classes of their own."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        decode: Callable[[bytes], PodSpec],
        chance: Chance,
        *,
        read_facts: Callable[[bytes], ClassFacts] | None = None,
        requests: Callable[[bytes], Mapping[str, float]] | None = None,
    ) -> None:
        """`decode` parses the bytes of a class. `read_facts` (for policies) and `requests` (what one pod
        holds, see tenants.held_by) are faster partial parsers, where there are any."""
        self._settings = settings
        self.counters: Counter[str] = Counter()
        self.members = Membership()
        self.nodes = KnownNodes()
        self.objects = ClusterObjects()
        self.storage = StorageObjects()
        self.routing = Routing(policy, self.members)
        self.registry = PodRegistry(decode, self._route, read_facts, settings.max_faults)
        self.registry.templates.on_forgotten.append(self._template_forgotten)
        self.registry.history.worker_name = self.members.name_of
        self.tenants = Tenants(
            policy.sharing,
            self.registry.pods,
            self.registry.templates,
            requests or (lambda spec: held_by(decode(spec))),
        )
        self.taint_eviction = TaintEviction(
            self.registry, self.nodes, lambda: self.objects.budgets, evicts=not settings.controllers_evict
        )
        self.queues = Queues(self.registry, self.tenants, Aging(settings.aging_seconds))
        self.log = EventLog(settings.event_log_pods, settings.first_revision)
        self.settlement = Settlement(
            self.registry,
            self.taint_eviction,
            self.queues,
            self.log,
            self.counters,
            Nominations(self.registry.pods, by_event=settings.victims_end_by_event),
        )
        self.estimates = Estimates()
        self.dispatch = Dispatch(
            self.registry,
            self.queues,
            self.routing,
            self.estimates,
            rules=settings.batches,
            chance=chance,
            times=self.settlement.times,
        )
        self.work_timeline = WorkTimeline()
        self.stealing = Stealing(self.registry, self.routing, self.members, self.estimates, settings.stealing)
        self.pressure = Pressure(settings.limits, self.registry, self.tenants, self.counters)
        self.overlap = OverlapEnforcer(
            settings.overlap_control,
            self.members,
            self.routing,
            self.queues,
            nodes=self.nodes,
            counters=self.counters,
        )
        self._ticked_at: float | None = None
        self._forgot_at = float("-inf")
        self._forget_workers_at = float("-inf")
        self._needs_sweep = False  # the queues refer to deleted pods
        self._next_sweep = float("-inf")
        self._object_updates = ClusterObjectUpdates(
            self.objects, self.registry, self.members, self.queues, self.unix_ms
        )
        self.storage_updates = StorageUpdates(self.storage, self.members, self.queues, self.unix_ms)
        self.preemption_holds = PreemptionHolds()
        self._overdue = OverdueWork(
            self.members, self.registry.pods, self.counters, settings.work_timeout_seconds
        )
        evictions = Evictions(
            self.registry,
            self.nodes,
            self.taint_eviction,
            self.queues,
            self.settlement,
            counters=self.counters,
        )
        self._workers = WorkerRegistry(
            self.members,
            self.registry,
            self.settlement,
            self.estimates,
            self.overlap,
            self._overdue,
            evictions,
            outcomes=Outcomes(self.registry, self.queues, self.settlement, self.work_timeline, self.counters),
            objects=self.objects,
            storage=self.storage,
            counters=self.counters,
            unix_ms=self.unix_ms,
        )
        feed_updates = FeedUpdates(
            self.registry,
            self.nodes,
            self.queues,
            self.settlement,
            taint_eviction=self.taint_eviction,
            tenants=self.tenants,
            evictions=evictions,
            unix_ms=self.unix_ms,
        )
        assignments = Assignments(self.registry, self.queues, self.settlement, unix_ms=self.unix_ms)
        self._handlers: m.Handlers = {
            m.Admitted: self._admitted,
            m.Deleted: self._deleted,
            m.GatesRemoved: self._gates_removed,
            m.GangRulesChanged: self._gang_rules_changed,
            m.Retried: self._retried,
            m.Tick: self._tick,
            **self._object_updates.handlers,
            **self.storage_updates.handlers,
            **self._workers.handlers,
            **feed_updates.handlers,
            **assignments.handlers,
            **self.overlap.handlers,
        }

    def handle(self, event: m.Event, now: float) -> list[m.Instruction]:
        """Apply an event at monotonic time `now`. Returns the instructions to execute, in this order."""
        return self._handlers[type(event)](event, now) + self.pump(now)

    def pump(self, now: float) -> list[m.Instruction]:
        """Send every batch that may leave now. The caller calls this when a lingering batch is due."""
        sent = self.dispatch.pump(now, self.unix_ms(now))
        self.counters["dispatched"] += sum(len(batch.uids) for batch in sent)
        return list(sent)

    def unix_ms(self, now: float) -> int:
        """The Unix time of a monotonic moment, in milliseconds."""
        return int((now + self._settings.unix_offset_seconds) * 1000)

    def setting_policy(self, policy: Policy, now: Callable[[], float]) -> Steps[list[m.Instruction]]:
        """`set_policy` in slices: all templates are looked at before it is in force."""
        prepared = yield from self.routing.preparing(policy, self.registry.templates)
        return self.set_policy(policy, now(), prepared)

    def set_policy(self, policy: Policy, now: float, prepared: Routes | None = None) -> list[m.Instruction]:
        """Put a policy in force. Queued pods are re-routed. Waiting pods that are routed differently are
        queued at once. Pods with a worker stay there; refusals under the old policy are retried."""
        moved = self.routing.replace(policy, self.registry.templates, prepared)
        self.tenants.replace(policy.sharing)
        self.queues.policy_changed(moved, now, self.unix_ms(now))
        return self.pump(now)

    def restore_bound(self, rows: Rows, nodes: NDArray[np.uint32]) -> list[m.Instruction]:
        """At start: the ledger holds reservations of these pods. Deleted pods release theirs. Nobody knows
        since when the others are bound, so their phase starts at their submission."""
        pods = self.registry.pods
        pods.node[rows] = nodes
        deleted = pods.phase[rows] == Phase.DELETED
        pods.phase[rows[~deleted]] = Phase.BOUND
        late = rows[deleted]
        return [m.Release(late, pods.uid[late], pods.node[late])] if len(late) else []

    def restore_gangs(self, assumed: Rows, now: float) -> Steps[list[m.Instruction]]:
        """At start, once all bound pods are known; `assumed` are the unconfirmed ones. A gang that stopped
        half-way through its shards releases what it has. A gang with a confirmed pod was complete."""
        gangs, pods = self.registry.gangs, self.registry.pods
        out: list[m.Instruction] = []
        unconfirmed = np.zeros(pods.size, np.bool_)
        unconfirmed[assumed] = True
        for gang in gangs.every_incomplete():
            yield _GANG_MICROS + len(gang.rows) * _GANG_POD_MICROS
            rows = gangs.in_phase(gang, Phase.BOUND)
            if len(rows) and unconfirmed[rows].all():
                pods.phase[rows] = Phase.ABSENT  # they do not count as bound before the decision
                out += self.settlement.bound(rows, pods.node[rows], now, self.unix_ms(now))
            elif len(rows):
                gangs.complete(gang)
        return out

    def restore_mirrored(self, submission: Submission, current: Rows) -> None:
        """At start in Kubernetes mode, once all reservations are known. These pods may have been resized or
        relabelled meanwhile, so the reserved ones are reserved anew where the API server has them. `current`:
        those on nodes whose reservations are known to be right."""
        pods = self.registry.pods
        for pod_set in submission.sets:
            rows = np.setdiff1d(self.registry.rows_of(pod_set), current)
            pods.outdated[rows] |= pods.phase[rows] == Phase.BOUND

    def restore_fault(self, fault: Fault, now: float) -> None:
        """At start, once all bound pods are known: a fault of an earlier leadership term."""
        self.settlement.give_up(fault.rows[self.registry.faults.restore(fault)], self.unix_ms(now))

    def table_sizes(self) -> dict[str, int]:
        """The entries of everything that the machine remembers, by table (metric hoss_table_entries)."""
        return {
            **self.registry.table_sizes(),
            **self.tenants.table_sizes(),
            **self.queues.table_sizes(),
            **self.routing.table_sizes(),
            "storage_objects": len(self.storage),
            **self.members.table_sizes(),
            **self.nodes.table_sizes(),
            **self.objects.table_sizes(),
            **self.overlap.conflicts.table_sizes(),
            **self.taint_eviction.table_sizes(),
            "class_costs": len(self.estimates) + sum(len(worker.costs.classes) for worker in self.members),
            "nominations": len(self.settlement.nominations),
            "preemption_holds": len(self.preemption_holds),
            "event_log_batches": len(self.log),
            "event_log_bytes": self.log.bytes,
        }

    def latest_hold(self, now: float) -> int:
        """The number of the last hold that a plan can look at, and all holds before it: no pods of their
        classes are on their way to a worker or with one. 0: there is none."""
        holds = self.preemption_holds.going_on(now)
        if not holds:
            return 0
        pods = self.registry.pods
        phase, template = pods.phase[: pods.size], pods.template[: pods.size]

        def classes_of(chosen: NDArray[np.bool_]) -> set[int]:
            templates = np.flatnonzero(np.bincount(template[chosen]))
            return set(self.registry.templates.class_id[templates].tolist())

        waiting = classes_of((phase == Phase.UNSCHEDULABLE) | (phase == Phase.BACKOFF))
        on_their_way = classes_of((phase == Phase.QUEUED) | (phase == Phase.SCHEDULING))
        latest = 0
        for class_id, number in sorted(holds.items(), key=lambda hold: hold[1]):
            if class_id in on_their_way:
                break
            if class_id in waiting:
                latest = number
        return latest

    def check(self) -> None:
        """Raise InvariantViolation if an invariant of the module docstring is broken. For tests."""
        _check_pods(self.registry, self.members, self.queues)
        for worker in self.members:
            _check_worker(self.registry, worker)

    # --- pods ---

    def _route(self, template_id: int) -> None:
        self.routing.assign(self.registry.templates, template_id)
        self.tenants.assign(template_id)

    def _template_forgotten(self, template_id: int) -> None:
        self.tenants.release(template_id)

    def _admitted(self, event: m.Admitted, now: float) -> list[m.Instruction]:
        out = self._object_updates.use_namespaces()
        for rows in self.registry.admit(event.submission, self.unix_ms(now), event.most):
            self.queues.wake_gangs_of(rows, now, self.unix_ms(now))
            self.counters["accepted"] += len(rows)
            gated = self.registry.gated(rows)
            if gated.any():
                self.settlement.gate(rows[gated], self.unix_ms(now))
                self.queues.incoming["gated", POD_ADD] += int(gated.sum())
                rows = rows[~gated]  # noqa: PLW2901 - the others
            self.queues.admit(rows, now)
        return out + self.overlap.pods_queued(now)

    def _deleted(self, event: m.Deleted, now: float) -> list[m.Instruction]:
        pods = self.registry.pods
        rows = event.rows[~np.isin(pods.phase[event.rows], (Phase.DELETED, Phase.ABSENT))]
        if not len(rows):
            return []
        bound = rows[pods.phase[rows] == Phase.BOUND]
        self._needs_sweep |= bool(pods.in_queue[rows].any())
        self.registry.mark_deleted(rows, self.unix_ms(now))
        pods.assigned[rows] = False
        self.settlement.nominations.victims_gone(map(bytes, pods.uid[rows]))
        self.counters["deleted"] += len(rows)
        self.settlement.publish(rows)
        self.queues.enqueue_ready_gangs(rows, now)
        return [m.Release(bound, pods.uid[bound], pods.node[bound])] if len(bound) else []

    def _gates_removed(self, event: m.GatesRemoved, now: float) -> list[m.Instruction]:
        waits = self.registry.pods.phase[event.rows] == Phase.UNSCHEDULABLE
        rows = event.rows[waits & self.registry.gated(event.rows)]
        self.settlement.gates_removed(rows, event.gates, now, self.unix_ms(now))
        return []

    def _gang_rules_changed(self, event: m.GangRulesChanged, now: float) -> list[m.Instruction]:
        for key, rule in event.rules.items():
            self.queues.gang_rule_changed(key, rule, now, self.unix_ms(now))
        return []

    def _retried(self, event: m.Retried, now: float) -> list[m.Instruction]:
        pods = self.registry.pods
        rows = event.rows[pods.phase[event.rows] == Phase.FAILED]
        pods.reason[rows] = NO_REASON
        self.queues.requeue(rows, now, self.unix_ms(now), event="Retried", front=False)
        self.settlement.publish(rows)
        return []

    # --- time ---

    def _tick(self, _event: m.Tick, now: float) -> list[m.Instruction]:
        if self._ticked_at is not None and now - self._ticked_at > LATE_TICK_SECONDS:
            self.members.extend_deadlines(now - self._ticked_at)
        self._ticked_at = now
        self.queues.tick(now, self.unix_ms(now))
        self.settlement.publish(self.queues.check_gang_minimums(now, self.unix_ms(now)))
        out = self.settlement.tick(now, self.unix_ms(now))
        timeout = self._settings.worker_timeout_seconds
        for worker in self.members.silent_since(now - timeout):
            why = f"no heartbeat for {timeout:g} s"
            out += [m.CloseLink(worker.link, why), *self._workers.lose(worker, now, why)]
        out += self._overdue.tick(now)
        if classes := self.preemption_holds.ended(now):
            self.queues.preemption_allowed(frozenset(classes), now, self.unix_ms(now))
        recalls = self.stealing.recalls()
        self.counters["recalled"] += sum(recall.pods for recall in recalls)
        out += recalls
        out += self.overlap.tick(now)
        forgetting = self.registry.forgetting  # more than one tick's part
        if forgetting or (self.registry.any_to_forget and now - self._forgot_at >= FORGET_SECONDS):
            self._forgot_at = self._forgot_at if forgetting else now
            out += self._forget_deleted(now)
        out += self._object_updates.tick(now)
        self._forget_classes()
        if now >= self._forget_workers_at:
            self._forget_workers_at = now + FORGET_WORKERS_SECONDS
            self._workers.forget_gone(now)
        self.registry.reasons.compact(self.registry.pods)
        return out

    def _forget_deleted(self, now: float) -> list[m.Instruction]:
        if self._needs_sweep and now >= self._next_sweep:
            self._needs_sweep = False
            self._next_sweep = now + self.queues.sweep() * SWEEP_SECONDS_PER_ENTRY
        self.registry.faults.drop_deleted()
        return [m.Forget(submission) for submission in self.registry.forget_deleted()]

    def _forget_classes(self) -> None:
        """No pod has these classes any more, and none will: workers are told with their next work."""
        classes = self.registry.templates.take_forgotten_classes()
        if classes:
            self.estimates.forget(classes)
            for worker in self.members:
                worker.classes.forget(classes)
                worker.costs.forget(classes)


def _check_pods(registry: PodRegistry, members: Membership, queues: Queues) -> None:
    pods = registry.pods
    in_batches = [b.rows[pods.batch[b.rows] == b.serial] for w in members for b in w.batches.values()]
    unfenced = [w.unfenced for w in members if w.unfenced is not None]
    held = np.concatenate([*in_batches, *unfenced, np.empty(0, np.uint32)])
    if len(np.unique(held)) != len(held):
        raise InvariantViolation("a pod is with two workers")
    orphaned = np.setdiff1d(np.flatnonzero(pods.phase[: pods.size] == Phase.SCHEDULING), held)
    if len(orphaned):
        raise InvariantViolation(f"pods are SCHEDULING with no worker: rows {orphaned[:5]}")
    # A pod that somebody else assigned meanwhile is BOUND whatever its worker answers.
    if not (np.isin(pods.phase[held], (Phase.SCHEDULING, Phase.DELETED)) | pods.assigned[held]).all():
        raise InvariantViolation("a pod is with a worker and in a queue")
    queued = queues.all_rows()
    if not pods.in_queue[queued].all():
        raise InvariantViolation(
            f"a queue refers to rows {queued[~pods.in_queue[queued]][:5]}, which are not marked in_queue"
        )
    for gang in registry.gangs.every_incomplete():
        if registry.gangs.bound(gang):
            raise InvariantViolation(f"{registry.gangs.bound(gang)} pods of {gang.name} are bound")


def _check_worker(registry: PodRegistry, worker: Worker) -> None:
    pods = registry.pods
    unanswered = sum(int((pods.batch[b.rows] == b.serial).sum()) for b in worker.batches.values())
    within = unanswered <= worker.window or len(worker.batches) == 1  # a gang larger than the window
    left = sum(batch.micros_left for batch in worker.batches.values())
    if not math.isclose(worker.work_micros, left, rel_tol=1e-6, abs_tol=1e-3):
        raise InvariantViolation(f"{worker.name}: {worker.work_micros=}, but its batches sum up to {left}")
    if worker.living and not (worker.outstanding == unanswered and within):
        raise InvariantViolation(f"{worker.name}: {worker.outstanding=}, {unanswered=}, {worker.window=}")
