"""Clusters on virtual time, for studies: `from hoss.sim import Cluster`.

The public name of what `hossctl.simulate` has. It stands above the services, whose cores it runs, and no
other module of `hoss` imports it (docs/simulation.md#a-study-of-your-own)."""

from hoss.model.node import NodeSpec
from hoss.model.pod import DeviceRequest
from hossctl.load.generated import pod_template
from hossctl.simulate.study import SimulatedCluster as Cluster
from hossctl.simulate.study import StudyResult

__all__ = ["Cluster", "DeviceRequest", "NodeSpec", "StudyResult", "pod_template"]
