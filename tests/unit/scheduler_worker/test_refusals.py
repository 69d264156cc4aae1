"""What a worker says of pods that no node takes, besides the words."""

from dataclasses import replace

from dispatcher.workers.link import read_outcomes
from hoss.model.cluster import DeviceUpdate, StorageUpdate
from hoss.model.devices import (
    Allocation,
    BindingState,
    ClaimRequest,
    ClaimUse,
    Device,
    DeviceClass,
    DeviceId,
    DeviceResult,
    ExactRequest,
    NodeReach,
    PodClaims,
    ResourceClaim,
    ResourceSlice,
)
from hoss.model.node import Taint
from hoss.model.pod import PodAffinity, PodAffinityTerm
from hoss.model.selectors import LabelSelector, Requirement
from hoss.model.volumes import ClaimMount, PersistentVolume, PersistentVolumeClaim, PodVolumes
from scheduler_worker.core.plugins.devices.dynamic_resources import DynamicResources
from scheduler_worker.messages import outcomes

HOSTNAME = "kubernetes.io/hostname"
GPU = DeviceClass("gpu")
CLAIM = ResourceClaim("default", "mine", (ClaimRequest("one", (ExactRequest("one", "gpu"),)),))
CLAIMING = PodClaims("p", "uid-1", (ClaimUse("mine"),), ())


def refusal(harness):
    harness.place()
    (columns,) = harness.scheduler.take_outcomes()
    return columns


def test_every_plugin_that_is_the_first_to_refuse_some_node_is_named(make_ledger, harness_of, make_pod):
    ledger = make_ledger(2)
    ledger.add(2, taints=(Taint("a"),)).add(3, unschedulable=True)
    harness = harness_of(ledger)
    harness.submit((make_pod(9000), 3))
    columns = refusal(harness)
    assert columns.refused_by == (frozenset({"NodeResourcesFit", "TaintToleration", "NodeUnschedulable"}),)
    message = outcomes(columns).outcomes
    assert list(message.refused_by[0].plugins) == ["NodeResourcesFit", "NodeUnschedulable", "TaintToleration"]


def test_a_plugin_that_another_forestalls_on_every_node_is_not_named(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(2, taints=(Taint("a"),)))
    harness.submit((make_pod(9000), 1))
    assert refusal(harness).refused_by == (frozenset({"TaintToleration"}),)


def test_a_refusal_says_how_far_the_view_had_followed_the_feed(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(2))
    harness.submit((make_pod(9000), 1))
    harness.place()
    first = harness.ledger.seq
    harness.cache.apply_feed(harness.ledger.reserve([0], [[100, 0, 0, 1]]))
    (columns,) = harness.scheduler.take_outcomes()
    assert columns.seen == ((0, first),), "it was refused before that"
    harness.submit((make_pod(9000), 1))
    assert refusal(harness).seen == ((0, first + 1),)
    assert outcomes(columns).outcomes.seen[0].seq == first


def test_bound_pods_need_no_such_words(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(2))
    harness.submit((make_pod(100), 1))
    (proposal,) = harness.place()
    harness.scheduler.settle(proposal.batch_id, harness.ledger.commit(proposal)[0])
    (columns,) = harness.scheduler.take_outcomes()
    assert (columns.refused_by, columns.seen) == ((), ())


def test_a_plugin_that_cannot_judge_a_pod_is_told_as_failed_and_the_dispatcher_reads_that(
    make_ledger, harness_of, make_pod
):
    harness = harness_of(make_ledger(1))
    broken = ResourceClaim(
        "default", "mine", (ClaimRequest("one", (ExactRequest("one", "gpu", selectors=("1 +",)),)),)
    )
    devices = ResourceSlice("s", "d", "pool", 1, 1, NodeReach(node_name="node-0"), (Device("gpu-0"),))
    harness.scheduler.update_devices(DeviceUpdate((GPU, broken, devices)), 0.0)
    harness.submit((make_pod(claims=CLAIMING), 1))
    harness.submit((make_pod(9000), 1))
    harness.place()
    found = [read_outcomes(outcomes(columns).outcomes, 1) for columns in harness.scheduler.take_outcomes()]
    assert [(arrived.refused_by, arrived.failed) for arrived in found] == [
        ((frozenset({"DynamicResources"}),), (True,)),
        ((frozenset({"NodeResourcesFit"}),), (False,)),
    ]


