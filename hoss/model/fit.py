"""What "fits" means: the one definition that workers filter by and the ledger validates by.

The ledger's script has the same definition in Lua; tests/property compares the two.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.model.resources import WHOLE_CARD_MILLI


def insufficient(
    allocatable: NDArray[np.int64], requested: NDArray[np.int64], request: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which resources refuse which nodes: (resources, nodes) of bool.

    `allocatable` and `requested` are (resources, nodes), `request` is (resources,), all in schema units. A
    resource of which nothing is asked never refuses, even where it is overcommitted (kube-scheduler's
    NodeResourcesFit). Compared by subtraction from allocatable: a shrunken node has requested > allocatable.
    """
    wanted = request[:, None]
    short: NDArray[np.bool_] = (wanted > 0) & (wanted > allocatable - requested)
    return short


def fits(
    allocatable: NDArray[np.int64], requested: NDArray[np.int64], request: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which nodes have room for `request` in every resource: (nodes,) of bool. Shapes as in
    `insufficient`."""
    ok: NDArray[np.bool_] | None = None
    for row, amount in enumerate(request.tolist()):
        if amount > 0:
            enough = allocatable[row] - requested[row] >= amount
            ok = enough if ok is None else np.logical_and(ok, enough, out=ok)
    return np.ones(allocatable.shape[1], np.bool_) if ok is None else ok


def each_fits(
    allocatable: NDArray[np.int64], requested: NDArray[np.int64], requests: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """`fits` for k pods, each on m nodes of its own: (k, m) of bool, from amounts (resources, k, m) and
    requests (resources, k, 1)."""
    ok: NDArray[np.bool_] = np.ones(allocatable.shape[1:], np.bool_)
    for row, amounts in enumerate(requests):
        if amounts.any():
            ok &= (allocatable[row] - requested[row] >= amounts) | (amounts == 0)
    return ok


def cards_fit(used_milli: NDArray[Any], count: int, milli: int) -> NDArray[np.bool_]:
    """Which nodes have `count` cards with `milli` thousandths free each: (nodes,) of bool.

    `used_milli` is (nodes, slots) of u16; an absent card counts 0xFFFF and so is never free.
    """
    ok: NDArray[np.bool_] = (used_milli <= WHOLE_CARD_MILLI - milli).sum(axis=1) >= count
    return ok


def pick_cards(used_milli: Sequence[int], count: int, milli: int) -> tuple[int, ...] | None:
    """The cards that a pod gets on a node: the fullest that fit, the first of equal ones. None where too few
    fit.

    Best fit keeps whole cards free. Worker and ledger pick by the same rule, so that their accounts agree.
    """
    open_slots = [slot for slot, used in enumerate(used_milli) if used <= WHOLE_CARD_MILLI - milli]
    if len(open_slots) < count:
        return None
    open_slots.sort(key=lambda slot: -used_milli[slot])  # stable: equal cards stay in slot order
    return tuple(sorted(open_slots[:count]))


def card_mask(slots: Iterable[int]) -> int:
    """Cards as bits, by slot."""
    return sum(1 << slot for slot in slots)


def take_cards(used_milli: NDArray[Any], nodes: Iterable[int], count: int, milli: int) -> NDArray[np.bool_]:
    """Whether the cards of its node hold each of these pods, in turn: (pods,) of bool. Those that fit are
    added to `used_milli`, (nodes, slots) of u16, on the cards that the ledger picks."""
    held = []
    for node in nodes:
        picked = pick_cards(used_milli[node].tolist(), count, milli)
        held.append(picked is not None)
        for slot in picked or ():
            used_milli[node, slot] += milli
    return np.array(held, np.bool_)


def pods_on_cards(used_milli: NDArray[Any], count: int, milli: int) -> NDArray[np.int64]:
    """How many more pods the cards of each node hold: (nodes,). For whole cards or a share of one. For shares
    of several cards it would depend on how the first pods spread."""
    free = np.maximum(WHOLE_CARD_MILLI - used_milli.astype(np.int64), 0)
    pods: NDArray[np.int64] = (free // max(milli, 1)).sum(axis=1) // max(count, 1)
    return pods
