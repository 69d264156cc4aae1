"""hoss.sim: pods come, are placed by real cores, and leave, on virtual time."""

import contextlib
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hoss.errors import InvalidInput
from hoss.model.devices import PodClaims
from hoss.model.placing import NO_NODE
from hoss.model.pod import (
    HostPort,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    SpreadConstraint,
    Workload,
)
from hoss.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement
from hoss.model.volumes import PodVolumes
from hoss.sim import Cluster, DeviceRequest, NodeSpec, StudyResult, pod_template, read_workloads
from hossctl.traces.recording import Recording, TracePod
from scheduler_worker.core.framework.registry import Weighted
from scheduler_worker.core.framework.sandbox import PluginFailed
from scheduler_worker.core.placement.run_by_run import places_by_node
from scheduler_worker.core.plugins.profiles import ProfileSpec

DOCUMENT = Path(__file__).parents[2] / "docs" / "simulation.md"
SMALL = pod_template({"cpu": 250, "memory": 2**29})


def nodes(count: int, *, cpu_milli: int) -> list[NodeSpec]:
    room = (("cpu", cpu_milli), ("memory", 2**36), ("pods", 100))
    return [NodeSpec(f"n{number}", allocatable=room) for number in range(count)]


def test_pods_are_spread_by_the_default_profile_and_packed_by_binpack():
    spread, packed = (Cluster(nodes(4, cpu_milli=4000), profile=name) for name in ("spread", "binpack"))
    for cluster in (spread, packed):
        cluster.submit(SMALL, 8)
    assert np.bincount(spread.run().nodes, minlength=4).tolist() == [2, 2, 2, 2]
    assert sorted(np.bincount(packed.run().nodes, minlength=4).tolist()) == [0, 0, 0, 8]


def test_pods_that_request_no_cpu_or_no_memory_are_spread_as_if_they_asked_for_a_little():
    for requests in ({"cpu": 100}, {"memory": 2**29}, {}):
        cluster = Cluster(nodes(4, cpu_milli=4000))
        cluster.submit(pod_template(requests), 8)
        assert np.bincount(cluster.run().nodes, minlength=4).tolist() == [2, 2, 2, 2]


def test_what_fits_nowhere_waits_until_others_leave():
    cluster = Cluster(nodes(2, cpu_milli=1000))
    first = cluster.submit(SMALL, 8, lasts=60.0)
    second = cluster.submit(SMALL, 4, at=10.0)
    full = cluster.run(until=30.0)
    assert (full.bound, full.waiting, full.used["cpu"]) == (8, 4, 1.0)
    assert set(full.nodes[list(second)]) == {-1}
    after = cluster.run()
    assert (after.bound, after.waiting, after.used["cpu"]) == (12, 0, 0.5)
    assert after.bound_at[list(second)].tolist() == [60.0] * 4
    assert set(after.nodes[list(first)]) == {-1}
    assert after.waits.max() == 50.0


def test_the_more_urgent_pods_go_first():
    cluster = Cluster(nodes(1, cpu_milli=1000), batch=2)
    low = cluster.submit(SMALL, 4)
    high = cluster.submit(pod_template({"cpu": 250, "memory": 2**29}, priority=10), 3)
    result = cluster.run()
    # The worker had the first two in hand when the others came.
    assert np.flatnonzero(~np.isnan(result.bound_at)).tolist() == [*low[:2], *high[:2]]


def test_workers_whose_decisions_take_time_conflict_and_oversell_nothing():
    cluster = Cluster(nodes(20, cpu_milli=8000), workers=4, profile="binpack", decision_seconds=0.1, batch=40)
    cluster.submit(SMALL, 640)
    result = cluster.run()
    assert (result.bound, result.waiting, result.overcommitted) == (640, 0, 0)
    assert result.conflicts > 0
    assert result.proposed == 640 + result.conflicts
    alone = Cluster(nodes(20, cpu_milli=8000), profile="binpack", decision_seconds=0.1, batch=40)
    alone.submit(SMALL, 640)
    one = alone.run()
    assert (one.bound, one.conflicts) == (640, 0)
    assert one.now > result.now / 2


