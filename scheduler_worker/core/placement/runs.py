"""Choosing nodes for a whole run of pods that affect each other, as if one by one.

Nodes are in *buckets*. Only their own scores distinguish the nodes of one bucket. There are few buckets, so
the next choice costs a look at each bucket and not at every node.

BoundRun: the pods limit each other by topology domains alone. They have required anti-affinity to their own
kind, one DoNotSchedule constraint on spreading, or neither. The other pods of the run change where a pod may
go, but no scores. A bucket holds the nodes of one domain of the constraint. A pod takes the best node of all
open buckets.

EvenRun: only a score spreads the pods; each pod changes the scores of its host and its zone. A bucket holds
the nodes of one zone with equally many such pods. A pod takes the best node of some bucket, and that node
moves to the bucket of one pod more."""

from bisect import insort
from collections import Counter

import numpy as np

from scheduler_worker.core.framework.extension_points import MAX_SCORE, Bounds, DefaultSpreading, Skew
from scheduler_worker.core.nodes import NodeIndexes
from scheduler_worker.core.placement.ties import INFEASIBLE, SCORE_SHIFT, Keys

# Beyond so many buckets a look at each takes as long as a pass over all nodes.
MOST_BUCKETS = 64


class WholeRun:
    """A choice from `nodes`, (m,). `own`, (levels, m), are their keys by how many pods of the run they have;
    at level 0 all are feasible."""

    def __init__(self, nodes: NodeIndexes, own: Keys) -> None:
        self.nodes = nodes
        self._own = own
        self._taken: dict[int, int] = {}  # position -> pods of the run

    @property
    def levels(self) -> int:
        """Up to how many pods of the run a node's keys are known."""
        return len(self._own) - 1

    @property
    def deepest(self) -> int:
        """The most pods that one node took."""
        return max(self._taken.values(), default=0)


_SPARE = 4  # nodes besides those that a run takes: for alternates


class BoundRun(WholeRun):
    """A choice from the best nodes of each bucket (see `candidates`)."""

    def __init__(self, nodes: NodeIndexes, own: Keys, bounds: Bounds) -> None:
        super().__init__(nodes, own)
        self._bounded = bool(bounds.once) or bounds.skew is not None
        self._once = [domains[nodes].tolist() for domains in bounds.once]
        self._used: list[set[int]] = [set() for _ in bounds.once]
        skew = bounds.skew
        self._skew = skew
        self._counts = [] if skew is None else list(skew.counts)
        self._bucket_of = [0] * len(nodes) if skew is None else skew.domains[nodes].tolist()
        self._buckets: dict[int, list[int]] = {}  # keys, ascending
        self._at: dict[int, int] = {}  # key -> position
        for position in np.argsort(own[0]).tolist():
            key = int(own[0, position])
            self._buckets.setdefault(self._bucket_of[position], []).append(key)
            self._at[key] = position

    def choices(self, pods: int) -> list[int]:
        """Positions of the nodes that the next `pods` pods take, in order, as far as they are certain.

        The choice ends when a node took `levels` pods and one more, or when a bucket is used up: it may have
        held only its best nodes."""
        chosen: list[int] = []
        while len(chosen) < pods and (bucket := self._best()) is not None:
            keys = self._buckets[bucket]
            position = self._at.pop(keys.pop())
            if self._is_closed(position):
                if not keys:
                    break
                continue
            chosen.append(position)
            taken = self._taken[position] = self._taken.get(position, 0) + 1
            if self._skew is not None:
                self._counts[bucket] += 1
            for domains, used in zip(self._once, self._used, strict=True):
                if domains[position] >= 0:
                    used.add(domains[position])
            if taken == len(self._own):
                break
            following = int(self._own[taken, position])
            if following != INFEASIBLE:
                self._at[following] = position
                insort(keys, following)
            if not keys:
                break
        return chosen

    def spare(self, count: int) -> NodeIndexes:
        """The `count` best nodes with room that no pod of the run took. None if pods of the run limit each
        other: one pod's alternate may be closed by another pod's choice."""
        if self._bounded:
            return self.nodes[:0]
        left = [
            position
            for key in reversed(self._buckets.get(0, ()))
            if (position := self._at[key]) not in self._taken
        ]
        return self.nodes[left[:count]]

    def _best(self) -> int | None:
        """The open bucket that has the best node; None if none is open."""
        skew = self._skew
        if skew is None:
            return 0 if self._buckets.get(0) else None
        counts = self._counts
        most = skew.margin + min((counts[domain] for domain in skew.found), default=0)
        best, best_key = None, INFEASIBLE
        for bucket, keys in self._buckets.items():
            if counts[bucket] <= most and keys[-1] > best_key:
                best, best_key = bucket, keys[-1]
        return best

    def _is_closed(self, position: int) -> bool:
        return any(domains[position] in used for domains, used in zip(self._once, self._used, strict=True))


def candidates(feasible: NodeIndexes, keys: Keys, pods: int, skew: Skew | None) -> NodeIndexes | None:
    """The best of these nodes in each bucket, by `keys`: no run takes more. None for too many buckets."""
    if skew is None:
        return _best_of(feasible, keys, pods + _SPARE)
    domains = skew.domains[feasible]
    if (domains < 0).any():
        return None
    buckets = np.flatnonzero(np.bincount(domains))
    if len(buckets) > MOST_BUCKETS:
        return None
    best = [
        _best_of(feasible[domains == bucket], keys[domains == bucket], pods) for bucket in buckets.tolist()
    ]
    return np.concatenate(best) if best else feasible


