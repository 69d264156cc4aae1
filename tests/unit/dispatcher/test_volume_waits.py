"""Which placed pods wait for their volumes, what is done for them, and when a wait fails."""

import pytest

from dispatcher.core.cluster.storage import StorageObjects
from dispatcher.core.kubernetes.volume_waits import PlacedPod, VolumeStep, VolumeWaits
from hoss.model.cluster import StorageUpdate, storage_key_of
from hoss.model.pod import PodSpec
from hoss.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from hoss.model.volumes import ClaimMount, PersistentVolume, PersistentVolumeClaim, PodVolumes

UID = b"0123456789abcdef"
KEY = ("default", "data")
PREFIX = 'running PreBind plugin "VolumeBinding": binding volumes: '


def claim(**fields):
    return PersistentVolumeClaim("default", "data", "uid", "disks", **fields)


def bound(volume="pv"):
    return claim(volume_name=volume, bind_completed=True)


def disk(host):
    terms = (NodeSelectorTerm((Requirement("host", "In", (host,)),)),)
    return PersistentVolume("pv", node_affinity=NodeSelector(terms))


POD = PlacedPod(UID, PodSpec(volumes=PodVolumes((ClaimMount("data"),))), "n1", {"host": "n1"})


class Waits:
    def __init__(self, *objects):
        self.storage = StorageObjects()
        self.storage.apply(StorageUpdate(objects))
        self.waits = VolumeWaits(self.storage, timeout_seconds=600.0, repeat_seconds=5.0)

    def change(self, *objects):
        self.storage.apply(StorageUpdate(objects))
        return self.waits.changed([KEY])

    def judge(self, now=0.0):
        return self.waits.judge(POD, now)


def test_a_pod_without_claims_or_with_bound_ones_is_bound_at_once():
    waits = Waits(bound(), disk("n1"))
    assert waits.waits.judge(POD._replace(spec=PodSpec()), 0.0).step is VolumeStep.BOUND_ALREADY
    assert waits.judge().step is VolumeStep.BOUND_ALREADY
    assert len(waits.waits) == 0


def test_a_pod_waits_until_its_claim_is_bound_and_a_resolver_writes_once_or_again_after_a_while():
    waits = Waits(claim())
    assert waits.judge().step is VolumeStep.BIND
    waits.waits.written(UID, 1.0)
    assert waits.change(claim(selected_node="n1")) == [UID]
    assert waits.judge(2.0).step is VolumeStep.WAIT
    assert waits.judge(7.0).step is VolumeStep.CHECK
    waits.change(bound())
    assert waits.judge(8.0).step is VolumeStep.BOUND_ALREADY
    waits.waits.forget(UID)
    assert waits.change(claim()) == []


@pytest.mark.parametrize(
    ("seen", "versions"),
    [
        ({}, {"data": "7"}),
        ({"selected_node": "n1"}, {}),
        ({"volume_name": "pv"}, {}),
    ],
)
def test_a_resolver_is_told_the_version_of_a_claim_that_names_neither_node_nor_volume(seen, versions):
    waits = Waits(claim(version="7", **seen))
    assert waits.judge() == (VolumeStep.BIND, "", versions)


def test_a_version_alone_is_no_change_for_workers_but_the_one_that_a_resolver_is_told():
    waits = Waits(claim(version="7"))
    changed = waits.storage.apply(StorageUpdate((claim(version="8"),)))
    assert changed == StorageUpdate()
    assert waits.judge().versions == {"data": "8"}


def test_a_claim_whose_node_a_provisioner_removes_fails_and_stays_failed():
    waits = Waits(claim())
    waits.judge()
    waits.change(claim(selected_node="n1"))
    waits.change(claim())
    failed = (VolumeStep.UNDO, PREFIX + 'provisioning failed for PVC "data"')
    assert waits.judge(1.0)[:2] == failed
    waits.change(claim(selected_node="n1"))
    assert waits.judge(2.0)[:2] == failed


def test_after_the_time_limit_what_was_asked_for_is_taken_back():
    waits = Waits(claim())
    waits.judge(10.0)
    assert waits.judge(609.9).step is VolumeStep.BIND
    assert waits.judge(610.0)[:2] == (VolumeStep.UNDO, PREFIX + "context deadline exceeded")


def test_the_profile_that_placed_a_pod_may_have_another_time_limit():
    waits, pod = Waits(claim()), POD._replace(timeout_seconds=30.0)
    waits.waits.judge(pod, 10.0)
    assert waits.waits.judge(pod, 39.9).step is VolumeStep.BIND
    assert waits.waits.judge(pod, 40.0)[:2] == (VolumeStep.UNDO, PREFIX + "context deadline exceeded")


@pytest.mark.parametrize(
    ("objects", "why"),
    [
        ((), 'failed to check binding: persistentvolumeclaim "data" not found'),
        (
            (bound(), disk("n2")),
            'pv "pv" node affinity doesn\'t match node "n1": no matching NodeSelectorTerms',
        ),
    ],
)
def test_what_no_longer_fits_the_node_is_refused_in_kube_schedulers_words(objects, why):
    assert Waits(*objects).judge()[:2] == (VolumeStep.UNDO, PREFIX + why)


def test_storage_objects_tell_only_what_changed():
    storage = StorageObjects()
    assert storage.apply(StorageUpdate((claim(), disk("n1")))).objects == (claim(), disk("n1"))
    assert storage.apply(StorageUpdate((claim(), disk("n2")))).objects == (disk("n2"),)
    assert storage.apply(StorageUpdate(gone=(storage_key_of(claim()),) * 2)).gone == (
        storage_key_of(claim()),
    )
    assert storage.everything == StorageUpdate((disk("n2"),), complete=True)
