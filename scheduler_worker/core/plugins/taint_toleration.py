"""TaintToleration: refuses nodes with untolerated taints, and prefers nodes with fewer PreferNoSchedule
taints."""

import numpy as np
from numpy.typing import NDArray

from hoss.model.node import NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE, Taint, Toleration
from hoss.model.pod import PodSpec
from scheduler_worker.core.framework.extension_points import MAX_SCORE
from scheduler_worker.core.nodes import Mask, NodeCatalogue, NodeIndexes


class TaintToleration:
    """Evaluated once per distinct set of taints, not per node."""

    name = "TaintToleration"
    reason = "node(s) had untolerated taint(s)"

    def admits(self, spec: PodSpec, catalogue: NodeCatalogue, at: NodeIndexes) -> Mask | None:
        """See StaticFilter."""
        untolerated = [
            _count(taints, spec.tolerations, (NO_SCHEDULE, NO_EXECUTE)) for taints in catalogue.taint_sets
        ]
        return catalogue.by_taints(np.array(untolerated), at) == 0 if any(untolerated) else None

    def raw_score(self, spec: PodSpec, catalogue: NodeCatalogue, at: NodeIndexes) -> NDArray[np.int64]:
        """PreferNoSchedule taints not tolerated. See StaticScore."""
        soft = tuple(t for t in spec.tolerations if t.effect in ("", PREFER_NO_SCHEDULE))
        untolerated = [_count(taints, soft, (PREFER_NO_SCHEDULE,)) for taints in catalogue.taint_sets]
        return catalogue.by_taints(np.array(untolerated), at)

    def normalize(self, raw: NDArray[np.int64], highest: int) -> NDArray[np.int64]:
        """The fewer the better."""
        return MAX_SCORE - MAX_SCORE * raw // max(highest, 1)


def _count(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...], effects: tuple[str, ...]) -> int:
    return sum(t.effect in effects and not any(x.tolerates(t) for x in tolerations) for t in taints)
