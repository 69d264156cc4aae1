"""The dispatcher as a state machine: events in, instructions out, and not one await.

It owns every pod from admission until it is bound or deleted. Invariants, checked by `check`: a pod that is SCHEDULING is
unanswered in exactly one batch of one worker; a pod that is QUEUED, in BACKOFF or UNSCHEDULABLE is with no worker;
no worker has more in hand than its window, or one gang, and its estimated work is that of its batches; of a gang
that is not complete no pod is bound; and what a queue refers to is marked so, and not given to others.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.aging import Aging
from dispatcher.core.announcements import Announcements
from dispatcher.core.assignments import Assignments
from dispatcher.core.balance import Chance
from dispatcher.core.cluster_news import ClusterNews
from dispatcher.core.cluster_objects import ClusterObjects
from dispatcher.core.dispatch import DEFAULT_BATCH_RULES, BatchRules, Dispatch
from dispatcher.core.estimates import Estimates
from dispatcher.core.eventlog import EventLog
from dispatcher.core.evictions import Evictions
from dispatcher.core.faults import MAX_FAULTS, Fault
from dispatcher.core.guidance import Guidance
from dispatcher.core.invariants import check
from dispatcher.core.membership import Membership
from dispatcher.core.outcomes import Outcomes
from dispatcher.core.podsets import Submission
from dispatcher.core.podtable import NO_REASON, Phase, Rows
from dispatcher.core.policy import ClassFacts, Policy
from dispatcher.core.pressure import DEFAULT_LIMITS, Limits, Pressure
from dispatcher.core.queues import POD_ADD, Queues
from dispatcher.core.registry import PodRegistry
from dispatcher.core.residence import Residence
from dispatcher.core.routing import Routing
from dispatcher.core.settlement import Settlement
from dispatcher.core.stealing import DEFAULT_STEAL_RULES, Stealing, StealRules
from dispatcher.core.steering import DEFAULT_STEERING_RULES, SteeringRules
from dispatcher.core.tenants import Tenants, held_by
from dispatcher.core.workforce import Workforce
from hoss.model.pod import PodSpec

# A tick this late means that the dispatcher itself did not run; heartbeats may lie unread.
LATE_TICK_SECONDS = 0.5

FORGET_SECONDS = 1.0

# Pods that were deleted while they waited must be swept out of the queues before they are forgotten. That costs some
# microseconds for each entry there: the more there are, the rarer it is, so that it takes a small part of the time.
SWEEP_SECONDS_PER_ENTRY = 1e-4


@dataclass(frozen=True, slots=True)
class Settings:
    """`unix_offset_seconds` + the monotonic `now` of events is Unix time; `first_revision` begins the event log."""

    batches: BatchRules = DEFAULT_BATCH_RULES
    stealing: StealRules = DEFAULT_STEAL_RULES
    steering: SteeringRules = DEFAULT_STEERING_RULES
    worker_timeout_seconds: float = 2.0
    aging_seconds: float = 300.0
    limits: Limits = DEFAULT_LIMITS
    event_log_pods: int = 1_000_000
    unix_offset_seconds: float = 0.0
    first_revision: int = 1
    max_faults: int = MAX_FAULTS
    victims_leave_by_word: bool = False  # see core.nominations
    others_evict: bool = False  # see core.residence


class Machine:
    """`handle` is its one entrance for events; everything else reads. What workers, the feed and cluster objects bring is taken in by
    `workforce`, `cluster_news` and `announcements`; pods' own events and time are here."""

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
        """`decode` reads a class; `read_facts` what policies match on and `requests` what one pod of it holds
        (tenants.held_by), where there are quicker ways."""
        self._settings = settings
        self.counters: Counter[str] = Counter()
        self.members = Membership()
        self.objects = ClusterObjects()
        self.routing = Routing(policy, self.members)
        self.registry = PodRegistry(decode, self._route, read_facts, settings.max_faults)
        self.tenants = Tenants(
            policy.sharing,
            self.registry.pods,
            self.registry.templates,
            requests or (lambda spec: held_by(decode(spec))),
        )
        self.residence = Residence(self.registry, lambda: self.objects.budgets, evicts=not settings.others_evict)
        self.queues = Queues(self.registry, self.tenants, Aging(settings.aging_seconds))
        self.log = EventLog(settings.event_log_pods, settings.first_revision)
        self.settlement = Settlement(
            self.registry,
            self.residence,
            self.queues,
            self.log,
            self.counters,
            victims_leave_by_word=settings.victims_leave_by_word,
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
        self.stealing = Stealing(self.registry, self.routing, self.members, self.estimates, settings.stealing)
        self.pressure = Pressure(settings.limits, self.registry, self.counters)
        self.guidance = Guidance(settings.steering, self.members, self.routing, self.counters)
        self._emptied: list[Submission] = []
        self._ticked_at: float | None = None
        self._forgot_at = float("-inf")
        self._to_sweep = False  # the queues refer to deleted pods
        self._next_sweep = float("-inf")
        self._announcements = Announcements(self.objects, self.registry, self.members, self.queues, self.unix_ms)
        self._workforce = Workforce(
            self.members,
            self.registry,
            self.settlement,
            self.estimates,
            self.guidance,
            outcomes=Outcomes(self.registry, self.queues, self.settlement, self.counters),
            objects=self.objects,
            counters=self.counters,
            unix_ms=self.unix_ms,
        )
        news = ClusterNews(
            self.registry,
            self.queues,
            self.settlement,
            self.residence,
            self.tenants,
            evictions=Evictions(self.registry, self.residence, self.queues, self.settlement, self.counters),
            unix_ms=self.unix_ms,
        )
        self._handlers: m.Handlers = {
            m.Admitted: self._admitted,
            m.Deleted: self._deleted,
            m.GatesRemoved: self._gates_removed,
            m.Retried: self._retried,
            m.Tick: self._tick,
            **self._announcements.handlers,
            **self._workforce.handlers,
            **news.handlers,
            **Assignments(self.registry, self.queues, self.settlement, unix_ms=self.unix_ms).handlers,
            **self.guidance.handlers,
        }

    def handle(self, event: m.Event, now: float) -> list[m.Instruction]:
        """Take in an event at monotonic time `now`; returns what is to be done, in this order."""
        return self._handlers[type(event)](event, now) + self.pump(now)

    def pump(self, now: float) -> list[m.Instruction]:
        """Send what may be sent at this moment; to be called when a lingering batch is due."""
        sent = self.dispatch.pump(now, self.unix_ms(now))
        self.counters["dispatched"] += sum(len(batch.uids) for batch in sent)
        return list(sent)

    def unix_ms(self, now: float) -> int:
        """The Unix time of a monotonic moment, milliseconds."""
        return int((now + self._settings.unix_offset_seconds) * 1000)

    def set_policy(self, policy: Policy, now: float) -> list[m.Instruction]:
        """Put a policy in force: pods not yet with a worker follow it from now on, those that wait and go another way by it at
        once. Pods with a worker stay there; what it refuses was refused under the old one, and is tried again."""
        moved = self.routing.replace(policy, self.registry.templates)
        self.tenants.replace(policy.sharing)
        self.queues.policy_changed(moved, now, self.unix_ms(now))
        return self.pump(now)

    def restore_bound(self, rows: Rows, nodes: NDArray[np.uint32]) -> list[m.Instruction]:
        """While starting: the ledger holds reservations of these pods. Deleted ones are to give theirs back."""
        pods = self.registry.pods
        pods.node[rows] = nodes
        deleted = pods.phase[rows] == Phase.DELETED
        pods.phase[rows[~deleted]] = Phase.BOUND  # since when nobody knows any more: not before they were submitted
        late = rows[deleted]
        return [m.Release(late, pods.uid[late], pods.node[late])] if len(late) else []

    def restore_gangs(self, assumed: Rows, now: float) -> list[m.Instruction]:
        """While starting, once all that is bound is known; `assumed` are those not confirmed. A gang that stopped half-way
        through its shards is to give back what it has; one that was confirmed has been complete."""
        gangs, pods = self.registry.gangs, self.registry.pods
        out: list[m.Instruction] = []
        for gang in gangs.every_incomplete():
            rows = gangs.in_phase(gang, Phase.BOUND)
            if len(rows) and np.isin(rows, assumed).all():
                pods.phase[rows] = Phase.ABSENT  # not counted as bound before it is decided
                out += self.settlement.bound(rows, pods.node[rows], now, self.unix_ms(now))
            elif len(rows):
                gangs.complete(gang)
        return out

    def restore_mirrored(self, submission: Submission) -> None:
        """While starting in Kubernetes mode, once all that is reserved is known: these pods may have been resized or labelled anew while
        nobody looked, so those that are reserved are counted anew where the API server has them."""
        pods = self.registry.pods
        for pod_set in submission.sets:
            pods.outdated[pod_set.rows] |= pods.phase[pod_set.rows] == Phase.BOUND

    def restore_fault(self, fault: Fault, now: float) -> None:
        """While starting, once all that is bound is known: these pods had this fault in an earlier term."""
        self.settlement.give_up(fault.rows[self.registry.faults.restore(fault)], self.unix_ms(now))

    def check(self) -> None:
        """Raise InvariantViolation if the module's promises do not hold."""
        check(self.registry, self.members, self.queues)

    # --- pods ---

    def _route(self, template_id: int) -> None:
        self.routing.assign(self.registry.templates, template_id)
        self.tenants.assign(template_id)

    def _admitted(self, event: m.Admitted, now: float) -> list[m.Instruction]:
        told = self._announcements.use_namespaces()
        for rows in self.registry.admit(event.submission, self.unix_ms(now)):
            self.queues.joined(rows, now, self.unix_ms(now))
            gated = self.registry.gated(rows)
            if gated.any():
                self.settlement.gate(rows[gated], self.unix_ms(now))
                self.queues.incoming["gated", POD_ADD] += int(gated.sum())
                self.queues.admit(rows[~gated], now)
            else:
                self.queues.admit(rows, now)
            self.counters["accepted"] += len(rows)
        if event.submission.live == 0:
            self._emptied.append(event.submission)
        return told

    def _deleted(self, event: m.Deleted, now: float) -> list[m.Instruction]:
        pods = self.registry.pods
        rows = event.rows[~np.isin(pods.phase[event.rows], (Phase.DELETED, Phase.ABSENT))]
        if not len(rows):
            return []
        bound = rows[pods.phase[rows] == Phase.BOUND]
        self._to_sweep |= bool(pods.in_queue[rows].any())
        self._emptied += self.registry.mark_deleted(rows, self.unix_ms(now))
        pods.assigned[rows] = False
        self.settlement.nominations.gone(map(bytes, pods.uid[rows]))
        self.counters["deleted"] += len(rows)
        self.settlement.publish(rows)
        self.queues.gather(rows, now)
        return [m.Release(bound, pods.uid[bound], pods.node[bound])] if len(bound) else []

    def _gates_removed(self, event: m.GatesRemoved, now: float) -> list[m.Instruction]:
        waits = self.registry.pods.phase[event.rows] == Phase.UNSCHEDULABLE
        rows = event.rows[waits & self.registry.gated(event.rows)]
        self.settlement.gates_removed(rows, event.gates, now, self.unix_ms(now))
        return []

    def _retried(self, event: m.Retried, now: float) -> list[m.Instruction]:
        pods = self.registry.pods
        rows = event.rows[pods.phase[event.rows] == Phase.FAILED]
        pods.reason[rows] = NO_REASON
        self.queues.requeue(rows, now, self.unix_ms(now), event="Retried", front=False)
        self.settlement.publish(rows)
        return []

    # --- time ---

    def _tick(self, event: m.Tick, now: float) -> list[m.Instruction]:  # noqa: ARG002 - as all handlers
        if self._ticked_at is not None and now - self._ticked_at > LATE_TICK_SECONDS:
            self.members.excuse(now - self._ticked_at)
        self._ticked_at = now
        self.queues.tick(now, self.unix_ms(now))
        self.settlement.publish(self.queues.muster(now, self.unix_ms(now)))
        out = self.settlement.tick(now, self.unix_ms(now))
        timeout = self._settings.worker_timeout_seconds
        for worker in self.members.silent_since(now - timeout):
            why = f"no heartbeat for {timeout:g} s"
            out += [m.CloseLink(worker.link, why), *self._workforce.lose(worker, now, why)]
        recalls = self.stealing.recalls()
        self.counters["recalled"] += sum(recall.pods for recall in recalls)
        out += recalls
        out += self.guidance.tick(now)
        if self._emptied and now - self._forgot_at >= FORGET_SECONDS:
            self._forgot_at = now
            out += self._forget_emptied(now)
        self.registry.reasons.compact(self.registry.pods)
        return out

    def _forget_emptied(self, now: float) -> list[m.Instruction]:
        if self._to_sweep and now >= self._next_sweep:
            self._to_sweep = False
            self._next_sweep = now + self.queues.sweep() * SWEEP_SECONDS_PER_ENTRY
        self.registry.faults.drop_deleted()
        done = [s for s in self._emptied if self.registry.forgettable(s)]
        self._emptied = [s for s in self._emptied if not self.registry.forgettable(s)]
        for submission in done:
            self.registry.forget(submission)
        return [m.Forget(submission) for submission in done]
