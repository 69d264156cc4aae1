"""What is written to the API server so that a pod's resource claims get the devices that were chosen."""

import pytest

from hoss.model.devices import Allocation, DeviceId, DeviceResult, HeldClaim, RequestMapping
from hoss.model.quantity import read_quantity
from hoss.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from resolver.core.kubernetes.claim_allocations import (
    FINALIZER,
    ClaimUser,
    DevicesRefused,
    check_extended,
    classes_of,
    extended_claim,
    extended_status_patch,
    finalizer_patch,
    releasing_patch,
    reserving_patch,
    unprotecting_patch,
)

UID = "0b0d4a0e-0000-4000-8000-000000000001"
USER = ClaimUser("p", "u9")
GPU = Allocation((DeviceResult("one", DeviceId("d", "n1", "gpu-0")),))
OTHER = Allocation((DeviceResult("one", DeviceId("d", "n1", "gpu-1")),))
WRITTEN = {"devices": {"results": [{"request": "one", "driver": "d", "pool": "n1", "device": "gpu-0"}]}}
SAME = {"uid": UID, "resourceVersion": "7"}


def claim(*users, allocation=None, requests=None, config=None, **metadata):
    status = {"reservedFor": [{"resource": "pods", "name": u, "uid": f"uid-{u}"} for u in users]}
    status |= {"allocation": allocation} if allocation else {}
    devices = {"requests": requests or [{"name": "one", "exactly": {"deviceClassName": "gpu"}}]}
    devices |= {"config": config} if config else {}
    return {
        "metadata": {"namespace": "default", "name": "c", **SAME, **metadata},
        "spec": {"devices": devices},
        "status": status,
    }


def test_a_claim_is_protected_before_it_gets_its_devices():
    assert finalizer_patch(claim(finalizers=["x"]), GPU) == {
        "metadata": SAME | {"finalizers": ["x", FINALIZER]}
    }
    assert finalizer_patch(claim(finalizers=[FINALIZER]), GPU) is None
    assert finalizer_patch(claim(allocation=WRITTEN), GPU) is None


def test_the_first_pod_brings_the_devices_and_others_join():
    first = reserving_patch(claim(), GPU, USER, {})
    user = {"resource": "pods", "name": "p", "uid": "u9"}
    assert first == {"metadata": SAME, "status": {"reservedFor": [user], "allocation": WRITTEN}}
    joined = reserving_patch(claim("a", allocation=WRITTEN), None, USER, {})["status"]
    assert [known["name"] for known in joined.pop("reservedFor")] == ["a", "p"]
    assert not joined


def test_what_is_written_already_is_not_written_again():
    assert reserving_patch(claim("p", allocation=WRITTEN), GPU, ClaimUser("p", "uid-p"), {}) is None


@pytest.mark.parametrize(
    ("found", "chosen", "why"),
    [
        (claim(allocation=WRITTEN), OTHER, "claim default/c got allocated elsewhere in the meantime"),
        (claim(deletionTimestamp="now"), GPU, "claim default/c got deleted in the meantime"),
        (claim(), None, "claim default/c has no devices any more"),
    ],
)
def test_a_claim_that_cannot_be_used_is_refused(found, chosen, why):
    for attempt in (lambda: finalizer_patch(found, chosen), lambda: reserving_patch(found, chosen, USER, {})):
        with pytest.raises(DevicesRefused) as refused:
            attempt()
        assert str(refused.value) == f'running PreBind plugin "DynamicResources": {why}'


def test_the_last_user_takes_the_devices_along_that_it_brought():
    last = releasing_patch(claim("p", allocation=WRITTEN), GPU, ClaimUser("p", "uid-p"))
    assert last["status"] == {"reservedFor": None, "allocation": None}
    shared = releasing_patch(claim("a", "p", allocation=WRITTEN), GPU, ClaimUser("p", "uid-p"))["status"]
    assert [user["name"] for user in shared.pop("reservedFor")] == ["a"]
    assert not shared
    joined = releasing_patch(claim("p", allocation=WRITTEN), None, ClaimUser("p", "uid-p"))
    assert joined["status"] == {"reservedFor": None}
    assert releasing_patch(claim("a", allocation=WRITTEN), GPU, USER) is None


def test_devices_that_their_driver_has_described_stay():
    found = claim("p", allocation=WRITTEN)
    found["status"]["devices"] = [{"driver": "d", "pool": "n1", "device": "gpu-0"}]
    assert releasing_patch(found, GPU, ClaimUser("p", "uid-p"))["status"] == {"reservedFor": None}


