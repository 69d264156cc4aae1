"""Who was refused for whom: sums of what workers report, by pair of workers and reason, by node, and by age of the view."""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

AGE_STEPS = 16  # see Heartbeat.refusal_seqs_behind in proto/hoss/v1/workerlink.proto

_MOST_PAIRS = 4096
_MOST_NODES = 1024
_MOST_EPOCHS = 4096
KeyT = TypeVar("KeyT")


class Pair(NamedTuple):
    """`loser` was refused for `winner`; an empty winner: nobody placed pods there meanwhile."""

    loser: str
    winner: str
    verdict: int


@dataclass(frozen=True, slots=True, eq=False)
class Refusals:
    """What one heartbeat reports. Ages are (AGE_STEPS,) or empty."""

    winners: Mapping[tuple[int, int], int]  # epoch and verdict -> pods
    nodes: Mapping[int, int]  # index -> pods
    seqs_behind: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    ages_ms: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))


class Conflicts:
    """Everything since the dispatcher's start, in bounded space: where there are too many pairs or nodes the least give way."""

    def __init__(self) -> None:
        self.pairs: Counter[Pair] = Counter()
        self.nodes: Counter[int] = Counter()
        self.seqs_behind = np.zeros(AGE_STEPS, np.uint64)
        self.ages_ms = np.zeros(AGE_STEPS, np.uint64)
        self._names: OrderedDict[int, str] = OrderedDict()  # worker by epoch

    def granted(self, epoch: int, worker: str) -> None:
        """The worker has that epoch."""
        self._names[epoch] = worker
        if len(self._names) > _MOST_EPOCHS:
            self._names.popitem(last=False)

    def report(self, loser: str, refusals: Refusals) -> None:
        """A worker was refused."""
        for (epoch, verdict), pods in refusals.winners.items():
            winner = self._names.get(epoch, f"epoch {epoch}") if epoch else ""
            self.pairs[Pair(loser, winner, verdict)] += pods
        self.nodes.update(refusals.nodes)
        for sums, told in ((self.seqs_behind, refusals.seqs_behind), (self.ages_ms, refusals.ages_ms)):
            sums[: len(told)] += told.astype(np.uint64)
        self.pairs = _bounded(self.pairs, _MOST_PAIRS)
        self.nodes = _bounded(self.nodes, _MOST_NODES)


def _bounded(sums: Counter[KeyT], most: int) -> Counter[KeyT]:
    return sums if len(sums) <= most else Counter(dict(sums.most_common(most // 2)))
