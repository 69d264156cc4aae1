"""Which devices of a node claims get, beyond what the reference's cases ask: admin access, limits and what
changes between two looks."""

from dataclasses import replace

import numpy as np
import pytest
from conformance.live_path import live_worker

from hoss.model.cluster import Cluster, DeviceUpdate, ObjectKey
from hoss.model.devices import (
    NOT_ALLOCATABLE,
    Allocation,
    ClaimConstraint,
    ClaimRequest,
    ClaimUse,
    ContainerRequests,
    Device,
    DeviceCapacity,
    DeviceClass,
    DeviceId,
    DeviceResult,
    DeviceUsage,
    ExactRequest,
    HeldClaim,
    NodeReach,
    PodClaims,
    RequestMapping,
    RequestPolicy,
    ResourceClaim,
    ResourceSlice,
    extended_claim_name,
)
from hoss.model.node import NodeSpec
from hoss.model.pod import DeviceRequest, PodSpec
from hoss.model.quantity import parse_quantity
from hoss.wire.columns import numbered_uids
from hossctl.explain.offline import explain
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.devices.allocator import TIMED_OUT, ClaimShape, OneNodeOffer, allocate
from scheduler_worker.core.devices.held import HeldClaims
from scheduler_worker.core.devices.pools import PoolTable, SelectorTable

GPU = DeviceClass("gpu")


def offered(*devices, usage=None, classes=(GPU,)):
    """A node that is offered these devices in one pool."""
    table = PoolTable()
    table.replace([ResourceSlice("s", "d", "p", 1, 1, NodeReach(node_name="n"), devices)])
    by_name = {device_class.name: device_class for device_class in classes}
    return OneNodeOffer("n", {}, table.pools_of("n", {}), usage or DeviceUsage(), by_name, SelectorTable())


def exactly(name="r", **fields):
    return ClaimRequest(name, (ExactRequest(name, "gpu", **fields),))


def first_of(*alternatives):
    return ClaimRequest("r", tuple(ExactRequest(n, "gpu", **f) for n, f in alternatives), prioritized=True)


def chosen(found):
    return [(result.request, result.id.device) for a in found.allocations for result in a.results]


def in_use(*devices):
    usage = DeviceUsage()
    for device in devices:
        usage.add(DeviceId("d", "p", device), (), shared=False)
    return usage


def test_a_claim_gets_the_binding_conditions_of_its_device():
    device = Device("gpu", binding_conditions=("Ready",), binding_failure_conditions=("Failed", "Lost"))
    [allocation] = allocate([ClaimShape((exactly(),))], offered(device)).allocations
    [result] = allocation.results
    assert (result.binding_conditions, result.binding_failure_conditions) == (("Ready",), ("Failed", "Lost"))


def test_admin_access_takes_a_device_that_is_in_use_but_not_one_of_its_own_claim():
    admin, own = exactly("admin", admin_access=True), exactly("own")
    watching = ClaimShape((admin,))
    assert chosen(allocate([watching], offered(Device("gpu"), usage=in_use("gpu")))) == [("admin", "gpu")]
    found = allocate([ClaimShape((own,)), watching], offered(Device("gpu")))
    assert chosen(found) == [("own", "gpu"), ("admin", "gpu")]
    assert [found.allocations[i].results[0].admin_access for i in (0, 1)] == [False, True]
    # kube-scheduler's order matters: a device that an administrator just took is no device for others.
    assert not allocate([watching, ClaimShape((own,))], offered(Device("gpu"))).allocations
    assert not allocate([ClaimShape((own, admin))], offered(Device("gpu"))).allocations


def test_a_later_claim_makes_an_earlier_one_take_another_device():
    only_big = ("device.attributes['d'].big",)
    small, big = (Device(name, attributes=(("big", name == "big"),)) for name in ("small", "big"))
    shapes = [ClaimShape((exactly(),)), ClaimShape((exactly(selectors=only_big),))]
    assert chosen(allocate(shapes, offered(big, small))) == [("r", "small"), ("r", "big")]


def test_the_first_alternative_counts_with_which_everything_else_works_out():
    shapes = [ClaimShape((first_of(("two", {"count": 2}), ("one", {})), exactly("other")))]
    assert chosen(allocate(shapes, offered(*map(Device, "ab")))) == [("r/one", "a"), ("other", "b")]
    assert chosen(allocate(shapes, offered(*map(Device, "abc")))) == [
        ("r/two", "a"),
        ("r/two", "b"),
        ("other", "c"),
    ]


