"""Several workers' cores at one ledger, in an order that a test decides: proposals and feed messages wait until told."""

import asyncio
from dataclasses import dataclass, field

import numpy as np

from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.v1 import resolver_pb2 as pb
from hoss.v1 import workerlink_pb2 as pb_link
from hoss.wire.columns import I64, U32, encode, numbered_uids
from hoss.wire.convert import node_to_proto, pod_spec_to_proto
from resolver.core.values import Eviction
from resolver.feed import ShardFeed
from resolver.ledger.memory import MemoryLedger
from resolver.nodes import node_change
from resolver.proposals import read_proposal, verdict_message
from scheduler_worker import messages
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.codes import Outcome
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.scheduler import Limits, Scheduler
from scheduler_worker.core.work import MAX_PRIORITY


@dataclass
class Racer:
    """A worker's core, the proposals it made and nobody answered, and what became of its pods."""

    name: str
    epoch: int
    scheduler: Scheduler
    sent: list[pb.ProposalBatch] = field(default_factory=list)
    outcomes: list[int] = field(default_factory=list)
    batches: int = 0


class Race:
    """One shard. Everything goes through the messages that real services send."""

    def __init__(self, workers: int, nodes: list[NodeSpec], *, seed: int = 1, tries: int = 3) -> None:
        self.ledger = MemoryLedger(1, lambda: 0)
        self._specs: dict[bytes, PodSpec] = {}
        self._known: dict[bytes, int] = {}
        self._known_seq = 0
        self._feed = ShardFeed(self.ledger, 0)
        schema = asyncio.run(self.ledger.schema())
        changes = [node_change(node_to_proto(node), schema) for node in nodes]
        asyncio.run(self.ledger.upsert_nodes(0, changes))
        self.workers = []
        for number in range(workers):
            scheduler = Scheduler(
                NodeInfoCache(),
                default_profile(),
                np.random.default_rng(seed + number),
                Limits(tries=tries),
            )
            name = f"w{number}"
            self.workers.append(Racer(name, asyncio.run(self.ledger.grant(name)), scheduler))
            self.begin_anew(self.workers[-1])

    def begin_anew(self, worker: Racer) -> None:
        """The worker gets a snapshot."""
        self._apply(worker, asyncio.run(self._feed._read_snapshot()))

    def submit(self, worker: Racer, spec: PodSpec, count: int, *, lowest_priority: int = MAX_PRIORITY) -> None:
        """Give pods to a worker. Those of more than the lowest priority may have others go for them."""
        worker.batches += 1
        number = worker.batches
        worker.scheduler.define_class(number, spec)
        uids = numbered_uids(f"race {worker.name:7}".encode(), 1000 * number, count)
        columns = np.array([number], np.uint32), np.array([count], np.uint32), np.zeros(1, np.uint16)
        self._specs.update(dict.fromkeys((uid.tobytes() for uid in uids), spec))
        worker.scheduler.accept(number, uids, *columns, lowest_priority=lowest_priority)

    def know(self) -> None:
        """The dispatcher hears of everything that happened."""
        arbiter = self.ledger.arbiters[0]
        self._known = {uid: held.node for uid, held in arbiter.reservations.items()}
        self._known_seq = arbiter.seq

    def answer(self, worker: Racer) -> None:
        """The dispatcher answers the worker's questions, by what it knows."""
        for question in worker.scheduler.take_questions():
            asked = pb_link.WorkerMessage.FromString(
                messages.preemption_question(question).SerializeToString()
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
                seen=[pb_link.CommitRef(shard=0, seq=self._known_seq)],
            )
            worker.scheduler.preempt(messages.preemption_answer(answer), now=0.0)
        self._collect(worker)

    def evictions(self) -> list[Eviction]:
        """All that the ledger evicted, in order."""
        return [eviction for change in self.ledger.arbiters[0].feed for eviction in change.evictions]

    def place(self, worker: Racer) -> None:
        """The worker places what it can and sends its proposals; they do not arrive yet."""
        while worker.scheduler.step():
            pass
        for columns in worker.scheduler.take_proposals(now=0.0):
            batch = messages.proposal_batch(columns, worker=worker.name, epoch=worker.epoch, unchecked=False)
            worker.sent.append(pb.ProposalBatch.FromString(batch.SerializeToString()))
        self._collect(worker)

    def decide(self, worker: Racer) -> None:
        """The oldest proposal arrives, is decided, and the worker hears the verdict."""
        if not worker.sent:
            return
        batch = worker.sent.pop(0)
        schema = len(asyncio.run(self.ledger.schema()))
        proposal = read_proposal(batch, shards=1, schema=schema, allow_unchecked=False)
        [decision] = asyncio.run(self.ledger.commit(0, [proposal]))
        answer = verdict_message(batch.batch_id, 0, decision)
        worker.scheduler.settle(batch.batch_id, messages.verdicts(answer, len(proposal)))
        self._collect(worker)

    def tell(self, worker: Racer) -> None:
        """The worker hears of everything that happened."""
        for entry in asyncio.run(self.ledger.feed(0, worker.scheduler.cache.seqs[0], 0)):
            self._apply(worker, asyncio.run(self._feed._message(entry)))

    def finish(self) -> None:
        """Go on, one step of each worker after the other, until every pod is answered for and every worker knows."""
        while not all(worker.scheduler.idle for worker in self.workers):
            self.know()
            for step in (self.place, self.answer, self.decide, self.tell):
                for worker in self.workers:
                    step(worker)
        for worker in self.workers:
            self.tell(worker)

    def placed(self) -> list[tuple[PodSpec, str]]:
        """(group's name, node index) of every reservation."""
        return [(held.group.definition, held.node) for held in self.ledger.arbiters[0].reservations.values()]

    def bound(self, worker: Racer) -> int:
        """How many of the worker's pods are bound."""
        return worker.outcomes.count(Outcome.BOUND)

    def _apply(self, worker: Racer, message: pb.FeedMessage) -> None:
        update = messages.feed_update(pb.FeedMessage.FromString(message.SerializeToString()))
        worker.scheduler.cache.apply_feed(update)
        worker.scheduler.resume(0, snapshot=update.snapshot)

    def _collect(self, worker: Racer) -> None:
        for columns in worker.scheduler.take_outcomes():
            worker.outcomes += columns.codes.tolist()