def told(harness, spec):
    """What a pod of this class is refused for now: the reasons, and the plugins."""
    harness.submit((spec, 1))
    columns = refusal(harness)
    return columns.reason_texts[0].partition(": ")[2], columns.refused_by[0]


def test_each_refusal_is_for_the_devices_there_are_at_the_time(make_ledger, harness_of, make_pod):
    """The node refuses every time, and nothing of it changes."""
    harness, spec = harness_of(make_ledger(1)), make_pod(claims=CLAIMING)

    def part(name):
        reach = NodeReach(node_name="node-0")
        return ResourceSlice(name, "d", "pool", 1, 2, reach, (Device("gpu-0"),))

    harness.scheduler.update_devices(DeviceUpdate((GPU,)), 0.0)
    assert told(harness, spec)[0] == 'could not find ResourceClaim "default/mine".'
    harness.scheduler.update_devices(DeviceUpdate((CLAIM, part("one"))), 0.0)
    assert told(harness, spec)[0] == "1 cannot allocate all claims."
    harness.scheduler.update_devices(DeviceUpdate((part("other"),)), 0.0)
    assert told(harness, spec)[0] == "1 invalid resource pools were encountered."


def test_the_plugins_named_are_those_that_refuse_now_or_a_later_change_would_not_wake_the_pod(
    make_ledger, harness_of, make_pod
):
    """The claims came, so only the taint keeps the pods away, and only its end helps."""
    harness = harness_of(make_ledger(1, taints=(Taint("a"),)))
    claiming = make_pod(claims=CLAIMING)
    mounting = make_pod(volumes=PodVolumes(claims=(ClaimMount("data"),)))
    harness.scheduler.update_devices(DeviceUpdate((GPU,)), 0.0)
    assert told(harness, claiming)[1] == {"DynamicResources"}
    assert told(harness, mounting)[1] == {"VolumeRestrictions"}
    harness.scheduler.update_devices(DeviceUpdate((CLAIM,)), 0.0)
    assert told(harness, claiming)[1] == {"TaintToleration"}
    bound = PersistentVolumeClaim("default", "data", volume_name="v", bind_completed=True)
    harness.scheduler.update_storage(StorageUpdate((bound, PersistentVolume("v"))))
    assert told(harness, mounting)[1] == {"TaintToleration"}


def test_how_long_allocated_devices_may_take_to_become_ready_is_up_to_the_profile(
    make_ledger, harness_of, make_pod
):
    harness, spec = harness_of(make_ledger(1)), make_pod(claims=CLAIMING)
    starting = DeviceResult(
        "r", DeviceId("d", "p", "gpu"), binding_conditions=("Ready",), binding=BindingState.WAITING
    )
    harness.scheduler.update_devices(
        DeviceUpdate((replace(CLAIM, allocation=Allocation((starting,), allocated_at=1000.0)),)), 1300.0
    )
    for seconds, passes in ((None, True), (400.0, True), (200.0, False)):
        state = DynamicResources(seconds).filter_state(spec, harness.cache)
        state.refresh()
        assert state.passed.tolist() == [passes]


def test_each_refusal_is_for_the_labels_that_namespaces_have_at_the_time(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(1, labels=((HOSTNAME, "node-0"),)))
    web = LabelSelector((Requirement("app", "In", ("web",)),))
    of_team_a = LabelSelector((Requirement("team", "In", ("a",)),))

    def apart(namespace, term):
        shy = PodAffinity(anti_required=(term,))
        return make_pod(namespace=namespace, labels=(("app", "web"),), pod_affinity=shy)

    harness.submit((apart("shop", PodAffinityTerm(HOSTNAME, web, ("default",))), 1))
    assert len(harness.place()) == 1
    spec = apart("default", PodAffinityTerm(HOSTNAME, web, (), of_team_a))
    assert told(harness, spec)[0] == "1 node(s) didn't satisfy existing pods anti-affinity rules."
    harness.scheduler.set_namespaces({"shop": {"team": "a"}}, ())
    assert told(harness, spec)[0] == "1 node(s) didn't match pod anti-affinity rules."
