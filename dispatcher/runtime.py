"""The event loop around the state machine: events and the clock in, instructions out to workers, ledger and
journal.

Nothing here decides anything about a pod. A request to the ledger or the journal is repeated until it is
answered; meanwhile `problems` says which peer does not answer.

A runtime ends with its term. From then on it handles, performs and starts nothing. It also ends when a job
fails or the machine raises, because nothing that the machine has could be relied on: `serve` raises
TermFailed, and the next term recovers from journal and ledger."""

import asyncio
import random
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.machine import Machine
from dispatcher.core.pods.table import Rows
from dispatcher.core.workers.membership import GONE
from dispatcher.ports import Journal, LedgerPort, merge_commits
from hoss.client.backoff import Backoff
from hoss.errors import InvalidInput, LedgerUnavailable, OutcomeUnknown, Overloaded, TransportError
from hoss.host import THIS_HOST
from hoss.tasks import end_tasks
from hoss.telemetry import logger
from hoss.telemetry.context import calls_belong_to, now_ns
from hoss.v1 import workerlink_pb2
from hoss.wire.columns import NONE_U32, Uids

if TYPE_CHECKING:
    from dispatcher.tracing import DispatcherTraces

TICK_SECONDS = 0.1

# Commits that wait to be confirmed share a call. Far shorter than any lease of a commit, and long enough for
# the outcomes of several batches.
COALESCE_SECONDS = 0.01

_VERIFIED_AT_ONCE = 10_000  # pods: some 10 ms of the machine

_FIRST_DELAY_SECONDS = 0.05
_MAX_DELAY_SECONDS = 2.0

AnswerT = TypeVar("AnswerT")
Job = Callable[[Any], Coroutine[Any, Any, None]]


class TermFailed(OutcomeUnknown):
    """Something in this term ended that must not end, or the state machine raised. What the term has in
    memory cannot be relied on any more: the term ends, and the next one recovers from journal and ledger."""


class WorkerQueries(Protocol):
    """A worker's stream, for code that only sends it queries."""

    name: str

    def put(self, message: workerlink_pb2.DispatcherMessage, /) -> None:
        """Queue a message."""


class Link(WorkerQueries, Protocol):
    """One worker's stream, as the runtime writes to it. No method blocks or fails; messages to a dead stream
    are dropped."""

    def send(self, instruction: m.ToWorker) -> None:
        """Queue a message."""

    def close(self, text: str, *, taken: bool = False) -> None:
        """End the stream with a reason. `taken`: another worker has the name."""


