"""NodeDeclaredFeatures: a pod that needs a feature of the kubelet goes to nodes that declare it."""

import numpy as np

from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import FilterPlugin, Reads
from scheduler_worker.core.nodes import Mask, NodeSpecs


class NodeDeclaredFeatures(FilterPlugin):
    """status.declaredFeatures of nodes (KEP-5328)."""

    name = "NodeDeclaredFeatures"
    filter_reads = Reads.SPECS
    reason = "node(s) didn't match Pod's required features"

    def filter(self, pod: Demand, nodes: NodeSpecs) -> Mask | None:
        """See FilterPlugin. Few pods need a feature, so nodes are looked at one by one."""
        required = pod.spec.required_features
        if not required:
            return None
        specs = (nodes.catalogue.specs[index] for index in nodes.at.tolist())
        return np.array(
            [spec is not None and set(required).issubset(spec.declared_features) for spec in specs], np.bool_
        )
