"""Nodes, taints and tolerations, after Kubernetes' core/v1."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hoss.model.resources import Amounts, Pairs

NO_SCHEDULE = "NoSchedule"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
NO_EXECUTE = "NoExecute"
FOR_EVER = float("inf")  # seconds

# "true" on nodes whose pods use far more than they requested; whoever measures use sets it.
NOISY_LABEL = "hoss.dev/noisy"


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint repels the pods that do not tolerate it."""

    key: str
    value: str = ""
    effect: str = NO_SCHEDULE
    # Unix milliseconds; 0: unknown. Ignored in comparisons.
    added_ms: int = field(default=0, compare=False)

    def __str__(self) -> str:
        """As kubectl writes it."""
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


# The taint that an unschedulable node has by implication.
CORDON = Taint("node.kubernetes.io/unschedulable", "", NO_SCHEDULE)


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's toleration of taints. An empty key or effect covers every key or effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    seconds: int | None = None  # how long bound pods stay under a NoExecute taint; None: for ever

    def tolerates(self, taint: Taint) -> bool:
        """Whether this toleration covers the taint (core/v1 Toleration.ToleratesTaint)."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or self.value == taint.value


def stay_seconds(taint: Taint, tolerations: Iterable[Toleration]) -> float | None:
    """How long a bound pod with these tolerations stays under a NoExecute taint, in seconds.

    The least `seconds` of the tolerations that cover the taint; FOR_EVER where none of them sets it; None
    where no toleration covers it (kube-controller-manager's getMinTolerationTime)."""
    covering = [toleration.seconds for toleration in tolerations if toleration.tolerates(taint)]
    if not covering:
        return None
    return min((max(0, seconds) for seconds in covering if seconds is not None), default=FOR_EVER)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node. `allocatable` is the total for pods: capacity less the node's reservations."""

    name: str
    labels: Pairs = ()
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    allocatable: Amounts = ()
    cards: int = 0
    images: tuple[tuple[str, int], ...] = ()  # (name, bytes) for each name of each image, sorted
    declared_features: tuple[str, ...] = ()  # of its kubelet that pods may require, sorted
