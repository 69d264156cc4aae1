"""Builders for worker cores: caches filled by feed messages, and a ledger in memory that says yes, no or otherwise."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from hoss.model.conflicts import DEFAULT_CONFLICT_RULE
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.model.resources import BASE_RESOURCES
from hoss.wire.account import CARD_SLOTS, FLAG_GONE, NO_CARD, account_dtype
from hoss.wire.columns import numbered_uids
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.messages import AccountBatch, FeedUpdate, Verdicts
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.scheduler import Limits, Scheduler

GIB = 2**30
COMMITTED, DUPLICATE, REFUSED, STALE_EPOCH = 1, 2, 3, 9


@dataclass
class FakeLedger:
    """The ledger's accounts of one shard, and its feed."""

    schema: tuple[str, ...] = BASE_RESOURCES
    shards: int = 1
    seq: int = 1
    specs: dict[int, NodeSpec] = field(default_factory=dict)
    allocatable: dict[int, dict[str, int]] = field(default_factory=dict)
    requested: dict[int, np.ndarray] = field(default_factory=dict)
    cards: dict[int, np.ndarray] = field(default_factory=dict)
    flags: dict[int, int] = field(default_factory=dict)
    changed_at: dict[int, int] = field(default_factory=dict)

    def add(self, index, *, cards=0, flags=0, name=None, **fields):
        amounts = fields.pop("allocatable", {"cpu": 4000, "memory": 8 * GIB, "pods": 110})
        self.specs[index] = NodeSpec(name or f"node-{index}", cards=cards, **fields)
        self.allocatable[index] = amounts
        self.requested[index] = np.zeros(len(self.schema), np.int64)
        self.flags[index] = flags
        self.changed_at[index] = self.seq
        if cards:
            self.cards[index] = np.array([0] * cards + [NO_CARD] * (CARD_SLOTS - cards), np.uint16)
        return self

    def accounts(self, indexes):
        records = np.zeros(len(indexes), account_dtype(len(self.schema)))
        for row, index in enumerate(indexes):
            records["seq"][row] = self.changed_at[index]
            records["flags"][row] = self.flags[index]
            for name, amount in self.allocatable[index].items():
                records["amounts"][row, self.schema.index(name), 0] = amount
            records["amounts"][row, :, 1] = self.requested[index]
        carded = [i for i in indexes if i in self.cards]
        cards = np.array([self.cards[i] for i in carded], np.uint16).reshape(-1, CARD_SLOTS)
        return AccountBatch(np.array(indexes, np.uint32), records, np.array(carded, np.uint32), cards)

    def snapshot(self):
        return FeedUpdate(
            shard=0,
            seq=self.seq,
            accounts=self.accounts(sorted(self.specs)),
            specs=tuple(sorted(self.specs.items())),
            snapshot=True,
            shards=self.shards,
            schema=self.schema,
        )

    def reserve(self, nodes, requests):
        """Commit pods; the feed entry that says so."""
        self.seq += 1
        for node, request in zip(nodes, requests, strict=True):
            self.requested[node] = self.requested[node] + np.pad(request, (0, len(self.schema) - len(request)))
            self.changed_at[node] = self.seq
        return self.delta(sorted(set(nodes)))

    def delta(self, indexes, **fields):
        return FeedUpdate(shard=0, seq=self.seq, accounts=self.accounts(indexes), **fields)

    def remove(self, index):
        self.seq += 1
        self.flags[index] = FLAG_GONE
        self.changed_at[index] = self.seq
        return self.delta([index], specs=((index, None),))

    def commit(self, columns):
        """Say yes to a whole proposal: (verdicts, feed entry)."""
        nodes = columns.candidates[:, 0]
        update = self.reserve(nodes.tolist(), columns.requests[columns.slots])
        return self.answer(columns, COMMITTED, seq=self.seq), update

    def answer(self, columns, verdict, *, seq=0, nodes=None, duplicate_seqs=(), fresh=()):
        count = len(columns.uids)
        return Verdicts(
            seq=seq,
            verdicts=np.broadcast_to(np.array(verdict, np.uint8), count),
            nodes=columns.candidates[:, 0] if nodes is None else np.array(nodes, np.uint32),
            duplicate_seqs=np.array(duplicate_seqs, np.uint64),
            fresh=self.accounts(list(fresh)),
        )


@dataclass
class Harness:
    """A scheduler, its cache and the ledger it follows."""

    ledger: FakeLedger
    scheduler: Scheduler
    batches: int = 0

    @property
    def cache(self) -> NodeInfoCache:
        return self.scheduler.cache

    def submit(self, *runs, gang=None, scope=None, conflicts=DEFAULT_CONFLICT_RULE):
        """Work of (spec, count) runs, a gang or not, on all nodes or those of a policy's rule; the batch id."""
        self.batches += 1
        for number, (spec, _) in enumerate(runs):
            self.scheduler.define_class(number, spec)
        counts = np.array([count for _, count in runs], np.uint32)
        uids = numbered_uids(b"twelve bytes", 1000 * self.batches, int(counts.sum()))
        attempts = np.zeros(len(runs), np.uint16)
        classes = np.arange(len(runs), dtype=np.uint32)
        self.scheduler.accept(
            self.batches, uids, classes, counts, attempts, gang=gang, scope=scope, conflicts=conflicts
        )
        return self.batches

    def place(self):
        """Place everything that can be placed now; the proposals."""
        proposals = []
        while settled := self.scheduler.step():
            while settled:
                settled = self.scheduler.step()
            proposals += self.scheduler.take_proposals(now=0.0)
        return proposals

    def settle(self, proposals):
        """The ledger says yes to all of these, the feed shows it, and what waited for that is looked at again."""
        for proposal in proposals:
            verdicts, update = self.ledger.commit(proposal)
            self.scheduler.settle(proposal.batch_id, verdicts)
            self.cache.apply_feed(update)
        assert self.place() == []

    def outcomes(self):
        """[(code, node or None, reason)] by position, of all answers so far."""
        found = {}
        for columns in self.scheduler.take_outcomes():
            reasons = [""] * len(columns.positions)
            if columns.reasons is not None:
                reasons = [columns.reason_texts[r] if r != 0xFFFF else "" for r in columns.reasons]
            for position, code, node, reason in zip(
                columns.positions.tolist(), columns.codes.tolist(), columns.nodes.tolist(), reasons, strict=True
            ):
                assert (columns.batch_id, position) not in found, "answered twice"
                found[columns.batch_id, position] = (code, node if node != 0xFFFFFFFF else None, reason)
        return [found[key] for key in sorted(found)]


def pod(cpu=100, memory=GIB // 4, **fields):
    requests = tuple((name, amount) for name, amount in (("cpu", cpu), ("memory", memory)) if amount)
    requests += tuple(fields.pop("more", ()))
    return PodSpec(requests=tuple(sorted(requests)), nonzero_cpu_milli=cpu, nonzero_memory_bytes=memory, **fields)


@pytest.fixture
def make_pod():
    return pod


@pytest.fixture
def make_ledger():
    def make(count=0, **fields):
        ledger = FakeLedger()
        for index in range(count):
            ledger.add(index, **fields)
        return ledger

    return make


@pytest.fixture
def harness_of():
    def make(ledger, **limits):
        scheduler = Scheduler(NodeInfoCache(), default_profile(), np.random.default_rng(1), Limits(**limits))
        scheduler.cache.apply_feed(ledger.snapshot())
        return Harness(ledger, scheduler)

    return make