def test_equal_arguments_give_equal_results():
    results = []
    for _ in range(2):
        cluster = Cluster(
            30, workers=3, decision_seconds=0.01, decision_seconds_per_pod=0.001, batch=20, seed=7
        )
        for second in range(5):
            cluster.submit(SMALL, 100, at=float(second), lasts=2.5)
            cluster.submit(pod_template({"cpu": 2000, "memory": 2**30}), 20, at=float(second))
        results.append(cluster.run())
    assert np.array_equal(results[0].nodes, results[1].nodes)
    assert np.array_equal(results[0].bound_at, results[1].bound_at)
    assert results[0].overcommitted == 0


ZONE = "topology.kubernetes.io/zone"
WEB = LabelSelector((Requirement("app", "In", ("web",)),))
NEAR_WEB = PodAffinityTerm(ZONE, WEB, ("default",))


def in_zones(count: int, zones: int = 3) -> list[NodeSpec]:
    room = (("cpu", 64_000), ("memory", 2**38), ("pods", 110))
    return [NodeSpec(f"n{i}", ((ZONE, f"z{i % zones}"),), allocatable=room) for i in range(count)]


def pod(app: str = "web", **rules: Any) -> PodSpec:
    return PodSpec(labels=(("app", app),), requests=(("cpu", 100),), **rules)


def slow(nodes: list[NodeSpec]) -> Cluster:
    """Three workers that decide at the same time on batches of four."""
    return Cluster(nodes, workers=3, decision_seconds=0.1, batch=4)


def by_zone(result: StudyResult, pods: Sequence[int]) -> list[int]:
    return np.bincount(result.nodes[list(pods)] % 3, minlength=3).tolist()


def test_a_host_port_is_held_once_on_a_node_and_free_again_when_its_pod_leaves():
    cluster = slow(in_zones(6))
    server = pod(host_ports=(HostPort(80),))
    first = cluster.submit(server, 6, lasts=60.0)
    second = cluster.submit(server, 4, at=0.1)
    full = cluster.run(until=30.0)
    assert sorted(full.nodes[list(first)]) == list(range(6))
    assert (full.bound, full.waiting) == (6, 4)
    assert full.conflicts > 0
    after = cluster.run()
    assert len(set(after.nodes[list(second)])) == 4
    assert min(after.nodes[list(second)]) >= 0


def test_other_ports_and_protocols_share_a_node():
    cluster = Cluster(in_zones(1))
    ports = (
        HostPort(80),
        HostPort(80, "UDP"),
        HostPort(81, "TCP", "10.0.0.1"),
        HostPort(81, "TCP", "10.0.0.2"),
    )
    for port in ports:
        cluster.submit(pod(host_ports=(port,)))
    cluster.submit(pod(host_ports=(HostPort(81),)))
    result = cluster.run()
    assert (result.bound, result.waiting) == (4, 1)


def test_pods_that_keep_apart_share_no_zone_though_workers_decide_at_once():
    cluster = slow(in_zones(9))
    apart = pod(pod_affinity=PodAffinity(anti_required=(NEAR_WEB,)))
    pods = cluster.submit(apart, 12, lasts=60.0)
    full = cluster.run(until=30.0)
    assert by_zone_bound(full, pods) == [1, 1, 1]
    assert full.waiting == 9
    assert full.conflicts > 0
    after = cluster.run()
    assert (after.bound, after.waiting) == (12, 0)


def test_pods_keep_away_from_those_that_want_to_be_alone():
    cluster = Cluster(in_zones(9))
    alone = cluster.submit(pod("db", pod_affinity=PodAffinity(anti_required=(NEAR_WEB,))), 1, lasts=60.0)
    pods = cluster.submit(pod(), 30, at=1.0)
    late = cluster.submit(pod("db", pod_affinity=PodAffinity(anti_required=(NEAR_WEB,))), 1, at=2.0)
    result = cluster.run(until=30.0)
    kept_free = result.nodes[alone[0]] % 3
    assert by_zone(result, pods)[kept_free] == 0
    assert result.nodes[late[0]] % 3 == kept_free


