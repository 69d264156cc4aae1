"""The plugins that come with HOSS, and the profile that uses them.

A plugin is a module of its name, in the room of what it looks at: nodes, pods, resources, devices or volumes.
`NodeResourcesFit` is in resources/resources_fit.py, and `NodeResourcesBalancedAllocation` beside it.

Rules, texts and weights are kube-scheduler's of release 1.36.
"""

from dataclasses import replace

from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.framework.registry import Registry, Weighted
from scheduler_worker.core.plugins.devices.device_cards import DeviceCards
from scheduler_worker.core.plugins.devices.dynamic_resources import DynamicResources
from scheduler_worker.core.plugins.devices.gpu_best_fit import GpuBestFit
from scheduler_worker.core.plugins.devices.gpu_fragmentation import GpuFragmentation
from scheduler_worker.core.plugins.nodes.image_locality import ImageLocality
from scheduler_worker.core.plugins.nodes.node_affinity import NodeAffinity
from scheduler_worker.core.plugins.nodes.node_declared_features import NodeDeclaredFeatures
from scheduler_worker.core.plugins.nodes.node_name import NodeName
from scheduler_worker.core.plugins.nodes.node_unschedulable import NodeUnschedulable
from scheduler_worker.core.plugins.nodes.policy_nodes import PolicyNodes
from scheduler_worker.core.plugins.nodes.quiet_nodes import QuietNodes
from scheduler_worker.core.plugins.nodes.taint_toleration import TaintToleration
from scheduler_worker.core.plugins.pods.inter_pod_affinity import InterPodAffinity
from scheduler_worker.core.plugins.pods.node_ports import NodePorts
from scheduler_worker.core.plugins.pods.scheduling_gates import SchedulingGates
from scheduler_worker.core.plugins.pods.topology_spread import PodTopologySpread
from scheduler_worker.core.plugins.resources.balanced_allocation import BalancedAllocation
from scheduler_worker.core.plugins.resources.resources_fit import ResourcesFit
from scheduler_worker.core.plugins.resources.scoring_strategies import LEAST_ALLOCATED
from scheduler_worker.core.plugins.volumes.node_volume_limits import NodeVolumeLimits
from scheduler_worker.core.plugins.volumes.volume_binding import VolumeBinding
from scheduler_worker.core.plugins.volumes.volume_restrictions import VolumeRestrictions
from scheduler_worker.core.plugins.volumes.volume_zone import VolumeZone

REGISTRY = Registry(
    {
        plugin.name: plugin
        for plugin in (
            SchedulingGates,
            PolicyNodes,
            NodeUnschedulable,
            NodeName,
            TaintToleration,
            NodeAffinity,
            NodePorts,
            ResourcesFit,
            VolumeRestrictions,
            NodeVolumeLimits,
            VolumeBinding,
            VolumeZone,
            PodTopologySpread,
            InterPodAffinity,
            DynamicResources,
            BalancedAllocation,
            ImageLocality,
            NodeDeclaredFeatures,
            DeviceCards,
            GpuBestFit,
            GpuFragmentation,
            QuietNodes,
        )
    }
)


# kube-scheduler's default order and weights; cards, which it does not know, come last. The policy's nodes
# come first and outweigh all other scores together: pods of a rule go elsewhere only if none of its nodes has
# room.
DEFAULT_PLUGINS = (
    Weighted(SchedulingGates.name),
    Weighted(PolicyNodes.name, 20),
    Weighted(NodeUnschedulable.name),
    Weighted(NodeName.name),
    Weighted(TaintToleration.name, 3),
    Weighted(NodeAffinity.name, 2),
    Weighted(NodePorts.name),
    Weighted(ResourcesFit.name, 1),
    Weighted(VolumeRestrictions.name),
    Weighted(NodeVolumeLimits.name),
    Weighted(VolumeBinding.name),
    Weighted(VolumeZone.name),
    Weighted(PodTopologySpread.name, 2),
    Weighted(InterPodAffinity.name, 2),
    Weighted(DynamicResources.name, 2),
    Weighted(BalancedAllocation.name, 1),
    Weighted(ImageLocality.name, 1),
    Weighted(NodeDeclaredFeatures.name),
    Weighted(DeviceCards.name),
)


def default_profile(strategy: str = LEAST_ALLOCATED) -> Profile:
    """kube-scheduler's default profile, or the same with another strategy of NodeResourcesFit."""
    own = {ResourcesFit.name: {"strategy": strategy}}
    return REGISTRY.profile(tuple(replace(p, args=own.get(p.name, p.args)) for p in DEFAULT_PLUGINS))
