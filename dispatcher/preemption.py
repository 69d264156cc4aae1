"""Preemption as the dispatcher has part in it: workers ask whom they may evict, and the feed says whom the ledger evicted."""

from dataclasses import replace

import numpy as np

from dispatcher.core import messages as m
from dispatcher.core.budget_loans import BudgetLoans
from dispatcher.core.occupancy import budgets_now, lower_pods
from dispatcher.nodes import NodeNames
from dispatcher.runtime import Runtime
from hoss.model.cluster import DisruptionBudget
from hoss.model.histograms import SizeHistogram
from hoss.v1 import resolver_pb2
from hoss.v1 import workerlink_pb2 as pb
from hoss.wire.columns import I64, NONE_U32, U32, decode, decode_uids, encode, uid_text
from hoss.wire.convert_rules import selector_to_proto


class Preemption:
    """Answers questions; follows the feed (`apply`) after `names` did."""

    def __init__(self, runtime: Runtime, names: NodeNames, *, of_cluster: bool = False) -> None:
        """`of_cluster`: victims are pods of a Kubernetes cluster, and are gone when it says so."""
        self._of_cluster = of_cluster
        self._runtime = runtime
        self._machine = runtime.machine
        self._names = names
        self._loans = BudgetLoans()
        self._seen: dict[int, int] = {}  # shard -> seq
        self.victims = SizeHistogram()  # of each pod for which others went

    def answer(self, question: pb.PreemptionQuestion, worker: str) -> pb.DispatcherMessage:
        """Who is bound, as of now, where a worker has found no room. Raises ColumnError."""
        registry = self._machine.registry
        pods, templates = registry.pods, registry.templates
        nodes = decode(question.nodes, U32, name="preemption.nodes")
        rows, nodes_seen = lower_pods(registry, nodes, question.priority, question.limit, assigned=self._of_cluster)
        ids = pods.template[rows]
        class_ids, classes = np.unique(templates.class_id[ids], return_inverse=True)
        distinct, which = np.unique(ids, return_inverse=True)
        # Nobody of a cluster is gone at once: whoever comes for them waits for word of it.
        least = 1 if self._of_cluster else 0
        grace_ms = np.array([templates.kind(i).grace_seconds * 1000 or least for i in distinct.tolist()], np.uint32)
        answer = pb.PreemptionAnswer(
            id=question.id,
            nodes_seen=nodes_seen,
            uids=pods.uid[rows].tobytes(),
            nodes=encode(pods.node[rows], U32),
            classes=encode(classes, U32),
            since_ms=encode(pods.since_ms[rows], I64),
            grace_ms=encode(grace_ms[which], U32),
            class_specs=[templates.specs[class_id] for class_id in class_ids.tolist()],
            budgets=map(_budget_message, self._budgets(worker, class_ids.tolist())),
            seen=[pb.CommitRef(shard=shard, seq=seq) for shard, seq in self._seen.items()],
        )
        return pb.DispatcherMessage(preemption=answer)

    def _budgets(self, worker: str, class_ids: list[int]) -> list[DisruptionBudget]:
        """As the worker may draw on them: of those that cover pods of these classes, on what is lent to it."""
        registry, listed = self._machine.registry, list(self._machine.objects.budgets)
        now = budgets_now(registry, listed)
        specs = [registry.templates.pod_spec(class_id) for class_id in class_ids]
        asked = [i for i, budget in enumerate(now) if any(map(budget.selects, specs))]
        granted = self._loans.lend([listed[i] for i in asked], worker, self._runtime.now())
        for i, may in zip(asked, granted, strict=True):
            now[i] = now[i] if may else replace(now[i], allowed=0)
        return now

    def seen(self, shard: int) -> int:
        """The seq of a shard up to which its evictions have been heard of."""
        return self._seen.get(shard, 0)

    def apply(self, message: resolver_pb2.FeedMessage) -> None:
        """Take in one feed message."""
        if message.snapshot:
            self._runtime.tell(m.HistoryMissed(message.shard, message.shards))
        if message.evictions:
            self._tell_evictions(message)
        self._seen[message.shard] = message.seq

    def _tell_evictions(self, message: resolver_pb2.FeedMessage) -> None:
        parts = [decode_uids(eviction.victim_uids) for eviction in message.evictions]
        sizes = [len(part) for part in parts]
        for size in sizes:
            self.victims.add(size)
        reasons = [f"preempted by {self._name(e.uid)} on node {self._names.get(e.node)}" for e in message.evictions]
        self._runtime.tell(
            m.Evicted(
                uids=np.concatenate(parts),
                nodes=np.repeat(np.array([eviction.node for eviction in message.evictions], np.uint32), sizes),
                reasons=tuple(reason for reason, size in zip(reasons, sizes, strict=True) for _ in range(size)),
                preemptors=tuple(e.uid for e, size in zip(message.evictions, sizes, strict=True) for _ in range(size)),
            )
        )

    def _name(self, uid: bytes) -> str:
        registry = self._machine.registry
        row = int(registry.directory.rows_of_uids(decode_uids(uid))[0])
        if row == NONE_U32:
            return f"pod {uid_text(uid)}"
        return f"{registry.namespace_of(row)}/{registry.set_of(row).pod_name(row)}"


def _budget_message(budget: DisruptionBudget) -> pb.Budget:
    selector = None if budget.selector is None else selector_to_proto(budget.selector)
    return pb.Budget(namespace=budget.namespace, selector=selector, allowed=budget.allowed)
