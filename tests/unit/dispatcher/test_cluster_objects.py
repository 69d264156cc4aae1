"""Namespaces, services and other cluster objects, and which workers get them."""

from dataclasses import replace

import pytest

from dispatcher.core import messages as m
from dispatcher.core.cluster.objects import Applied, ClusterObjects
from dispatcher.core.pods.table import Phase
from dispatcher.kubernetes.informers import device_manifest
from hoss.model.cluster import (
    Namespace,
    NominatedPod,
    ObjectKey,
    PodDisruptionBudget,
    PriorityClass,
    Service,
    StorageUpdate,
    Threshold,
    key_of,
    storage_key_of,
)
from hoss.model.devices import DeviceManifest, PodClaims
from hoss.model.pod import PodAffinity, PodAffinityTerm, PodSpec
from hoss.model.selectors import LabelSelector, Requirement
from hoss.model.volumes import ClaimMount, CsiDriver, PersistentVolume, PersistentVolumeClaim, PodVolumes

WEB = LabelSelector((Requirement("app", "In", ("web",)),))
BUDGET = PodDisruptionBudget("shop", "web", WEB, min_available=Threshold(50, percent=True))
TEAM_A = Namespace("shop", (("team", "a"),))


def test_applying_creates_then_leaves_as_it_is_then_configures():
    objects = ClusterObjects()
    assert objects.compare(BUDGET) is Applied.CREATED
    objects.apply([BUDGET])
    assert objects.compare(BUDGET) is Applied.UNCHANGED
    other = PodDisruptionBudget("shop", "web", WEB, max_unavailable=Threshold(1))
    assert objects.compare(other) is Applied.CONFIGURED
    objects.apply([other])
    assert objects.budgets == (other,)


def test_what_was_removed_is_gone_and_others_stay():
    objects = ClusterObjects()
    objects.apply([BUDGET, PriorityClass("high", 1000)])
    objects.remove([key_of(BUDGET), ObjectKey("Service", "shop", "never")])
    assert objects.budgets == ()
    assert objects.priority_classes == {"high": PriorityClass("high", 1000)}


def test_every_namespace_has_the_label_of_its_name():
    objects = ClusterObjects()
    objects.apply([TEAM_A])
    assert objects.namespaces == {
        "default": {"kubernetes.io/metadata.name": "default"},
        "shop": {"kubernetes.io/metadata.name": "shop", "team": "a"},
    }


def test_a_namespace_with_pods_stays_without_its_labels_when_it_is_removed():
    objects = ClusterObjects()
    objects.use(["shop"])
    objects.apply([TEAM_A])
    objects.remove([key_of(TEAM_A)])
    assert objects.namespaces["shop"] == {"kubernetes.io/metadata.name": "shop"}
    assert [key_of(item).name for item in objects] == ["default", "shop"]


@pytest.mark.parametrize(
    ("budget", "pods", "desired"),
    [
        ({"min_available": Threshold(3)}, 10, 3),
        ({"min_available": Threshold(50, percent=True)}, 7, 4),
        ({"max_unavailable": Threshold(3)}, 10, 7),
        ({"max_unavailable": Threshold(50, percent=True)}, 7, 3),
        ({"max_unavailable": Threshold(30)}, 10, 0),
        ({}, 10, 10),
    ],
)
def test_a_budget_says_how_many_pods_are_to_stay_and_rounds_percentages_up(budget, pods, desired):
    assert PodDisruptionBudget("n", "b", WEB, **budget).desired(pods) == desired


def test_workers_hear_of_namespaces_and_services_when_they_join_and_when_they_change(bench):
    link = bench.join("w")
    assert [n.name for n in bench.instructions(m.SendNamespaces)[-1].snapshot.namespaces] == ["default"]
    service = Service("shop", (("app", "web"),), "web")
    bench.handle(m.ObjectsApplied((TEAM_A, service)))
    told = bench.instructions(m.SendNamespaces)[-1]
    assert (told.link, set(told.snapshot.namespaces), told.snapshot.services) == (
        link,
        {Namespace("default"), TEAM_A},
        (service,),
    )


