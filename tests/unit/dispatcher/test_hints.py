"""Which pods a cluster change may help: one row per rule, each a sentence."""

from dataclasses import replace

import numpy as np
import pytest

from dispatcher.core.changes import ANYTHING, Aspect, ChangeHistory, Changes, NodeChange, Room, merge
from dispatcher.core.queue.hints import HINTS, worth_another_attempt
from hoss.model.devices import ContainerRequests, PodClaims
from hoss.model.node import NodeSpec, Taint, Toleration
from hoss.model.pod import (
    DeviceRequest,
    HostPort,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    SpreadConstraint,
    group_of,
)
from hoss.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement
from hoss.model.volumes import ClaimMount, PodVolumes

SCHEMA = ("cpu", "memory", "ephemeral-storage", "pods")
ZONE, HOST = "zone", "kubernetes.io/hostname"
GPU_TAINT = Taint("gpu", "yes")


def room(cpu=4000, pods=10, cards=()):
    """One node with this much free."""
    allocatable = np.array([[cpu], [2**33], [0], [pods]], np.int64)
    used = np.full((len(cards), 16), 0xFFFF, np.uint16)
    for row, millis in enumerate(cards):
        used[row, : len(millis)] = millis
    return Changes(rooms=(Room(SCHEMA, allocatable, np.zeros_like(allocatable), used),))


def node(aspects=Aspect.ADDED, labels=(), before=(), **fields):
    return Changes(
        nodes=(NodeChange(NodeSpec("n1", labels=tuple(labels), **fields), aspects, tuple(before)),)
    )


def pods(app, namespace="default", **fields):
    return frozenset({group_of(PodSpec(namespace=namespace, labels=(("app", app),), **fields))})


def selects(app):
    return LabelSelector((Requirement("app", "In", (app,)),))


def term(app, key=ZONE, namespaces=("default",), **fields):
    return PodAffinityTerm(key, selects(app), namespaces, **fields)


def claims(*names):
    return Changes(claims=frozenset(("default", name) for name in names))


def storage(*kinds):
    return Changes(storage=frozenset(kinds))


MOUNTS = PodSpec(volumes=PodVolumes((ClaimMount("data"),)))
PLAIN = PodSpec(requests=(("cpu", 1000),))
CARDS = PodSpec(devices=DeviceRequest(1, 500))
ON_SSD = PodSpec(node_selector=(("disk", "ssd"),))
IN_ZONE_A = PodSpec(
    required_node_affinity=NodeSelector((NodeSelectorTerm((Requirement(ZONE, "In", ("a",)),)),))
)
NAMED = PodSpec(node_name="n1")
TOLERANT = PodSpec(tolerations=(Toleration("gpu", "Exists"),))
WANTS_DEVICES = PodSpec(claims=PodClaims("p", "u", (), (ContainerRequests("c", 0, ((0, "a/b", 1),)),)))
RESTARTS_ALL = PodSpec(required_features=("RestartAll",))
PORTS = PodSpec(host_ports=(HostPort(80),))
NEAR_DB = PodSpec(pod_affinity=PodAffinity(required=(term("db"),)))
FAR_FROM_DB = PodSpec(labels=(("app", "web"),), pod_affinity=PodAffinity(anti_required=(term("db"),)))
WEB = PodSpec(labels=(("app", "web"),))
SHUNS_WEB = PodAffinity(anti_required=(term("web"),))
SPREAD = PodSpec(labels=(("app", "web"),), spread=(SpreadConstraint(1, ZONE, selects("web")),))
SOFT_SPREAD = replace(SPREAD, spread=(SpreadConstraint(1, ZONE, selects("web"), required=False),))
SPREAD_BY_TAINTS = replace(SPREAD, spread=(SpreadConstraint(1, ZONE, selects("web"), honor_taints=True),))

