"""Taints and tolerations, after Kubernetes' core/v1."""

from collections.abc import Iterable
from dataclasses import dataclass, field

NO_SCHEDULE = "NoSchedule"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
NO_EXECUTE = "NoExecute"
FOR_EVER = float("inf")  # seconds


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's mark that keeps pods away unless they tolerate it."""

    key: str
    value: str = ""
    effect: str = NO_SCHEDULE
    # Unix milliseconds; 0: not known. When it came is no part of what it is: taints that differ in it are equal.
    added_ms: int = field(default=0, compare=False)

    def __str__(self) -> str:
        """As kubectl writes it."""
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


CORDON = Taint("node.kubernetes.io/unschedulable", "", NO_SCHEDULE)  # what an unschedulable node counts as having


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's leave to stand a taint. An empty key or effect stands for every one."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    seconds: int | None = None  # how long it lets bound pods stay where the taint is NoExecute; None: for ever

    def tolerates(self, taint: Taint) -> bool:
        """Whether this toleration covers the taint (core/v1 Toleration.ToleratesTaint)."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or self.value == taint.value


def stay_seconds(taint: Taint, tolerations: Iterable[Toleration]) -> float | None:
    """How long a bound pod with these tolerations stays under a NoExecute taint: the least that one of those that cover the taint
    says, FOR_EVER where none of these says anything; None where none covers it (kube-controller-manager's getMinTolerationTime)."""
    covering = [toleration.seconds for toleration in tolerations if toleration.tolerates(taint)]
    if not covering:
        return None
    return min((max(0, seconds) for seconds in covering if seconds is not None), default=FOR_EVER)