def test_pods_go_where_the_pods_are_that_they_need_and_wait_for_them():
    cluster = Cluster(in_zones(9), workers=2)
    followers = cluster.submit(pod("cache", pod_affinity=PodAffinity(required=(NEAR_WEB,))), 10)
    assert cluster.run(until=5.0).waiting == 10
    web = cluster.submit(pod(), 1, at=10.0)
    result = cluster.run()
    zone = result.nodes[web[0]] % 3
    assert by_zone(result, followers)[zone] == 10


def test_the_first_of_a_kind_that_stays_together_chooses_the_zone_though_workers_decide_at_once():
    cluster = slow(in_zones(9))
    pods = cluster.submit(pod(pod_affinity=PodAffinity(required=(NEAR_WEB,))), 24)
    result = cluster.run()
    assert sorted(by_zone(result, pods)) == [0, 0, 24]
    assert result.conflicts > 0


def test_pods_are_spread_evenly_though_workers_decide_at_once():
    cluster = slow(in_zones(9))
    pods = cluster.submit(pod(spread=(SpreadConstraint(1, ZONE, WEB),)), 30, lasts=60.0)
    result = cluster.run(until=30.0)
    assert by_zone(result, pods) == [10, 10, 10]
    assert cluster.run().used["cpu"] == 0


def test_what_pods_of_a_zone_allow_changes_when_others_leave():
    """One zone has no room at first, so no zone may have more than one pod more than it."""
    cluster = Cluster(in_zones(3))
    filler = PodSpec(requests=(("cpu", 64_000),), node_selector=((ZONE, "z0"),))
    cluster.submit(filler, 1, lasts=60.0)
    pods = cluster.submit(pod(spread=(SpreadConstraint(1, ZONE, WEB),)), 9, at=1.0)
    assert by_zone_bound(cluster.run(until=30.0), pods) == [0, 1, 1]
    assert by_zone_bound(cluster.run(), pods) == [3, 3, 3]


def by_zone_bound(result: StudyResult, pods: Sequence[int]) -> list[int]:
    return by_zone(result, [number for number in pods if result.nodes[number] >= 0])


def test_who_was_kept_away_comes_when_others_leave_though_their_node_has_no_room():
    room, little = (("cpu", 1000), ("pods", 9)), (("cpu", 50), ("pods", 9))
    zone = (ZONE, "z0")
    cluster = Cluster(
        [NodeSpec("small", (zone,), allocatable=little), NodeSpec("n1", (zone,), allocatable=room)]
    )
    on_small = PodSpec(
        requests=(("cpu", 50),),
        node_name="small",
        pod_affinity=PodAffinity(anti_required=(NEAR_WEB,)),
    )
    cluster.submit(on_small, 1, lasts=60.0)
    cluster.submit(pod(), 2, at=1.0)
    assert cluster.run(until=30.0).waiting == 2
    assert cluster.run().bound_at.tolist() == [0.0, 60.0, 60.0]


def test_who_was_kept_away_by_a_placement_that_was_refused_is_tried_again():
    """One worker has both pods in hand; meanwhile the other one places the pod that refuses the first."""
    cluster = Cluster(in_zones(1), workers=2, decision_seconds=0.1, decision_seconds_per_pod=0.1, batch=2)
    for busy in ("one", "other"):
        cluster.submit(pod(busy))
    refused = cluster.submit(pod(host_ports=(HostPort(80), HostPort(81))), at=0.1)
    kept_away = cluster.submit(pod(host_ports=(HostPort(80),)), at=0.1)
    cluster.submit(pod(host_ports=(HostPort(81),)), at=0.1)
    result = cluster.run()
    assert result.conflicts == 1
    assert (result.nodes[refused[0]], result.nodes[kept_away[0]]) == (-1, 0)


def test_pods_go_to_nodes_that_their_affinity_selects():
    cluster = Cluster(in_zones(9))
    here = NodeSelector((NodeSelectorTerm((Requirement(ZONE, "In", ("z1", "z2")),)),))
    pods = cluster.submit(pod(required_node_affinity=here), 12)
    assert by_zone(cluster.run(), pods)[0] == 0


