"""Figures of a run from what a platform shows."""

import numpy as np
import pytest

from hoss.model.pod import DeviceRequest, PodSpec
from hoss.statistics import BOUNDS_SECONDS, Histogram
from hoss.v1 import common_pb2, dispatcher_pb2, resolver_pb2
from hossctl.compare import figures
from hossctl.compare.figures import LeftOver, Pool


def info(name, allocatable, requested, cards=(), labels=()):
    spec = common_pb2.NodeSpec(
        name=name,
        cards=len(cards),
        allocatable=[common_pb2.Amount(resource=r, amount=n) for r, n in allocatable.items()],
        labels=[common_pb2.Label(key=k, value=v) for k, v in labels],
    )
    used = [common_pb2.Amount(resource=r, amount=n) for r, n in requested.items()]
    return resolver_pb2.NodeInfo(spec=spec, requested=used, cards_used_milli=cards)


OFFER = {"cpu": 1000, "memory": 100, "pods": 10}


def pool(*used, **fields):
    return Pool.of([info(f"n{i}", OFFER, {"pods": 0, **amounts}, **fields) for i, amounts in enumerate(used)])


def a_spec(cpu, memory=0, **fields):
    return PodSpec(requests=(("cpu", cpu), ("memory", memory)), **fields)


def test_overcommitted_nodes_are_counted_once_and_their_excess_by_resource():
    found = figures.overcommit(pool({"cpu": 1500, "memory": 110}, {"cpu": 1000}, {"cpu": 1200}))
    assert (found.nodes, found.worst, found.excess) == (2, 1.5, {"cpu": 700, "memory": 10})


def test_a_card_may_be_sold_twice_too():
    found = figures.overcommit(pool({}, cards=(1300, 200)))
    assert (found.nodes, found.worst, found.excess) == (1, 1.3, {"cards": 300})


def test_a_pool_within_its_means_has_no_excess():
    found = figures.overcommit(pool({"cpu": 1000}, {"cpu": 10}))
    assert (found.nodes, found.worst, found.excess) == (0, 1.0, {})


def test_utilisation_is_of_what_is_asked_for_and_of_cards():
    assert figures.utilisation_of(pool({"cpu": 500}, {"cpu": 1000}, cards=(500, 0))) == {
        "cpu": 0.75,
        "cards": 0.25,
    }


def test_pods_without_a_place_count_where_some_node_has_room_for_them_alone():
    there = pool({"cpu": 900}, {"cpu": 300, "memory": 100})
    specs = [a_spec(100, 100), a_spec(700), a_spec(701), a_spec(200, 1)]
    left = [LeftOver(((spec, pods),)) for spec, pods in zip(specs, [1, 10, 100, 1000], strict=True)]
    assert figures.with_room(there, left) == 11


def test_pods_of_a_gang_count_where_all_that_it_needs_have_room_together():
    there = pool({"cpu": 900}, {"cpu": 300, "memory": 60})
    one = a_spec(100, 10)
    assert [figures.with_room(there, [LeftOver(((one, 20),), needed)]) for needed in (1, 5, 6, 20)] == [
        20,
        20,
        0,
        0,
    ]
    cards = pool({}, cards=(0, 600))
    shares = a_spec(1, devices=DeviceRequest(1, 400))
    assert [figures.with_room(cards, [LeftOver(((shares, 4),), needed)]) for needed in (3, 4)] == [4, 0]


def test_pods_of_several_specs_in_a_gang_count_together():
    there = pool({"cpu": 900})
    left = [(a_spec(100), 1), (a_spec(200), 8)]
    assert [figures.with_room(there, [LeftOver(tuple(left), needed)]) for needed in (1, 2)] == [9, 0]


def test_room_counts_on_nodes_that_the_pods_selectors_accept():
    there = Pool.of([info("a", OFFER, {}, labels=[("disk", "ssd")]), info("b", OFFER, {"cpu": 1000})])
    assert there.room_for(a_spec(1, node_selector=(("disk", "ssd"),)))
    assert not there.room_for(a_spec(1, node_selector=(("disk", "hdd"),)))


def test_room_for_cards_is_room_on_the_cards_of_one_node():
    there = pool({}, cards=(0, 600))
    assert there.room_for(a_spec(1, devices=DeviceRequest(1, 1000)))
    assert there.room_for(a_spec(1, devices=DeviceRequest(2, 400)))
    assert not there.room_for(a_spec(1, devices=DeviceRequest(2, 500)))


def test_nobody_has_room_for_a_resource_that_no_node_offers():
    assert not pool({}).room_for(PodSpec(requests=(("example.com/fpga", 1),)))


def test_fragmentation_is_the_share_of_free_amounts_where_the_median_pod_does_not_fit():
    there = pool({"cpu": 900, "memory": 10}, {"cpu": 700, "memory": 90})
    pods = np.array([1, 5, 1])
    specs = [a_spec(50, 5), a_spec(200, 10), a_spec(900, 90)]
    assert figures.fragmentation(there, specs, pods) == {
        "cpu": pytest.approx(0.25),
        "memory": pytest.approx(0.9),
    }


