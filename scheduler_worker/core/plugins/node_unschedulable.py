"""NodeUnschedulable: cordoned nodes take no pods, save those that tolerate the cordon."""

import numpy as np

from hoss.model.pod import PodSpec
from hoss.model.taints import NO_SCHEDULE, Taint
from scheduler_worker.core.catalogue import Mask, NodeCatalogue
from scheduler_worker.core.changes import NodeIndexes

_CORDON = Taint("node.kubernetes.io/unschedulable", "", NO_SCHEDULE)


class NodeUnschedulable:
    """A node that the ledger holds as cordoned refuses even pods that tolerate it: they could not be committed there."""

    name = "NodeUnschedulable"
    reason = "node(s) were unschedulable"

    def admits(self, spec: PodSpec, catalogue: NodeCatalogue, at: NodeIndexes) -> Mask | None:
        """See StaticFilter."""
        closed = catalogue.cordoned[at]
        if not any(t.tolerates(_CORDON) for t in spec.tolerations):
            closed = closed | catalogue.unschedulable[at]
        return np.logical_not(closed) if closed.any() else None
