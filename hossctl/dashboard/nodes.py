"""How full every node is, for the heat map.

`NodeTable` follows the node feed by a subscription of its own, only while there are viewers: decoding the
accounts of every commit would cost too much for nobody. A cell is one byte per node and resource."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.model.node import NOISY_LABEL
from hoss.model.resources import written_amount
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import (
    CARD_CLOSED,
    CARDS,
    FLAG_QUARANTINED,
    FLAG_SHRUNK,
    FLAG_UNSCHEDULABLE,
    U32,
    account_dtype,
    decode,
)

CARD_RESOURCE = "cards"
RESOURCES = ("cpu", "memory", "pods", CARD_RESOURCE)

FULL = 200  # of a cell: all of what the node has is requested
OVER = 201  # more than all of it
NOTHING = 255  # the node has nothing of that resource

_WHOLE_CARD_MILLI = 1000
_STATE_FLAGS = {"cordoned": FLAG_UNSCHEDULABLE, "quarantined": FLAG_QUARANTINED, "shrunk": FLAG_SHRUNK}
_ANY_STATE = FLAG_UNSCHEDULABLE | FLAG_QUARANTINED | FLAG_SHRUNK


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The heat map, by node index. `values` is (nodes, RESOURCES + 1): half per cents requested (0 to FULL,
    OVER, NOTHING), then the account's flags. Equal `generation`: the same nodes in the same order."""

    generation: int = 0
    names: tuple[str, ...] = ()
    values: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, len(RESOURCES) + 1), np.uint8))
    allocatable: tuple[int, ...] = (0,) * len(RESOURCES)  # of all nodes, schema units; cards in thousandths
    requested: tuple[int, ...] = (0,) * len(RESOURCES)


