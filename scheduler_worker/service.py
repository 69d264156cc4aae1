"""The worker's pipeline: work in, placed in slices, proposed, answered. While verdicts are awaited it places on."""

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from hoss.errors import InvalidInput
from hoss.model.conflicts import DEFAULT_CONFLICT_RULE
from hoss.model.overlap import DEFAULT_PREFERENCE
from hoss.model.selectors import NodeScope
from hoss.telemetry import logger
from hoss.v1.objects_pb2 import Surroundings
from hoss.v1.resolver_pb2 import FeedMessage, ProposalBatch, VerdictBatch
from hoss.v1.workerlink_pb2 import (
    DispatcherMessage,
    Heartbeat,
    Leave,
    PreemptionAnswer,
    Welcome,
    WorkBatch,
    WorkerMessage,
)
from hoss.v1.workerlink_pb2 import Preference as PreferenceMessage
from hoss.wire.columns import UID_BYTES, decode_uids
from hoss.wire.convert import conflict_rule_from_proto, pod_spec_from_proto, scope_from_proto
from scheduler_worker import messages
from scheduler_worker.attempts import AttemptTimes
from scheduler_worker.condition import Condition, Gauges
from scheduler_worker.core.scheduler import Scheduler
from scheduler_worker.core.work import Gang
from scheduler_worker.decision import DECIDES_AT_ONCE, Decision, narrowed
from scheduler_worker.decisions import DecisionBook, log_decision
from scheduler_worker.link import DispatcherLink
from scheduler_worker.proposals import ProposalStream
from scheduler_worker.synchronisation import Synchronisation
from scheduler_worker.turns import Turns

if TYPE_CHECKING:
    from scheduler_worker.tracing import WorkerTraces

# Placing goes on for this long before what is placed is proposed and everything else gets its turn. Long enough that a
# proposal of costly pods is worth its message, short enough that the ledger and heartbeats never wait noticeably.
_SLICE_SECONDS = 0.02

# After a slice that took all of its time the event loop has so long to itself. One turn of it between slices is not
# enough: a message takes several, so that outcomes and heartbeats of a slow worker piled up until it was taken for dead.
_BREATH_SECONDS = 0.001

_EXPIRY_CHECK_SECONDS = 1.0


