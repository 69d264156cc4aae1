"""NodeName: a pod that names its node goes there or nowhere."""

from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import FilterPlugin, Reads
from scheduler_worker.core.nodes import Mask, NodeSpecs


class NodeName(FilterPlugin):
    """spec.nodeName, where it is set before scheduling."""

    name = "NodeName"
    filter_reads = Reads.SPECS
    reason = "node(s) didn't match the requested node name"

    def filter(self, pod: Demand, nodes: NodeSpecs) -> Mask | None:
        """See FilterPlugin."""
        name = pod.spec.node_name
        return nodes.named(frozenset((name,))) if name else None
