"""What becomes of bound pods that lose their reservations: evicted ones are queued as new, others because something is amiss.

Those that the API server has on their nodes (Kubernetes mode) are there until it has them no more.
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.changes import Changes
from dispatcher.core.journeys import EVICTED, RESERVATION_LOST
from dispatcher.core.messages import Evicted, Instruction, Remove, Reserve
from dispatcher.core.podtable import NO_REASON, Phase, Rows
from dispatcher.core.queues import Queues
from dispatcher.core.registry import PodRegistry
from dispatcher.core.residence import Residence
from dispatcher.core.settlement import Settlement
from hoss.wire.columns import NONE_U32


class Evictions:
    """Applies what the ledger says of them to the registry and the queues; returns what is to be done."""

    def __init__(
        self,
        registry: PodRegistry,
        residence: Residence,
        queues: Queues,
        settlement: Settlement,
        counters: Counter[str],
    ) -> None:
        self._registry = registry
        self._residence = residence
        self._queues = queues
        self._settlement = settlement
        self._counters = counters

    def evicted(self, told: Evicted, now: float, now_ms: int) -> list[Instruction]:
        """Pods that were bound are queued again, as new as if their controller had made them anew."""
        pods = self._registry.pods
        self._residence.left(map(bytes, told.uids))
        rows = self._registry.directory.rows_of_uids(told.uids)
        known = np.flatnonzero(rows != NONE_U32)
        # Its worker has not said yet that it is bound there. When it does, that is old news.
        with_worker = known[pods.phase[rows[known]] == Phase.SCHEDULING]
        pods.doubted[rows[with_worker]] = True
        there = known[(pods.phase[rows[known]] == Phase.BOUND) & (pods.node[rows[known]] == told.nodes[known])]
        out = self._settlement.verify_doubted(rows[there])
        certain = ~pods.doubted[rows[there]]
        for i in (*with_worker.tolist(), *there.tolist()):
            pods.eviction[rows[i]] = self._registry.reasons.number(told.reasons[i])
        pods.eviction_open[rows[with_worker]] = pods.eviction_open[rows[there[~certain]]] = True
        there = there[certain]
        assigned = pods.assigned[rows[there]]
        if assigned.any():
            out += self._remove(told, rows, there[assigned], now_ms)
        self._queue_evicted(rows[there[~assigned]], now, now_ms)
        return out

    def unbound_by_ledger(self, rows: Rows, now: float, now_ms: int) -> list[Instruction]:
        """Pods held as bound have no reservation (any more): they are queued again. Those that the API server has on their nodes
        are there all the same, and get one."""
        pods = self._registry.pods
        assigned = rows[pods.assigned[rows] & (pods.eviction[rows] == NO_REASON)]  # others are on their way out
        rows = rows[~pods.assigned[rows]]
        nodes = pods.node[rows]
        pods.node[rows] = NONE_U32
        there = pods.phase[rows] == Phase.BOUND
        rows, nodes = rows[there], nodes[there]
        evicted = pods.eviction_open[rows]
        self._queue_evicted(rows[evicted], now, now_ms)
        rows, nodes = rows[~evicted], nodes[~evicted]
        self._counters["reservations_lost"] += len(rows)
        for node in np.unique(nodes).tolist():
            if why := self._residence.why_gone(node):
                mine = rows[nodes == node]
                pods.reason[mine] = pods.eviction[mine] = self._registry.reasons.number(why)
        pods.doubted[rows] = True  # if it was evicted, the feed will tell so when it may be bound again
        if len(rows):
            self._queues.cluster_changed(Changes(left=self._registry.pod_specs(rows)), now, now_ms)
        self._queues.requeue(rows, now, now_ms, event=RESERVATION_LOST)
        self._settlement.publish(rows)
        return [Reserve(assigned, pods.uid[assigned])] if len(assigned) else []

    def _queue_evicted(self, rows: Rows, now: float, now_ms: int) -> None:
        """These bound pods went for others, for the reason that stands under `eviction`."""
        if not len(rows):
            return
        pods = self._registry.pods
        pods.node[rows] = NONE_U32
        pods.attempts[rows] = 0
        self._registry.tried.append(rows)
        self._registry.faults.forgive(rows)
        pods.reason[rows] = pods.eviction[rows]
        self._counters["evicted"] += len(rows)
        self._queues.cluster_changed(Changes(left=self._registry.pod_specs(rows)), now, now_ms)
        self._queues.requeue(rows, now, now_ms, event=EVICTED, front=False)
        self._settlement.publish(rows)

    def _remove(self, told: Evicted, rows: Rows, which: NDArray[np.intp], now_ms: int) -> list[Instruction]:
        """Those of the evicted pods that the API server has on nodes: they are there until it has them no more."""
        pods = self._registry.pods
        leaving = rows[which]
        preemptors = tuple(told.preemptors[i] for i in which.tolist())
        for preemptor, row in zip(preemptors, leaving.tolist(), strict=True):
            self._settlement.nominations.heard(preemptor, pods.uid[row].tobytes())
        pods.reason[leaving] = pods.eviction[leaving]
        self._registry.journeys.note(leaving, Phase.BOUND, now_ms, EVICTED)
        self._counters["evicted"] += len(leaving)
        self._settlement.publish(leaving)
        return [Remove(leaving, pods.uid[leaving], preemptors)]
