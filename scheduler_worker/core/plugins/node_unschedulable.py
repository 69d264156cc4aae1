"""NodeUnschedulable: cordoned nodes take only pods that tolerate the cordon."""

import numpy as np

from hoss.model.node import CORDON
from hoss.model.pod import PodSpec
from scheduler_worker.core.nodes import Mask, NodeCatalogue, NodeIndexes


class NodeUnschedulable:
    """A cordon in the ledger counts too: it may be ahead of the node's spec."""

    name = "NodeUnschedulable"
    reason = "node(s) were unschedulable"

    def admits(self, spec: PodSpec, catalogue: NodeCatalogue, at: NodeIndexes) -> Mask | None:
        """See StaticFilter."""
        closed = catalogue.cordoned[at] | catalogue.unschedulable[at]
        if not closed.any() or any(toleration.tolerates(CORDON) for toleration in spec.tolerations):
            return None
        return np.logical_not(closed)
