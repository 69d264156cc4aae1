"""Sends the scheduler's messages: proposals to the resolvers, everything else to the dispatcher.

Nothing is sent twice: the scheduler hands out each message once."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from hoss.client.proposal_stream import ProposalStream
from hoss.client.worker_link import DispatcherLink
from hoss.v1.workerlink_pb2 import Leave, WorkerMessage
from scheduler_worker import messages
from scheduler_worker.condition import AttemptTimes, Gauges
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.messages import ProposalColumns
from scheduler_worker.synchronisation import Synchronisation

if TYPE_CHECKING:
    from scheduler_worker.tracing import WorkerTraces


class Outbox:
    """`connect` must be called before anything else."""

    def __init__(
        self,
        worker: str,
        scheduler: Scheduler,
        *,
        clock: Callable[[], float],
        unchecked: bool,
        pre_bind: bool,
        traces: "WorkerTraces | None",
    ) -> None:
        self._clock = clock
        self.epoch = 0  # of the present stream to the dispatcher
        self.attempts = AttemptTimes()
        self.leaving = False  # the dispatcher was told that the worker takes no more work
        self._worker = worker
        self._scheduler = scheduler
        self._unchecked = unchecked
        self._pre_bind = pre_bind
        self._traces = traces

    def connect(
        self, link: DispatcherLink, proposals: ProposalStream, synchronisation: Synchronisation
    ) -> None:
        """Give it the streams that it sends on, and what fills the cache."""
        self._link = link
        self._proposals = proposals
        self._synchronisation = synchronisation

    def begin_epoch(self, epoch: int) -> None:
        """Verdicts on what was sent before are dropped."""
        self.epoch = epoch
        self._proposals.abandon()

    @property
    def in_flight(self) -> bool:
        """Whether any proposal waits for its verdict."""
        return self._proposals.in_flight

    def send_proposals(self, proposals: Iterable[ProposalColumns]) -> None:
        """Send these proposals of the scheduler."""
        for columns in proposals:
            message = messages.proposal_batch(
                columns,
                worker=self._worker,
                epoch=self.epoch,
                unchecked=self._unchecked,
                pre_bind=self._pre_bind,
            )
            if self._traces is not None and (work := self._scheduler.work_of(columns.batch_id)) is not None:
                self._traces.proposed(message, work)
            self._proposals.send(message)

    def send_registrations(self) -> None:
        """Have the ledger register rules of pods that came in."""
        for registration in self._scheduler.take_registrations():
            message = messages.rule_registration(registration, worker=self._worker, epoch=self.epoch)
            self._proposals.send(message)

    def send_questions(self) -> None:
        """Ask the dispatcher for pods that may be evicted."""
        for question in self._scheduler.take_questions():
            self._link.send(messages.preemption_question(question))

    def leave(self, reason: str = "") -> None:
        """Tell the dispatcher, once, that the worker takes no more work; `reason`: unless it was told to
        stop."""
        if not self.leaving:
            self.leaving = True
            self._link.send(WorkerMessage(leave=Leave(reason=reason)))

    def send_heartbeat(self, gauges: Gauges) -> None:
        """Tell the dispatcher the worker's figures now, and not with the next regular heartbeat."""
        self._link.send(WorkerMessage(heartbeat=gauges.heartbeat(self._synchronisation.mode)))

    def send_outcomes(self) -> None:
        """Send outcomes. Ask for a newer view if one would have helped a pod."""
        if self._scheduler.plugin_stuck:
            self.leave(self._scheduler.plugin_stuck)  # first: the same pods must not come back
        for columns in self._scheduler.take_outcomes():
            self.attempts.answered(columns, self._clock())
            self._link.send(messages.outcomes(columns))
        if self._scheduler.take_refresh_wanted():
            self._synchronisation.request_refresh()
