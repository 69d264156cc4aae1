"""The scheduler in Go of docs/tutorials/go.md, built from proto/, as a process beside HOSS's workers."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.loads import all_bound, audited, prepare, submit, until_agreed
from machine import OPENB_FILES, no_go, no_openb
from waiting import until

from hoss import sdk
from hoss.client.dispatcher import submission
from hoss.model.node import NodeSpec, Taint, Toleration
from hoss.model.pod import PodAffinity, PodAffinityTerm, PodSpec, PodTemplate, Workload
from hoss.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement
from hossctl.checking.schedulers import check_scheduler
from hossctl.endpoints import Clients, clients_of
from hossctl.load import report
from hossctl.load.nodes import register
from hossctl.traces.openb import read_nodes, read_trace
from tools import go_example

sys.path.append(str(Path(__file__).parents[2] / "examples"))
from emptiest_first import EmptiestFirst

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(bool(no_go()), reason=no_go()),
]

HOST = "kubernetes.io/hostname"
CORE = (("cpu", 1000),)
# Cards are for HOSS's own workers: the SDKs do not place them.
CARDS_APART = """
apiVersion: hoss.dev/v1alpha1
kind: SchedulingPolicy
rules:
  - name: cards
    match: {resources: [nvidia.com/gpu]}
    workers: {matchLabels: {by: hoss}}
  - name: others