def test_workers_hear_of_storage_when_they_join_and_when_it_changes(bench):
    claim = PersistentVolumeClaim("shop", "data")
    driver = CsiDriver("disks")
    bench.handle(m.StorageChanged(StorageUpdate((claim,))))
    link = bench.join("w")
    assert bench.instructions(m.SendStorage) == [m.SendStorage(link, StorageUpdate((claim,), complete=True))]
    bench.emitted.clear()
    bench.handle(m.StorageChanged(StorageUpdate((claim, driver))))
    assert bench.instructions(m.SendStorage) == [m.SendStorage(link, StorageUpdate((driver,)))]
    bench.emitted.clear()
    bench.handle(m.StorageChanged(StorageUpdate((claim, driver))))
    assert bench.emitted == []


def test_what_placing_does_not_depend_on_is_sent_to_no_worker(bench):
    bench.join("w")
    bench.emitted.clear()
    bench.handle(m.ObjectsApplied((BUDGET, PriorityClass("high", 1))))
    bench.handle(m.ObjectsRemoved((key_of(BUDGET),)))
    assert bench.emitted == []


def test_a_worker_hears_of_the_namespace_of_new_pods_before_it_gets_them(bench):
    bench.join("w")
    bench.emitted.clear()
    bench.job("j", 3, spec=PodSpec(namespace="new"))
    (told,) = bench.emitted
    assert Namespace("new") in told.snapshot.namespaces
    bench.job("k", 3, spec=PodSpec(namespace="new"))
    assert bench.emitted == [told]


def apart_from_team_a() -> PodSpec:
    of_team_a = LabelSelector((Requirement("team", "In", ("a",)),))
    return PodSpec(pod_affinity=PodAffinity(anti_required=(PodAffinityTerm("zone", WEB, (), of_team_a),)))


@pytest.mark.parametrize(
    ("spec", "woken"),
    [(apart_from_team_a(), True), (PodSpec(namespace="shop"), True), (PodSpec(namespace="else"), False)],
)
def test_other_labels_of_a_namespace_wake_pods_that_select_by_them_or_are_in_it(bench, spec, woken):
    bench.join("w")
    rows = bench.job("j", 1, spec=spec)
    bench.answer("w", m.OutcomeCode.UNSCHEDULABLE, reason="no", refused_by=("InterPodAffinity",), seen=0)
    bench.pass_time(60)
    bench.handle(m.ObjectsApplied((TEAM_A,)))
    bench.pass_time(1)
    assert bench.all_are(rows, Phase.SCHEDULING if woken else Phase.UNSCHEDULABLE)


MOUNTING = PodSpec(namespace="shop", volumes=PodVolumes(claims=(ClaimMount("data"),)))
CLAIMING = PodSpec(namespace="shop", claims=PodClaims("p", "uid-1"))


def stored(item):
    return m.StorageChanged(StorageUpdate((item,)))


def test_a_nomination_wakes_pods_that_found_no_room_when_it_moves_or_ends_and_not_when_it_comes(bench):
    bench.join("w")
    waits = NominatedPod("shop", "p", "n1", 10, (("cpu", 100),))
    rows = bench.job("j", 1)

    def phase_after(change):
        bench.pass_time(60)
        bench.handle(change)
        bench.pass_time(1)
        return bench.machine.registry.pods.phase[rows[0]]

    def refuse():
        bench.answer("w", m.OutcomeCode.UNSCHEDULABLE, reason="no", refused_by=("NodeResourcesFit",), seen=0)

    refuse()
    assert phase_after(stored(waits)) == Phase.UNSCHEDULABLE
    assert phase_after(stored(replace(waits, node="n2"))) == Phase.SCHEDULING
    refuse()
    assert phase_after(m.StorageChanged(StorageUpdate(gone=(storage_key_of(waits),)))) == Phase.SCHEDULING


