"""What a worker is made to be like for comparisons: slow to decide, or with nodes of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hoss.model.selectors import NodeScope, Requirement


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision cost as in the Omega paper: t_job for a decision and t_task for each pod of it."""

    job_seconds: float = 0.0
    task_seconds: float = 0.0

    def seconds(self, pods: int) -> float:
        """What deciding on so many pods at once takes; nothing on none."""
        return self.job_seconds + pods * self.task_seconds if pods else 0.0


DECIDES_AT_ONCE = Decision()


def nodes_with(labels: Mapping[str, str]) -> NodeScope | None:
    """The nodes that have all these labels; None, all nodes, where there are none."""
    if not labels:
        return None
    return NodeScope(
        "nodes of the worker", tuple(Requirement(key, "In", (value,)) for key, value in sorted(labels.items()))
    )


def narrowed(scope: NodeScope | None, own: NodeScope | None) -> NodeScope | None:
    """What is left of a policy's nodes to a worker that has nodes of its own. A preference among all nodes is none among these."""
    if own is None or scope is None:
        return own or scope
    if not scope.required:
        return own
    return replace(scope, rule=f"{scope.rule}, {own.rule}", requirements=scope.requirements + own.requirements)
