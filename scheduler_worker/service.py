"""One worker: takes messages of the dispatcher and the resolvers, and answers them from its scheduler."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from hoss.client.proposal_stream import ProposalStream
from hoss.client.worker_link import DispatcherLink
from hoss.errors import InvalidInput
from hoss.model.cluster import DeviceUpdate, StorageUpdate
from hoss.model.conflicts import DEFAULT_CONFLICT_RULE, DEFAULT_PREFERENCE
from hoss.model.selectors import NodeScope
from hoss.tasks import in_turns
from hoss.telemetry import logger
from hoss.v1.objects_pb2 import StorageChanges, Surroundings
from hoss.v1.resolver_pb2 import FeedMessage, ProposalBatch, VerdictBatch
from hoss.v1.workerlink_pb2 import (
    DispatcherMessage,
    Heartbeat,
    PreemptionAnswer,
    Welcome,
    WorkBatch,
    WorkerMessage,
)
from hoss.v1.workerlink_pb2 import Preference as PreferenceMessage
from hoss.wire.columns import decode_uids
from hoss.wire.convert import conflict_rule_from_proto, pod_spec_from_proto, scope_from_proto
from hoss.wire.convert_storage import storage_changes_from_proto
from hoss.wire.uids import UID_BYTES
from scheduler_worker import messages
from scheduler_worker.calls_in_threads import AlgorithmStuck, CalledInThread, PreBindStuck, PreparedInThread
from scheduler_worker.condition import AttemptTimes, Condition, Gauges
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.work import GangInHand
from scheduler_worker.decision_log import DecisionLog, log_decision
from scheduler_worker.experiments import DECIDES_AT_ONCE, GlobalLock, WorkerExperiment, narrowed
from scheduler_worker.outbox import Outbox
from scheduler_worker.placing_loop import PlacingLoop
from scheduler_worker.plugin_watch import PluginOff, PluginWatch
from scheduler_worker.synchronisation import Synchronisation

if TYPE_CHECKING:
    from scheduler_worker.tracing import WorkerTraces

_EXPIRY_CHECK_SECONDS = 1.0
# Work that the dispatcher sent before it hears that a stuck worker leaves comes within this time, and is
# given back.
_UNDER_WAY_SECONDS = 0.2
# How long a worker whose algorithm or plugin is stuck waits for the ledger's answers.
_STUCK_FINISH_SECONDS = 2.0


class WorkerService:
    """Everything one worker does, between its adapters. `connect` must be called before anything else."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        *,
        clock: Callable[[], float],
        unix_clock: Callable[[], float],
        thread_clock: Callable[[], float],
        unchecked: bool = False,
        experiment: WorkerExperiment = DECIDES_AT_ONCE,
        nodes: NodeScope | None = None,
        global_lock: GlobalLock | None = None,
        traces: "WorkerTraces | None" = None,
        algorithm: CalledInThread | None = None,
        pre_binds: PreparedInThread | None = None,
        plugins: PluginWatch | None = None,
    ) -> None:
        """`nodes`: the worker uses no others, regardless of the policy. `global_lock`: it places only while
        it holds the lock. `algorithm` and `pre_binds`: those that the scheduler asks. `plugins`: watches the
        calls of those from outside; None: there are none."""
        self._name = name
        self._clock = clock
        self._unix_clock = unix_clock
        self._scheduler = scheduler
        self._nodes = nodes
        self._global_lock = global_lock
        self._traces = traces
        self._decisions = DecisionLog(name)
        self._log = logger()  # kept: getting one takes longer than deciding that a line is not logged
        self._storage_parts: list[StorageUpdate] = []  # of an update that is not complete yet
        # About preemption, which wait until the cache is whole.
        self._waiting_answers: list[PreemptionAnswer] = []
        self._gauges = Gauges(scheduler, clock=clock, thread_clock=thread_clock)
        self._outbox = Outbox(
            name,
            scheduler,
            clock=clock,
            unchecked=unchecked,
            pre_bind=pre_binds is not None,
            traces=traces,
        )
        self._loop = PlacingLoop(
            name,
            scheduler,
            self._gauges,
            self._outbox,
            clock=clock,
            thread_clock=thread_clock,
            experiment=experiment,
            global_lock=global_lock,
        )
        self._outside = [watched for watched in (algorithm, pre_binds, plugins) if watched is not None]
        if algorithm is not None:
            algorithm.connect(self._algorithm_answered)
        if pre_binds is not None:
            pre_binds.connect(self._pods_prepared)

    def connect(
        self, link: DispatcherLink, proposals: ProposalStream, synchronisation: Synchronisation
    ) -> None:
        """Give it the streams that it sends on, and what fills its cache."""
        self._link = link
        self._synchronisation = synchronisation
        self._outbox.connect(link, proposals, synchronisation)

    @property
    def attempts(self) -> AttemptTimes:
        """How long attempts took."""
        return self._outbox.attempts

    def condition(self) -> Condition:
        """The worker's figures, for metrics."""
        return self._gauges.read()

    def table_sizes(self) -> dict[str, int]:
        """The entries of everything that the worker remembers, by table (metric hoss_table_entries)."""
        return {**self._scheduler.table_sizes(), "decisions": len(self._decisions)}

    def heartbeat(self) -> Heartbeat:
        """The worker's figures, for the dispatcher."""
        return self._gauges.heartbeat(self._synchronisation.mode)

    # From the dispatcher

    def welcomed(self, welcome: Welcome) -> None:
        """A new epoch: the dispatcher gives all pods in hand to any worker."""
        self._outbox.begin_epoch(welcome.epoch)
        self._loop.answered()
        self._scheduler.drop_everything()
        self._scheduler.set_preference(DEFAULT_PREFERENCE)
        self._storage_parts.clear()
        self._waiting_answers.clear()
        self._scheduler.update_storage(StorageUpdate(complete=True))
        self._scheduler.update_devices(DeviceUpdate(complete=True), self._unix_clock())
        self._scheduler.refusals.restart(welcome.epoch)
        logger().info("registered", worker=self._name, epoch=welcome.epoch)

    def received(self, message: DispatcherMessage) -> None:
        """Anything but Welcome."""
        if message.HasField("work"):
            self._accept(message.work)
        elif message.HasField("view"):
            cache, idle = self._scheduler.cache, self._scheduler.idle
            self._link.send(WorkerMessage(view=messages.cache_view(message.view.id, cache, idle=idle)))
        elif message.HasField("preemption"):
            self._preempt(message.preemption)
        elif message.HasField("surroundings"):
            self._set_namespaces(message.surroundings)
        elif message.HasField("storage"):
            self._update_storage(message.storage)
        elif message.HasField("preference"):
            self._set_preference(message.preference)
        elif message.HasField("decisions"):
            self._link.send(WorkerMessage(decisions=self._decisions.answer(message.decisions)))
        elif message.HasField("drain"):
            self._give_back()
        elif message.HasField("recall"):
            self._scheduler.give_back(frozenset(message.recall.batch_ids), message.recall.pods)
            self._outbox.send_outcomes()
            self._link.send(WorkerMessage(heartbeat=self.heartbeat()))

    def _accept(self, work: WorkBatch) -> None:
        with self._gauges.working():
            if self._traces is not None:
                self._traces.received(work)
            for definition in work.classes:
                self._scheduler.define_class(definition.id, pod_spec_from_proto(definition.spec))
            try:
                scope = scope_from_proto(work.scope) if work.HasField("scope") else None
                conflicts = (
                    conflict_rule_from_proto(work.conflicts)
                    if work.HasField("conflicts")
                    else DEFAULT_CONFLICT_RULE
                )
                self._scheduler.accept(
                    work.batch_id,
                    decode_uids(work.uids),
                    *messages.work_columns(work),
                    gang=GangInHand(work.gang, work.gang_minimum) if work.gang_minimum else None,
                    scope=narrowed(scope, self._nodes),
                    conflicts=conflicts,
                    lowest_priority=work.lowest_priority,
                )
            except InvalidInput as exc:
                # The dispatcher and this worker do not agree on the state of the stream. A new stream begins
                # with an empty state.
                logger().error("work_batch_invalid", worker=self._name, batch=work.batch_id, error=str(exc))
                self._link.end_stream()
            self._outbox.send_registrations()
            self._scheduler.forget_classes(work.forgotten_classes)
            if self._outbox.leaving:
                self._give_back()
        self._loop.wake()

    def _preempt(self, answer: PreemptionAnswer) -> None:
        if not self._scheduler.cache.whole:
            self._waiting_answers.append(answer)
            return
        with self._gauges.working(), self._gauges.busy():
            self._scheduler.preempt(messages.preemption_answer(answer), self._clock())
        self._outbox.send_outcomes()
        self._loop.wake()

    def _set_namespaces(self, message: Surroundings) -> None:
        """Between two slices, so that no placement uses some of the old ones and some of the new ones."""
        namespaces, services = messages.surroundings(message)
        self._scheduler.set_namespaces(namespaces, services)
        logger().info(
            "namespaces_updated",
            worker=self._name,
            version=message.version,
            namespaces=len(namespaces),
            services=len(services),
        )

    def _update_storage(self, message: StorageChanges) -> None:
        """Between two slices, once all parts of the update are there."""
        self._storage_parts.append(storage_changes_from_proto(message))
        if message.continued:
            return
        parts, self._storage_parts = self._storage_parts, []
        objects = tuple(item for part in parts for item in part.objects)
        gone = tuple(key for part in parts for key in part.gone)
        update = StorageUpdate(objects, gone, message.complete)
        devices = messages.device_update(update)
        if update.complete or len(devices.objects) + len(devices.gone) < len(objects) + len(gone):
            self._scheduler.update_storage(update)
        self._scheduler.update_devices(devices, self._unix_clock())
        self._log.debug("storage_updated", worker=self._name, objects=len(objects), gone=len(gone))
        self._loop.wake()

    def _set_preference(self, message: PreferenceMessage) -> None:
        preference = messages.preference(message)
        if preference is None:
            logger().warning("preference_unknown", worker=self._name, overlap=message.overlap)
            return
        self._scheduler.set_preference(preference)
        logger().info(
            "preference",
            worker=self._name,
            overlap=message.overlap,
            number=preference.number,
            shares=preference.shares,
        )

    def _give_back(self) -> None:
        self._scheduler.drain()
        self._outbox.send_outcomes()

    # From the resolvers

    async def apply_feed(self, message: FeedMessage) -> None:
        """One message of the node feed. A large one in slices: pods wait until it is taken in as a whole, and
        everything else has its turn."""
        was_ready = self._gauges.ready
        update = await in_turns(messages.reading_feed(message), keeps=True)
        await in_turns(self._scheduler.cache.applying(update), keeps=True)
        self._scheduler.refusals.observe(update)
        if self._global_lock is not None:
            self._global_lock.notify()
        self._gauges.lags.reached(message.shard, message.seq, restarted=message.snapshot)
        if self._scheduler.resume(message.shard, snapshot=message.snapshot) or message.snapshot:
            self._loop.wake()
        answers, self._waiting_answers = self._waiting_answers, []
        for answer in answers:
            self._preempt(answer)
        if self._gauges.ready and not was_ready:
            self._gauges.filled()
            seconds = round(self._gauges.fill_seconds, 3)
            logger().info("cache_filled", worker=self._name, nodes=self._gauges.nodes, seconds=seconds)
            # The dispatcher gives work to ready workers only: with the next regular heartbeat this one would
            # idle for half a second.
            self._link.send(WorkerMessage(heartbeat=self.heartbeat()))
            self._loop.wake()

    def take_verdict(self, proposal: ProposalBatch, verdict: VerdictBatch) -> None:
        """The answer to a proposal or to a registration of rules."""
        if proposal.epoch != self._outbox.epoch:
            return
        if not proposal.uids:
            awaited = {position.shard: position.seq for position in verdict.awaits}
            self._scheduler.rules_registered(verdict.batch_id, awaited)
            self._loop.answered()
            self._outbox.send_outcomes()
            self._loop.wake()
            return
        with self._gauges.working():
            with self._gauges.busy():
                started = self._clock()
                self._decisions.add(proposal, verdict, self._unix_clock())
                log_decision(self._log, self._name, proposal, verdict)
                if self._traces is not None:
                    self._traces.decided(proposal, verdict)
                in_force = self._settle(proposal, verdict)
            self._scheduler.costs.overhead(self._clock() - started, 0)
            self._loop.answered()
            self._outbox.send_outcomes()
        if in_force:
            self._loop.wake()
        else:
            logger().warning("fenced", worker=self._name, epoch=self._outbox.epoch)
            self._link.end_stream()

    def _settle(self, proposal: ProposalBatch, verdict: VerdictBatch) -> bool:
        """Take in a verdict with those on a gang's other parts. False: this epoch is fenced."""
        if verdict.invalid and not verdict.verdicts:
            logger().error(
                "proposal_invalid", worker=self._name, batch=verdict.batch_id, reason=verdict.invalid
            )
            for part in (proposal, *proposal.parts):
                self._scheduler.reject(part.batch_id, verdict.invalid)
            return True
        parts = zip((proposal, *proposal.parts), (verdict, *verdict.parts), strict=True)
        decoded = [(v.batch_id, messages.verdicts(v, len(p.uids) // UID_BYTES)) for p, v in parts]
        in_force = [self._scheduler.settle(batch_id, verdicts) for batch_id, verdicts in decoded]
        self._scheduler.pre_bind()
        now = self._clock()
        for answer in (verdict, *verdict.parts):
            self._gauges.lags.expect(answer.shard, answer.as_of_seq, now)
            self._loop.verdict_seqs[answer.shard] = answer.as_of_seq
        self._adopt_commits()
        return all(in_force)

    # Jobs of its own

    async def schedule(self) -> None:
        """Place what there is until cancelled."""
        await self._loop.run()

    async def expire(self) -> None:
        """Give back assumptions without an answer, until cancelled. Raises AlgorithmStuck, PreBindStuck and
        PluginOff, once the pods in hand are given back."""
        while True:
            await asyncio.sleep(_EXPIRY_CHECK_SECONDS)
            try:
                for watched in self._outside:
                    watched.check()
            except (AlgorithmStuck, PreBindStuck, PluginOff) as exc:
                logger().error("worker_ends", worker=self._name, error=str(exc))
                self._outbox.leave(str(exc))
                if isinstance(exc, PreBindStuck):
                    self._scheduler.pre_bind_stuck(str(exc))
                await asyncio.sleep(_UNDER_WAY_SECONDS)
                await self.finish(_STUCK_FINISH_SECONDS)
                raise
            self._adopt_commits()
            pods = self._scheduler.cache.expire(self._clock())
            if pods:
                logger().warning("assumptions_expired", worker=self._name, pods=pods)
                self._loop.wake()  # some pods may have waited for the room

    async def finish(self, timeout_seconds: float) -> None:
        """Give back what is not started and wait for the ledger's answers to the rest."""
        self._outbox.leave()
        self._give_back()
        deadline = self._clock() + timeout_seconds
        while not self._scheduler.idle and (left := deadline - self._clock()) > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._loop.next_answer(), left)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._link.leave(), timeout_seconds)

    def _algorithm_answered(self, seconds: float) -> None:
        self._gauges.spent(seconds)
        self._loop.wake()

    def _pods_prepared(self, _seconds: float) -> None:
        """Pre-bind plugins have answered."""
        with self._gauges.working(), self._gauges.busy():
            self._scheduler.pre_bind()
        self._loop.answered()
        self._outbox.send_outcomes()
        self._loop.wake()

    def _adopt_commits(self) -> None:
        if not self._synchronisation.shows_commits:
            self._scheduler.cache.adopt()
