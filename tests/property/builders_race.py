"""Several workers' cores at one ledger, in an order that a test decides: proposals and feed messages wait
until told."""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dispatcher.core.bound.disruption_budgets import BudgetReservations
from hoss.model.cluster import DisruptionBudget, PodDisruptionBudget
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.v1 import resolver_pb2 as pb
from hoss.v1 import workerlink_pb2 as pb_link
from hoss.wire.columns import I64, U32, encode, numbered_uids
from hoss.wire.convert import node_to_proto, pod_spec_to_proto
from hoss.wire.convert_selectors import selector_to_proto
from resolver.api.feed import ShardFeed
from resolver.api.maintenance import Availability
from resolver.api.proposing import ProposeStream
from resolver.core.shard import MOST_AHEAD_MS
from resolver.core.values import Decision, Eviction, Proposal
from resolver.ledger.memory import MemoryLedger
from resolver.messages.nodes import node_change
from scheduler_worker import messages
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.cycle import SchedulerLimits
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.messages import Outcome
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.work import MAX_PRIORITY, GangInHand, OutcomeColumns


@dataclass
class Racer:
    """A worker's core, the proposals it made and nobody answered, and what became of its pods."""

    name: str
    epoch: int
    scheduler: Scheduler
    sent: list[pb.ProposalBatch] = field(default_factory=list)
    outcomes: list[int] = field(default_factory=list)
    unschedulable: list[PodSpec] = field(default_factory=list)  # of each such outcome
    refusals: list[OutcomeColumns] = field(default_factory=list)  # in which some are unschedulable
    unheard: list[tuple[pb.ProposalBatch, pb.VerdictBatch]] = field(default_factory=list)
    batches: int = 0
    specs: dict[int, list[PodSpec]] = field(default_factory=dict)  # by batch, of each of its pods
    classes: list[PodSpec] = field(default_factory=list)  # by number
    deciding: Coroutine[Any, Any, pb.VerdictBatch] | None = (
        None  # what a resolver does with the oldest proposal
    )


class _Turn:
    """Awaited, it lets others have a turn."""

    def __await__(self) -> Iterator[None]:
        yield


class _InTurns:
    """A ledger before each operation of which others have a turn."""

    def __init__(self, ledger: MemoryLedger) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._ledger, name)
        if not asyncio.iscoroutinefunction(operation) or name == "schema":
            return operation

        async def run(*arguments: Any, **named: Any) -> Any:
            await _Turn()
            return await operation(*arguments, **named)

        return run


@dataclass
class _Committer:
    ledger: Any
    shard: int

    async def decide(self, proposal: Proposal) -> Decision:
        [decision] = await self.ledger.commit(self.shard, [proposal])
        return decision


HOLD_MS = 5_000