helpful = pytest.mark.parametrize(
    ("spec", "plugin", "change"),
    [
        (MOUNTING, "VolumeBinding", stored(PersistentVolumeClaim("shop", "data"))),
        (MOUNTING, "VolumeZone", stored(PersistentVolume("disk"))),
        (CLAIMING, "DynamicResources", stored(DeviceManifest("ResourceClaim", "shop", "mine", b"{}"))),
        (CLAIMING, "DynamicResources", stored(DeviceManifest("ResourceSlice", "", "n1", b"{}"))),
        (CLAIMING, "DynamicResources", stored(DeviceManifest("DeviceClass", "", "gpu", b"{}"))),
        (apart_from_team_a(), "InterPodAffinity", m.ObjectsApplied((TEAM_A,))),
    ],
    ids=["volume claim", "volume", "resource claim", "slice", "device class", "namespace"],
)


def refuse(bench, plugin):
    bench.answer("w", m.OutcomeCode.UNSCHEDULABLE, reason="no", refused_by=(plugin,), seen=0)


@helpful
def test_a_pod_refused_while_the_change_was_on_its_way_is_tried_again_soon(bench, spec, plugin, change):
    bench.join("w")
    rows = bench.job("j", 1, spec=spec)
    bench.handle(change)
    refuse(bench, plugin)
    assert bench.all_are(rows, Phase.BACKOFF)
    bench.pass_time(1.1)
    assert bench.all_are(rows, Phase.SCHEDULING)


@helpful
def test_a_pod_refused_before_the_change_is_woken_by_it_when_its_backoff_is_over(bench, spec, plugin, change):
    bench.join("w")
    rows = bench.job("j", 1, spec=spec)
    refuse(bench, plugin)
    bench.handle(change)
    bench.pass_time(0.2)
    assert bench.all_are(rows, Phase.BACKOFF)
    bench.pass_time(1.0)
    assert bench.all_are(rows, Phase.SCHEDULING)


@helpful
def test_a_pod_sent_after_the_change_is_refused_by_who_was_told_of_it_first(bench, spec, plugin, change):
    bench.join("w")
    bench.emitted.clear()
    bench.handle(change)
    assert [type(told) for told in bench.emitted] in ([m.SendStorage], [m.SendNamespaces])
    rows = bench.job("j", 1, spec=spec)
    bench.pass_time(0.2)
    refuse(bench, plugin)
    bench.pass_time(20.0)
    assert bench.all_are(rows, Phase.UNSCHEDULABLE)


def test_a_claim_in_which_nothing_changes_that_schedulers_read_wakes_nobody_and_is_sent_to_nobody(bench):
    """Finalizers and managed fields are written to each claim while its pod is bound."""
    bench.join("w")
    rows = bench.job("j", 1, spec=CLAIMING)
    claim = {"metadata": {"namespace": "shop", "name": "mine", "resourceVersion": "1"}, "spec": {}}
    protected = {**claim["metadata"], "resourceVersion": "2", "finalizers": ["a.io/keep"]}
    bench.handle(stored(device_manifest(claim, "ResourceClaim")))
    refuse(bench, "DynamicResources")
    bench.pass_time(1.1)
    refuse(bench, "DynamicResources")
    sent = len(bench.instructions(m.SendStorage))
    later = device_manifest({**claim, "metadata": protected}, "ResourceClaim")
    bench.handle(stored(later))
    bench.pass_time(10)
    assert bench.all_are(rows, Phase.UNSCHEDULABLE)
    assert len(bench.instructions(m.SendStorage)) == sent
    assert bench.machine.storage.get(storage_key_of(later)) is later, "who writes it needs its version"
    users = {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}
    bench.handle(stored(device_manifest({**claim, "status": users}, "ResourceClaim")))
    bench.pass_time(10)
    assert bench.all_are(rows, Phase.SCHEDULING)
    assert len(bench.instructions(m.SendStorage)) == sent + 1