def test_the_workloads_of_a_manifest_are_submitted_with_their_rules(tmp_path):
    manifest = tmp_path / "web.yaml"
    manifest.write_text("""\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 4
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: web, ports: [{containerPort: 80, hostPort: 80}]}]
""")
    cluster = Cluster(in_zones(3))
    cluster.submit_workloads(read_workloads(manifest))
    result = cluster.run()
    assert (sorted(result.nodes.tolist()), result.waiting) == ([-1, 0, 1, 2], 1)
    with pytest.raises(InvalidInput, match=f"{tmp_path}/none.yaml: cannot be read: No such file"):
        read_workloads(tmp_path / "none.yaml")


def test_a_recording_is_played_in_its_own_time():
    pods = [
        TracePod(Workload("a", SMALL), 10.0, 40.0),
        TracePod(Workload("b", SMALL), 20.0, None),
    ]
    cluster = Cluster(nodes(1, cpu_milli=1000))
    numbers = cluster.play(Recording((), pods))
    result = cluster.run()
    assert list(numbers) == [0, 1]
    assert result.bound_at.tolist() == [10.0, 20.0]
    assert result.nodes.tolist() == [-1, 0]
    assert result.now == 40.0


def with_cards(count: int, *, cards: int) -> list[NodeSpec]:
    room = (("cpu", 64_000), ("memory", 2**38), ("pods", 100))
    return [NodeSpec(f"n{number}", allocatable=room, cards=cards) for number in range(count)]


def wanting(count: int, milli: int):
    return pod_template({"cpu": 4000, "memory": 2**30}, devices=DeviceRequest(count, milli))


def test_cards_are_shared_by_thousandths_and_come_back_when_pods_leave():
    cluster = Cluster(with_cards(2, cards=2))
    halves = cluster.submit(wanting(1, 500), 5, lasts=60.0)
    pair = cluster.submit(wanting(2, 1000), 2, at=10.0, lasts=60.0)
    # Five halves take three cards at least, so that no node has both of its cards whole.
    full = cluster.run(until=30.0)
    assert (full.bound, full.waiting, full.used["cards"]) == (5, 2, 2.5 / 4)
    after = cluster.run(until=65.0)
    assert (after.bound, after.waiting, after.used["cards"]) == (7, 0, 1.0)
    assert sorted(after.nodes[list(pair)]) == [0, 1]
    end = cluster.run()
    assert (end.used["cards"], end.used["cpu"], end.overcommitted) == (0.0, 0.0, 0)
    assert set(end.nodes[list(halves)]) == {-1}


def test_a_pod_that_wants_cards_waits_where_there_are_none():
    cluster = Cluster(nodes(1, cpu_milli=4000))
    cluster.submit(wanting(1, 500))
    result = cluster.run()
    assert (result.bound, result.waiting, "cards" in result.used) == (0, 1, False)


def test_workers_that_decide_at_once_conflict_on_cards_and_oversell_none():
    cluster = Cluster(with_cards(4, cards=4), workers=4, profile="fgd", decision_seconds=0.1, batch=8)
    cluster.submit(wanting(1, 300), 40)
    cluster.submit(wanting(2, 1000), 6)
    result = cluster.run()
    assert result.conflicts > 0
    assert result.overcommitted == 0
    assert result.bound + result.waiting == 46
    assert result.used["cards"] == pytest.approx(
        (300 * np.count_nonzero(result.nodes[:40] >= 0) + 2000 * np.count_nonzero(result.nodes[40:] >= 0))
        / 16_000
    )


def test_a_profile_decides_on_cards_as_on_a_platform():
    """Four shares of 400 thousandths leave three nodes whole where they are packed, and none where they are
    spread."""
    pairs = []
    for profile in ("best-fit", "spread"):
        cluster = Cluster(with_cards(4, cards=2), profile=profile)
        cluster.submit(wanting(1, 400), 4)
        cluster.submit(wanting(2, 1000), 4, at=1.0)
        pairs.append(cluster.run().bound - 4)
    assert pairs == [3, 0]