def test_configuration_comes_from_the_classes_and_then_from_the_claim_for_the_requests_that_are_used():
    alternatives = [{"name": name, "deviceClassName": name} for name in ("big", "small")]
    config = [{"opaque": n, "requests": r} for n, r in ((1, ["r"]), (2, ["r/small"]), (3, ["r/big"]))]
    found = claim(requests=[{"name": "r", "firstAvailable": alternatives}], config=[*config, {"opaque": 4}])
    chosen = Allocation((DeviceResult("r/small", DeviceId("d", "n1", "gpu-0")),))
    assert classes_of(found, chosen) == ["small"]
    patch = reserving_patch(found, chosen, USER, {"small": {"spec": {"config": [{"opaque": 0}]}}})
    written = patch["status"]["allocation"]["devices"]["config"]
    assert [(one["source"], one["opaque"]) for one in written] == [
        ("FromClass", 0),
        ("FromClaim", 1),
        ("FromClaim", 2),
        ("FromClaim", 4),
    ]


def test_an_allocation_says_what_is_shared_tolerated_and_where():
    tolerations = [{"key": "k", "operator": "Exists"}]
    found = claim(
        requests=[{"name": "one", "exactly": {"deviceClassName": "gpu", "tolerations": tolerations}}]
    )
    nodes = NodeSelector((NodeSelectorTerm(match_fields=(Requirement("metadata.name", "In", ("n1",)),)),))
    consumed = (("memory", read_quantity("4Gi")),)
    chosen = Allocation((DeviceResult("one", DeviceId("d", "n1", "g"), True, consumed, True),), nodes)
    written = reserving_patch(found, chosen, USER, {})["status"]["allocation"]
    assert written == reserving_patch(found, chosen, USER, {})["status"]["allocation"], "in every attempt"
    [result] = written["devices"]["results"]
    assert len(result.pop("shareID")) == 36
    assert result == {
        "request": "one",
        "driver": "d",
        "pool": "n1",
        "device": "g",
        "adminAccess": True,
        "consumedCapacity": {"memory": "4Gi"},
        "tolerations": tolerations,
    }
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert written["nodeSelector"] == {"nodeSelectorTerms": [{"matchFields": [field]}]}


MAPPINGS = (RequestMapping("c", "example.com/gpu", "r2", "gpu"), RequestMapping("i", "x/y", "r10", "other"))
EXTENDED = HeldClaim(
    "default",
    "p-extended-resources-1",
    Allocation(
        tuple(
            DeviceResult(r, DeviceId("d", "n", f"{r}{i}"))
            for r, n in (("r2", 2), ("r10", 1))
            for i in range(n)
        )
    ),
    MAPPINGS,
)


def test_the_claim_for_extended_resources_asks_for_what_was_chosen_and_belongs_to_the_pod():
    made = extended_claim(EXTENDED, USER)
    assert made["metadata"] == {
        "namespace": "default",
        "name": "p-extended-resources-1",
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u9", "controller": True}
        ],
    }
    requests = made["spec"]["devices"]["requests"]
    assert [(r["name"], r["exactly"]["deviceClassName"], r["exactly"]["count"]) for r in requests] == [
        ("r10", "other", 1),
        ("r2", "gpu", 2),
    ]
    check_extended(made, USER)
    for other in (made | {"metadata": made["metadata"] | {"annotations": {}}}, made):
        with pytest.raises(DevicesRefused, match="belongs to another pod"):
            check_extended(other, ClaimUser("p", "u9" if other is not made else "u10"))


def test_a_pod_is_told_once_which_request_its_containers_use():
    patch = extended_status_patch({}, EXTENDED, USER)
    status = patch["status"]
    assert status["extendedResourceClaimStatus"]["requestMappings"][0] == {
        "containerName": "c",
        "resourceName": "example.com/gpu",
        "requestName": "r2",
    }
    assert patch["metadata"] == {"uid": "u9"}
    assert extended_status_patch({"status": status}, EXTENDED, USER) is None


def test_the_claim_for_extended_resources_loses_its_protection_before_it_is_deleted():
    made = extended_claim(EXTENDED, USER)
    made["metadata"] |= SAME
    assert unprotecting_patch(made, USER) is None
    made["metadata"]["finalizers"] = ["x", FINALIZER]
    assert unprotecting_patch(made, USER)["metadata"] == SAME | {"finalizers": ["x"]}
    with pytest.raises(DevicesRefused):
        unprotecting_patch(made, ClaimUser("p", "u10"))
