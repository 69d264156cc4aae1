"""How much the orders of several workers have in common, as the dispatcher wants it."""

import numpy as np
import pytest

from hoss.model.conflicts import Overlap, Preference
from hoss.model.pod import PodAffinity, PodAffinityTerm, SpreadConstraint, WeightedPodTerm
from hoss.model.selectors import LabelSelector, NodeSelectorTerm, PreferredTerm, Requirement
from hoss.v1 import workerlink_pb2
from scheduler_worker import messages
from scheduler_worker.core.placement.ties import MAX_LEVELS, SCORE_SHIFT, TieOrder

SHARED, SHUFFLED, SOFT = Overlap.SHARED, Overlap.SHUFFLED, Overlap.SOFT_PARTITION


def order(ties):
    """Nodes, the one taken first of equal scores first."""
    return np.argsort(ties.bits)[::-1].tolist()


def shares(count, size):
    """Which nodes have something ahead, worker by worker."""
    found = []
    for number in range(count):
        ties = TieOrder(np.random.default_rng(number))
        ties.set_preference(Preference(SOFT, number, count))
        ties.cover(size)
        found.append(set(np.flatnonzero(ties.bits >> SCORE_SHIFT).tolist()))
    return found


def test_shuffled_orders_differ_and_shared_ones_do_not():
    orders = {}
    for overlap in (SHUFFLED, SHARED):
        for seed in (1, 2):
            ties = TieOrder(np.random.default_rng(seed))
            ties.set_preference(Preference(overlap))
            ties.cover(100)
            orders[overlap, seed] = order(ties)
    assert orders[SHUFFLED, 1] != orders[SHUFFLED, 2]
    assert orders[SHARED, 1] == orders[SHARED, 2]
    assert sorted(orders[SHARED, 1]) == list(range(100))


def test_a_shared_order_does_not_depend_on_when_nodes_were_heard_of():
    at_once, by_and_by = (TieOrder(np.random.default_rng(seed)) for seed in (1, 2))
    for ties in (at_once, by_and_by):
        ties.set_preference(Preference(SHARED))
    at_once.cover(1000)
    for size in (10, 300, 700, 1000):
        by_and_by.cover(size)
    assert [n for n in order(at_once) if n < 1000] == [n for n in order(by_and_by) if n < 1000]


@pytest.mark.parametrize("size", [40, 1000, 5003])
@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_a_partition_gives_every_node_to_one_worker_and_all_about_as_many(count, size):
    found = shares(count, size)
    assert set.union(*found) == set(range(size))
    assert sum(map(len, found)) == size
    assert max(map(len, found)) - min(map(len, found)) <= 3


@pytest.mark.parametrize("period", [2, 3, 5])
def test_a_partition_cuts_across_zones_and_shards(period):
    for share in shares(4, 1200):
        of_zones = np.bincount(np.array(sorted(share)) % period, minlength=period)
        assert of_zones.min() > 0.8 * of_zones.max()


def test_keys_still_name_their_nodes():
    ties = TieOrder(np.random.default_rng(1))
    ties.set_preference(Preference(SOFT, 1, 3))
    ties.cover(50)
    keys = (np.int64(7) << SCORE_SHIFT) + ties.bits + (MAX_LEVELS - 1)
    assert ties.nodes_of(keys).tolist() == list(range(50))


def test_the_same_preference_again_changes_nothing():
    ties = TieOrder(np.random.default_rng(1))
    ties.cover(50)
    bits, version = ties.bits.copy(), ties.version
    ties.set_preference(Preference(SHUFFLED))
    assert ties.version == version
    assert (ties.bits == bits).all()


def placed_on(harness, spec, count):
    """The nodes that `count` pods get, in order."""
    harness.submit((spec, count))
    return [int(node) for columns in harness.place() for node in columns.candidates[:, 0]]


@pytest.fixture
def even(harness_of, make_ledger):
    """40 equal nodes with 4 cpus and 8 GiB each."""
    return harness_of(make_ledger(40))


@pytest.fixture
def large(make_pod):
    """A quarter of a node."""
    return make_pod(1000, 2 * 2**30)


@pytest.fixture
def modest(make_pod):
    return make_pod(100, 2**27)


def test_own_nodes_are_taken_first(even, large, modest):
    even.scheduler.set_preference(Preference(SOFT, 0, 4))
    own = shares(4, 40)[0]
    assert set(placed_on(even, modest, len(own))) == own


def test_a_node_outside_is_taken_as_soon_as_no_own_one_has_room(even, large):
    even.scheduler.set_preference(Preference(SOFT, 0, 4))
    own = shares(4, 40)[0]
    nodes = placed_on(even, large, 160)
    assert set(nodes[: 4 * len(own)]) == own
    assert set(nodes) == set(range(40))


def test_what_somebody_wrote_down_outweighs_the_share(harness_of, make_ledger, make_pod):
    outside = min(set(range(40)) - shares(4, 40)[0])
    ledger = make_ledger(40)
    ledger.add(outside, labels=(("disk", "ssd"),))
    harness = harness_of(ledger)
    harness.scheduler.set_preference(Preference(SOFT, 0, 4))
    wish = PreferredTerm(100, NodeSelectorTerm((Requirement("disk", "In", ("ssd",)),)))
    assert placed_on(harness, make_pod(preferred_node_affinity=(wish,)), 1) == [outside]


@pytest.mark.parametrize("rule", ["spread", "default_spread", "pod_affinity"])
def test_pods_that_want_to_be_apart_do_not_crowd_in_the_share(harness_of, make_ledger, make_pod, rule):
    ledger = make_ledger()
    for index in range(40):
        ledger.add(index, labels=(("kubernetes.io/hostname", f"n{index}"),))
    harness = harness_of(ledger)
    own = LabelSelector((Requirement("app", "In", ("web",)),))
    term = PodAffinityTerm("kubernetes.io/hostname", own, ("default",))
    rules = {
        "spread": (SpreadConstraint(1, "kubernetes.io/hostname", own, required=False),),
        "default_spread": own,
        "pod_affinity": PodAffinity(anti_preferred=(WeightedPodTerm(1, term),)),
    }
    harness.scheduler.set_preference(Preference(SOFT, 0, 4))
    alike = {"namespace": "default", "labels": (("app", "web"),)}
    # With these, one pod more or less on another node is a small part of a score.
    placed_on(harness, make_pod(100, 2**27, node_selector=(("kubernetes.io/hostname", "n0"),), **alike), 10)
    pod = make_pod(100, 2**27, **alike, **{rule: rules[rule]})
    assert len(set(placed_on(harness, pod, 39))) == 39


def test_no_pod_is_unschedulable_for_its_worker_s_share(even, large, modest):
    even.scheduler.set_preference(Preference(SOFT, 3, 4))
    assert len(placed_on(even, large, 160)) == 160


def test_a_preference_is_changed_at_run_time(even, large, modest):
    even.scheduler.set_preference(Preference(SOFT, 0, 4))
    first = placed_on(even, modest, 10)
    even.scheduler.set_preference(Preference(SOFT, 1, 4))
    second = placed_on(even, modest, 10)
    assert set(first) <= shares(4, 40)[0]
    assert set(second) <= shares(4, 40)[1]


def test_an_overlap_of_a_newer_dispatcher_is_left_alone():
    assert messages.preference(workerlink_pb2.Preference(overlap="scattered")) is None
    assert messages.preference(workerlink_pb2.Preference(overlap="shared")) == Preference(SHARED, 0, 1)
