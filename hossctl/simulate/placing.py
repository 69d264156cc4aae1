"""A scheduler worker's own core on virtual time: cache, rankings, assumptions, retries. Everything that
simulations know of `scheduler_worker.core` is here."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.messages import SendPreference, SendRecall, SendWork
from hoss.model.placing import PlacementAlgorithm
from hoss.model.pod import PodSpec
from hoss.wire.columns import account_dtype
from hossctl.simulate.dispatching import ToWorker
from resolver.core.account_columns import AccountColumns, NodeIndexes
from resolver.core.values import Verdict
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.messages import AccountBatch, FeedUpdate, ProposalColumns, Verdicts
from scheduler_worker.core.placement.algorithms import CalledInPlace
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.work import OutcomeColumns

# The types of the core that the other modules here need.
Proposed = ProposalColumns
Answers = OutcomeColumns


class Entry(NamedTuple):
    """The change of one operation of the ledger: an entry of the feed."""

    shard: int
    seq: int
    pods: int  # placed by the operation
    nodes: NodeIndexes  # (m,), each once
    requested: NDArray[np.int64]  # (resources, m)


class SimulatedVerdict(NamedTuple):
    """The ledger's answer to a proposal, with the accounts of the refusing nodes at that moment."""

    seq: int  # 0 where nothing was committed
    as_of: int
    committed: NDArray[np.bool_]  # (pods,)
    nodes: NodeIndexes  # (pods,)
    refusing: NodeIndexes  # (m,), each once
    requested: NDArray[np.int64]  # (resources, m)


def decide(ledger: AccountColumns, proposal: "Proposed") -> SimulatedVerdict:
    """Decide a proposal, run by run of equal pods, and commit what fits."""
    candidates = proposal.candidates.astype(np.int32).astype(np.intp)  # NONE_U32 becomes -1
    committed, nodes = np.zeros(len(candidates), np.bool_), candidates[:, 0].copy()
    ends = [*(np.flatnonzero(np.diff(proposal.slots)) + 1).tolist(), len(candidates)]
    for first, end in pairwise((0, *ends)):
        request = proposal.requests[proposal.slots[first]]
        committed[first:end], nodes[first:end] = ledger.commit_ranked(candidates[first:end], request)
    refusing = np.unique(candidates[~committed])
    refusing = refusing[refusing >= 0]
    seq = ledger.seq if committed.any() else 0
    return SimulatedVerdict(seq, ledger.seq, committed, nodes, refusing, ledger.requested[:, refusing])


def feed_entry(ledger: AccountColumns, shard: int, nodes: NodeIndexes) -> Entry:
    """The entry of the latest commit, of a pod on each of these nodes."""
    distinct = np.unique(nodes)
    return Entry(shard, ledger.seq, len(nodes), distinct, ledger.requested[:, distinct])


class SimulatedPlacing:
    def __init__(
        self,
        pool: FeedUpdate,
        specs: Mapping[str, PodSpec],
        *,
        shards: int,
        seed: int,
        profile: Profile | None = None,
        algorithm: PlacementAlgorithm | None = None,
    ) -> None:
        """`pool` is the snapshot it starts from, all nodes in order; `specs` the classes of pods by name.
        `profile`: its own, shared with no other worker; None: the default one. `algorithm` places whole
        batches in place of its ranking."""
        self._scheduler = Scheduler(
            NodeInfoCache(),
            default_profile() if profile is None else profile,
            np.random.default_rng(seed),
            algorithm=None if algorithm is None else CalledInPlace(type(algorithm).__name__, algorithm),
        )
        self._specs = specs
        self._first_seq = pool.seq
        for shard in range(shards):
            self._scheduler.cache.apply_feed(_of_shard(pool, shard, shards))
        self._entries: list[Entry] = []
        self._classes: set[int] = set()

    @property
    def has_work(self) -> bool:
        return self._scheduler.backlog > 0

    @property
    def conflicts(self) -> int:
        """Refusals by the ledger, counting each time."""
        return self._scheduler.conflicts

    @property
    def proposed(self) -> int:
        """Pods proposed, counting each time."""
        return self._scheduler.proposed

    @property
    def backlog(self) -> int:
        return self._scheduler.backlog

    @property
    def classes(self) -> NDArray[np.uint32]:
        """The dispatcher's numbers of the classes that it had work of."""
        return np.array(sorted(self._classes), np.uint32)

    def handle(self, message: ToWorker) -> None:
        """Handle a dispatcher's message other than work."""
        match message:
            case SendRecall():
                self._scheduler.give_back(frozenset(message.batches), message.pods)
            case SendPreference():
                self._scheduler.set_preference(message.preference)

    def accept(self, work: SendWork) -> None:
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

    def follow(self, entry: Entry) -> None:
        """Receive an entry of the feed. It is applied before the next placing."""
        self._entries.append(entry)

    @property
    def followed(self) -> int:
        """Entries received and not applied yet."""
        return len(self._entries)

    def apply_feed(self, ledger: AccountColumns) -> int:
        """Apply the received entries to the cache; the number of their pods."""
        received, self._entries = self._entries, []
        for shard in sorted({entry.shard for entry in received}):
            entries = [entry for entry in received if entry.shard == shard]
            # Of a node that changed several times, the last entry counts.
            nodes = np.concatenate([entry.nodes for entry in entries])
            distinct, from_behind = np.unique(nodes[::-1], return_index=True)
            requested = np.concatenate([entry.requested for entry in entries], axis=1)
            requested = requested[:, len(nodes) - 1 - from_behind]
            seq = entries[-1].seq
            accounts = self._accounts(ledger, distinct, requested, seq)
            self._scheduler.cache.apply_feed(FeedUpdate(shard, self._first_seq + seq, accounts))
            self._scheduler.resume(shard)
        return sum(entry.pods for entry in received)

    def place(self, now: float) -> tuple[int, list[Proposed]]:
        """Place pods for one more proposal; the number of pods placed or given up, and the proposals.
        Raises PluginFailed: what fails in a study is its author's."""
        pods = 0
        while settled := self._scheduler.step():
            pods += settled
        for failure in self._scheduler.take_failures():
            raise failure
        return pods, self._scheduler.take_proposals(now)

    def settle(self, proposal: Proposed, verdict: SimulatedVerdict, ledger: AccountColumns) -> None:
        """Handle the ledger's answer to a proposal."""
        codes = np.where(verdict.committed, Verdict.COMMITTED, Verdict.CONFLICT_RESOURCE).astype(np.uint8)
        fresh = self._accounts(ledger, verdict.refusing, verdict.requested, verdict.as_of)
        none = np.empty(0, np.uint64)
        seq = verdict.seq and self._first_seq + verdict.seq
        nodes = verdict.nodes.astype(np.uint32)
        answer = Verdicts(seq, codes, nodes, none, fresh, self._first_seq + verdict.as_of)
        self._scheduler.settle(proposal.batch_id, answer)

    def outcomes(self) -> Sequence[Answers]:
        return self._scheduler.take_outcomes()

    def _accounts(
        self, ledger: AccountColumns, nodes: NodeIndexes, requested: NDArray[np.int64], seq: int
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
        pool.accounts,
        indexes=pool.accounts.indexes[shard::shards],
        records=pool.accounts.records[shard::shards],
    )
    return replace(pool, shard=shard, shards=shards, accounts=accounts, specs=pool.specs[shard::shards])
