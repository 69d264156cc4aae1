"""Policies on real processes: they narrow nodes, are replaced under load, and outlive the dispatcher."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.loads import until_agreed
from waiting import until

from hoss.client.dispatcher import submission
from hoss.errors import InvalidInput, TransportError
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Clients, clients_of
from hossctl.load.nodes import register

GIB = 2**30
HEAD = "apiVersion: hoss.dev/v1alpha1\nkind: SchedulingPolicy\n"
EVERYWHERE = HEAD + "rules: [{name: all}]\n"
NARROW = (
    HEAD + "rules: [{name: web, match: {labels: {matchLabels: {app: web}}}, nodes: {matchLabels: {pool: a}}},"
    " {name: all}]\n"
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    policy = tmp_path / "mounted" / "policy.yaml"
    _mount(policy, EVERYWHERE, 1)
    with Cluster(tmp_path, policy=policy) as cluster:
        yield cluster


async def test_a_rules_nodes_hold_its_pods_until_another_policy_lets_them_go_elsewhere(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.start_worker("w1")
    cluster.start_worker("w2")
    async with clients_of(cluster.endpoints) as clients:
        await _add_nodes(clients, 2)
        _mount(tmp_path / "mounted" / "policy.yaml", NARROW, 2)
        await until(lambda: _version(clients, 2))
        await _submit(clients, Workload("web", _template("web"), 12))
        await until(lambda: _phases(clients, "web", {pb.BOUND: 8, pb.UNSCHEDULABLE: 4}))
        await _submit(clients, Workload("db", _template("db"), 4))
        await until(lambda: _phases(clients, "db", {pb.BOUND: 4}))
        pods = [pod async for pod in clients.dispatcher.list_pods(job="web")]
        assert {pod.node for pod in pods if pod.phase == pb.BOUND} == {"a-0", "a-1"}
        (reason,) = {pod.reason for pod in pods if pod.phase == pb.UNSCHEDULABLE}
        assert "2 node(s) were outside the nodes of policy rule web (pool=a)" in reason

        await clients.dispatcher.set_policy(EVERYWHERE)
        await until(lambda: _phases(clients, "web", {pb.BOUND: 12}))


async def test_policies_replaced_under_load_lose_nothing(cluster: Cluster) -> None:
    cluster.start_worker("gold", "tier=gold")
    cluster.start_worker("plain")
    policies = (
        HEAD + "rules: [{name: gold, workers: {matchLabels: {tier: gold}}}]\n",
        HEAD + "rules: [{name: web, match: {labels: {matchLabels: {app: web}}}, balance: {algorithm:"
        " ConsistentHash}}, {name: rest, workers: {matchExpressions: [{key: tier, operator:"
        " DoesNotExist}]}, balance: {algorithm: Random}}]\n",
        HEAD + "rules: [{name: near, nodes: {matchLabels: {pool: a}, partition: Soft}}]\n",
        HEAD + "rules: [{name: nobody, workers: {matchLabels: {tier: silver}}}]\n",
    )
    async with clients_of(cluster.endpoints) as clients:
        await _add_nodes(clients, 20, cpu=100_000)
        for number in range(24):
            template = _template("web" if number % 2 else "db", cpu=10)
            await _submit(clients, Workload(f"job-{number}", template, 500))
            await clients.dispatcher.set_policy(policies[number % len(policies)])
        await clients.dispatcher.set_policy(EVERYWHERE)

        async def all_bound() -> bool:
            return (await clients.dispatcher.status()).pods_by_phase["BOUND"] == 24 * 500

        await until(all_bound)
        audit = await clients.dispatcher.audit()
        uids = {audit.bound_uids[at : at + 16] for at in range(0, len(audit.bound_uids), 16)}
        assert len(uids) == 24 * 500


async def test_a_policy_by_command_outlives_the_dispatcher_and_a_newer_file_replaces_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with clients_of(cluster.endpoints) as clients:
        await clients.dispatcher.set_policy(NARROW, if_version=1)
        with pytest.raises(InvalidInput, match="version 1 is not in force any more"):
            await clients.dispatcher.set_policy(EVERYWHERE, if_version=1)
        cluster.kill("dispatcher")
        cluster.start_dispatcher()
        await until(lambda: _version(clients, 2))
        kept = await clients.dispatcher.get_policy()
        assert (kept.yaml, kept.source) == (NARROW, "command")

        file = tmp_path / "mounted" / "policy.yaml"
        _mount(file, "kind: Nonsense\n", 3)

        async def refused() -> bool:
            policy = (await clients.dispatcher.status()).policy
            return policy.refusal.source == f"file {file}" and policy.version == 2

        await until(refused)
        cluster.kill("dispatcher")
        _mount(file, EVERYWHERE.replace("all", "newer"), 4)
        cluster.start_dispatcher()
        await until(lambda: _version(clients, 3))
        assert "newer" in (await clients.dispatcher.get_policy()).yaml


async def test_a_trial_says_what_then_happens_and_changes_nothing(cluster: Cluster) -> None:
    cluster.start_worker("gold", "tier=gold")
    cluster.start_worker("plain")
    async with clients_of(cluster.endpoints) as clients:
        await _add_nodes(clients, 2)
        rules = (
            HEAD
            + "rules: [{name: web, match: {labels: {matchLabels: {app: web}}}, workers: {matchLabels: {tier:"
            " gold}}}]\n"
        )
        reply = await clients.dispatcher.test_policy([_template("web"), _template("db")], rules)
        assert [(trial.rule, trial.worker) for trial in reply.trials] == [("web", "gold"), ("", "")]
        assert [rule.reason for rule in reply.trials[1].rules] == ["labels: not app=web"]
        assert "no rule matches every pod" in "".join(reply.warnings)
        assert await _version(clients, 1)

        await clients.dispatcher.set_policy(rules)
        (now, _) = (await clients.dispatcher.test_policy([_template("web"), _template("db")])).trials
        await _submit(clients, Workload("web", _template("web"), 1))
        await until(lambda: _phases(clients, "web", {pb.BOUND: 1}))
        (pod,) = [pod async for pod in clients.dispatcher.list_pods(job="web")]
        assert (pod.rule, pod.worker) == (now.rule, now.worker)


def _mount(file: Path, text: str, life: int) -> None:
    """As the kubelet mounts a ConfigMap: the file is a link into a directory that is exchanged whole."""
    there = file.parent / f"..{life}"
    there.mkdir(parents=True)
    (there / file.name).write_text(text)
    fresh = file.parent / "..data_tmp"
    fresh.symlink_to(there.name)
    fresh.replace(file.parent / "..data")
    if not file.is_symlink():
        file.symlink_to(f"..data/{file.name}")


def _template(app: str, cpu: int = 1000) -> PodTemplate:
    requests = (("cpu", cpu), ("memory", GIB // 64))
    spec = PodSpec(
        labels=(("app", app),), requests=requests, nonzero_cpu_milli=cpu, nonzero_memory_bytes=GIB // 64
    )
    return PodTemplate(spec, owner_kind="Job")


async def _add_nodes(clients: Clients, count: int, cpu: int = 4000) -> None:
    """`count` nodes of each of the pools a and b."""
    allocatable = (("cpu", cpu), ("memory", 64 * GIB), ("pods", 1000))
    nodes = [
        NodeSpec(f"{pool}-{i}", labels=(("pool", pool),), allocatable=allocatable)
        for pool in "ab"
        for i in range(count)
    ]
    await register(clients.resolver, nodes)
    await until_agreed(clients, 2)


async def _submit(clients: Clients, *workloads: Workload) -> None:
    for message in submission(workloads):
        await clients.dispatcher.submit(message)


async def _version(clients: Clients, wanted: int) -> bool:
    try:
        return (await clients.dispatcher.get_policy()).version == wanted
    except TransportError:
        return False  # it is starting


async def _phases(clients: Clients, job: str, wanted: dict[int, int]) -> bool:
    pods = [pod async for pod in clients.dispatcher.list_pods(job=job)]
    return {phase: sum(pod.phase == phase for pod in pods) for phase in wanted} == wanted
