"""Traces and benchmarks, end to end."""

import asyncio
import csv
import json
import re
from collections import Counter

import pytest
from e2e.loads import audited
from waiting import until

from hoss.client.dispatcher import submission
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import clients_of, of_state
from hossctl.load import race, report, runner
from hossctl.load.generated import filling
from hossctl.load.nodes import UNIFORM, simulated_nodes
from hossctl.local import platform
from hossctl.local.platform import PlatformOptions
from hossctl.local.platform_state import WorkerOptions
from hossctl.traces.openb import read_nodes, read_pods


def workers(count: int, *flags: str) -> tuple[WorkerOptions, ...]:
    return tuple(WorkerOptions(f"w{i}", flags=flags) for i in range(count))


def test_replay_of_a_small_trace_reports_everything(hoss, tmp_path):
    with (tmp_path / "nodes.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["sn", "cpu_milli", "memory_mib", "gpu", "model"], *(
            [f"n{i}", 8000, 16384, 2, "T4"] for i in range(4)
        )])  # fmt: skip
    header = ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase",
        "creation_time",
              "deletion_time", "scheduled_time"]  # fmt: skip
    rows = [[f"share-{i}", 100, 100, 1, 500, "", "LS", "Running", 0, 1, 0] for i in range(8)]
    rows += [[f"whole-{i}", 100, 100, 1, 1000, "T4|V100", "LS", "Running", 0, 1, 0] for i in range(5)]
    rows += [["picky", 100, 100, 1, 1000, "A100", "LS", "Running", 0, 1, 0]]
    with (tmp_path / "pods.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    result = hoss.json(
        "replay",
        "--nodes",
        str(tmp_path / "nodes.csv"),
        "--pods",
        str(tmp_path / "pods.csv"),
        "--workers",
        "2",
    )
    placement = result["placement"]
    assert placement["bound"] + placement["unschedulable"] == 14
    assert (
        placement["unschedulable"] >= 2
    )  # the picky one, and a whole card that is not there: 4 cards hold shares
    assert result["usage"]["overcommittedNodes"] == []
    assert result["usage"]["utilisation"]["cards"] <= 1
    assert result["audit"]["verdict"] == "clean"


def test_replay_of_a_trace_overcommits_nothing(hoss, trace):
    nodes, pods = trace
    result = hoss.json(
        "replay", "--format", "openb", "--nodes", str(nodes), "--pods", str(pods), "--shuffle-seed", "7"
    )
    placement = result["placement"]
    assert placement["pods"] == len(read_pods(pods))
    assert placement["unaccounted"] == 0
    assert placement["bound"] > 0.85 * placement["pods"]
    assert placement["unschedulable"] > 0  # the cards do not suffice for all
    assert result["usage"]["overcommittedNodes"] == []
    assert result["audit"]["violations"] == []


def test_a_replay_in_time_lets_pods_go_at_their_end(hoss, tmp_path):
    def event(seconds, kind, instance):
        request = {"cpus": 0.25, "memory": 0.1}
        return {
            "time": seconds * 10**6,
            "type": kind,
            "collection_id": 5,
            "instance_index": instance,
            "resource_request": request,
        }

    # Four fit on the one node. Two of them go at 30 s, when two more come; the fifth that comes before waits
    # for one that goes.
    events = [event(10, "SUBMIT", i) for i in range(5)] + [event(30, "FINISH", i) for i in range(2)]
    events += [event(40, "SUBMIT", 5), event(50, "KILL", 5), event(400, "FINISH", 4)]
    (tmp_path / "events.json").write_text("\n".join(map(json.dumps, events)))
    result = hoss.json(
        "replay", "--format", "google2019", "--nodes", "1", "--pods", str(tmp_path / "events.json"),
        "--workers", "1", "--speedup", "20", "--to", "5m",
    )  # fmt: skip
    assert result["placement"]["departed"] == result["departures"]["pods"] == 3
    assert result["placement"]["bound"] == 3
    assert result["placement"]["unaccounted"] == 0
    assert result["usage"]["utilisation"]["cpu"] == 0.75
    assert result["audit"]["verdict"] == "clean"


