"""A ledger in this process's memory: resolver.core.arbiter behind the port. For tests and simulation; nothing survives."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.model.resources import BASE_RESOURCES, ResourceSchema
from hoss.wire.account import CARDS, FLAG_GONE, account_dtype
from hoss.wire.columns import NONE_U32, U32, UID_BYTES, Uids
from resolver.core.arbiter import Arbiter, uid_bytes
from resolver.core.rules import Question, Rule, unborn
from resolver.core.serving import Ruling
from resolver.core.shard import Change, group_runs
from resolver.core.values import (
    CONFLICT,
    AccountRows,
    Decision,
    FeedEntry,
    Group,
    Leases,
    NodeChange,
    Proposal,
    Removed,
    Reservations,
    ShardState,
    Snapshot,
    Upserted,
    Verdict,
    reservation_dtype,
)

_LOOKUP = np.dtype([("node", "<u4"), ("seq", "<u8"), ("epoch", "<u8")])


class MemoryLedger:
    """See resolver.ledger.port.Ledger. `now_ms` is the clock that leases end by. Feed entries show accounts as they are now."""

    def __init__(self, shards: int, now_ms: Callable[[], int], *, lease_ms: int = 30_000, hold_ms: int = 5_000) -> None:
        self.epoch = "memory"
        self.shards = shards
        self.arbiters = [Arbiter(shard, shards) for shard in range(shards)]
        self._now_ms = now_ms
        self._leases = Leases(lease_ms, hold_ms)
        self._granted = 0
        self._grants: dict[int, str] = {}
        self._schema = ResourceSchema(list(BASE_RESOURCES))

    def heard_of(self, shard: int, seq: int) -> None:
        """Nothing here is ever lost."""

    async def commit(self, shard: int, proposals: Sequence[Proposal]) -> list[Decision]:
        decisions = []
        arbiter = self.arbiters[shard]
        for proposal in proposals:
            books = [self.arbiters[of_shard].guards.book for of_shard in {shard, 0}]
            self._register({key: rule for book in books for key, rule in book.missing(proposal.groups).items()})
            before = arbiter.seq
            deadline_ms = self._now_ms() + self._leases.of(held=arbiter.holds_back(proposal))
            rulings, refusing = arbiter.commit(proposal, deadline_ms=deadline_ms)
            decisions.append(
                self._decision(shard, 0 if arbiter.seq == before else arbiter.seq, rulings, refusing, proposal)
            )
        return decisions

    def _decision(
        self, shard: int, seq: int, rulings: list[Ruling], refusing: list[int], proposal: Proposal
    ) -> Decision:
        conflicts = [
            (position, ruling.node, ruling.refusal.resource, ruling.refusal.asked, ruling.refusal.free)
            for position, ruling in enumerate(rulings)
            if ruling.refusal is not None
        ]
        questions = tuple(ruling.question for ruling in rulings) if self.shards > 1 and not proposal.unchecked else ()
        return Decision(
            seq=seq,
            verdicts=np.array([ruling.verdict for ruling in rulings], np.uint8),
            nodes=np.array([ruling.node for ruling in rulings], U32),
            conflicts=np.array(conflicts, CONFLICT),
            duplicate_seqs=np.array([r.seq for r in rulings if r.verdict is Verdict.DUPLICATE], np.uint64),
            fresh=self._rows(shard, refusing, cards=proposal.devices is not None),
            as_of=self.arbiters[shard].seq,
            questions=questions if any(question is not None for question in questions) else (),
        )

    def _register(self, rules: dict[int, Rule]) -> None:
        for arbiter in self.arbiters if rules else ():
            arbiter.register(rules, again=arbiter.shard > 0)

    async def announce(self, groups: Sequence[Group]) -> list[int]:
        books = [arbiter.guards.book for arbiter in self.arbiters]
        self._register({key: rule for book in books for key, rule in book.missing(groups).items()})
        return [book.newest(groups) for book in books]

    async def judge(
        self, questions: Sequence[Question], *, epoch: int, seen: Sequence[int], spare: int
    ) -> list[tuple[int, int] | None]:
        books = [arbiter.guards.book for arbiter in self.arbiters]
        relied_on = {g.key: g.registered.rule for q in questions for g in q.guards if g.relies_on}
        self._register({key: rule for key, rule in relied_on.items() if any(key not in book.rules for book in books)})
        early = [unborn(question, books, seen) for question in questions]
        asked = [replace(q, domains=()) if at else q for q, at in zip(questions, early, strict=True)]
        spare -= sum(at is not None for at in early)
        told = self.arbiters[0].guards.judge(asked, epoch=epoch, seen=seen, spare=spare)
        return [first or second for first, second in zip(early, told, strict=True)]

    async def forget_rules(self, floors: Sequence[int]) -> int:
        for arbiter in self.arbiters:
            arbiter.guards.floors = tuple(map(max, arbiter.guards.floors, floors))
        guards = self.arbiters[0].guards
        guards.forget_stamps(guards.floors)
        unused = guards.unused_rules(floors)
        for arbiter, floor in zip(self.arbiters, floors, strict=True):
            known = arbiter.guards.book.rules
            # Registered anew since on this shard, it stays there: somebody is about to use it.
            forgotten = [key for key in unused if key in known and known[key].born <= floor]
            if forgotten:
                arbiter.forget_rules(forgotten)
        return len(unused)

    async def release(self, shard: int, uids: Uids) -> int:
        return len(self.arbiters[shard].release(uid_bytes(uids)))

    async def confirm(self, shard: int, seqs: NDArray[np.uint64]) -> int:
        return self.arbiters[shard].confirm(seqs.tolist())

    async def keep(self, shard: int, uids: Uids, seqs: NDArray[np.uint64]) -> NDArray[np.uint64]:
        deadline_ms = self._now_ms() + self._leases.commit_ms
        kept = self.arbiters[shard].keep(uid_bytes(uids), seqs.tolist(), deadline_ms=deadline_ms)
        return np.array(kept, np.uint64)

    async def withdraw(self, shard: int, uids: Uids, seqs: NDArray[np.uint64]) -> int:
        return len(self.arbiters[shard].release(uid_bytes(uids), seqs.tolist()))

    async def reap(self, shard: int) -> int:
        return self.arbiters[shard].reap(self._now_ms())

    async def leases(self, shard: int, seqs: NDArray[np.uint64]) -> NDArray[np.int64]:
        arbiter = self.arbiters[shard]
        found = np.zeros((len(seqs), 2), np.int64)
        for row, seq in enumerate(seqs.tolist()):
            if seq in arbiter.pending:
                ends_ms = arbiter.pending[seq][0]
                found[row] = ends_ms - self._leases.of(held=arbiter.holds.open(seq)), ends_ms
        return found

    async def workers_of(self, epochs: Sequence[int]) -> dict[int, str]:
        return {epoch: self._grants[epoch] for epoch in epochs if epoch in self._grants}

    async def lookup(self, shard: int, uids: Uids) -> NDArray[Any]:
        held = [self.arbiters[shard].reservations.get(uid) for uid in uid_bytes(uids)]
        return np.array([(h.node, h.seq, h.epoch) if h else (NONE_U32, 0, 0) for h in held], _LOOKUP)

    async def grant(self, worker: str) -> int:
        self._granted += 1
        self._grants[self._granted] = worker
        for arbiter in self.arbiters:
            arbiter.grant(worker, self._granted)
        return self._granted

    async def upsert_nodes(self, shard: int, nodes: Sequence[NodeChange], expected: bytes = b"") -> Upserted | None:
        upserted = self.arbiters[shard].upsert(nodes, expected)
        if upserted is None:
            return None
        return Upserted(self.arbiters[shard].seq, np.array(upserted[0], U32), upserted[1])

    async def remove_nodes(self, shard: int, names: Sequence[str]) -> Removed:
        uids, missing = self.arbiters[shard].remove(names)
        return Removed(np.frombuffer(b"".join(uids), np.uint8).reshape(-1, UID_BYTES), missing)

    async def node_indexes(self, shard: int, names: Sequence[str]) -> NDArray[np.uint32]:
        return np.array([self.arbiters[shard].names.get(name, NONE_U32) for name in names], U32)

    async def schema(self, names: Sequence[str] = (), *, left: bool = False) -> list[str]:  # noqa: ARG002 - never lost
        self._schema.extend(names)
        return list(self._schema.names)

    async def seq(self, shard: int) -> int:
        return self.arbiters[shard].seq

    async def snapshot(self, shard: int, *, groups: bool = False, left: bool = False) -> Snapshot:  # noqa: ARG002 - never lost
        arbiter = self.arbiters[shard]
        live = [node for node, account in arbiter.accounts.items() if not account.has(FLAG_GONE)]
        told = (held for held in arbiter.reservations.values() if not arbiter.holds.open(held.seq))
        runs = group_runs(told, gone=False) if groups else ()
        rows = self._rows(shard, sorted(live))
        return Snapshot(arbiter.seq, rows, dict(arbiter.specs), runs, arbiter.holds.under_way())

    async def nodes_named(self, shard: int, names: Sequence[str]) -> dict[str, tuple[int, bytes]]:
        arbiter = self.arbiters[shard]
        known = {name: arbiter.names[name] for name in names if name in arbiter.names}
        return {name: (index, arbiter.specs[index]) for name, index in known.items() if index in arbiter.specs}

    async def state(self, shard: int) -> ShardState:
        arbiter = self.arbiters[shard]
        rows, holds = self._rows(shard, sorted(arbiter.accounts)), arbiter.holds.under_way()
        snapshot = Snapshot(arbiter.seq, rows, dict(arbiter.specs), holds=holds)
        ports = {node: list(account.ports) for node, account in arbiter.accounts.items() if account.ports}
        pods = Counter(held.group for held in arbiter.reservations.values() if held.group is not None)
        groups = {group.key: (group.definition, count) for group, count in pods.items()}
        return ShardState(snapshot, self._reservations(shard), ports, groups)

    async def reservations(self, shard: int) -> AsyncIterator[Reservations]:
        yield self._reservations(shard)

    async def knows(self, shard: int, worker: str) -> bool:
        return worker in self.arbiters[shard].workers

    async def assumed(self, shard: int, nodes: NDArray[np.uint32]) -> Reservations:
        found = self._reservations(shard)
        here = found.assumed & np.isin(found.records["node"], nodes)
        return Reservations(found.uids[here], found.records[here], found.assumed[here], found.resources)

    def _reservations(self, shard: int) -> Reservations:
        arbiter, resources = self.arbiters[shard], len(self._schema)
        records = np.zeros(len(arbiter.reservations), reservation_dtype(resources))
        for row, held in zip(records, arbiter.reservations.values(), strict=True):
            for name in ("node", "card_mask", "card_milli", "seq", "epoch", "priority", "attempt"):
                row[name] = getattr(held, name)
            row["requests"][: len(held.requests)] = held.requests
            if held.group is not None:
                row["group"] = held.group.key
                row["flags"] = held.group.flags
        uids = np.frombuffer(b"".join(arbiter.reservations), np.uint8).reshape(-1, UID_BYTES)
        return Reservations(uids, records, np.isin(records["seq"], list(arbiter.pending)), resources)

    async def feed(self, shard: int, after: int, wait_ms: int) -> list[FeedEntry] | None:
        if self.arbiters[shard].seq <= after:
            await asyncio.sleep(wait_ms / 1000)
        return [self._entry(shard, change) for change in self.arbiters[shard].feed[after:]]

    async def counts(self) -> tuple[int, int]:
        nodes = sum(len(arbiter.specs) for arbiter in self.arbiters)
        return nodes, sum(len(arbiter.reservations) for arbiter in self.arbiters)

    async def check(self) -> dict[str, str]:
        return {"mode": "memory"}

    def _entry(self, shard: int, change: Change) -> FeedEntry:
        return FeedEntry(
            change.seq,
            self._rows(shard, change.nodes),
            change.specs,
            change.removed,
            change.released,
            change.runs,
            change.evictions,
            change.hold,
            change.ended,
            change.epoch,
        )

    def _rows(self, shard: int, nodes: Sequence[int], *, cards: bool = True) -> AccountRows:
        accounts, resources = self.arbiters[shard].accounts, len(self._schema)
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