def test_plugins_of_a_profile_are_chosen_by_name():
    spec = ProfileSpec((Weighted("NodeResourcesFit", 1),))
    cluster = Cluster(nodes(4, cpu_milli=4000), profile=spec)
    cluster.submit(SMALL, 4)
    assert sorted(cluster.run().nodes.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        (lambda: Cluster(0), "nodes: is 0; it is 1 or more"),
        (lambda: Cluster(1, workers=0), "workers: is 0"),
        (lambda: Cluster(1, profile="fast"), "profile: 'fast' is none of spread, binpack"),
        (lambda: Cluster(1, decision_seconds=-1.0), "decision_seconds: is -1.0"),
        (lambda: Cluster(1).submit(SMALL, 0), "count: is 0"),
        (lambda: Cluster(1).submit(SMALL, at=-1.0), "at: is -1.0; it is 0.0 now"),
        (lambda: Cluster(1).submit(SMALL, lasts=0.0), "lasts: is 0.0"),
        (lambda: Cluster(1).submit(SMALL, lasts=float("nan")), "lasts: is nan"),
        (lambda: Cluster(1).run(until=-1.0), "until: is -1.0; it is 0.0 now"),
        (
            lambda: pod_template({"cpu": "500m"}),
            "cpu: is '500m'; it is a whole number of millicores, 0 or more",
        ),
        (lambda: pod_template({"memory": -1}), "memory: is -1; it is a whole number of bytes, 0 or more"),
        (
            lambda: Cluster(1).submit(PodSpec(scheduling_gates=("quota",))),
            "pod: asks for scheduling gates, which nobody would lift: submit it `at` the time they are gone",
        ),
        (
            lambda: Cluster(1).submit(PodSpec(volumes=PodVolumes())),
            "pod: asks for volumes, which a study does not simulate: compare on a platform instead",
        ),
        (
            lambda: Cluster(1).submit(PodSpec(claims=PodClaims("train", ""))),
            "pod: asks for devices by claims, which a study does not simulate: give nodes `cards`",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_the_argument(act, problem):
    with pytest.raises(InvalidInput) as refused:
        act()
    assert problem in str(refused.value)


def test_amounts_may_be_numpy_s_integers_and_truth_is_none():
    assert pod_template({"cpu": np.int64(250)}).spec.requests == (("cpu", 250),)
    with pytest.raises(InvalidInput, match="cpu: is True"):
        pod_template({"cpu": True})


def printed_by_document(block: int) -> list[str]:
    code = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), flags=re.DOTALL)[block]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/simulation.md", "exec"), {})
    return out.getvalue().splitlines()


def test_the_study_of_the_document_runs_as_it_stands_there():
    lines = printed_by_document(0)
    assert [line.split(":")[0] for line in lines[::2]] == ["spread", "binpack"]
    assert all(line.endswith("nodes oversold: 0") for line in lines[1::2])


def test_the_trace_of_the_document_is_played_as_it_stands_there_and_fgd_fills_more_cards(monkeypatch):
    monkeypatch.chdir(DOCUMENT.parents[1])
    lines = [re.findall(r"[a-z]+:|\d+", line) for line in printed_by_document(1)]
    used = {line[0]: int(line[3]) for line in lines}
    assert [int(line[1]) + int(line[2]) for line in lines] == [503, 503]
    assert used["random:"] < used["fgd:"]


def test_the_notebook_shows_what_slow_decisions_cost_and_which_profile_fills_cards(monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    cells = json.loads((DOCUMENT.parent / "notebooks" / "study.ipynb").read_text("utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    names: dict[str, object] = {}
    try:
        for cell in cells:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), "study.ipynb", "exec"), names)
        refused, _ = plt.figure(plt.get_fignums()[0]).axes
        alone, four = (line.get_ydata() for line in refused.lines)
        assert not any(alone)
        assert names["oversold"] == 0
        assert max(four) > 0.02
        assert names["used"]["fgd"] > names["used"]["random"]
    finally:
        plt.close("all")


