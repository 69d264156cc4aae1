"""One shard of the ledger as plain Python: the rules that the scripts follow, written for reading and not for speed.

The contract tests hold it and the scripts to the same verdicts and the same state; where they differ, this one is right.
Sequence numbers: every operation that changes anything takes the next one, and what it changed is one feed entry.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import insufficient, pick_cards
from hoss.wire.account import CARD_CLOSED, CARD_SLOTS, FLAG_GONE, FLAG_SHRUNK, FLAG_UNSCHEDULABLE, FLAGS_CLOSED, NO_CARD
from hoss.wire.columns import NONE_U32, U32, Uids, encode
from resolver.core.criteria import unaccepted_change
from resolver.core.guarding import DomainGuards
from resolver.core.ports import clash, port_number
from resolver.core.values import Eviction, Group, GroupRun, NodeChange, PortHold, Proposal, Verdict

Uid = bytes


@dataclass(slots=True)
class Account:
    """One node. `cards` is empty for a node that never had any, else CARD_SLOTS thousandths used."""

    born: int
    seq: int = 0
    flags: int = 0
    described: int = 0  # the seq at which the spec last changed
    allocatable: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    requested: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    cards: list[int] = field(default_factory=list)
    ports: list[PortHold] = field(default_factory=list)

    def widen(self, resources: int) -> None:
        """Make room for that many resources."""
        missing = resources - len(self.allocatable)
        if missing > 0:
            self.allocatable = np.pad(self.allocatable, (0, missing))
            self.requested = np.pad(self.requested, (0, missing))

    def has(self, flag: int) -> bool:
        """Whether the flag is set."""
        return bool(self.flags & flag)

    def mark(self, flag: int, wanted: bool) -> None:
        """Set or clear the flag."""
        self.flags = self.flags | flag if wanted else self.flags & ~flag

    def overcommitted(self) -> bool:
        """More is requested of some resource than there is."""
        return bool((self.requested > self.allocatable).any())

    def exceeded(self) -> bool:
        """Overcommitted, or pods hold a card that the node has no more."""
        return self.overcommitted() or any(CARD_CLOSED <= used < NO_CARD for used in self.cards)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one pod holds."""

    node: int
    card_mask: int
    card_milli: int
    seq: int
    epoch: int
    priority: int
    attempt: int
    requests: NDArray[np.int64]  # (R,)
    group: Group | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node does not take a pod. See CONFLICT for the evidence."""

    verdict: Verdict
    resource: int = 0
    asked: int = 0
    free: int = 0


@dataclass(frozen=True, slots=True)
class Ruling:
    """What became of one pod; of a duplicate, `seq` is that of the commit that stands."""

    verdict: Verdict
    node: int
    seq: int = 0
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One feed entry: which nodes changed, which have a new spec, which are gone."""

    seq: int
    nodes: tuple[int, ...]
    specs: tuple[tuple[int, bytes], ...] = ()
    removed: tuple[int, ...] = ()
    released: int = 0
    runs: tuple[GroupRun, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    epoch: int = 0  # of the worker that committed it; 0: nobody did


@dataclass(slots=True)
class _Evicted:
    """Who had to go in one batch, and for whom."""

    evictions: list[Eviction] = field(default_factory=list)
    held: list[Reservation] = field(default_factory=list)


class Arbiter:
    """The state of one shard and the operations on it."""

    def __init__(self, shard: int, shards: int) -> None:
        self.shard = shard
        self.shards = shards
        self.seq = 0
        self.workers: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self.specs: dict[int, bytes] = {}
        self.accounts: dict[int, Account] = {}
        self.reservations: dict[Uid, Reservation] = {}
        self.pending: dict[int, tuple[int, list[Uid]]] = {}  # seq of a commit: deadline (ms), UIDs
        self.feed: list[Change] = []
        self.guards = DomainGuards()

    # -- pods ---------------------------------------------------------------------------------------------------------

    def register(self, groups: Iterable[Group | None]) -> None:
        """From here on every placement is noted that a rule of these groups sees."""
        missing = self.guards.book.missing(groups)
        if missing:
            self.guards.book.register(missing, self.seq + 1)
            self._publish(Change(self.seq + 1, ()))

    def commit(self, proposal: Proposal, *, deadline_ms: int) -> tuple[list[Ruling], list[int]]:
        """Rulings in the proposal's order, and the nodes that refused any pod."""
        if self.workers.get(proposal.worker) != proposal.epoch:
            return [Ruling(Verdict.STALE_EPOCH, int(node)) for node in proposal.nodes[:, 0]], []
        seq, changed, refusing = self.seq + 1, _Ordered(), _Ordered()
        rulings: dict[int, Ruling] = {}
        reserved: list[Uid] = []
        evicted = _Evicted()
        self.guards.begin()
        before, stamps = (deepcopy(self.accounts), self.guards.stamps()) if proposal.gang_minimum else ({}, {})
        order = proposal.serving_order()
        for position in range(len(proposal)) if order is None else order.tolist():
            uid = proposal.uids[position].tobytes()
            standing = self.reservations.get(uid)
            if standing is not None:
                rulings[position] = Ruling(Verdict.DUPLICATE, standing.node, standing.seq)
                continue
            ruling = self._place(proposal, position, seq, refusing, evicted)
            rulings[position] = ruling
            if ruling.verdict is Verdict.COMMITTED:
                reserved.append(uid)
                changed.add(ruling.node)
        fitting = sum(ruling.verdict in (Verdict.COMMITTED, Verdict.DUPLICATE) for ruling in rulings.values())
        if fitting < proposal.gang_minimum:
            self.accounts = before
            self.guards.restore(stamps)
            for uid in reserved:
                del self.reservations[uid]
            reserved = []
            for position, ruling in rulings.items():
                if ruling.verdict is Verdict.COMMITTED:
                    rulings[position] = Ruling(Verdict.GANG_ABORTED, int(proposal.nodes[position, 0]))
        if reserved:
            self.pending[seq] = (deadline_ms, reserved)
            runs = group_runs((self.reservations[uid] for uid in reserved), gone=False)
            runs += group_runs(evicted.held, gone=True)
            evictions = tuple(evicted.evictions)
            change = Change(seq, tuple(changed), (), (), len(evicted.held), runs, evictions, proposal.epoch)
            self._publish(change)
        return [rulings[position] for position in range(len(proposal))], list(refusing)

    def _place(self, proposal: Proposal, position: int, seq: int, refusing: "_Ordered", evicted: _Evicted) -> Ruling:
        """Reserve on the first candidate that takes the pod. Of several refusals the first candidate's counts."""
        slot = int(proposal.slots[position])
        first: Refusal | None = None
        group = proposal.groups[slot] if proposal.groups else None
        guarded = bool(self.guards.book.guards(group))
        victims = proposal.victims.get(position, ())
        # The worker reckons with a pod where it placed it: one that rules look at goes nowhere else.
        for node in proposal.nodes[position, : 1 if guarded or victims else None].tolist():
            if node == NONE_U32:
                break
            refusal, cards = self._try(proposal, slot, node)
            in_the_way = bool(victims) and proposal.victims_must_go
            made = None
            if refusal is not None or in_the_way:
                made = self._make_room(proposal, position, node, seq, evicted)
            if made is not None:
                refusal, cards = None, made
            elif in_the_way and refusal is None:
                refusal = Refusal(Verdict.CONFLICT_TOPOLOGY, 0, self.seq)
            if refusal is None:
                self._reserve(proposal, position, node, cards, seq)
                if made is not None:
                    self._fit_again(self.accounts[node])
                self.guards.placed(group, node, proposal.epoch, seq)
                return Ruling(Verdict.COMMITTED, node, seq)
            first = first or refusal
            if node in self.accounts:
                refusing.add(node)
        if first is None:
            raise ValueError(f"pod {position} has no candidate")
        self.guards.refused(group)
        return Ruling(first.verdict, int(proposal.nodes[position, 0]), refusal=first)

    def _make_room(
        self, proposal: Proposal, position: int, node: int, seq: int, evicted: _Evicted
    ) -> tuple[int, ...] | None:
        """Take the pod's victims away if it fits then: the cards it gets. Else None, and nothing has changed."""
        victims, slot = proposal.victims.get(position, ()), int(proposal.slots[position])
        held = [self.reservations[uid] for uid in victims if uid in self.reservations]
        priority = int(proposal.priorities[slot])
        standing = [h for h in held if h.node == node and h.priority < priority and h.seq < seq]
        if not victims or len(standing) < len(victims) or node not in self.accounts:
            return None
        before = deepcopy(self.accounts[node])
        for uid, reservation in zip(victims, held, strict=True):
            self._give_back(uid, reservation)
        refusal, cards = self._try(proposal, slot, node)
        if refusal is not None:
            self.accounts[node] = before
            return None
        for uid in victims:
            del self.reservations[uid]
        evicted.held += held
        evicted.evictions.append(Eviction(proposal.uids[position].tobytes(), node, b"".join(victims)))
        return cards

    def _give_back(self, uid: Uid, held: Reservation) -> None:
        """The node has again what the pod held."""
        account = self.accounts[held.node]
        account.ports = [hold for hold in account.ports if hold[0] != uid]
        account.widen(len(held.requests))
        account.requested[: len(held.requests)] -= held.requests
        for card in range(CARD_SLOTS):
            if held.card_mask >> card & 1:
                left = account.cards[card] - held.card_milli
                account.cards[card] = NO_CARD if left == CARD_CLOSED else left

    def _fit_again(self, account: Account) -> None:
        """A node that has shrunk may have room for all it holds again."""
        account.mark(FLAG_SHRUNK, account.has(FLAG_SHRUNK) and account.exceeded())

    def _try(self, proposal: Proposal, slot: int, node: int) -> tuple[Refusal | None, tuple[int, ...]]:
        """Why the node refuses, or the cards the pod gets."""
        account = self.accounts.get(node)
        if account is None or account.born > proposal.snapshot_seq or account.has(FLAG_GONE):
            return Refusal(Verdict.NODE_GONE), ()
        request = proposal.requests[slot]
        account.widen(len(request))
        group = proposal.groups[slot] if proposal.groups else None
        if not proposal.unchecked:
            closed = self._closed(proposal, node, group)
            if closed is not None:
                return closed, ()
            width = len(request)
            allocatable, requested = account.allocatable[:width], account.requested[:width]
            short = np.flatnonzero(insufficient(allocatable[:, None], requested[:, None], request))
            if len(short):
                r = int(short[0])
                free = int(allocatable[r] - requested[r])
                return Refusal(Verdict.CONFLICT_RESOURCE, r, int(request[r]), free), ()
            for claim in group.ports if group else ():
                if any(clash(claim, held) for _, held in account.ports):
                    return Refusal(Verdict.CONFLICT_PORT, 0, port_number(claim)), ()
            unknown = self.guards.unknown(proposal, group, node, self.seq + 1)
            if unknown:
                return Refusal(Verdict.CONFLICT_TOPOLOGY, 0, unknown), ()
        return self._try_cards(proposal, slot, account)

    def _closed(self, proposal: Proposal, node: int, group: Group | None) -> Refusal | None:
        """Why the node takes nothing of the proposal now, whatever room it has."""
        account = self.accounts[node]
        if account.has(FLAGS_CLOSED) and not (group and group.tolerates_cordon):
            return Refusal(Verdict.NODE_UNSCHEDULABLE)
        changed = unaccepted_change(proposal, node, (account.seq, account.described), self.feed)
        return Refusal(Verdict.CONFLICT_VERSION, 0, changed) if changed else None

    def _try_cards(self, proposal: Proposal, slot: int, account: Account) -> tuple[Refusal | None, tuple[int, ...]]:
        count, milli = (0, 0) if proposal.devices is None else proposal.devices[slot].tolist()
        if not count:
            return None, ()
        pick = emptiest_cards if proposal.unchecked else pick_cards
        cards = pick(account.cards, count, milli)
        if cards is None:
            fitting = next(n for n in range(count - 1, -1, -1) if pick(account.cards, n, milli) is not None)
            return Refusal(Verdict.CONFLICT_DEVICE, 0, count, fitting), ()
        return None, cards

    def _reserve(self, proposal: Proposal, position: int, node: int, cards: tuple[int, ...], seq: int) -> None:
        account, slot = self.accounts[node], int(proposal.slots[position])
        request = proposal.requests[slot]
        account.requested[: len(request)] += request
        milli = 0 if proposal.devices is None or not cards else int(proposal.devices[slot, 1])
        for card in cards:
            account.cards[card] += milli
        if proposal.unchecked:
            account.mark(FLAG_SHRUNK, False)  # what exceeds from now on was not the node's doing
        account.seq = seq
        uid, group = proposal.uids[position].tobytes(), proposal.groups[slot] if proposal.groups else None
        account.ports += [(uid, claim) for claim in (group.ports if group else ())]
        self.reservations[uid] = Reservation(
            node,
            sum(1 << card for card in cards),
            milli,
            seq,
            proposal.epoch,
            int(proposal.priorities[slot]),
            int(proposal.attempts[slot]),
            request,
            group,
        )

    def release(self, uids: Iterable[Uid], seqs: Sequence[int] | None = None) -> list[Uid]:
        """Give back what pods hold; with `seqs`, only what that very commit reserved. Returns whose it was."""
        seq, changed, released, held_before = self.seq + 1, _Ordered(), [], []
        for i, uid in enumerate(uids):
            held = self.reservations.get(uid)
            if held is None or (seqs is not None and held.seq != seqs[i]):
                continue
            del self.reservations[uid]
            released.append(uid)
            held_before.append(held)
            changed.add(held.node)
            self._give_back(uid, held)
            self.accounts[held.node].seq = seq
        for node in changed:
            self._fit_again(self.accounts[node])
        if released:
            runs = group_runs(held_before, gone=True)
            self._publish(Change(seq, tuple(changed), released=len(released), runs=runs))
        return released

    def confirm(self, seqs: Iterable[int]) -> int:
        """End leases. Returns how many there were."""
        return sum(self.pending.pop(seq, None) is not None for seq in seqs)

    def keep(self, uids: Sequence[Uid], seqs: Sequence[int], *, deadline_ms: int) -> int:
        """Give the commits `seqs`, where they are pending, until `deadline_ms`. Returns how many pods still hold what the
        commit beside them reserved."""
        standing = 0
        for uid, seq in zip(uids, seqs, strict=True):
            held = self.reservations.get(uid)
            if held is not None and held.seq == seq:
                standing += 1
                if seq in self.pending:
                    self.pending[seq] = (deadline_ms, self.pending[seq][1])
        return standing

    def reap(self, now_ms: int) -> int:
        """Release what every commit still holds whose lease is over, oldest commit first."""
        reaped = 0
        for seq in sorted(self.pending):
            deadline_ms, uids = self.pending[seq]
            if deadline_ms <= now_ms:
                del self.pending[seq]
                reaped += len(self.release(uids, [seq] * len(uids)))
        return reaped

    def grant(self, worker: str, epoch: int) -> int:
        """A worker's epoch only grows. Returns the one that holds."""
        self.workers[worker] = max(epoch, self.workers.get(worker, 0))
        return self.workers[worker]

    # -- nodes --------------------------------------------------------------------------------------------------------

    def upsert(self, changes: Sequence[NodeChange], expected: bytes = b"") -> tuple[list[int], list[int]] | None:
        """Indexes, and positions of nodes that have less than what is requested; None where `expected` is not the spec."""
        if expected and self.specs.get(self.names.get(changes[0].name, NONE_U32)) != expected:
            return None
        seq, touched, over = self.seq + 1, [], []
        for position, change in enumerate(changes):
            node = self.names.setdefault(change.name, len(self.names) * self.shards + self.shard)
            if self.specs.get(node) != change.spec:
                self._change(node, change, seq)
                touched.append(node)
            if self.accounts[node].has(FLAG_SHRUNK) or self.accounts[node].exceeded():
                over.append(position)
        if touched:
            self._publish(Change(seq, tuple(touched), specs=tuple((node, self.specs[node]) for node in touched)))
        return [self.names[change.name] for change in changes], over

    def _change(self, node: int, change: NodeChange, seq: int) -> None:
        account = self.accounts.setdefault(node, Account(born=seq))
        if account.has(FLAG_GONE):
            account.born = seq
        account.widen(len(change.allocatable))
        exceeded_before = account.overcommitted()
        account.allocatable[:] = 0
        account.allocatable[: len(change.allocatable)] = change.allocatable
        if account.cards or change.cards:
            account.cards = resized_cards(account.cards, change.cards)
        # What was exceeded before the node changed, unless by an earlier change, is overcommitment and stays to be found.
        shrunk = account.exceeded() and (account.has(FLAG_SHRUNK) or not exceeded_before)
        account.mark(FLAG_GONE, False)
        account.mark(FLAG_SHRUNK, shrunk)
        account.mark(FLAG_UNSCHEDULABLE, change.unschedulable)
        account.seq = account.described = seq
        self.specs[node] = change.spec
        self.guards.labels[node] = dict(change.labels)

    def remove(self, names: Sequence[str]) -> tuple[list[Uid], list[int]]:
        """Pods whose reservations went, and positions of names that are not there."""
        seq, missing, gone = self.seq + 1, [], []
        for position, name in enumerate(names):
            node = self.names.get(name)
            if node is None or self.accounts[node].has(FLAG_GONE):
                missing.append(position)
                continue
            account = self.accounts[node]
            account.mark(FLAG_GONE, True)
            account.mark(FLAG_SHRUNK, False)
            account.seq = seq
            del self.specs[node]
            self.guards.labels.pop(node, None)
            gone.append(node)
        if gone:
            self._publish(Change(seq, tuple(gone), removed=tuple(gone)))
        return self.release([uid for uid, held in self.reservations.items() if held.node in gone]), missing

    def _publish(self, change: Change) -> None:
        self.seq = change.seq
        self.feed.append(change)


class _Ordered(dict[int, None]):
    """Node indexes, each once, in the order they came."""

    def add(self, node: int) -> None:
        self[node] = None


def emptiest_cards(used_milli: Sequence[int], count: int, milli: int) -> tuple[int, ...] | None:
    """Where nothing is checked: the emptiest cards, full or not, as long as the record can hold it."""
    there = [slot for slot, used in enumerate(used_milli) if used <= CARD_CLOSED - 1 - milli]
    there.sort(key=lambda slot: used_milli[slot])
    return tuple(sorted(there[:count])) if len(there) >= count else None


def resized_cards(used_milli: Sequence[int], count: int) -> list[int]:
    """A node's cards after it says it has `count`. A card that goes while pods hold it stays, closed, until they leave."""
    before = list(used_milli) or [NO_CARD] * CARD_SLOTS
    holds = [0 if used == NO_CARD else used % CARD_CLOSED for used in before]
    return [held if slot < count else CARD_CLOSED + held if held else NO_CARD for slot, held in enumerate(holds)]


def group_runs(reservations: Iterable[Reservation], *, gone: bool) -> tuple[GroupRun, ...]:
    """Where these pods are or were, group by group."""
    nodes: dict[bytes, list[int]] = {}
    for held in reservations:
        if held.group is not None:
            nodes.setdefault(held.group.definition, []).append(held.node)
    return tuple(GroupRun(definition, encode(on, U32), gone) for definition, on in nodes.items())


def uid_bytes(uids: Uids) -> list[Uid]:
    """Each row as a key."""
    return [row.tobytes() for row in uids]
