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
from hoss.wire.columns import CARD_SLOTS, NO_CARD, account_dtype
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
    cards: NDArray[np.uint16] | None  # (m, slots); None: no node has cards


class SimulatedVerdict(NamedTuple):
    """The ledger's answer to a proposal, with the accounts of the refusing nodes at that moment."""

    seq: int  # 0 where nothing was committed
    as_of: int
    committed: NDArray[np.bool_]  # (pods,)
    nodes: NodeIndexes  # (pods,)
    refusing: NodeIndexes  # (m,), each once
    requested: NDArray[np.int64]  # (resources, m)
    cards: NDArray[np.uint16] | None  # (m, slots); None: no node has cards
    card_masks: NDArray[np.uint16]  # (pods,): the cards of each committed pod, a bit for each slot


def ledger_of(pool: FeedUpdate) -> AccountColumns:
    """The ledger of a pool's nodes, with nothing reserved."""
    accounts = pool.accounts
    cards = None
    if len(accounts.cards):
        cards = np.full((len(accounts.indexes), CARD_SLOTS), NO_CARD, np.uint16)
        cards[accounts.card_indexes] = accounts.cards
    return AccountColumns(np.ascontiguousarray(accounts.records["amounts"][:, :, 0].T), cards)


def decide(ledger: AccountColumns, proposal: "Proposed") -> SimulatedVerdict:
    """Decide a proposal, run by run of equal pods, and commit what fits."""
    candidates = proposal.candidates.astype(np.int32).astype(np.intp)  # NONE_U32 becomes -1
    committed, nodes = np.zeros(len(candidates), np.bool_), candidates[:, 0].copy()
    masks = np.zeros(len(candidates), np.uint16)
    ends = [*(np.flatnonzero(np.diff(proposal.slots)) + 1).tolist(), len(candidates)]
    for first, end in pairwise((0, *ends)):
        slot, ranked = proposal.slots[first], candidates[first:end]
        request = proposal.requests[slot]
        count, milli = (0, 0) if proposal.devices is None else proposal.devices[slot].tolist()
        if count:
            committed[first:end], nodes[first:end], masks[first:end] = ledger.commit_ranked_with_cards(
                ranked, request, count, milli
            )
        else:
            committed[first:end], nodes[first:end] = ledger.commit_ranked(ranked, request)
    refusing = np.unique(candidates[~committed])
    refusing = refusing[refusing >= 0]
    seq = ledger.seq if committed.any() else 0
    requested, cards = ledger.requested[:, refusing], _cards(ledger, refusing)
    return SimulatedVerdict(seq, ledger.seq, committed, nodes, refusing, requested, cards, masks)


def feed_entry(ledger: AccountColumns, shard: int, nodes: NodeIndexes) -> Entry:
    """The entry of the latest commit, of a pod on each of these nodes."""
    distinct = np.unique(nodes)
    requested, cards = ledger.requested[:, distinct], _cards(ledger, distinct)
    return Entry(shard, ledger.seq, len(nodes), distinct, requested, cards)


def _cards(ledger: AccountColumns, nodes: NodeIndexes) -> NDArray[np.uint16] | None:
    return None if ledger.cards is None else ledger.cards[nodes]


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
            last = len(nodes) - 1 - from_behind
            requested, cards = requested[:, last], None
            if ledger.cards is not None:
                cards = np.concatenate([entry.cards for entry in entries if entry.cards is not None])[last]
            seq = entries[-1].seq
            accounts = self._accounts(ledger, distinct, requested, cards, seq)
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
        fresh = self._accounts(ledger, verdict.refusing, verdict.requested, verdict.cards, verdict.as_of)
        none = np.empty(0, np.uint64)
        seq = verdict.seq and self._first_seq + verdict.seq
        nodes = verdict.nodes.astype(np.uint32)
        answer = Verdicts(seq, codes, nodes, none, fresh, self._first_seq + verdict.as_of)
        self._scheduler.settle(proposal.batch_id, answer)

    def outcomes(self) -> Sequence[Answers]:
        return self._scheduler.take_outcomes()

    def _accounts(
        self,
        ledger: AccountColumns,
        nodes: NodeIndexes,
        requested: NDArray[np.int64],
        cards: NDArray[np.uint16] | None,
        seq: int,
    ) -> AccountBatch:
        records = np.zeros(len(nodes), account_dtype(len(requested)))
        records["seq"], records["born"] = self._first_seq + seq, self._first_seq
        records["amounts"][:, :, 0] = ledger.allocatable[:, nodes].T
        records["amounts"][:, :, 1] = requested.T
        indexes, none = nodes.astype(np.uint32), AccountBatch.empty()
        if cards is None:
            return AccountBatch(indexes, records, none.card_indexes, none.cards)
        carded = (cards != NO_CARD).any(axis=1)
        return AccountBatch(indexes, records, indexes[carded], cards[carded])


def _of_shard(pool: FeedUpdate, shard: int, shards: int) -> FeedUpdate:
    """The part of a snapshot that a shard would send."""
    accounts, of_shard = pool.accounts, pool.accounts.card_indexes % shards == shard
    accounts = replace(
        accounts,
        indexes=accounts.indexes[shard::shards],
        records=accounts.records[shard::shards],
        card_indexes=accounts.card_indexes[of_shard],
        cards=accounts.cards[of_shard],
    )
    return replace(pool, shard=shard, shards=shards, accounts=accounts, specs=pool.specs[shard::shards])
