"""Volumes of all nodes at once are those that node after node and volume after volume give."""

from hypothesis import given
from hypothesis import strategies as st

from hoss.model.cluster import BoundPod, Cluster
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement
from hoss.model.volumes import (
    ClaimMount,
    ClaimReference,
    CsiNode,
    CsiVolume,
    PersistentVolume,
    PersistentVolumeClaim,
    PodVolumes,
    StorageClass,
)
from hossctl.explain.offline import explain
from scheduler_worker.core.offline.cluster_snapshot import ClusterSnapshot

NODES = ("a", "b", "c", "d")
CLASSES = ("local", "other")
CLAIMS = ("x", "y", "z")
TIERS = ("fast", "slow")

affinities = st.none() | st.sets(st.sampled_from(NODES), min_size=1).map(
    lambda hosts: NodeSelector((NodeSelectorTerm((Requirement("host", "In", tuple(sorted(hosts))),)),))
)
modes = st.sampled_from([("ReadWriteOnce",), ("ReadOnlyMany", "ReadWriteOnce")])


@st.composite
def clusters(draw):
    volumes = [
        PersistentVolume(
            f"pv-{i:02}",
            labels=(("tier", draw(st.sampled_from(TIERS))),),
            storage_class=draw(st.sampled_from(CLASSES)),
            capacity_bytes=10 * draw(st.integers(1, 4)) + i % 10,  # no two alike
            access_modes=draw(modes),
            phase=draw(st.sampled_from(["Available", "Available", "Bound"])),
            deleting=draw(st.integers(0, 9)) == 0,
            claim=draw(
                st.none() | st.none() | st.sampled_from(CLAIMS).map(lambda c: ClaimReference("default", c))
            ),
            node_affinity=draw(affinities),
        )
        for i in range(draw(st.integers(0, 9)))
    ]
    # One volume at most is reserved for a claim: of several, kube-scheduler takes any.
    reserved = set()
    kept = []
    for volume in volumes:
        if volume.claim is None or volume.claim.name not in reserved:
            reserved |= {volume.claim.name} if volume.claim is not None else set()
            kept.append(volume)
    claims = [
        PersistentVolumeClaim(
            "default",
            name,
            storage_class=draw(st.sampled_from(CLASSES)),
            request_bytes=10 * draw(st.integers(1, 4)),
            access_modes=draw(modes),
            selector=draw(st.none() | st.just(LabelSelector((Requirement("tier", "In", ("fast",)),)))),
        )
        for name in CLAIMS
    ]
    provisioner = draw(st.sampled_from(["kubernetes.io/no-provisioner", "disk.example.com"]))
    classes = [StorageClass(name, provisioner, waits_for_consumer=True) for name in CLASSES]
    return [*kept, *claims, *classes], draw(st.permutations(CLAIMS).map(lambda c: tuple(c[:2])))


def naive(objects, names, host):
    """What each claim gets on the node; None: the node is refused."""
    volumes = {v.name: v for v in objects if isinstance(v, PersistentVolume)}
    claims = {c.name: c for c in objects if isinstance(c, PersistentVolumeClaim)}
    provisions = next(c for c in objects if isinstance(c, StorageClass)).provisions
    got = {}
    for claim in sorted((claims[name] for name in names), key=lambda c: c.request_bytes):
        volume = naive_volume(claim, volumes, set(got.values()), host)
        if volume is None and not provisions:
            return None
        got[claim.name] = volume
    return {
        name: {"provision": True} if volume is None else {"persistentVolume": volume}
        for name, volume in got.items()
    }


def naive_volume(claim, volumes, taken, host):
    smallest = None
    for volume in volumes.values():
        reserved = volume.claim is not None
        if volume.name in taken or volume.deleting or volume.storage_class != claim.storage_class:
            continue
        if volume.capacity_bytes < claim.request_bytes or (reserved and volume.claim.name != claim.name):
            continue
        reached = volume.node_affinity is None or volume.node_affinity.matches({"host": host}, "")
        if reserved:
            return volume.name if reached else None
        labelled = claim.selector is None or claim.selector.matches(dict(volume.labels))
        if volume.phase != "Available" or not labelled or not reached:
            continue
        if not set(claim.access_modes) <= set(volume.access_modes):
            continue
        if smallest is None or volume.capacity_bytes < volumes[smallest].capacity_bytes:
            smallest = volume.name
    return smallest


@given(clusters())
def test_claims_get_the_volumes_that_a_search_node_after_node_finds(drawn):
    objects, names = drawn
    nodes = [NodeSpec(host, labels=(("host", host),), allocatable=(("pods", 10),)) for host in NODES]
    spec = PodSpec(volumes=PodVolumes(tuple(map(ClaimMount, names))))
    answer = explain(spec, Cluster(nodes=nodes, storage=objects), preemption=False)
    wanted = {host: got for host in NODES if (got := naive(objects, names, host)) is not None}
    assert {host: found["volumes"] for host, found in answer.get("binding", {}).items()} == wanted


placements = st.lists(st.tuples(st.sampled_from(NODES), st.sets(st.sampled_from(CLAIMS), min_size=1)))


@given(placements, st.lists(st.integers(0, 30)), st.sets(st.sampled_from(CLAIMS), min_size=1))
def test_attachments_kept_up_to_date_are_those_counted_anew(placed, evicted, wanted):
    objects = [CsiNode(host, (("disk", limit),)) for limit, host in enumerate(NODES)]
    for name in CLAIMS:
        objects.append(PersistentVolumeClaim("default", name, volume_name=f"pv-{name}", bind_completed=True))
        objects.append(PersistentVolume(f"pv-{name}", csi=CsiVolume("disk", name)))
    nodes = [NodeSpec(host, allocatable=(("pods", 99),)) for host in NODES]
    volumes = [PodVolumes(tuple(ClaimMount(name) for name in sorted(names))) for _, names in placed]
    pods = [
        BoundPod(f"p{i}", host, PodSpec(volumes=volumes[i]), (), 0, 0) for i, (host, _) in enumerate(placed)
    ]
    snapshot = ClusterSnapshot(Cluster(nodes=nodes, pods=pods, storage=objects))
    own = {CsiVolume("disk", name) for name in wanted}
    cache, left = snapshot.cache, dict(enumerate(pods))
    for number in [None, *evicted]:
        if number in left:
            snapshot.evict(number)
            del left[number]
        cache.attached_volumes.refresh(cache.size)
        refused = cache.attached_volumes.over_limit(own, cache.size)
        for node, host in enumerate(NODES):
            there = {m.claim for pod in left.values() if pod.node == host for m in pod.spec.volumes.claims}
            new = wanted - there
            assert refused[node] == (bool(new) and len(there | wanted) > node)
