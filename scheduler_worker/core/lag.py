"""How far a view is behind what its worker knows to have happened: verdicts tell of entries that the feed has yet to bring."""

from collections import deque
from dataclasses import dataclass

# Moments kept of each shard. When more are waiting, the latest ones share a moment.
_MOMENTS = 64


@dataclass(frozen=True, slots=True)
class ShardLag:
    """Zeros where nothing is known to be missing."""

    shard: int
    seqs: int  # entries heard of and not seen
    seconds: float  # since the first of them was heard of


class LagMeter:
    """Of every shard, what was heard of and when, and what was seen."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._unseen: dict[int, deque[tuple[int, float]]] = {}  # seqs heard of, ascending, and when

    def heard(self, shard: int, seq: int, now: float) -> None:
        """The shard has got as far as `seq`."""
        unseen = self._unseen.setdefault(shard, deque())
        if seq <= (unseen[-1][0] if unseen else self._seen.get(shard, 0)):
            return
        if len(unseen) == _MOMENTS:
            now = unseen.pop()[1]
        unseen.append((seq, now))

    def seen(self, shard: int, seq: int, *, anew: bool = False) -> None:
        """The view stands at `seq`; `anew`: in a history that may be another one."""
        self._seen[shard] = seq
        unseen = self._unseen.get(shard)
        while unseen and (anew or unseen[0][0] <= seq):
            unseen.popleft()

    def lags(self, now: float) -> list[ShardLag]:
        """Of every shard seen, by number."""
        return [self._lag(shard, seq, now) for shard, seq in sorted(self._seen.items())]

    def _lag(self, shard: int, seq: int, now: float) -> ShardLag:
        unseen = self._unseen.get(shard)
        return ShardLag(shard, unseen[-1][0] - seq, now - unseen[0][1]) if unseen else ShardLag(shard, 0, 0.0)
