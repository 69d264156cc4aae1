"""How much of the free room of a pool of nodes pods can use.

Room is free in the sum and lost in pieces: on nodes where another resource is full, and on cards of which a
part is taken. scheduler_worker.core.plugins.devices.fragmentation has the measure of Weng et al. ("Beware of
Fragmentation", USENIX ATC 2023) for cards. Here it is generalised to every resource. For a mix of pod classes
k with weights p_k, a node n and a resource r,

    usable_nr = free_nr x sum of p_k over the classes that request r and fit on n
                          / sum of p_k over the classes that request r

A class fits on a node if every resource and the cards suffice for one whole pod. Unlike the paper's measure,
classes that do not request r say nothing about it: otherwise a cluster that runs many small pods could never
have usable cards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import cards_fit
from hoss.model.pod import DeviceRequest
from hoss.model.resources import CPU, MEMORY, PODS, WHOLE_CARD_MILLI
from scheduler_worker.core.cache.assumptions import pods_that_fit
from scheduler_worker.core.nodes import Mask
from scheduler_worker.core.plugins.devices.fragmentation import (
    Popularity,
    TaskClass,
    fragmentation,
    free_on_cards,
)

# A mix keeps the most frequent classes. The others hardly change a mean.
MOST_CLASSES = 256
# A resource of a node is full if fewer than this share of the pods that request it would find enough.
_FULL = 0.1
# Requests are rounded up to so few classes when nodes are emptied on paper.
_CLASSES_TO_EMPTY = 16
_EMPTYING_PRECISION = 30  # the answer is exact to one part in so many


@dataclass(frozen=True, slots=True, eq=False)
class NodeRoom:
    """n nodes that take pods, with R resources in schema units."""

    resources: Sequence[str]  # R names
    allocatable: NDArray[np.int64]  # (R, n)
    requested: NDArray[np.int64]  # (R, n)
    cards_used: NDArray[np.uint16]  # (n, slots), NO_CARD for an absent card

    @property
    def free(self) -> NDArray[np.int64]:
        """(R, n), 0 where a node shrank below what is requested."""
        free: NDArray[np.int64] = np.maximum(self.allocatable - self.requested, 0)
        return free

    def at(self, nodes: NDArray[np.intp] | Mask) -> "NodeRoom":
        """Some of the nodes."""
        return NodeRoom(
            self.resources, self.allocatable[:, nodes], self.requested[:, nodes], self.cards_used[nodes]
        )


@dataclass(frozen=True, slots=True, eq=False)
class RequestMix:
    """k classes of pods with their weights. A class requests `milli` of each of `cards` cards, or no card."""

    requests: NDArray[np.int64]  # (R, k)
    cards: NDArray[np.int64]  # (k,)
    milli: NDArray[np.int64]  # (k,), 0 without cards
    weights: NDArray[np.float64]  # (k,), adding up to 1; or none at all
    # (k, n): which nodes admit the class by their specs (labels, taints). None: all.
    admitted: Mask | None = None

    @classmethod
    def of(
        cls,
        requests: NDArray[np.int64],
        devices: Sequence[DeviceRequest | None],
        pods: NDArray[np.int64],
        *,
        admitted: Mask | None = None,
        most: int = MOST_CLASSES,
    ) -> "RequestMix":
        """From the number of pods of each class. Classes without pods, and beyond the `most` frequent ones,
        are left out."""
        order = np.argsort(-pods, kind="stable")[:most]
        kept = order[pods[order] > 0]
        cards = np.array([0 if device is None else device.count for device in devices], np.int64)
        milli = np.array([0 if device is None else device.milli for device in devices], np.int64)
        return cls(
            requests[:, kept],
            cards[kept],
            milli[kept],
            pods[kept] / max(int(pods[kept].sum()), 1),
            None if admitted is None else admitted[kept],
        )

    def __len__(self) -> int:
        return len(self.cards)

    def on(self, nodes: Mask) -> "RequestMix":
        """The same mix for some of the nodes."""
        return self if self.admitted is None else replace(self, admitted=self.admitted[:, nodes])

    def popularity(self) -> Popularity:
        """The mix as the paper's workload."""
        columns = np.stack((self.requests[CPU], self.requests[MEMORY], self.cards, self.milli)).T.tolist()
        counts: dict[TaskClass, int] = {}
        # Whole numbers of pods; a class of a million is not lost.
        for row, weight in zip(columns, self.weights.tolist(), strict=True):
            task = TaskClass(*row)
            counts[task] = counts.get(task, 0) + round(weight * 1_000_000)
        return Popularity.of(counts)


