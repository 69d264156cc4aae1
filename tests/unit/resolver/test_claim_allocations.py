"""What is written to the API server so that a pod's resource claims get the devices that were chosen."""

from datetime import datetime, timedelta, timezone

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
    devices_ready,
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
NOW = datetime(2026, 11, 24, 12, 0, 30, 900, tzinfo=timezone.utc)
AT_NOW = {"allocationTimestamp": "2026-11-24T12:00:30Z"}
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
    first = reserving_patch(claim(), GPU, USER, {}, NOW)
    user = {"resource": "pods", "name": "p", "uid": "u9"}
    assert first == {"metadata": SAME, "status": {"reservedFor": [user], "allocation": WRITTEN | AT_NOW}}
    joined = reserving_patch(claim("a", allocation=WRITTEN), None, USER, {}, NOW)["status"]
    assert [known["name"] for known in joined.pop("reservedFor")] == ["a", "p"]
    assert not joined


def test_a_claim_that_asks_for_nothing_is_allocated_nothing():
    """The API server shows its requests as null."""
    empty, nothing = claim() | {"spec": {"devices": {"requests": None}}}, Allocation(())
    assert classes_of(empty, nothing) == []
    status = reserving_patch(empty, nothing, USER, {}, NOW)["status"]
    assert status["allocation"] == {"devices": {"results": []}} | AT_NOW


def test_what_is_written_already_is_not_written_again():
    assert reserving_patch(claim("p", allocation=WRITTEN), GPU, ClaimUser("p", "uid-p"), {}, NOW) is None


@pytest.mark.parametrize(
    ("found", "chosen", "why"),
    [
        (claim(allocation=WRITTEN), OTHER, "claim default/c got allocated elsewhere in the meantime"),
        (claim(deletionTimestamp="now"), GPU, "claim default/c got deleted in the meantime"),
        (claim(), None, "claim default/c has no devices any more"),
    ],
)
def test_a_claim_that_cannot_be_used_is_refused(found, chosen, why):
    for attempt in (
        lambda: finalizer_patch(found, chosen),
        lambda: reserving_patch(found, chosen, USER, {}, NOW),
    ):
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


def described(conditions, *, seconds_ago=0, failures=("Failed", "Lost")):
    """A claim to two devices. The second must be attached and powered. `conditions`: what its driver says
    of it; None: nothing."""
    needed = {"bindingConditions": ["Attached", "Powered"], "bindingFailureConditions": list(failures)}
    plain, bound = ({"request": "one", "driver": "d", "pool": "n1", "device": f"gpu-{i}"} for i in (0, 1))
    at = (NOW - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = claim(allocation={"devices": {"results": [plain, bound | needed]}, "allocationTimestamp": at})
    if conditions is not None:
        listed = [{"type": t, "status": s, "reason": "Fuse", "message": 'a "b"'} for t, s in conditions]
        found["status"]["devices"] = [{**bound, "conditions": listed}]
    return found


@pytest.mark.parametrize(
    ("found", "ready"),
    [
        (claim(allocation=WRITTEN), True),
        (described(None), False),
        (described([("Attached", "True")]), False),
        (described([("Attached", "True"), ("Powered", "False")]), False),
        (described([("Attached", "True"), ("Powered", "True")]), True),
        (described([("Attached", "True"), ("Powered", "True"), ("Failed", "False")]), True),
        (described([("Attached", "True"), ("Powered", "True")], seconds_ago=601), True),
        (described(None, seconds_ago=599), False),
    ],
)
def test_devices_are_ready_when_all_their_binding_conditions_are_true(found, ready):
    assert devices_ready(found, NOW) is ready


@pytest.mark.parametrize(("first", "ready"), [("True", True), ("False", False)])
def test_of_two_descriptions_of_a_shared_device_the_first_counts(first, ready):
    found = described([("Attached", "True"), ("Powered", first)])
    other = described([("Attached", "True"), ("Powered", "False" if ready else "True")])
    found["status"]["devices"] += other["status"]["devices"]
    assert devices_ready(found, NOW) is ready


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (
            described([("Attached", "True"), ("Powered", "True"), ("Lost", "True")]),
            'device binding failed: claim=c, reason=Fuse, message="a \\"b\\""',
        ),
        (described(None, seconds_ago=602), "device binding timeout: claim=c"),
        (described([("Attached", "True")], seconds_ago=602), "device binding timeout: claim=c"),
    ],
)
def test_devices_that_fail_or_take_too_long_are_refused_in_kube_schedulers_words(found, why):
    with pytest.raises(DevicesRefused) as refused:
        devices_ready(found, NOW)
    assert str(refused.value) == f'running PreBind plugin "DynamicResources": {why}'


def test_how_long_devices_may_take_is_up_to_the_profile():
    found = described(None, seconds_ago=601)
    assert devices_ready(found, NOW, 700.0) is False
    with pytest.raises(DevicesRefused, match="device binding timeout: claim=c"):
        devices_ready(found, NOW, 500.0)


def test_configuration_comes_from_the_classes_and_then_from_the_claim_for_the_requests_that_are_used():
    alternatives = [{"name": name, "deviceClassName": name} for name in ("big", "small")]
    config = [{"opaque": n, "requests": r} for n, r in ((1, ["r"]), (2, ["r/small"]), (3, ["r/big"]))]
    found = claim(requests=[{"name": "r", "firstAvailable": alternatives}], config=[*config, {"opaque": 4}])
    chosen = Allocation((DeviceResult("r/small", DeviceId("d", "n1", "gpu-0")),))
    assert classes_of(found, chosen) == ["small"]
    patch = reserving_patch(found, chosen, USER, {"small": {"spec": {"config": [{"opaque": 0}]}}}, NOW)
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
    result = DeviceResult("one", DeviceId("d", "n1", "g"), True, consumed, True, ("Ready",), ("Failed",))
    chosen = Allocation((result,), nodes)
    written = reserving_patch(found, chosen, USER, {}, NOW)["status"]["allocation"]
    assert written == reserving_patch(found, chosen, USER, {}, NOW)["status"]["allocation"], (
        "in every attempt"
    )
    [result] = written["devices"]["results"]
    assert len(result.pop("shareID")) == 36
    assert result == {
        "request": "one",
        "driver": "d",
        "pool": "n1",
        "device": "g",
        "adminAccess": True,
        "consumedCapacity": {"memory": "4Gi"},
        "bindingConditions": ["Ready"],
        "bindingFailureConditions": ["Failed"],
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
        "finalizers": [FINALIZER],
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
    assert unprotecting_patch(made, USER)["metadata"] == SAME | {"finalizers": None}
    made["metadata"]["finalizers"] = ["x"]
    assert unprotecting_patch(made, USER) is None
    made["metadata"]["finalizers"] = ["x", FINALIZER]
    assert unprotecting_patch(made, USER)["metadata"] == SAME | {"finalizers": ["x"]}
    with pytest.raises(DevicesRefused):
        unprotecting_patch(made, ClaimUser("p", "u10"))
