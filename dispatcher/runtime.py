"""The event loop around the state machine: clocks in, instructions out to links, ledger and journal.

What the ledger is asked is asked until it answers; meanwhile `problems` says what is wrong. Nothing here decides anything
about a pod.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dispatcher.audit import Asked
from dispatcher.confirmations import Confirmations
from dispatcher.core import messages as m
from dispatcher.core.machine import Machine
from dispatcher.core.podtable import Rows
from dispatcher.journal import Journal
from dispatcher.ledger import Ledger
from hoss.errors import LedgerUnavailable, TransportError
from hoss.telemetry import logger
from hoss.wire.columns import NONE_U32, Uids

if TYPE_CHECKING:
    from dispatcher.tracing import DispatcherTraces

TICK_SECONDS = 0.1
_FIRST_DELAY_SECONDS = 0.05
_MAX_DELAY_SECONDS = 2.0

AnswerT = TypeVar("AnswerT")


class Link(Asked, Protocol):
    """One worker's stream, as the runtime writes to it. Nothing here blocks or fails; a dead stream swallows it."""

    def send(self, instruction: m.ToWorker) -> None:
        """Queue a message."""
        ...

    def close(self, text: str, *, taken: bool = False) -> None:
        """End the stream, telling the worker why; `taken`: because its name belongs to another."""
        ...