class Race:
    """Nodes lie on the shards in turn. Everything goes through the messages that real services send."""

    def __init__(
        self,
        workers: int,
        nodes: list[NodeSpec],
        *,
        seed: int = 1,
        tries: int = 3,
        shards: int = 1,
        announces: bool = False,
        late: bool = False,
    ) -> None:
        """`late`: workers hear verdicts when they are told to."""
        self._late = late
        self.now_ms = 0
        self.ledger = MemoryLedger(shards, lambda: self.now_ms, lease_ms=10**9, prepare_ms=HOLD_MS)
        self._specs: dict[bytes, PodSpec] = {}
        self._known: dict[bytes, int] = {}
        self._known_seqs: dict[int, int] = {}
        self.budget: PodDisruptionBudget | None = None  # of which `min_available` is a number
        self._reservations = BudgetReservations()
        self._feeds = [ShardFeed(self.ledger, shard) for shard in range(shards)]
        in_turns: Any = _InTurns(self.ledger)
        committers: Any = [_Committer(in_turns, shard) for shard in range(shards)]
        available = Availability(self.ledger, lambda _: None, lambda: None)  # that is never asked
        self._proposing = ProposeStream(in_turns, committers, available, allow_unchecked=False)
        schema = asyncio.run(self.ledger.schema())
        for shard in range(shards):
            changes = [node_change(node_to_proto(node), schema) for node in nodes[shard::shards]]
            asyncio.run(self.ledger.upsert_nodes(shard, changes))
        self.workers = []
        for number in range(workers):
            scheduler = Scheduler(
                NodeInfoCache(),
                default_profile(),
                np.random.default_rng(seed + number),
                SchedulerLimits(tries=tries),
                registers_rules=announces,
            )
            name = f"w{number}"
            self.workers.append(Racer(name, asyncio.run(self.ledger.grant(name)), scheduler))
            self.begin_anew(self.workers[-1])

    def begin_anew(self, worker: Racer) -> None:
        """The worker gets a snapshot."""
        for feed in self._feeds:
            self._apply(worker, asyncio.run(feed._read_snapshot()))

    def submit(
        self, worker: Racer, spec: PodSpec, count: int, *, lowest_priority: int = MAX_PRIORITY
    ) -> None:
        """Give pods to a worker. Those of more than the lowest priority may have others go for them."""
        self.submit_runs(worker, [(spec, count)], lowest_priority=lowest_priority)

    def submit_runs(
        self,
        worker: Racer,
        runs: Sequence[tuple[PodSpec, int]],
        *,
        lowest_priority: int = MAX_PRIORITY,
        gang: bool = False,
    ) -> int:
        """Give pods of several classes to a worker in one work batch, whose number is returned; as a `gang`
        all or none."""
        first = len(worker.classes)
        worker.batches += 1
        number = worker.batches
        for offset, (spec, _) in enumerate(runs):
            worker.scheduler.define_class(first + offset, spec)
        worker.classes += [spec for spec, _ in runs]
        counts = np.array([count for _, count in runs], np.uint32)
        uids = numbered_uids(f"race {worker.name:7}".encode(), 1000 * number, int(counts.sum()))
        specs = [spec for spec, count in runs for _ in range(count)]
        worker.specs[number] = specs
        self._specs.update(zip((uid.tobytes() for uid in uids), specs, strict=True))
        classes = np.arange(first, len(worker.classes), dtype=np.uint32)
        columns = classes, counts, np.zeros(len(runs), np.uint16)
        together = GangInHand(f"gang {number}", len(uids)) if gang else None
        worker.scheduler.accept(number, uids, *columns, gang=together, lowest_priority=lowest_priority)
        for told in worker.scheduler.take_registrations():
            worker.sent.append(messages.rule_registration(told, worker=worker.name, epoch=worker.epoch))
        return number

    def know(self) -> None:
        """The dispatcher hears of everything that happened."""
        self._known = self.reservations()
        self._known_seqs = {shard: arbiter.seq for shard, arbiter in enumerate(self.ledger.arbiters)}

    def answer(self, worker: Racer) -> None:
        """The dispatcher answers the worker's queries, by what it knows."""
        for query in worker.scheduler.take_questions():
            asked = pb_link.WorkerMessage.FromString(
                messages.preemption_question(query).SerializeToString()
            ).preemption
            on = set(np.frombuffer(asked.nodes, "<u4").tolist())
            found = {
                uid: node
                for uid, node in self._known.items()
                if node in on and self._specs[uid].priority < asked.priority
            }
            answer = pb_link.PreemptionAnswer(
                id=asked.id,
                nodes_seen=len(on),
                uids=b"".join(found),
                nodes=encode(list(found.values()), U32),
                classes=encode(range(len(found)), U32),
                since_ms=encode([0] * len(found), I64),
                grace_ms=encode([0] * len(found), U32),
                class_specs=[pod_spec_to_proto(self._specs[uid]).SerializeToString() for uid in found],
                budgets=self._budgets(worker),
                seen=[pb_link.CommitRef(shard=shard, seq=seq) for shard, seq in self._known_seqs.items()],
            )
            worker.scheduler.preempt(messages.preemption_answer(answer), now=0.0)
        self._collect(worker)

    def _budgets(self, worker: Racer) -> list[pb_link.Budget]:
        """As the dispatcher tells them, in one moment: no loan ends."""
        if self.budget is None or self.budget.selector is None:
            return []
        covered = DisruptionBudget(self.budget.namespace, self.budget.selector, 0)
        bound = sum(covered.selects(self._specs[uid]) for uid in self._known)
        [granted] = self._reservations.reserve([self.budget], worker.name, 0.0)
        allowed = max(0, bound - self.budget.desired(bound)) if granted else 0
        selector = selector_to_proto(self.budget.selector)
        return [pb_link.Budget(namespace=self.budget.namespace, selector=selector, allowed=allowed)]

    def evictions(self) -> list[Eviction]:
        """All that the ledger evicted, in order shard by shard."""
        return [
            eviction
            for arbiter in self.ledger.arbiters
            for change in arbiter.feed
            for eviction in change.evictions
        ]

    def place(self, worker: Racer) -> None:
        """The worker places what it can and sends its proposals; they do not arrive yet."""
        while worker.scheduler.step():
            pass
        for columns in worker.scheduler.take_proposals(now=0.0):
            batch = messages.proposal_batch(columns, worker=worker.name, epoch=worker.epoch, unchecked=False)
            worker.sent.append(pb.ProposalBatch.FromString(batch.SerializeToString()))
        self._collect(worker)

    def advance(self, worker: Racer) -> bool:
        """A resolver does one operation of the ledger for the oldest proposal; the worker hears the verdict
        when it is the last. False: there is nothing to be decided."""
        if not worker.sent:
            return False
        if worker.deciding is None:
            worker.deciding = self._proposing.answer(worker.sent[0])
        try:
            worker.deciding.send(None)
        except StopIteration as ended:
            worker.deciding = None
            if not ended.value.unavailable:  # else it is sent again as it was
                worker.unheard.append((worker.sent.pop(0), ended.value))
            if not self._late:
                self.hear(worker)
        return True

    def decide(self, worker: Racer) -> None:
        """The oldest proposal is decided, and the worker hears the verdict."""
        while self.advance(worker) and worker.deciding is not None:
            pass

    def crash(self, worker: Racer) -> None:
        """The resolver that decides the worker's proposal dies on the way; another will be asked."""
        if worker.deciding is not None:
            worker.deciding.close()
            worker.deciding = None

    def reap(self, _worker: Racer) -> None:
        """What is held ends by its lease."""
        for _ in range(0, HOLD_MS, MOST_AHEAD_MS):
            self.now_ms += MOST_AHEAD_MS
            for shard in range(self.ledger.shards):
                asyncio.run(self.ledger.reap(shard))

    def forget(self, _worker: Racer) -> None:
        """The ledger forgets all rules that it can."""
        asyncio.run(self.ledger.forget_rules([arbiter.seq for arbiter in self.ledger.arbiters]))

    def hear(self, worker: Racer) -> None:
        """The worker hears the oldest verdict that it has not heard."""
        if not worker.unheard:
            return
        batch, answer = worker.unheard.pop(0)
        assert not answer.invalid, answer.invalid
        if not batch.uids:
            known = {position.shard: position.seq for position in answer.awaits}
            worker.scheduler.rules_registered(batch.batch_id, known)
            return
        for part, verdict in zip((batch, *batch.parts), (answer, *answer.parts), strict=True):
            pods = len(part.uids) // 16
            worker.scheduler.settle(part.batch_id, messages.verdicts(verdict, pods))
        self._collect(worker)

    def tell(self, worker: Racer) -> None:
        """The worker hears of everything that happened."""
        for shard, feed in enumerate(self._feeds):
            for entry in asyncio.run(self.ledger.feed(shard, worker.scheduler.cache.seqs[shard], 0)):
                self._apply(worker, asyncio.run(feed._message(entry)))

    def finish(self) -> None:
        """Go on, one step of each worker after the other, until every pod is answered for and every worker
        knows."""
        while not all(worker.scheduler.idle for worker in self.workers):
            self.know()
            for step in (self.place, self.answer, self.decide, self.hear, self.tell):
                for worker in self.workers:
                    step(worker)
        for worker in self.workers:
            self.tell(worker)

    def news(self, seen: Mapping[int, int]) -> Iterator[tuple[int, int, pb.FeedMessage]]:
        """Shard, seq and message of all that happened after these seqs, by shard, shard by shard."""
        for shard, feed in enumerate(self._feeds):
            for entry in asyncio.run(self.ledger.feed(shard, seen[shard], 0)):
                yield shard, entry.seq, asyncio.run(feed._message(entry))

    def end(self, uid: bytes) -> None:
        """A bound pod ends and gives back what it has."""
        node = self.reservations()[uid]
        asyncio.run(
            self.ledger.release(node % self.ledger.shards, np.frombuffer(uid, np.uint8).reshape(1, 16))
        )

    def reservations(self) -> dict[bytes, int]:
        """UID to node of every reservation."""
        return {
            uid: held.node for arbiter in self.ledger.arbiters for uid, held in arbiter.reservations.items()
        }

    def placed(self) -> list[tuple[PodSpec, str]]:
        """(group's name, node index) of every reservation."""
        return [
            (held.group.definition, held.node)
            for arbiter in self.ledger.arbiters
            for held in arbiter.reservations.values()
        ]

    def bound(self, worker: Racer) -> int:
        """How many of the worker's pods are bound."""
        return worker.outcomes.count(Outcome.BOUND)

    def _apply(self, worker: Racer, message: pb.FeedMessage) -> None:
        update = messages.feed_update(pb.FeedMessage.FromString(message.SerializeToString()))
        worker.scheduler.cache.apply_feed(update)
        worker.scheduler.resume(update.shard, snapshot=update.snapshot)

    def _collect(self, worker: Racer) -> None:
        for columns in worker.scheduler.take_outcomes():
            worker.outcomes += columns.codes.tolist()
            specs = worker.specs[columns.batch_id]
            refused = columns.positions[columns.codes == Outcome.UNSCHEDULABLE]
            worker.unschedulable += [specs[position] for position in refused.tolist()]
            if len(refused):
                worker.refusals.append(columns)


def assert_the_second_loses_to_the_first(race: Race) -> None:
    """Two workers want the same last thing, and have a pod each. Both place their pod before they hear of the
    other's, and the first is decided first: the second is refused in one conflict, and its pod waits."""
    first, second = race.workers
    race.place(first)  # both announce the rule, and hear that it is known
    race.place(second)
    for _ in range(3):
        for worker in (first, second):
            race.decide(worker)
            race.tell(worker)
    for worker in (first, second):
        race.place(worker)
    assert len(first.sent) == len(second.sent) == 1
    race.decide(first)
    race.finish()
    assert second.scheduler.conflicts == 1
    assert (first.outcomes, second.outcomes) == ([Outcome.BOUND], [Outcome.UNSCHEDULABLE])
