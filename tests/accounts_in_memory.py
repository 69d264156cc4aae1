"""The ledger as a worker's core sees it, made by hand: accounts of one shard, and the feed's messages that
tell of them.

Its tests want flags, numbers and answers that a real ledger gives in rare moments alone. What both do is held
to one contract, in tests/contract/test_followed_ledger.py.
"""

from dataclasses import dataclass, field

import numpy as np

from hoss.model.node import NodeSpec
from hoss.model.resources import BASE_RESOURCES
from hoss.v1 import resolver_pb2
from hoss.wire.columns import CARD_SLOTS, FLAG_GONE, NO_CARD, U32, account_dtype, encode
from hoss.wire.convert import node_to_proto
from hoss.wire.convert_rules import definition_of
from scheduler_worker.core.messages import AccountBatch, FeedUpdate, Verdicts

GIB = 2**30
COMMITTED, DUPLICATE, REFUSED, STALE_EPOCH = 1, 2, 3, 9


@dataclass
class AccountsInMemory:
    """See above."""

    schema: tuple[str, ...] = BASE_RESOURCES
    shards: int = 1
    seq: int = 1
    specs: dict[int, NodeSpec] = field(default_factory=dict)
    allocatable: dict[int, dict[str, int]] = field(default_factory=dict)
    requested: dict[int, np.ndarray] = field(default_factory=dict)
    cards: dict[int, np.ndarray] = field(default_factory=dict)
    flags: dict[int, int] = field(default_factory=dict)
    changed_at: dict[int, int] = field(default_factory=dict)

    def add(self, index, *, cards=0, flags=0, name=None, **fields):
        amounts = fields.pop("allocatable", {"cpu": 4000, "memory": 8 * GIB, "pods": 110})
        self.specs[index] = NodeSpec(name or f"node-{index}", cards=cards, **fields)
        self.allocatable[index] = amounts
        self.requested[index] = np.zeros(len(self.schema), np.int64)
        self.flags[index] = flags
        self.changed_at[index] = self.seq
        if cards:
            self.cards[index] = np.array([0] * cards + [NO_CARD] * (CARD_SLOTS - cards), np.uint16)
        return self

    def accounts(self, indexes):
        records = np.zeros(len(indexes), account_dtype(len(self.schema)))
        for row, index in enumerate(indexes):
            records["seq"][row] = self.changed_at[index]
            records["flags"][row] = self.flags[index]
            for name, amount in self.allocatable[index].items():
                records["amounts"][row, self.schema.index(name), 0] = amount
            records["amounts"][row, :, 1] = self.requested[index]
        carded = [i for i in indexes if i in self.cards]
        cards = np.array([self.cards[i] for i in carded], np.uint16).reshape(-1, CARD_SLOTS)
        return AccountBatch(np.array(indexes, np.uint32), records, np.array(carded, np.uint32), cards)

    def snapshot(self):
        return FeedUpdate(
            shard=0,
            seq=self.seq,
            accounts=self.accounts(sorted(self.specs)),
            specs=tuple(sorted(self.specs.items())),
            snapshot=True,
            shards=self.shards,
            schema=self.schema,
        )

    def snapshot_message(self, *groups):
        """`snapshot` as a resolver sends it, with a pod of each of these groups on each of these nodes:
        (group, nodes)."""
        of = self.accounts(sorted(self.specs))
        return resolver_pb2.FeedMessage(
            seq=self.seq,
            snapshot=True,
            shards=self.shards,
            schema=self.schema,
            nodes=[
                resolver_pb2.NodeEntry(index=index, spec=node_to_proto(spec))
                for index, spec in sorted(self.specs.items())
            ],
            accounts=resolver_pb2.Accounts(
                resources=len(self.schema),
                indexes=of.indexes.tobytes(),
                records=of.records.tobytes(),
                card_indexes=of.card_indexes.tobytes(),
                cards=of.cards.tobytes(),
            ),
            groups=[
                resolver_pb2.GroupRun(group=definition_of(group), nodes=encode(nodes, U32))
                for group, nodes in groups
            ],
        )

    def reserve(self, nodes, requests):
        """Commit pods; the feed entry that says so."""
        self.seq += 1
        for node, request in zip(nodes, requests, strict=True):
            self.requested[node] = self.requested[node] + np.pad(
                request, (0, len(self.schema) - len(request))
            )
            self.changed_at[node] = self.seq
        return self.delta(sorted(set(nodes)))

    def delta(self, indexes, **fields):
        return FeedUpdate(shard=0, seq=self.seq, accounts=self.accounts(indexes), **fields)

    def remove(self, index):
        self.seq += 1
        self.flags[index] = FLAG_GONE
        self.changed_at[index] = self.seq
        return self.delta([index], specs=((index, None),))

    def commit(self, columns):
        """Say yes to a whole proposal: (verdicts, feed entry)."""
        nodes = columns.candidates[:, 0]
        update = self.reserve(nodes.tolist(), columns.requests[columns.slots])
        return self.answer(columns, COMMITTED, seq=self.seq), update

    def answer(self, columns, verdict, *, seq=0, nodes=None, duplicate_seqs=(), fresh=()):
        count = len(columns.uids)
        return Verdicts(
            seq=seq,
            verdicts=np.broadcast_to(np.array(verdict, np.uint8), count),
            nodes=columns.candidates[:, 0] if nodes is None else np.array(nodes, np.uint32),
            duplicate_seqs=np.array(duplicate_seqs, np.uint64),
            fresh=self.accounts(list(fresh)),
        )