def test_nothing_free_is_not_fragmented():
    assert figures.fragmentation(pool({"cpu": 1000}), [a_spec(100)], np.array([1])) == {"cpu": 0.0}


def test_percentiles_of_a_histogram_are_right_to_its_buckets():
    times = np.random.default_rng(1).lognormal(-4, 1, 20_000)
    histogram = Histogram()
    histogram.add(times)
    told = dispatcher_pb2.PhaseTimes(
        phase="queued", bounds_seconds=BOUNDS_SECONDS, counts=histogram.counts.tolist()
    )
    found, exact = figures.phases_of([told])["queued"], figures.latency_of(times)
    for level in ("p50", "p99", "p999"):
        assert getattr(found, level) == pytest.approx(getattr(exact, level), rel=0.1)


def test_a_phase_without_pods_is_left_out():
    empty = dispatcher_pb2.PhaseTimes(
        phase="queued", bounds_seconds=BOUNDS_SECONDS, counts=Histogram().counts.tolist()
    )
    assert figures.phases_of([empty]) == {}


def test_the_curve_ascends_to_the_slowest_pod():
    times = np.random.default_rng(1).exponential(0.1, 1000)
    curve = figures.curve_of(times)
    assert curve == sorted(curve)
    assert curve[-1] == (round(float(times.max()) * 1000, 3), 1.0)
    for milliseconds, share in curve:
        assert np.mean(times * 1000 <= milliseconds + 0.001) >= share - 1e-9


def test_figures_of_no_pods_are_zeros():
    assert figures.latency_of(np.empty(0)).p99 == 0.0
    assert figures.curve_of(np.empty(0)) == []
    assert figures.fragmentation(pool({}), [], np.empty(0, np.int64)) == {}


def test_a_refusal_that_is_only_a_gangs_is_none_of_a_pods_own():
    counters = {
        "committed": 9,
        "duplicate": 1,
        "conflict_resource": 2,
        "conflict_topology": 3,
        "node_gone": 4,
        "gang_aborted": 7,
    }
    assert figures.refusals(counters) == 9


def test_gpu_that_no_pod_of_the_load_can_use_is_fragmented():
    """FGD's own example in small: half of a card is free twice, and the pods that come want whole cards."""
    whole = a_spec(10, devices=DeviceRequest(1, 1000))
    half = a_spec(10, devices=DeviceRequest(1, 500))
    there = pool({}, cards=(500, 500))
    found = [
        figures.gpu_fragmentation(there, [whole, half], np.array(pods)) for pods in ([1, 0], [0, 1], [1, 3])
    ]
    assert found == [pytest.approx(0.5), pytest.approx(0.0), pytest.approx(0.125)]
    without_cpu = pool({"cpu": 995}, cards=(0, 0))
    assert figures.gpu_fragmentation(without_cpu, [whole], np.array([1])) == pytest.approx(1.0)
    assert figures.gpu_fragmentation(pool({}), [whole], np.array([1])) is None


def test_room_is_stranded_where_no_whole_pod_fits():
    there = pool({"cpu": 400, "memory": 95}, {"cpu": 500, "memory": 0})
    found = figures.stranded(there, [a_spec(100, 10), a_spec(600, 1)], np.array([1, 1]))
    # Of the first node nothing is usable by the first, for lack of memory, and all by the second; of the
    # other node it is the first alone.
    assert found["cpu"] == pytest.approx((600 / 2 + 500 / 2) / 2000)
    assert figures.stranded(there, [a_spec(1, 1)], np.array([1]))["cpu"] == pytest.approx(0.0)
    assert figures.stranded(there, [], np.empty(0, np.int64)) == {}


def test_spread_is_zero_where_nodes_are_equally_full_and_half_where_half_are_empty():
    assert figures.spread(pool({"cpu": 300}, {"cpu": 300}))["cpu"] == 0.0
    assert figures.spread(pool({"cpu": 1000}, {}))["cpu"] == 0.5
    assert figures.spread(pool({})) == {}


@pytest.mark.parametrize(
    ("bound", "index"), [([5, 2], 1.0), ([0, 2], 0.5), ([5, 0], 0.5), ([5, 1], 0.9), ([0, 0], 0.0)]
)
def test_fairness_is_one_where_every_class_got_the_same_share_and_one_by_n_where_one_got_all(bound, index):
    specs = [a_spec(100), a_spec(900)]
    assert figures.fairness(specs, np.array([5, 2]), np.array(bound)) == pytest.approx(index)


def test_equal_specs_of_two_messages_are_one_class():
    specs = [a_spec(100), a_spec(100)]
    assert figures.fairness(specs, np.array([1, 1]), np.array([1, 0])) == 1.0


def test_a_card_that_is_sold_twice_breaks_no_figure_of_quality():
    there = pool({"cpu": 1200}, cards=(1300, 200))
    found = figures.quality(
        there,
        [a_spec(1, devices=DeviceRequest(1, 500))],
        submitted=np.array([3]),
        bound=np.array([3]),
        moves=2,
    )
    assert (found.nodes_in_use, found.moves, found.fairness) == (1, 2, 1.0)
    assert found.gpu_fragmentation == pytest.approx(0.4)  # what is free of the second, as no cpu is left
