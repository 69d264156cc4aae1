"""A full cluster with pods that wait: what happens wakes those it may help, and only these. On real
processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.loads import until_agreed
from waiting import until

from hoss.client.dispatcher import submission
from hoss.model.node import NodeSpec, Taint, Toleration
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Clients, clients_of
from hossctl.load.nodes import register

GIB = 2**30
DEDICATED = Taint("dedicated", "batch")
TOLERATES_ALL = Toleration(operator="Exists")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, workers=["w1"]) as cluster:
        yield cluster


async def test_only_the_pods_that_a_change_may_help_are_tried_again(cluster: Cluster) -> None:
    async with clients_of(cluster.endpoints) as clients:
        await register(clients.resolver, [_node("full", 8), _node("tainted", 8, taints=(DEDICATED,))])
        await until_agreed(clients, 1)
        await _submit(clients, _pod("occupant", 2), _pod("rest", 6))
        await until(lambda: _phases(clients, occupant=pb.BOUND, rest=pb.BOUND))
        await _submit(clients, _pod("small", 2), _pod("large", 5), _pod("giant", 20))
        await until(
            lambda: _phases(clients, small=pb.UNSCHEDULABLE, large=pb.UNSCHEDULABLE, giant=pb.UNSCHEDULABLE)
        )

        # Room for the small one, again and again: what comes and goes is no help to the others.
        await clients.dispatcher.delete("default", pods=["occupant"])
        await until(lambda: _phases(clients, small=pb.BOUND))
        for number in range(5):
            gone, name = ("small" if number == 0 else f"small-{number}"), f"small-{number + 1}"
            await clients.dispatcher.delete("default", pods=[gone])
            await _submit(clients, _pod(name, 2))
            await until(lambda name=name: _phases(clients, **{name: pb.BOUND}))
        # Of six changes none is a reason to try again. Only an answer that crossed one is.
        assert await _attempts(clients, "large") <= 2
        tried = await _attempts(clients, "giant")
        assert tried <= 2

        # A label helps the pod alone that asks for it.
        await _submit(clients, _pod("labelled", 1, node_selector=(("a", "b"),), tolerations=(TOLERATES_ALL,)))
        await until(lambda: _phases(clients, labelled=pb.UNSCHEDULABLE))
        await register(clients.resolver, [_node("tainted", 8, taints=(DEDICATED,), labels=(("a", "b"),))])
        await until(lambda: _phases(clients, labelled=pb.BOUND, giant=pb.UNSCHEDULABLE))
        assert await _attempts(clients, "giant") == tried

        # The removed taint helps all that it kept off. The giant does not fit there either, and is tried once
        # more if the worker answers before it has seen the change.
        await register(clients.resolver, [_node("tainted", 8)])
        await until(lambda: _phases(clients, large=pb.BOUND, giant=pb.UNSCHEDULABLE))
        before, tried = tried, await _attempts(clients, "giant")
        assert before + 1 <= tried <= before + 2

        # A new node, too small for the giant, and one that is not.
        await _submit(clients, _pod("medium", 6))
        await until(lambda: _phases(clients, medium=pb.UNSCHEDULABLE))
        await register(clients.resolver, [_node("new", 8)])
        await until(lambda: _phases(clients, medium=pb.BOUND, giant=pb.UNSCHEDULABLE))
        assert await _attempts(clients, "giant") == tried
        await register(clients.resolver, [_node("vast", 32)])
        await until(lambda: _phases(clients, giant=pb.BOUND))
        assert (await clients.dispatcher.get_pod("default", "giant")).node == "vast"
        assert tried <= await _attempts(clients, "giant") <= tried + 1


def _node(name: str, cpus: int, **fields) -> NodeSpec:
    allocatable = (("cpu", cpus * 1000), ("memory", 64 * GIB), ("pods", 110))
    return NodeSpec(name, allocatable=allocatable, **fields)


def _pod(name: str, cpus: int, **fields) -> Workload:
    return Workload(name, PodTemplate(PodSpec(requests=(("cpu", cpus * 1000),), **fields)))


async def _submit(clients: Clients, *workloads: Workload) -> None:
    for request in submission(workloads):
        await clients.dispatcher.submit(request)


async def _phases(clients: Clients, **wanted: int) -> bool:
    return all(
        [(await clients.dispatcher.get_pod("default", name)).phase == phase for name, phase in wanted.items()]
    )


async def _attempts(clients: Clients, name: str) -> int:
    return (await clients.dispatcher.get_pod("default", name)).attempts