def test_devices_of_one_claim_have_equal_or_different_values_as_its_constraint_says():
    devices = [
        Device(name, attributes=(("slot", slot),)) for name, slot in zip("abc", (1, 2, 1), strict=True)
    ]
    same = ClaimShape((exactly(count=2),), (ClaimConstraint("d/slot"),))
    different = ClaimShape((exactly(count=2),), (ClaimConstraint("d/slot", distinct=True),))
    assert chosen(allocate([same], offered(*devices))) == [("r", "a"), ("r", "c")]
    assert chosen(allocate([different], offered(*devices))) == [("r", "a"), ("r", "b")]
    typed = [Device("a", attributes=(("slot", 1),)), Device("b", attributes=(("slot", True),))]
    assert not allocate([same], offered(*typed)).allocations


def test_a_request_for_all_devices_fails_if_one_is_in_use():
    shape = ClaimShape((exactly(all_devices=True),))
    assert len(chosen(allocate([shape], offered(*map(Device, "abc"))))) == 3
    assert not allocate([shape], offered(*map(Device, "abc"), usage=in_use("b"))).allocations
    assert not allocate([shape], offered()).allocations


@pytest.mark.parametrize(
    ("policy", "asked", "taken"),
    [
        (None, None, "40"),
        (None, "7", "7"),
        (None, "41", None),
        ({"default": "4"}, None, "4"),
        ({"default": "4", "values": ("4", "8")}, "5", "8"),
        ({"default": "4", "values": ("4", "8")}, "9", None),
        ({"default": "4", "least": "2", "step": "4"}, "1", "2"),
        ({"default": "4", "least": "2", "step": "4"}, "7", "10"),
        ({"default": "4", "least": "2", "most": "6"}, "7", None),
    ],
)
def test_an_amount_of_a_shared_device_is_rounded_up_to_what_its_policy_has(policy, asked, taken):
    read = None
    if policy is not None:
        values = tuple(map(parse_quantity, policy.pop("values", ())))
        read = RequestPolicy(values=values, **{name: parse_quantity(text) for name, text in policy.items()})
    device = Device("gpu", capacity=(("memory", DeviceCapacity(parse_quantity("40"), read)),), shareable=True)
    capacity = () if asked is None else (("memory", parse_quantity(asked)),)
    found = allocate([ClaimShape((exactly(capacity=capacity),))], offered(device))
    consumed = [amount.canonical for a in found.allocations for _, amount in a.results[0].consumed]
    assert consumed == ([] if taken is None else [taken])


def test_a_search_without_end_is_given_up():
    """31 devices, no two of one value, of which there are 30."""
    requests = [exactly(f"r{i}") for i in range(31)]
    devices = [Device(f"gpu-{i:02}", attributes=(("d/id", i % 30),)) for i in range(40)]
    distinct = ClaimConstraint("d/id", distinct=True)
    found = allocate([ClaimShape(tuple(requests), (distinct,))], offered(*devices))
    assert found.reason == TIMED_OUT


@pytest.mark.parametrize("many", [9, 31])
def test_a_long_search_ends_where_requests_together_have_too_few_devices(many):
    """One request more than devices of theirs, beside others that nobody asks for, or has already."""
    common = [Device(f"gpu-{i:02}", attributes=(("id", 1),)) for i in range(many - 1)]
    others = [Device(f"other-{i:02}", attributes=(("id", 2),)) for i in range(40)]
    given = [f"given-{i:02}" for i in range(60)]
    offer = offered(*common, *others, *map(Device, given), usage=in_use(*given))
    requests = [exactly(f"r{i}", selectors=("device.attributes['d'].id == 1",)) for i in range(many)]
    found = allocate([ClaimShape(tuple(requests))], offer)
    assert (found.reason, found.tries) == (NOT_ALLOCATABLE, 500)
    assert allocate([ClaimShape(tuple(requests[1:]))], offer).allocations
    # A device that takes several may be enough.
    shareable = replace(common[0], shareable=True)
    assert allocate([ClaimShape(tuple(requests))], offered(shareable, *common[1:])).allocations


def test_a_look_at_a_device_that_the_search_has_taken_is_a_try():
    """Else so many tries as are allowed take seconds, and the worker is taken for lost."""
    requests = [exactly(f"r{i}") for i in range(4)]
    found = allocate([ClaimShape(tuple(requests))], offered(*map(Device, "abcd")))
    assert found.tries == 1 + 2 + 3 + 4
    given = [f"given-{i}" for i in range(100)]
    found = allocate([ClaimShape((exactly(),))], offered(*map(Device, [*given, "a"]), usage=in_use(*given)))
    assert (chosen(found), found.tries) == ([("r", "a")], 1)


