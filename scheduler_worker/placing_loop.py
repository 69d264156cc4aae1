"""The loop that places pods: in slices of a bounded time, so that streams and heartbeats get their turn.

Placing goes on while verdicts are awaited."""

import asyncio
from collections.abc import Awaitable, Callable

from hoss.telemetry import logger
from scheduler_worker.condition import Gauges
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.experiments import GlobalLock, WorkerExperiment
from scheduler_worker.outbox import Outbox

# After so much CPU time the loop proposes what it has placed, if these are many pods; else after the longer
# time (docs/adr/0125). Each proposal costs all processes some milliseconds, whatever it carries. By the clock
# alone, it would have the fewer pods the more other processes use the cores.
_SLICE_SECONDS, _MANY_PODS = 0.02, 200
_SLICE_SECONDS_OF_FEW_PODS = 0.08

# And after this time by the clock in any case, so that the ledger and heartbeats never wait noticeably.
_LONGEST_SLICE_SECONDS = 0.25

# After a slice that took all of its time the event loop has this long to itself. One turn of the event loop
# is not enough: a message takes several. Outcomes and heartbeats of a slow worker piled up until the
# dispatcher took the worker for dead.
_PAUSE_SECONDS = 0.001


class PlacingLoop:
    """Calls the scheduler's `step` whenever there may be something to place."""

    def __init__(
        self,
        worker: str,
        scheduler: Scheduler,
        gauges: Gauges,
        outbox: Outbox,
        *,
        clock: Callable[[], float],
        thread_clock: Callable[[], float],
        experiment: WorkerExperiment,
        global_lock: GlobalLock | None,
    ) -> None:
        """`thread_clock`: the CPU time of this thread. `global_lock`: place only while it is held."""
        # Shard -> seq of the latest verdict; for the lock's next holder.
        self.verdict_seqs: dict[int, int] = {}
        self._clock = clock
        self._thread_clock = thread_clock
        self._worker = worker
        self._scheduler = scheduler
        self._gauges = gauges
        self._outbox = outbox
        self._experiment = experiment
        self._global_lock = global_lock
        self._work = asyncio.Event()
        self._answered = asyncio.Event()
        self._slice_used_up = False
        self._failing = False  # as the dispatcher was told

    def wake(self) -> None:
        """There may be something to place."""
        self._work.set()

    def answered(self) -> None:
        """The ledger has answered, or another epoch began."""
        self._answered.set()

    def next_answer(self) -> Awaitable[object]:
        """Done when `answered` is called next, from this call on."""
        self._answered.clear()
        return self._answered.wait()

    async def run(self) -> None:
        """Place pods, slice by slice, until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            if not self._gauges.ready:
                continue
            lock = self._global_lock
            if await (self._slice() if lock is None else self._locked_slice(lock)):
                self.wake()
                await asyncio.sleep(_PAUSE_SECONDS if self._slice_used_up else 0)

    async def _locked_slice(self, lock: GlobalLock) -> bool:
        """A slice under the global lock, with all verdicts on it."""
        if self._scheduler.idle:
            return False
        async with lock.held(lambda: self._scheduler.cache.seqs, self.verdict_seqs):
            more = await self._slice()
            while self._outbox.in_flight:
                await self.next_answer()
        return more

    async def _slice(self) -> bool:
        """Place for a while and propose it. False when nothing is left to place."""
        scheduler, pods, self._slice_used_up = self._scheduler, 0, False
        until, cpu_began = self._clock() + _LONGEST_SLICE_SECONDS, self._thread_clock()
        with self._gauges.working(), self._gauges.busy():
            while not self._slice_used_up and (settled := scheduler.step()):
                pods += settled
                enough = _SLICE_SECONDS if pods >= _MANY_PODS else _SLICE_SECONDS_OF_FEW_PODS
                self._slice_used_up = self._clock() > until or self._thread_clock() - cpu_began > enough
            placed = self._clock()
            decision_seconds = self._experiment.seconds(pods)
            proposals = scheduler.take_proposals(placed + decision_seconds)
        if decision_seconds and not await self._decide(decision_seconds):
            return True
        with self._gauges.working():
            self._outbox.send_proposals(proposals)
            scheduler.costs.overhead(self._clock() - placed, pods)
            self._outbox.send_questions()
            for failure in scheduler.take_failures():
                logger().error("plugin_failed", worker=self._worker, plugin=failure.plugin, exc_info=failure)
            if bool(scheduler.failing(self._clock())) != self._failing:
                self._failing = not self._failing
                self._outbox.send_heartbeat(self._gauges)  # before the pods queue again
            self._outbox.send_outcomes()
        return pods > 0 or bool(proposals)

    async def _decide(self, seconds: float) -> bool:
        """Let a decision take this long. False: another epoch began meanwhile, and the decision counts no
        more."""
        epoch, began = self._outbox.epoch, self._clock()
        await asyncio.sleep(seconds)
        self._gauges.spent(self._clock() - began)
        return self._outbox.epoch == epoch
