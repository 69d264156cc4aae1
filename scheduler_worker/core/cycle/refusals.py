"""Conflict attribution: which other worker's placements caused the ledger's refusals of this worker's pods.

The feed shows which worker placed pods on which nodes. A refusal is attributed once the feed has reached the
state in which the ledger refused. Its winner is the last other worker that placed anything on the node since
the view by which the refused pod was placed. Without such a worker it is this worker itself, if it placed
pods there: its pods may have gone to other nodes than it proposed."""

from collections import Counter, deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.messages import FeedUpdate
from scheduler_worker.core.nodes import NodeIndexes

AGE_STEPS = 16  # see Heartbeat.refusal_seqs_behind in proto/hoss/v1/workerlink.proto
WORST_NODES = 16

# Contention is measured over about so many pods. More refusals than this share are contention: on a pool with
# room, four workers have half of it.
_CONTENTION_PODS, _CONTENTION_SHARE = 1000, 0.01

_MOST_PAIRS = 256
_REMEMBERED = 1024  # entries of a shard: seconds of the feed, and views are milliseconds old
_MOST_WAITING = 1000  # a feed without progress must not fill the memory


class _Waiting(NamedTuple):
    as_of: int
    snapshot_seq: int
    nodes: NodeIndexes  # (n,)
    verdicts: NDArray[np.uint8]  # (n,)
    age_ms: int


class RefusalReport(NamedTuple):
    """Sums since the last report. Winner 0: no worker placed pods there meanwhile."""

    winners: NDArray[np.uint64]  # (m,) epochs
    verdicts: NDArray[np.uint8]  # (m,)
    counts: NDArray[np.uint32]  # (m,)
    nodes: NDArray[np.uint32]  # (k, 2): index and refusals, the worst first
    seqs_behind: NDArray[np.uint32]  # (AGE_STEPS,)
    ages_ms: NDArray[np.uint32]  # (AGE_STEPS,)


class _Placed(NamedTuple):
    seq: int
    epoch: int
    nodes: NDArray[np.uint32]


class ConflictAttribution:
    """Collects refusals and reports them. `observe` must see every message of the feed; it only stores them,
    so a worker without refusals pays next to nothing."""

    def __init__(self) -> None:
        self._own_epoch = 0
        self._seqs: dict[int, int] = {}  # by shard, of the feed
        self._history: dict[int, deque[_Placed]] = {}  # by shard, the latest
        self._waiting: dict[int, deque[_Waiting]] = {}  # by shard, for the feed
        self._pairs: Counter[tuple[int, int]] = Counter()  # epoch and verdict
        self._on_node: NDArray[np.int64] = np.zeros(0, np.int64)
        self._seqs_behind = np.zeros(AGE_STEPS, np.uint32)
        self._ages_ms = np.zeros(AGE_STEPS, np.uint32)

    def restart(self, epoch: int) -> None:
        """The worker has another epoch."""
        self._own_epoch = epoch

    def observe(self, update: FeedUpdate) -> None:
        """One message of the feed."""
        shard = update.shard
        self._seqs[shard] = update.seq
        if update.snapshot:
            self._history.pop(shard, None)  # a snapshot leaves a gap
        elif update.worker_epoch:
            history = self._history.setdefault(shard, deque(maxlen=_REMEMBERED))
            history.append(_Placed(update.seq, update.worker_epoch, update.accounts.indexes))
        waiting = self._waiting.get(shard)
        while waiting and waiting[0].as_of <= update.seq:
            self._attribute(shard, waiting.popleft())

    def refused(
        self,
        shard: int,
        nodes: NodeIndexes,
        verdicts: NDArray[np.uint8],
        *,
        snapshot_seq: int,
        as_of: int,
        age_seconds: float,
    ) -> None:
        """The ledger, at `as_of`, refused n pods that were placed on `nodes` by the view at
        `snapshot_seq`."""
        if not len(nodes):
            return
        waiting = self._waiting.setdefault(shard, deque())
        waiting.append(_Waiting(as_of, snapshot_seq, nodes, verdicts, int(age_seconds * 1000)))
        while waiting and (waiting[0].as_of <= self._seqs.get(shard, 0) or len(waiting) > _MOST_WAITING):
            self._attribute(shard, waiting.popleft())

    def take(self) -> RefusalReport | None:
        """Refusals attributed since the last report; None: there were none."""
        if not self._pairs:
            return None
        worst = np.argsort(self._on_node)[-WORST_NODES:][::-1]
        worst = worst[self._on_node[worst] > 0]
        pairs = self._pairs.most_common(_MOST_PAIRS)
        report = RefusalReport(
            np.array([epoch for (epoch, _), _ in pairs], np.uint64),
            np.array([verdict for (_, verdict), _ in pairs], np.uint8),
            np.array([count for _, count in pairs], np.uint32),
            np.column_stack((worst, self._on_node[worst])).astype(np.uint32),
            self._seqs_behind,
            self._ages_ms,
        )
        self._pairs = Counter()
        self._on_node[:] = 0
        self._seqs_behind, self._ages_ms = np.zeros(AGE_STEPS, np.uint32), np.zeros(AGE_STEPS, np.uint32)
        return report

    def _attribute(self, shard: int, refusal: _Waiting) -> None:
        """Count refusals. All counts together, so that a report's sums agree."""
        nodes = refusal.nodes
        more = int(nodes.max()) + 1 - len(self._on_node)
        if more > 0:
            self._on_node = np.pad(self._on_node, (0, more))
        np.add.at(self._on_node, nodes, 1)
        self._seqs_behind[_step(refusal.as_of - refusal.snapshot_seq)] += len(nodes)
        self._ages_ms[_step(refusal.age_ms)] += len(nodes)
        winners = self._winners(shard, refusal)
        pairs = np.stack((winners, refusal.verdicts.astype(np.uint64)))
        distinct, counts = np.unique(pairs, axis=1, return_counts=True)
        for (epoch, verdict), count in zip(distinct.T.tolist(), counts.tolist(), strict=True):
            self._pairs[epoch, verdict] += count

    def _winners(self, shard: int, refusal: _Waiting) -> NDArray[np.uint64]:
        """The epoch of each refusal's winner."""
        meanwhile = []
        for placed in reversed(self._history.get(shard, ())):
            if placed.seq <= refusal.snapshot_seq:
                break
            if placed.seq <= refusal.as_of:
                meanwhile.append(placed)
        nodes = refusal.nodes
        size = 1 + max([int(nodes.max()), *(int(placed.nodes.max(initial=0)) for placed in meanwhile)])
        others, own = np.zeros(size, np.uint64), np.zeros(size, np.uint64)
        for placed in reversed(meanwhile):
            (own if placed.epoch == self._own_epoch else others)[placed.nodes] = placed.epoch
        winners: NDArray[np.uint64] = np.where(others[nodes] > 0, others[nodes], own[nodes])
        return winners


class Contention:
    """Whether the ledger lately refused many of this worker's pods, so that its view of the nodes with room
    is out of date faster than it places pods."""

    def __init__(self) -> None:
        self._share = 0.0  # of the latest pods, refused

    def decided(self, pods: int, refused: int) -> None:
        """The ledger decided this many pods, and refused some of them."""
        if pods:
            self._share += (refused / pods - self._share) * min(1.0, pods / _CONTENTION_PODS)

    def __bool__(self) -> bool:
        return self._share > _CONTENTION_SHARE


def _step(amount: int) -> int:
    """The step of a scale that doubles: 0, 1, 2 to 3, 4 to 7 and so on."""
    return min(max(amount, 0).bit_length(), AGE_STEPS - 1)