def _best_of(nodes: NodeIndexes, keys: Keys, pods: int) -> NodeIndexes:
    return nodes if len(nodes) <= pods else nodes[np.argpartition(keys, -pods)[-pods:]]


class _Bucket:
    """Nodes with the same points: `keys` of them without spreading, ascending."""

    __slots__ = ("has_host", "host_points", "hosts", "keys", "zone")

    def __init__(self, zone: int, hosts: int, *, has_host: bool) -> None:
        self.zone, self.hosts, self.has_host = zone, hosts, has_host
        self.host_points = 0.0
        self.keys: list[int] = []


class EvenRun(WholeRun):
    """A choice from all feasible nodes, whose keys leave spreading out. `fixed`: the keys do not depend on
    which nodes are feasible."""

    def __init__(self, nodes: NodeIndexes, own: Keys, spreading: DefaultSpreading, *, fixed: bool) -> None:
        super().__init__(nodes, own)
        self._fixed = fixed
        self._feasible = len(nodes)
        self._feasible_in = Counter(spreading.zones.tolist())
        self._spreading = spreading
        self._in_zones = list(spreading.in_zones)
        self._buckets: dict[tuple[int, int, bool], _Bucket] = {}
        self._fill()

    def choices(self, pods: int) -> list[int]:
        """Positions of the nodes that the next `pods` pods take, in order, as far as they are certain.

        The choice ends when a node took `levels` pods and one more; when a node is full and that changes
        other nodes' keys or zones; and when there are too many buckets, perhaps from the beginning."""
        chosen: list[int] = []
        at = {key: position for position, key in enumerate(self._own[0].tolist())}
        while len(chosen) < pods and 0 < len(self._buckets) <= MOST_BUCKETS:
            bucket = self._best()
            key = bucket.keys.pop()
            if not bucket.keys:
                del self._buckets[bucket.zone, bucket.hosts, bucket.has_host]
            position = at.pop(key)
            chosen.append(position)
            taken = self._taken[position] = self._taken.get(position, 0) + 1
            if bucket.zone >= 0:
                self._in_zones[bucket.zone] += 1
            if taken == len(self._own):
                break
            following = int(self._own[taken, position])
            if following == INFEASIBLE:
                if not self._is_full(bucket.zone):
                    break
                continue
            at[following] = position
            insort(self._bucket(bucket.zone, bucket.hosts + 1, has_host=bucket.has_host).keys, following)
        return chosen

    def spare(self, count: int) -> NodeIndexes:
        """Nodes with room that no pod of the run took, the `count` best of each bucket, better ones first."""
        best = np.array([key for bucket in self._buckets.values() for key in bucket.keys[-count:]], np.int64)
        untouched = np.ones(len(self.nodes), np.bool_)
        untouched[list(self._taken)] = False
        left = np.flatnonzero(untouched & np.isin(self._own[0], best))
        ordered: NodeIndexes = self.nodes[left[np.argsort(self._own[0, left])[::-1]]]
        return ordered

    def _is_full(self, zone: int) -> bool:
        """One node of the zone is not feasible any more. Whether only the weight of hosts changes by that."""
        self._feasible -= 1
        self._feasible_in[zone] -= 1
        for bucket in self._buckets.values():
            self._weigh(bucket)
        return self._fixed and self._feasible_in[zone] > 0

    def _weigh(self, bucket: _Bucket) -> None:
        bucket.host_points = (
            self._spreading.points_of_host(bucket.hosts, self._feasible) if bucket.has_host else 0.0
        )

    def _fill(self) -> None:
        spreading = self._spreading
        keys = self._own[0]
        order = np.lexsort((keys, spreading.has_host, spreading.hosts, spreading.zones))
        columns = np.stack((spreading.zones[order], spreading.hosts[order], spreading.has_host[order]))
        starts = np.flatnonzero((columns[:, 1:] != columns[:, :-1]).any(axis=0)) + 1
        if len(starts) >= MOST_BUCKETS:
            starts = starts[:MOST_BUCKETS]  # one more than there may be: enough to be refused
        for part in np.split(order, starts):
            first = part[0]
            bucket = self._bucket(
                int(spreading.zones[first]),
                int(spreading.hosts[first]),
                has_host=bool(spreading.has_host[first]),
            )
            bucket.keys = keys[part].tolist()

    def _bucket(self, zone: int, hosts: int, *, has_host: bool) -> _Bucket:
        bucket = self._buckets.get((zone, hosts, has_host))
        if bucket is None:
            bucket = self._buckets[zone, hosts, has_host] = _Bucket(zone, hosts, has_host=has_host)
            self._weigh(bucket)
        return bucket

    def _best(self) -> _Bucket:
        """The bucket with the best node, with scores normalised over all feasible nodes as PodTopologySpread
        does."""
        spreading, in_zones = self._spreading, self._in_zones
        buckets = list(self._buckets.values())
        raws = [
            int(
                bucket.host_points
                + (spreading.points_of_zone(in_zones[bucket.zone]) if bucket.zone >= 0 else 0.0)
                + 0.5
            )
            for bucket in buckets
        ]
        lowest, highest = min(raws), max(raws)
        best, best_key = buckets[0], -1
        for bucket, raw in zip(buckets, raws, strict=True):
            score = (highest + lowest - raw) * MAX_SCORE // highest if highest else MAX_SCORE
            key = bucket.keys[-1] + (score * spreading.weight << SCORE_SHIFT)
            if key > best_key:
                best, best_key = bucket, key
        return best