"""


@pytest.fixture(scope="module")
def program() -> Path:
    return go_example.build()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, shards=2, resolvers=2, dispatchers=2) as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def running(program: Path, cluster: Cluster, log: Path) -> AsyncIterator[None]:
    """The scheduler in Go for the length of the block, named `go`. It ends with 0."""
    resolvers = ",".join(map(cluster.address, ("resolver", "resolver-2")))
    addresses = ("-dispatcher", cluster.endpoints.dispatcher, "-resolver", resolvers)
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(str(program), "-name", "go", *addresses, stderr=stderr)
    try:
        yield
        process.terminate()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()


async def bound_by(clients: Clients, name: str) -> int:
    return next(worker.bound for worker in await clients.dispatcher.list_workers() if worker.name == name)


async def test_it_places_pods_through_the_loss_of_each_resolver_and_of_the_dispatcher(
    cluster: Cluster, program: Path, tmp_path: Path
) -> None:
    log = tmp_path / "go.log"
    async with clients_of(cluster.endpoints) as clients, running(program, cluster, log):
        await prepare(clients, workers=1, nodes=40, cpus=40)
        for number, name in enumerate(("resolver-2", "resolver")):
            await submit(clients, jobs=4, replicas=700, name=f"through-{name}")
            cluster.kill(name)
            cluster.start_resolver(name)
            await until(lambda number=number: all_bound(clients, 2800 * (number + 1)))
        # One of the two had its streams.
        assert "INFO interrupted" in log.read_text()
        cluster.kill("dispatcher")
        await submit(clients, jobs=4, replicas=700, name="with-the-standby")
        await until(lambda: all_bound(clients, 8400))
        assert log.read_text().count("INFO registered") == 2
        assert (await audited(clients)).exit_code == 0  # its view is the ledger, by digest


def test_the_tutorials_scheduler_is_the_one_that_is_built() -> None:
    program = go_example.SOURCE / "emptiestfirst/main.go"
    assert f"```go\n{program.read_text()}```\n" in (go_example.ROOT / "docs/tutorials/go.md").read_text()


async def test_it_keeps_to_the_rules_of_nodes_and_says_what_it_does_not_know(
    cluster: Cluster, program: Path, tmp_path: Path
) -> None:
    web = LabelSelector((Requirement("app", "In", ("web",)),))
    alone = PodAffinity(anti_required=(PodAffinityTerm(HOST, web, ("default",)),))
    room = (("cpu", 64_000), ("pods", 250))
    nodes = [
        NodeSpec(f"n{i}", ((HOST, f"n{i}"), ("disk", "ssd" if i % 2 else "hdd")), allocatable=room)
        for i in range(4)
    ]
    dedicated = Taint("dedicated", "batch", "NoSchedule")
    nodes.append(NodeSpec("tainted", ((HOST, "tainted"),), taints=(dedicated,), allocatable=room))
    ssd = NodeSelector((NodeSelectorTerm((Requirement("disk", "In", ("ssd",)),)),))
    async with clients_of(cluster.endpoints) as clients:
        await register(clients.resolver, nodes)
        cluster.start_worker("w1")
        await put(clients, "guarded", PodSpec(pod_affinity=alone), 2)
        await until(lambda: all_bound(clients, 2))
        guarded = await nodes_of(clients, "guarded")
        cluster.end("w1")
        async with running(program, cluster, tmp_path / "go.log"):
            await until_agreed(clients, 1)
            await put(clients, "ssd", PodSpec(requests=CORE, required_node_affinity=ssd), 20)
            await put(clients, "web", PodSpec(labels=(("app", "web"),), requests=CORE), 20)
            tolerating = PodSpec(
                node_name="tainted", tolerations=(Toleration("dedicated", "Equal", "batch", "NoSchedule"),)
            )
            await put(clients, "tolerating", tolerating, 5)
            await put(clients, "choosy", PodSpec(pod_affinity=alone), 1)
            await until(lambda: all_bound(clients, 47))
            assert await nodes_of(clients, "ssd") == {"n1", "n3"}
            assert await nodes_of(clients, "web") <= {"n0", "n1", "n2", "n3"} - guarded
            assert await nodes_of(clients, "tolerating") == {"tainted"}
            [choosy] = [pod async for pod in clients.dispatcher.list_pods(job="choosy")]
            assert "does not know about required pod affinity or anti-affinity" in choosy.reason
            assert (await audited(clients)).exit_code == 0


@pytest.mark.skipif(bool(no_openb()), reason=no_openb() or "it is there")
async def test_go_and_python_place_the_openb_trace_together_with_hoss_without_overcommitment(
    cluster: Cluster, program: Path, tmp_path: Path
) -> None:
    node_file, pod_file = OPENB_FILES
    endpoints = cluster.endpoints
    addresses = {"dispatchers": endpoints.dispatcher.split(","), "resolvers": endpoints.resolver.split(",")}
    cluster.start_worker("w1", "by=hoss")
    async with (
        clients_of(endpoints) as clients,
        running(program, cluster, tmp_path / "go.log"),
        sdk.running(EmptiestFirst(), "python", **addresses),
    ):
        await register(clients.resolver, read_nodes(node_file))
        await clients.dispatcher.set_policy(CARDS_APART)
        await until_agreed(clients, 3)
        pods = [pod.workload for pod in read_trace(pod_file)]
        for request in submission(pods):
            await clients.dispatcher.submit(request)
        await until(lambda: settled(clients, len(pods)))
        assert (await audited(clients)).exit_code == 0
        assert not (await report.usage(clients)).overcommitted
        for name in ("w1", "go", "python"):
            assert await bound_by(clients, name)


async def settled(clients: Clients, pods: int) -> bool:
    """Every pod is bound, or no node has room for it."""
    phases = (await clients.dispatcher.status()).pods_by_phase
    return phases["BOUND"] + phases["UNSCHEDULABLE"] == pods


async def nodes_of(clients: Clients, job: str) -> set[str]:
    return {pod.node async for pod in clients.dispatcher.list_pods(job=job)}


async def put(clients: Clients, name: str, spec: PodSpec, replicas: int) -> None:
    for request in submission([Workload(name, PodTemplate(spec, owner_kind="Job"), replicas)]):
        await clients.dispatcher.submit(request)


def test_the_check_of_running_schedulers_finds_nothing(program: Path) -> None:
    flags = ["-name", "{name}", "-dispatcher", "{dispatcher}", "-resolver", "{resolver}"]
    found = check_scheduler([str(program), *flags], timeout_seconds=60)
    assert (found.problems, found.warnings, found.bound) == ([], [], 60)
