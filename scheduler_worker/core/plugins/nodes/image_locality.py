"""ImageLocality: prefers nodes that have the pod's images, the larger the better."""

import numpy as np
from numpy.typing import NDArray

from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import MAX_SCORE, Reads, ScorePlugin
from scheduler_worker.core.nodes import NodeSpecs

_MIB = 2**20
_LEAST_BYTES = 23 * _MIB  # below, fetching is quick anyway
_MOST_BYTES_PER_CONTAINER = 1000 * _MIB


class ImageLocality(ScorePlugin):
    """An image counts in proportion to the nodes that have it, so that a new image does not draw all pods to
    one node."""

    name = "ImageLocality"
    score_reads = Reads.SPECS
    compares_nodes = True  # a score depends on the other nodes with the images

    def score(self, pod: Demand, nodes: NodeSpecs) -> NDArray[np.int64] | None:
        """The score itself, 0 to 100. See ScorePlugin."""
        spec, catalogue = pod.spec, nodes.catalogue
        known = [image for image in spec.images if image in catalogue.images]
        if not known:
            return None
        total = np.zeros(len(catalogue.known), np.int64)
        for image in known:
            holders, size = catalogue.images.holders(image)
            total[holders] += int(size * (len(holders) / catalogue.nodes))
        most = _MOST_BYTES_PER_CONTAINER * spec.image_containers
        held = np.clip(total[nodes.at], _LEAST_BYTES, most)
        scores: NDArray[np.int64] = MAX_SCORE * (held - _LEAST_BYTES) // (most - _LEAST_BYTES)
        return scores

    def normalize_score(self, raw: NDArray[np.int64], highest: int) -> NDArray[np.int64]:  # noqa: ARG002
        """As it is."""
        return raw