class Runtime:
    """Runs a machine. All methods but `serve` and `until_answered` are synchronous and must run on the event loop."""

    def __init__(
        self,
        machine: Machine,
        ledger: Ledger,
        journal: Journal,
        *,
        clock: Callable[[], float] = time.monotonic,
        traces: "DispatcherTraces | None" = None,
    ) -> None:
        self.machine = machine
        self.ledger = ledger
        self.journal = journal
        self.traces = traces
        self.problems: dict[str, str] = {}  # by peer
        self.links: dict[int, Link] = {}
        self.started_at = clock()
        self._clock = clock
        self._confirmations = Confirmations(self)
        self._jobs: set[asyncio.Task[None]] = set()
        self._job_for: dict[type, Callable[[Any], Coroutine[Any, Any, None]]] = {
            m.GrantEpoch: self._grant_epoch,
            m.Fence: self._fence,
            m.Verify: self.verify,
            m.Release: self.release,
            m.Evict: self._evict,
            m.Forget: self._forget,
        }
        # Told of pods whose commits are confirmed: rows and UIDs.
        self.confirmed: Callable[[Rows, Uids], None] = lambda _rows, _uids: None
        self._granting: dict[str, asyncio.Lock] = {}
        self._linger: asyncio.TimerHandle | None = None
        self._linger_at: float | None = None
        self._revised = asyncio.Event()
        self._revision = machine.log.revision

    def carry_out(self, kind: type, job: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        """From now on instructions of this kind are carried out by this job."""
        self._job_for[kind] = job

    def now(self) -> float:
        """Monotonic seconds."""
        return self._clock()

    def now_ms(self) -> int:
        """Unix milliseconds, by the machine's reckoning."""
        return self.machine.unix_ms(self._clock())

    def tell(self, event: m.Event) -> None:
        """Let the machine take in an event, and do what it wants done."""
        self.perform(self.machine.handle(event, self._clock()))

    def perform(self, instructions: list[m.Instruction]) -> None:
        """Carry out instructions, in order."""
        for instruction in instructions:
            self._perform(instruction)
        if self.machine.log.revision != self._revision:
            self._revision = self.machine.log.revision
            self._revised.set()
            self._revised = asyncio.Event()
        self._set_linger()

    async def revised(self, seen: int) -> None:
        """Return once the event log has more than revision `seen`."""
        while self.machine.log.revision <= seen:
            await self._revised.wait()

    async def serve(self) -> None:
        """Tick until cancelled; then end what is under way."""
        try:
            while True:
                self.tell(m.Tick())
                await asyncio.sleep(TICK_SECONDS)
        finally:
            for job in self._jobs:
                job.cancel()
            await asyncio.gather(*self._jobs, return_exceptions=True)

    async def until_answered(self, ask: Callable[[], Awaitable[AnswerT]], peer: str = "resolver") -> AnswerT:
        """Ask until an answer comes, ever more slowly, up to every two seconds."""
        delay = _FIRST_DELAY_SECONDS
        while True:
            try:
                answer = await ask()
            except (LedgerUnavailable, TransportError) as exc:  # noqa: PERF203 - the loop is the retry
                if peer not in self.problems:
                    logger().warning("peer_away", peer=peer, error=str(exc))
                self.problems[peer] = f"{peer} does not answer; what it must know waits: {exc}"
                await asyncio.sleep(delay)
                delay = min(2 * delay, _MAX_DELAY_SECONDS)
            else:
                if self.problems.pop(peer, None) is not None:
                    logger().info("peer_back", peer=peer)
                return answer

    def spawn(self, job: Coroutine[Any, Any, None]) -> None:
        """Run a job beside everything else. Jobs do not fail: what they ask is asked until it is answered."""
        task = asyncio.get_running_loop().create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._job_done)

    def _job_done(self, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger().error("job_failed", error=str(error), exc_info=error)

    def _perform(self, instruction: m.Instruction) -> None:
        if (job := self._job_for.get(type(instruction))) is not None:
            self.spawn(job(instruction))
            return
        match instruction:
            case (
                m.SendWork() | m.Welcome() | m.SendSurroundings() | m.SendDrain() | m.SendRecall() | m.SendPreference()
            ):
                if (link := self.links.get(instruction.link)) is not None:
                    link.send(instruction)
            case m.Confirm():
                self._confirmations.add(instruction)
            case m.Refuse() | m.CloseLink():
                if (link := self.links.get(instruction.link)) is not None:
                    link.close(instruction.text, taken=isinstance(instruction, m.Refuse))
            case m.Note():
                logger().info(instruction.event, **instruction.fields)
            case m.Warn():
                logger().warning(instruction.event, **instruction.fields)

    async def _grant_epoch(self, wanted: m.GrantEpoch) -> None:
        # One at a time for a name: a late grant of an earlier link would fence the link that has the name now.
        async with self._granting.setdefault(wanted.worker, asyncio.Lock()):
            await self.until_answered(lambda: self.journal.remember_worker(wanted.worker), "journal")
            if wanted.link not in self.links:
                return
            epoch = await self.until_answered(lambda: self.ledger.grant_epoch(wanted.worker))
        self.tell(m.EpochGranted(wanted.link, epoch))

    async def _fence(self, wanted: m.Fence) -> None:
        async with self._granting.setdefault(wanted.worker, asyncio.Lock()):
            epoch = await self.until_answered(lambda: self.ledger.grant_epoch(wanted.worker))
        found = await self.until_answered(lambda: self.ledger.lookup(wanted.uids))
        reserved = int((found.nodes != NONE_U32).sum())
        logger().info("worker_fenced", worker=wanted.worker, epoch=epoch, pods=len(wanted.uids), reserved=reserved)
        self.tell(m.Fenced(wanted.worker, found.nodes, found.commits))

    async def verify(self, wanted: m.Verify) -> None:
        """Have pods looked up, however long it takes, and tell the machine where they are."""
        found = await self.until_answered(lambda: self.ledger.lookup(wanted.uids))
        self.tell(m.Verified(wanted.rows, wanted.uids, found.nodes))

    async def release(self, wanted: m.Release) -> None:
        """Have reservations given back, however long it takes."""
        await self.until_answered(lambda: self.ledger.release(wanted.uids, wanted.nodes))
        self.tell(m.Released(wanted.rows))

    async def _evict(self, wanted: m.Evict) -> None:
        await self.until_answered(lambda: self.ledger.release(wanted.uids, wanted.nodes))
        self.tell(m.Evicted(wanted.uids, wanted.nodes, wanted.reasons))

    async def _forget(self, wanted: m.Forget) -> None:
        submission = wanted.submission
        prefixes = [pod_set.uid_prefix for pod_set in submission.sets]
        await self.until_answered(lambda: self.journal.drop(submission.key, prefixes), "journal")

    def _set_linger(self) -> None:
        wanted = self.machine.dispatch.wake_at
        if wanted == self._linger_at:
            return
        if self._linger is not None:
            self._linger.cancel()
        self._linger, self._linger_at = None, wanted
        if wanted is not None:
            delay = max(0.0, wanted - self._clock())
            self._linger = asyncio.get_running_loop().call_later(delay, self._linger_over)

    def _linger_over(self) -> None:
        self._linger, self._linger_at = None, None
        self.perform(self.machine.pump(self._clock()))
