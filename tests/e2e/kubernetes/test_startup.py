"""A dispatcher that starts on a cluster that is full of pods."""

import concurrent.futures
from pathlib import Path

import psutil
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import assigned, reserved
from e2e.kubernetes.api import Api
from waiting import wait_until

from hossctl.local.control_plane import ControlPlane

NODES, PODS = 500, 1500


def test_a_filled_cluster_is_known_before_anything_is_placed_and_that_is_soon(
    tmp_path: Path, control_plane: ControlPlane, api: Api
) -> None:
    """Every node but one is full; who did not know of all pods would take another."""
    with concurrent.futures.ThreadPoolExecutor(8) as several:
        list(several.map(lambda i: api.create_node(f"n{i}", cpu="1"), range(NODES)))
        list(
            several.map(
                lambda i: api.create_pod(f"p{i}", cpu="300m", nodeName=f"n{1 + i % (NODES - 1)}"), range(PODS)
            )
        )
    with Cluster(tmp_path, kubeconfig=control_plane.kubeconfig) as cluster:
        cluster.start_worker("w1")
        cluster.kill("dispatcher")
        api.create_pod("mine", scheduler="hoss", cpu="800m")
        cluster.start_dispatcher()
        assert wait_until(lambda: api.pod("mine")["spec"].get("nodeName"), "it is bound") == "n0"
        assert reserved(cluster) == assigned(api)
        resident = psutil.Process(cluster.pid("dispatcher")).memory_info().rss
        assert resident < 600 * 2**20