def test_the_algorithm_of_the_tutorial_runs_as_it_stands_there_and_binds_more_than_chance():
    tutorial = DOCUMENT.parent / "tutorials" / "algorithm.md"
    block, _ = re.findall(r"```python\n(.*?)```", tutorial.read_text("utf-8"), flags=re.DOTALL)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block, "docs/tutorials/algorithm.md", "exec"), {"__name__": "__main__"})
    bound = {line.split(":")[0]: int(line.split()[1]) for line in out.getvalue().splitlines()}
    assert list(bound) == ["random", "best-fit", "BalancedShape"]
    assert bound["BalancedShape"] > bound["random"]


def test_the_plugin_of_the_tutorial_runs_as_it_stands_there_and_keeps_what_it_says():
    tutorial = DOCUMENT.parent / "tutorials" / "plugin.md"
    (block,) = re.findall(r"```python\n(.*?)```", tutorial.read_text("utf-8"), flags=re.DOTALL)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block, "docs/tutorials/plugin.md", "exec"), {"__name__": "__main__"})
    # Ten nodes of sixteen pods' memory each: 16, 14 and 8 fit.
    assert out.getvalue() == "0 %: 160 bound, 40 wait\n10 %: 140 bound, 60 wait\n50 %: 80 bound, 120 wait\n"


class FillFirst:
    """Every pod to the first node with room."""

    def place(self, batch, snapshot, budget):
        chosen = np.full(batch.pods, NO_NODE)
        for run in batch.runs:
            places = places_by_node(run, snapshot.free)
            nodes = np.repeat(np.arange(len(places)), places)[: run.count]
            chosen[run.first : run.first + len(nodes)] = nodes
        return chosen


class LeavesOut:
    """No pod anywhere."""

    def place(self, batch, snapshot, budget):
        return np.full(batch.pods, NO_NODE)


class Overfills:
    """All pods to node 0."""

    def place(self, batch, snapshot, budget):
        return np.zeros(batch.pods, np.intp)


def test_an_algorithm_of_ones_own_decides_where_pods_go():
    cluster = Cluster(nodes(4, cpu_milli=1000), algorithm=FillFirst)
    cluster.submit(SMALL, 6, lasts=60.0)
    cluster.submit(SMALL, 20, at=10.0)
    assert np.bincount(cluster.run(until=5.0).nodes[:6], minlength=4).tolist() == [4, 2, 0, 0]
    after = cluster.run()
    assert (after.bound, after.waiting, after.overcommitted) == (22, 4, 0)


def test_an_algorithm_is_chosen_by_name():
    cluster = Cluster(nodes(4, cpu_milli=1000), algorithm="best-fit")
    cluster.submit(SMALL, 8)
    assert sorted(np.bincount(cluster.run().nodes, minlength=4).tolist()) == [0, 0, 4, 4]


def test_pods_that_an_algorithm_leaves_out_wait_and_the_study_ends():
    cluster = Cluster(nodes(4, cpu_milli=1000), algorithm=LeavesOut)
    cluster.submit(SMALL, 3)
    result = cluster.run()
    assert (result.bound, result.waiting) == (0, 3)


def test_a_wrong_algorithm_ends_the_study_with_what_it_did():
    cluster = Cluster(nodes(4, cpu_milli=1000), algorithm=Overfills)
    cluster.submit(SMALL, 8)
    with pytest.raises(PluginFailed, match="algorithm Overfills failed: ValueError: overfilled node n0"):
        cluster.run()


def test_the_assignment_solver_of_the_examples_places_all_pods_that_fit():
    pytest.importorskip("scipy")
    cluster = Cluster(20, algorithm="examples.assignment:Assignment", batch=200)
    cluster.submit(pod_template({"cpu": 1000, "memory": 2**33}), 150)
    cluster.submit(pod_template({"cpu": 4000, "memory": 2**30}), 60)
    result = cluster.run()
    assert (result.bound, result.overcommitted) == (210, 0)
