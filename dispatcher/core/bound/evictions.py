"""What happens to bound pods that lose their reservations: evicted pods are queued like new ones, others are
queued because the ledger lost them. In Kubernetes mode, pods on a node stay until the API server no longer
has them."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from dispatcher.core.bound.settlement import Settlement
from dispatcher.core.bound.taint_eviction import TaintEviction
from dispatcher.core.cluster.nodes import KnownNodes
from dispatcher.core.messages import Evicted, Instruction, Remove, Reserve
from dispatcher.core.pods.history import EVICTED, RESERVATION_LOST
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.table import Phase, Rows
from dispatcher.core.queue.queues import Queues
from hoss.wire.columns import NONE_U32


@dataclass(frozen=True, slots=True, eq=False)
class Evictions:
    """Applies losses of reservations to the registry and the queues; returns the instructions to execute."""

    registry: PodRegistry
    nodes: KnownNodes
    taint_eviction: TaintEviction
    queues: Queues
    settlement: Settlement
    counters: Counter[str]

    def evicted(self, event: Evicted, now: float, now_ms: int) -> list[Instruction]:
        """Bound pods were evicted. They are queued as if their controller had created them anew."""
        pods = self.registry.pods
        self.taint_eviction.evicted(map(bytes, event.uids))
        rows = self.registry.directory.rows_of_uids(event.uids)
        known = np.flatnonzero(rows != NONE_U32)
        # The worker has not reported this placement yet. When it does, the report is outdated.
        with_worker = known[pods.phase[rows[known]] == Phase.SCHEDULING]
        pods.uncertain[rows[with_worker]] = True
        bound = pods.phase[rows[known]] == Phase.BOUND
        there = known[bound & (pods.node[rows[known]] == event.nodes[known])]
        out = self.settlement.verify_uncertain(rows[there])
        certain = ~pods.uncertain[rows[there]]
        for i in (*with_worker.tolist(), *there.tolist()):
            pods.eviction[rows[i]] = self.registry.reasons.number(event.reasons[i])
        pods.eviction_open[rows[with_worker]] = pods.eviction_open[rows[there[~certain]]] = True
        there = there[certain]
        assigned = pods.assigned[rows[there]]
        if assigned.any():
            preemptors = tuple(event.preemptors[i] for i in there[assigned].tolist())
            out += self._remove(rows[there[assigned]], preemptors, now_ms)
        self._queue_evicted(rows[there[~assigned]], now, now_ms)
        return out

    def found_terminating(self, rows: Rows, now: float, now_ms: int) -> list[Instruction]:
        """The ledger has these bound pods as evicted, each on its node. An earlier term read of it, or nobody
        did, or `evicted` left it to this look-up. Those that are not being deleted yet are deleted now."""
        pods = self.registry.pods
        rows = rows[~pods.terminating[rows]]
        if not len(rows):
            return []
        unread = rows[~pods.eviction_open[rows]]
        pods.eviction[unread] = self.registry.reasons.number("preempted by a more urgent pod")
        assigned = pods.assigned[rows]
        self._queue_evicted(rows[~assigned], now, now_ms)
        if not assigned.any():
            return []
        return self._remove(rows[assigned], (b"",) * int(assigned.sum()), now_ms)

    def unbound_by_ledger(self, rows: Rows, now: float, now_ms: int) -> list[Instruction]:
        """The ledger has no reservation for these pods, which were held as bound: they are queued again. Pods
        that the API server has on a node run there anyway and are reserved anew."""
        pods = self.registry.pods
        # Pods that terminate are being deleted at the API server.
        assigned = rows[pods.assigned[rows] & ~pods.terminating[rows]]
        rows = rows[~pods.assigned[rows]]
        nodes = pods.node[rows]
        pods.node[rows] = NONE_U32
        there = pods.phase[rows] == Phase.BOUND
        rows, nodes = rows[there], nodes[there]
        evicted = pods.eviction_open[rows]
        self._queue_evicted(rows[evicted], now, now_ms)
        rows, nodes = rows[~evicted], nodes[~evicted]
        self.counters["reservations_lost"] += len(rows)
        for node in np.unique(nodes).tolist():
            if why := self.nodes.removal_reason(node):
                mine = rows[nodes == node]
                pods.reason[mine] = pods.eviction[mine] = self.registry.reasons.number(why)
        pods.uncertain[rows] = True  # an eviction may reach us over the feed after it is bound again
        self.queues.requeue(rows, now, now_ms, event=RESERVATION_LOST)
        self.settlement.publish(rows)
        return [Reserve(assigned, pods.uid[assigned])] if len(assigned) else []

    def _queue_evicted(self, rows: Rows, now: float, now_ms: int) -> None:
        """These bound pods were evicted, for the reason in `eviction`."""
        if not len(rows):
            return
        pods = self.registry.pods
        pods.node[rows] = NONE_U32
        pods.attempts[rows] = 0
        self.registry.attempts_changed.append(rows)
        self.registry.faults.forgive(rows)
        pods.reason[rows] = pods.eviction[rows]
        self.counters["evicted"] += len(rows)
        self.queues.requeue(rows, now, now_ms, event=EVICTED, front=False)
        self.settlement.publish(rows)

    def _remove(self, leaving: Rows, preemptors: tuple[bytes, ...], now_ms: int) -> list[Instruction]:
        """Evicted pods that the API server has on nodes: they are deleted there, and stay until that is
        done. `preemptors`: for whom they were evicted, b"" where nobody knows it."""
        pods = self.registry.pods
        pods.terminating[leaving] = True
        for preemptor, row in zip(preemptors, leaving.tolist(), strict=True):
            if preemptor:
                self.settlement.nominations.add_victim(preemptor, pods.uid[row].tobytes())
        pods.reason[leaving] = pods.eviction[leaving]
        self.registry.history.record(leaving, Phase.BOUND, now_ms, EVICTED)
        self.counters["evicted"] += len(leaving)
        self.settlement.publish(leaving)
        return [Remove(leaving, pods.uid[leaving], preemptors)]
