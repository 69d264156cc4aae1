"""What the policy is held against: the workers, nodes, resources and waiting pods that there are at this moment."""

from collections import Counter

from dispatcher.cluster_changes import NodeHistory
from dispatcher.core.machine import Machine
from dispatcher.core.policy import Policy
from dispatcher.core.policy_checks import Surroundings
from hoss.model.resources import DEVICE_SHARE_RESOURCE
from hoss.wire.convert import labels_from_proto


class PolicySurroundings:
    """Looks around. What nodes are is read anew only after one changed."""

    def __init__(self, machine: Machine, nodes: NodeHistory) -> None:
        self._machine = machine
        self._history = nodes
        self._generation = -1
        self._nodes: list[dict[str, str]] = []
        self._resources: frozenset[str] = frozenset()

    def look(self, policy: Policy) -> Surroundings:
        """As it is now. Nodes and resources are left out where the policy speaks of none."""
        if any(rule.nodes is not None or rule.match.resources for rule in policy.rules):
            self._read_nodes()
        kinds = self._machine.registry.templates.kinds
        return Surroundings(
            workers=[worker.labels for worker in self._machine.members.living()],
            nodes=self._nodes,
            resources=self._resources,
            priority_classes=frozenset(kind.priority_class_name for kind in kinds),
            waiting=self._waiting(),
        )

    def _read_nodes(self) -> None:
        if self._generation == self._history.generation:
            return
        specs = self._history.specs()
        self._nodes = [dict(labels_from_proto(spec.labels)) for spec in specs]
        offered = {amount.resource for spec in specs for amount in spec.allocatable if amount.amount > 0}
        shared = {DEVICE_SHARE_RESOURCE} if any(spec.cards for spec in specs) else set()
        self._resources = frozenset(offered | shared)
        self._generation = self._history.generation

    def _waiting(self) -> Counter[str]:
        waiting: Counter[str] = Counter()
        for lane in self._machine.queues.active.lanes():
            destination = self._machine.routing.destination(lane)
            if destination.rule is not None and not destination.workers:
                waiting[destination.rule.name] += self._machine.queues.active.count(lane)
        return waiting
