"""Clusters on virtual time, for studies: `from hoss.sim import Cluster`.

The public name of what `hossctl.simulate` has. It stands above the services, whose cores it runs, and no
other module of `hoss` imports it (docs/simulation.md#a-study-of-your-own)."""

from pathlib import Path

from hoss.manifests.documents import read_manifest
from hoss.manifests.guarded import read_bytes
from hoss.model.node import NodeSpec
from hoss.model.pod import DeviceRequest, Workload
from hossctl.load.generated import pod_template
from hossctl.simulate.study import SimulatedCluster as Cluster
from hossctl.simulate.study import StudyResult

__all__ = ["Cluster", "DeviceRequest", "NodeSpec", "StudyResult", "pod_template", "read_workloads"]


def read_workloads(path: str | Path) -> tuple[Workload, ...]:
    """The workloads of a manifest, in its order, for `cluster.submit_workloads`. Raises InvalidInput that
    names the file and the place in it."""
    where = str(path)
    return read_manifest(read_bytes(Path(path), where), where=where).workloads
