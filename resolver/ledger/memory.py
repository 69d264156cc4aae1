"""A ledger in this process's memory, made of resolver.core.arbiter. For tests and simulation; nothing is
durable.

It can be lost as one in Redis can: `roll_back` takes a shard to any earlier state, `empty` loses everything.
A MemoryLedger is what one resolver has of it; `another` is what a second resolver has of the same ledger."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from itertools import count
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from hoss.model.resources import BASE_RESOURCES, ResourceSchema
from hoss.wire.columns import CARDS, FLAG_GONE, FLAG_QUARANTINED, NONE_U32, U32, Uids, account_dtype
from hoss.wire.uids import UID_BYTES
from resolver.core.accounts import Account
from resolver.core.arbiter import Arbiter, uid_bytes
from resolver.core.commits import UnconfirmedCommits
from resolver.core.moves import MoveResult, Moves, sources_by_shard
from resolver.core.rules import PlacementRule, RuleQuery, registered_later
from resolver.core.serving import Ruling
from resolver.core.shard import (
    Caller,
    OtherLedgerError,
    ShardChange,
    SupersededError,
    WentBackError,
    group_runs,
)
from resolver.core.values import (
    ANYBODY,
    CONFLICT,
    AccountRows,
    Decision,
    DispatcherMarks,
    FeedEntry,
    Group,
    Leases,
    LedgerNodeChange,
    Position,
    Proposal,
    Removed,
    Reservations,
    ReservationState,
    ShardState,
    Snapshot,
    Upserted,
    Verdict,
    Writer,
    reservation_dtype,
)
from resolver.ledger.port import LedgerSummary
from resolver.ledger.scripts import lost_changes, other_ledger, superseded

_LOOKUP = np.dtype([("node", "<u4"), ("seq", "<u8"), ("epoch", "<u8"), ("state", "u1")])


class MemoryLedger:
    """Implements resolver.ledger.port.Ledger. `now_ms`: the clock for leases."""

    def __init__(
        self, shards: int, now_ms: Callable[[], int], *, lease_ms: int = 30_000, prepare_ms: int = 5_000
    ) -> None:
        self.epoch = "memory"
        self.shards = shards
        self.arbiters = [Arbiter(shard, shards) for shard in range(shards)]
        for arbiter in self.arbiters:
            arbiter.epoch = self.epoch
        self.leases_ended = [0] * shards
        self.damaged_commits: list[list[str]] = [[] for _ in range(shards)]
        self.unfinished_moves = [0] * shards
        self._known = [Position(0)] * shards  # the highest position of each shard that this resolver knows
        self._calls = count(1)  # of all resolvers: for nonces
        self._now_ms = now_ms
        self._leases = Leases(lease_ms, prepare_ms)
        self._epochs = count(1)
        self._grants: dict[int, str] = {}
        self._schema = ResourceSchema(list(BASE_RESOURCES))

    def another(self) -> "MemoryLedger":
        """The same ledger, as another resolver has it that knows nothing of it yet."""
        other = copy(self)
        other.adopt(self.epoch)
        return other

    def adopt(self, epoch: str) -> None:
        """Continue with the whole ledger of this epoch. Nothing that was known of another ledger counts."""
        self.epoch = epoch
        self.leases_ended, self._known = [0] * self.shards, [Position(0)] * self.shards
        self.unfinished_moves = [0] * self.shards

    # -- what may happen to it

    def checkpoint(self, shard: int) -> Arbiter:
        """The shard as it is now, for `roll_back`."""
        return deepcopy(self.arbiters[shard])

    def roll_back(self, shard: int, checkpoint: Arbiter) -> None:
        """The shard loses every change since the checkpoint, acknowledged ones too."""
        self.arbiters[shard] = deepcopy(checkpoint)

    def damage(self, shard: int, uid: bytes, record: bytes) -> None:
        """A pod's reservation becomes something that cannot be read."""
        self.arbiters[shard].reservations.pop(uid)
        self.arbiters[shard].unreadable[uid] = record

    def damage_account(self, shard: int, node: int, record: bytes) -> None:
        """A node's account becomes something that cannot be read."""
        del self.arbiters[shard].accounts[node]
        self.arbiters[shard].damaged_accounts[node] = record

    def damage_labels(self, shard: int, node: int, record: bytes) -> None:
        """A node's labels become something that cannot be read."""
        self.arbiters[shard].constraints.labels.pop(node, None)
        self.arbiters[shard].constraints.damaged_labels[node] = record

    def empty(self) -> None:
        """Every shard is lost."""
        self.arbiters[:] = [Arbiter(shard, self.shards) for shard in range(self.shards)]

    # -- pods

    async def commit(self, shard: int, proposals: Sequence[Proposal]) -> list[Decision]:
        decisions = []
        for proposal in proposals:
            arbiter = self._admitted(shard)
            books = [self.arbiters[of_shard].constraints.book for of_shard in {shard, 0}]
            self._register(
                {key: rule for book in books for key, rule in book.missing(proposal.groups).items()}
            )
            before = arbiter.seq
            self._admits(shard)
            deadline_ms = arbiter.leases.now(self._now_ms()) + self._leases.of(
                prepared=arbiter.must_prepare(proposal), asked_ms=proposal.lease_ms
            )
            rulings, refusing = arbiter.commit(proposal, deadline_ms=deadline_ms)
            decisions.append(
                self._decision(
                    shard, 0 if arbiter.seq == before else arbiter.seq, rulings, refusing, proposal
                )
            )
            self._knows(shard)
        return decisions

    def _decision(
        self, shard: int, seq: int, rulings: list[Ruling], refusing: list[int], proposal: Proposal
    ) -> Decision:
        conflicts = [
            (position, ruling.node, ruling.refusal.resource, ruling.refusal.asked, ruling.refusal.free)
            for position, ruling in enumerate(rulings)
            if ruling.refusal is not None
        ]
        queries = (
            tuple(ruling.query for ruling in rulings) if self.shards > 1 and not proposal.unchecked else ()
        )
        return Decision(
            seq=seq,
            verdicts=np.array([ruling.verdict for ruling in rulings], np.uint8),
            nodes=np.array([ruling.node for ruling in rulings], U32),
            conflicts=np.array(conflicts, CONFLICT),
            duplicate_seqs=np.array([r.seq for r in rulings if r.verdict is Verdict.DUPLICATE], np.uint64),
            fresh=self._rows(
                shard, refusing, cards=proposal.devices is not None, accounts=self._shown_accounts(shard)
            ),
            as_of=self.arbiters[shard].seq,
            queries=queries if any(query is not None for query in queries) else (),
            prepared=self.shards > 1
            and any(ruling.verdict in (Verdict.COMMITTED, Verdict.DUPLICATE) for ruling in rulings)
            and self.arbiters[shard].must_prepare(replace(proposal, prepared=False)),
        )

    def _register(self, rules: dict[int, PlacementRule]) -> None:
        for shard in range(self.shards) if rules else ():
            self._admitted(shard).register(rules, again=shard > 0)

    async def register_rules(self, groups: Sequence[Group]) -> list[int]:
        books = [self._admitted(shard).constraints.book for shard in range(self.shards)]
        self._register({key: rule for book in books for key, rule in book.missing(groups).items()})
        return [book.newest(groups) for book in books]

    async def validate(
        self, queries: Sequence[RuleQuery], *, epoch: int, seen: Sequence[int], may_refuse: int
    ) -> list[tuple[int, int] | None]:
        books = [self._admitted(shard).constraints.book for shard in range(self.shards)]
        relied_on = {g.key: g.registered.rule for q in queries for g in q.constraints if g.relies_on}
        self._register(
            {key: rule for key, rule in relied_on.items() if any(key not in book.rules for book in books)}
        )
        early = [registered_later(query, books, seen) for query in queries]
        asked = [replace(q, domains=()) if at else q for q, at in zip(queries, early, strict=True)]
        may_refuse -= sum(at is not None for at in early)
        unknown = self.arbiters[0].constraints.validate(asked, epoch=epoch, seen=seen, may_refuse=may_refuse)
        return [first or second for first, second in zip(early, unknown, strict=True)]

    async def forget_rules(self, low_watermarks: Sequence[int]) -> int:
        for shard in range(self.shards):
            self._admitted(shard).constraints.raise_low_watermarks(low_watermarks)
        constraints = self.arbiters[0].constraints
        constraints.forget_versions(list(constraints.versions))
        unused = list(constraints.book.rules)
        for shard, low_watermark in enumerate(low_watermarks):
            # What was registered again on another shard is about to be used, and stays there.
            forgotten = self._admitted(shard).forget_rules(unused, low_watermark)
            unused = forgotten if shard == 0 else unused
        return len(unused)

    async def release(
        self, shard: int, uids: Uids, writer: Writer = ANYBODY, *, as_of: int | None = None
    ) -> int:
        if not self._admits(shard, writer):
            return 0
        return len(self.arbiters[shard].release(uid_bytes(uids), as_of=as_of))

    async def confirm(self, shard: int, seqs: NDArray[np.uint64], writer: Writer = ANYBODY) -> int:
        if not self._admits(shard, writer):
            return 0
        confirmed = self.arbiters[shard].confirm(seqs.tolist())
        self._knows(shard)
        return confirmed

    def _admits(self, shard: int, writer: Writer = ANYBODY) -> bool:
        """Whether the writer may change the shard; False: its epoch is fenced. Raises LedgerUnavailable."""
        caller = Caller(self.epoch, self._known[shard], f"{next(self._calls):012x}", writer)
        try:
            return self.arbiters[shard].admit(caller)
        except SupersededError as exc:
            raise superseded(exc.term) from exc
        except OtherLedgerError as exc:
            raise other_ledger(exc.epoch) from exc
        except WentBackError as exc:
            raise lost_changes(exc.seq, exc.known_seq) from exc

    def _admitted(self, shard: int) -> Arbiter:
        """The shard, for a call that anybody may make."""
        self._admits(shard)
        return self.arbiters[shard]

    def _read(self, shard: int, *, incomplete: bool = False) -> Arbiter:
        """The shard, to be read at one moment. `incomplete`: also of a ledger that waits to be rebuilt."""
        arbiter = self.arbiters[shard]
        if arbiter.epoch == self.epoch or not incomplete:
            self._admits(shard)
            self._knows(shard)
        return arbiter

    def _knows(self, shard: int) -> None:
        arbiter = self.arbiters[shard]
        if arbiter.seq > self._known[shard].seq:
            self._known[shard] = Position(arbiter.seq, arbiter.nonce)

    async def commit_prepared(
        self, shard: int, uids: Uids, seqs: NDArray[np.uint64], writer: Writer, *, lease_ms: int = 0
    ) -> NDArray[np.uint64]:
        if not self._admits(shard, writer):
            return np.zeros(len(uids), np.uint64)
        lasts_ms = lease_ms or self._leases.commit_ms
        deadline_ms = self.arbiters[shard].leases.now(self._now_ms()) + lasts_ms
        committed = self.arbiters[shard].commit_prepared(
            uid_bytes(uids), seqs.tolist(), deadline_ms=deadline_ms
        )
        return np.array(committed, np.uint64)

    async def renew(
        self, shard: int, uids: Uids, seqs: NDArray[np.uint64], writer: Writer, *, lease_ms: int
    ) -> NDArray[np.bool_]:
        if not self._admits(shard, writer):
            return np.zeros(len(uids), np.bool_)
        deadline_ms = self.arbiters[shard].leases.now(self._now_ms()) + lease_ms
        held = self.arbiters[shard].renew(uid_bytes(uids), seqs.tolist(), deadline_ms=deadline_ms)
        return np.array(held, np.bool_)

    async def abort(self, shard: int, uids: Uids, seqs: NDArray[np.uint64], writer: Writer) -> int:
        if not self._admits(shard, writer):
            return 0
        return len(self.arbiters[shard].release(uid_bytes(uids), seqs.tolist(), unconfirmed=True))

    async def confirm_moves(self, shard: int, moves: Moves, writer: Writer) -> NDArray[np.uint8]:
        if not self._admits(shard, writer):
            return np.full(len(moves), MoveResult.FENCED, np.uint8)
        return np.array(self.arbiters[shard].confirm_moves(moves), np.uint8)

    async def finish_moves(self, shard: int) -> int:
        noted, released = dict(self._read(shard).moved), 0
        for of_shard, (uids, seqs) in sources_by_shard(noted, self.shards).items():
            released += len(self._admitted(of_shard).release(uid_bytes(uids), seqs.tolist()))
        self._admitted(shard).forget_moved(noted)
        return released

    async def reservations_of(self, shard: int, uids: Uids) -> Reservations:
        self._read(shard)
        found, asked = self._reservations(shard), set(uid_bytes(uids))
        return found.of(np.array([uid in asked for uid in uid_bytes(found.uids)], np.bool_))

    async def reap(self, shard: int) -> int:
        reaped, more = 0, True
        while more:
            released, more = self._admitted(shard).reap(self._now_ms())
            reaped += released
        self.leases_ended[shard] = self.arbiters[shard].leases_ended
        self.unfinished_moves[shard] = len(self.arbiters[shard].moved)
        return reaped

    async def leases(self, shard: int, seqs: NDArray[np.uint64]) -> NDArray[np.int64]:
        arbiter, clock_ms = self._read(shard, incomplete=True), self._now_ms()
        behind_ms = clock_ms - arbiter.leases.now(clock_ms)
        found = np.zeros((len(seqs), 2), np.int64)
        for row, seq in enumerate(seqs.tolist()):
            if seq in arbiter.pending:
                ends_ms = arbiter.pending[seq][0] + behind_ms
                since_ms = ends_ms - self._leases.of(prepared=arbiter.prepared.open(seq))
                found[row] = min(since_ms, clock_ms), ends_ms  # a lease may be a longer one
        return found

    async def workers_of(self, epochs: Sequence[int]) -> dict[int, str]:
        return {epoch: self._grants[epoch] for epoch in epochs if epoch in self._grants}

    async def lookup(self, shard: int, uids: Uids) -> NDArray[Any]:
        arbiter, none = self._admitted(shard), (NONE_U32, 0, 0, ReservationState.NONE)
        held = arbiter.look_up(uid_bytes(uids))
        found = [(h.node, h.seq, h.epoch, arbiter.state_of(h)) if h else none for h in held]
        return np.array(found, _LOOKUP)

    async def nominated(self, shard: int, uids: Uids) -> NDArray[np.bool_]:
        nominated = self._read(shard).nominated
        return np.array([uid in nominated for uid in uid_bytes(uids)], np.bool_)

    async def definitions(self, shard: int, uids: Uids) -> list[bytes]:
        arbiter = self._read(shard)
        arbiter.set_aside(uid_bytes(uids))
        reservations = arbiter.reservations  # only read: `look_up` would abort what is fenced
        held = [reservations.get(uid) for uid in uid_bytes(uids)]
        return [h.group.definition if h is not None and h.group is not None else b"" for h in held]

    async def grant(self, worker: str, writer: Writer = ANYBODY) -> int:
        for shard in range(self.shards):
            self._admits(shard, writer)
        epoch = next(self._epochs)
        self._grants[epoch] = worker
        for arbiter in self.arbiters:
            arbiter.grant(worker, epoch)
        return epoch

    async def upsert_nodes(
        self,
        shard: int,
        nodes: Sequence[LedgerNodeChange],
        expected: bytes = b"",
        writer: Writer = ANYBODY,
    ) -> Upserted | None:
        self._admits(shard, writer)
        upserted = self.arbiters[shard].upsert(nodes, expected)
        if upserted is None:
            return None
        return Upserted(self.arbiters[shard].seq, np.array(upserted[0], U32), upserted[1])

    async def remove_nodes(self, shard: int, names: Sequence[str], writer: Writer = ANYBODY) -> Removed:
        self._admits(shard, writer)
        removed = self.arbiters[shard].remove(names)
        nodes = dict.fromkeys(
            (*removed.nodes, *removed.before)
        )  # in the order in which their indexes get free
        return Removed(self._release_nodes(shard, nodes, writer), removed.missing)

    async def removals(self, shard: int) -> set[int]:
        return set(self._read(shard).removed)

    async def forget_removed(self, shard: int, nodes: Iterable[int]) -> int:
        removed = dict.fromkeys(sorted(self._read(shard).removed.keys() & set(nodes)))
        self._release_nodes(shard, removed, ANYBODY)
        return len(removed.keys() - self.arbiters[shard].removed.keys())

    def _release_nodes(self, shard: int, nodes: Mapping[int, None], writer: Writer) -> Uids:
        """Release what is reserved on removed nodes, and forget them. Returns the released pods."""
        arbiter = self.arbiters[shard]
        held = [uid for uid, reservation in arbiter.reservations.items() if reservation.node in nodes]
        self._admits(shard, writer)
        released = arbiter.release(held)
        self._admits(shard, writer)
        arbiter.forget_nodes(list(nodes))
        return np.frombuffer(b"".join(released), np.uint8).reshape(-1, UID_BYTES)

    async def nonce_at(self, shard: int, seq: int) -> str:
        return next((c.nonce for c in self.arbiters[shard].changes_after(seq - 1) if c.seq == seq), "")

    async def node_indexes(self, shard: int, names: Sequence[str]) -> NDArray[np.uint32]:
        return np.array([self._read(shard).names.get(name, NONE_U32) for name in names], U32)

    async def schema(
        self,
        names: Sequence[str] = (),
        *,
        incomplete: bool = False,  # noqa: ARG002 - a schema in memory is never lost
    ) -> list[str]:
        self._schema.extend(names)
        return list(self._schema.names)

    async def seq(self, shard: int) -> int:
        return self._read(shard).seq

    async def snapshot(self, shard: int, *, groups: bool = False, incomplete: bool = False) -> Snapshot:
        arbiter = self._read(shard, incomplete=incomplete)
        if groups:
            arbiter.set_aside(list(arbiter.unreadable))
        accounts = self._shown_accounts(shard)
        live = [node for node, account in accounts.items() if not account.has(FLAG_GONE)]
        visible = (held for held in arbiter.reservations.values() if not arbiter.prepared.open(held.seq))
        runs = group_runs(visible, gone=False) if groups else ()
        rows = self._rows(shard, sorted(live), accounts=accounts)
        prepared = arbiter.prepared.under_way()
        return Snapshot(arbiter.seq, rows, dict(arbiter.specs), runs, prepared, arbiter.nonce)

    async def node_names(self, shard: int) -> list[str]:
        return list(self._read(shard).names)

    async def snapshot_of(self, shard: int, names: Sequence[str]) -> Snapshot:
        arbiter = self._read(shard)
        nodes = {arbiter.names[name] for name in names if name in arbiter.names}
        accounts = self._shown_accounts(shard)
        live = sorted(node for node in nodes if not accounts[node].has(FLAG_GONE))
        specs = {node: arbiter.specs[node] for node in live}
        return Snapshot(arbiter.seq, self._rows(shard, live, accounts=accounts), specs, nonce=arbiter.nonce)

    def _shown_accounts(self, shard: int) -> dict[int, Account]:
        """With a blank account in the place of each damaged one."""
        arbiter = self.arbiters[shard]
        return arbiter.accounts | {
            node: Account(
                born=0, seq=arbiter.seq, flags=FLAG_QUARANTINED if arbiter.is_damaged(node) else FLAG_GONE
            )
            for node in arbiter.damaged_accounts
        }

    async def nodes_named(self, shard: int, names: Sequence[str]) -> dict[str, tuple[int, bytes]]:
        arbiter = self._read(shard)
        known = {name: arbiter.names[name] for name in names if name in arbiter.names}
        return {
            name: (index, arbiter.specs[index]) for name, index in known.items() if index in arbiter.specs
        }

    async def state(self, shard: int) -> ShardState:
        arbiter = self._read(shard, incomplete=True)
        accounts, prepared = self._shown_accounts(shard), arbiter.prepared.under_way()
        rows = self._rows(shard, sorted(accounts), accounts=accounts)
        snapshot = Snapshot(arbiter.seq, rows, dict(arbiter.specs), prepared=prepared, nonce=arbiter.nonce)
        ports = {node: list(account.ports) for node, account in arbiter.accounts.items() if account.ports}
        pods = Counter(held.group for held in arbiter.reservations.values() if held.group is not None)
        groups = {group.key: (group.definition, count) for group, count in pods.items()}
        clock_ms = self._now_ms()
        commits = UnconfirmedCommits(
            frozenset(arbiter.pending),
            {seq: deadline_ms for seq, (deadline_ms, _) in arbiter.pending.items()},
            arbiter.prepared.pods(),
            now_ms=arbiter.leases.now(clock_ms),
            unreaped_ms=0 if arbiter.leases.time_ms is None else clock_ms - arbiter.leases.seen_ms,
        )
        shares = {uid: (share.preemptor, share.requests) for uid, share in arbiter.terminating.items()}
        held = self._reservations(shard)
        moved, damaged = dict(arbiter.moved), dict(arbiter.damaged)
        odd = {node.to_bytes(4, "little"): record for node, record in arbiter.damaged_accounts.items()}
        labels = {node: msgpack.packb(of) for node, of in arbiter.constraints.labels.items() if of}
        labels |= arbiter.constraints.damaged_labels
        return ShardState(
            snapshot,
            held,
            ports,
            groups,
            commits,
            moved,
            shares,
            damaged,
            odd,
            labels={node.to_bytes(4, "little"): record for node, record in labels.items()},
        )

    async def damaged_versions(self, shard: int) -> dict[bytes, bytes]:
        self._read(shard, incomplete=True)
        return {}

    async def reservations(self, shard: int) -> AsyncIterator[Reservations]:
        self._read(shard, incomplete=True)
        yield self._reservations(shard)

    async def is_registered(self, shard: int, worker: str) -> bool:
        return worker in self._read(shard).workers

    async def assumed(self, shard: int, nodes: NDArray[np.uint32]) -> Reservations:
        self._read(shard)
        found = self._reservations(shard)
        here = found.assumed & np.isin(found.records["node"], nodes)
        return Reservations(found.uids[here], found.records[here], found.assumed[here], found.resources)

    def _reservations(self, shard: int) -> Reservations:
        arbiter, resources = self.arbiters[shard], len(self._schema)
        arbiter.set_aside(list(arbiter.unreadable))
        records = np.zeros(len(arbiter.reservations), reservation_dtype(resources))
        for row, held in zip(records, arbiter.reservations.values(), strict=True):
            for name in ("node", "card_mask", "card_milli", "seq", "epoch", "priority", "attempt"):
                row[name] = getattr(held, name)
            row["requests"][: len(held.requests)] = held.requests
            if held.group is not None:
                row["group"] = held.group.key
            row["flags"] = held.flags
        uids = np.frombuffer(b"".join(arbiter.reservations), np.uint8).reshape(-1, UID_BYTES)
        assumed = np.isin(records["seq"], list(arbiter.pending))
        prepared = np.isin(records["seq"], list(arbiter.prepared.under_way()))
        return Reservations(uids, records, assumed, resources, prepared)

    async def feed(self, shard: int, after: int, wait_ms: int) -> list[FeedEntry] | None:
        if self.arbiters[shard].seq <= after:
            await asyncio.sleep(wait_ms / 1000)
        changes = self.arbiters[shard].changes_after(after)
        if not changes:
            return []
        self._knows(shard)
        # Up to a gap: after it a follower needs a snapshot.
        return [self._entry(shard, c) for place, c in enumerate(changes, after + 1) if c.seq == place] or None

    async def summary(self) -> LedgerSummary:
        found = LedgerSummary()
        for shard in range(self.shards):
            arbiter = self._read(shard)
            found.nodes += len(arbiter.specs)
            found.reservations += len(arbiter.reservations)
            found.marks = found.marks.newest(DispatcherMarks(arbiter.term, arbiter.journal))
            found.quarantined |= arbiter.quarantine
        return found

    async def table_sizes(self) -> dict[str, int]:
        summary = await self.summary()
        evictions = {
            "terminating": sum(len(arbiter.terminating) for arbiter in self.arbiters),
            "nominated": sum(len(arbiter.nominated) for arbiter in self.arbiters),
            "damaged": sum(len(arbiter.damaged) for arbiter in self.arbiters),
        }
        fullest = max(len(arbiter.reservations) for arbiter in self.arbiters)
        return {
            "names": summary.nodes,
            "reservations": summary.reservations,
            "fullest_shard": fullest,
            "grants": len(self._grants),
            **evictions,
        }

    async def check(self) -> dict[str, str]:
        for shard in range(self.shards):
            self._read(shard)
        return {"mode": "memory"}

    def _entry(self, shard: int, change: ShardChange) -> FeedEntry:
        return FeedEntry(
            change.seq,
            self._rows(shard, change.nodes, accounts=change.accounts),
            change.specs,
            change.removed,
            change.released,
            change.runs,
            change.evictions,
            change.prepared,
            change.ended,
            change.epoch,
            change.nonce,
        )

    def _rows(
        self,
        shard: int,
        nodes: Sequence[int],
        *,
        cards: bool = True,
        accounts: Mapping[int, Account] | None = None,
    ) -> AccountRows:
        """`accounts`: as they were then; None: as they are."""
        resources = len(self._schema)
        accounts = self.arbiters[shard].accounts if accounts is None else accounts
        records = np.zeros(len(nodes), account_dtype(resources))
        for row, node in zip(records, nodes, strict=True):
            account = accounts[node]
            row["seq"], row["born"], row["flags"] = account.seq, account.born, account.flags
            row["described"] = account.described & 0xFFFFFFFF
            row["amounts"][: len(account.allocatable), 0] = account.allocatable
            row["amounts"][: len(account.requested), 1] = account.requested
        with_cards = [node for node in nodes if cards and accounts[node].cards]
        return AccountRows(
            resources,
            np.array(nodes, U32).tobytes(),
            records.tobytes(),
            np.array(with_cards, U32).tobytes(),
            np.array([accounts[node].cards for node in with_cards], CARDS.base).tobytes(),
        )
