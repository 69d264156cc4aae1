"""hoss.sim: a gang is placed whole, or nothing of it is."""

import numpy as np
import pytest

from hoss.errors import InvalidInput
from hoss.model.pod import (
    GangSpec,
    HostPort,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    PodTemplate,
    Workload,
)
from hoss.model.selectors import LabelSelector, Requirement
from hoss.sim import Cluster, DeviceRequest, NodeSpec, pod_template, read_workloads

QUARTER = pod_template({"cpu": 250, "memory": 2**29})
WHOLE = pod_template({"cpu": 1000, "memory": 2**29})
ZONE = "topology.kubernetes.io/zone"


def nodes(count: int, *, cpu_milli: int = 1000, pods: int = 100, cards: int = 0) -> list[NodeSpec]:
    room = (("cpu", cpu_milli), ("memory", 2**36), ("pods", pods))
    return [
        NodeSpec(f"n{number}", ((ZONE, f"z{number}"),), allocatable=room, cards=cards)
        for number in range(count)
    ]


def bound(result, pods) -> int:
    return int(np.count_nonzero(result.nodes[list(pods)] >= 0))


def test_a_gang_that_does_not_fit_holds_nothing_and_comes_whole_when_others_leave():
    cluster = Cluster(nodes(2))
    others = cluster.submit(QUARTER, 2, lasts=60.0)
    gang = cluster.submit(QUARTER, 8, at=1.0, minimum=8)
    after = cluster.submit(QUARTER, 6, at=2.0, lasts=10.0)
    waits = cluster.run(until=30.0)
    assert (bound(waits, gang), bound(waits, others)) == (0, 2)
    assert waits.bound_at[list(after)].tolist() == [2.0] * 6  # what it left free, others had
    assert cluster.run().bound_at[list(gang)].tolist() == [60.0] * 8


def test_of_two_gangs_with_room_for_one_exactly_one_is_placed():
    cluster = Cluster(nodes(3))
    gangs = [cluster.submit(QUARTER, 8, minimum=8) for _ in range(2)]
    result = cluster.run()
    assert sorted(bound(result, gang) for gang in gangs) == [0, 8]


def test_pods_beyond_the_minimum_come_as_they_fit_and_later_as_any_pod():
    cluster = Cluster(nodes(2))
    filler = cluster.submit(QUARTER, 3, lasts=60.0)
    gang = cluster.submit(QUARTER, 8, at=1.0, minimum=4)
    begun = cluster.run(until=30.0)
    assert (bound(begun, gang), bound(begun, filler)) == (5, 3)
    assert sorted(cluster.run().bound_at[list(gang)].tolist()) == [1.0] * 5 + [60.0] * 3


def test_a_gang_larger_than_a_workers_batch_is_placed_at_once():
    cluster = Cluster(nodes(30), batch=10)
    gang = cluster.submit(QUARTER, 100, minimum=100)
    assert cluster.run().bound_at[list(gang)].tolist() == [0.0] * 100


def test_a_gang_has_more_pods_than_the_ledger_decides_at_once():
    cluster = Cluster(nodes(400), decision_seconds=1.0)
    gang = cluster.submit(QUARTER, 1200, minimum=1000)
    result = cluster.run()
    assert np.unique(result.bound_at[list(gang)], return_counts=True)[1].tolist() == [1000, 200]


def test_workers_that_decide_at_once_are_refused_whole_gangs_and_no_part_stays():
    """Four workers choose the same nodes for gangs of which two fit."""
    cluster = Cluster(nodes(8), workers=4, profile="binpack", decision_seconds=0.1)
    gangs = [cluster.submit(QUARTER, 12, minimum=12) for _ in range(4)]
    result = cluster.run()
    assert sorted(bound(result, gang) for gang in gangs) == [0, 0, 12, 12]
    assert result.conflicts > 0
    assert result.used["cpu"] == 24 / 32
    assert all(len(set(result.bound_at[list(gang)])) == 1 for gang in gangs if bound(result, gang))


@pytest.mark.parametrize("seed", range(5))
def test_at_no_moment_is_less_than_its_minimum_of_a_gang_bound(seed):
    rng = np.random.default_rng(seed)
    cluster = Cluster(nodes(12), workers=3, profile="binpack", decision_seconds=0.5, batch=6, seed=seed)
    gangs = []
    for second in range(20):
        count = int(rng.integers(2, 14))
        minimum = int(rng.integers(1, count + 1))
        gangs.append((cluster.submit(QUARTER, count, at=float(second), lasts=8.0, minimum=minimum), minimum))
        cluster.submit(QUARTER, int(rng.integers(1, 8)), at=float(second), lasts=5.0)
    result = cluster.run()
    assert (result.waiting, result.overcommitted) == (0, 0)
    for gang, minimum in gangs:
        first, together = np.unique(result.bound_at[list(gang)], return_counts=True)
        assert together[0] >= minimum, first
    assert result.conflicts > 0


