"""Whether bound pods may stay on their nodes: NoExecute taints, removed nodes, and node affinity that is
required during execution too.

A NoExecute taint evicts a pod that does not tolerate it at once, and a pod that tolerates it for a time when
that time is over (kube-controller-manager's taint eviction; disruption budgets do not apply). Time counts
from the taint or from the binding, whichever is later. Kubernetes names
requiredDuringSchedulingRequiredDuringExecution but never built it. Here an annotation requests it
(hoss.manifests.pod): a bound pod whose node stops matching its nodeSelector or required node affinity is
reported, or evicted as far as disruption budgets allow.

Pods are checked when they or their node change, and at scheduled times. A check depends only on the state at
that time, so an outdated scheduled check does no harm."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from dispatcher.core.bound.disruption_budgets import NO_ROWS, PodCounts, RemainingDisruptions
from dispatcher.core.cluster.nodes import KnownNodes
from dispatcher.core.messages import Evict, Instruction, KnownNode, Verify, Warn
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.table import NO_REASON, Phase, Rows
from hoss.model.cluster import PodDisruptionBudget
from hoss.model.node import FOR_EVER, stay_seconds
from hoss.model.pod import DuringExecution, PodSpec
from hoss.model.slices import Steps
from hoss.wire.columns import NONE_U32
from hoss.wire.uids import UID_BYTES

# When pods that a disruption budget protects are checked again.
BUDGET_RETRY_MS = 1000

_LONGEST_STAY_SECONDS = 10**9  # thirty years

_SLICE_ROWS, _SLICE_MICROS = 100_000, 500.0


@dataclass(eq=False)
class TaintEviction:
    """Which pods have to leave their nodes, and which are leaving.

    `evicts`: False where others evict, as the controllers of a Kubernetes cluster do. Then pods that request
    eviction are reported."""

    registry: PodRegistry
    nodes: KnownNodes
    budgets: Callable[[], Iterable[PodDisruptionBudget]]
    evicts: bool = True
    # UIDs. A second eviction could hit the pod's next reservation.
    _leaving: dict[bytes, None] = field(default_factory=dict, init=False)  # UIDs, first evicted first
    _checks: list[tuple[int, int, Rows]] = field(default_factory=list, init=False)  # heap: time, serial, pods
    _serials: Iterator[int] = field(default_factory=count, init=False)

    def check(self, rows: Rows, now_ms: int) -> tuple[list[Instruction], Rows]:
        """Evict or report those of these bound pods that may not stay. Also returns the pods whose reason
        changed."""
        if not (self.registry.has_node_rules or (self.evicts and self.nodes.any_may_evict)):
            return [], NO_ROWS
        pods, templates = self.registry.pods, self.registry.templates
        watched = templates.watched[pods.template[rows]]
        rows = rows[watched | self.nodes.may_evict(pods.node[rows])] if self.evicts else rows[watched]
        if not len(rows):
            return [], NO_ROWS
        out: list[Instruction] = []
        before = pods.reason[rows]
        remaining = RemainingDisruptions(self._counts, self.budgets)
        for template_id, index, mine in self._by_template_and_node(rows):
            node = self.nodes.get(index)
            if node is not None:
                spec = templates.pod_spec(int(templates.class_id[template_id]))
                staying, evicted = self._evict_intolerant(mine, spec, node, now_ms)
                requested = templates.kind(template_id).during_execution
                if not self.evicts and requested is DuringExecution.EVICT:
                    requested = DuringExecution.REPORT
                out += evicted + self._check_affinity(
                    staying, requested, spec, node, remaining=remaining, now_ms=now_ms
                )
            elif self.evicts and self.nodes.removal_reason(index):
                # The removal takes what it finds, and the node may have come back since: the ledger knows.
                staying = self.not_leaving(mine)
                out.append(Verify(staying, pods.uid[staying]))
            # Otherwise the feed has not reported the node yet.
        return out, rows[pods.reason[rows] != before]

    def evict_removed(self, rows: Rows) -> list[Instruction]:
        """Evict these bound pods, which the ledger still has where they were before their nodes were
        removed."""
        if not self.evicts:
            return []
        nodes = self.registry.pods.node[rows]
        return [
            instruction
            for index in np.unique(nodes).tolist()
            for instruction in self._evict(rows[nodes == index], self.nodes.removal_reason(index))
        ]

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {"pods_leaving": len(self._leaving), "taint_checks": len(self._checks)}

    def due(self, now_ms: int) -> Rows:
        """Bound pods whose scheduled check is due."""
        noted = []
        while self._checks and self._checks[0][0] <= now_ms:
            noted.append(heapq.heappop(self._checks)[2])
        if not noted:
            return NO_ROWS
        return self._bound(np.unique(np.concatenate(noted)))

    def evicted(self, uids: Iterable[bytes]) -> None:
        """These evictions are done."""
        for uid in uids:
            self._leaving.pop(uid, None)

    def leaving(self) -> Rows:
        """Rows of the bound pods whose eviction is under way."""
        if not self._leaving:
            return NO_ROWS
        uids = np.frombuffer(b"".join(self._leaving), np.uint8).reshape(-1, UID_BYTES)
        rows = self.registry.directory.rows_of_uids(uids)
        return self._bound(rows[rows != NONE_U32])

    def misplaced(self) -> Steps[dict[str, int]]:
        """Number of bound pods that were reported and are still on their nodes, by reason."""
        pods, found = self.registry.pods, Counter[str]()
        for start in range(0, pods.size if self.registry.has_node_rules else 0, _SLICE_ROWS):
            part = slice(start, min(start + _SLICE_ROWS, pods.size))
            there = (pods.phase[part] == Phase.BOUND) & (pods.reason[part] != NO_REASON)
            counts = np.bincount(pods.reason[part][there])
            # The texts are read at once: between slices a number may get another one.
            for number in np.flatnonzero(counts).tolist():
                found[self.registry.reasons.texts[number]] += int(counts[number])
            yield _SLICE_MICROS
        return found

    def not_leaving(self, rows: Rows) -> Rows:
        """Those of these rows whose eviction is not under way."""
        if not self._leaving:
            return rows
        uids = map(bytes, self.registry.pods.uid[rows])
        return rows[np.array([uid not in self._leaving for uid in uids], np.bool_)]

    def _bound(self, rows: Rows) -> Rows:
        bound: Rows = rows[self.registry.pods.phase[rows] == Phase.BOUND]
        return bound

    def _by_template_and_node(self, rows: Rows) -> list[tuple[int, int, Rows]]:
        pods = self.registry.pods
        keys = pods.template[rows].astype(np.uint64) << np.uint64(32) | pods.node[rows].astype(np.uint64)
        order = np.argsort(keys, kind="stable")
        distinct, first = np.unique(keys[order], return_index=True)
        parts = np.split(rows[order], first[1:])
        return [
            (int(key) >> 32, int(key) & NONE_U32, part) for key, part in zip(distinct, parts, strict=False)
        ]

    def _evict_intolerant(
        self, rows: Rows, spec: PodSpec, node: KnownNode, now_ms: int
    ) -> tuple[Rows, list[Instruction]]:
        """Evict the pods that the node's NoExecute taints evict by now; returns the others."""
        out: list[Instruction] = []
        for taint, since_ms in node.no_execute if self.evicts else ():
            seconds = stay_seconds(taint, spec.tolerations)
            if seconds is None:
                reason = f"evicted: node {node.name} has taint {taint}, which the pod does not tolerate"
                return rows[:0], [*out, *self._evict(rows, reason)]
            if seconds == FOR_EVER or not len(rows):
                continue
            begun_ms = np.maximum(self.registry.pods.since_ms[rows], since_ms)
            until_ms = begun_ms + 1000 * int(min(seconds, _LONGEST_STAY_SECONDS))
            over = until_ms <= now_ms
            tolerated = f"which the pod tolerates for {seconds:.0f} s only"
            out += self._evict(rows[over], f"evicted: node {node.name} has taint {taint}, {tolerated}")
            rows = rows[~over]
            if len(rows):
                self._check_later(int(until_ms[~over].min()), rows)
        return rows, out

    def _check_affinity(
        self,
        rows: Rows,
        requested: DuringExecution,
        spec: PodSpec,
        node: KnownNode,
        *,
        remaining: RemainingDisruptions,
        now_ms: int,
    ) -> list[Instruction]:
        """Report or evict pods whose node affinity has to hold during execution and does not."""
        if requested is DuringExecution.IGNORE or not len(rows):
            return []
        if spec.selects(node.labels, node.name):
            self.registry.pods.reason[rows] = NO_REASON
            return []
        mismatch = f"node {node.name} doesn't match the pod's node affinity/selector any more"
        if requested is DuringExecution.REPORT:
            return self._report(rows, mismatch, node.name)
        rows = self.not_leaving(rows)
        may_go, budget = remaining.take(spec, len(rows))
        out = self._evict(rows[:may_go], f"evicted: {mismatch}")
        if may_go < len(rows):
            self._check_later(now_ms + BUDGET_RETRY_MS, rows[may_go:])
            kept = f"{mismatch}; disruption budget {budget} does not let it go yet"
            out += self._report(rows[may_go:], kept, node.name)
        return out

    def _report(self, rows: Rows, reason: str, node: str) -> list[Instruction]:
        pods = self.registry.pods
        number = self.registry.reasons.number(reason)
        new = int((pods.reason[rows] != number).sum())
        pods.reason[rows] = number
        return [Warn("pods_misplaced", {"node": node, "pods": new})] if new else []

    def _evict(self, rows: Rows, reason: str) -> list[Instruction]:
        pods, going = self.registry.pods, self.not_leaving(rows)
        if not len(going):
            return []
        self._leaving.update(dict.fromkeys(map(bytes, pods.uid[going])))
        return [Evict(pods.uid[going], pods.node[going], (reason,) * len(going))]

    def _check_later(self, when_ms: int, rows: Rows) -> None:
        heapq.heappush(self._checks, (when_ms, next(self._serials), rows))

    def _counts(self) -> PodCounts:
        return PodCounts(self.registry, self.leaving())