class NodeTable:
    """Follows the feed with `apply`."""

    def __init__(self) -> None:
        self._generation = 0
        self._schema: list[str] = []
        self._specs: dict[int, common_pb2.NodeSpec] = {}
        self._index: dict[str, int] = {}
        self._amounts = np.zeros((0, len(RESOURCES), 2), np.int64)  # allocatable, requested
        self._flags = np.zeros(0, np.uint32)

    def apply(self, message: pb.FeedMessage) -> None:
        """Take in one message. Raises ColumnError where its columns disagree."""
        self._schema = list(message.schema) or self._schema
        if message.snapshot:
            self._forget([index for index in self._specs if index % max(1, message.shards) == message.shard])
        for entry in message.nodes:
            self._take_entry(entry)
        self._take_accounts(message.accounts)
        for entry in message.nodes:
            if not entry.removed:
                self._amounts[entry.index, RESOURCES.index(CARD_RESOURCE), 0] = (
                    entry.spec.cards * _WHOLE_CARD_MILLI
                )

    def cells(self) -> Cells:
        rows = np.array(sorted(self._specs), np.intp)
        amounts = self._amounts[rows]
        allocatable, requested = amounts[:, :, 0], amounts[:, :, 1]
        # Rounded up, so that a node with one small pod is not shown as empty.
        share = np.ceil(requested * float(FULL) / np.maximum(allocatable, 1))
        values = np.empty((len(rows), len(RESOURCES) + 1), np.uint8)
        values[:, :-1] = np.where(requested > allocatable, OVER, np.clip(share, 0, FULL))
        values[:, :-1][(allocatable <= 0) & (requested <= 0)] = NOTHING
        values[:, -1] = self._flags[rows] & (FLAG_UNSCHEDULABLE | FLAG_SHRUNK | FLAG_QUARANTINED)
        return Cells(
            self._generation,
            tuple(self._specs[row].name for row in rows.tolist()),
            values,
            tuple(allocatable.sum(axis=0).tolist()),
            tuple(requested.sum(axis=0).tolist()),
        )

    def node(self, name: str) -> dict[str, Any] | None:
        """One node for JSON; None if there is no node of that name."""
        index = self._index.get(name)
        if index is None:
            return None
        flags = int(self._flags[index])
        labels = {label.key: label.value for label in self._specs[index].labels}
        return {
            "name": name,
            "resources": [
                {
                    "name": resource,
                    "requested": _written(resource, requested),
                    "allocatable": _written(resource, allocatable),
                    "share": round(requested / allocatable, 4) if allocatable else 1.0,
                }
                for resource, (allocatable, requested) in zip(
                    RESOURCES, self._amounts[index].tolist(), strict=True
                )
                if allocatable or requested
            ],
            "labels": labels,
            "noisy": labels.get(NOISY_LABEL) == "true",
            "cordoned": bool(flags & FLAG_UNSCHEDULABLE),
            "quarantined": bool(flags & FLAG_QUARANTINED),
            "shrunk": bool(flags & FLAG_SHRUNK),
        }

    def names_with(self, part: str, label: str, state: str) -> list[str]:
        """The names of nodes, in order: those that contain `part`, have the label ("KEY=VALUE" or "KEY") and
        are in a state (cordoned, quarantined, shrunk; "open": in none of these). Empty: every node."""
        key, equals, value = label.partition("=")
        flag = _STATE_FLAGS.get(state, 0)
        found = []
        for name, index in self._index.items():
            flags = int(self._flags[index])
            if part not in name or (flag and not flags & flag) or (state == "open" and flags & _ANY_STATE):
                continue
            if key and not any(
                pair.key == key and (not equals or pair.value == value) for pair in self._specs[index].labels
            ):
                continue
            found.append(name)
        return sorted(found)

    def fullness(self, name: str) -> float:
        """The share that is requested of the node's resource of which most is."""
        allocatable, requested = self._amounts[self._index[name]].T
        return float((requested / np.maximum(allocatable, 1))[allocatable > 0].max(initial=0.0))

    def _take_entry(self, entry: pb.NodeEntry) -> None:
        known = self._specs.get(entry.index)
        if known is not None and (entry.removed or known.name != entry.spec.name):
            self._forget([entry.index])
            known = None
        if not entry.removed:
            self._specs[entry.index] = entry.spec
            self._index[entry.spec.name] = entry.index
            self._generation += known is None

    def _take_accounts(self, accounts: pb.Accounts) -> None:
        indexes = decode(accounts.indexes, U32, name="accounts.indexes").astype(np.intp)
        records = decode(
            accounts.records, account_dtype(accounts.resources), name="accounts.records", rows=len(indexes)
        )
        card_indexes = decode(accounts.card_indexes, U32, name="accounts.card_indexes").astype(np.intp)
        cards = decode(accounts.cards, CARDS, name="accounts.cards", rows=len(card_indexes))
        self._reserve(1 + max((int(i.max()) for i in (indexes, card_indexes) if len(i)), default=-1))
        self._reserve(1 + max(self._specs, default=-1))
        for column, resource in enumerate(RESOURCES):
            if resource in self._schema[: accounts.resources]:
                self._amounts[indexes, column] = records["amounts"][:, self._schema.index(resource)]
        self._flags[indexes] = records["flags"]
        used = np.where(cards < CARD_CLOSED, cards, 0).sum(axis=1)
        self._amounts[card_indexes, RESOURCES.index(CARD_RESOURCE), 1] = used

    def _forget(self, indexes: list[int]) -> None:
        for index in indexes:
            name = self._specs.pop(index).name
            if self._index.get(name) == index:
                del self._index[name]
            self._amounts[index] = self._flags[index] = 0
        self._generation += bool(indexes)

    def _reserve(self, size: int) -> None:
        more = size - len(self._flags)
        if more > 0:
            more = max(more, len(self._flags))
            self._amounts = np.concatenate((self._amounts, np.zeros((more, len(RESOURCES), 2), np.int64)))
            self._flags = np.concatenate((self._flags, np.zeros(more, np.uint32)))


def _written(resource: str, amount: int) -> str:
    return (
        f"{amount / _WHOLE_CARD_MILLI:g}" if resource == CARD_RESOURCE else written_amount(resource, amount)
    )
