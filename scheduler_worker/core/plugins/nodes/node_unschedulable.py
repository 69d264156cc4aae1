"""NodeUnschedulable: cordoned nodes take only pods that tolerate the cordon."""

import numpy as np

from hoss.model.node import CORDON
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import FilterPlugin, Reads
from scheduler_worker.core.nodes import Mask, NodeSpecs


class NodeUnschedulable(FilterPlugin):
    """A cordon in the ledger counts too: it may be ahead of the node's spec."""

    name = "NodeUnschedulable"
    filter_reads = Reads.SPECS
    reason = "node(s) were unschedulable"

    def filter(self, pod: Demand, nodes: NodeSpecs) -> Mask | None:
        """See FilterPlugin."""
        closed = nodes.catalogue.cordoned[nodes.at] | nodes.catalogue.unschedulable[nodes.at]
        if not closed.any() or any(toleration.tolerates(CORDON) for toleration in pod.spec.tolerations):
            return None
        return np.logical_not(closed)
