"""What the dispatcher shows Prometheus, read from what it counts anyway. A standby shows that it stands by, and its process."""

from collections.abc import Iterable, Iterator

import numpy as np

from dispatcher.candidate import Term
from dispatcher.core.machine import Machine
from dispatcher.core.podtable import Phase
from dispatcher.preemption import Preemption
from dispatcher.reception import Reception
from dispatcher.runtime import Runtime
from dispatcher.steering import reason
from hoss.telemetry.metrics import Family, Kind, Metric

PENDING = Metric(
    "scheduler_pending_pods", Kind.GAUGE, "Pods that wait, by queue: active, backoff, unschedulable, gated.", ("queue",)
)
ATTEMPTS = Metric(
    "scheduler_schedule_attempts_total",
    Kind.COUNTER,
    "Workers' answers, by result: scheduled, unschedulable, conflict (refused too often by the ledger).",
    ("result",),
)
SLI = Metric(
    "scheduler_pod_scheduling_sli_duration_seconds",
    Kind.HISTOGRAM,
    "From submission to bound, of pods without scheduling gates, at their first place.",
)
VICTIMS = Metric(
    "scheduler_preemption_victims",
    Kind.HISTOGRAM,
    "Pods that the ledger evicted for a pod, for each pod for which it did.",
)
INCOMING = Metric(
    "scheduler_queue_incoming_pods_total",
    Kind.COUNTER,
    "Pods that came to a queue, by queue and event: PodAdd, ScheduleAttemptFailure, BackoffComplete, UnschedulableTimeout, ClusterChange, "
    "GatesRemoved, PolicyChange, Returned, WorkerLost, Evicted, ReservationLost, Retried.",
    ("queue", "event"),
)
ACTIVE = Metric("hoss_dispatcher_active", Kind.GAUGE, "1: this dispatcher serves; 0: it stands by.")
TERM = Metric("hoss_dispatcher_term", Kind.GAUGE, "Number of the term it serves.")
PROBLEMS = Metric("hoss_dispatcher_problems", Kind.GAUGE, "Peers that do not answer, so that something waits for them.")
PODS = Metric("hoss_pods", Kind.GAUGE, "Pods, by phase.", ("phase",))
EVENTS = Metric(
    "hoss_dispatcher_events_total",
    Kind.COUNTER,
    "What befell pods (accepted, dispatched, bound, requeued, evicted, failed, deleted ...) and workers (workers_lost, workers_left).",
    ("event",),
)
PHASES = Metric(
    "hoss_phase_duration_seconds",
    Kind.HISTOGRAM,
    "How long pods took, by phase: queued before each dispatch; deciding and committing, of bound pods.",
    ("phase",),
)
CONFLICTS = Metric(
    "hoss_conflicts_total",
    Kind.COUNTER,
    "Pods refused by the ledger, by the pair of workers and the verdict.",
    ("loser", "winner", "reason"),
)
WORKERS = Metric("hoss_workers", Kind.GAUGE, "Workers, by state.", ("state",))
OUTSTANDING = Metric("hoss_worker_outstanding_pods", Kind.GAUGE, "Pods sent to a worker and not answered.", ("worker",))
ESTIMATED = Metric(
    "hoss_worker_estimated_work_seconds", Kind.GAUGE, "What these are estimated to take it.", ("worker",)
)
BUSY_SHARE = Metric(
    "hoss_worker_busy_ratio",
    Kind.GAUGE,
    "Of its time, what a worker spent scheduling lately; waiting for a core counts.",
    ("worker",),
)

TERM_METRICS = (
    PENDING,
    ATTEMPTS,
    SLI,
    VICTIMS,
    INCOMING,
    TERM,
    PROBLEMS,
    PODS,
    EVENTS,
    PHASES,
    CONFLICTS,
    WORKERS,
    OUTSTANDING,
    ESTIMATED,
    BUSY_SHARE,
)
METRICS = (ACTIVE, *TERM_METRICS)

_RESULTS = {"scheduled": "bound", "unschedulable": "unschedulable", "conflict": "conflicts"}


class Activity:
    """A metrics source: whether this dispatcher serves."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    def __call__(self) -> Iterable[Family]:
        return (ACTIVE.single(int(self._reception.serves)),)


class TermSource:
    """A metrics source: what is known in a term."""

    def __init__(self, runtime: Runtime, term: Term, preemption: Preemption) -> None:
        self._runtime = runtime
        self._preemption = preemption
        self._machine = runtime.machine
        self._term = term

    def __call__(self) -> Iterator[Family]:
        machine = self._machine
        counts = machine.registry.pods.count_by_phase()
        yield PENDING.by(_pending(machine, int(counts[Phase.QUEUED]), int(counts[Phase.BACKOFF])))
        yield ATTEMPTS.by((result, machine.counters[event]) for result, event in _RESULTS.items())
        yield SLI.single(machine.settlement.times.scheduled)
        yield VICTIMS.single(self._preemption.victims)
        yield INCOMING.by(sorted(machine.queues.incoming.items()))
        yield TERM.single(self._term.number)
        yield PROBLEMS.single(len(self._runtime.problems))
        yield PODS.by((phase.name.lower(), int(counts[phase])) for phase in Phase if phase is not Phase.ABSENT)
        yield EVENTS.by(sorted(machine.counters.items()))
        yield PHASES.by(machine.settlement.times.by_phase())
        yield CONFLICTS.by(
            ((pair.loser, pair.winner, reason(pair.verdict)), pods)
            for pair, pods in machine.guidance.conflicts.pairs.items()
        )
        yield from self._workers()

    def _workers(self) -> Iterator[Family]:
        workers = list(self._machine.members)
        states: dict[str, int] = {}
        for worker in workers:
            states[worker.state.value] = states.get(worker.state.value, 0) + 1
        yield WORKERS.by(sorted(states.items()))
        living = [worker for worker in workers if worker.living]
        yield OUTSTANDING.by((worker.name, worker.outstanding) for worker in living)
        yield ESTIMATED.by((worker.name, worker.work_micros / 1e6) for worker in living)
        yield BUSY_SHARE.by((worker.name, worker.busy_share) for worker in living)


def _pending(machine: Machine, active: int, backoff: int) -> Iterator[tuple[str, int]]:
    pods = machine.registry.pods
    waiting = np.flatnonzero(pods.phase[: pods.size] == Phase.UNSCHEDULABLE).astype(np.uint32)
    gated = int(np.count_nonzero(machine.registry.gated(waiting))) if len(waiting) else 0
    yield "active", active
    yield "backoff", backoff
    yield "unschedulable", len(waiting) - gated
    yield "gated", gated
