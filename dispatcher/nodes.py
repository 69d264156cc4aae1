"""Node names by index, from the node feed; and word to the machine when something may fit that did not, or a node is gone."""

from collections.abc import Iterable

import numpy as np

from dispatcher.cluster_changes import NodeHistory
from dispatcher.core import messages as m
from dispatcher.node_totals import NodeTotals
from dispatcher.runtime import Runtime
from hoss.model.taints import NO_EXECUTE, Taint
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.convert import labels_from_proto, taints_from_proto


class NodeNames:
    """Follows the feed (`apply`); answers with names."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._names: dict[int, str] = {}
        self.history = NodeHistory()
        self._totals = NodeTotals()

    def get(self, index: int) -> str:
        """The node's name; "" for an index that names nothing here yet."""
        return self._names.get(index, "")

    def index_of(self, name: str) -> int | None:
        """The index of a node by name."""
        return next((index for index, known in self._names.items() if known == name), None)

    def apply(self, message: pb.FeedMessage) -> None:
        """Take in one feed message."""
        gone: set[int] = set()
        if message.snapshot:
            listed = {entry.index for entry in message.nodes}
            of_shard = {i for i in self._names if i % max(1, message.shards) == message.shard}
            gone |= of_shard - listed
        for entry in message.nodes:
            known = self._names.get(entry.index)
            if known is not None and (entry.removed or known != entry.spec.name):
                gone.add(entry.index)
            if not entry.removed:
                self._names[entry.index] = entry.spec.name
        if gone:
            self._runtime.tell(m.NodesGone(np.array(sorted(gone), np.uint32)))
            for index in gone - {entry.index for entry in message.nodes if not entry.removed}:
                del self._names[index]
        if (totals := self._totals.read(message)) is not None:
            self._runtime.tell(m.AllocatableChanged(totals))
        seen = {
            entry.index: m.KnownNode(
                entry.spec.name, dict(labels_from_proto(entry.spec.labels)), _expelling(entry.spec.taints)
            )
            for entry in message.nodes
            if not entry.removed
        }
        if seen:
            self._runtime.tell(m.NodesSeen(seen))
        changes = self.history.read(message)
        if changes:
            self._runtime.tell(m.ClusterChanged(changes, message.shard, message.seq))


def _expelling(taints: Iterable[common_pb2.Taint]) -> tuple[tuple[Taint, int], ...]:
    return tuple((taint, taint.added_ms) for taint in taints_from_proto(taints) if taint.effect == NO_EXECUTE)
