"""A live platform is recorded while a load runs and a worker is killed; the history is judged, and is
clean."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.loads import all_bound, prepare, submit
from fork_server import FORK_SERVER
from waiting import COMMAND_SECONDS, DEADLINE_SECONDS, until

from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Clients, clients_of
from hossctl.history.checker_judgement import Promise

# What a recorder from outside can judge, see docs/reliability.md.
SEEN = {
    Promise.NO_OVERCOMMIT,
    Promise.ONE_NODE,
    Promise.FENCING,
    Promise.GANGS,
    Promise.NOTHING_LOST,
    Promise.WATCHERS,
    Promise.OWNERS,
    Promise.AGREEMENT,
    Promise.LIVENESS,
}


@pytest.mark.parametrize(
    "victim",
    [
        "w2",
        pytest.param("dispatcher", marks=pytest.mark.thorough),
        pytest.param("resolver", marks=pytest.mark.thorough),
    ],
)
async def test_a_platform_that_loses_a_process_under_load_leaves_a_clean_history(
    tmp_path: Path, victim: str
) -> None:
    cluster = Cluster(tmp_path / "cluster", shards=2, workers=["w1", "w2"])
    start = {"dispatcher": cluster.start_dispatcher, "resolver": cluster.start_resolver}
    history = tmp_path / "history.jsonl"
    try:
        async with clients_of(cluster.endpoints) as clients:
            await prepare(clients, workers=2, nodes=20, cpus=4)
            options = ["--out", str(history), "--every", "0.3", "--settle", str(DEADLINE_SECONDS)]
            recorder = FORK_SERVER.start("hossctl", ["history", "record", *options], env=environment(cluster))
            await until(
                lambda: history.exists() and '"listing"' in history.read_text(), "the recorder's watch"
            )
            await submit(clients, jobs=4, replicas=60)
            await submit(clients, jobs=2, replicas=10, name="gang", gang_minimum=10)
            cluster.kill(victim)
            if victim in start:
                await asyncio.to_thread(start[victim])
            await submit(clients, jobs=2, replicas=60, name="later")
            await until(lambda: all_bound(clients, 380))
            await until(lambda: "default/later-1" in history.read_text(), "the pods to be described")
            await submit(clients, jobs=1, replicas=2, name="misfit", cpu_milli=5000)
            await clients.dispatcher.delete("default", jobs=["job-1"], pods=["job-0-7"])
            recorder.send_signal(signal.SIGINT)
            assert recorder.wait(COMMAND_SECONDS) == 0
    finally:
        cluster.stop()
    checked = FORK_SERVER.run("hossctl", ["history", "check", str(history), "-o", "json"])
    judged = json.loads(checked.stdout)
    assert (checked.returncode, judged["violations"]) == (0, [])
    rows = {Promise(row["promise"]): row for row in judged["promises"]}
    assert not [promise for promise in SEEN if not rows[promise]["judged"]], judged["promises"]
    assert rows[Promise.NOTHING_LOST]["notJudged"] == {
        "deleted, and the history does not hold what clients asked for": 61
    }
    # Those that are bound, and the two that fit on no node.
    assert rows[Promise.LIVENESS]["judged"] == 321


async def test_a_platform_that_is_not_still_at_the_end_is_judged_but_for_its_end(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    async with loaded(tmp_path, nodes=2, pods=5) as (cluster, _):
        options = ["--out", str(history), "--seconds", "0.2", "--settle", "0"]
        recorded = await asyncio.to_thread(
            FORK_SERVER.run, "hossctl", ["history", "record", *options], env=environment(cluster)
        )
    assert (recorded.returncode, "its end cannot be judged" in recorded.stderr) == (1, True), recorded.stderr
    checked = FORK_SERVER.run("hossctl", ["history", "check", str(history)])
    assert checked.returncode == 0, checked.stdout
    assert (
        "not judged: watchers-told-last-state, 1 times: the history does not say that faults"
        in checked.stdout
    )


@asynccontextmanager
async def loaded(
    folder: Path, *, nodes: int, pods: int, shards: int = 1
) -> AsyncIterator[tuple[Cluster, Clients]]:
    """A platform with one worker, all of whose pods are bound."""
    with Cluster(folder / "cluster", shards=shards, workers=["w1"]) as cluster:
        async with clients_of(cluster.endpoints) as clients:
            await prepare(clients, workers=1, nodes=nodes)
            await submit(clients, jobs=1, replicas=pods)
            await until(lambda: all_bound(clients, pods))
            yield cluster, clients


def environment(cluster: Cluster) -> dict[str, str]:
    """Of commands for the platform."""
    endpoints = cluster.endpoints
    return {**os.environ, "HOSS_DISPATCHER": endpoints.dispatcher, "HOSS_RESOLVER": endpoints.resolver}


async def test_the_history_of_a_platform_whose_pods_are_moved_is_clean(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    async with loaded(tmp_path, nodes=6, pods=12, shards=2) as (cluster, clients):
        recorder = FORK_SERVER.start(
            "hossctl", ["history", "record", "--out", str(history)], env=environment(cluster)
        )
        await until(lambda: history.exists() and '"listing"' in history.read_text(), "the recorder to watch")
        placed = {f"{pod.namespace}/{pod.name}": pod.node async for pod in clients.dispatcher.list_pods()}
        nodes = [node.spec.name for node in await clients.resolver.list_nodes()]
        request = pb.RebalanceRequest(
            action=pb.REBALANCE_START,
            moves=[
                pb.RebalanceMove(pod=pod, source=node, target=nodes[(nodes.index(node) + 1) % len(nodes)])
                for pod, node in placed.items()
            ],
            seen={digest.shard: digest.seq for digest in (await clients.resolver.audit()).digests},
            moves_per_second=50,
        )
        await clients.dispatcher.rebalance(request)
        await until(lambda: "moving" in history.read_text(), "the recorder to hear of the moves")
        await until(lambda: _moved(clients, 12), "all pods to be moved")
        recorder.send_signal(signal.SIGINT)
        assert recorder.wait(COMMAND_SECONDS) == 0
    checked = FORK_SERVER.run("hossctl", ["history", "check", str(history)])
    assert checked.returncode == 0, checked.stdout
    assert "not judged: one-node, 12 times: pods were moved" in checked.stdout


async def _moved(clients: Clients, pods: int) -> bool:
    return (await clients.dispatcher.rebalance(pb.RebalanceRequest())).moved == pods
