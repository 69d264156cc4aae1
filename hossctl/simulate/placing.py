"""A scheduler worker's own core on virtual time: cache, rankings, assumptions, retries. Everything that
simulations know of `scheduler_worker.core` is here."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.messages import SendPreference, SendRecall, SendWork
from hoss.model.fit import fits
from hoss.model.placing import PlacementAlgorithm
from hoss.model.pod import PodGroup, PodSpec
from hoss.wire.columns import CARD_SLOTS, NO_CARD, account_dtype
from hoss.wire.convert_rules import definition_of
from hossctl.simulate.dispatching import ToWorker
from resolver.core.account_columns import AccountColumns, NodeIndexes
from resolver.core.placement_constraints import DomainConstraints
from resolver.core.values import Claim, Group, Proposal, Verdict, clash
from resolver.messages.proposals import group_of as ledger_group_of
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.messages import AccountBatch, FeedUpdate, PodRun, ProposalColumns, Verdicts
from scheduler_worker.core.placement.algorithms import CalledInPlace
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.work import GangInHand, OutcomeColumns

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
    runs: tuple[PodRun, ...] = ()  # pods that other pods' rules can look at


class SimulatedVerdict(NamedTuple):
    """The ledger's answer to a proposal, with the accounts of the refusing nodes at that moment."""

    seq: int  # 0 where nothing was committed
    as_of: int
    codes: NDArray[np.uint8]  # (pods,): Verdict
    nodes: NodeIndexes  # (pods,)
    refusing: NodeIndexes  # (m,), each once
    requested: NDArray[np.int64]  # (resources, m)
    cards: NDArray[np.uint16] | None  # (m, slots); None: no node has cards
    card_masks: NDArray[np.uint16]  # (pods,): the cards of each committed pod, a bit for each slot
    runs: tuple[PodRun, ...]  # the committed pods by group

    @property
    def committed(self) -> NDArray[np.bool_]:
        """Which pods were committed: (pods,)."""
        found: NDArray[np.bool_] = self.codes == Verdict.COMMITTED
        return found