class ResourceRoom(NamedTuple):
    """One resource of a pool."""

    resource: str
    allocatable: int
    free: int
    usable: float  # of `free`, by the usual mix
    usable_by_waiting: float | None  # the same by the pods that wait; None: none of them requests it


class Stranded(NamedTuple):
    """Free room that no pod comes for, because another resource of its nodes is full."""

    resource: str
    beside: str
    amount: int
    nodes: int


class CardRoom(NamedTuple):
    """The cards of a pool. Amounts are thousandths of a card."""

    cards: int
    free_milli: int
    whole_free: int  # cards that are free
    in_pieces: int  # cards of which a part is free
    free_in_pieces_milli: int  # on those
    fragments_milli: float  # FGD's measure, by the usual mix
    fragments_of_waiting_milli: float | None  # by the pods that wait; None: none of them requests cards


class LargestPod(NamedTuple):
    """How much of one pod of a class fits on the node that comes closest, and how many whole pods fit in all,
    each class alone."""

    share: float  # 1 and more: a whole pod fits
    node: int  # position; -1: no node admits the class
    limited_by: str  # the scarcest resource there; "cards" for cards
    pods: int


@dataclass(frozen=True, slots=True)
class UsableRoom:
    """The measure of a pool."""

    nodes: int
    resources: tuple[ResourceRoom, ...]  # those that any node offers
    stranded: tuple[Stranded, ...]  # the largest share of the pool first
    cards: CardRoom | None  # None: no node has cards


def measure(room: NodeRoom, usual: RequestMix, waiting: RequestMix) -> UsableRoom:
    """What is free in the pool, and what of it the two mixes of pods can use."""
    free = room.free
    usual_share, waiting_share = usable_share(room, usual), usable_share(room, waiting)
    resources = []
    for row, name in enumerate(room.resources):
        total = int(room.allocatable[row].sum())
        if total:
            by_waiting = None
            if waiting_share is not None and waiting.requests[row].any():
                by_waiting = float((free[row] * waiting_share[row]).sum())
            # Without any pods to go by, all that is free counts as usable.
            wanted = usual_share is not None and bool(usual.requests[row].any())
            by_usual = (
                float((free[row] * usual_share[row]).sum())
                if wanted and usual_share is not None
                else float(free[row].sum())
            )
            resources.append(ResourceRoom(name, total, int(free[row].sum()), by_usual, by_waiting))
    return UsableRoom(
        room.allocatable.shape[1],
        tuple(resources),
        _stranded(room, free, usual),
        _cards(room, free, usual, waiting),
    )


def fitting(room: NodeRoom, mix: RequestMix) -> Mask:
    """Which nodes have room for a whole pod of each class: (k, n)."""
    free = room.free
    fits = np.ones((len(mix), free.shape[1]), np.bool_) if mix.admitted is None else mix.admitted.copy()
    for row in np.flatnonzero(mix.requests.any(axis=1)).tolist():
        # Fewer different amounts than classes.
        amounts, of_class = np.unique(mix.requests[row], return_inverse=True)
        enough = (free[row] >= amounts[:, None]) | (amounts == 0)[:, None]
        fits &= enough[of_class.reshape(-1)]
    shapes: dict[tuple[int, int], list[int]] = {}
    for number in np.flatnonzero(mix.cards).tolist():
        shapes.setdefault((int(mix.cards[number]), int(mix.milli[number])), []).append(number)
    for (count, milli), classes in shapes.items():
        fits[classes] &= cards_fit(room.cards_used, count, milli)
    return fits


def usable_share(room: NodeRoom, mix: RequestMix) -> NDArray[np.float64] | None:
    """By which share of the mix each resource of each node is usable: (R, n). None for an empty mix."""
    if not len(mix):
        return None
    weights = (mix.requests > 0) * mix.weights  # (R, k)
    total = weights.sum(axis=1, keepdims=True)
    fits = fitting(room, mix).astype(np.float32)
    # einsum and no matrix product: its threads would keep other processes' cores busy.
    found: NDArray[np.float64] = np.einsum("rk,kn->rn", weights.astype(np.float32), fits, optimize=False)
    return found / np.where(total > 0, total, 1.0)


