"""An SDK scheduler's view of the nodes: what the feed said, and what the scheduler has proposed and not yet
seen there.

Invariant: `requested` is the feed's column plus every proposed pod that is neither refused nor shown by the
feed."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import pick_cards
from hoss.model.node import NodeSpec
from hoss.model.placing import NodeSnapshot, admits
from hoss.model.pod import PodAffinityTerm, PodGroup, PodSpec, group_of
from hoss.model.resources import PODS, ResourceSchema
from hoss.model.slices import Steps
from hoss.v1.resolver_pb2 import Accounts, FeedMessage, GroupRun
from hoss.wire.columns import (
    CARD_SLOTS,
    CARDS,
    FLAG_GONE,
    FLAGS_CLOSED,
    NO_CARD,
    account_dtype,
    check_node_index,
    decode,
    decode_accounts,
    decode_nodes,
    digest,
)
from hoss.wire.convert import node_from_proto
from hoss.wire.convert_rules import group_defined

_FIRST_CAPACITY = 64

# Specs or groups that are taken in between two yields, and the most that one takes.
_SLICE_ROWS = 100
_ROW_MICROS = 50.0


@dataclass(slots=True, eq=False)
class ProposedPods:
    """Pods of one proposal that count on their nodes until the view shows them."""

    shard: int
    nodes: NDArray[np.intp]  # (n,)
    requests: NDArray[np.int64]  # (n, resources at the time)
    # (n, 2): cards requested, and thousandths of each
    devices: NDArray[np.uint16] | None = None
    live: NDArray[np.bool_] = field(init=False)  # (n,): still counted
    # Of those with cards, by row: the cards of its node that it is taken to get.
    cards: dict[int, tuple[int, ...]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.live = np.ones(len(self.nodes), np.bool_)


class SchedulerView:
    """Nodes by index. One writer, the event loop; `snapshot` copies for an algorithm in another thread."""

    def __init__(self) -> None:
        self.schema = ResourceSchema()
        self.shards = 0  # 0: not known yet
        self.seqs: dict[int, int] = {}
        self._accounts: NDArray[Any] = np.zeros(
            0, account_dtype(len(self.schema))
        )  # by index; flags: FLAG_GONE, no node
        self._assumed = np.zeros((len(self.schema), 0), np.int64)
        self._cards: dict[int, NDArray[np.uint16]] = {}  # of nodes that have some
        self._assumed_cards: dict[int, NDArray[np.uint16]] = {}  # of nodes with proposed pods that have cards
        self._specs: list[NodeSpec | None] = []
        self._specs_version = 0
        self._admitting: dict[PodSpec, tuple[int, NDArray[np.bool_]]] = {}
        self._repelling: dict[PodGroup, Counter[int]] = {}  # pods by node, of groups with anti-affinity
        self._holds: dict[int, set[int]] = {}
        self._partial: set[int] = set()  # shards of which a message is being taken in
        self._committed: dict[int, deque[tuple[int, ProposedPods]]] = {}  # by shard: (seq, pods), any order

    @property
    def complete(self) -> bool:
        """Whether it has every shard."""
        return 0 < self.shards == len(self.seqs)

    @property
    def whole(self) -> bool:
        """False while a message is being taken in: no pod may be placed now."""
        return not self._partial

    @property
    def size(self) -> int:
        """Node indexes, with those that no node has."""
        return len(self._specs)

    def seen(self, shard: int) -> int:
        """The seq up to which all pods are known: those of a prepared commit come later."""
        holds = self._holds.get(shard)
        return min(holds) - 1 if holds else self.seqs.get(shard, 0)

    def digest(self, shard: int) -> int:
        """Digest of the shard's part of the feed: the ledger's own at the same seq."""
        nodes = np.arange(shard, self.size, max(self.shards, 1))
        carded = np.array(
            sorted(node for node in self._cards if node % max(self.shards, 1) == shard), np.intp
        )
        cards = np.array([self._cards[node] for node in carded.tolist()], np.uint16).reshape(-1, 16)
        return digest(nodes, self._accounts[nodes], carded, cards)

    # From the ledger

    def applying(self, message: FeedMessage) -> Steps[None]:
        """Take in one message of the feed, in slices. Between them verdicts may be taken in, and no pod be
        placed (`whole`). Raises ColumnError for columns that do not fit together."""
        self._partial.add(message.shard)
        self.shards = message.shards or self.shards
        if message.schema:
            self._extend_schema(message.schema)
        indexes = decode_nodes(message.accounts.indexes, name="accounts.indexes").astype(np.intp)
        for entry in message.nodes:
            check_node_index(entry.index, name="nodes.index")
        highest = max((*(e.index for e in message.nodes), int(indexes.max(initial=-1))), default=-1)
        self._grow(highest + 1)
        of_shard = np.arange(message.shard, self.size, max(self.shards, 1))
        if message.snapshot:
            yield from self._clear(of_shard)
        for start in range(0, len(message.nodes), _SLICE_ROWS):
            entries = message.nodes[start : start + _SLICE_ROWS]
            for entry in entries:
                self._specs[entry.index] = None if entry.removed else node_from_proto(entry.spec)
            yield len(entries) * _ROW_MICROS
        for start in range(0, len(message.groups), _SLICE_ROWS):
            runs = message.groups[start : start + _SLICE_ROWS]
            for run in runs:
                self._count(run)
            yield len(runs) * _ROW_MICROS
        if message.snapshot:
            self._accounts[of_shard] = self._blank(len(of_shard))
            for node in of_shard.tolist():
                self._cards.pop(node, None)
        self._put(indexes, message.accounts, anew={entry.index for entry in message.nodes})
        self._specs_version += message.snapshot or len(message.nodes) > 0
        self._reached(message)
        self._partial.discard(message.shard)

    def _reached(self, message: FeedMessage) -> None:
        self.seqs[message.shard] = message.seq
        holds = set() if message.snapshot else self._holds.get(message.shard, set())
        self._holds[message.shard] = holds.union(message.holds).difference(message.ended_holds)
        self._end_shown(message.shard, message.seq)

    def _extend_schema(self, names: Iterable[str]) -> None:
        if not self.schema.extend(names):
            return
        wider = np.zeros(len(self._accounts), account_dtype(len(self.schema)))
        for name in ("seq", "born", "flags", "described"):
            wider[name] = self._accounts[name]
        known = self._accounts["amounts"].shape[1]
        wider["amounts"][:, :known] = self._accounts["amounts"]
        self._accounts = wider
        more = len(self.schema) - len(self._assumed)
        self._assumed = np.concatenate((self._assumed, np.zeros((more, self._assumed.shape[1]), np.int64)))

    def _grow(self, size: int) -> None:
        more = size - self.size
        if more <= 0:
            return
        more = max(more, self.size, _FIRST_CAPACITY)
        self._accounts = np.concatenate((self._accounts, self._blank(more)))
        self._assumed = np.concatenate(
            (self._assumed, np.zeros((len(self._assumed), more), np.int64)), axis=1
        )
        self._specs.extend([None] * more)
        self._specs_version += 1

    def _blank(self, nodes: int) -> NDArray[Any]:
        blank = np.zeros(nodes, account_dtype(len(self.schema)))
        blank["flags"] = FLAG_GONE
        return blank

    def _clear(self, nodes: NDArray[np.intp]) -> Steps[None]:
        """Forget specs and pods of these nodes. Their accounts and cards are replaced in the last step, with
        the seq: so `digest` is that of `seqs` at any time."""
        for node in nodes.tolist():
            self._specs[node] = None
        of_shard = set(nodes.tolist())
        groups = list(self._repelling)
        for start in range(0, len(groups), _SLICE_ROWS):
            of_slice = groups[start : start + _SLICE_ROWS]
            for group in of_slice:
                pods = self._repelling[group]
                for node in of_shard.intersection(pods):
                    del pods[node]
                if not pods:
                    del self._repelling[group]
            yield len(of_slice) * _ROW_MICROS

    def _put(self, indexes: NDArray[np.intp], accounts: Accounts, *, anew: set[int]) -> None:
        records = decode_accounts(accounts.records, accounts.resources, most=len(self.schema))
        card_indexes = decode_nodes(accounts.card_indexes, name="accounts.card_indexes").tolist()
        cards = decode(accounts.cards, CARDS, name="accounts.cards", rows=len(card_indexes))
        for node in anew.intersection(indexes.tolist()):
            self._cards.pop(node, None)  # what it has now comes with its account
        known = records["amounts"].shape[1]
        for name in ("seq", "born", "flags", "described"):
            self._accounts[name][indexes] = records[name]
        self._accounts["amounts"][indexes, :known] = records["amounts"]
        self._accounts["amounts"][indexes, known:] = 0
        for node, record in zip(card_indexes, cards, strict=True):
            self._cards[node] = record.copy()

    def _count(self, run: GroupRun) -> None:
        group = group_defined(run.group)
        if group.affinity is None or not group.affinity.anti_required:
            return
        nodes = decode_nodes(run.nodes, name="groups.nodes").tolist()
        self._grow(max(nodes, default=-1) + 1)
        pods = self._repelling.setdefault(group, Counter())
        for node in nodes:
            pods[node] += -1 if run.gone else 1
            if not pods[node]:
                del pods[node]
        if not pods:
            del self._repelling[group]

    # From the scheduler

    def assume(self, pods: ProposedPods) -> None:
        """They are proposed."""
        self._add(pods, np.flatnonzero(pods.live), 1)

    def forget(self, pods: ProposedPods, rows: NDArray[np.intp]) -> None:
        """The ledger has none of these rows, or they are elsewhere."""
        rows = rows[pods.live[rows]]
        self._add(pods, rows, -1)
        pods.live[rows] = False

    def committed(self, pods: ProposedPods, seq: int) -> None:
        """The shard committed what is live of them: it counts until the feed gets to `seq`."""
        self._committed.setdefault(pods.shard, deque()).append((seq, pods))
        self._end_shown(pods.shard, self.seqs.get(pods.shard, 0))

    def _end_shown(self, shard: int, seq: int) -> None:
        waiting = self._committed.get(shard)
        if not waiting:
            return
        left: deque[tuple[int, ProposedPods]] = deque()
        for at, pods in waiting:
            if at <= seq:
                self.forget(pods, np.flatnonzero(pods.live))
            else:
                left.append((at, pods))
        self._committed[shard] = left

    def _add(self, pods: ProposedPods, rows: NDArray[np.intp], sign: int) -> None:
        for resource in np.flatnonzero(pods.requests.any(axis=0)).tolist():
            np.add.at(self._assumed[resource], pods.nodes[rows], sign * pods.requests[rows, resource])
        if pods.devices is None:
            return
        for row in rows.tolist():
            count, milli = pods.devices[row].tolist()
            if not count:
                continue
            node = int(pods.nodes[row])
            if sign > 0:
                # As the ledger picks them: it decides in the same order.
                pods.cards[row] = pick_cards(self._cards_used(node).tolist(), count, milli) or ()
            assumed = self._assumed_cards.setdefault(node, np.zeros(CARD_SLOTS, np.uint16))
            slots = list(pods.cards[row])
            assumed[slots] = assumed[slots] + milli if sign > 0 else assumed[slots] - milli
            if not assumed.any():
                del self._assumed_cards[node]

    def _cards_used(self, node: int) -> NDArray[np.uint16]:
        """Thousandths in use of each card of a node, with what is proposed."""
        known = self._cards.get(node)
        if known is None:
            return np.full(CARD_SLOTS, NO_CARD, np.uint16)
        assumed = self._assumed_cards.get(node)
        if assumed is None:
            return known
        return np.where(known == NO_CARD, NO_CARD, known + assumed).astype(np.uint16)

    # For placing

    def snapshot(self) -> NodeSnapshot:
        """A copy of all nodes as they are now."""
        amounts = self._accounts["amounts"]
        allocatable = np.ascontiguousarray(amounts[:, :, 0].T)
        requested = amounts[:, :, 1].T + self._assumed
        cards = np.full((self.size, CARD_SLOTS), NO_CARD, np.uint16) if self._cards else None
        if cards is not None:
            for node in self._cards:
                cards[node] = self._cards_used(node)
            cards.flags.writeable = False
        for column in (allocatable, requested):
            column.flags.writeable = False
        return NodeSnapshot(tuple(self.schema.names), allocatable, requested, tuple(self._specs), cards)

    def request(self, spec: PodSpec) -> NDArray[np.int64] | None:
        """What a pod takes, (resources,); None if it asks for something that no node ever offered."""
        request = np.zeros(len(self.schema), np.int64)
        for name, amount in spec.requests:
            row = self.schema.get(name)
            if row is None:
                return None
            request[row] = amount
        request[PODS] = 1
        return request

    def admitted(self, spec: PodSpec) -> NDArray[np.bool_]:
        """The nodes that let such a pod in, apart from room: (nodes,), a new array."""
        kept = self._admitting.get(spec)
        if kept is None or kept[0] != self._specs_version:
            fits = np.array([node is not None and admits(spec, node) for node in self._specs], np.bool_)
            self._admitting[spec] = kept = (self._specs_version, fits)
        flags = self._accounts["flags"]
        shut = FLAG_GONE if group_of(spec).tolerates_cordon else FLAG_GONE | FLAGS_CLOSED
        mask: NDArray[np.bool_] = kept[1] & ((flags & shut) == 0)
        for group, pods in self._repelling.items():
            for term in _repelling_terms(group, spec):
                mask &= ~self._domains(term.topology_key, pods)
        return mask

    def forget_spec(self, spec: PodSpec) -> None:
        """No class has it any more."""
        self._admitting.pop(spec, None)

    def _domains(self, key: str, pods: Mapping[int, int]) -> NDArray[np.bool_]:
        """The nodes in a domain of the key in which some of these pods are."""
        at = [self._specs[node] for node, count in pods.items() if count > 0]
        values = {dict(node.labels).get(key) for node in at if node is not None} - {None}
        return np.array(
            [node is not None and dict(node.labels).get(key) in values for node in self._specs], np.bool_
        )


@lru_cache(maxsize=4096)
def _repelling_terms(group: PodGroup, spec: PodSpec) -> tuple[PodAffinityTerm, ...]:
    """The required anti-affinity terms of the group that may be about such a pod. Namespaces' labels are not
    known here, so a term that selects namespaces by label counts for all of them."""
    labels = dict(spec.labels)
    return tuple(
        term
        for term in (() if group.affinity is None else group.affinity.anti_required)
        if term.selector is not None
        and term.selector.matches(labels)
        and (spec.namespace in term.namespaces or term.namespace_selector is not None)
    )