class PodRules:
    """What a ledger knows of pods beyond their amounts: the host ports that they hold on their nodes, and the
    placements that rules of other pods look at, by the ledger's own rules (resolver/core). One shard."""

    def __init__(self, pool: FeedUpdate) -> None:
        """`pool`: the snapshot that workers start from."""
        labels = {index: dict(spec.labels) for index, spec in pool.specs if spec is not None}
        self._constraints = DomainConstraints(labels=labels)
        self._ports: dict[int, Counter[Claim]] = {}  # by node, how many pods hold each
        self._first_seq = pool.seq

    def register(self, group: PodGroup, ledger: AccountColumns) -> None:
        """Pods of the group come: from now on, placements that concern its rules are recorded."""
        book = self._constraints.book
        if missing := book.missing((_ledger_group(group),)):
            book.register(missing, ledger.seq)

    def begin(self, proposal: Proposed, worker: int) -> Proposal:
        """Begin to decide a worker's proposal: what the ledger is told of it."""
        self._constraints.begin()
        return Proposal(
            str(worker),
            worker + 1,
            proposal.snapshot_seq - self._first_seq,
            proposal.uids,
            proposal.slots,
            proposal.candidates,
            proposal.requests,
            proposal.priorities,
            proposal.attempts,
            proposal.devices,
            groups=tuple(map(_ledger_group, proposal.groups)),
            firsts=() if proposal.firsts is None else tuple(proposal.firsts.tolist()),
        )

    def concern(self, group: Group | None) -> bool:
        """Whether anything but room decides on pods of the group."""
        return group is not None and bool(group.ports or self._constraints.book.constraints(group))

    def commit(
        self, ledger: AccountColumns, proposal: Proposal, position: int, masks: NDArray[np.uint16]
    ) -> tuple[Verdict, int]:
        """Decide on one pod: the verdict, and its node or else its first candidate. `masks`: (pods,), takes
        its cards."""
        slot = int(proposal.slots[position])
        ranked = proposal.nodes[position].astype(np.int32).tolist()  # NONE_U32 becomes -1
        # The worker counts on the node it chose: a pod that rules concern gets no alternate.
        query = self._constraints.query(proposal, position)
        first: Verdict | None = None
        for node in ranked[: 1 if query else None]:
            if node < 0:
                break
            refused = self._refusal(ledger, proposal, slot, node)
            if refused is None:
                here = masks[position : position + 1]
                if _commit_run(ledger, proposal, slot, np.array([[node]]), here)[0][0]:
                    self._placed(proposal, position, node, ledger.seq)
                    return Verdict.COMMITTED, node
                refused = Verdict.CONFLICT_DEVICE
            first = first or refused
        if query:
            self._constraints.record_refused(query)
        return first or Verdict.CONFLICT_RESOURCE, ranked[0]

    def _refusal(self, ledger: AccountColumns, proposal: Proposal, slot: int, node: int) -> Verdict | None:
        """Why the node refuses the pod, whatever cards it has left."""
        room = ledger.allocatable[:, [node]], ledger.requested[:, [node]]
        if not fits(*room, proposal.requests[slot]).all():
            return Verdict.CONFLICT_RESOURCE
        group = proposal.groups[slot]
        held = self._ports.get(node, ())
        if group is not None and any(clash(claim, other) for claim in group.ports for other in held):
            return Verdict.CONFLICT_PORT
        if self._constraints.unknown_to(proposal, slot, node, ledger.seq + 1):
            return Verdict.CONFLICT_TOPOLOGY
        return None

    def _placed(self, proposal: Proposal, position: int, node: int, seq: int) -> None:
        query = self._constraints.query(proposal, position, node, seq)
        if query:
            self._constraints.record_placed(query, proposal.epoch)
        group = proposal.groups[int(proposal.slots[position])]
        if group is not None and group.ports:
            self._ports.setdefault(node, Counter()).update(group.ports)

    def saved(self) -> Callable[[], None]:
        """What takes all placements back that are recorded from now on."""
        versions = self._constraints.copied_versions()
        ports = {node: held.copy() for node, held in self._ports.items()}

        def restore() -> None:
            self._constraints.versions, self._ports = versions, ports

        return restore

    def release(self, group: PodGroup, nodes: NodeIndexes) -> None:
        """Pods of the group have left these nodes, one for each."""
        ports = _ledger_group(group).ports
        for node in nodes.tolist() if ports else ():
            self._ports[node] -= Counter(ports)


def _ledger_group(group: PodGroup) -> Group:
    return ledger_group_of(definition_of(group))


def ledger_of(pool: FeedUpdate) -> AccountColumns:
    """The ledger of a pool's nodes, with nothing reserved."""
    accounts = pool.accounts
    cards = None
    if len(accounts.cards):
        cards = np.full((len(accounts.indexes), CARD_SLOTS), NO_CARD, np.uint16)
        cards[accounts.card_indexes] = accounts.cards
    return AccountColumns(np.ascontiguousarray(accounts.records["amounts"][:, :, 0].T), cards)