ROWS = [
    ("a node has room for the request now", "NodeResourcesFit", PLAIN, room(cpu=1000), True),
    ("a node has more room, but not enough", "NodeResourcesFit", PLAIN, room(cpu=999), False),
    ("a node has cpu but its pods are full", "NodeResourcesFit", PLAIN, room(pods=0), False),
    ("a resource that no node ever offered is not there now", "NodeResourcesFit",
     PodSpec(requests=(("example.com/fpga", 1),)), room(), False),
    ("of a resource that no node ever offered none is asked", "NodeResourcesFit",
     PodSpec(requests=(("example.com/fpga", 0),)), room(), True),
    ("another node is untainted, which gives no room", "NodeResourcesFit", PLAIN, node(Aspect.TAINTS), False),
    ("a class may stand for what it asks for", "NodeResourcesFit", WANTS_DEVICES, storage("DeviceClass"),
        True),
    ("no class stands for cpu", "NodeResourcesFit", PLAIN, storage("DeviceClass"), False),
    ("half a card is free", "DeviceCards", CARDS, room(cards=([1000, 500],)), True),
    ("two quarters of two cards are free", "DeviceCards", CARDS, room(cards=([750, 750],)), False),
    ("cpu is free where there are no cards", "DeviceCards", CARDS, room(), False),
    ("the last taint is gone", "TaintToleration", PLAIN, node(Aspect.TAINTS), True),
    ("another taint is there instead", "TaintToleration",
     PLAIN, node(Aspect.TAINTS, taints=(GPU_TAINT,)), False),
    ("the taint that is left is tolerated", "TaintToleration",
     TOLERANT, node(Aspect.TAINTS, taints=(GPU_TAINT,)), True),
    ("a soft taint keeps nobody away", "TaintToleration", PLAIN,
     node(Aspect.TAINTS, taints=(Taint("a", "", "PreferNoSchedule"),)), True),
    ("a new node without taints", "TaintToleration", PLAIN, node(), True),
    ("a new node with a taint", "TaintToleration", PLAIN, node(taints=(GPU_TAINT,)), False),
    ("room on some node removes no taint", "TaintToleration", PLAIN, room(), False),
    ("a node is uncordoned", "NodeUnschedulable", PLAIN, node(Aspect.UNCORDONED), True),
    ("a new node is cordoned", "NodeUnschedulable", PLAIN, node(unschedulable=True), False),
    ("labels do not uncordon", "NodeUnschedulable", PLAIN, node(Aspect.LABELS), False),
    ("a node gets the label", "NodeAffinity", ON_SSD, node(Aspect.LABELS, [("disk", "ssd")]), True),
    ("a node gets another label", "NodeAffinity", ON_SSD, node(Aspect.LABELS, [("disk", "hdd")]), False),
    ("a new node in the zone", "NodeAffinity", IN_ZONE_A, node(labels=[(ZONE, "a")]), True),
    ("a new node in another zone", "NodeAffinity", IN_ZONE_A, node(labels=[(ZONE, "b")]), False),
    ("a node with the label loses a taint", "NodeAffinity",
     ON_SSD, node(Aspect.TAINTS, [("disk", "ssd")]), False),
    ("the node it names comes", "NodeName", NAMED, node(), True),
    ("the node it names changes its labels", "NodeName", NAMED, node(Aspect.LABELS), False),
    ("the port's owner leaves", "NodePorts",
     PORTS, Changes(deleted_pods=pods("x", host_ports=(HostPort(80),))), True),
    ("the owner of another port leaves", "NodePorts",
     PORTS, Changes(deleted_pods=pods("x", host_ports=(HostPort(81),))), False),
    ("the owner of the same UDP port leaves", "NodePorts", PORTS,
     Changes(deleted_pods=pods("x", host_ports=(HostPort(80, "UDP"),))), False),
    ("the port's owner on one address leaves", "NodePorts", PORTS,
     Changes(deleted_pods=pods("x", host_ports=(HostPort(80, "TCP", "10.0.0.1"),))), True),
    ("a pod it wants to be near comes", "InterPodAffinity", NEAR_DB, Changes(bound_pods=pods("db")), True),
    ("a pod it wants to be near leaves", "InterPodAffinity",
     NEAR_DB, Changes(deleted_pods=pods("db")), False),
    ("a pod like it comes in another namespace", "InterPodAffinity",
     NEAR_DB, Changes(bound_pods=pods("db", "other")), False),
    ("a pod comes in a namespace that a selector may mean", "InterPodAffinity",
     PodSpec(pod_affinity=PodAffinity(required=(
         term("db", namespaces=(), namespace_selector=LabelSelector()),))),
     Changes(bound_pods=pods("db", "other")), True),
    ("the pod it shuns is deleted", "InterPodAffinity", FAR_FROM_DB, Changes(deleted_pods=pods("db")), True),
    ("a pod it does not shun is deleted", "InterPodAffinity",
     FAR_FROM_DB, Changes(deleted_pods=pods("cache")), False),
    ("the pod it shuns comes", "InterPodAffinity", FAR_FROM_DB, Changes(bound_pods=pods("db")), False),
    ("the pod that shuns it is deleted", "InterPodAffinity",
     WEB, Changes(deleted_pods=pods("x", pod_affinity=SHUNS_WEB)), True),
    ("a node of a new zone comes", "InterPodAffinity", FAR_FROM_DB, node(labels=[(ZONE, "c")]), True),
    ("a node without a zone comes", "InterPodAffinity", FAR_FROM_DB, node(labels=[(HOST, "n1")]), False),
    ("a node moves to another zone", "InterPodAffinity", FAR_FROM_DB,
     node(Aspect.LABELS, [(ZONE, "c")], [(ZONE, "b")]), True),
    ("a node gets a label that is no domain", "InterPodAffinity", FAR_FROM_DB,
     node(Aspect.LABELS, [(ZONE, "b"), ("x", "y")], [(ZONE, "b")]), False),
    ("room alone separates nobody", "InterPodAffinity", FAR_FROM_DB, room(), False),
    ("a counted pod leaves", "PodTopologySpread", SPREAD, Changes(deleted_pods=pods("web")), True),
    ("a pod goes, and the constraint is its profile's", "PodTopologySpread", PodSpec(),
     Changes(deleted_pods=pods("web")), True),
    ("a node comes, and the constraint is its profile's", "PodTopologySpread", PodSpec(),
     node(labels=[(ZONE, "c")]), True),
    ("a pod goes elsewhere, and the constraint is its profile's", "PodTopologySpread",
     PodSpec(namespace="other"), Changes(deleted_pods=pods("web")), False),
    ("a counted pod comes", "PodTopologySpread", SPREAD, Changes(bound_pods=pods("web")), True),
    ("a pod that is not counted leaves", "PodTopologySpread",
     SPREAD, Changes(deleted_pods=pods("db")), False),
    ("a counted pod of another namespace leaves", "PodTopologySpread",
     SPREAD, Changes(deleted_pods=pods("web", "other")), False),
    ("a constraint that only prefers refuses nobody", "PodTopologySpread",
     SOFT_SPREAD, Changes(deleted_pods=pods("web")), False),
    ("a zone's node goes", "PodTopologySpread", SPREAD, node(Aspect.REMOVED, [(ZONE, "c")]), True),
    ("a node of a zone comes", "PodTopologySpread", SPREAD, node(labels=[(ZONE, "c")]), True),
    ("taints do not matter to it", "PodTopologySpread", SPREAD, node(Aspect.TAINTS, [(ZONE, "c")]), False),
    ("taints decide which nodes count", "PodTopologySpread",
     SPREAD_BY_TAINTS, node(Aspect.TAINTS, [(ZONE, "c")]), True),
    ("the pod's claim comes or changes", "VolumeBinding", MOUNTS, claims("other", "data"), True),
    ("the claim of another pod changes", "VolumeBinding", MOUNTS, claims("other"), False),
    ("a volume comes", "VolumeBinding", MOUNTS, storage("PersistentVolume"), True),
    ("a volume is attached somewhere", "VolumeBinding", MOUNTS, storage("VolumeAttachment"), False),
    ("a node that may reach a volume comes", "VolumeBinding", MOUNTS, node(), True),
    ("taints hide no volume", "VolumeBinding", MOUNTS, node(Aspect.TAINTS), False),
    ("a pod left, whose volume was perhaps never bound", "VolumeBinding", MOUNTS, room(), True),
    ("a claim of the pod is bound to a volume in a zone", "VolumeZone", MOUNTS, claims("data"), True),
    ("room is in every zone", "VolumeZone", MOUNTS, room(), False),
    ("a pod left that may have had the claim", "VolumeRestrictions", MOUNTS, room(), True),
    ("a pod with volumes is deleted on a cordoned node", "VolumeRestrictions",
     MOUNTS, Changes(deleted_pods=frozenset((group_of(MOUNTS),))), True),
    ("a pod without volumes is deleted", "VolumeRestrictions",
     MOUNTS, Changes(deleted_pods=pods("x")), False),
    ("a driver attaches more", "NodeVolumeLimits", MOUNTS, storage("CSINode"), True),
    ("an attachment goes", "NodeVolumeLimits", MOUNTS, storage("VolumeAttachment"), True),
    ("a class comes", "NodeVolumeLimits", MOUNTS, storage("StorageClass"), False),
    ("a device claim comes", "DynamicResources", PLAIN, storage("ResourceClaim"), True),
    ("devices are published", "DynamicResources", PLAIN, storage("ResourceSlice"), True),
    ("a node gets room, with devices maybe", "DynamicResources", PLAIN, room(), True),
    ("a volume comes", "DynamicResources", PLAIN, storage("PersistentVolume"), False),
    ("a kubelet learns a feature", "NodeDeclaredFeatures",
     RESTARTS_ALL, node(Aspect.FEATURES, declared_features=("A", "RestartAll")), True),
    ("a kubelet learns another feature", "NodeDeclaredFeatures",
     RESTARTS_ALL, node(Aspect.FEATURES, declared_features=("A",)), False),
    ("a new node has the feature", "NodeDeclaredFeatures",
     RESTARTS_ALL, node(declared_features=("RestartAll",)), True),
    ("labels are no features", "NodeDeclaredFeatures",
     RESTARTS_ALL, node(Aspect.LABELS, declared_features=("RestartAll",)), False),
    ("a pod of others waits for the room no longer", "NodeResourcesFit", PLAIN, storage("NominatedPod"),
        True),
    ("room that is waited for has no taints", "TaintToleration", PLAIN, storage("NominatedPod"), False),
    ("a plugin from outside is woken by everything", "example.com/Custom", PLAIN, node(Aspect.LABELS), True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("plugin", "spec", "changes", "helps"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS]
)
def test_hint(plugin, spec, changes, helps):
    assert worth_another_attempt(spec, frozenset({plugin}), changes) is helps


@pytest.mark.parametrize("plugin", [*HINTS, "example.com/Custom"])
def test_no_change_helps_nobody_and_an_unknown_one_may_help_everybody(plugin):
    assert not worth_another_attempt(PLAIN, frozenset({plugin}), Changes())
    assert worth_another_attempt(PLAIN, frozenset({plugin}), ANYTHING)


def test_a_pod_of_which_nobody_knows_who_refused_it_is_woken_by_everything():
    assert worth_another_attempt(PLAIN, frozenset(), node(Aspect.LABELS))
    assert not worth_another_attempt(PLAIN, frozenset(), Changes())


def test_one_plugin_that_changes_its_mind_is_enough():
    refused_by = frozenset({"NodeResourcesFit", "TaintToleration"})
    assert worth_another_attempt(PLAIN, refused_by, node(Aspect.TAINTS))
    assert worth_another_attempt(PLAIN, refused_by, room())
    assert not worth_another_attempt(PLAIN, refused_by, node(Aspect.LABELS))


def test_changes_together_are_what_each_of_them_is():
    both = merge([room(cpu=100), node(Aspect.TAINTS), room(cpu=2000)])
    assert len(both.rooms) == 1
    assert worth_another_attempt(PLAIN, frozenset({"NodeResourcesFit"}), both)
    assert worth_another_attempt(PLAIN, frozenset({"TaintToleration"}), both)


def test_a_view_misses_what_the_feed_reported_after_it():
    history = ChangeHistory()
    sent = history.number
    history.record(room(), now=0.0, shard=0, seq=7)
    assert not list(history.unseen_by(sent, {0: 7}))
    assert list(history.unseen_by(sent, {0: 6}))
    assert list(history.unseen_by(sent, {}))
    assert not list(history.unseen_by(history.number, {}))


def test_a_view_between_two_changes_of_one_moment_misses_the_latter_alone():
    history = ChangeHistory()
    sent = history.number
    history.record(room(), now=0.0, shard=0, seq=7)
    history.record(node(Aspect.TAINTS), now=0.01, shard=0, seq=8)
    history.record(node(Aspect.LABELS), now=0.02, shard=1, seq=3)
    (processed,) = history.take_pending(0.0)
    assert (len(processed.rooms), len(processed.nodes)) == (1, 2), "one window"

    def missed(seen, since=sent):
        return [
            (len(m.rooms), [change.aspects for change in m.nodes]) for m in history.unseen_by(since, seen)
        ]

    assert missed({0: 6, 1: 2}) == [(1, [Aspect.TAINTS, Aspect.LABELS])]
    assert missed({0: 7, 1: 2}) == [(0, [Aspect.TAINTS, Aspect.LABELS])]
    assert missed({0: 7, 1: 3}) == [(0, [Aspect.TAINTS])]
    assert missed({0: 8, 1: 3}) == []
    assert missed({1: 3}) == [(1, [Aspect.TAINTS])], "nothing is known of shard 0"
    assert missed({0: 8}, since=sent + 2) == [(0, [Aspect.LABELS])]
    assert missed({0: 8}, since=sent + 3) == []


def test_a_change_of_its_own_helps_who_was_sent_before_it_whatever_the_view():
    history = ChangeHistory()
    history.record(Changes(relabelled=frozenset(["team-a"])), 0.0)
    sent = history.number
    assert not list(history.unseen_by(sent, {0: 7}))
    assert list(history.unseen_by(sent - 1, {0: 7})), "sent before the change was known"
    history.record(Changes(relabelled=frozenset(["team-b"])), 0.01)
    assert list(history.unseen_by(sent, {0: 7})), "sent before the next of the same window"
    assert not history.take_pending(0.05), "workers learn of it through the feed first"
    assert history.take_pending(0.2)


def test_a_view_too_old_for_the_history_may_miss_anything():
    history = ChangeHistory()
    for seq in range(1, 400):
        history.record(room(), now=float(seq), shard=0, seq=seq)
    assert ANYTHING in list(history.unseen_by(0, {0: 5}))
    assert ANYTHING not in list(history.unseen_by(0, {0: 390}))


def test_a_change_is_processed_once_and_not_again_with_later_ones():
    history = ChangeHistory()
    history.record(node(Aspect.TAINTS), now=0.0, shard=0, seq=1)
    assert len(history.take_pending(0.0)) == 1
    history.record(node(Aspect.LABELS), now=0.01, shard=0, seq=2)
    (told,) = history.take_pending(0.05)
    assert [change.aspects for change in told.nodes] == [Aspect.LABELS]
    assert history.none_pending


def test_the_dispatchers_own_changes_are_processed_a_moment_later_and_delay_nothing_else():
    history = ChangeHistory()
    for step in range(5):
        history.record(Changes(relabelled=frozenset(["team-a"])), now=0.01 * step)
        history.record(node(Aspect.TAINTS), now=0.01 * step, shard=0, seq=step)
    (told,) = history.take_pending(0.05)
    assert (len(told.nodes), told.relabelled) == (5, frozenset())
    assert not history.take_pending(0.05)
    assert not history.none_pending
    assert [told.relabelled for told in history.take_pending(0.2)] == [frozenset(["team-a"])]
    assert history.none_pending
