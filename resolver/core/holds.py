"""Holds of one shard that are under way: reserved under a short lease, and told to nobody until they are kept."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Holds:
    """How many pods each holds still, by the seq of its commit."""

    _pods: dict[int, int] = field(default_factory=dict)

    def begin(self, seq: int, pods: int) -> None:
        """A commit holds so many pods."""
        self._pods[seq] = pods

    def open(self, seq: int) -> bool:
        """Whether the commit is a hold, neither kept nor withdrawn."""
        return seq in self._pods

    def under_way(self) -> tuple[int, ...]:
        """Seqs of all that are."""
        return tuple(sorted(self._pods))

    def end(self, seqs: Iterable[int]) -> tuple[int, ...]:
        """One pod for each of `seqs` is held no more by that commit, if it ever was. Returns which holds are over."""
        ended = []
        for seq in seqs:
            left = self._pods.get(seq, 0) - 1
            if left > 0:
                self._pods[seq] = left
            elif left == 0:
                del self._pods[seq]
                ended.append(seq)
        return tuple(sorted(ended))
