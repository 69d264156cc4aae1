"""SchedulingGates: a pod with gates is not ready to be scheduled."""

from hoss.model.pod import PodSpec
from scheduler_worker.core.framework.extension_points import Code, FilterPlugin, Rejection


class SchedulingGates(FilterPlugin):
    """spec.schedulingGates; their owners remove them one by one (KEP-3521)."""

    name = "SchedulingGates"

    def pre_filter(self, spec: PodSpec) -> Rejection | None:
        """See FilterPlugin (kube-scheduler: PreEnqueue)."""
        if not spec.scheduling_gates:
            return None
        waiting = f"waiting for scheduling gates: [{' '.join(spec.scheduling_gates)}]"
        return Rejection(self.name, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, waiting)