def test_a_long_search_ends_where_one_request_has_too_few_devices_alone():
    """30 requests for any of 31 devices, and one for a device of which there is none."""
    requests = [exactly(f"r{i}") for i in range(30)]
    none = exactly("none", selectors=("device.attributes['d'].id == 99",))
    devices = [Device(f"gpu-{i:02}", attributes=(("id", i),)) for i in range(31)]
    found = allocate([ClaimShape((*requests, none))], offered(*devices))
    assert found.reason == NOT_ALLOCATABLE
    assert found.tries == 500
    # An expression that fails at a device may end the search in an error first: it goes on.
    fails = exactly("none", selectors=("device.attributes['d'].id == 99 && device.attributes['d'].none",))
    other = exactly("none", selectors=("device.attributes['d'].odd",))
    assert allocate([ClaimShape((*requests, fails))], offered(*devices)).reason == NOT_ALLOCATABLE
    assert allocate([ClaimShape((*requests, none, other))], offered(*devices)).reason == TIMED_OUT


def held(name, *devices):
    results = tuple(DeviceResult("r", DeviceId("d", "p", device)) for device in devices)
    return HeldClaim("default", name, Allocation(results))


def test_a_claim_is_held_until_the_last_of_its_pods_has_gone():
    claims = HeldClaims()
    claims.change((held("a", "gpu"),), 1)
    claims.change((held("a", "gpu"),), 1)
    claims.change((held("a", "gpu"),), -1)
    assert claims.allocation(("default", "a")) == held("a", "gpu").allocation
    claims.change((held("a", "gpu"),), -1)
    assert claims.allocation(("default", "a")) is None
    assert len(claims) == 0
    assert claims.changes.since(0) == [("default", "a")] * 4


NODE = NodeSpec("n", allocatable=(("cpu", 4000), ("memory", 2**32), ("pods", 10)))
SLICE = ResourceSlice("s", "d", "p", 1, 1, NodeReach(node_name="n"), (Device("gpu"),))


def explained(*objects, claims=("a",)):
    pod = PodSpec(claims=PodClaims("pod", "uid", tuple(map(ClaimUse, claims))))
    return explain(pod, Cluster(nodes=[NODE], devices=objects), preemption=True)


def claim(name, *requests, **fields):
    return ResourceClaim("default", name, requests or (exactly(),), **fields)


def test_broken_expressions_are_told_with_the_claim_and_its_selector():
    broken = claim("a", exactly(selectors=("true", "device.driver ==")))
    assert explained(GPU, SLICE, broken)["message"] == (
        'running "DynamicResources" filter plugin: claim default/a: selector #1: CEL compile error: '
        "syntax error at 17: it ends here"
    )


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("dyn(3)", "type int could not be converted to bool: unsupported type conversion from 'int' to bool"),
        (
            "dyn('x')",
            "type string could not be converted to bool: unsupported native conversion from string to 'bool'",
        ),
        (
            "dyn(semver('1.0.0'))",
            (
                "type kubernetes.Semver could not be converted to bool: type conversion error from 'Semver'"
                " to 'bool'"
            ),
        ),
    ],
)
def test_an_expression_that_is_not_true_or_false_is_told_in_kube_schedulers_words(expression, why):
    broken = claim("a", exactly(selectors=(expression,)))
    assert explained(GPU, SLICE, broken)["message"] == (
        'running "DynamicResources" filter plugin: claim default/a: selector #0: CEL runtime error: '
        f"CEL result of {why}"
    )


def test_a_claim_of_another_pod_or_one_that_goes_away_is_told_before_nodes_are_looked_at():
    strange = replace(claim("a"), controller_uid="other")
    pod = PodSpec(claims=PodClaims("pod", "uid", (ClaimUse("a", from_template=True),)))
    found = explain(pod, Cluster(nodes=[NODE], devices=[GPU, SLICE, strange]), preemption=False)
    assert (
        found["message"]
        == "0/1 nodes are available: ResourceClaim default/a was not created for Pod default/pod (Pod is not"
        " owner)."
    )
    found = explained(GPU, SLICE, claim("a", deleting=True))
    assert found["message"] == '0/1 nodes are available: resourceclaim "a" is being deleted.'


def test_two_claims_of_one_pod_never_get_one_device():
    assert explained(GPU, SLICE, claim("a"), claim("b"), claims=("a",))["feasible"] == ["n"]
    assert explained(GPU, SLICE, claim("a"), claim("b"), claims=("a", "b"))["feasible"] == []
    # kube-scheduler counts a claim that a pod has under two names twice.
    assert explained(GPU, SLICE, claim("a"), claims=("a", "a"))["feasible"] == []


def test_contradicting_slices_offer_nothing_and_say_so():
    twice = replace(SLICE, name="t", slices=2), replace(SLICE, slices=2)
    reasons = explained(GPU, *twice, claim("a"))["reasons"]
    assert reasons["n"]["reasons"] == ["invalid resource pools were encountered"]
    incomplete = replace(SLICE, slices=2)
    reasons = explained(GPU, incomplete, claim("a"))["reasons"]
    assert reasons["n"]["reasons"] == ["cannot allocate all claims"]


