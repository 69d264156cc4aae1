"""A scheduler worker's own core on virtual time: its cache, its rankings, what it assumes, its retries.

All that simulations know of `scheduler_worker.core` is here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.messages import SendPreference, SendRecall, SendWork
from hoss.model.pod import PodSpec
from hoss.wire.account import account_dtype
from hossctl.simulate.dispatching import Told
from hossctl.simulate.ledger import ColumnLedger, NodeIndexes
from resolver.core.values import Verdict
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.messages import AccountBatch, FeedUpdate, ProposalColumns, Verdicts
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.scheduler import Scheduler
from scheduler_worker.core.work import OutcomeColumns

Proposed = ProposalColumns  # as much of the core as others here handle
Answers = OutcomeColumns


class Entry(NamedTuple):
    """What one operation of the ledger changed, and how it was then."""

    shard: int
    seq: int
    pods: int  # that it placed
    nodes: NodeIndexes  # (m,), each once
    requested: NDArray[np.int64]  # (resources, m)


class Judgement(NamedTuple):
    """The ledger's answer to a proposal, and how nodes that refused stood when it was decided."""

    seq: int  # 0 where nothing was committed
    as_of: int
    committed: NDArray[np.bool_]  # (pods,)
    nodes: NodeIndexes  # (pods,)
    refusing: NodeIndexes  # (m,), each once
    requested: NDArray[np.int64]  # (resources, m)


def judged(ledger: ColumnLedger, proposal: "Proposed") -> Judgement:
    """Decide a proposal, whose pods are all alike, on the ledger as it is now."""
    candidates = proposal.candidates.astype(np.int32).astype(np.intp)  # NONE_U32 becomes -1
    committed, nodes = ledger.commit_ranked(candidates, proposal.requests[0])
    refusing = np.unique(candidates[~committed])
    refusing = refusing[refusing >= 0]
    seq = ledger.seq if committed.any() else 0
    return Judgement(seq, ledger.seq, committed, nodes, refusing, ledger.requested[:, refusing])


def entry_of(ledger: ColumnLedger, shard: int, nodes: NodeIndexes) -> Entry:
    """The commit just made on a shard, of a pod on each of these nodes."""
    distinct = np.unique(nodes)
    return Entry(shard, ledger.seq, len(nodes), distinct, ledger.requested[:, distinct])


class Placing:
    """One worker."""

    def __init__(self, pool: FeedUpdate, specs: Mapping[str, PodSpec], *, shards: int, seed: int) -> None:
        """`pool` is the snapshot it starts from, all nodes in order; `specs` the classes of pods by name."""
        self._scheduler = Scheduler(NodeInfoCache(), default_profile(), np.random.default_rng(seed))
        self._specs = specs
        self._first_seq = pool.seq
        for shard in range(shards):
            self._scheduler.cache.apply_feed(_of_shard(pool, shard, shards))
        self._heard: list[Entry] = []
        self._classes: set[int] = set()

    @property
    def has_work(self) -> bool:
        """Whether pods wait to be placed."""
        return self._scheduler.backlog > 0

    @property
    def conflicts(self) -> int:
        """Pods that the ledger refused, each as often as it did."""
        return self._scheduler.conflicts

    @property
    def proposed(self) -> int:
        """Pods proposed, each as often as it was."""
        return self._scheduler.proposed

    @property
    def backlog(self) -> int:
        """Pods not yet placed."""
        return self._scheduler.backlog

    @property
    def classes(self) -> NDArray[np.uint32]:
        """The dispatcher's numbers of classes it has had work of."""
        return np.array(sorted(self._classes), np.uint32)

    def take(self, told: Told) -> None:
        """What the dispatcher wants besides work: pods back that were not started, or another order of nodes."""
        match told:
            case SendRecall():
                self._scheduler.give_back(frozenset(told.batches), told.pods)
            case SendPreference():
                self._scheduler.prefer(told.preference)

    def accept(self, work: SendWork) -> None:
        """A work batch."""
        for number, name in work.classes:
            self._classes.add(number)
            self._scheduler.define_class(number, self._specs[name.decode()])
        self._scheduler.accept(
            work.batch,
            work.uids,
            work.run_classes,
            work.run_counts,
            work.run_attempts,
            lowest_priority=work.lowest_priority,
        )

    def hear(self, entry: Entry) -> None:
        """The feed tells of a change; it is taken in before the next placing."""
        self._heard.append(entry)

    def learn(self, ledger: ColumnLedger) -> int:
        """Take in what the feed told: of how many pods."""
        heard, self._heard = self._heard, []
        for shard in sorted({entry.shard for entry in heard}):
            entries = [entry for entry in heard if entry.shard == shard]
            # Of a node that changed several times, what was said last counts.
            nodes = np.concatenate([entry.nodes for entry in entries])
            distinct, from_behind = np.unique(nodes[::-1], return_index=True)
            requested = np.concatenate([entry.requested for entry in entries], axis=1)[:, len(nodes) - 1 - from_behind]
            seq = entries[-1].seq
            accounts = self._accounts(ledger, distinct, requested, seq)
            self._scheduler.cache.apply_feed(FeedUpdate(shard, self._first_seq + seq, accounts))
            self._scheduler.resume(shard)
        return sum(entry.pods for entry in heard)

    def place(self, now: float) -> tuple[int, list[Proposed]]:
        """Place the next proposal's worth of pods: how many pods that settled, and what is proposed."""
        pods = 0
        while settled := self._scheduler.step():
            pods += settled
        return pods, self._scheduler.take_proposals(now)

    def settle(self, proposal: Proposed, judgement: Judgement, ledger: ColumnLedger) -> None:
        """Take in what the ledger said."""
        codes = np.where(judgement.committed, Verdict.COMMITTED, Verdict.CONFLICT_RESOURCE).astype(np.uint8)
        fresh = self._accounts(ledger, judgement.refusing, judgement.requested, judgement.as_of)
        none = np.empty(0, np.uint64)
        seq = judgement.seq and self._first_seq + judgement.seq
        nodes = judgement.nodes.astype(np.uint32)
        answer = Verdicts(seq, codes, nodes, none, fresh, self._first_seq + judgement.as_of)
        self._scheduler.settle(proposal.batch_id, answer)

    def outcomes(self) -> Sequence[Answers]:
        """Answers since the last time."""
        return self._scheduler.take_outcomes()

    def _accounts(
        self, ledger: ColumnLedger, nodes: NodeIndexes, requested: NDArray[np.int64], seq: int
    ) -> AccountBatch:
        records = np.zeros(len(nodes), account_dtype(len(requested)))
        records["seq"], records["born"] = self._first_seq + seq, self._first_seq
        records["amounts"][:, :, 0] = ledger.allocatable[:, nodes].T
        records["amounts"][:, :, 1] = requested.T
        empty = AccountBatch.empty()
        return AccountBatch(nodes.astype(np.uint32), records, empty.card_indexes, empty.cards)


def _of_shard(pool: FeedUpdate, shard: int, shards: int) -> FeedUpdate:
    """The part of a snapshot that a shard would send."""
    accounts = replace(
        pool.accounts, indexes=pool.accounts.indexes[shard::shards], records=pool.accounts.records[shard::shards]
    )
    return replace(pool, shard=shard, shards=shards, accounts=accounts, specs=pool.specs[shard::shards])
