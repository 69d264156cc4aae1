"""The annotation that says whether a plan of moves may move a pod."""

import numpy as np
import pytest

from hoss.errors import InvalidInput
from hoss.manifests.pod import MOVABLE_ANNOTATION
from hoss.manifests.workloads import read_workload
from hoss.model.cluster import BoundPod, Cluster
from hoss.model.devices import PodClaims
from hoss.model.node import NodeSpec
from hoss.model.pod import Movable, PodSpec, PodTemplate
from hoss.model.volumes import ClaimMount, PodVolumes
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


@pytest.mark.parametrize(
    "spec",
    [
        PodSpec(volumes=PodVolumes((ClaimMount("data"),))),
        PodSpec(claims=PodClaims("p", "u", (), ())),
    ],
)
def test_pods_with_volumes_or_claimed_devices_stay_whatever_they_say(spec):
    template = PodTemplate(spec, owner_kind="StatefulSet", movable=Movable.YES)
    assert why_fixed(KnownPod(b"", "default/p", "default/j", template, gang=False)) is Fixed.TIED


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
    row = np.zeros(len(snapshot.cache.schema), np.int64)
    row[snapshot.cache.schema.names.index("cpu")] = 100
    row[snapshot.cache.schema.names.index("pods")] = 1
    uids = [name.encode() for name in names]
    held = Held(dict.fromkeys(uids, 0), dict.fromkeys(uids, 0), dict.fromkeys(uids, row))
    pods = placed_pods(snapshot, known, held, ())
    said = {name: pods.reasons[number] for name, number in zip(pods.names, pods.fixed.tolist(), strict=True)}
    assert said == {"free": "", "bare": "no controller would make it anew", **unmovable}
    assert len(set(pods.reasons)) == len(pods.reasons)