async def test_invariant_3_killing_a_worker_in_the_middle_of_a_replay_loses_no_pod(trace):
    """It stands still before it dies, so that it dies with pods in hand."""
    nodes, pods = read_nodes(trace[0]), read_pods(trace[1])
    half = len(pods) // 2
    with platform.temporary(PlatformOptions(workers=workers(3))) as starter:
        victim = next(record.find() for record in starter.state.processes if record.name == "worker-w1")
        async with clients_of(of_state(starter.state)) as clients:
            await report.prepare(clients, nodes, 3)
            await runner.place(clients.dispatcher, list(submission(pods[:half])))
            victim.suspend()
            placing = asyncio.ensure_future(runner.place(clients.dispatcher, list(submission(pods[half:]))))
            await until(lambda: given_pods(clients, "w1"), "w1 to be given pods")
            victim.kill()
            await placing
            assert await fenced_pods(clients, "w1") > 0
            phases = Counter([pod.phase async for pod in clients.dispatcher.list_pods()])
            assert phases[pb.BOUND] + phases[pb.UNSCHEDULABLE] == len(pods)
            result = await audited(clients)
            assert result.exit_code == 0, result
            assert result.bound == phases[pb.BOUND]


async def given_pods(clients, name):
    """Whether a worker that stands still was given pods. Where that took longer than its timeout, they were
    taken from it already."""
    workers = {worker.name: worker for worker in await clients.dispatcher.list_workers()}
    return workers[name].outstanding or workers[name].state == "Lost"


async def fenced_pods(clients, name):
    """How many a worker had in hand when it was fenced, as its steps tell."""
    workers = {worker.name: worker for worker in await clients.dispatcher.list_workers(steps=True)}
    told = [
        re.search(r"of the pods it had in hand (\d+) have a place, (\d+) have none", s.text)
        for s in workers[name].steps
    ]
    return sum(int(count) for found in told if found for count in found.groups())


async def test_invariant_1_four_workers_on_a_full_cluster_conflict_and_never_overcommit():
    """While one decides, the others take what it has seen free."""
    nodes = simulated_nodes(20, shapes=UNIFORM)
    load = filling(nodes, 1.05, seed=2)
    with platform.temporary(PlatformOptions(workers=workers(4, "--decision-job-ms", "100"))) as starter:
        async with clients_of(of_state(starter.state)) as clients:
            await report.prepare(clients, nodes, 4)
            placement = await report.place(clients, load)
            used = await report.usage(clients)
            result = await audited(clients)
    assert placement.conflicts > 0
    assert placement.unschedulable > 0
    assert placement.unaccounted == 0
    assert used.overcommitted == ()
    assert result.exit_code == 0, result


def test_schedulers_that_race_oversell_nodes_where_nobody_checks_and_none_with_the_ledger(monkeypatch):
    """The demo's race, with decisions so slow that the two meet on a machine of any speed."""
    monkeypatch.setattr(race, "_FLAGS", ("--profile", "binpack", "--decision-job-ms", "200"))
    alone, together = (race.race(checked=checked, redis_url="", seed=1) for checked in (False, True))
    assert alone.oversold_pods >= alone.oversold_nodes > 0
    assert (together.oversold_nodes, together.placement.unaccounted) == (0, 0)
    assert together.placement.conflicts > 0


@pytest.mark.parametrize(
    "mix", ["uniform", *(pytest.param(mix, marks=pytest.mark.thorough) for mix in ("openb", "unique"))]
)
def test_throughput_measures_every_mix(hoss, mix):
    result = hoss.json("bench", "throughput", "--nodes", "100", "--pods", "1000", "--mix", mix)
    assert result["runs"][0]["placement"]["bound"] == 1000
    assert result["podsPerSecond"] > 0
    assert result["ceilingPodsPerSecond"] > 0
    assert result["violations"] == []
    assert set(result["peakMib"]) == {"redis", "resolver-1", "dispatcher", "worker-w1", "worker-w2"}
