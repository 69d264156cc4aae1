"""Placements this worker counts although the feed has not shown them yet."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod_groups import PodGroup
from scheduler_worker.core.cards import CardMasks
from scheduler_worker.core.changes import NodeIndexes


@dataclass(slots=True, eq=False)
class Assumption:
    """n pods assumed together. A row counts while `live`; the batch ends when its commit shows up in the feed."""

    nodes: NodeIndexes  # (n,)
    slots: NDArray[np.intp]  # (n,)
    requests: NDArray[np.int64]  # (s, R)
    card_masks: CardMasks  # (n,)
    card_millis: NDArray[np.uint16]  # (s,)
    expires_at: float
    groups: tuple[PodGroup, ...] = ()  # by slot: what the census counts them as; empty: it does not
    live: NDArray[np.bool_] = field(init=False)  # (n,)
    seq: int = 0  # of the commit, once it is known

    def __post_init__(self) -> None:
        self.live = np.ones(len(self.nodes), np.bool_)


class AssumptionBook:
    """Which assumptions are open, and which end at what point of which shard's feed."""

    def __init__(self) -> None:
        self._open: dict[Assumption, None] = {}  # an ordered set
        self._confirmed: dict[int, list[Assumption]] = {}  # shard ->

    def __iter__(self) -> Iterator[Assumption]:
        yield from self._open
        for waiting in self._confirmed.values():
            yield from waiting

    @property
    def undecided(self) -> bool:
        """Whether any assumption has no answer from the ledger yet."""
        return bool(self._open)

    @property
    def empty(self) -> bool:
        """Whether nothing at all is assumed."""
        return not self._open and not any(self._confirmed.values())

    def add(self, assumption: Assumption) -> None:
        """An assumption without an answer."""
        self._open[assumption] = None

    def close(self, assumption: Assumption) -> None:
        """It counts no more; it may have ended before."""
        self._open.pop(assumption, None)

    def confirm(self, assumption: Assumption, shard: int, seq: int) -> bool:
        """It ends when the shard's feed reaches `seq`. False if it had already ended."""
        if assumption not in self._open:
            return False
        del self._open[assumption]
        assumption.seq = seq
        self._confirmed.setdefault(shard, []).append(assumption)
        return True

    def reached(self, shard: int, seq: int) -> list[Assumption]:
        """Take out what ends with the shard's feed at `seq`."""
        waiting = self._confirmed.get(shard)
        if not waiting:
            return []
        ended = [a for a in waiting if a.seq <= seq]
        if ended:
            self._confirmed[shard] = [a for a in waiting if a.seq > seq]
        return ended

    def take_open(self) -> list[Assumption]:
        """Take out everything without an answer."""
        taken = list(self._open)
        self._open.clear()
        return taken

    def take_expired(self, now: float) -> list[Assumption]:
        """Take out what nobody answered, or the feed never showed, until its deadline."""
        expired = [a for a in self if a.expires_at <= now]
        for assumption in expired:
            self._open.pop(assumption, None)
        for shard, waiting in self._confirmed.items():
            self._confirmed[shard] = [a for a in waiting if a.expires_at > now]
        return expired
