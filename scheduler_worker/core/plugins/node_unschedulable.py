"""NodeUnschedulable: cordoned nodes take no pods, save those that tolerate the cordon."""

import numpy as np

from hoss.model.pod import PodSpec
from hoss.model.taints import CORDON
from scheduler_worker.core.catalogue import Mask, NodeCatalogue
from scheduler_worker.core.changes import NodeIndexes


class NodeUnschedulable:
    """What the ledger said of a node counts too: it may be ahead of the node's spec."""

    name = "NodeUnschedulable"
    reason = "node(s) were unschedulable"

    def admits(self, spec: PodSpec, catalogue: NodeCatalogue, at: NodeIndexes) -> Mask | None:
        """See StaticFilter."""
        closed = catalogue.cordoned[at] | catalogue.unschedulable[at]
        if not closed.any() or any(toleration.tolerates(CORDON) for toleration in spec.tolerations):
            return None
        return np.logical_not(closed)
