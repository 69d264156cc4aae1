"""Pods of a controller that a test plays, and moves of them."""

import asyncio
import json
from typing import Any

from e2e.cluster import Cluster
from e2e.kubernetes.agreement import run_hoss
from e2e.kubernetes.api import Api

from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import clients_of

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web-uid", "controller": True}
LONG_GRACE, NO_GRACE = 3600, 0
REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"
# With the label of those that Deployments make: HOSS does not mirror them.
REPLICA_SET = {
    "metadata": {"name": "web", "labels": {"pod-template-hash": "1"}},
    "spec": {
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "image": "none"}]},
        },
    },
}


def create_web(api: Api, name: str, *, grace: int = LONG_GRACE, cpu: str = "800m", **metadata: Any) -> None:
    """A pod of the ReplicaSet `web`, which is there as well."""
    api.request("POST", REPLICA_SETS, REPLICA_SET)  # it may be there already
    labels = {"app": "web"}
    api.create_pod(
        name,
        cpu=cpu,
        scheduler="hoss",
        metadata={"ownerReferences": [OWNER], "labels": labels, **metadata},
        terminationGracePeriodSeconds=grace,
    )


def begin(cluster: Cluster, *moves: tuple[str, str, str]) -> None:
    """Begin to make moves of pods of the default namespace: name, source, target."""

    async def ask() -> None:
        async with clients_of(cluster.endpoints) as clients:
            digests = (await clients.resolver.audit()).digests
            await clients.dispatcher.rebalance(
                pb.RebalanceRequest(
                    action=pb.REBALANCE_START,
                    moves=[
                        pb.RebalanceMove(pod=f"default/{pod}", source=source, target=target)
                        for pod, source, target in moves
                    ],
                    seen={digest.shard: digest.seq for digest in digests},
                    moves_per_second=50,
                )
            )

    asyncio.run(ask())


def run_status(cluster: Cluster) -> Any:
    return json.loads(run_hoss(cluster, "rebalance", "status", "-o", "json"))
