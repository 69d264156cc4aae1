"""The deadline of work: a worker that beats and does not answer loses its pods.

A worker with outstanding pods has to answer some of them, or to report a smaller backlog than before, within
`patience`: the configured time plus ten times the estimate of its work, up to four times as long if it says
that it is busy. The ledger is asked twice meanwhile. If it does not answer, the worker cannot either, and its
time starts again. Otherwise its pods are taken back as those of a lost worker are.

Such a worker is distrusted: it gets no work for a time that doubles with each repetition, and then one batch
at a time until it answers one. Invariant: no pod stays with a worker that does not answer for longer than its
patience, provided that the ledger answers."""

from collections import Counter
from dataclasses import dataclass

from dispatcher.core.messages import Instruction, ProbeLedger
from dispatcher.core.pods.table import PodTable
from dispatcher.core.workers.membership import Membership, Worker

# Estimates are averages of measurements. A pod of a class that is new to the worker takes many times as long.
ESTIMATE_FACTOR = 10.0
BUSY_FACTOR = 3.0  # added for a worker that is busy all the time

_PROBES = 2  # of the ledger, at equal times

FIRST_DISTRUST_SECONDS = 30.0
LONGEST_DISTRUST_SECONDS = 600.0
_MAX_DOUBLINGS = 16  # the longest time is reached long before


@dataclass(frozen=True, slots=True, eq=False)
class OverdueWork:
    """Decides whose work is overdue, and for how long these workers are distrusted. `timeout_seconds` 0: no
    work is ever overdue."""

    members: Membership
    pods: PodTable
    counters: Counter[str]
    timeout_seconds: float

    def patience(self, worker: Worker) -> float:
        """How many seconds the worker has from one sign of progress to the next."""
        estimate_seconds = worker.work_micros / 1e6
        busy = 1 + BUSY_FACTOR * worker.busy_share
        return (self.timeout_seconds + ESTIMATE_FACTOR * estimate_seconds) * busy

    def tick(self, now: float) -> list[Instruction]:
        """Workers whose distrust is over may get work again. Asks for a probe of the ledger for those that
        may be overdue."""
        out: list[Instruction] = []
        for worker in self.members:
            trust = worker.trust
            if trust.distrusted and now >= trust.distrusted_until:
                trust.distrusted = False
                worker.record(now, "may have a batch again, to see whether it answers")
            if not worker.living or not worker.outstanding:
                trust.progressed(now)
                trust.probing = False  # an answer that is still to come is of an earlier time
            elif self.timeout_seconds and not trust.probing and now >= self._probe_due(worker):
                trust.probing = True
                batch = next(iter(worker.batches.values()))
                out.append(ProbeLedger(worker.link, self.pods.uid[batch.rows[:1]]))
        return out

    def probed(self, worker: Worker, now: float, *, answered: bool) -> str:
        """The ledger was asked on account of this worker. Returns why its pods are to be taken back; "" if
        they are not."""
        trust = worker.trust
        trust.probing = False
        if not answered:
            trust.progressed(now)
            return ""
        if now < self._probe_due(worker):  # it was asked before the worker's last sign of progress
            return ""
        trust.probes += 1
        if trust.probes < _PROBES or not worker.outstanding:
            return ""
        silent_seconds = now - trust.progressed_at
        doublings = min(trust.timeouts, _MAX_DOUBLINGS)
        seconds = min(FIRST_DISTRUST_SECONDS * 2**doublings, LONGEST_DISTRUST_SECONDS)
        trust.timeouts += 1
        trust.distrusted = trust.on_probation = True
        trust.distrusted_until = now + seconds
        self.counters["workers_overdue"] += 1
        self.counters["taken_back"] += worker.outstanding
        return (
            f"it answered for no pod in {silent_seconds:.0f} s; "
            f"it gets no work for {seconds:.0f} s, and then a batch at a time until it answers"
        )

    def answered(self, worker: Worker, now: float) -> None:
        """The worker has answered for some of its pods."""
        trust = worker.trust
        trust.progressed(now)
        if trust.on_probation and not trust.distrusted:
            worker.record(now, "it has answered, and is trusted again")
            trust.on_probation, trust.timeouts = False, 0

    def heartbeat(self, worker: Worker, now: float) -> None:
        """The worker has reported its backlog."""
        if worker.outstanding and worker.heartbeat.backlog < worker.trust.least_backlog:
            worker.trust.progressed(now)
            worker.trust.least_backlog = worker.heartbeat.backlog

    def forgive(self, worker: Worker, now: float) -> None:
        """The operator says that the worker may have work."""
        trust = worker.trust
        if trust.distrusted or trust.on_probation:
            trust.distrusted = trust.on_probation = False
            trust.timeouts = 0
            worker.record(now, "is trusted again, by hand")

    def _probe_due(self, worker: Worker) -> float:
        return worker.trust.progressed_at + self.patience(worker) * (worker.trust.probes + 1) / _PROBES
