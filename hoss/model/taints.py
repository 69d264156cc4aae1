"""Taints and tolerations, after Kubernetes' core/v1."""

from dataclasses import dataclass

NO_SCHEDULE = "NoSchedule"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's mark that keeps pods away unless they tolerate it."""

    key: str
    value: str = ""
    effect: str = NO_SCHEDULE


CORDON = Taint("node.kubernetes.io/unschedulable", "", NO_SCHEDULE)  # what an unschedulable node counts as having


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's leave to stand a taint. An empty key or effect stands for every one."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Whether this toleration covers the taint (core/v1 Toleration.ToleratesTaint)."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or self.value == taint.value
