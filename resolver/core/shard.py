"""The state of one shard in the ledger's model: nodes, pods, prepared commits, leases, and the history of
changes.

Invariant: `publish` is the only way to a new sequence number, and each number has a nonce."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.wire.columns import CARD_CLOSED, CARD_SLOTS, FLAG_SHRUNK, NO_CARD, U32, encode
from resolver.core.accounts import Account
from resolver.core.placement_constraints import DomainConstraints
from resolver.core.quarantine import QuarantineRecord
from resolver.core.values import (
    ANYBODY,
    IS_TERMINATING,
    MOVE_TARGET,
    PRE_BINDS,
    Eviction,
    Group,
    GroupRun,
    Position,
    Proposal,
    Writer,
)

MOST_AHEAD_MS = 2000  # that lease time goes on from one reaping to the next
IDLE_MS = 5000  # between two steps of lease time while there is no lease
NONCES_KEPT = 1024


class SupersededError(Exception):
    """A dispatcher with a higher term, `term`, has written to the shard."""

    def __init__(self, term: int) -> None:
        super().__init__(f"another dispatcher has taken over (term {term})")
        self.term = term


class OtherLedgerError(Exception):
    """The shard is of the ledger `epoch`, a recovery tombstone, or "": it is empty."""

    def __init__(self, epoch: str) -> None:
        super().__init__(f"the shard is of the ledger {epoch or 'none'}")
        self.epoch = epoch


class WentBackError(Exception):
    """The shard at `seq` does not have the history in which the caller knows `known_seq`."""

    def __init__(self, seq: int, known_seq: int) -> None:
        super().__init__(f"the shard is at {seq} and does not have what was there at {known_seq}")
        self.seq = seq
        self.known_seq = known_seq


class OldCopyError(Exception):
    """The worker has sent a later copy of something. `seq`: where the shard is."""

    def __init__(self, seq: int) -> None:
        super().__init__("the worker has sent a later copy")
        self.seq = seq


_NOTHING_KNOWN = Position(0)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls an operation, and what it knows: the epoch of the ledger, and the last position of this
    shard. `nonce` marks the change that the operation makes; "": one that nobody else has."""

    ledger: str = ""
    known: Position = _NOTHING_KNOWN
    nonce: str = ""
    writer: Writer = ANYBODY
    sending: int | None = None  # of a proposal; None: not a proposal


@dataclass(slots=True)
class LeaseClock:
    """Lease time, in milliseconds. It follows the server's clock, goes on by MOST_AHEAD_MS at most from one
    reaping to the next, and is never set back. So a clock that jumps ends no lease and prolongs none."""

    time_ms: int | None = None  # at the last reaping; None: there was none
    seen_ms: int = 0  # the server's clock then

    def now(self, clock_ms: int) -> int:
        """Lease time when the server's clock is `clock_ms`."""
        if self.time_ms is None:
            return clock_ms
        return self.time_ms + max(0, min(clock_ms - self.seen_ms, MOST_AHEAD_MS))

    def go_on(self, clock_ms: int, *, idle: bool) -> int:
        """Lease time goes on to now; every IDLE_MS only while it is `idle`, without a lease."""
        now_ms = self.now(clock_ms)
        if not idle or self.time_ms is None or not 0 <= clock_ms - self.seen_ms < IDLE_MS:
            self.time_ms, self.seen_ms = now_ms, clock_ms
        return now_ms


@dataclass(slots=True)
class PreparedProposals:
    """For each prepared commit (by seq), how many pods it still holds. The feed does not show these pods
    yet."""

    _pods: dict[int, int] = field(default_factory=dict)

    def begin(self, seq: int, pods: int) -> None:
        self._pods[seq] = pods

    def open(self, seq: int) -> bool:
        """Whether the commit is prepared: neither committed nor aborted."""
        return seq in self._pods

    def pods(self) -> dict[int, int]:
        """The number of pods by commit."""
        return dict(self._pods)

    def under_way(self) -> tuple[int, ...]:
        return tuple(sorted(self._pods))

    def end(self, seqs: Iterable[int], over: Iterable[int] = ()) -> tuple[int, ...]:
        """Take away one pod for each of `seqs`, and those of `over` whatever pods they have. Returns the
        commits that have no pods left. Other seqs are ignored."""
        ended = [seq for seq in over if self._pods.pop(seq, None) is not None]
        for seq in seqs:
            left = self._pods.get(seq, 0) - 1
            if left > 0:
                self._pods[seq] = left
            elif left == 0:
                del self._pods[seq]
                ended.append(seq)
        return tuple(sorted(ended))