def _stranded(room: NodeRoom, free: NDArray[np.int64], usual: RequestMix) -> tuple[Stranded, ...]:
    if not len(usual):
        return ()
    counted = [row for row in range(len(room.resources)) if usual.requests[row].any()]
    full: dict[int, Mask] = {}
    for row in counted:
        requests, weights = usual.requests[row], usual.weights
        asking = np.flatnonzero(requests)
        order = asking[np.argsort(requests[asking], kind="stable")]
        served = np.cumsum(weights[order]) / weights[asking].sum()
        least = int(requests[order[min(int(np.searchsorted(served, _FULL)), len(order) - 1)]])
        full[row] = (free[row] < least) & (room.allocatable[row] > 0)
    found = []
    for row in counted:
        if row == PODS:
            continue  # a place for a pod has no use by itself
        left = ~full[row] & (free[row] > 0)
        for other in counted:
            on = left & full[other] if other != row else np.zeros_like(left)
            if on.any():
                amount = int(free[row, on].sum())
                found.append(Stranded(room.resources[row], room.resources[other], amount, int(on.sum())))
                left &= ~on
    totals = dict(zip(room.resources, room.allocatable.sum(axis=1).tolist(), strict=True))
    return tuple(sorted(found, key=lambda entry: -entry.amount / max(totals[entry.resource], 1)))


def _cards(
    room: NodeRoom, free: NDArray[np.int64], usual: RequestMix, waiting: RequestMix
) -> CardRoom | None:
    present = room.cards_used <= WHOLE_CARD_MILLI
    if not present.any():
        return None
    carded = np.flatnonzero(present.any(axis=1))
    on_cards = free_on_cards(room.cards_used[carded])
    cpu, memory = free[CPU, carded], free[MEMORY, carded]
    partly = (on_cards > 0) & (on_cards < WHOLE_CARD_MILLI)
    by_waiting = None
    if waiting.cards.any():
        by_waiting = float(fragmentation(waiting.popularity(), cpu, memory, on_cards).sum())
    return CardRoom(
        cards=int(present.sum()),
        free_milli=int(on_cards.sum()),
        whole_free=int((on_cards == WHOLE_CARD_MILLI).sum()),
        in_pieces=int(partly.sum()),
        free_in_pieces_milli=int(on_cards[partly].sum()),
        fragments_milli=float(fragmentation(usual.popularity(), cpu, memory, on_cards).sum()),
        fragments_of_waiting_milli=by_waiting,
    )


def largest_pods(room: NodeRoom, waiting: RequestMix) -> list[LargestPod]:
    """For each class how much of one pod fits anywhere, each class alone."""
    free = room.free
    found = []
    for number in range(len(waiting)):
        at = np.arange(free.shape[1])
        if waiting.admitted is not None:
            at = np.flatnonzero(waiting.admitted[number])
        if not len(at):
            found.append(LargestPod(0.0, -1, "", 0))
            continue
        names, shares, pods = _shares(room, free, waiting, number, at)
        scarcest = shares.min(axis=0)
        best = int(scarcest.argmax())
        found.append(
            LargestPod(
                float(scarcest[best]),
                int(at[best]),
                names[int(shares[:, best].argmin())],
                int(np.minimum.reduce(pods).sum()),
            )
        )
    return found


