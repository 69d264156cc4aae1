"""Kubernetes mode: tells of bindings that no resolver has reviewed.

Where resolvers serve the binding webhook, a pod of another scheduler has its reservation before it is on its
node. One that has none was bound while the webhook had no answer and its failurePolicy is Ignore, or was
created with spec.nodeName. Its room is counted all the same, whether there is any or not, so people should
know. A resolver finds out when the dispatcher has the pod's room counted, and says so of each pod once,
whoever counted it first."""

import asyncio
from collections.abc import Collection, Mapping

import numpy as np

from dispatcher.core.pods.table import Rows
from dispatcher.kubernetes.event_recorder import EventRecorder
from dispatcher.runtime import Runtime
from hoss.telemetry import logger

EXEMPT_LABEL, EXEMPT_VALUE = "hoss.dev/binding-guard", "off"
_PROBLEM = "unreviewed"
_PROBLEM_SECONDS = 600.0  # how long `hoss status` names the latest
_LOOK_SECONDS = 5.0
_NAMED = 5  # pods in a line of the log


class UnreviewedBindings:
    """`run` must be running."""

    def __init__(
        self,
        runtime: Runtime,
        recorder: EventRecorder,
        indexes: Mapping[str, int],
        *,
        schedulers: Collection[str],
        exempt_namespaces: Collection[str],
        new_nodes: Collection[int],
    ) -> None:
        """`indexes`: of the ledger's nodes, by name. `schedulers`: the scheduler names of HOSS; its own
        bindings need no review. `new_nodes`: those that the ledger was told of for the first time, as long as
        the pods that exist are being counted. What is on these was bound before anybody was asked."""
        self._runtime = runtime
        self._recorder = recorder
        self._indexes = indexes
        self._schedulers = frozenset(schedulers)
        self._exempt = frozenset(exempt_namespaces)
        self._new_nodes = new_nodes
        self._latest_at = float("-inf")

    def to_be_told(self, rows: Rows) -> Rows:
        """Those of these pods of which people are told where nobody has reviewed their bindings."""
        return np.array([row for row in rows.tolist() if self._is_to_be_told(row)], np.uint32)

    def report(self, rows: Rows) -> None:
        """These pods are on their nodes, and nobody had reserved room for them."""
        rows = self.to_be_told(rows)
        if not len(rows):
            return
        registry, counters = self._runtime.machine.registry, self._runtime.machine.counters
        node_names = {index: name for name, index in self._indexes.items()}
        nodes = [node_names.get(node, "") for node in registry.pods.node[rows].tolist()]
        names = [
            f"{registry.namespace_of(row)}/{registry.set_of(row).pod_name(row)}" for row in rows.tolist()
        ]
        counters["bindings_unreviewed"] += len(rows)
        logger().warning("bindings_unreviewed", count=len(rows), pods=names[:_NAMED], nodes=nodes[:_NAMED])
        self._recorder.unreviewed(rows, nodes)
        self._latest_at = self._runtime.now()
        self._runtime.problems[_PROBLEM] = (
            f"{counters['bindings_unreviewed']} bindings of other schedulers passed the binding webhook"
            f" unreviewed, the latest of {names[-1]} to node {nodes[-1]}; they are counted now, and `hoss"
            " audit` names nodes that are overcommitted"
        )

    async def run(self) -> None:
        """Until cancelled, take back what `hoss status` says when it is old."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._runtime.now() - self._latest_at > _PROBLEM_SECONDS:
                self._runtime.problems.pop(_PROBLEM, None)

    def _is_to_be_told(self, row: int) -> bool:
        registry = self._runtime.machine.registry
        if int(registry.pods.node[row]) in self._new_nodes:
            return False
        kind = registry.templates.kind(int(registry.pods.template[row]))
        namespace = registry.namespace_of(row)
        labels: Mapping[str, str] = self._runtime.machine.objects.namespaces.get(namespace, {})
        is_exempt = namespace in self._exempt or labels.get(EXEMPT_LABEL) == EXEMPT_VALUE
        return kind.scheduler_name not in self._schedulers and not is_exempt
