"""Volumes in a worker: what pods of the same worker have attached, what changes, and who would have to go."""

from dataclasses import replace

import pytest

from hoss.model.cluster import BoundPod, Cluster
from hoss.model.node import NodeSpec
from hoss.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from hoss.model.volumes import (
    READ_WRITE_ONCE_POD,
    ClaimMount,
    CsiNode,
    CsiVolume,
    InlineDisk,
    PersistentVolume,
    PersistentVolumeClaim,
    PodVolumes,
    StorageClass,
)
from hossctl.explain.offline import explain
from scheduler_worker.core.cache.storage import NodeSets
from scheduler_worker.core.nodes import ChangeLog, NodeCatalogue

COMMITTED = 1
UNSCHEDULABLE = 2
DRIVER = "disk.example.com"
GI = 2**30


def claim(name, volume="", **fields):
    bound = {"volume_name": volume, "bind_completed": True, "phase": "Bound"} if volume else {}
    return PersistentVolumeClaim("default", name, f"uid-{name}", request_bytes=GI, **{**bound, **fields})


def disk(name, **fields):
    return PersistentVolume(
        name, capacity_bytes=GI, phase="Bound", csi=CsiVolume(DRIVER, f"handle-{name}"), **fields
    )


def mounting(*claims):
    return PodVolumes(tuple(map(ClaimMount, claims)))


def on(*hosts):
    return NodeSelector((NodeSelectorTerm((Requirement("host", "In", hosts),)),))


def bound_to(*names):
    return [*(claim(name, f"pv-{name}") for name in names), *(disk(f"pv-{name}") for name in names)]


@pytest.fixture
def worker(harness_of, make_ledger):
    """A worker with two nodes, node-0 and node-1, and these storage objects."""

    def make(*objects):
        harness = harness_of(make_ledger(2))
        harness.cache.storage.replace(objects)
        return harness

    return make


def node_names(harness):
    return [harness.cache.catalogue.name(node) for node in range(harness.cache.size)]


def test_pods_of_one_batch_fill_the_attachments_of_a_node_and_no_more(worker, make_pod):
    names = ["a", "b", "c"]
    harness = worker(*bound_to(*names))
    limits = [CsiNode(name, ((DRIVER, 1),)) for name in node_names(harness)]
    harness.cache.storage.replace([*bound_to(*names), *limits])
    harness.submit(*((make_pod(volumes=mounting(name)), 1) for name in names))
    proposals = harness.place()
    assert sorted(int(node) for p in proposals for node in p.candidates[:, 0]) == [0, 1]
    harness.settle(proposals)
    codes = sorted((code, reason) for code, _, reason in harness.outcomes())
    assert [code for code, _ in codes] == [COMMITTED, COMMITTED, UNSCHEDULABLE]
    assert codes[2][1] == "0/2 nodes are available: 2 node(s) exceed max volume count."


def test_pods_that_share_a_volume_need_one_attachment_of_their_node(worker, make_pod):
    harness = worker(*bound_to("a"))
    [first, _] = node_names(harness)
    harness.cache.storage.replace(
        [
            claim("a", "pv-a"),
            disk("pv-a", node_affinity=None),
            *(CsiNode(name, ((DRIVER, 1 if name == first else 0),)) for name in node_names(harness)),
        ]
    )
    harness.submit((make_pod(volumes=mounting("a")), 3))
    proposals = harness.place()
    assert [int(node) for p in proposals for node in p.candidates[:, 0]] == [0, 0, 0]


def test_a_claim_for_one_pod_is_given_to_one_pod_of_a_batch(worker, make_pod):
    alone = claim("a", "pv-a", access_modes=(READ_WRITE_ONCE_POD,))
    harness = worker(alone, disk("pv-a"))
    harness.submit((make_pod(volumes=mounting("a")), 2))
    harness.settle(harness.place())
    codes = sorted((code, reason) for code, _, reason in harness.outcomes())
    assert [code for code, _ in codes] == [COMMITTED, UNSCHEDULABLE]
    assert codes[1][1] == (
        "0/2 nodes are available: 2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod "
        "access mode already in-use by another pod."
    )


