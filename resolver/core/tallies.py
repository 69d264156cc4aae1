"""What reservations add up to: the amounts, cards, ports and groups that a shard's accounts are to show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.wire.account import CARD_SLOTS
from hoss.wire.columns import Uids
from resolver.core.ports import Claim
from resolver.core.values import HOLDS_PORTS, PortHold


@dataclass(frozen=True, slots=True)
class Tallies:
    """Sums by node, beside the nodes asked for, and by group."""

    requested: NDArray[np.int64]  # (m, R)
    cards: NDArray[np.int64]  # (m, 16), thousandths
    ports: dict[int, list[PortHold]]  # by node, of those that hold any
    group_pods: dict[int, int]  # by the group's key
    lost: NDArray[np.intp]  # rows of reservations on none of the nodes


def tally(
    nodes: NDArray[np.uint32], uids: Uids, records: NDArray[Any], claims: Mapping[int, Sequence[Claim]]
) -> Tallies:
    """Add up the reservations `records` (reservation_dtype(R), (n,)) of pods `uids` on `nodes` ((m,), each once).

    `claims`: by a group's key the ports that each of its pods holds.
    """
    order = np.argsort(nodes)
    at = np.searchsorted(nodes[order], records["node"]).clip(max=max(len(nodes) - 1, 0))
    rows = order[at] if len(nodes) else np.zeros(len(records), np.intp)
    there = nodes[rows] == records["node"] if len(nodes) else np.zeros(len(records), np.bool_)
    requested = np.zeros((len(nodes), records["requests"].shape[1]), np.int64)
    np.add.at(requested, rows[there], records["requests"][there])
    cards = np.zeros((len(nodes), CARD_SLOTS), np.int64)
    carded = np.flatnonzero(there & (records["card_mask"] > 0))
    held = (records["card_mask"][carded, None] >> np.arange(CARD_SLOTS)) & 1
    np.add.at(cards, rows[carded], held.astype(np.int64) * records["card_milli"][carded, None])
    ports: dict[int, list[PortHold]] = {}
    for row in np.flatnonzero(there & ((records["flags"] & HOLDS_PORTS) > 0)).tolist():
        held_here = ports.setdefault(int(records["node"][row]), [])
        held_here += [(uids[row].tobytes(), claim) for claim in claims.get(int(records["group"][row]), ())]
    keys, counts = np.unique(records["group"][records["group"] != 0], return_counts=True)
    group_pods = dict(zip(keys.tolist(), counts.tolist(), strict=True))
    return Tallies(requested, cards, ports, group_pods, np.flatnonzero(~there))
