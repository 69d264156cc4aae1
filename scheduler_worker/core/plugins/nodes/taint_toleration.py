"""TaintToleration: refuses nodes with untolerated taints, and prefers nodes with fewer PreferNoSchedule
taints."""

import numpy as np
from numpy.typing import NDArray

from hoss.model.node import NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE, Taint, Toleration
from hoss.model.pod import PodSpec
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import MAX_SCORE, FilterPlugin, Reads, ScorePlugin
from scheduler_worker.core.nodes import Mask, NodeSpecs


class TaintToleration(FilterPlugin, ScorePlugin):
    """Evaluated once per distinct set of taints, not per node."""

    name = "TaintToleration"
    filter_reads = score_reads = Reads.SPECS
    reason = "node(s) had untolerated taint(s)"

    def filter(self, pod: Demand, nodes: NodeSpecs) -> Mask | None:
        """See FilterPlugin."""
        return tolerated_nodes(pod.spec, nodes)

    def score(self, pod: Demand, nodes: NodeSpecs) -> NDArray[np.int64]:
        """PreferNoSchedule taints not tolerated. See ScorePlugin."""
        catalogue = nodes.catalogue
        soft = tuple(t for t in pod.spec.tolerations if t.effect in ("", PREFER_NO_SCHEDULE))
        untolerated = [_count(taints, soft, (PREFER_NO_SCHEDULE,)) for taints in catalogue.taint_sets]
        return catalogue.by_taints(np.array(untolerated), nodes.at)

    def normalize_score(self, raw: NDArray[np.int64], highest: int) -> NDArray[np.int64]:
        """The fewer the better."""
        return MAX_SCORE - MAX_SCORE * raw // max(highest, 1)


def tolerated_nodes(spec: PodSpec, nodes: NodeSpecs) -> Mask | None:
    """Which of the nodes have no taint that keeps the pod away; None: no node has one."""
    untolerated = [
        _count(taints, spec.tolerations, (NO_SCHEDULE, NO_EXECUTE)) for taints in nodes.catalogue.taint_sets
    ]
    return nodes.catalogue.by_taints(np.array(untolerated), nodes.at) == 0 if any(untolerated) else None


def _count(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...], effects: tuple[str, ...]) -> int:
    return sum(t.effect in effects and not any(x.tolerates(t) for x in tolerations) for t in taints)
