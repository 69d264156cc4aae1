"""What the ledger and its feed say of nodes and of pods that were bound."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.changes import Changes
from dispatcher.core.evictions import Evictions
from dispatcher.core.journeys import ATTEMPT_FAILURE, CONFIRMED
from dispatcher.core.podtable import Phase, Rows
from dispatcher.core.queues import PATIENT_ATTEMPTS, Queues
from dispatcher.core.registry import PodRegistry
from dispatcher.core.residence import Residence
from dispatcher.core.settlement import Settlement
from dispatcher.core.tenants import Tenants
from hoss.wire.columns import NONE_U32


class ClusterNews:
    """Handlers of events about the cluster; `handlers` names them all."""

    def __init__(
        self,
        registry: PodRegistry,
        queues: Queues,
        settlement: Settlement,
        residence: Residence,
        tenants: Tenants,
        *,
        evictions: Evictions,
        unix_ms: Callable[[float], int],
    ) -> None:
        self._registry = registry
        self._queues = queues
        self._settlement = settlement
        self._evictions = evictions
        self._residence = residence
        self._tenants = tenants
        self._unix_ms = unix_ms
        self.handlers: m.Handlers = {
            m.Released: self._released,
            m.Confirmed: self._confirmed,
            m.Verified: self._verified,
            m.Evicted: self._evicted,
            m.HistoryMissed: self._history_missed,
            m.ClusterChanged: self._cluster_changed,
            m.AllocatableChanged: self._allocatable_changed,
            m.NodesSeen: self._nodes_seen,
            m.NodesGone: self._nodes_gone,
        }

    def _released(self, event: m.Released, now: float) -> list[m.Instruction]:
        pods = self._registry.pods
        pods.node[event.rows[~pods.assigned[event.rows]]] = (
            NONE_U32  # unless it is there after all, see core.assignments
        )
        # Of gangs that were too few, and of bindings that were refused; deleted pods are DELETED.
        back = event.rows[pods.phase[event.rows] == Phase.BACKOFF]
        parts = [gang.number for gang in self._registry.gangs.incomplete(back)]
        often = (pods.attempts[back] > PATIENT_ATTEMPTS) & ~np.isin(pods.gang[back], parts)
        self._queues.requeue(back[~often], now, self._unix_ms(now), event=ATTEMPT_FAILURE, front=False)
        self._queues.refuse(back[often], now, self._unix_ms(now))
        self._queues.cluster_changed(Changes(left=self._registry.pod_specs(event.rows)), now, self._unix_ms(now))
        return []

    def _confirmed(self, event: m.Confirmed, now: float) -> list[m.Instruction]:
        pods = self._registry.pods
        still = (pods.phase[event.rows] == Phase.BOUND) & (pods.uid[event.rows] == event.uids).all(axis=1)
        self._registry.journeys.note(event.rows[still], Phase.BOUND, self._unix_ms(now), CONFIRMED)
        return []

    def _verified(self, event: m.Verified, now: float) -> list[m.Instruction]:
        pods = self._registry.pods
        still = (pods.phase[event.rows] == Phase.BOUND) & (pods.uid[event.rows] == event.uids).all(axis=1)
        # What is being evicted is left to that: placed again before it is done, it could lose its next place by it.
        still &= np.isin(event.rows, self._residence.staying(event.rows[still]))
        rows, nodes = event.rows[still], event.nodes[still]
        there = nodes != NONE_U32
        pods.node[rows[there]] = nodes[there]
        out = self._evictions.unbound_by_ledger(rows[~there], now, self._unix_ms(now))
        pods.eviction_open[rows] = False
        return out + self._settlement.look(rows[there], self._unix_ms(now))

    def _evicted(self, event: m.Evicted, now: float) -> list[m.Instruction]:
        return self._evictions.evicted(event, now, self._unix_ms(now))

    def _cluster_changed(self, event: m.ClusterChanged, now: float) -> list[m.Instruction]:
        self._queues.cluster_changed(event.changes, now, self._unix_ms(now), shard=event.shard, seq=event.seq)
        return []

    def _allocatable_changed(self, event: m.AllocatableChanged, now: float) -> list[m.Instruction]:  # noqa: ARG002 - as all handlers
        self._tenants.set_allocatable(event.totals)
        return []

    def _nodes_seen(self, event: m.NodesSeen, now: float) -> list[m.Instruction]:
        now_ms = self._unix_ms(now)
        return self._settlement.look(self._residence.learn(event.nodes, now_ms), now_ms)

    def _nodes_gone(self, event: m.NodesGone, now: float) -> list[m.Instruction]:  # noqa: ARG002 - as all handlers
        self._residence.forget(event.nodes.tolist())
        return self._verify(self._bound(np.isin(self._registry.pods.node, event.nodes)))

    def _history_missed(self, event: m.HistoryMissed, now: float) -> list[m.Instruction]:  # noqa: ARG002 - as all handlers
        rows = self._bound(self._registry.pods.node % np.uint32(max(event.shards, 1)) == event.shard)
        self._residence.forget_unlisted(rows)
        return self._verify(rows)

    def _bound(self, wanted: NDArray[np.bool_]) -> Rows:
        pods = self._registry.pods
        bound = (pods.phase[: pods.size] == Phase.BOUND) & wanted[: pods.size]
        return np.flatnonzero(bound).astype(np.uint32)

    def _verify(self, rows: Rows) -> list[m.Instruction]:
        return [m.Verify(rows, self._registry.pods.uid[rows])] if len(rows) else []