def _shares(
    room: NodeRoom, free: NDArray[np.int64], mix: RequestMix, number: int, at: NDArray[np.intp]
) -> tuple[list[str], NDArray[np.float64], list[NDArray[np.int64]]]:
    """By requested resource: its name, how much of one pod it holds on the nodes `at`, and how many pods."""
    request = mix.requests[:, number]
    rows = np.flatnonzero(request)
    names = [room.resources[row] for row in rows.tolist()]
    shares = [free[row, at] / request[row] for row in rows.tolist()]
    pods = [free[row, at] // request[row] for row in rows.tolist()]
    count, milli = int(mix.cards[number]), int(mix.milli[number])
    if count:
        used = room.cards_used[at]
        on_cards = np.where(used <= WHOLE_CARD_MILLI, WHOLE_CARD_MILLI - used.astype(np.int64), 0)
        names.append("cards")
        # A share of one card fits by the emptiest card; several cards by the number of those with enough.
        shares.append(on_cards.max(axis=1) / milli if count == 1 else (on_cards >= milli).sum(axis=1) / count)
        pods.append(pods_that_fit(used, DeviceRequest(count, milli)))
    return names, np.stack(shares), pods


def emptiable_nodes(
    room: NodeRoom,
    requests: NDArray[np.int64],
    devices: NDArray[np.int64],
    of_pod: NDArray[np.intp],
    at: NDArray[np.intp],
) -> int:
    """How many nodes could be emptied if their pods went to the others, by amounts alone: an estimate from
    above, because labels, taints and rules about other pods are not looked at, and cards are counted and not
    filled one by one.

    k classes of pods: `requests` (R, k), `devices` (2, k) are cards and milli of each. m pods: `of_pod` (m,)
    are their classes, `at` (m,) their nodes. The least loaded nodes go first."""
    nodes: int = room.allocatable.shape[1]
    if not nodes or not len(at):
        return nodes
    whole = (devices[1] == WHOLE_CARD_MILLI) * devices[0]
    amounts = np.concatenate((requests, (devices[0] * devices[1])[None], whole[None]))
    on_cards = np.where(
        room.cards_used <= WHOLE_CARD_MILLI, WHOLE_CARD_MILLI - room.cards_used.astype(np.int64), 0
    )
    free = np.concatenate(
        (room.free, on_cards.sum(axis=1)[None], (on_cards == WHOLE_CARD_MILLI).sum(axis=1)[None])
    )
    load = (room.requested[[CPU, MEMORY]] / np.maximum(room.allocatable[[CPU, MEMORY]], 1)).max(axis=0)
    order = np.argsort(load, kind="stable")
    rank = np.empty(nodes, np.intp)
    rank[order] = np.arange(nodes)
    classes, merged = _few_classes(amounts)
    of_pod = merged[of_pod]
    counts = np.bincount(of_pod * nodes + rank[at], minlength=classes.shape[1] * nodes)
    gone = counts.reshape(classes.shape[1], nodes).cumsum(axis=1)  # pods of the first nodes, by class
    free = free[:, order]
    # No more can go than the sums allow; that is where the search begins.
    moved = (classes @ gone).astype(np.float64)
    left = free.sum(axis=1, keepdims=True) - free.cumsum(axis=1)
    possible = np.flatnonzero((moved <= left).all(axis=0))
    low = 0
    high = int(possible[-1]) + 1 if len(possible) else 0
    while high - low > high // _EMPTYING_PRECISION:
        middle = (low + high + 1) // 2
        if _all_fit(free[:, middle:], classes, gone[:, middle - 1]):
            low = middle
        else:
            high = middle - 1
    return low


def _few_classes(amounts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Classes, (rows, c), the largest first, and which of them each of the k given ones is. Where there are
    many, amounts are rounded up, so that nothing fits that would not."""
    classes, number = np.unique(amounts, axis=1, return_inverse=True)
    number = number.reshape(-1)
    for bits in (3, 2, 1, 0):
        if classes.shape[1] <= _CLASSES_TO_EMPTY:
            break
        power = np.maximum(np.floor(np.log2(np.maximum(classes, 1))).astype(np.int64) - bits, 0)
        classes, again = np.unique(-(-classes >> power) << power, axis=1, return_inverse=True)
        number = again.reshape(-1)[number]
    order = np.argsort(-(classes / np.maximum(classes.max(axis=1, keepdims=True), 1)).max(axis=0))
    position = np.empty(len(order), np.intp)
    position[order] = np.arange(len(order))
    return classes[:, order], position[number]


def _all_fit(free: NDArray[np.int64], classes: NDArray[np.int64], pods: NDArray[np.int64]) -> bool:
    """Whether so many pods of each class fit on nodes with this room, larger classes first, on the fullest
    nodes first."""
    free = free[:, ::-1].copy()
    for number in np.flatnonzero(pods).tolist():
        rows = np.flatnonzero(classes[:, number])
        request = classes[rows, number]
        each = np.minimum.reduce([free[row] // amount for row, amount in zip(rows, request, strict=True)])
        needed = int(pods[number])
        before = np.cumsum(each) - each
        taken = np.clip(needed - before, 0, each)
        if int(taken.sum()) < needed:
            return False
        for row, amount in zip(rows.tolist(), request.tolist(), strict=True):
            free[row] -= taken * amount
    return True
