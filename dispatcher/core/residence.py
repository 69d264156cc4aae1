"""Whether bound pods may stay where they are: node affinity that is required during execution too, where pods ask for it.

Kubernetes names requiredDuringSchedulingRequiredDuringExecution and never built it. Here an annotation asks for it
(hoss.model.during_execution): a bound pod whose node stops matching its nodeSelector or required node affinity is
reported, or evicted and placed anew. Pods that do not ask are not looked at.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from dispatcher.core.messages import Evict, Instruction, KnownNode, Warn
from dispatcher.core.podtable import NO_REASON, Phase, Rows
from dispatcher.core.registry import PodRegistry
from hoss.model.during_execution import DuringExecution
from hoss.wire.columns import NONE_U32

_NEW = KnownNode("", {})


class Residence:
    """The nodes as the feed last told of them, and which pods are on their way off one."""

    def __init__(self, registry: PodRegistry) -> None:
        self._registry = registry
        self._nodes: dict[int, KnownNode | None] = {}  # None: gone, and where its pods are is being looked up
        # By UID: a second release could meet the pod's next reservation.
        self._leaving: set[bytes] = set()

    def learn(self, nodes: Mapping[int, KnownNode]) -> Rows:
        """These nodes, by index, are so now. Returns the bound pods on them that are to be looked at."""
        stayed = [index for index in nodes if self._nodes.get(index, _NEW) is not None]
        self._nodes.update(nodes)
        pods = self._registry.pods
        if not self._registry.minds_nodes:
            return np.empty(0, np.uint32)
        there = np.isin(pods.node[: pods.size], np.array(stayed, np.uint32))
        return np.flatnonzero((pods.phase[: pods.size] == Phase.BOUND) & there).astype(np.uint32)

    def forget(self, nodes: Iterable[int]) -> None:
        """These nodes are gone."""
        self._nodes.update(dict.fromkeys(nodes))

    def look(self, rows: Rows) -> tuple[list[Instruction], Rows]:
        """What is to be done about those of these bound pods whose node does not match, and whose reason changed by that."""
        if not self._registry.minds_nodes:
            return [], rows[:0]
        pods, templates = self._registry.pods, self._registry.templates
        rows = rows[templates.watched[pods.template[rows]]]
        out: list[Instruction] = []
        told = pods.reason[rows]
        for template_id, index, mine in self._together(rows):
            asked = templates.kind(template_id).during_execution
            node = self._nodes.get(index)
            if node is None:
                continue  # the feed will tell of it
            if templates.pod_spec(int(templates.class_id[template_id])).selects(node.labels, node.name):
                pods.reason[mine] = NO_REASON
            elif asked is DuringExecution.EVICT:
                out += self._evict(mine, f"evicted: {_does_not_match(node.name)}")
            else:
                out += self._report(mine, node.name)
        return out, rows[pods.reason[rows] != told]

    def left(self, uids: Iterable[bytes]) -> None:
        """These evictions are done."""
        self._leaving.difference_update(uids)

    def misplaced(self) -> dict[str, int]:
        """Bound pods that were reported and are still where they are, by reason."""
        pods = self._registry.pods
        if not self._registry.minds_nodes:
            return {}
        there = (pods.phase[: pods.size] == Phase.BOUND) & (pods.reason[: pods.size] != NO_REASON)
        numbers, counts = np.unique(pods.reason[: pods.size][there], return_counts=True)
        return {self._registry.reasons.texts[n]: c for n, c in zip(numbers.tolist(), counts.tolist(), strict=True)}

    def _together(self, rows: Rows) -> list[tuple[int, int, Rows]]:
        """The pods by template and node."""
        pods = self._registry.pods
        keys = pods.template[rows].astype(np.uint64) << np.uint64(32) | pods.node[rows].astype(np.uint64)
        return [
            (int(key) >> 32, int(key) & NONE_U32, rows[keys == key])
            for key in np.unique(keys)  # few: of watched pods, on nodes that changed
        ]

    def _report(self, rows: Rows, node: str) -> list[Instruction]:
        pods = self._registry.pods
        number = self._registry.reasons.number(_does_not_match(node))
        news = int((pods.reason[rows] != number).sum())
        pods.reason[rows] = number
        return [Warn("pods_misplaced", {"node": node, "pods": news})] if news else []

    def _evict(self, rows: Rows, reason: str) -> list[Instruction]:
        # Limits to how many pods may go at once (disruption budgets) belong here: those that must wait are reported instead.
        pods = self._registry.pods
        here = [row for row in rows.tolist() if pods.uid[row].tobytes() not in self._leaving]
        if not here:
            return []
        self._leaving.update(pods.uid[row].tobytes() for row in here)
        going = np.array(here, np.uint32)
        return [Evict(pods.uid[going], pods.node[going], (reason,) * len(going))]


def _does_not_match(node: str) -> str:
    return f"node {node} doesn't match the pod's node affinity/selector any more"
