"""A worker's storage objects: changes of them, and what the claims of placed pods got."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from property.profiles import examples

from hoss.model.cluster import StorageUpdate, storage_key_of
from hoss.model.pod import PodGroup
from hoss.model.volumes import (
    ClaimMount,
    ClaimReference,
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    PodVolumes,
    StorageClass,
    VolumeAttachment,
)
from scheduler_worker.core.cache.storage import StorageCatalogue

GI = 2**30
CLAIM = PersistentVolumeClaim("default", "data", "uid", "disks")
DISK = PersistentVolume("pv", storage_class="disks", phase="Available")

names = st.sampled_from("abc")
objects = st.one_of(
    st.builds(
        PersistentVolume,
        names,
        storage_class=names,
        capacity_bytes=st.integers(0, 3),
        phase=st.just("Available"),
        claim=st.none() | st.builds(ClaimReference, st.just("default"), names),
    ),
    st.builds(
        PersistentVolumeClaim, st.just("default"), names, volume_name=names, bind_completed=st.booleans()
    ),
    st.builds(StorageClass, names, names),
    st.builds(CsiNode, names, st.tuples(st.tuples(names, st.integers(0, 3)))),
    st.builds(CsiDriver, names, st.booleans()),
    st.builds(CsiStorageCapacity, st.just("default"), names, st.just("a"), largest_bytes=st.integers(0, 3)),
    st.builds(VolumeAttachment, names, names),
)


def group(volume="", *, provisioned=False):
    return PodGroup(volumes=PodVolumes((ClaimMount("data", None, volume, provisioned),)))


def smallest_first(volumes, claim):
    fitting = [volume for volume in volumes if claim.fits(volume)]
    return sorted(fitting, key=lambda volume: (volume.capacity_bytes, volume.name))


def seen(catalogue):
    claims = [PersistentVolumeClaim("default", name, storage_class="a") for name in "abc"]
    candidates = [catalogue.candidates(claim) for claim in claims]
    assert candidates == [smallest_first(catalogue.volumes.values(), claim) for claim in claims]
    return (
        catalogue.claims,
        catalogue.volumes,
        catalogue.classes,
        catalogue.csi_nodes,
        catalogue.drivers,
        candidates,
        {item.name: item for item in catalogue.capacities("a")},
        {item.name: item for item in catalogue.attachments},
    )


@examples(60)
@given(st.lists(st.tuples(objects, st.booleans()), max_size=12))
def test_changes_one_by_one_lead_to_what_is_there_in_the_end(changes):
    changed, whole, left = StorageCatalogue(), StorageCatalogue(), {}
    for item, goes in changes:
        key = storage_key_of(item)
        changed.apply(StorageUpdate(gone=(key,)) if goes else StorageUpdate((item,)))
        left.pop(key, None)
        left |= {} if goes else {key: item}
    whole.replace(left.values())
    assert seen(changed) == seen(whole)


def test_the_volumes_of_other_claims_are_not_looked_at(monkeypatch):
    """A cluster has as many of them as it has claims."""
    others = [
        replace(DISK, name=f"pv-{i}", claim=ClaimReference("default", f"other-{i}"), phase="Bound")
        for i in range(100)
    ]
    mine = replace(DISK, name="pv-mine", claim=ClaimReference("default", "data"))
    catalogue = StorageCatalogue()
    catalogue.replace([CLAIM, DISK, mine, *others])
    looked_at, fits = [], PersistentVolumeClaim.fits

    def looking(claim, volume):
        looked_at.append(volume.name)
        return fits(claim, volume)

    monkeypatch.setattr(PersistentVolumeClaim, "fits", looking)
    assert catalogue.candidates(CLAIM) == [DISK, mine]
    assert sorted(looked_at) == ["pv", "pv-mine"]


def test_a_volume_is_reserved_while_a_placed_pod_has_chosen_it():
    catalogue = StorageCatalogue()
    catalogue.replace([CLAIM, DISK])
    version = catalogue.version
    catalogue.placed(group("pv"), 3, 1)
    assert catalogue.volumes["pv"].claim == ClaimReference("default", "data")
    assert catalogue.candidates(CLAIM) == [catalogue.volumes["pv"]]
    assert catalogue.candidates(PersistentVolumeClaim("default", "other", storage_class="disks")) == []
    assert catalogue.version > version
    catalogue.placed(group("pv"), 3, -1)
    assert catalogue.volumes["pv"] == DISK


def test_a_volume_that_two_claims_chose_is_reserved_until_neither_has_it():
    catalogue = StorageCatalogue()
    catalogue.replace([CLAIM, DISK])
    loser = PodGroup(volumes=PodVolumes((ClaimMount("late", None, "pv"),)))
    catalogue.placed(loser, 1, 1)
    catalogue.placed(group("pv"), 3, 1)
    catalogue.placed(loser, 1, -1)
    assert catalogue.volumes["pv"].claim == ClaimReference("default", "data")


def test_a_claim_that_is_provisioned_has_the_node_of_its_first_pod_whatever_the_api_server_says_yet():
    catalogue = StorageCatalogue(lambda node: f"n{node}")
    catalogue.placed(group(provisioned=True), 3, 1)  # before its objects are known
    catalogue.replace([CLAIM, DISK])
    assert catalogue.claims["default", "data"].selected_node == "n3"
    catalogue.placed(group(provisioned=True), 3, -1)
    assert catalogue.claims["default", "data"] == CLAIM
    assert catalogue.table_sizes()["volume_choices"] == 0


def test_a_bound_claim_is_what_the_api_server_says():
    catalogue = StorageCatalogue()
    catalogue.placed(group("pv"), 3, 1)
    bound = PersistentVolumeClaim("default", "data", "uid", "disks", volume_name="other", bind_completed=True)
    catalogue.replace([bound, DISK])
    assert catalogue.claims["default", "data"] == bound
    assert catalogue.volumes["pv"] == DISK
