"""Whether bound pods may stay where they are: NoExecute taints, nodes that are gone, and node affinity that is required
during execution too.

A NoExecute taint sends away who does not tolerate it, at once, and who tolerates it for some time when that is over
(kube-controller-manager's taint eviction; disruption budgets have no say in it). Time counts from when the taint came or
the pod did, whichever is later. Kubernetes names requiredDuringSchedulingRequiredDuringExecution and never built it. Here
an annotation asks for it (hoss.model.during_execution): a bound pod whose node stops matching its nodeSelector or required
node affinity is reported, or evicted as far as disruption budgets allow and placed anew.

Pods are looked at when something happens to them or their node, and at moments noted for them. What is done then depends
on how things are then: whatever changed meanwhile, a note that is too old does no harm.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from itertools import count

import numpy as np

from dispatcher.core.disruptions import NOBODY, PodCounts, Spare
from dispatcher.core.known_nodes import KnownNodes
from dispatcher.core.messages import Evict, Instruction, KnownNode, Warn
from dispatcher.core.podtable import NO_REASON, Phase, Rows
from dispatcher.core.registry import PodRegistry
from hoss.model.cluster_objects import PodDisruptionBudget
from hoss.model.during_execution import DuringExecution
from hoss.model.pod import PodSpec
from hoss.model.taints import FOR_EVER, stay_seconds
from hoss.wire.columns import NONE_U32, UID_BYTES

# How soon those are looked at again whom a disruption budget keeps.
BUDGET_RETRY_MS = 1000

_LONGEST_STAY_SECONDS = 10**9  # thirty years


class Residence:
    """The nodes as the feed last told of them, and which pods are on their way off one."""

    def __init__(
        self, registry: PodRegistry, budgets: Callable[[], Iterable[PodDisruptionBudget]], *, evicts: bool = True
    ) -> None:
        """`evicts`: False where others send pods away, as the controllers of a Kubernetes cluster do. Then who asks to be evicted is
        reported."""
        self._registry = registry
        self._budgets = budgets
        self._evicts = evicts
        self._nodes = KnownNodes()
        # By UID: a second release could meet the pod's next reservation.
        self._leaving: set[bytes] = set()
        self._notes: list[tuple[int, int, Rows]] = []  # heap: when, serial, whom to look at
        self._serials = count()

    def learn(self, nodes: Mapping[int, KnownNode], now_ms: int) -> Rows:
        """These nodes, by index, are so now. Returns the bound pods on them that are to be looked at."""
        # Where pods of a node that was gone are is being looked up.
        stayed = [index for index in nodes if self._nodes.gone(index) is None]
        expelling = self._nodes.learn(nodes, now_ms)
        asked = stayed if self._registry.minds_nodes else [index for index in stayed if index in expelling]
        return self._bound_on(asked) if asked else NOBODY

    def forget(self, nodes: Iterable[int]) -> None:
        """These nodes are gone."""
        self._nodes.forget(nodes)

    def forget_unlisted(self, rows: Rows) -> None:
        """All nodes of these bound pods' shard were told of just now: those that were not are gone."""
        self._nodes.forget(i for i in np.unique(self._registry.pods.node[rows]).tolist() if i not in self._nodes)

    def look(self, rows: Rows, now_ms: int) -> tuple[list[Instruction], Rows]:
        """What is to be done about those of these bound pods that may not stay, and whose reason changed by that."""
        if not (self._registry.minds_nodes or (self._evicts and self._nodes.any_unfit)):
            return [], NOBODY
        pods, templates = self._registry.pods, self._registry.templates
        watched = templates.watched[pods.template[rows]]
        rows = rows[watched | self._nodes.unfit(pods.node[rows])] if self._evicts else rows[watched]
        if not len(rows):
            return [], NOBODY
        out: list[Instruction] = []
        told = pods.reason[rows]
        spare = Spare(self._counts, self._budgets)
        for template_id, index, mine in self._together(rows):
            node = self._nodes.get(index)
            if node is not None:
                spec = templates.pod_spec(int(templates.class_id[template_id]))
                staying, expelled = self._expel(mine, spec, node, now_ms) if self._evicts else (mine, [])
                asked = templates.kind(template_id).during_execution
                if not self._evicts and asked is DuringExecution.EVICT:
                    asked = DuringExecution.REPORT
                out += expelled + self._match(staying, asked, spec, node, spare=spare, now_ms=now_ms)
            elif self._evicts and (name := self._nodes.gone(index)) is not None:
                out += self._evict(mine, removed(name))
            # else the feed will tell of it
        return out, rows[pods.reason[rows] != told]

    def due(self, now_ms: int) -> Rows:
        """Bound pods that are to be looked at by now."""
        noted = []
        while self._notes and self._notes[0][0] <= now_ms:
            noted.append(heapq.heappop(self._notes)[2])
        if not noted:
            return NOBODY
        return self._bound(np.unique(np.concatenate(noted)))

    def left(self, uids: Iterable[bytes]) -> None:
        """These evictions are done."""
        self._leaving.difference_update(uids)

    def why_gone(self, node: int) -> str:
        """What became of pods whose reservation is not there any more; "" where their node is."""
        name = self._nodes.gone(node)
        return "" if name is None else removed(name)

    def leaving(self) -> Rows:
        """Bound pods that are on their way off their node."""
        if not self._leaving:
            return NOBODY
        uids = np.frombuffer(b"".join(self._leaving), np.uint8).reshape(-1, UID_BYTES)
        rows = self._registry.directory.rows_of_uids(uids)
        return self._bound(rows[rows != NONE_U32])

    def misplaced(self) -> dict[str, int]:
        """Bound pods that were reported and are still where they are, by reason."""
        pods = self._registry.pods
        if not self._registry.minds_nodes:
            return {}
        there = (pods.phase[: pods.size] == Phase.BOUND) & (pods.reason[: pods.size] != NO_REASON)
        numbers, counts = np.unique(pods.reason[: pods.size][there], return_counts=True)
        return {self._registry.reasons.texts[n]: c for n, c in zip(numbers.tolist(), counts.tolist(), strict=True)}

    def staying(self, rows: Rows) -> Rows:
        """Those of these bound pods that are not on their way off."""
        if not self._leaving:
            return rows
        uids = map(bytes, self._registry.pods.uid[rows])
        return rows[np.array([uid not in self._leaving for uid in uids], np.bool_)]

    def _bound_on(self, nodes: list[int]) -> Rows:
        pods = self._registry.pods
        there = np.isin(pods.node[: pods.size], np.array(nodes, np.uint32))
        return np.flatnonzero((pods.phase[: pods.size] == Phase.BOUND) & there).astype(np.uint32)

    def _bound(self, rows: Rows) -> Rows:
        bound: Rows = rows[self._registry.pods.phase[rows] == Phase.BOUND]
        return bound

    def _together(self, rows: Rows) -> list[tuple[int, int, Rows]]:
        """The pods by template and node."""
        pods = self._registry.pods
        keys = pods.template[rows].astype(np.uint64) << np.uint64(32) | pods.node[rows].astype(np.uint64)
        order = np.argsort(keys, kind="stable")
        distinct, first = np.unique(keys[order], return_index=True)
        parts = np.split(rows[order], first[1:])
        return [(int(key) >> 32, int(key) & NONE_U32, part) for key, part in zip(distinct, parts, strict=False)]

    def _expel(self, rows: Rows, spec: PodSpec, node: KnownNode, now_ms: int) -> tuple[Rows, list[Instruction]]:
        """Evict those whom the node's NoExecute taints send away by now; returns the others."""
        out: list[Instruction] = []
        for taint, since_ms in node.expelling:
            seconds = stay_seconds(taint, spec.tolerations)
            if seconds is None:
                reason = f"evicted: node {node.name} has taint {taint}, which the pod does not tolerate"
                return rows[:0], [*out, *self._evict(rows, reason)]
            if seconds == FOR_EVER or not len(rows):
                continue
            begun_ms = np.maximum(self._registry.pods.since_ms[rows], since_ms)
            until_ms = begun_ms + 1000 * int(min(seconds, _LONGEST_STAY_SECONDS))
            over = until_ms <= now_ms
            reason = f"evicted: node {node.name} has taint {taint}, which the pod tolerates for {seconds:.0f} s only"
            out += self._evict(rows[over], reason)
            rows = rows[~over]
            if len(rows):
                self._note(int(until_ms[~over].min()), rows)
        return rows, out

    def _match(
        self, rows: Rows, asked: DuringExecution, spec: PodSpec, node: KnownNode, *, spare: Spare, now_ms: int
    ) -> list[Instruction]:
        """Report or evict pods that ask for their node to match, if it does not."""
        if asked is DuringExecution.IGNORE or not len(rows):
            return []
        if spec.selects(node.labels, node.name):
            self._registry.pods.reason[rows] = NO_REASON
            return []
        mismatch = f"node {node.name} doesn't match the pod's node affinity/selector any more"
        if asked is DuringExecution.REPORT:
            return self._report(rows, mismatch, node.name)
        rows = self.staying(rows)
        may_go, budget = spare.take(spec, len(rows))
        out = self._evict(rows[:may_go], f"evicted: {mismatch}")
        if may_go < len(rows):
            self._note(now_ms + BUDGET_RETRY_MS, rows[may_go:])
            kept = f"{mismatch}; disruption budget {budget} does not let it go yet"
            out += self._report(rows[may_go:], kept, node.name)
        return out

    def _report(self, rows: Rows, reason: str, node: str) -> list[Instruction]:
        pods = self._registry.pods
        number = self._registry.reasons.number(reason)
        news = int((pods.reason[rows] != number).sum())
        pods.reason[rows] = number
        return [Warn("pods_misplaced", {"node": node, "pods": news})] if news else []

    def _evict(self, rows: Rows, reason: str) -> list[Instruction]:
        pods, going = self._registry.pods, self.staying(rows)
        if not len(going):
            return []
        self._leaving.update(map(bytes, pods.uid[going]))
        return [Evict(pods.uid[going], pods.node[going], (reason,) * len(going))]

    def _note(self, when_ms: int, rows: Rows) -> None:
        heapq.heappush(self._notes, (when_ms, next(self._serials), rows))

    def _counts(self) -> PodCounts:
        return PodCounts(self._registry, self.leaving())


def removed(node: str) -> str:
    """Why pods of a node that is gone are queued again."""
    return f"evicted: node {node} was removed" if node else "evicted: its node was removed"
