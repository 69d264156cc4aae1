"""Kubernetes mode: the API server decides where pods are, whatever HOSS decided. An *assigned* pod is BOUND,
stays on its node and is reserved there. Conflicting reports of a worker or of the ledger are overruled."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dispatcher.core import messages as m
from dispatcher.core.bound.settlement import MAX_ATTEMPTS_COUNTED, Settlement
from dispatcher.core.pods.history import ASSIGNED, BINDING_REFUSED, MOVED
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.table import NO_REASON, Phase, Rows
from dispatcher.core.queue.queues import Queues
from hoss.model.pod import PodSpec, group_of

ELSEWHERE = "a binding to another node was carried out first"


@dataclass(frozen=True, slots=True, eq=False)
class Assignments:
    """`handlers` lists the handlers by event type."""

    registry: PodRegistry
    queues: Queues
    settlement: Settlement
    unix_ms: Callable[[float], int]

    @property
    def handlers(self) -> m.Handlers:
        return {
            m.Assigned: self._assigned,
            m.Inherited: self._inherited,
            m.PodsChanged: self._pods_changed,
            m.BindingRefused: self._binding_refused,
        }

    def _assigned(self, event: m.Assigned, now: float) -> list[m.Instruction]:
        pods, now_ms = self.registry.pods, self.unix_ms(now)
        alive = pods.phase[event.rows] != Phase.DELETED
        rows, nodes = event.rows[alive], event.nodes[alive]
        new = ~pods.assigned[rows] | (pods.node[rows] != nodes)
        rows, nodes = rows[new], nodes[new]
        bound, here = pods.phase[rows] == Phase.BOUND, pods.node[rows] == nodes
        reserved = bound & here  # as HOSS bound it
        # HOSS bound these, and the API server carried out a binding of somebody else, or one that a lost
        # leader had asked for.
        elsewhere = rows[bound & ~here & ~pods.assigned[rows]]
        self.settlement.end_placements(elsewhere, ELSEWHERE, BINDING_REFUSED, now_ms)
        pods.assigned[rows] = True
        pods.node[rows] = nodes
        pods.reason[rows] = NO_REASON
        others = rows[~reserved]
        if len(others):
            # A pod that is still with a worker is answered as usual, and the answer changes nothing.
            self.registry.move(others, Phase.BOUND, now_ms, ASSIGNED)
            self.settlement.publish(others)
            for gang in self.registry.gangs.incomplete(others):
                self.queues.gang_completed(gang, now, now_ms)
        out = self._reserve(rows[~reserved | pods.outdated[rows]])
        return out + self.settlement.check_nodes(rows, now_ms)

    def _inherited(self, event: m.Inherited, now: float) -> list[m.Instruction]:
        now_ms = self.unix_ms(now)
        self.registry.pods.node[event.rows] = event.nodes
        self.registry.move(event.rows, Phase.BOUND, now_ms, MOVED)
        self.settlement.counters["moved"] += len(event.rows)
        self.settlement.publish(event.rows)
        return self.settlement.check_nodes(event.rows, now_ms)

    def _pods_changed(self, event: m.PodsChanged, now: float) -> list[m.Instruction]:
        """Pods on nodes are reserved anew. Waiting pods are retried. An outstanding or reserved placement is
        of the pod as it was, and counts only if the API server has bound it meanwhile."""
        pods, templates = self.registry.pods, self.registry.templates
        resized: list[int] = []
        waiting: list[int] = []
        moved = False
        for row, template in event.pods:
            if pods.phase[row] in (Phase.DELETED, Phase.ABSENT):
                continue
            place, before = templates.places(pods.template[[row]]), self._spec(row)
            self.registry.replace_template(row, template)
            after = self._spec(row)
            if pods.assigned[row]:
                # The room of a pod that terminates belongs to another pod already.
                if not pods.terminating[row] and _in_ledger(before) != _in_ledger(after):
                    resized.append(row)
            elif before != after:
                waiting.append(row)
                moved |= bool((templates.places(pods.template[[row]]) != place).any())
        rows = np.array(waiting, np.uint32)
        pods.outdated[rows] = True
        self.queues.templates_changed(rows, now, self.unix_ms(now), moved=moved)
        return self._reserve(np.array(resized, np.uint32))

    def _spec(self, row: int) -> PodSpec:
        templates = self.registry.templates
        return templates.pod_spec(int(templates.class_id[self.registry.pods.template[row]]))

    def _reserve(self, rows: Rows) -> list[m.Instruction]:
        pods = self.registry.pods
        pods.outdated[rows] = False
        return [m.Reserve(rows, pods.uid[rows])] if len(rows) else []

    def _binding_refused(self, event: m.BindingRefused, now: float) -> list[m.Instruction]:
        """The pods are in BACKOFF until their reservation is released. Then they are queued, at once or after
        a backoff if they were refused often."""
        pods = self.registry.pods
        bound = (pods.phase[event.rows] == Phase.BOUND) & ~pods.assigned[event.rows]
        rows = event.rows[bound]
        if not len(rows):
            return []
        attempts = pods.attempts[rows].astype(np.uint32) + event.attempted
        pods.attempts[rows] = np.minimum(attempts, MAX_ATTEMPTS_COUNTED)
        # As in kube-scheduler, a binding that fails is no lack of nodes.
        pods.reason[rows] = [
            self.registry.reasons.number(event.reasons[i], failed=event.attempted)
            for i in np.flatnonzero(bound).tolist()
        ]
        self.registry.move(rows, Phase.BACKOFF, self.unix_ms(now), BINDING_REFUSED)
        self.settlement.publish(rows)
        return [m.Release(rows, pods.uid[rows], pods.node[rows])]


def _in_ledger(spec: PodSpec) -> tuple[object, ...]:
    """The part of a pod that the ledger stores."""
    return spec.requests, spec.devices, group_of(spec)