def test_a_changed_claim_is_counted_and_no_node_is_judged_again():
    cache = NodeInfoCache()
    catalogue = cache.devices
    catalogue.replace([GPU, SLICE, claim("a")])
    version, claims = catalogue.version, catalogue.claim_version
    given = Allocation((DeviceResult("r", DeviceId("d", "p", "gpu")),))
    catalogue.apply(DeviceUpdate((claim("a", allocation=given),)), 1.0)
    assert catalogue.allocation(("default", "a")) == given
    assert catalogue.version == version
    assert catalogue.claim_version > claims
    catalogue.apply(DeviceUpdate(gone=(ObjectKey("ResourceClaim", "default", "a"),)), 2.0)
    assert catalogue.allocation(("default", "a")) is None
    assert not catalogue.claims
    catalogue.apply(DeviceUpdate(gone=(ObjectKey("ResourceSlice", "", "s"),)), 3.0)
    assert catalogue.version > version
    assert catalogue.table_sizes()["resource_slices"] == 0


CLASS = DeviceClass("gpu", extended_resource="example.com/gpu")
WANTS = PodSpec(
    requests=(("cpu", 100), ("example.com/gpu", 1)),
    claims=PodClaims("pod", "uid-1", (), (ContainerRequests("c", 0, ((1, "example.com/gpu", 1),)),)),
)


def proposed(spec, *nodes, devices=(CLASS, SLICE)):
    """What a worker proposes for a pod: the node, the amount of the extended resource, and the claims
    held."""
    scheduler, _ = live_worker(Cluster(nodes=list(nodes)))
    scheduler.set_devices(devices, 0.0)
    scheduler.define_class(1, spec)
    runs = np.array([1], np.uint32), np.array([1], np.uint32), np.zeros(1, np.uint16)
    scheduler.accept(1, numbered_uids(b"pending pod ", 0, 1), *runs)
    while scheduler.step():
        pass
    for columns in scheduler.take_proposals(now=0.0):
        node = scheduler.cache.catalogue.name(int(columns.candidates[0, 0]))
        amount = int(columns.requests[0, scheduler.cache.schema.get("example.com/gpu")])
        return node, amount, columns.groups[0].held_claims
    return None


def test_a_pod_that_gets_devices_for_an_extended_resource_takes_no_amount_of_its_node():
    with_amount = replace(
        NODE, name="m", allocatable=(*NODE.allocatable, ("example.com/gpu", 1)), unschedulable=True
    )
    node, amount, (held,) = proposed(WANTS, NODE, with_amount)
    assert (node, amount, held.name) == ("n", 0, extended_claim_name("pod", "uid-1"))
    assert [result.id.device for result in held.allocation.results] == ["gpu"]
    assert held.mappings == (RequestMapping("c", "example.com/gpu", "container-0-request-1", "gpu"),)
    node, amount, held = proposed(
        WANTS, replace(NODE, unschedulable=True), replace(with_amount, unschedulable=False)
    )
    assert (node, amount, held) == ("m", 1, ())


def test_a_pod_that_gets_devices_for_cards_takes_no_cards_of_its_node():
    cards = DeviceClass("gpu", extended_resource="nvidia.com/gpu")
    wants = PodSpec(
        requests=(("cpu", 100), ("nvidia.com/gpu", 1)),
        devices=DeviceRequest(1, 1000),
        claims=PodClaims("pod", "uid-1", (), (ContainerRequests("c", 0, ((1, "nvidia.com/gpu", 1),)),)),
    )
    scheduler, _ = live_worker(Cluster(nodes=[NODE]))
    scheduler.set_devices((cards, SLICE), 0.0)
    scheduler.define_class(1, wants)
    runs = np.array([1], np.uint32), np.array([1], np.uint32), np.zeros(1, np.uint16)
    scheduler.accept(1, numbered_uids(b"pending pod ", 0, 1), *runs)
    while scheduler.step():
        pass
    [columns] = scheduler.take_proposals(now=0.0)
    assert columns.devices is None
    assert [held.mappings[0].resource for held in columns.groups[0].held_claims] == ["nvidia.com/gpu"]


def test_a_pod_whose_extended_resources_are_not_known_to_be_claims_gets_no_node_without_them():
    with_amount = replace(
        NODE, name="m", allocatable=(*NODE.allocatable, ("example.com/gpu", 1)), unschedulable=True
    )
    assert proposed(replace(WANTS, claims=None), NODE, with_amount) is None


def test_the_claim_for_extended_resources_has_a_name_that_fits_and_is_the_pods_alone():
    name = extended_claim_name("p" * 219 + "." + "q" * 30, "11111111-2222-3333-4444-555555555501")
    assert name == "p" * 219 + "-extended-resources-555555555501"
    assert len(name) <= 253
