"""Room that other schedulers' nominated pods wait for: it counts in filters for pods that are no more
urgent."""

import numpy as np
import pytest

from hoss.model.cluster import NominatedPod, StorageUpdate, storage_key_of
from hoss.model.pod import PodAffinity, PodAffinityTerm
from hoss.model.selectors import LabelSelector, Requirement

COMMITTED, UNSCHEDULABLE = 1, 2
HOSTNAME = "kubernetes.io/hostname"
ALONE = PodAffinity(
    anti_required=(PodAffinityTerm(HOSTNAME, LabelSelector((Requirement("app", "In", ("a",)),))),)
)


@pytest.fixture
def harness(make_ledger, harness_of):
    """One node of 4,000 milli cpu; another with 1,000 free, so that the first is always the better one."""
    ledger = make_ledger(2)
    made = harness_of(ledger)
    made.cache.apply_feed(ledger.reserve([1], [np.array([3000, 2**28, 0, 1, 0, 0])]))
    return made


def nominated(harness, name="n", node=0, *, cpu=3500, priority=10):
    return NominatedPod("default", name, harness.cache.catalogue.name(node), priority, (("cpu", cpu),))


def nodes_of(harness, spec, count=1):
    """Where these pods go, placed one batch after another; None for those that fit nowhere."""
    harness.submit(*[(spec, 1)] * count)
    proposals = harness.place()
    harness.settle(proposals)
    return [node for _, node, _ in harness.outcomes()]


@pytest.mark.parametrize(("priority", "node"), [(0, 1), (10, 1), (11, 0)])
@pytest.mark.parametrize("spread", [False, True])
def test_a_pod_that_is_no_more_urgent_leaves_the_room_alone(harness, make_pod, priority, node, spread):
    harness.scheduler.update_storage(StorageUpdate((nominated(harness),)))
    rules = {"pod_affinity": ALONE, "labels": (("app", "a"),)} if spread else {}
    assert nodes_of(harness, make_pod(cpu=800, priority=priority, **rules)) == [node]


def test_a_class_that_was_placed_before_is_judged_anew(harness, make_pod):
    spec = make_pod(cpu=100)
    assert nodes_of(harness, spec) == [0]
    pod = nominated(harness, cpu=3900)
    harness.scheduler.update_storage(StorageUpdate((pod,)))
    assert nodes_of(harness, spec) == [1]
    harness.scheduler.update_storage(StorageUpdate(gone=(storage_key_of(pod),)))
    assert nodes_of(harness, spec) == [0]


def test_a_run_of_equal_pods_stops_where_the_room_begins(harness, make_pod):
    harness.scheduler.update_storage(StorageUpdate((nominated(harness, cpu=3000),)))
    harness.submit((make_pod(cpu=400), 6))
    harness.settle(harness.place())
    codes = [(code, node) for code, node, _ in harness.outcomes()]
    assert sorted(node for code, node in codes if code == COMMITTED) == [0, 0, 1, 1]
    assert [code for code, _ in codes].count(UNSCHEDULABLE) == 2


def test_the_reason_is_that_of_a_full_node(harness, make_pod):
    pods = [nominated(harness), nominated(harness, "m", node=1, cpu=900)]
    harness.scheduler.update_storage(StorageUpdate(tuple(pods)))
    harness.submit((make_pod(cpu=600), 1))
    harness.settle(harness.place())
    [(code, _, reason)] = harness.outcomes()
    assert (code, reason) == (UNSCHEDULABLE, "0/2 nodes are available: 2 Insufficient cpu.")


def test_a_pod_counts_where_it_is_nominated_last_and_nowhere_after_a_complete_list(harness, make_pod):
    harness.scheduler.update_storage(StorageUpdate((nominated(harness),)))
    harness.scheduler.update_storage(StorageUpdate((nominated(harness, node=1, cpu=900),)))
    assert nodes_of(harness, make_pod(cpu=600), count=2) == [0, 0]
    harness.scheduler.update_storage(StorageUpdate(complete=True))
    assert sorted(nodes_of(harness, make_pod(cpu=800), count=4)) == [0, 0, 0, 1]


def test_the_room_counts_once_its_node_is_known_and_in_resources_that_come_later(
    make_ledger, harness_of, make_pod
):
    ledger = make_ledger(1)
    harness = harness_of(ledger)
    ledger.add(1)
    name = ledger.specs[1].name
    pod = NominatedPod("default", "n", name, 10, (("cpu", 4000), ("example.com/disk", 1)))
    harness.scheduler.update_storage(StorageUpdate((pod,)))
    harness.cache.apply_feed(ledger.snapshot())
    assert nodes_of(harness, make_pod(cpu=100), count=3) == [0, 0, 0]


def test_classes_of_many_priorities_share_a_ranking_where_the_same_pods_count(harness):
    pods = harness.cache.pod_index.nominated
    assert {pods.threshold(priority) for priority in (-5, 0, 2**31 - 1)} == {0}
    harness.scheduler.update_storage(
        StorageUpdate((nominated(harness), nominated(harness, "m", priority=20)))
    )
    assert [pods.threshold(priority) for priority in (-5, 10, 11, 20, 21, 2**31 - 1)] == [
        10,
        10,
        20,
        20,
        21,
        21,
    ]
