"""Groups of pods: what of a pod others can see, for rules about pods, and for the ledger's accounts of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from hoss.model.pod import HostPort, Pairs, PodSpec
from hoss.model.pod_rules import PodAffinity, SpreadConstraint
from hoss.model.taints import CORDON


@dataclass(frozen=True)
class PodGroup:
    """All that rules of other pods can see of a pod, and what else its place depends on beside amounts."""

    namespace: str = "default"
    labels: Pairs = ()
    deleting: bool = False
    affinity: PodAffinity | None = None
    host_ports: tuple[HostPort, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()  # required ones: seen by the ledger, which guards what they rely on
    tolerates_cordon: bool = False  # seen by the ledger
    excess: tuple[int, int] = (0, 0)  # cpu (milli) and memory (bytes) that containers do not name and are scored with

    @cached_property
    def labels_by_key(self) -> Mapping[str, str]:
        """The labels, for selectors to look at."""
        return dict(self.labels)


def group_of(spec: PodSpec, *, deleting: bool = False) -> PodGroup:
    """The group of the pods with this spec."""
    required = tuple(constraint for constraint in spec.spread if constraint.required)
    return PodGroup(
        namespace=spec.namespace,
        labels=spec.labels,
        deleting=deleting,
        affinity=spec.pod_affinity,
        host_ports=spec.host_ports,
        spread=required,
        tolerates_cordon=any(toleration.tolerates(CORDON) for toleration in spec.tolerations),
        excess=spec.nonzero_excess,
    )
