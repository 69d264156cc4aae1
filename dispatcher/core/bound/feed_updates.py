"""Handlers for events from the ledger and its feed: about nodes, and about bound pods.

Pods that wait for what a pod held are woken by `ClusterChanged`, when the feed shows that it is free, whoever
released it (ADR 8). No other event wakes them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.bound.evictions import Evictions
from dispatcher.core.bound.settlement import Settlement
from dispatcher.core.bound.taint_eviction import TaintEviction
from dispatcher.core.cluster.nodes import KnownNodes
from dispatcher.core.pods.history import ATTEMPT_FAILURE, CONFIRMED, MOVED, RESERVATION_LOST
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.table import NO_REASON, Phase, Rows
from dispatcher.core.queue.queues import PATIENT_ATTEMPTS, Queues
from dispatcher.core.queue.tenants import Tenants
from hoss.wire.columns import NONE_U32, Uids

RESERVED_ELSEWHERE = "another binding was reserved, on another node"

# So many are compared one by one, which is quicker than a search: half a nanosecond a row and node.
_FEW_NODES = 8


@dataclass(frozen=True, slots=True, eq=False)
class FeedUpdates:
    """`handlers` lists the handlers by event type."""

    registry: PodRegistry
    nodes: KnownNodes
    queues: Queues
    settlement: Settlement
    taint_eviction: TaintEviction
    tenants: Tenants
    evictions: Evictions
    unix_ms: Callable[[float], int]

    @property
    def handlers(self) -> m.Handlers:
        return {
            m.Released: self._released,
            m.Confirmed: self._confirmed,
            m.Verified: self._verified,
            m.Moved: self._moved,
            m.Evicted: lambda event, now: self.evictions.evicted(event, now, self.unix_ms(now)),
            m.HistoryMissed: self._history_missed,
            m.ClusterChanged: self._cluster_changed,
            m.AllocatableChanged: self._allocatable_changed,
            m.NodesSeen: self._nodes_seen,
            m.NodesGone: self._nodes_gone,
        }

    def _released(self, event: m.Released, now: float) -> list[m.Instruction]:
        pods, now_ms = self.registry.pods, self.unix_ms(now)
        # A pod that is bound by now has another place, or the API server has it on its node.
        pods.node[event.rows[pods.phase[event.rows] != Phase.BOUND]] = NONE_U32
        # BACKOFF: pods of gangs below their minimum, of refused bindings, and those that were not ready.
        # Deleted pods are DELETED.
        back = event.rows[pods.phase[event.rows] == Phase.BACKOFF]
        often = pods.attempts[back] > PATIENT_ATTEMPTS
        if not event.unreserved:
            incomplete = [gang.number for gang in self.registry.gangs.incomplete(back)]
            often &= ~np.isin(pods.gang[back], incomplete)
        self.queues.requeue(back[~often], now, now_ms, event=ATTEMPT_FAILURE, front=False)
        self.queues.requeue_refused(back[often], now, now_ms)
        return []

    def _confirmed(self, event: m.Confirmed, now: float) -> list[m.Instruction]:
        rows = event.rows[self._still_bound(event.rows, event.uids)]
        self.registry.history.record(rows, Phase.BOUND, self.unix_ms(now), CONFIRMED)
        return []

    def _verified(self, event: m.Verified, now: float) -> list[m.Instruction]:
        pods, now_ms = self.registry.pods, self.unix_ms(now)
        still = self._still_bound(event.rows, event.uids)
        # A pod that is being evicted is left to the eviction. If it were placed again before the eviction is
        # done, the eviction could take its next place too.
        still &= np.isin(event.rows, self.taint_eviction.not_leaving(event.rows[still]))
        rows, nodes = event.rows[still], event.nodes[still]
        out = self.evictions.unbound_by_ledger(rows[nodes == NONE_U32], now, now_ms)
        # The API server has these pods elsewhere, and the ledger has to follow. Another scheduler may have
        # bound a pod while a worker placed it, so that it has two reservations (ADR 114).
        settled = pods.assigned[rows] & (nodes != NONE_U32) & (nodes != pods.node[rows])
        if settled.any():
            out.append(m.Reserve(rows[settled], pods.uid[rows[settled]]))
        reserved = (nodes != NONE_U32) & ~settled
        self._found_elsewhere(rows[reserved], nodes[reserved], now_ms)
        seqs = event.seqs[still] if event.seqs is not None else np.zeros(len(rows), np.uint64)
        out += self._check_looked_up(rows[reserved], seqs[reserved], now_ms)
        if event.terminating is not None:
            out += self.evictions.found_terminating(rows[reserved & event.terminating[still]], now, now_ms)
        pods.eviction_open[rows] = False
        return out

    def _check_looked_up(self, rows: Rows, seqs: NDArray[np.uint64], now_ms: int) -> list[m.Instruction]:
        """Of these bound pods the ledger has reservations with these seqs. One that was made before a removal
        of its node is left from that. One that was made after it stays: its node is back, and the feed is
        yet to tell of it."""
        removed_at = self.nodes.removed_at(self.registry.pods.node[rows])
        left = (removed_at > 0) & (seqs <= removed_at)
        out = self.taint_eviction.evict_removed(rows[left])
        return out + self.settlement.check_nodes(rows[removed_at == 0], now_ms)

    def _found_elsewhere(self, rows: Rows, nodes: NDArray[np.uint32], now_ms: int) -> None:
        """The ledger has these bound pods on these nodes. Those that are known elsewhere lost the reservation
        there, and another scheduler's binding has reserved the node. Moves are told by `Moved` before a
        look-up is answered."""
        pods = self.registry.pods
        elsewhere = pods.node[rows] != nodes
        rows = rows[elsewhere]
        self.settlement.end_placements(rows, RESERVED_ELSEWHERE, RESERVATION_LOST, now_ms)
        pods.node[rows] = nodes[elsewhere]
        pods.reason[rows] = NO_REASON
        self.registry.move(rows, Phase.BOUND, now_ms)
        self.settlement.publish(rows)

    def _moved(self, event: m.Moved, now: float) -> list[m.Instruction]:
        pods, now_ms = self.registry.pods, self.unix_ms(now)
        new = self._still_bound(event.rows, event.uids) & (pods.node[event.rows] != event.nodes)
        rows = event.rows[new]
        pods.node[rows] = event.nodes[new]
        self.registry.history.record(rows, Phase.BOUND, now_ms, MOVED)
        self.settlement.publish(rows)
        self.settlement.counters["moved"] += len(rows)
        return self.settlement.check_nodes(rows, now_ms)

    def _cluster_changed(self, event: m.ClusterChanged, now: float) -> list[m.Instruction]:
        self.queues.cluster_changed(event.changes, now, self.unix_ms(now), shard=event.shard, seq=event.seq)
        return []

    def _allocatable_changed(self, event: m.AllocatableChanged, _now: float) -> list[m.Instruction]:
        self.nodes.allocatable = event.totals
        self.tenants.set_allocatable(event.totals)
        return []

    def _nodes_seen(self, event: m.NodesSeen, now: float) -> list[m.Instruction]:
        now_ms = self.unix_ms(now)
        seen = np.fromiter(event.nodes, np.uint32, len(event.nodes))
        returned = seen[self.nodes.removed_at(seen) > 0]
        tainted = self.nodes.update(event.nodes, now_ms)
        affected = seen if self.registry.has_node_rules else np.array(tainted, np.uint32)
        if not len(affected):
            return []
        rows = self._bound(self._on(affected))
        # Some may have lost their reservations with the node before it came back.
        uncertain = np.isin(self.registry.pods.node[rows], returned)
        return self._verify(rows[uncertain]) + self.settlement.check_nodes(rows[~uncertain], now_ms)

    def _nodes_gone(self, event: m.NodesGone, _now: float) -> list[m.Instruction]:
        self.nodes.remove(event.nodes.tolist(), event.seq)
        self._doubt_places_to_come()
        return self._verify(self._bound(self._on(event.nodes)))

    def _history_missed(self, event: m.HistoryMissed, _now: float) -> list[m.Instruction]:
        nodes = self.registry.pods.node
        rows = self._bound(nodes % np.uint32(max(event.shards, 1)) == event.shard)
        # The feed has just reported all nodes of this shard: those that it did not report were removed.
        missing = (i for i in np.unique(nodes[rows]).tolist() if i not in self.nodes)
        self.nodes.remove(missing, event.seq)
        self._doubt_places_to_come()
        return self._verify(rows)

    def _doubt_places_to_come(self) -> None:
        """Pods that are with workers may have got places and lost them by now. When a worker reports such a
        place, it is looked up: the node may be back by then, and a confirmation tells of whole commits
        only."""
        pods = self.registry.pods
        pods.uncertain[: pods.size] |= pods.phase[: pods.size] == Phase.SCHEDULING

    def _still_bound(self, rows: Rows, uids: Uids) -> NDArray[np.bool_]:
        """Which rows are bound and still belong to the pods with these UIDs."""
        pods = self.registry.pods
        still: NDArray[np.bool_] = (pods.phase[rows] == Phase.BOUND) & (pods.uid[rows] == uids).all(axis=1)
        return still

    def _on(self, nodes: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which rows have one of these nodes."""
        column = self.registry.pods.node
        if len(nodes) > _FEW_NODES:
            return np.isin(column, nodes)
        found = np.zeros(len(column), np.bool_)
        for node in nodes:
            found |= column == node
        return found

    def _bound(self, mask: NDArray[np.bool_]) -> Rows:
        pods = self.registry.pods
        bound = (pods.phase[: pods.size] == Phase.BOUND) & mask[: pods.size]
        return np.flatnonzero(bound).astype(np.uint32)

    def _verify(self, rows: Rows) -> list[m.Instruction]:
        return [m.Verify(rows, self.registry.pods.uid[rows])] if len(rows) else []
