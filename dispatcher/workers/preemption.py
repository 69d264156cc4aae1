"""The dispatcher's part in preemption: workers ask for victim candidates, and the feed reports evictions."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dispatcher.core import messages as m
from dispatcher.core.bound.disruption_budgets import BudgetReservations, budgets_now, victim_candidates
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.model.cluster import DisruptionBudget
from hoss.statistics import SizeHistogram
from hoss.v1 import resolver_pb2
from hoss.v1 import workerlink_pb2 as pb
from hoss.wire.columns import I64, NONE_U32, U32, decode, decode_uids, encode
from hoss.wire.convert_selectors import selector_to_proto
from hoss.wire.uids import uid_text


class PreemptionAnswers:
    """Answers workers. Follows the feed (`read`) after `nodes` did."""

    def __init__(self, runtime: Runtime, nodes: ClusterNodes, *, of_cluster: bool = False) -> None:
        """`of_cluster`: victims are pods of a Kubernetes cluster, and leave when the API server says so."""
        self._of_cluster = of_cluster
        self._runtime = runtime
        self._machine = runtime.machine
        self._nodes = nodes
        self._budget_reservations = BudgetReservations()
        self._high_watermarks: dict[int, int] = {}  # shard -> seq
        self._restored: Mapping[int, int] = {}
        self.victims = SizeHistogram()  # pods evicted for each preemptor

    def answer(self, question: pb.PreemptionQuestion, worker: str) -> pb.DispatcherMessage:
        """The victim candidates on nodes where a worker found no room. Raises ColumnError."""
        registry = self._machine.registry
        pods, templates = registry.pods, registry.templates
        nodes = decode(question.nodes, U32, name="preemption.nodes")
        if self._holds(question):
            seconds = self._machine.preemption_holds.wait_seconds
            held = f"waits for moves that may make room, for {seconds:g} s at most"
            return pb.DispatcherMessage(
                preemption=pb.PreemptionAnswer(id=question.id, nodes_seen=len(nodes), held=held)
            )
        rows, nodes_seen = victim_candidates(
            registry, nodes, question.priority, question.limit, assigned=self._of_cluster
        )
        ids = pods.template[rows]
        class_ids, classes = np.unique(templates.class_id[ids], return_inverse=True)
        distinct, which = np.unique(ids, return_inverse=True)
        # No pod of a cluster is gone at once: the preemptor waits until the API server reports its end.
        least = 1 if self._of_cluster else 0
        grace_ms = np.array(
            [templates.kind(i).grace_seconds * 1000 or least for i in distinct.tolist()], np.uint32
        )
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
            seen=[pb.CommitRef(shard=shard, seq=seq) for shard, seq in self._high_watermarks.items()],
        )
        return pb.DispatcherMessage(preemption=answer)

    def _holds(self, question: pb.PreemptionQuestion) -> bool:
        """Whether the pods that need room wait for moves first. Raises ColumnError."""
        if not question.uid:
            return False
        registry, now = self._machine.registry, self._runtime.now()
        row = int(registry.directory.rows_of_uids(decode_uids(question.uid))[0])
        if row == NONE_U32:
            return False  # deleted meanwhile
        class_id = int(registry.templates.class_id[registry.pods.template[row]])
        holds = self._machine.preemption_holds
        return holds.holds(class_id, question.priority, now, self._machine.unix_ms(now))

    def _budgets(self, worker: str, class_ids: list[int]) -> list[DisruptionBudget]:
        """All budgets. Of those that cover pods of these classes, the worker may use what it can reserve."""
        registry, listed = self._machine.registry, list(self._machine.objects.budgets)
        now = budgets_now(registry, listed)
        specs = [registry.templates.pod_spec(class_id) for class_id in class_ids]
        covering = [i for i, budget in enumerate(now) if any(map(budget.selects, specs))]
        granted = self._budget_reservations.reserve(
            [listed[i] for i in covering], worker, self._runtime.now()
        )
        for i, may in zip(covering, granted, strict=True):
            now[i] = now[i] if may else replace(now[i], allowed=0)
        return now

    def high_watermark(self, shard: int) -> int:
        """The seq of a shard up to which its evictions are known."""
        return self._high_watermarks.get(shard, 0)

    def restored(self, seqs: Mapping[int, int]) -> None:
        """The term begins with reservations as of these seqs, by shard. The feed may begin with a snapshot
        before them: what it tells of evictions up to there, these reservations know, and pods that were
        evicted then may have been bound again on the same node."""
        self._restored = seqs

    def read(self, message: resolver_pb2.FeedMessage) -> None:
        """Take in one feed message."""
        if message.snapshot:
            self._runtime.handle(m.HistoryMissed(message.shard, message.shards, message.seq))
        if message.evictions and message.seq > self._restored.get(message.shard, 0):
            self._handle_evictions(message)
        self._high_watermarks[message.shard] = message.seq

    def _handle_evictions(self, message: resolver_pb2.FeedMessage) -> None:
        parts = [decode_uids(eviction.victim_uids) for eviction in message.evictions]
        sizes = [len(part) for part in parts]
        for size in sizes:
            self.victims.add(size)
        reasons = [m.preempted_by(self._name(e.uid), self._nodes.name(e.node)) for e in message.evictions]
        numbers = np.repeat(np.arange(len(sizes)), sizes).tolist()  # the eviction of each victim
        self._runtime.handle(
            m.Evicted(
                uids=np.concatenate(parts),
                nodes=np.array([message.evictions[number].node for number in numbers], np.uint32),
                reasons=tuple(reasons[number] for number in numbers),
                preemptors=tuple(message.evictions[number].uid for number in numbers),
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