def decide(
    ledger: AccountColumns, proposal: Proposed, rules: PodRules | None = None, worker: int = 0
) -> SimulatedVerdict:
    """Decide a proposal of a worker, run by run of equal pods, and commit what fits, or nothing where that is
    less than the minimum of its gang. `rules`: they decide as well; None: pods have none."""
    candidates = proposal.candidates.astype(np.int32).astype(np.intp)  # NONE_U32 becomes -1
    codes, nodes = np.full(len(candidates), Verdict.COMMITTED, np.uint8), candidates[:, 0].copy()
    masks = np.zeros(len(candidates), np.uint16)
    runs: list[PodRun] = []
    saved = _saved(ledger, rules) if proposal.gang_minimum else None
    known = None if rules is None else rules.begin(proposal, worker)
    ends = [*(np.flatnonzero(np.diff(proposal.slots)) + 1).tolist(), len(candidates)]
    for first, end in pairwise((0, *ends)):
        slot, run = int(proposal.slots[first]), slice(first, end)
        if rules is not None and known is not None and rules.concern(known.groups[slot]):
            for position in range(first, end):
                codes[position], nodes[position] = rules.commit(ledger, known, position, masks)
        else:
            taken, nodes[run] = _commit_run(ledger, proposal, slot, candidates[run], masks[run])
            codes[run][~taken] = Verdict.CONFLICT_RESOURCE
        runs.append(PodRun(proposal.groups[slot], nodes[run][codes[run] == Verdict.COMMITTED]))
    committed = codes == Verdict.COMMITTED
    refusing = np.unique(candidates[~committed])
    refusing = refusing[refusing >= 0]
    if saved is not None and np.count_nonzero(committed) < proposal.gang_minimum:
        saved()
        codes[committed], committed, runs = Verdict.GANG_ABORTED, np.zeros_like(committed), []
    seq = ledger.seq if committed.any() else 0
    requested, cards = ledger.requested[:, refusing], _cards(ledger, refusing)
    return SimulatedVerdict(seq, ledger.seq, codes, nodes, refusing, requested, cards, masks, tuple(runs))


def _saved(ledger: AccountColumns, rules: PodRules | None) -> Callable[[], None]:
    """What takes all back that is committed from now on."""
    accounts, placements = ledger.saved(), None if rules is None else rules.saved()

    def restore() -> None:
        ledger.restore(accounts)
        if placements is not None:
            placements()

    return restore


def _commit_run(
    ledger: AccountColumns,
    proposal: Proposed | Proposal,
    slot: int,
    ranked: NDArray[np.intp],
    masks: NDArray[np.uint16],
) -> tuple[NDArray[np.bool_], NodeIndexes]:
    """Commit pods of one slot where there is room: which were, and their nodes. `masks`: (pods,), takes the
    cards that they got."""
    request = proposal.requests[slot]
    count, milli = (0, 0) if proposal.devices is None else proposal.devices[slot].tolist()
    if not count:
        return ledger.commit_ranked(ranked, request)
    taken, nodes, masks[:] = ledger.commit_ranked_with_cards(ranked, request, count, milli)
    return taken, nodes


def feed_entry(
    ledger: AccountColumns, shard: int, nodes: NodeIndexes, runs: tuple[PodRun, ...] = ()
) -> Entry:
    """The entry of the latest commit, of a pod on each of these nodes."""
    distinct = np.unique(nodes)
    requested, cards = ledger.requested[:, distinct], _cards(ledger, distinct)
    return Entry(shard, ledger.seq, len(nodes), distinct, requested, cards, runs)


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
            gang=GangInHand(work.gang, work.gang_minimum) if work.gang_minimum else None,
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
            update = FeedUpdate(shard, self._first_seq + seq, accounts, pods=_joined(entries))
            self._scheduler.cache.apply_feed(update)
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
        fresh = self._accounts(ledger, verdict.refusing, verdict.requested, verdict.cards, verdict.as_of)
        none = np.empty(0, np.uint64)
        seq = verdict.seq and self._first_seq + verdict.seq
        nodes = verdict.nodes.astype(np.uint32)
        answer = Verdicts(seq, verdict.codes, nodes, none, fresh, self._first_seq + verdict.as_of)
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


def _joined(entries: Iterable[Entry]) -> tuple[PodRun, ...]:
    """The pods of these entries by group. Those that came are before those that left, of which some came in
    an earlier entry of the same ones."""
    nodes: dict[tuple[bool, PodGroup], list[NodeIndexes]] = {}
    for entry in entries:
        for run in entry.runs:
            nodes.setdefault((run.gone, run.group), []).append(run.nodes)
    return tuple(
        PodRun(group, np.concatenate(on), gone=gone)
        for (gone, group), on in sorted(nodes.items(), key=lambda item: item[0][0])
    )


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
