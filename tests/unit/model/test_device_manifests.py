"""Claims of pods, and objects of resource.k8s.io, as the API server stores them."""

import pytest

from hoss.errors import InvalidInput
from hoss.manifests.devices import read_device_object, read_pod_claims
from hoss.model.devices import (
    BindingState,
    ClaimUse,
    ContainerRequests,
    CounterSet,
    DeviceId,
    NodeReach,
    RequestPolicy,
    VersionText,
)
from hoss.model.quantity import parse_quantity


def claims(containers=(), statuses=(), **spec):
    listed = list(containers) or [{"name": "c"}]
    status = {"resourceClaimStatuses": list(statuses)}
    return read_pod_claims({"name": "web", "uid": "u1"}, {"containers": listed, **spec}, status, "spec")


def test_a_pod_without_claims_and_extended_resources_claims_nothing():
    pages = {"cpu": "1", "hugepages-2Mi": "2Mi"}
    assert claims([{"name": "c", "resources": {"requests": pages, "limits": pages}}]) is None


def test_a_claim_is_named_by_the_pod_or_by_the_controller_of_templates():
    listed = [
        {"name": "a", "resourceClaimName": "mine"},
        {"name": "b", "resourceClaimTemplateName": "t"},
        {"name": "c", "resourceClaimTemplateName": "t"},
        {"name": "d", "resourceClaimTemplateName": "t"},
    ]
    read = claims(
        resourceClaims=listed, statuses=[{"name": "b", "resourceClaimName": "web-b-x1"}, {"name": "c"}]
    )
    assert read.uses == (
        ClaimUse("mine"),
        ClaimUse("web-b-x1", from_template=True),
        ClaimUse(None, from_template=True, needed=False),
        ClaimUse(None, from_template=True),
    )


def test_extended_resources_have_their_place_among_a_containers_requests():
    init = {"name": "i", "resources": {"requests": {"example.com/gpu": "1"}}}
    main = {"name": "m", "resources": {"requests": {"cpu": "1", "example.com/gpu": "2", "memory": "1Gi"}}}
    read = claims([main], initContainers=[init])
    assert read.containers == (
        ContainerRequests("i", 0, ((0, "example.com/gpu", 1),), initial=True),
        ContainerRequests("m", 1, ((1, "example.com/gpu", 2),)),
    )


def offered(device, **spec):
    spec = {"driver": "d", "pool": {"name": "p", "generation": 2, "resourceSliceCount": 1}, **spec}
    return read_device_object(
        {"metadata": {"name": "s"}, "spec": {**spec, "devices": [device]}}, "ResourceSlice"
    )


def test_a_device_has_values_of_four_types_and_amounts_with_a_policy():
    attributes = {
        "cores": {"int": 64},
        "ecc": {"bool": False},
        "model": {"string": "a100"},
        "v": {"version": "1.2.3"},
    }
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "512Mi"}}
    capacity = {"memory": {"value": "40Gi", "requestPolicy": policy}}
    counters = [{"counterSet": "card", "counters": {"slots": {"value": "2"}}}]
    device = {"name": "gpu", "attributes": attributes, "capacity": capacity, "consumesCounters": counters}
    read = offered(device, nodeName="n")
    assert (read.generation, read.slices, read.reach) == (2, 1, NodeReach("n"))
    [gpu] = read.devices
    assert gpu.attributes == (("cores", 64), ("ecc", False), ("model", "a100"), ("v", VersionText("1.2.3")))
    [(_, amount)] = gpu.capacity
    assert amount.policy == RequestPolicy(
        default=parse_quantity("1Gi"), least=parse_quantity("1Gi"), step=parse_quantity("512Mi")
    )
    assert gpu.consumes == (CounterSet("card", (("slots", parse_quantity("2")),)),)


def test_devices_have_nodes_of_their_own_where_the_slice_says_so():
    device = {"name": "gpu", "nodeName": "n"}
    assert offered(device, perDeviceNodeSelection=True).reach is None
    assert offered(device, perDeviceNodeSelection=True).devices[0].reach == NodeReach("n")
    assert offered(device, allNodes=True).devices[0].reach is None


@pytest.mark.parametrize(
    ("true", "allocated_at", "state", "usable"),
    [
        (["Ready"], 0, BindingState.READY, True),
        ([], 900, BindingState.WAITING, True),
        ([], 0, BindingState.WAITING, False),
        (["Ready", "Failed"], 900, BindingState.FAILED, False),
    ],
)
def test_a_device_with_conditions_has_ten_minutes_to_become_ready(true, allocated_at, state, usable):
    """Its first description counts; another one is of another share of it."""
    device = {"driver": "d", "pool": "p", "device": "gpu"}
    conditions = {"bindingConditions": ["Ready"], "bindingFailureConditions": ["Failed"]}
    status = {
        "allocation": {
            "devices": {"results": [{"request": "r", **device, **conditions}]},
            "allocationTimestamp": f"1970-01-01T00:{allocated_at // 60:02}:00Z",
        },
        "devices": [
            {**device, "conditions": [{"type": t, "status": "True"} for t in true]},
            {**device, "conditions": [{"type": "Ready", "status": str("Ready" not in true)}]},
        ],
    }
    claim = read_device_object({"metadata": {"name": "c"}, "spec": {}, "status": status}, "ResourceClaim")
    [result] = claim.allocation.results
    assert (result.id, result.binding) == (DeviceId("d", "p", "gpu"), state)
    assert claim.allocation.usable(1000.0) is usable


@pytest.mark.parametrize(
    ("device", "place"),
    [
        ({"name": "gpu", "attributes": {"a": {}}}, "attributes"),
        ({"name": "gpu", "capacity": {"m": {"value": "much"}}}, "capacity"),
        ({"name": 7}, "name"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(device, place):
    with pytest.raises(InvalidInput, match=place):
        offered(device, nodeName="n")
