"""Pods of other schedulers that wait on a node for their victims to leave (status.nominatedNodeName).

As in kube-scheduler (RunFilterPluginsWithNominatedPods), filters count what these pods request for every pod
of the same or a lower priority, and scores do not. Only amounts count: no ports, volumes, devices or rules
about other pods."""

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from hoss.model.cluster import NominatedPod, ObjectKey, StorageUpdate, storage_key_of
from hoss.model.resources import PODS, ResourceSchema
from scheduler_worker.core.nodes import NodeCatalogue, NodeIndexes


class NominatedPods:
    """All nominated pods of the cluster by key; usually there are none, or a few."""

    def __init__(self, catalogue: NodeCatalogue, schema: ResourceSchema) -> None:
        self.version = 0  # grows whenever `threshold` may have changed
        self._catalogue = catalogue
        self._schema = schema
        self._pods: dict[ObjectKey, NominatedPod] = {}
        self._priorities: list[int] = []  # of these pods, distinct, ascending

    def __len__(self) -> int:
        return len(self._pods)

    def apply(self, update: StorageUpdate) -> NodeIndexes:
        """Take in changes. Returns the nodes that they concern."""
        gone = [*self._pods] if update.complete else [key for key in update.gone if key in self._pods]
        changed = [self._pods.pop(key) for key in gone]
        for item in update.objects:
            if isinstance(item, NominatedPod):
                key = storage_key_of(item)
                changed += [self._pods[key]] if key in self._pods else []
                changed.append(item)
                self._pods[key] = item
        priorities = sorted({pod.priority for pod in self._pods.values()})
        if priorities != self._priorities:
            self._priorities = priorities
            self.version += 1
        indexes = {self._catalogue.index(pod.node) for pod in changed}
        return np.array(sorted(index for index in indexes if index is not None), np.intp)

    def threshold(self, priority: int) -> int:
        """A priority for which the same of these pods count as for `priority`. Many priorities have the same
        one, so that their classes share rankings."""
        if not self._priorities:
            return 0
        position = bisect_left(self._priorities, priority)
        return self._priorities[position] if position < len(self._priorities) else self._priorities[-1] + 1

    def amounts(self, priority: int, at: NodeIndexes) -> NDArray[np.int64] | None:
        """What the pods of at least this priority request of the nodes `at`: (resources, n), schema units.
        None: nothing."""
        counted = [
            (index, pod)
            for pod in self._pods.values()
            if pod.priority >= priority and (index := self._catalogue.index(pod.node)) is not None
        ]
        if not counted:
            return None
        amounts = np.zeros((len(self._schema), len(at)), np.int64)
        for index, pod in counted:
            here = at == index
            amounts[PODS, here] += 1
            for resource, amount in pod.requests:
                row = self._schema.get(resource)
                if row is not None and row != PODS:
                    amounts[row, here] += amount
        return amounts