class WorkerService:
    """Everything one worker does, between its adapters. `connect` must be called before anything else."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        *,
        unchecked: bool = False,
        decision: Decision = DECIDES_AT_ONCE,
        nodes: NodeScope | None = None,
        turns: Turns | None = None,
        traces: "WorkerTraces | None" = None,
    ) -> None:
        """`nodes`: it takes no others, whatever the policy says. `turns`: it works only while it holds that lock."""
        self._name = name
        self._scheduler = scheduler
        self._unchecked = unchecked
        self._decision = decision
        self._nodes = nodes
        self._turns = turns
        self._traces = traces
        self._decisions = DecisionBook(name)
        self.attempts = AttemptTimes()
        self._log = logger()  # kept: getting one takes longer than deciding that a line is not wanted
        self._told: dict[int, int] = {}  # shard -> seq of the latest verdict; for whose turn is next
        self._epoch = 0
        self._leaving = False
        self._wake = asyncio.Event()
        self._answered = asyncio.Event()
        self._gauges = Gauges(scheduler)
        self._slice_used_up = False

    def connect(self, link: DispatcherLink, proposals: ProposalStream, synchronisation: Synchronisation) -> None:
        """Give it the streams it sends on, and what fills its cache."""
        self._link = link
        self._proposals = proposals
        self._synchronisation = synchronisation

    def condition(self, now: float) -> Condition:
        """How the worker does, for whoever watches it."""
        return self._gauges.read(now)

    def heartbeat(self) -> Heartbeat:
        """How the worker does, for the dispatcher."""
        return self._gauges.heartbeat(self._synchronisation.mode)

    # From the dispatcher

    def welcomed(self, welcome: Welcome) -> None:
        """A new epoch: what was in hand belongs to whomever the dispatcher gives it to."""
        self._epoch = welcome.epoch
        self._proposals.abandon()
        self._answered.set()
        self._scheduler.drop_everything()
        self._scheduler.prefer(DEFAULT_PREFERENCE)
        self._scheduler.refusals.restart(welcome.epoch)
        logger().info("registered", worker=self._name, epoch=welcome.epoch)

    def received(self, message: DispatcherMessage) -> None:
        """Work, a question, or the request to give work back."""
        if message.HasField("work"):
            self._accept(message.work)
        elif message.HasField("view"):
            cache, idle = self._scheduler.cache, self._scheduler.idle
            self._link.send(WorkerMessage(view=messages.cache_view(message.view.id, cache, idle=idle)))
        elif message.HasField("preemption"):
            self._preempt(message.preemption)
        elif message.HasField("surroundings"):
            self._look_around(message.surroundings)
        elif message.HasField("preference"):
            self._prefer(message.preference)
        elif message.HasField("decisions"):
            self._link.send(WorkerMessage(decisions=self._decisions.answer(message.decisions)))
        elif message.HasField("drain"):
            self._give_back()
        elif message.HasField("recall"):
            self._scheduler.give_back(frozenset(message.recall.batch_ids), message.recall.pods)
            self._send_outcomes()
            self._link.send(WorkerMessage(heartbeat=self.heartbeat()))

    # From the resolver

    def apply_feed(self, message: FeedMessage) -> None:
        """One message of the node feed."""
        was_ready = self._gauges.ready
        update = messages.feed_update(message)
        self._scheduler.cache.apply_feed(update)
        self._scheduler.refusals.heard(update)
        if self._turns is not None:
            self._turns.heard()
        self._gauges.lags.seen(message.shard, message.seq, anew=message.snapshot)
        if self._scheduler.resume(message.shard, snapshot=message.snapshot):
            self._wake.set()
        if self._gauges.ready and not was_ready:
            self._gauges.filled()
            seconds = round(self._gauges.fill_seconds, 3)
            logger().info("cache_filled", worker=self._name, nodes=self._gauges.nodes, seconds=seconds)
            # Work is given to those that said so: at the next heartbeat they would have idled half a second.
            self._link.send(WorkerMessage(heartbeat=self.heartbeat()))
            self._wake.set()

    def take_verdict(self, proposal: ProposalBatch, verdict: VerdictBatch) -> None:
        """The answer to a proposal."""
        if proposal.epoch != self._epoch:
            return
        if not proposal.uids:
            self._take_announced(verdict)
            return
        started, cpu = time.monotonic(), time.thread_time()
        self._decisions.add(proposal, verdict, time.time())
        log_decision(self._log, self._name, proposal, verdict)
        if self._traces is not None:
            self._traces.decided(proposal, verdict)
        if verdict.invalid and not verdict.verdicts:
            logger().error("proposal_invalid", worker=self._name, batch=verdict.batch_id, reason=verdict.invalid)
            for part in (proposal, *proposal.parts):
                self._scheduler.reject(part.batch_id, verdict.invalid)
            in_force = True
        else:
            in_force = self._settle(proposal, verdict)
            self._remember_commits()
        self._gauges.busy_seconds += time.thread_time() - cpu
        self._scheduler.costs.besides(time.monotonic() - started, 0)
        self._answered.set()
        self._send_outcomes()
        self._gauges.working_seconds += time.monotonic() - started
        if in_force:
            self._wake.set()
        else:
            logger().warning("fenced", worker=self._name, epoch=self._epoch)
            self._link.end_stream()

    # Jobs of its own

    async def schedule(self) -> None:
        """Place what there is, slice by slice, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._gauges.ready and (await self._slice() if self._turns is None else await self._turn(self._turns)):
                self._wake.set()  # there may be more
                await asyncio.sleep(_BREATH_SECONDS if self._slice_used_up else 0)

    async def expire(self) -> None:
        """Give back assumptions nobody answered, until cancelled."""
        while True:
            await asyncio.sleep(_EXPIRY_CHECK_SECONDS)
            self._remember_commits()
            pods = self._scheduler.cache.expire(time.monotonic())
            if pods:
                logger().warning("assumptions_expired", worker=self._name, pods=pods)
                self._wake.set()  # some may have waited for their room

    async def finish(self, patience_seconds: float) -> None:
        """Give back what is not started and wait for the ledger's answers to the rest."""
        self._leaving = True
        self._link.send(WorkerMessage(leave=Leave()))
        self._give_back()
        deadline = time.monotonic() + patience_seconds
        while not self._scheduler.idle and (left := deadline - time.monotonic()) > 0:
            self._answered.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._answered.wait(), left)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._link.leave(), patience_seconds)

    # Within

    async def _turn(self, turns: Turns) -> bool:
        """A slice under the global lock, and all answers to it."""
        if self._scheduler.idle:
            return False
        async with turns.turn(lambda: self._scheduler.cache.seqs, self._told):
            more = await self._slice()
            while self._proposals.under_way:
                self._answered.clear()
                await self._answered.wait()
        return more

    async def _slice(self) -> bool:
        """Place for a while and propose it. False when nothing is left to place."""
        started, cpu, pods = time.monotonic(), time.thread_time(), 0
        while settled := self._scheduler.step():
            pods += settled
            if time.monotonic() - started > _SLICE_SECONDS:
                break
        placed = time.monotonic()
        self._slice_used_up = placed - started > _SLICE_SECONDS
        thinking = self._decision.seconds(pods)
        columns = self._scheduler.take_proposals(placed + thinking)
        self._gauges.busy_seconds += time.thread_time() - cpu
        self._gauges.working_seconds += time.monotonic() - started
        if thinking and not await self._think(thinking):
            return True
        decided = time.monotonic()
        for proposal in columns:
            message = messages.proposal_batch(proposal, worker=self._name, epoch=self._epoch, unchecked=self._unchecked)
            if self._traces is not None and (work := self._scheduler.work_of(proposal.batch_id)) is not None:
                self._traces.proposed(message, work)
            self._proposals.send(message)
        self._scheduler.costs.besides(time.monotonic() - placed, pods)
        for question in self._scheduler.take_questions():
            self._link.send(messages.preemption_question(question))
        for failure in self._scheduler.take_failures():
            logger().error("plugin_failed", worker=self._name, plugin=failure.plugin, exc_info=failure)
        self._send_outcomes()
        self._gauges.working_seconds += time.monotonic() - decided
        return pods > 0 or bool(columns)

    async def _think(self, seconds: float) -> bool:
        """Let a decision take so long. False: another epoch began meanwhile, so what was decided is nobody's any more."""
        epoch, began = self._epoch, time.monotonic()
        await asyncio.sleep(seconds)
        spent = time.monotonic() - began
        self._gauges.busy_seconds += spent
        self._gauges.working_seconds += spent
        return self._epoch == epoch

    def _settle(self, proposal: ProposalBatch, verdict: VerdictBatch) -> bool:
        """Take in a verdict with those on a gang's other parts. False: this epoch is fenced."""
        parts = zip((proposal, *proposal.parts), (verdict, *verdict.parts), strict=True)
        told = [(v.batch_id, messages.verdicts(v, len(p.uids) // UID_BYTES)) for p, v in parts]
        in_force = [self._scheduler.settle(batch_id, verdicts) for batch_id, verdicts in told]
        now = time.monotonic()
        for part in (verdict, *verdict.parts):
            self._gauges.lags.heard(part.shard, part.as_of_seq, now)
            self._told[part.shard] = part.as_of_seq
        return all(in_force)

    def _take_announced(self, answer: VerdictBatch) -> None:
        """The ledger knows the rules of an announcement; of one that is malformed, the verdicts on its pods will say so."""
        self._scheduler.rules_known(answer.batch_id, {position.shard: position.seq for position in answer.awaits})
        self._answered.set()
        self._send_outcomes()
        self._wake.set()

    def _remember_commits(self) -> None:
        if not self._synchronisation.shows_commits:
            self._scheduler.cache.adopt()

    def _look_around(self, surroundings: Surroundings) -> None:
        """Whatever is placed from now on goes by these. Between two slices, so no placement goes by some of each."""
        namespaces, services = messages.surroundings(surroundings)
        self._scheduler.look_around(namespaces, services)
        logger().info(
            "surroundings",
            worker=self._name,
            version=surroundings.version,
            namespaces=len(namespaces),
            services=len(services),
        )

    def _prefer(self, told: PreferenceMessage) -> None:
        preference = messages.preference(told)
        if preference is None:
            logger().warning("preference_unknown", worker=self._name, overlap=told.overlap)
            return
        self._scheduler.prefer(preference)
        logger().info(
            "preference", worker=self._name, overlap=told.overlap, number=preference.number, shares=preference.shares
        )

    def _accept(self, work: WorkBatch) -> None:
        started = time.monotonic()
        if self._traces is not None:
            self._traces.received(work)
        for definition in work.classes:
            self._scheduler.define_class(definition.id, pod_spec_from_proto(definition.spec))
        try:
            classes, counts, attempts = messages.work_columns(work)
            gang = Gang(work.gang, work.gang_minimum) if work.gang_minimum else None
            self._scheduler.accept(
                work.batch_id,
                decode_uids(work.uids),
                classes,
                counts,
                attempts,
                gang=gang,
                scope=narrowed(scope_from_proto(work.scope) if work.HasField("scope") else None, self._nodes),
                conflicts=conflict_rule_from_proto(work.conflicts)
                if work.HasField("conflicts")
                else DEFAULT_CONFLICT_RULE,
                lowest_priority=work.lowest_priority,
            )
        except InvalidInput as exc:
            # The dispatcher and this worker no longer agree on what was said; a new stream begins from nothing.
            logger().error("work_batch_invalid", worker=self._name, batch=work.batch_id, error=str(exc))
            self._link.end_stream()
        for told in self._scheduler.take_announcements():
            self._proposals.send(messages.announcement(told, worker=self._name, epoch=self._epoch))
        self._scheduler.forget_classes(work.forgotten_classes)
        if self._leaving:
            self._give_back()
        self._gauges.working_seconds += time.monotonic() - started
        self._wake.set()

    def _preempt(self, answer: PreemptionAnswer) -> None:
        started, cpu = time.monotonic(), time.thread_time()
        self._scheduler.preempt(messages.preemption_answer(answer), started)
        self._gauges.busy_seconds += time.thread_time() - cpu
        self._gauges.working_seconds += time.monotonic() - started
        self._send_outcomes()
        self._wake.set()

    def _give_back(self) -> None:
        self._scheduler.drain()
        self._send_outcomes()

    def _send_outcomes(self) -> None:
        for columns in self._scheduler.take_outcomes():
            self.attempts.answered(columns, time.monotonic())
            self._link.send(messages.outcomes(columns))
        if self._scheduler.take_news_wanted():
            self._synchronisation.ask()
