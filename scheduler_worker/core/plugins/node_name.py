"""NodeName: a pod that names its node goes there or nowhere."""

from hoss.model.pod import PodSpec
from scheduler_worker.core.nodes import Mask, NodeCatalogue, NodeIndexes


class NodeName:
    """spec.nodeName, where it is set before scheduling."""

    name = "NodeName"
    reason = "node(s) didn't match the requested node name"

    def admits(self, spec: PodSpec, catalogue: NodeCatalogue, at: NodeIndexes) -> Mask | None:
        """See StaticFilter."""
        return catalogue.named(frozenset((spec.node_name,)), at) if spec.node_name else None