def test_the_urgency_of_a_gang_is_that_of_its_most_urgent_pod():
    """The worker has the first pods in hand when the others come."""
    cluster = Cluster(nodes(3), decision_seconds=1.0, batch=2)
    cluster.submit(QUARTER, 2)
    rest = cluster.submit(QUARTER, 6, at=0.1)
    urgent = pod_template({"cpu": 250, "memory": 2**29}, priority=10)
    gang = cluster.submit(urgent, 4, at=0.2, minimum=4)
    result = cluster.run()
    assert max(result.bound_at[list(gang)]) < min(result.bound_at[list(rest)])


def web(node: str) -> Workload:
    """A pod for one node, which holds a port there and keeps apart from its like."""
    near = PodAffinityTerm(ZONE, LabelSelector((Requirement("app", "In", ("web",)),)), ("default",))
    spec = PodSpec(
        labels=(("app", "web"),),
        requests=(("cpu", 100),),
        node_selector=((ZONE, node),),
        host_ports=(HostPort(80),),
        pod_affinity=PodAffinity(anti_required=(near,)),
    )
    return Workload(node, PodTemplate(spec), 1, gang=GangSpec("default", "webs", 2))


def test_a_gang_that_was_refused_holds_no_port_and_leaves_no_trace_in_the_rules():
    """Another worker takes the port on the second node at the same moment. Then the first one is as it was: a
    pod goes there, although its worker has heard nothing of it since."""
    cluster = Cluster(nodes(3), workers=2, decision_seconds=0.1)
    cluster.submit(web("z1").template, lasts=60.0)
    gang = cluster.submit_workloads([web("z0"), web("z1")])
    late = cluster.submit(web("z0").template, at=0.1, lasts=50.0)
    first = cluster.run(until=30.0)
    assert (bound(first, gang), bound(first, late), first.conflicts) == (0, 1, 2)
    assert cluster.run().bound_at[list(gang)].tolist() == [60.2] * 2


def test_cards_of_a_gang_that_was_refused_are_free():
    share = pod_template({"cpu": 10}, devices=DeviceRequest(1, 600))
    cluster = Cluster(nodes(2, cards=2), workers=2, decision_seconds=0.1)
    gangs = [cluster.submit(share, 3, minimum=3, lasts=60.0) for _ in range(2)]
    first = cluster.run(until=30.0)
    assert sorted(bound(first, gang) for gang in gangs) == [0, 3]
    assert first.conflicts > 0
    assert first.used["cards"] == pytest.approx(3 * 0.6 / 4)
    end = cluster.run()
    assert (end.bound, end.used["cards"]) == (6, 0.0)


JOB = """\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec:
  minAvailable: 5
  tasks:
    - name: driver
      replicas: 1
      template: {spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}}
    - name: worker
      replicas: 4
      template: {spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 500m}}}]}}
"""


def test_the_tasks_of_a_manifests_job_are_one_gang(tmp_path):
    manifest = tmp_path / "job.yaml"
    manifest.write_text(JOB)
    workloads = read_workloads(manifest)
    small, large = Cluster(nodes(2)), Cluster(nodes(3))
    for cluster in (small, large):
        cluster.submit_workloads(workloads)
    assert small.run().bound == 0  # room for four of them
    assert large.run().bound == 5


def test_workloads_without_a_gang_are_submitted_as_they_are(tmp_path):
    manifest = tmp_path / "web.yaml"
    manifest.write_text("""\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: web, resources: {requests: {cpu: 600m}}}]}
""")
    cluster = Cluster(nodes(2))
    assert list(cluster.submit_workloads(read_workloads(manifest), at=5.0, lasts=10.0)) == [0, 1, 2]
    assert sorted(cluster.run().bound_at.tolist()) == [5.0, 5.0, 15.0]


@pytest.mark.parametrize(
    ("minimum", "problem"),
    [
        (0, "minimum: is 0; it is 1 or more, and there are 2000 pods"),
        (2001, "minimum: is 2001; it is 1 or more, and there are 2000 pods"),
        (1001, "minimum: is 1001; 1000 at most, which is as many as the ledger decides at once"),
    ],
)
def test_a_minimum_that_cannot_be_met_is_refused(minimum, problem):
    with pytest.raises(InvalidInput) as refused:
        Cluster(1).submit(WHOLE, 2000, minimum=minimum)
    assert str(refused.value) == problem
