"""What somebody broke in the ledger by hand, mended by `hoss audit --repair` under a platform of real
processes."""

from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.loads import GIB, assert_clean
from redis import Redis
from waiting import until

from hoss.client.dispatcher import submission
from hoss.model.node import NodeSpec
from hoss.model.pod import HostPort, PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Clients, clients_of
from hossctl.load.nodes import register


async def submit(clients: Clients, name: str) -> None:
    spec = PodSpec(requests=(("cpu", 100),), host_ports=(HostPort(port=80),))
    for request in submission([Workload(name, PodTemplate(spec))]):
        await clients.dispatcher.submit(request)


async def until_phase(clients: Clients, name: str, phase: pb.PodPhase) -> pb.PodInfo:
    async def reached() -> pb.PodInfo | None:
        pod = await clients.dispatcher.get_pod("default", name)
        return pod if pod.phase == phase else None

    return await until(reached, f"{name} to be {pb.PodPhase.Name(phase)}")


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.thorough), 2])
async def test_a_host_port_that_a_repair_frees_goes_to_the_pod_that_waits_for_it(
    tmp_path: Path, workers: int
) -> None:
    with Cluster(tmp_path, workers=[f"w{number + 1}" for number in range(workers)]) as cluster:
        async with clients_of(cluster.endpoints) as clients:
            allocatable = (("cpu", 8000), ("memory", 64 * GIB), ("pods", 110))
            await register(clients.resolver, [NodeSpec("a", allocatable=allocatable)])
            await submit(clients, "holder")
            holder = await until_phase(clients, "holder", pb.BOUND)
            await submit(clients, "waiting")
            await until_phase(clients, "waiting", pb.UNSCHEDULABLE)
            assert cluster.redis is not None
            with Redis(port=cluster.redis.port) as connection:
                assert connection.hdel("{hoss:0}:reservations", holder.uid) == 1
            # Gives back nothing, for nothing is reserved.
            await clients.dispatcher.delete("default", pods=["holder"])
            await until(lambda: is_gone(clients, "holder"), "the holder to be gone")
            await until_phase(clients, "waiting", pb.UNSCHEDULABLE)
            assert "port 80/TCP is no more held" in " ".join((await clients.resolver.repair()).changes)
            await until_phase(clients, "waiting", pb.BOUND)
            await assert_clean(clients, bound=1)


async def is_gone(clients: Clients, name: str) -> bool:
    return name not in [pod.name async for pod in clients.dispatcher.list_pods("default")]
