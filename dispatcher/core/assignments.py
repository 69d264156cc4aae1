"""Kubernetes mode: what the API server says of where pods are, which is so whatever HOSS has decided.

A pod that is *assigned* is BOUND, stays where it is, and is reserved there. What else was heard of it, from a worker that had it
in hand or from the ledger, gives way.
"""

from collections.abc import Callable

import numpy as np

from dispatcher.core import messages as m
from dispatcher.core.journeys import ASSIGNED, BINDING_REFUSED
from dispatcher.core.podtable import NO_REASON, Phase, Rows
from dispatcher.core.queues import Queues
from dispatcher.core.registry import PodRegistry
from dispatcher.core.settlement import MAX_ATTEMPTS_COUNTED, Settlement
from hoss.model.pod import PodSpec
from hoss.model.pod_groups import group_of


class Assignments:
    """Handlers of events about assigned pods; `handlers` names them all."""

    def __init__(
        self, registry: PodRegistry, queues: Queues, settlement: Settlement, *, unix_ms: Callable[[float], int]
    ) -> None:
        self._registry = registry
        self._queues = queues
        self._settlement = settlement
        self._unix_ms = unix_ms
        self.handlers: m.Handlers = {
            m.Assigned: self._assigned,
            m.Respecified: self._respecified,
            m.BindingRefused: self._binding_refused,
        }

    def _assigned(self, event: m.Assigned, now: float) -> list[m.Instruction]:
        pods = self._registry.pods
        alive = pods.phase[event.rows] != Phase.DELETED
        rows, nodes = event.rows[alive], event.nodes[alive]
        new = ~pods.assigned[rows] | (pods.node[rows] != nodes)
        rows, nodes = rows[new], nodes[new]
        reserved = (pods.phase[rows] == Phase.BOUND) & (pods.node[rows] == nodes)  # as we have bound it
        pods.assigned[rows] = True
        pods.node[rows] = nodes
        pods.reason[rows] = NO_REASON
        others = rows[~reserved]
        if not len(others):
            return self._reserve(rows[pods.outdated[rows]]) + self._settlement.look(rows, self._unix_ms(now))
        # What is still with a worker is answered as usual, and the answer changes nothing.
        self._registry.move(others, Phase.BOUND, self._unix_ms(now), ASSIGNED)
        self._settlement.publish(others)
        for gang in self._registry.gangs.incomplete(others):
            self._queues.start(gang, now, self._unix_ms(now))
        out = self._reserve(rows[~reserved | pods.outdated[rows]])
        return out + self._settlement.look(rows, self._unix_ms(now))

    def _respecified(self, event: m.Respecified, now: float) -> list[m.Instruction]:
        """Of pods that are on nodes the ledger is told. Those that wait are tried again; what somebody has in hand of them, or has
        reserved, is of the pod as it was, and counts only where the API server has bound it meanwhile."""
        pods, templates = self._registry.pods, self._registry.templates
        resized: list[int] = []
        waiting: list[int] = []
        moved = False
        for row, template in event.pods:
            if pods.phase[row] in (Phase.DELETED, Phase.ABSENT):
                continue
            place, before = templates.places(pods.template[[row]]), self._spec(row)
            self._registry.respecify(row, template)
            after = self._spec(row)
            if pods.assigned[row]:
                leaving = pods.eviction[row] != NO_REASON  # its room is another's already
                if not leaving and _in_ledger(before) != _in_ledger(after):
                    resized.append(row)
            elif before != after:
                waiting.append(row)
                moved |= bool((templates.places(pods.template[[row]]) != place).any())
        rows = np.array(waiting, np.uint32)
        pods.outdated[rows] = True
        self._queues.respecified(rows, now, self._unix_ms(now), moved=moved)
        return self._reserve(np.array(resized, np.uint32))

    def _spec(self, row: int) -> PodSpec:
        templates = self._registry.templates
        return templates.pod_spec(int(templates.class_id[self._registry.pods.template[row]]))

    def _reserve(self, rows: Rows) -> list[m.Instruction]:
        pods = self._registry.pods
        pods.outdated[rows] = False
        return [m.Reserve(rows, pods.uid[rows])] if len(rows) else []

    def _binding_refused(self, event: m.BindingRefused, now: float) -> list[m.Instruction]:
        """In BACKOFF until their reservation is given back; then they are queued, at once or after a while if it was often."""
        pods = self._registry.pods
        bound = (pods.phase[event.rows] == Phase.BOUND) & ~pods.assigned[event.rows]
        rows = event.rows[bound]
        if not len(rows):
            return []
        attempts = pods.attempts[rows].astype(np.uint32) + event.attempted
        pods.attempts[rows] = np.minimum(attempts, MAX_ATTEMPTS_COUNTED)
        reasons = [self._registry.reasons.number(event.reasons[i]) for i in np.flatnonzero(bound).tolist()]
        pods.reason[rows] = reasons
        self._registry.move(rows, Phase.BACKOFF, self._unix_ms(now), BINDING_REFUSED)
        self._settlement.publish(rows)
        return [m.Release(rows, pods.uid[rows], pods.node[rows])]


def _in_ledger(spec: PodSpec) -> tuple[object, ...]:
    """What the ledger has of a pod."""
    return spec.requests, spec.devices, group_of(spec)
