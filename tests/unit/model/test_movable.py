"""The annotation that says whether a plan of moves may move a pod."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.errors import InvalidInput
from hoss.manifests.pod import MOVABLE_ANNOTATION
from hoss.manifests.workloads import read_workload
from hoss.model.cluster import BoundPod, Cluster
from hoss.model.devices import Allocation, HeldClaim
from hoss.model.node import NodeSpec
from hoss.model.pod import Movable, PodSpec, PodTemplate, group_of
from hoss.model.volumes import ClaimMount, PersistentVolumeClaim, PodVolumes
from hossctl.rebalance.gathering import Fixed, Held, KnownPod, placed_pods, why_fixed
from scheduler_worker.core.offline.cluster_snapshot import ClusterSnapshot


def job(word):
    pod = {
        "metadata": {"annotations": {MOVABLE_ANNOTATION: word}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": pod}}


@pytest.mark.parametrize("word", ["true", "false", ""])
def test_a_pod_template_says_so_by_annotation(word):
    assert read_workload(job(word), lambda: "x").workload.template.movable is Movable(word)


@pytest.mark.parametrize(
    ("word", "problem"), [("yes", "is 'yes'; allowed"), (True, "is true, where a string belongs")]
)
def test_another_word_is_refused_with_its_place(word, problem):
    with pytest.raises(InvalidInput, match=problem) as refused:
        read_workload(job(word), lambda: "x")
    assert str(refused.value).startswith("spec.template.metadata.annotations")


@pytest.mark.parametrize(
    ("owner", "gang", "movable", "expected"),
    [
        ("Deployment", False, "", Fixed.NOT),
        ("Deployment", False, "false", Fixed.SAID_SO),
        ("Deployment", True, "", Fixed.GANG),
        ("Deployment", True, "true", Fixed.NOT),
        ("", False, "", Fixed.BARE),
        ("", False, "true", Fixed.NOT),
        ("DaemonSet", False, "true", Fixed.DAEMON),
    ],
)
def test_pods_without_a_controller_gangs_and_daemons_stay(owner, gang, movable, expected):
    template = PodTemplate(PodSpec(), owner_kind=owner, movable=Movable(movable))
    assert why_fixed(KnownPod(b"", "default/p", "default/j", template, gang)) is expected


def placed(snapshot, known):
    """What a plan makes of these pods, all on the first node; and why each stays."""
    row = np.zeros(len(snapshot.cache.schema), np.int64)
    row[snapshot.cache.schema.names.index("cpu")] = 100
    row[snapshot.cache.schema.names.index("pods")] = 1
    uids = [pod.uid for pod in known]
    held = Held(dict.fromkeys(uids, 0), dict.fromkeys(uids, 0), dict.fromkeys(uids, row))
    pods = placed_pods(snapshot, known, held, ())
    reasons = [pods.reasons[number] for number in pods.fixed.tolist()]
    return pods, dict(zip(pods.names, reasons, strict=True))


def test_a_pod_that_the_dispatcher_would_not_move_stays_with_the_dispatcher_s_reason():
    """Two reasons, each once: what the rules of plans say goes before."""
    web = PodSpec(requests=(("cpu", 100),))
    amounts = (("cpu", 1000), ("memory", 1000), ("pods", 10))
    nodes = [NodeSpec("n0", allocatable=amounts)]
    names = ("free", "foreign", "gang", "other-gang", "bare")
    bound = [BoundPod(name, "n0", web, web.requests, 0, 0, started_at=0.0) for name in names]
    snapshot = ClusterSnapshot(Cluster(nodes, bound))
    owned, bare = PodTemplate(web, owner_kind="ReplicaSet"), PodTemplate(web)
    unmovable = {"foreign": "another scheduler's", "gang": "one of a gang", "other-gang": "one of a gang"}
    known = [
        KnownPod(
            name.encode(), name, name, bare if name == "bare" else owned, gang=False,
            unmovable=unmovable.get(name, "not said" if name == "bare" else ""),
        )
        for name in names
    ]  # fmt: skip
    pods, said = placed(snapshot, known)
    assert said == {"free": "", "bare": "no controller would make it anew", **unmovable}
    assert len(set(pods.reasons)) == len(pods.reasons)


AMOUNTS = (("cpu", 1000), ("memory", 1000), ("pods", 10))


def mounting(claim, **mount):
    return PodSpec(requests=(("cpu", 100),), volumes=PodVolumes((ClaimMount(claim, **mount),)))


def cluster_of(pods, **objects):
    """Pods (name, spec, and what the cluster counts them as) on one node; all of them have controllers."""
    bound = [
        BoundPod(name, "n0", counted, counted.requests, 0, 0, started_at=0.0) for name, _, counted in pods
    ]
    snapshot = ClusterSnapshot(Cluster([NodeSpec("n0", allocatable=AMOUNTS)], bound, **objects))
    known = [
        KnownPod(name.encode(), name, name, PodTemplate(of, owner_kind="StatefulSet"), gang=False)
        for name, of, _ in pods
    ]
    return snapshot, known


@pytest.mark.parametrize(
    ("modes", "users", "stays"),
    [
        (("ReadWriteOnce",), 1, False),
        (("ReadWriteOnce",), 2, True),
        (("ReadWriteMany", "ReadWriteOnce"), 2, False),
        (("ReadOnlyMany",), 2, False),
    ],
)
def test_pods_that_share_a_volume_of_one_node_stay_together(modes, users, stays):
    """Moved alone, one of them could not attach it."""
    claim = PersistentVolumeClaim(
        "default", "data", volume_name="pv", bind_completed=True, access_modes=modes
    )
    of = mounting("data")
    _, said = placed(*cluster_of([(str(number), of, of) for number in range(users)], storage=(claim,)))
    why = "another pod uses its volume, which one node at a time can attach" if stays else ""
    assert said == {str(number): why for number in range(users)}


def test_a_pod_is_counted_with_the_volume_that_it_got_where_it_is():
    """Of two pods of one shape one chose the volume, and the other one found it chosen."""
    of, chose = mounting("data"), mounting("data", volume="pv")
    snapshot, known = cluster_of([("first", of, chose), ("second", of, of)])
    pods, _ = placed(snapshot, known)
    assert {pods.groups[number] for number in pods.classes.tolist()} == {group_of(of), group_of(chose)}
    assert list(pods.specs) == [of, of]


def test_a_pod_stays_that_holds_devices_for_its_extended_resources():
    """Its spec claims none."""
    of = PodSpec(requests=(("cpu", 100),))
    snapshot, known = cluster_of([("gpu", of, of)])
    held = replace(group_of(of), held_claims=(HeldClaim("default", "made-up", Allocation(())),))
    snapshot.cache.pod_index.remove(group_of(of), np.array((0,)))
    snapshot.cache.pod_index.add(held, np.array((0,)))
    _, said = placed(snapshot, known)
    assert said == {"gpu": "it holds devices of resource claims, which are its node's"}