Uid = bytes
Source = tuple[int, int]  # of a move: node and seq of the reservation


@dataclass(frozen=True, slots=True)
class Reservation:
    """One pod's reservation."""

    node: int
    card_mask: int
    card_milli: int
    seq: int
    epoch: int
    priority: int
    attempt: int
    requests: NDArray[np.int64]  # (R,)
    group: Group | None = None
    is_target: bool = False  # of a move
    is_terminating: bool = False  # evicted, and on its node until it has ended
    pre_binds: bool = False  # see Proposal.pre_binds

    @property
    def flags(self) -> int:
        """As they are stored."""
        of_group = 0 if self.group is None else self.group.flags
        state = IS_TERMINATING * self.is_terminating | PRE_BINDS * self.pre_binds
        return of_group | MOVE_TARGET * self.is_target | state


class TakenShare(NamedTuple):
    """What a preemptor has taken of the amounts of a terminating pod."""

    preemptor: Uid
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardChange:
    """One feed entry: nodes that changed, nodes with a new spec, nodes that were removed."""

    seq: int
    nodes: tuple[int, ...]
    specs: tuple[tuple[int, bytes], ...] = ()
    removed: tuple[int, ...] = ()
    released: int = 0
    runs: tuple[GroupRun, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    prepared: bool = False
    ended: tuple[int, ...] = ()
    epoch: int = 0  # of the worker that committed it; 0: the change is not a commit
    nonce: str = ""
    accounts: Mapping[int, Account] = field(default_factory=dict)  # of the nodes, as this change left them


class Shard:
    """The state of one shard, and the steps that several operations share."""

    def __init__(self, shard: int, shards: int, *, feed_window: int = 10_000) -> None:
        """`feed_window`: so many of the last feed entries are kept, and at most twice as many."""
        self.shard = shard
        self.feed_window = feed_window
        self.shards = shards
        self.epoch = ""  # of the ledger, or a recovery tombstone; "": the shard was never made, or is lost
        self.seq = 0
        self.nonce = ""  # of the last change
        self.nonces: dict[int, str] = {}  # of the last changes, by seq modulo NONCES_KEPT
        self.term = 0  # the highest of a dispatcher that has written here
        self.journal = (0, 0)  # the newest write to a journal: see DispatcherMarks
        self.workers: dict[str, int] = {}
        self.sendings: dict[str, int] = {}  # by worker: the highest of its epoch; 0 is left out
        self.names: dict[str, int] = {}
        self.next_index = 0  # counts the nodes of this shard
        self.free: list[int] = []  # indexes of forgotten nodes; the one that is free longest comes first
        self.specs: dict[int, bytes] = {}
        self.resource_versions: dict[int, int] = {}
        self.accounts: dict[int, Account] = {}
        self.damaged_accounts: dict[int, bytes] = {}  # of nodes that get nothing until a repair
        self.reservations: dict[Uid, Reservation] = {}
        self.pending: dict[int, tuple[int, list[Uid]]] = {}  # seq of a commit: deadline (ms), UIDs
        self.leases = LeaseClock()
        self.leases_ended = 0  # the seq of the last change that a lease made by ending
        self.removed: dict[int, str] = {}  # nodes that are removed and not forgotten yet
        self.moved: dict[Uid, Source] = {}  # pods whose source, on another shard, is still to be released
        self.terminating: dict[
            Uid, TakenShare
        ] = {}  # by UID of a terminating pod whose preemptor is reserved
        self.nominated: dict[Uid, list[Uid]] = {}  # by UID of a preemptor, its victims that are terminating
        self.unreadable: dict[Uid, bytes] = {}  # reservations that were damaged
        self.damaged: dict[Uid, bytes] = {}  # those of them that somebody has found: they are set aside
        self.quarantine: dict[int, QuarantineRecord] = {}
        self.feed: list[ShardChange] = []
        self.constraints = DomainConstraints(shard, shards)
        self.prepared = PreparedProposals()
        self._next_nonce = ""

    def admit(self, caller: Caller) -> bool:
        """Whether the caller may go on. False: its worker's epoch is fenced. Raises OtherLedgerError,
        WentBackError, OldCopyError and SupersededError. The next change gets the caller's nonce."""
        if not self.epoch or self.epoch != caller.ledger:
            raise OtherLedgerError(self.epoch)
        behind, known = self.seq - caller.known.seq, caller.known
        is_kept = 0 <= behind < NONCES_KEPT
        if behind < 0 or (known.nonce and is_kept and self.nonce_kept(known.seq) != known.nonce):
            raise WentBackError(self.seq, known.seq)
        writer = caller.writer
        if writer.epoch is not None and self.workers.get(writer.worker) != writer.epoch:
            return False
        if caller.sending is not None and self.is_old_copy(writer.worker, caller.sending):
            raise OldCopyError(self.seq)
        if 0 < writer.term < self.term:
            raise SupersededError(self.term)
        self.term = max(self.term, writer.term)
        if writer.journal_write:
            self.journal = max(self.journal, (writer.term, writer.journal_write))
        self._next_nonce = caller.nonce
        return True

    def is_old_copy(self, worker: str, sending: int) -> bool:
        """Whether the worker has sent a later copy of something. If not, earlier ones are old from now on."""
        if sending > self.sendings.get(worker, 0):
            self.sendings[worker] = sending
        return sending < self.sendings.get(worker, 0)

    def nonce_kept(self, seq: int) -> str:
        """The nonce of the change with this seq, one of the last NONCES_KEPT; "": there was none."""
        return self.nonces.get(seq % NONCES_KEPT, "")

    def index_of(self, name: str) -> int:
        """The node's index; that of a new node is the one that is free longest, or one that no node ever
        had."""
        if name not in self.names:
            if self.free:
                self.names[name] = self.free.pop(0)
            else:
                self.names[name] = self.next_index * self.shards + self.shard
                self.next_index += 1
        return self.names[name]

    def forget(self, name: str) -> None:
        """Forget a node on which nothing is reserved."""
        node = self.names.pop(name)
        tables: tuple[dict[int, Any], ...] = (self.accounts, self.specs, self.resource_versions)
        for table in (*tables, self.damaged_accounts, self.constraints.labels, self.quarantine, self.removed):
            table.pop(node, None)
        self.free.append(node)

    def must_prepare(self, proposal: Proposal) -> bool:
        """Whether the proposal is only prepared: it says so, or rules concern its pods and there are several
        shards."""
        groups = () if self.shards == 1 or proposal.unchecked else proposal.groups
        used = set(proposal.slots.tolist())  # the parts of a proposal have all its slots
        return proposal.prepared or any(
            self.constraints.book.constraints(group) for slot, group in enumerate(groups) if slot in used
        )

    def is_damaged(self, node: int) -> bool:
        """Whether the node is there, and what it offers and holds cannot be read."""
        return node in self.damaged_accounts and node in self.specs

    def set_aside(self, uids: Iterable[Uid]) -> None:
        """Set aside those of these pods' reservations that cannot be read. What they hold is unknown, and
        they must not keep the others from being read. Their nodes count them until a repair."""
        for uid in uids:
            if uid in self.unreadable:
                self.damaged[uid] = self.unreadable.pop(uid)

    def return_resources(self, uid: Uid, held: Reservation) -> None:
        """Return the pod's amounts, cards and ports to the node."""
        account = self.accounts[held.node]
        account.ports = [port for port in account.ports if port[0] != uid]
        account.widen(len(held.requests))
        account.requested[: len(held.requests)] -= held.requests
        for card in range(CARD_SLOTS):
            if held.card_mask >> card & 1:
                left = account.cards[card] - held.card_milli
                account.cards[card] = NO_CARD if left == CARD_CLOSED else left

    def keep_victims(
        self, preemptor: Uid, victims: Mapping[Uid, Reservation], request: NDArray[np.int64]
    ) -> None:
        """The victims are on their node until they have ended. Cards and ports they hold as before. Of the
        amounts they hold what the preemptor does not take: of each resource it takes what it asks for and the
        node, whose account still counts the victims, does not have free."""
        account = self.accounts[next(iter(victims.values())).node]
        account.widen(max(len(request), *(len(held.requests) for held in victims.values())))
        asked = np.pad(request, (0, len(account.requested) - len(request)))
        lacking = np.clip(asked - (account.allocatable - account.requested), 0, asked)
        for uid, held in victims.items():
            share = np.minimum(held.requests, lacking[: len(held.requests)])
            lacking[: len(share)] -= share
            account.requested[: len(share)] -= share
            self.reservations[uid] = replace(held, requests=held.requests - share, is_terminating=True)
            self.terminating[uid] = TakenShare(preemptor, tuple(share.tolist()))
        self.nominated[preemptor] = list(victims)

    def settle_evictions(self, released: Collection[Uid]) -> None:
        """Of these released pods, what concerns evictions. Who terminated leaves its preemptor. If a
        preemptor is released first, its victims hold all they held before: they are on the node, and nobody
        else may have their room."""
        for uid in released:
            share = self.terminating.pop(uid, None)
            if share is not None and share.preemptor in self.nominated:
                left = [victim for victim in self.nominated[share.preemptor] if victim != uid]
                self.nominated[share.preemptor] = left
        for uid in released:
            for victim in self.nominated.pop(uid, ()):
                taken, held = self.terminating.pop(victim).requests, self.reservations[victim]
                amounts = np.pad(held.requests, (0, max(0, len(taken) - len(held.requests))))
                amounts[: len(taken)] += taken
                self.reservations[victim] = replace(held, requests=amounts)
                if held.node in self.accounts:
                    self.accounts[held.node].requested[: len(taken)] += taken
        self.nominated = {uid: victims for uid, victims in self.nominated.items() if victims}

    def fit_again(self, account: Account) -> None:
        """Clear FLAG_SHRUNK if the node has room for all its pods again."""
        account.set_flag(FLAG_SHRUNK, account.has(FLAG_SHRUNK) and account.exceeded())

    def publish(self, change: ShardChange) -> None:
        """Append the change to the feed, with the accounts as it leaves them."""
        self.seq, self.nonce = change.seq, self._next_nonce or f"{change.seq:x}"
        self.nonces[change.seq % NONCES_KEPT] = self.nonce
        accounts = {node: self.accounts[node].copy() for node in change.nodes}
        self.feed.append(replace(change, nonce=self.nonce, accounts=accounts))
        if len(self.feed) >= 2 * self.feed_window:
            del self.feed[: -self.feed_window]

    def changes_after(self, seq: int) -> list[ShardChange]:
        """The entries of the feed after `seq`, as far as the feed has them."""
        return self.feed[bisect_right(self.feed, seq, key=_seq_of) :]


def _seq_of(change: ShardChange) -> int:
    return change.seq


class Ordered(dict[int, None]):
    """Node indexes, each once, in insertion order."""

    def add(self, node: int) -> None:
        self[node] = None


def group_runs(reservations: Iterable[Reservation], *, gone: bool) -> tuple[GroupRun, ...]:
    """Where these pods are or were, by group."""
    nodes: dict[bytes, list[int]] = {}
    for held in reservations:
        if held.group is not None:
            nodes.setdefault(held.group.definition, []).append(held.node)
    return tuple(GroupRun(definition, encode(on, U32), gone) for definition, on in nodes.items())