class Runtime:
    """Runs a machine, until `end`. All methods but the coroutines are synchronous, and must run on the event
    loop."""

    def __init__(
        self,
        machine: Machine,
        ledger: LedgerPort,
        journal: Journal,
        *,
        clock: Callable[[], float] = THIS_HOST.monotonic,
        rng: random.Random = THIS_HOST.rng,
        traces: "DispatcherTraces | None" = None,
    ) -> None:
        self.machine = machine
        self.ledger = ledger
        self.journal = journal
        self.traces = traces
        self.problems: dict[str, str] = {}  # sentences for `hoss status`, by peer or task
        self.links: dict[int, Link] = {}
        self.started_at = clock()
        # Called with the rows and UIDs of pods whose commits are confirmed.
        self.on_confirmed: Callable[[Rows, Uids], None] = lambda _rows, _uids: None
        # The entries of the tables of Kubernetes mode.
        self.kubernetes_tables: Callable[[], dict[str, int]] = dict
        self._clock = clock
        self._rng = rng
        self._jobs: dict[asyncio.Task[None], None] = {}  # in the order of their start
        self._executors: dict[type, Job] = {
            m.GrantEpoch: self._grant_epoch,
            m.Fence: self._fence,
            m.ProbeLedger: self._probe_ledger,
            m.Verify: self.verify,
            m.Release: self.release,
            m.Evict: self._evict,
            m.Forget: self._forget,
        }
        self._unconfirmed: list[m.Confirm] = []
        self._confirming = False
        self._ended = False
        self._failure: TermFailed | None = None
        # By worker, while a job needs it.
        self._granting: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._linger: asyncio.TimerHandle | None = None
        self._linger_at: float | None = None
        self._revised = asyncio.Event()
        self._revision = machine.log.revision

    # --- events and time ---

    def now(self) -> float:
        """Monotonic seconds."""
        return self._clock()

    def now_ms(self) -> int:
        """Unix milliseconds, by the machine's clock offset."""
        return self.machine.unix_ms(self._clock())

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table of the runtime's own and of Kubernetes mode."""
        own = {"jobs": len(self._jobs), "links": len(self.links), "problems": len(self.problems)}
        return own | self.kubernetes_tables()

    def handle(self, event: m.Event) -> None:
        """Let the machine handle an event, and carry out its instructions. Raises TermFailed if the machine
        fails."""
        if self._ended:
            return
        try:
            self.perform(self.machine.handle(event, self._clock()))
        except InvalidInput:  # from a peer; nothing has changed
            raise
        except Exception as exc:
            raise self._fail(f"the event {type(event).__name__}", exc) from exc

    async def serve(self) -> None:
        """Tick until cancelled, then end. Raises TermFailed if a job or the machine has failed."""
        try:
            while self._failure is None:
                self.handle(m.Tick())
                await asyncio.sleep(TICK_SECONDS)
            raise self._failure
        finally:
            await self.end()

    async def end(self) -> None:
        """Do nothing from now on, and cancel the jobs that run."""
        self._stop()
        await end_tasks(self._jobs)

    def _stop(self) -> None:
        self._ended = True
        if self._linger is not None:
            self._linger.cancel()

    def _fail(self, what: str, error: Exception) -> TermFailed:
        """The term cannot go on. Returns why."""
        if self._failure is None:
            self._failure = TermFailed(
                f"{what} failed ({error}), so the dispatcher begins anew from its journal; whether this was "
                "accepted is unknown: make the same call again, a submission with the same request id"
            )
            logger().error("dispatcher_failed", what=what, error=str(error), exc_info=error)
            self._stop()
        return self._failure

    async def revised(self, revision: int) -> None:
        """Return once the event log is beyond this revision."""
        while self.machine.log.revision <= revision:
            await self._revised.wait()

    def _set_linger(self) -> None:
        wake_at = self.machine.dispatch.wake_at
        if wake_at == self._linger_at:
            return
        if self._linger is not None:
            self._linger.cancel()
        self._linger, self._linger_at = None, wake_at
        if wake_at is not None:
            delay = max(0.0, wake_at - self._clock())
            self._linger = asyncio.get_running_loop().call_later(delay, self._linger_over)

    def _linger_over(self) -> None:
        self._linger, self._linger_at = None, None
        try:
            self.perform(self.machine.pump(self._clock()))
        except Exception as exc:  # noqa: BLE001 - ends the term
            self._fail("sending work", exc)

    # --- instructions ---

    def perform(self, instructions: list[m.Instruction]) -> None:
        """Carry out the machine's instructions, in their order; none after the end of the term."""
        if self._ended:
            return
        for instruction in instructions:
            self._perform(instruction)
        if self.machine.log.revision != self._revision:
            self._revision = self.machine.log.revision
            self._revised.set()
            self._revised = asyncio.Event()
        self._set_linger()

    def set_executor(self, kind: type, job: Job) -> None:
        """From now on this job carries out instructions of this kind."""
        self._executors[kind] = job

    async def carry_out(self, instruction: m.Instruction) -> None:
        """Return when the job of this instruction is done."""
        await self._executors[type(instruction)](instruction)

    def spawn(self, job: Coroutine[Any, Any, None]) -> None:
        """Run a job in the background. A job repeats its requests until they are answered. If it fails all
        the same, the term ends: the pods that it was about would wait for it for ever."""
        if self._ended:
            job.close()
            return
        task = asyncio.get_running_loop().create_task(job, name=getattr(job, "__qualname__", "job"))
        self._jobs[task] = None
        task.add_done_callback(self._job_done)

    def _job_done(self, task: asyncio.Task[None]) -> None:
        del self._jobs[task]
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._fail(f"the job {task.get_name()}", error)

    def _perform(self, instruction: m.Instruction) -> None:
        if (execute := self._executors.get(type(instruction))) is not None:
            self.spawn(execute(instruction))
            return
        match instruction:
            case (
                m.SendWork()
                | m.Welcome()
                | m.SendNamespaces()
                | m.SendStorage()
                | m.SendDrain()
                | m.SendRecall()
                | m.SendPreference()
            ):
                if (link := self.links.get(instruction.link)) is not None:
                    link.send(instruction)
            case m.Confirm():
                self._unconfirmed.append(instruction)
                if not self._confirming:
                    self._confirming = True
                    self.spawn(self._confirm_all())
            case m.Refuse() | m.CloseLink():
                if (link := self.links.get(instruction.link)) is not None:
                    link.close(instruction.text, taken=isinstance(instruction, m.Refuse))
            case m.Note():
                logger().info(instruction.event, **instruction.fields)
            case m.Warn():
                logger().warning(instruction.event, **instruction.fields)

    # --- requests to ledger and journal ---

    async def until_answered(self, ask: Callable[[], Awaitable[AnswerT]], peer: str = "resolver") -> AnswerT:
        """Repeat a request until it is answered, with delays that grow to two seconds."""
        backoff = Backoff(_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS, rng=self._rng)
        while True:
            try:
                answer = await ask()
            except (LedgerUnavailable, Overloaded, TransportError) as exc:  # noqa: PERF203 - a retry
                if peer not in self.problems:
                    logger().warning("peer_away", peer=peer, error=str(exc))
                self.problems[peer] = f"{peer} does not answer; what it must know waits: {exc}"
                await asyncio.sleep(backoff.failed(self._clock()) or 0)
            else:
                if self.problems.pop(peer, None) is not None:
                    logger().info("peer_back", peer=peer)
                return answer

    async def verify(self, instruction: m.Verify) -> None:
        """Look pods up in the ledger, and let the machine know where they are, part by part: a node's removal
        may concern any number of them."""
        for start in range(0, len(instruction.rows), _VERIFIED_AT_ONCE):
            part = slice(start, start + _VERIFIED_AT_ONCE)
            await self._verify_part(instruction.rows[part], instruction.uids[part])
            await asyncio.sleep(0)

    async def _verify_part(self, rows: Rows, uids: Uids) -> None:
        """Pods that were placed again meanwhile are asked for once more: the answer may be of their former
        places."""
        pods = self.machine.registry.pods
        while len(rows):
            asked = pods.changes[rows]
            found = await self.until_answered(partial(self.ledger.lookup, uids))
            same = pods.changes[rows] == asked
            of_part = found.nodes[same], found.terminating[same], found.seqs[same]
            self.handle(m.Verified(rows[same], uids[same], *of_part))
            rows, uids = rows[~same], uids[~same]

    async def release(self, instruction: m.Release) -> None:
        """Release the reservations, and tell the machine once every shard has answered."""
        await self._release(instruction.uids, instruction.nodes)
        # An earlier release of a pod may have ended first. Then its row may be that of another pod by now.
        same = (self.machine.registry.pods.uid[instruction.rows] == instruction.uids).all(axis=1)
        self.handle(m.Released(instruction.rows[same], instruction.unreserved))
        if instruction.confirm is not None:
            self.perform([instruction.confirm])

    async def _release(self, uids: Uids, nodes: NDArray[np.uint32] | None) -> None:
        # Taken once: a request that arrives late must not release what was reserved since.
        as_of = self.ledger.known()
        await self.until_answered(lambda: self.ledger.release(uids, nodes, as_of))

    async def _confirm_all(self) -> None:
        try:
            while self._unconfirmed:
                await asyncio.sleep(COALESCE_SECONDS)
                await self._confirm()
        finally:
            self._confirming = False

    async def _confirm(self) -> None:
        """End the leases of commits, so that their reservations stay until they are released."""
        batch, self._unconfirmed = self._unconfirmed, []
        commits = merge_commits([confirm.commits for confirm in batch])
        if not commits:
            return

        async def ask() -> int:
            # A repeated call also has what came meanwhile. Its leases would end if it waited for an answer
            # that was lost.
            nonlocal commits
            later, self._unconfirmed = self._unconfirmed, []
            if later:
                batch.extend(later)
                commits = merge_commits([commits, *(confirm.commits for confirm in later)])
            return await self.ledger.confirm(commits)

        context = None if self.traces is None else self.traces.confirming(batch)
        began_ns = now_ns()
        with calls_belong_to("" if context is None else str(context)):
            confirmed = await self.until_answered(ask)
        if self.traces is not None and context is not None:
            self.traces.confirmed(batch, context, began_ns)
        rows = np.concatenate([confirm.rows for confirm in batch])
        uids = np.concatenate([confirm.uids for confirm in batch])
        if confirmed < sum(len(seqs) for seqs in commits.values()):
            self.spawn(self._verify_confirmed(rows, uids))  # no later confirmation waits for that
        else:
            self._note_confirmed(rows, uids)

    async def _verify_confirmed(self, rows: Rows, uids: Uids) -> None:
        """A commit that is not pending was confirmed before, or its lease expired and the reaper released it.
        Pods without a reservation are queued again."""
        await self.carry_out(m.Verify(rows, uids))
        self._note_confirmed(rows, uids)

    def _note_confirmed(self, rows: Rows, uids: Uids) -> None:
        self.handle(m.Confirmed(rows, uids))
        self.on_confirmed(rows, uids)

    async def _grant_epoch(self, instruction: m.GrantEpoch) -> None:
        worker = instruction.worker
        async with self._turn(worker):
            await self.until_answered(lambda: self.journal.add_worker(worker), "journal")
            if instruction.link in self.links:
                epoch = await self.until_answered(lambda: self.ledger.grant_epoch(worker))
                self.handle(m.EpochGranted(instruction.link, epoch))
            await self._forget_if_gone(worker)

    async def _fence(self, instruction: m.Fence) -> None:
        worker, uids = instruction.worker, instruction.uids
        async with self._turn(worker):
            epoch = await self.until_answered(lambda: self.ledger.grant_epoch(worker))
        found = await self.until_answered(lambda: self.ledger.lookup(uids))
        reserved = int((found.nodes != NONE_U32).sum())
        logger().info("worker_fenced", worker=worker, epoch=epoch, pods=len(uids), reserved=reserved)
        nodes, unready = found.nodes, found.pre_binding
        if unready.any():  # the worker prepared them, and cannot say any more that they are ready
            await self._release(uids[unready], nodes[unready])
            nodes = np.where(unready, np.uint32(NONE_U32), nodes)
        self.handle(m.Fenced(worker, nodes, found.commits))
        async with self._turn(worker):
            await self._forget_if_gone(worker)

    def _turn(self, worker: str) -> asyncio.Lock:
        """Requests about one worker are made one at a time: a late grant of an earlier link would fence the
        link that has the name now, and a late deletion of its name would leave the link unfenced."""
        turn = self._granting.get(worker)
        if turn is None:
            turn = self._granting[worker] = asyncio.Lock()
        return turn

    async def _forget_if_gone(self, name: str) -> None:
        """Remove a worker from the journal if no successor has to fence it: it is gone, its last epoch is
        fenced, and where its pods are is known. Its turn must be held."""
        worker = self.machine.members.get(name)
        if worker is None or (worker.state in GONE and worker.unfenced is None):
            await self.until_answered(lambda: self.journal.drop_workers([name]), "journal")

    async def _probe_ledger(self, instruction: m.ProbeLedger) -> None:
        try:
            await self.ledger.lookup(instruction.uids)
        except (LedgerUnavailable, Overloaded, TransportError):
            self.handle(m.LedgerProbed(instruction.link, answered=False))
        else:
            self.handle(m.LedgerProbed(instruction.link, answered=True))

    async def _evict(self, instruction: m.Evict) -> None:
        await self._release(instruction.uids, instruction.nodes)
        self.handle(m.Evicted(instruction.uids, instruction.nodes, instruction.reasons))

    async def _forget(self, instruction: m.Forget) -> None:
        submission = instruction.submission
        prefixes = [pod_set.uid_prefix for pod_set in submission.sets]
        await self.until_answered(
            lambda: self.journal.drop(submission.key, submission.order, prefixes), "journal"
        )
