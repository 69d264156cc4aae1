"""Builders for worker cores: caches filled by feed messages, and a ledger in memory that says yes, no or
otherwise."""

from dataclasses import dataclass

import numpy as np
import pytest
from accounts_in_memory import GIB, AccountsInMemory

from hoss.model.conflicts import DEFAULT_CONFLICT_RULE
from hoss.model.pod import PodSpec
from hoss.wire.columns import numbered_uids
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.cycle import SchedulerLimits
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.work import MAX_PRIORITY


@dataclass
class Harness:
    """A scheduler, its cache and the ledger it follows."""

    ledger: AccountsInMemory
    scheduler: Scheduler
    batches: int = 0

    @property
    def cache(self) -> NodeInfoCache:
        return self.scheduler.cache

    def submit(self, *runs, gang=None, scope=None, conflicts=DEFAULT_CONFLICT_RULE, lowest=MAX_PRIORITY):
        """Work of (spec, count) runs, a gang or not, on all nodes or those of a policy's rule; the batch
        id. `lowest`: the lowest priority of bound pods."""
        self.batches += 1
        for number, (spec, _) in enumerate(runs):
            self.scheduler.define_class(number, spec)
        counts = np.array([count for _, count in runs], np.uint32)
        uids = numbered_uids(b"twelve bytes", 1000 * self.batches, int(counts.sum()))
        attempts = np.zeros(len(runs), np.uint16)
        classes = np.arange(len(runs), dtype=np.uint32)
        self.scheduler.accept(
            self.batches,
            uids,
            classes,
            counts,
            attempts,
            gang=gang,
            scope=scope,
            conflicts=conflicts,
            lowest_priority=lowest,
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
        """The ledger says yes to all of these, the feed shows it, and what waited for that is looked at
        again."""
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
                columns.positions.tolist(),
                columns.codes.tolist(),
                columns.nodes.tolist(),
                reasons,
                strict=True,
            ):
                assert (columns.batch_id, position) not in found, "answered twice"
                found[columns.batch_id, position] = (code, node if node != 0xFFFFFFFF else None, reason)
        return [found[key] for key in sorted(found)]


def pod(cpu=100, memory=GIB // 4, **fields):
    requests = tuple((name, amount) for name, amount in (("cpu", cpu), ("memory", memory)) if amount)
    requests += tuple(fields.pop("more", ()))
    return PodSpec(
        requests=tuple(sorted(requests)), nonzero_cpu_milli=cpu, nonzero_memory_bytes=memory, **fields
    )


@pytest.fixture
def make_pod():
    return pod


@pytest.fixture
def make_ledger():
    def make(count=0, **fields):
        ledger = AccountsInMemory()
        for index in range(count):
            ledger.add(index, **fields)
        return ledger

    return make


@pytest.fixture
def harness_of():
    def make(ledger, **limits):
        scheduler = Scheduler(
            NodeInfoCache(), default_profile(), np.random.default_rng(1), SchedulerLimits(**limits)
        )
        scheduler.cache.apply_feed(ledger.snapshot())
        return Harness(ledger, scheduler)

    return make
