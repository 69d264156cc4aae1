"""The dispatcher's metrics. A standby has only ACTIVE, FAILED_TERMS and the metrics of its process."""

from collections.abc import Iterable, Iterator

import numpy as np

from dispatcher.api.request_router import RequestRouter
from dispatcher.core.machine import Machine
from dispatcher.core.pods.table import Phase
from dispatcher.leader.elector import LeaderElector
from dispatcher.leader.leadership import Leadership
from dispatcher.runtime import Runtime
from dispatcher.workers.overlap_control import reason
from dispatcher.workers.preemption import PreemptionAnswers
from hoss.telemetry.metrics import COUNTER, GAUGE, HISTOGRAM, Family, Metric, tables_source

PENDING = Metric(
    "scheduler_pending_pods",
    GAUGE,
    "Pods that wait, by queue: active, backoff, unschedulable, gated.",
    ("queue",),
)
ATTEMPTS = Metric(
    "scheduler_schedule_attempts_total",
    COUNTER,
    "Workers' answers, by result: scheduled, unschedulable, conflict (refused too often by the ledger).",
    ("result",),
)
SLI = Metric(
    "scheduler_pod_scheduling_sli_duration_seconds",
    HISTOGRAM,
    "From submission to bound, of pods without scheduling gates, at their first place.",
)
VICTIMS = Metric(
    "scheduler_preemption_victims",
    HISTOGRAM,
    "Pods that the ledger evicted for a pod, for each pod for which it did.",
)
INCOMING = Metric(
    "scheduler_queue_incoming_pods_total",
    COUNTER,
    "Pods that came to a queue, by queue and event: PodAdd, ScheduleAttemptFailure, BackoffComplete, "
    "UnschedulableTimeout, ClusterChange, GatesRemoved, PolicyChange, Returned, WorkerLost, Evicted, "
    "ReservationLost, Retried, PreemptionAllowed.",
    ("queue", "event"),
)
ACTIVE = Metric("hoss_dispatcher_active", GAUGE, "1: this dispatcher serves; 0: it stands by.")
FAILED_TERMS = Metric(
    "hoss_dispatcher_failed_terms_total",
    COUNTER,
    "Terms that this process ended because a task or the state machine failed. It recovers from the journal.",
)
TERM = Metric("hoss_dispatcher_term", GAUGE, "Number of the term it serves.")
PROBLEMS = Metric(
    "hoss_dispatcher_problems", GAUGE, "Peers that do not answer, so that something waits for them."
)
PODS = Metric("hoss_pods", GAUGE, "Pods, by phase.", ("phase",))
EVENTS = Metric(
    "hoss_dispatcher_events_total",
    COUNTER,
    "Events of pods (accepted, dispatched, bound, requeued, unreserved, evicted, failed, deleted ...),"
    " workers (workers_lost, workers_left, workers_overdue), and what reconciliation with the ledger found"
    " (reservations_missing, reservations_without_pod, reservations_released); journal_rewritten: Redis had"
    " lost a part of the journal.",
    ("event",),
)
PHASES = Metric(
    "hoss_phase_duration_seconds",
    HISTOGRAM,
    "How long pods took, by phase: queued before each dispatch; deciding and committing, of bound pods.",
    ("phase",),
)
CONFLICTS = Metric(
    "hoss_conflicts_total",
    COUNTER,
    "Pods refused by the ledger, by the pair of workers and the verdict.",
    ("loser", "winner", "reason"),
)
WORKERS = Metric("hoss_workers", GAUGE, "Workers, by state.", ("state",))
OUTSTANDING = Metric(
    "hoss_worker_outstanding_pods", GAUGE, "Pods sent to a worker and not answered.", ("worker",)
)
ESTIMATED = Metric(
    "hoss_worker_estimated_work_seconds", GAUGE, "What these are estimated to take it.", ("worker",)
)
BUSY_SHARE = Metric(
    "hoss_worker_busy_ratio",
    GAUGE,
    "Of its time, what a worker spent scheduling lately; waiting for a core counts.",
    ("worker",),
)

TERM_METRICS = (
    PENDING, ATTEMPTS, SLI, VICTIMS, INCOMING, TERM, PROBLEMS, PODS, EVENTS, PHASES, CONFLICTS, WORKERS,
    OUTSTANDING, ESTIMATED, BUSY_SHARE,
)  # fmt: skip
METRICS = (ACTIVE, FAILED_TERMS, *TERM_METRICS)

_RESULTS = {"scheduled": "bound", "unschedulable": "unschedulable", "conflict": "conflicts"}


class Activity:
    """A metrics source: whether this dispatcher serves."""

    def __init__(self, router: RequestRouter) -> None:
        self._router = router

    def __call__(self) -> Iterable[Family]:
        return (ACTIVE.single(int(self._router.serves)),)


class Terms:
    """A metrics source: the terms of this process."""

    def __init__(self, elector: LeaderElector) -> None:
        self._elector = elector

    def __call__(self) -> Iterable[Family]:
        return (FAILED_TERMS.single(self._elector.failed_terms),)


class TermSource:
    """A metrics source: the pods and workers of one term."""

    def __init__(self, runtime: Runtime, leadership: Leadership, preemption: PreemptionAnswers) -> None:
        self._runtime = runtime
        self._preemption = preemption
        self._machine = runtime.machine
        self._leadership = leadership
        self._tables = tables_source("dispatcher", self._machine.table_sizes, runtime.table_sizes)

    def __call__(self) -> Iterator[Family]:
        machine = self._machine
        counts = machine.registry.pods.count_by_phase()
        yield PENDING.by(_pending(machine, int(counts[Phase.QUEUED]), int(counts[Phase.BACKOFF])))
        yield ATTEMPTS.by((result, machine.counters[event]) for result, event in _RESULTS.items())
        yield SLI.single(machine.settlement.times.scheduled)
        yield VICTIMS.single(self._preemption.victims)
        yield INCOMING.by(sorted(machine.queues.incoming.items()))
        yield TERM.single(self._leadership.term)
        yield PROBLEMS.single(len(self._runtime.problems))
        yield PODS.by(
            (phase.name.lower(), int(counts[phase])) for phase in Phase if phase is not Phase.ABSENT
        )
        yield EVENTS.by(sorted(machine.counters.items()))
        yield PHASES.by(machine.settlement.times.by_phase())
        yield CONFLICTS.by(
            ((pair.loser, pair.winner, reason(pair.verdict)), pods)
            for pair, pods in machine.overlap.conflicts.pairs.items()
        )
        yield from self._workers()
        yield from self._tables()

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
