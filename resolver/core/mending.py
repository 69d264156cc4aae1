"""What an audit's repair changes on a shard: accounts, cards, ports and group counts become what the reservations add up to.

Reservations are what pods were promised, so they are never touched; what they alone cannot say is left and told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.wire.account import CARD_CLOSED, CARD_SLOTS, CARDS, NO_CARD, account_dtype
from hoss.wire.columns import U32, uid_text
from resolver.core.ports import Claim, port_text
from resolver.core.tallies import tally
from resolver.core.values import PortHold, ShardState


@dataclass(slots=True)
class Mending:
    """New values of what differs, all nodes by index; and sentences about it. Empty: nothing to do."""

    accounts: dict[int, Any] = field(default_factory=dict)  # account_dtype(R) records
    cards: dict[int, NDArray[np.uint16]] = field(default_factory=dict)
    ports: dict[int, list[PortHold]] = field(default_factory=dict)
    group_pods: dict[int, int] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)
    remaining: list[str] = field(default_factory=list)

    @property
    def untold(self) -> bool:
        """Whether more changes than accounts and cards: which pods there are, and what they hold. An entry of the feed has no words
        for that."""
        return bool(self.ports or self.group_pods)


class _Texts(NamedTuple):
    """How things are called."""

    schema: Sequence[str]
    names: Mapping[int, str]

    def node(self, index: int) -> str:
        return f"node {self.names.get(index, f'index {index}')}"


def mend(
    state: ShardState, claims: Mapping[int, Sequence[Claim]], schema: Sequence[str], names: Mapping[int, str]
) -> Mending:
    """What to change so that the shard agrees with its reservations. `claims`: see tally."""
    rows = state.snapshot.accounts
    indexes = np.frombuffer(rows.indexes, U32)
    records = state.reservations.records
    sums = tally(indexes, state.reservations.uids, records, claims)
    found = Mending()
    for row in sums.lost.tolist():
        uid, node = uid_text(state.reservations.uids[row].tobytes()), int(records["node"][row])
        found.remaining.append(
            f"pod {uid} holds a reservation on index {node}, where there is no node; delete the pod, or restore the node"
        )
    resources = max(rows.resources, sums.requested.shape[1])
    accounts = np.zeros(len(indexes), account_dtype(resources))
    old = np.frombuffer(rows.records, account_dtype(rows.resources))
    for name in ("seq", "born", "flags"):
        accounts[name] = old[name]
    accounts["amounts"][:, : rows.resources] = old["amounts"]
    texts = _Texts(schema, names)
    _mend_amounts(found, indexes, accounts, sums.requested, texts)
    _mend_cards(found, rows.card_indexes, rows.cards, dict(zip(indexes.tolist(), sums.cards, strict=True)), texts)
    _mend_ports(found, state.ports, sums.ports, texts)
    for key in sorted(sums.group_pods.keys() | state.groups.keys()):
        definition, counted = state.groups.get(key, (b"", 0))
        pods = sums.group_pods.get(key, 0)
        if pods and not definition:
            found.remaining.append(f"group {key:016x} has {pods} pods and no definition; it returns with them")
        elif counted != pods:
            found.group_pods[key] = pods
            found.changes.append(f"group {key:016x}: {counted} pods counted, now {pods}")
    # A node whose cards or ports change shows it in its account: caches and refusals go by that.
    for node in found.cards.keys() | found.ports.keys():
        row = np.flatnonzero(indexes == node)
        if len(row):
            found.accounts[node] = accounts[row[0]]
    return found


def _mend_amounts(
    found: Mending,
    indexes: NDArray[np.uint32],
    accounts: NDArray[Any],
    requested: NDArray[np.int64],
    texts: _Texts,
) -> None:
    right = np.zeros(accounts["amounts"].shape[:2], np.int64)
    right[:, : requested.shape[1]] = requested
    has = accounts["amounts"][:, :, 1].copy()
    accounts["amounts"][:, :, 1] = right
    for row, resource in zip(*np.nonzero(has != right), strict=True):
        node = int(indexes[row])
        found.accounts[node] = accounts[row]
        found.changes.append(
            f"{texts.node(node)}: {texts.schema[resource]} requested {has[row, resource]}, now {right[row, resource]}"
        )


def _mend_cards(
    found: Mending, card_indexes: bytes, cards: bytes, sums: Mapping[int, NDArray[np.int64]], texts: _Texts
) -> None:
    kept = dict(
        zip(
            np.frombuffer(card_indexes, U32).tolist(),
            np.frombuffer(cards, CARDS.base).reshape(-1, *CARDS.shape),
            strict=True,
        )
    )
    for node, right in sums.items():
        used = kept.get(node, np.full(CARD_SLOTS, NO_CARD, np.uint16))
        mended = with_use(used, right)
        if (mended != used).any():
            found.cards[node] = mended
            for slot in np.flatnonzero(mended != used).tolist():
                found.changes.append(
                    f"{texts.node(node)}: card {slot} has {_in_use(used[slot])} thousandths in use, now {_in_use(mended[slot])}"
                )


def with_use(cards: NDArray[np.uint16], use: NDArray[np.int64]) -> NDArray[np.uint16]:
    """The node's cards, (16,), with so many thousandths of each in use. One that is not there, or not any more, is closed
    while anything of it is used."""
    there = cards < CARD_CLOSED
    return np.where(there, use, np.where(use > 0, CARD_CLOSED + use, NO_CARD)).astype(np.uint16)


def _mend_ports(
    found: Mending,
    held: Mapping[int, Sequence[PortHold]],
    right: Mapping[int, Sequence[PortHold]],
    texts: _Texts,
) -> None:
    for node in sorted(held.keys() | right.keys()):
        gone, come = (
            set(held.get(node, ())) - set(right.get(node, ())),
            set(right.get(node, ())) - set(held.get(node, ())),
        )
        if gone or come:
            found.ports[node] = list(right.get(node, ()))
        for verb, holds in (("no more", gone), ("again", come)):
            found.changes += [
                f"{texts.node(node)}: port {port_text(claim)} is {verb} held by pod {uid_text(uid)}"
                for uid, claim in sorted(holds)
            ]


def _in_use(milli: int) -> int:
    return 0 if milli == NO_CARD else int(milli) & (CARD_CLOSED - 1)
