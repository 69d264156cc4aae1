"""What is written to the API server so that a pod's claims get the volumes that were chosen."""

import pytest

from resolver.core.kubernetes.volume_bindings import (
    SELECTED_NODE,
    VolumeRefused,
    is_bound,
    reserving_patch,
    selecting_patch,
    unselecting_patch,
)


def claim(*, node="", bound=False):
    annotations = {SELECTED_NODE: node} if node else {}
    annotations |= {"pv.kubernetes.io/bind-completed": "yes"} if bound else {}
    metadata = {"namespace": "default", "name": "data", "uid": "u1", "resourceVersion": "7"}
    spec = {"volumeName": "pv"} if bound else {}
    return {"metadata": metadata | {"annotations": annotations}, "spec": spec}


def volume(**reference):
    metadata = {"name": "pv", "uid": "u2", "resourceVersion": "9"}
    return {"metadata": metadata, "spec": {"claimRef": reference} if reference else {}}


def test_a_claim_is_bound_once_it_names_its_volume_and_says_so():
    assert is_bound(claim(bound=True))
    assert not is_bound(claim())
    assert not is_bound({"metadata": {}, "spec": {"volumeName": "pv"}})


def test_a_volume_is_reserved_as_it_was_read():
    patch = reserving_patch(volume(), claim())
    assert patch["metadata"] == {
        "uid": "u2",
        "resourceVersion": "9",
        "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"},
    }
    reference = patch["spec"]["claimRef"]
    assert (reference["namespace"], reference["name"], reference["uid"]) == ("default", "data", "u1")


def test_a_volume_that_its_owner_reserved_gets_the_uid_and_no_annotation():
    patch = reserving_patch(volume(namespace="default", name="data"), claim())
    assert "annotations" not in patch["metadata"]
    assert patch["spec"]["claimRef"]["uid"] == "u1"


def test_what_is_reserved_already_is_not_written_again():
    assert reserving_patch(volume(namespace="default", name="data", uid="u1"), claim()) is None


@pytest.mark.parametrize("uid", ["", "other"])
def test_a_volume_of_another_claim_is_refused(uid):
    name = "data" if uid else "other"
    with pytest.raises(VolumeRefused, match='running PreBind plugin "VolumeBinding": volume "pv" already'):
        reserving_patch(volume(namespace="default", name=name, uid=uid), claim())


def test_a_node_is_selected_once_and_taken_back_only_while_the_claim_is_not_bound():
    assert selecting_patch(claim(), "n1")["metadata"]["annotations"] == {SELECTED_NODE: "n1"}
    assert selecting_patch(claim(node="n1"), "n1") is None
    assert unselecting_patch(claim(node="n1"), "n1")["metadata"]["annotations"] == {SELECTED_NODE: None}
    assert unselecting_patch(claim(node="n2"), "n1") is None
    assert unselecting_patch(claim(node="n1", bound=True), "n1") is None


def test_what_was_written_and_is_gone_was_taken_back_by_somebody():
    with pytest.raises(VolumeRefused, match='provisioning failed for PVC "data"'):
        selecting_patch(claim(), "n1", written=True)
    with pytest.raises(VolumeRefused, match='ClaimRef got reset for pv "pv"'):
        reserving_patch(volume(), claim(), written=True)
    assert selecting_patch(claim(node="n1"), "n1", written=True) is None


def test_a_claim_that_names_another_node_is_refused():
    with pytest.raises(VolumeRefused, match='provisioning failed for PVC "data"'):
        selecting_patch(claim(node="n2"), "n1")
