"""What pods with claims to devices (DRA) cost in a worker's own core: the first of a kind, and each further
one with a claim of its own, as of a template."""

from dataclasses import dataclass, replace
from time import process_time

import numpy as np

from hoss.model.cluster import Cluster
from hoss.model.devices import (
    ClaimRequest,
    ClaimUse,
    Device,
    DeviceCapacity,
    DeviceClass,
    ExactRequest,
    NodeReach,
    PodClaims,
    ResourceClaim,
    ResourceSlice,
)
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, group_of
from hoss.model.quantity import parse_quantity
from hossctl.console import Document
from scheduler_worker.core.offline.cluster_snapshot import ClusterSnapshot
from scheduler_worker.core.offline.scheduler import examine
from scheduler_worker.core.plugins import default_profile

_DRIVER = "gpu.example.com"
_MANY_CORES = f'device.attributes["{_DRIVER}"].cores >= 64'


@dataclass(frozen=True, slots=True)
class DeviceSetting:
    """How large the cluster is, and how many pods are placed."""

    nodes: int
    devices: int  # of each node
    pods: int


def measure_devices(setting: DeviceSetting) -> Document:
    """Milliseconds of CPU time of a pod: its class compiled, all nodes filtered, and its device taken on one
    of them."""
    cluster = ClusterSnapshot(Cluster(nodes=_nodes(setting), devices=_objects(setting)))
    profile, spent = default_profile(), []
    for number in range(setting.pods):
        began = process_time()
        spec = PodSpec(
            requests=(("cpu", 100), ("memory", 2**28)),
            nonzero_cpu_milli=100,
            nonzero_memory_bytes=2**28,
            claims=PodClaims(f"pod-{number}", "uid", (ClaimUse(f"claim-{number}"),)),
        )
        state = examine(spec, cluster, profile).plugin_state
        feasible = np.flatnonzero(state.narrow(cluster.cache.present.copy()))
        node = int(feasible[number % len(feasible)])
        held = replace(group_of(spec), held_claims=state.reserve(node).held)
        cluster.cache.pod_index.add(held, np.array((node,)))
        spent.append(1000 * (process_time() - began))
    return {
        "nodes": setting.nodes,
        "devices": setting.nodes * setting.devices,
        "firstMillis": spent[0],
        "furtherMillis": float(np.median(spent[1:])),
    }


def _nodes(setting: DeviceSetting) -> list[NodeSpec]:
    room = (("cpu", 64_000), ("memory", 2**38), ("pods", 110))
    return [NodeSpec(f"node-{i}", allocatable=room) for i in range(setting.nodes)]


def _objects(setting: DeviceSetting) -> list[DeviceClass | ResourceSlice | ResourceClaim]:
    memory = (("memory", DeviceCapacity(parse_quantity("40Gi"))),)
    request = ClaimRequest("gpu", (ExactRequest("gpu", "gpu", (_MANY_CORES,)),))
    return [
        DeviceClass("gpu", (f'device.driver == "{_DRIVER}"',)),
        *(
            ResourceSlice(
                f"slice-{i}",
                _DRIVER,
                f"node-{i}",
                generation=1,
                slices=1,
                reach=NodeReach(node_name=f"node-{i}"),
                devices=tuple(
                    Device(f"gpu-{d}", (("cores", 64), ("uuid", f"{i}-{d}")), memory)
                    for d in range(setting.devices)
                ),
            )
            for i in range(setting.nodes)
        ),
        *(ResourceClaim("default", f"claim-{i}", (request,)) for i in range(setting.pods)),
    ]
