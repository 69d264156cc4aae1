"""The scheduler around an algorithm of one's own: work in, proposals out, verdicts in, outcomes out.

A pod in hand is in exactly one place: the queue, the algorithm, a proposal, or those that wait. A new epoch
empties all of them, because the dispatcher then gives the pods to anybody."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hoss.client.proposal_stream import ProposalStream
from hoss.client.worker_link import DispatcherLink
from hoss.errors import HossError
from hoss.model.placing import (
    NO_NODE,
    FailureStreak,
    NodeSnapshot,
    PlacementAlgorithm,
    PlacementBatch,
    PlacementRun,
    checked_placements,
    places_cards,
)
from hoss.model.pod import PodSpec
from hoss.sdk.view import ProposedPods, SchedulerView
from hoss.sdk.work import BatchInHand, Rows, proposals_of, unsupported, work_of
from hoss.tasks import in_turns
from hoss.telemetry import logger
from hoss.v1 import resolver_pb2 as rpb
from hoss.v1 import workerlink_pb2 as pb
from hoss.wire.columns import NONE_U16, NONE_U32, U8, U16, U32, U64, decode, encode
from hoss.wire.convert import pod_spec_from_proto

PROPOSAL_PODS = 1000  # the ledger's script must not run long
_TRIES = 3  # proposals for a pod; then the dispatcher decides anew
_SMOOTHING = 0.2  # of the measured time a pod


class SchedulerFailed(HossError):  # noqa: N818 - named for what happened, as in hoss.errors
    """The algorithm did not answer in its time. Nothing ends its thread, so the process has to end."""


@dataclass(slots=True, eq=False)
class _Sent:
    """A proposal without a verdict."""

    work: BatchInHand
    rows: Rows
    pods: ProposedPods


class CustomScheduler:
    """Between the streams and the algorithm. `connect` must be called before anything else."""

    def __init__(
        self,
        name: str,
        algorithm: PlacementAlgorithm,
        *,
        clock: Callable[[], float],
        thread_clock: Callable[[], float],
        budget_seconds: float = 0.1,
        limit_seconds: float = 10.0,
    ) -> None:
        """`budget_seconds` is what the algorithm is told; after `limit_seconds` without an answer `schedule`
        raises SchedulerFailed."""
        self.view = SchedulerView()
        self.proposed = 0  # pods, ever, each as often as it was
        self.conflicts = 0  # refusals by the ledger, ever
        self._name = name
        self._algorithm = algorithm
        self._places_cards = places_cards(algorithm)
        self._clock = clock
        self._thread_clock = thread_clock
        self._budget = budget_seconds
        self._limit = limit_seconds
        self._epoch = 0
        self._leaving = False
        self._classes: dict[int, PodSpec] = {}
        self._queue: deque[tuple[BatchInHand, Rows]] = deque()
        self._until_seen: list[
            tuple[dict[int, int], BatchInHand, Rows]
        ] = []  # refused, until the view knows why
        self._until_verdict: list[
            tuple[BatchInHand, Rows]
        ] = []  # this scheduler's own pods may be in their way
        self._sent: dict[int, _Sent] = {}
        self._next_id = 1
        self._wake, self._settled = asyncio.Event(), asyncio.Event()
        self._busy_seconds = self._micros_per_pod = 0.0
        self._failures: set[str] = set()
        self._streak = FailureStreak()

    def connect(self, link: DispatcherLink, proposals: ProposalStream) -> None:
        """Give it the streams that it sends on."""
        self._link, self._proposals = link, proposals

    # From the dispatcher (LinkHandler)

    def welcomed(self, welcome: pb.Welcome) -> None:
        """A new epoch: the dispatcher gives all pods in hand to anybody."""
        self._epoch = welcome.epoch
        self._proposals.abandon()
        for sent in self._sent.values():
            self.view.forget(sent.pods, np.arange(len(sent.rows)))
        for spec in self._classes.values():
            self.view.forget_spec(spec)
        for table in (self._sent, self._classes, self._queue, self._until_seen, self._until_verdict):
            table.clear()
        logger().info("registered", scheduler=self._name, epoch=welcome.epoch)

    def received(self, message: pb.DispatcherMessage) -> None:
        """Anything but Welcome."""
        match message.WhichOneof("kind"):
            case "work":
                self._accept(message.work)
            case "view":
                shards = [
                    pb.ShardView(shard=shard, seq=seq, digest=self.view.digest(shard))
                    for shard, seq in sorted(self.view.seqs.items())
                ]
                view = pb.CacheView(id=message.view.id, shards=shards, idle=self.idle)
                self._link.send(pb.WorkerMessage(view=view))
            case "drain":
                self._give_back()
            case "recall":
                self._recall(set(message.recall.batch_ids), message.recall.pods)
                self._link.send(pb.WorkerMessage(heartbeat=self.heartbeat()))
            case "decisions":
                answer = pb.DecisionAnswer(id=message.decisions.id)  # it remembers none
                self._link.send(pb.WorkerMessage(decisions=answer))

    def heartbeat(self) -> pb.Heartbeat:
        """The scheduler's figures."""
        return pb.Heartbeat(
            busy_seconds=self._busy_seconds,
            working_seconds=self._busy_seconds,
            clock_seconds=self._clock(),
            micros_per_pod=self._micros_per_pod,
            seen_micros=self._micros_per_pod,
            backlog=sum(len(rows) for _, rows in self._queue),
            ready=self.view.complete,
            conflicts=self.conflicts,
            proposed=self.proposed,
            synchronisation="push",
            failing=self._streak.failing(self._clock()),
        )

    @property
    def idle(self) -> bool:
        """Whether every pod is answered."""
        return not (self._queue or self._until_seen or self._until_verdict or self._sent)

    def _accept(self, message: pb.WorkBatch) -> None:
        for definition in message.classes:
            self._classes[definition.id] = pod_spec_from_proto(definition.spec)
        work = work_of(message, self._classes)
        for number in message.forgotten_classes:
            forgotten = self._classes.pop(number, None)
            if forgotten is not None:
                self.view.forget_spec(forgotten)
        rows = np.arange(len(work.uids))
        if self._leaving:
            self._answer(work, rows, pb.OUTCOME_RETURNED)
        elif message.gang_minimum or work.conflicts.all_or_nothing:
            self._refuse(work, rows, f"scheduler {self._name} places no gangs")
        else:
            self._queue.append((work, rows))
            self._wake.set()

    def _give_back(self) -> None:
        """Return everything that is not at the ledger."""
        waiting = [(work, rows) for _, work, rows in self._until_seen]
        for work, rows in (*self._queue, *waiting, *self._until_verdict):
            self._answer(work, rows, pb.OUTCOME_RETURNED)
        for table in (self._queue, self._until_seen, self._until_verdict):
            table.clear()

    def _recall(self, batch_ids: set[int], pods: int) -> None:
        """Return up to so many pods of these batches that were never proposed, the last ones first."""
        kept: deque[tuple[BatchInHand, Rows]] = deque()
        while self._queue:
            work, rows = self._queue.pop()
            untried = rows[work.tries[rows] == 0] if work.id in batch_ids else rows[:0]
            returned = untried[max(0, len(untried) - pods) :]
            pods -= len(returned)
            self._answer(work, returned, pb.OUTCOME_RETURNED)
            left = rows[~np.isin(rows, returned)]
            if len(left):
                kept.appendleft((work, left))
        self._queue = kept

    # From the resolvers

    async def apply_feed(self, message: rpb.FeedMessage) -> None:
        """One message of the node feed. A large one in slices: pods wait until it is taken in as a whole, and
        everything else has its turn."""
        was_complete = self.view.complete
        await in_turns(self.view.applying(message), keeps=True)
        still_waiting = []
        for missing, work, rows in self._until_seen:
            if all(self.view.seqs.get(shard, 0) >= seq for shard, seq in missing.items()) or message.snapshot:
                self._queue.append((work, rows))
            else:
                still_waiting.append((missing, work, rows))
        self._until_seen = still_waiting
        if self.view.complete and not was_complete:
            # The dispatcher gives work to ready workers only.
            self._link.send(pb.WorkerMessage(heartbeat=self.heartbeat()))
        if self._queue:
            self._wake.set()

    def take_verdict(self, proposal: rpb.ProposalBatch, verdict: rpb.VerdictBatch) -> None:
        """The answer to a proposal."""
        sent = self._sent.pop(proposal.batch_id, None) if proposal.epoch == self._epoch else None
        if sent is None:
            return
        work, rows = sent.work, sent.rows
        if verdict.invalid and not verdict.verdicts:
            logger().error("proposal_invalid", scheduler=self._name, reason=verdict.invalid)
            self.view.forget(sent.pods, np.arange(len(rows)))
            self._answer(work, rows, pb.OUTCOME_INVALID, reason=verdict.invalid)
        elif not self._settle(sent, verdict):
            logger().warning("fenced", scheduler=self._name, epoch=self._epoch)
            self._link.end_stream()
        self._queue.extend(self._until_verdict)
        self._until_verdict.clear()
        self._settled.set()
        self._wake.set()

    def _settle(self, sent: _Sent, verdict: rpb.VerdictBatch) -> bool:
        """Answer the bound pods, and try the refused ones again later. False: this epoch is fenced."""
        work, rows = sent.work, sent.rows
        codes = decode(verdict.verdicts, U8, name="verdicts", rows=len(rows))
        committed, duplicate = codes == rpb.COMMITTED, codes == rpb.DUPLICATE
        self.view.forget(sent.pods, np.flatnonzero(~committed))
        if (codes == rpb.STALE_EPOCH).any():
            return False
        bound = np.flatnonzero(committed | duplicate)
        commits = {(verdict.shard, verdict.seq)} if committed.any() else set()
        seqs = decode(verdict.duplicate_seqs, U64, name="duplicate_seqs", rows=int(duplicate.sum()))
        commits |= {(verdict.shard, seq) for seq in seqs.tolist()}
        if committed.any():
            self.view.committed(sent.pods, verdict.seq)
        refused = np.flatnonzero(~(committed | duplicate))
        self.conflicts += len(refused)
        work.tries[rows[refused]] += 1
        nodes = decode(verdict.nodes, U32, name="nodes", rows=len(rows))
        self._answer(
            work, rows[bound], pb.OUTCOME_BOUND, nodes=nodes[bound], commits=commits, refused=rows[refused]
        )
        again = rows[refused]
        tired = work.tries[again] >= _TRIES
        self._answer(work, again[tired], pb.OUTCOME_CONFLICT, reason="refused repeatedly by the ledger")
        again = again[~tired]
        if self._leaving:
            self._answer(work, again, pb.OUTCOME_RETURNED)
        elif len(again):
            missing = {verdict.shard: int(verdict.as_of_seq)}
            for position in verdict.awaits:
                missing[position.shard] = max(missing.get(position.shard, 0), position.seq)
            if all(self.view.seqs.get(shard, 0) >= seq for shard, seq in missing.items()):
                self._queue.append((work, again))
            else:
                self._until_seen.append((missing, work, again))
        return True

    # Placing

    async def schedule(self) -> None:
        """Place what there is until cancelled. Raises SchedulerFailed."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue and self.view.complete and self.view.whole:
                await self._place_next()

    async def finish(self, timeout_seconds: float) -> None:
        """Give back what is not at the ledger, and wait for its answers to the rest."""
        self._leaving = True
        self._link.send(pb.WorkerMessage(leave=pb.Leave()))
        self._give_back()
        deadline = self._clock() + timeout_seconds
        while self._sent and (left := deadline - self._clock()) > 0:
            self._settled.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._settled.wait(), left)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._link.leave(), timeout_seconds)

    async def _place_next(self) -> None:
        work, rows = self._queue.popleft()
        if len(rows) > PROPOSAL_PODS:
            self._queue.appendleft((work, rows[PROPOSAL_PODS:]))
            rows = rows[:PROPOSAL_PODS]
        rows, batch = self._batch(work, rows)
        if not len(rows):
            return
        epoch, seqs = self._epoch, dict(self.view.seqs)
        seen = [self.view.seen(shard) for shard in range(self.view.shards)]
        snapshot, started = self.view.snapshot(), self._clock()
        answer = self._started(batch, snapshot)
        done, _ = await asyncio.wait({answer}, timeout=self._limit)
        if not done:
            raise SchedulerFailed(
                f"scheduler {self._name} did not place {batch.pods} pods in {self._limit:g} s: let place()"
                " end within its budget"
            )
        if self._epoch != epoch:
            return  # the pods are somebody else's by now
        nodes, problem, seconds = answer.result()
        self._busy_seconds += seconds
        micros = (self._clock() - started) * 1e6 / batch.pods
        self._micros_per_pod += (micros - self._micros_per_pod) * (_SMOOTHING if self._micros_per_pod else 1)
        if problem:
            if problem not in self._failures and len(self._failures) < PROPOSAL_PODS:
                self._failures.add(problem)
                logger().error("scheduler_failed", scheduler=self._name, error=problem)
            # Not unschedulable: no change of a node would wake the pods, and others may place them.
            reason = f"scheduler {self._name} failed: {problem}"
            self._streak.failed(reason, self._clock())
            self._link.send(pb.WorkerMessage(heartbeat=self.heartbeat()))  # before the pods queue again
            self._answer(work, rows, pb.OUTCOME_CONFLICT, reason=reason)
            return
        self._streak.succeeded()
        if self._leaving:
            self._answer(work, rows, pb.OUTCOME_RETURNED)
        else:
            self._propose(work, rows, batch, nodes, seqs=seqs, seen=seen)

    def _batch(self, work: BatchInHand, rows: Rows) -> tuple[Rows, PlacementBatch]:
        """The rows that the algorithm can place, and what it is asked. The others are answered."""
        classes = work.classes[rows]
        starts = np.flatnonzero(np.diff(classes, prepend=classes[:1] + 1))
        runs, kept, first = [], [], 0
        for begin, end in zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
            spec = work.specs[int(classes[begin])]
            request = self.view.request(spec)
            if without := unsupported(spec, cards=self._places_cards):
                self._refuse(work, rows[begin:end], f"scheduler {self._name} does not know about {without}")
            elif request is None:
                self._refuse(work, rows[begin:end], "no node has a resource that the pod requests")
            else:
                admitted = self.view.admitted(spec)
                for column in (request, admitted):
                    column.flags.writeable = False
                runs.append(PlacementRun(spec, request, admitted, first, end - begin))
                kept.append(rows[begin:end])
                first += end - begin
        return (np.concatenate(kept) if kept else rows[:0]), PlacementBatch(tuple(runs))

    def _started(
        self, batch: PlacementBatch, snapshot: NodeSnapshot
    ) -> "asyncio.Future[tuple[NDArray[np.intp], str, float]]":
        """`_ask` in a thread of its own. Not one of asyncio's: the process would wait for it when it ends."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[NDArray[np.intp], str, float]] = loop.create_future()

        def take(result: tuple[NDArray[np.intp], str, float]) -> None:
            if not answer.done():
                answer.set_result(result)

        def ask() -> None:
            result = self._ask(batch, snapshot)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(take, result)

        threading.Thread(target=ask, name=f"place of {self._name}", daemon=True).start()
        return answer

    def _ask(self, batch: PlacementBatch, snapshot: NodeSnapshot) -> tuple[NDArray[np.intp], str, float]:
        """In a thread: the nodes, or what is wrong with the answer; and the CPU time."""
        started, problem, nodes = self._thread_clock(), "", np.zeros(0, np.intp)
        try:
            nodes = checked_placements(batch, snapshot, self._algorithm.place(batch, snapshot, self._budget))
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - code of others may raise anything
            problem = f"{type(exc).__name__}: {exc}"
        return nodes, problem, self._thread_clock() - started

    def _propose(
        self,
        work: BatchInHand,
        rows: Rows,
        batch: PlacementBatch,
        nodes: NDArray[np.intp],
        *,
        seqs: Mapping[int, int],
        seen: list[int],
    ) -> None:
        left = rows[nodes == NO_NODE]
        if len(left) and (self._sent or (nodes != NO_NODE).any()):
            self._until_verdict.append((work, left))
        elif len(left):
            admitting = max(int(run.admitted.sum()) for run in batch.runs)
            self._refuse(
                work,
                left,
                f"scheduler {self._name} has room on none of {admitting} nodes that admit it",
                seqs,
            )
        for at, pods, message in proposals_of(work, rows, batch, nodes, shards=self.view.shards):
            message.worker, message.epoch, message.batch_id = self._name, self._epoch, self._next_id
            message.snapshot_seq = seqs[pods.shard]
            if self.view.shards > 1:  # on one shard a hold ends before anybody sees it
                message.seen = encode(seen, U64)
            self.view.assume(pods)
            self._sent[self._next_id] = _Sent(work, rows[at], pods)
            self._proposals.send(message)
            self._next_id += 1
            self.proposed += len(at)

    # To the dispatcher

    def _refuse(
        self, work: BatchInHand, rows: Rows, reason: str, seqs: Mapping[int, int] | None = None
    ) -> None:
        """No node for these pods in the view at `seqs`, by shard; by default the present one."""
        seen = (self.view.seqs if seqs is None else seqs).items()
        self._answer(work, rows, pb.OUTCOME_UNSCHEDULABLE, reason=reason, seen=seen)

    def _answer(
        self,
        work: BatchInHand,
        rows: Rows,
        code: pb.OutcomeCode,
        *,
        nodes: NDArray[np.uint32] | None = None,
        reason: str = "",
        commits: Iterable[tuple[int, int]] = (),
        seen: Iterable[tuple[int, int]] = (),
        refused: Rows | None = None,
    ) -> None:
        if not len(rows) and (refused is None or not len(refused)):
            return
        outcomes = pb.Outcomes(
            batch_id=work.id,
            positions=encode(rows, U32),
            codes=encode(np.full(len(rows), code), U8),
            nodes=encode(np.full(len(rows), NONE_U32) if nodes is None else nodes, U32),
            reasons=encode(np.full(len(rows), 0 if reason else NONE_U16), U16),
            reason_texts=[reason] if reason else [],
            commits=[pb.CommitRef(shard=shard, seq=seq) for shard, seq in commits],
            seen=[pb.CommitRef(shard=shard, seq=seq) for shard, seq in seen],
            refused=b"" if refused is None else encode(refused, U32),
        )
        self._link.send(pb.WorkerMessage(outcomes=outcomes))
