"""A cluster given as objects, in a cache.

Every bound pod is an assumption of its own, so that it can be removed and put back."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hoss.model.cluster import BoundPod, Cluster
from hoss.model.pod import PodSpec, group_of
from hoss.model.resources import BASE_RESOURCES
from scheduler_worker.core.cache.assumptions import Assumption
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import DemandTable, compile_demand
from scheduler_worker.core.messages import AccountBatch, FeedUpdate

# Devices that a search on one node looks at, at most. One that takes ten seconds, as long as kube-scheduler's
# may, stops no one here.
_MOST_TRIES = 2_000_000


class ClusterSnapshot:
    """The cluster's nodes, numbered in the given order, with its pods. Pods on unknown nodes are left out."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.cache = NodeInfoCache()
        self.cache.apply_feed(_snapshot(cluster))
        self.cache.pod_index.set_namespaces(cluster.namespaces)
        self.cache.storage.replace(cluster.storage)
        self.cache.devices.most_tries = _MOST_TRIES
        self.cache.devices.most_tries_together = 3 * _MOST_TRIES
        self.cache.devices.replace(cluster.devices, cluster.read_at)
        self.demands = DemandTable(self.cache.schema, self.cache.catalogue.images, self.cache.pod_index)
        self.demands.set_device_resources(frozenset(self.cache.devices.extended_resources))
        self._index = {node.name: i for i, node in enumerate(cluster.nodes)}
        self._assumptions: dict[int, Assumption] = {}
        self._pods_on: dict[int, list[int]] = {}
        for number, pod in enumerate(cluster.pods):
            if pod.node in self._index:
                self._pods_on.setdefault(self._index[pod.node], []).append(number)
                self.restore(number)

    def pods_on(self, node: int) -> Sequence[int]:
        """Numbers of the pods of this node."""
        return self._pods_on.get(node, ())

    def node_of(self, pod: BoundPod) -> int:
        """The number of the pod's node."""
        return self._index[pod.node]

    def evict(self, number: int) -> None:
        """Remove this pod."""
        self.cache.forget(self._assumptions.pop(number), np.zeros(1, np.intp))

    def restore(self, number: int) -> None:
        """Put this pod back."""
        pod = self.cluster.pods[number]
        nodes = np.array((self._index[pod.node],))
        spec = _spec_on_its_node(pod)
        demand, group = compile_demand(spec, self.cache.schema), group_of(spec, deleting=pod.deleting)
        masks = self.cache.assume(nodes, demand, group)
        milli = 0 if demand.devices is None else demand.devices.milli
        assumption = Assumption(
            nodes=nodes,
            slots=np.zeros(1, np.intp),
            requests=demand.request[None, :],
            card_masks=masks,
            card_millis=np.array((milli,), np.uint16),
            expires_at=float("inf"),
            groups=(group,),
        )
        self.cache.track(assumption)
        self._assumptions[number] = assumption


def _spec_on_its_node(pod: BoundPod) -> PodSpec:
    # A resize may have changed its requests.
    return replace(
        pod.spec,
        requests=pod.requests,
        nonzero_cpu_milli=pod.nonzero_cpu_milli,
        nonzero_memory_bytes=pod.nonzero_memory_bytes,
    )


def _snapshot(cluster: Cluster) -> FeedUpdate:
    offered = {resource for node in cluster.nodes for resource, _ in node.allocatable}
    schema = (*BASE_RESOURCES, *sorted(offered.difference(BASE_RESOURCES)))
    return FeedUpdate(
        shard=0,
        seq=1,
        accounts=AccountBatch.of_nodes(range(len(cluster.nodes)), cluster.nodes, schema, seq=1),
        specs=tuple(enumerate(cluster.nodes)),
        snapshot=True,
        shards=1,
        schema=schema,
    )
