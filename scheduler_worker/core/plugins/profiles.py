"""Profiles by name: which plugins score, with which weights and arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.framework.registry import Registry, Weighted
from scheduler_worker.core.plugins import DEFAULT_PLUGINS
from scheduler_worker.core.plugins.devices.gpu_best_fit import GpuBestFit
from scheduler_worker.core.plugins.devices.gpu_fragmentation import GpuFragmentation
from scheduler_worker.core.plugins.nodes.node_affinity import NodeAffinity
from scheduler_worker.core.plugins.nodes.policy_nodes import PolicyNodes
from scheduler_worker.core.plugins.nodes.taint_toleration import TaintToleration
from scheduler_worker.core.plugins.pods.inter_pod_affinity import InterPodAffinity
from scheduler_worker.core.plugins.resources.resources_fit import ResourcesFit
from scheduler_worker.core.plugins.resources.scoring_strategies import MOST_ALLOCATED

DEFAULT_PROFILE = "spread"


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """A profile's scores. Its filters are always all of the default ones, which the ledger relies on.

    A plugin that is not listed, or has weight 0, only filters."""

    plugins: tuple[Weighted, ...]
    by_chance: bool = False  # each pod draws anew among equally good nodes
    samples: bool = True  # see Profile

    def profile(self, registry: Registry) -> Profile:
        """The profile, with its own plugins. ConfigError for an unknown name or argument."""
        given = {plugin.name: plugin for plugin in self.plugins}
        # A profile cannot leave out the policy's preference of nodes.
        default = {p.name: p if p.name == PolicyNodes.name else replace(p, weight=0) for p in DEFAULT_PLUGINS}
        return registry.profile(
            tuple({**default, **given}.values()), by_chance=self.by_chance, samples=self.samples
        )


# Preferences of the owners of pods and nodes count in every preset that scores.
_PREFERENCES = tuple(
    p for p in DEFAULT_PLUGINS if p.name in (TaintToleration.name, NodeAffinity.name, InterPodAffinity.name)
)

PRESETS: Mapping[str, ProfileSpec] = {
    # kube-scheduler's default profile.
    "spread": ProfileSpec(DEFAULT_PLUGINS),
    # The same, but full nodes before empty ones.
    "binpack": ProfileSpec(
        tuple(
            replace(p, args={"strategy": MOST_ALLOCATED}) if p.name == ResourcesFit.name else p
            for p in DEFAULT_PLUGINS
        )
    ),
    # For clusters whose GPUs are shared, from the worst to the best (docs/benchmarks.md).
    "random": ProfileSpec((), by_chance=True),
    "best-fit": ProfileSpec((*_PREFERENCES, Weighted(GpuBestFit.name, 1))),
    "fgd": ProfileSpec((*_PREFERENCES, Weighted(GpuFragmentation.name, 1))),
}
