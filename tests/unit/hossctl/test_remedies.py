"""What would have a waiting pod tried again, in sentences."""

import pytest

from hoss.model.node import NodeSpec, Taint, Toleration
from hoss.model.pod import DeviceRequest, HostPort, PodAffinity, PodAffinityTerm, PodSpec, SpreadConstraint
from hoss.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement
from hossctl.explain.remedies import NodeNow, remedies

GIB = 2**30
DB = LabelSelector((Requirement("app", "In", ("db",)),))
BIG = PodSpec(requests=(("cpu", 4000), ("memory", 8 * GIB)))


def node(name, *, cpu=8000, used=0, **fields):
    allocatable = (("cpu", cpu), ("memory", 32 * GIB), ("pods", 110))
    return NodeNow(NodeSpec(name, allocatable=allocatable, **fields), {"cpu": used, "pods": used > 0})


NODES = [
    node("roomy", used=5000, labels=(("host", "roomy"), ("zone", "a"))),
    node("full", used=8000),
    node("b", taints=(Taint("gpu", "yes"),)),
    node("c", taints=(Taint("gpu", "yes"),)),
    node("d", taints=(Taint("old"), Taint("slow"))),
    node("shut", unschedulable=True),
]
ROWS = [
    ("NodeResourcesFit", BIG, [
        ("a node with room for it (4 cpu, 8Gi memory): pods leave one, one grows, or one is added; "
         "roomy comes closest and lacks 1 cpu")]),
    ("NodeResourcesFit", PodSpec(requests=(("cpu", 20_000),), node_selector=(("a", "b"),)), [
        "a node with room for it (20 cpu): pods leave one, one grows, or one is added"]),
    ("TaintToleration", PodSpec(), [
        "the removal of taint gpu=yes:NoSchedule from one of 2 nodes (b, c)",
        "the removal of taints old:NoSchedule and slow:NoSchedule from d"]),
    ("TaintToleration", PodSpec(tolerations=(Toleration(operator="Exists"),)),
     ["a node whose taints it tolerates"]),
    ("TaintToleration", PodSpec(requests=(("cpu", 20_000),)), ["a node whose taints it tolerates"]),
    ("NodeUnschedulable", PodSpec(), ["the uncordoning of shut"]),
    ("NodeUnschedulable", PodSpec(requests=(("cpu", 20_000),)), ["a node that is not cordoned"]),
    ("NodeAffinity", PodSpec(node_selector=(("disk", "ssd"),), required_node_affinity=NodeSelector((
        NodeSelectorTerm((Requirement("zone", "In", ("a", "b")), Requirement("gpu", "Exists"))),))),
     ["a node, new or labelled anew, with disk=ssd and zone In a, b and gpu Exists"]),
    ("NodeAffinity", PodSpec(required_node_affinity=NodeSelector((
        NodeSelectorTerm((Requirement("cores", "Gt", ("many",)), Requirement("cores", "Gt", ("8",)))),))),
     ["a node, new or labelled anew, with cores Gt many and cores Gt 8",
      "another value in cores Gt many: Gt compares whole numbers, and no node matches this"]),
    ("NodeName", PodSpec(node_name="n9"), ["that node n9 is added"]),
    ("NodePorts", PodSpec(host_ports=(HostPort(80),)), [
        "the deletion of a pod that has host port TCP 80, or another node"]),
    ("DeviceCards", PodSpec(devices=DeviceRequest(2, 1000)), [
        "a node with 2 cards of which 1000 thousandths each are free"]),
    ("InterPodAffinity", PodSpec(pod_affinity=PodAffinity(
        required=(PodAffinityTerm("zone", DB),), anti_required=(PodAffinityTerm("host", DB),))),
     ["a pod with app=db in a zone where this one fits",
      "the deletion of pods with app=db from a host, or another one"]),
    ("InterPodAffinity", PodSpec(), [
        "the deletion of pods whose anti-affinity keeps this one away, or a node in another domain"]),
    ("PodTopologySpread", PodSpec(spread=(SpreadConstraint(1, "zone", DB),)), [
        "pods with app=db that come to or leave a zone, or nodes that do"]),
    ("InterPodAffinity", PodSpec(pod_affinity=PodAffinity(required=(PodAffinityTerm("room", DB),))), [
        "nodes with the label room: none has it, so the pod fits nowhere",
        "a pod with app=db in a room where this one fits"]),
    ("PodTopologySpread", PodSpec(spread=(SpreadConstraint(1, "room", DB),)), [
        "nodes with the label room: none has it, so the pod fits nowhere",
        "pods with app=db that come to or leave a room, or nodes that do"]),
    ("SchedulingGates", PodSpec(scheduling_gates=("a", "b")),
    ["the removal of its gates a, b (hoss ungate)"]),
    ("NodeDeclaredFeatures", PodSpec(required_features=("A", "B")), [
        "a node whose kubelet declares A, B (status.declaredFeatures)"]),
    ("example.com/Mine", PodSpec(), [
        "any change of the cluster, for what plugin example.com/Mine waits for is not known"]),
]  # fmt: skip


@pytest.mark.parametrize(("plugin", "spec", "expected"), ROWS)
def test_remedy(plugin, spec, expected):
    assert remedies(spec, [plugin], NODES) == expected


def test_who_was_refused_by_nobody_knows_whom_waits_for_anything():
    assert remedies(BIG, [], NODES) == ["any change of the cluster"]


def test_without_nodes_there_are_answers_too():
    assert remedies(BIG, ["NodeResourcesFit", "TaintToleration", "NodeUnschedulable"], []) == [
        "a node with room for it (4 cpu, 8Gi memory): pods leave one, one grows, or one is added",
        "a node whose taints it tolerates",
        "a node that is not cordoned",
    ]