def test_a_waiting_class_is_judged_anew_when_its_claim_gets_a_volume(worker, make_pod):
    harness = worker(claim("a"))
    spec = make_pod(volumes=mounting("a"))
    harness.submit((spec, 1))
    harness.place()
    [(_, _, reason)] = harness.outcomes()
    assert reason == "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    harness.cache.storage.replace(bound_to("a"))
    harness.submit((spec, 1))
    harness.settle(harness.place())
    assert [code for code, _, _ in harness.outcomes()] == [COMMITTED]


def test_a_volume_reaches_its_node_also_when_nodes_before_it_are_gone():
    """The numbers of values that no node has any more are free, and those of others stay."""
    catalogue = NodeCatalogue()
    catalogue.grow(3)
    for number, host in enumerate("abc"):
        catalogue.put(number, NodeSpec(host, labels=(("host", host),)))
    catalogue.remove(0)
    sets = NodeSets(catalogue, ChangeLog())
    assert [sets.reached(on(host), 3).tolist() for host in "abc"] == [[], [1], [2]]


NODES = [
    NodeSpec(name, labels=(("host", name),), allocatable=(("cpu", 4000), ("memory", 8 * GI), ("pods", 10)))
    for name in ("a", "b")
]


def bound_pod(name, node, spec):
    return BoundPod(name, node, spec, spec.requests, 100, GI // 4)


def test_the_user_of_a_claim_for_one_pod_is_the_victim_that_helps(make_pod):
    alone = claim("a", "pv-a", access_modes=(READ_WRITE_ONCE_POD,))
    spec = make_pod(volumes=mounting("a"))
    cluster = Cluster(
        nodes=NODES,
        pods=[bound_pod("user", "b", spec), bound_pod("other", "a", make_pod())],
        storage=[alone, disk("pv-a")],
    )
    answer = explain(replace(spec, priority=10), cluster, preemption=True)
    assert (answer["preemption"]["node"], answer["preemption"]["victims"]) == ("b", ["user"])


def test_a_disk_is_shared_by_readers_alone(make_pod):
    def with_disk(read_only):
        return make_pod(volumes=PodVolumes(disks=(InlineDisk("iscsi", ("iqn",), read_only),)))

    for present, wanted, feasible in ((True, True, ["a", "b"]), (True, False, ["b"]), (False, True, ["b"])):
        cluster = Cluster(nodes=NODES, pods=[bound_pod("user", "a", with_disk(present))])
        assert explain(with_disk(wanted), cluster, preemption=False)["feasible"] == feasible


WAITING = StorageClass("local", "kubernetes.io/no-provisioner", waits_for_consumer=True)


def local(name, size, host):
    return PersistentVolume(
        name,
        storage_class="local",
        capacity_bytes=size * GI,
        phase="Available",
        node_affinity=on(host),
    )


def test_a_claim_that_a_pod_names_twice_gets_the_smaller_of_the_two_volumes_that_it_needs(make_pod):
    """kube-scheduler sets the claimRef of both, and the controller chooses."""
    volumes = local("a1", 1, "a"), local("a2", 2, "a"), local("b1", 1, "b")
    cluster = Cluster(nodes=NODES, storage=[WAITING, claim("twice", storage_class="local"), *volumes])
    answer = explain(make_pod(volumes=mounting("twice", "twice")), cluster, preemption=False)
    assert answer["feasible"] == ["a"]
    assert answer["binding"]["a"]["volumes"] == {"twice": {"persistentVolume": "a1"}}


def test_two_claims_of_a_pod_take_two_volumes_and_the_smaller_claim_chooses_first(make_pod):
    cluster = Cluster(
        nodes=NODES,
        storage=[
            WAITING,
            claim("large", storage_class="local"),
            replace(claim("small", storage_class="local"), request_bytes=GI // 2),
            *(local(f"a{size}", size, "a") for size in (3, 1, 2)),
            local("b1", 1, "b"),
        ],
    )
    answer = explain(make_pod(volumes=mounting("large", "small")), cluster, preemption=False)
    assert answer["feasible"] == ["a"]
    assert answer["binding"]["a"]["volumes"] == {
        "small": {"persistentVolume": "a1"},
        "large": {"persistentVolume": "a2"},
    }
    assert answer["reasons"]["b"]["reasons"] == ["node(s) didn't find available persistent volumes to bind"]
