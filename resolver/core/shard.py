"""What one shard of the ledger's model holds: nodes, pods, and the history of both."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hoss.wire.account import CARD_CLOSED, CARD_SLOTS, FLAG_SHRUNK, NO_CARD
from hoss.wire.columns import U32, encode
from resolver.core.accounts import Account
from resolver.core.guarding import DomainGuards
from resolver.core.holds import Holds
from resolver.core.values import Eviction, Group, GroupRun, Proposal

Uid = bytes


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
class Change:
    """One feed entry: which nodes changed, which have a new spec, which are gone."""

    seq: int
    nodes: tuple[int, ...]
    specs: tuple[tuple[int, bytes], ...] = ()
    removed: tuple[int, ...] = ()
    released: int = 0
    runs: tuple[GroupRun, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    hold: bool = False
    ended: tuple[int, ...] = ()
    epoch: int = 0  # of the worker that committed it; 0: nobody did


class Shard:
    """The state of one shard, and what every operation on it does."""

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
        self.guards = DomainGuards(shard, shards)
        self.holds = Holds()

    def holds_back(self, proposal: Proposal) -> bool:
        """Whether what the proposal reserves is held: it is, where rules look at its pods and there are several shards."""
        groups = () if self.shards == 1 or proposal.unchecked else proposal.groups
        return proposal.held or any(self.guards.book.guards(group) for group in groups)

    def give_back(self, uid: Uid, held: Reservation) -> None:
        """The node has again what the pod held."""
        account = self.accounts[held.node]
        account.ports = [hold for hold in account.ports if hold[0] != uid]
        account.widen(len(held.requests))
        account.requested[: len(held.requests)] -= held.requests
        for card in range(CARD_SLOTS):
            if held.card_mask >> card & 1:
                left = account.cards[card] - held.card_milli
                account.cards[card] = NO_CARD if left == CARD_CLOSED else left

    def fit_again(self, account: Account) -> None:
        """A node that has shrunk may have room for all it holds again."""
        account.mark(FLAG_SHRUNK, account.has(FLAG_SHRUNK) and account.exceeded())

    def publish(self, change: Change) -> None:
        """The change is one entry of the feed."""
        self.seq = change.seq
        self.feed.append(change)


class Ordered(dict[int, None]):
    """Node indexes, each once, in the order they came."""

    def add(self, node: int) -> None:
        self[node] = None


def group_runs(reservations: Iterable[Reservation], *, gone: bool) -> tuple[GroupRun, ...]:
    """Where these pods are or were, group by group."""
    nodes: dict[bytes, list[int]] = {}
    for held in reservations:
        if held.group is not None:
            nodes.setdefault(held.group.definition, []).append(held.node)
    return tuple(GroupRun(definition, encode(on, U32), gone) for definition, on in nodes.items())
