"""How much of free room pods can use, by hand."""

import numpy as np
import pytest

from hoss.model.pod import DeviceRequest
from hoss.model.resources import BASE_RESOURCES, CPU, MEMORY, PODS
from hoss.wire.columns import CARD_SLOTS, NO_CARD
from scheduler_worker.core.rebalance.usable_room import (
    NodeRoom,
    RequestMix,
    emptiable_nodes,
    fitting,
    largest_pods,
    measure,
)

NOBODY = RequestMix.of(np.zeros((len(BASE_RESOURCES), 0), np.int64), [], np.zeros(0, np.int64))


def room(*free, cards=(), allocatable=1000):
    """Nodes of 1,000 cpu and 1,000 memory with (cpu, memory) free; cards as used milli by node."""
    total = np.zeros((len(BASE_RESOURCES), len(free)), np.int64)
    total[[CPU, MEMORY]] = allocatable
    total[PODS] = 100
    requested = total.copy()
    requested[[CPU, MEMORY]] -= np.array(free).T
    requested[PODS] = 0
    used = np.full((len(free), CARD_SLOTS), NO_CARD, np.uint16)
    for node, of_node in enumerate(cards):
        used[node, : len(of_node)] = of_node
    return NodeRoom(BASE_RESOURCES, total, requested, used)


def mix(*classes, admitted=None):
    """Classes of (cpu, memory, pods) or (cpu, memory, pods, count, milli)."""
    requests = np.zeros((len(BASE_RESOURCES), len(classes)), np.int64)
    devices = []
    for number, (cpu, memory, _, *devices_of) in enumerate(classes):
        requests[[CPU, MEMORY, PODS], number] = cpu, memory, 1
        devices.append(DeviceRequest(*devices_of) if devices_of else None)
    return RequestMix.of(requests, devices, np.array([entry[2] for entry in classes]), admitted=admitted)


def of(measured, resource):
    return next(entry for entry in measured.resources if entry.resource == resource)


def test_room_counts_by_the_share_of_pods_that_fit_on_its_node():
    usual = mix((100, 100, 3), (500, 100, 1))
    cpu = of(measure(room((400, 400), (600, 400)), usual, NOBODY), "cpu")
    # Three of four pods fit on the first node, all of them on the second.
    assert (cpu.allocatable, cpu.free, cpu.usable) == (2000, 1000, pytest.approx(0.75 * 400 + 600))
    assert cpu.usable_by_waiting is None


def test_classes_that_do_not_request_a_resource_say_nothing_about_it():
    usual = mix((0, 100, 9), (500, 100, 1))
    measured = measure(room((600, 1000)), usual, NOBODY)
    assert of(measured, "cpu").usable == pytest.approx(600)


def test_cpu_beside_full_memory_is_stranded_and_the_reverse():
    measured = measure(room((900, 5), (3, 800), (500, 500)), mix((10, 10, 1)), NOBODY)
    assert [tuple(entry) for entry in measured.stranded] == [
        ("cpu", "memory", 900, 1),
        ("memory", "cpu", 800, 1),
    ]


def test_cards_are_counted_whole_and_in_pieces():
    measured = measure(
        room((1000, 1000), (1000, 1000), cards=([0, 0, 500], [1000])), mix((1, 1, 1, 1, 1000)), NOBODY
    )
    cards = measured.cards
    assert (cards.cards, cards.free_milli, cards.whole_free) == (4, 2500, 2)
    assert (cards.in_pieces, cards.free_in_pieces_milli) == (1, 500)
    # FGD: of 2,500 free thousandths those on the card that is half taken hold no whole card.
    assert cards.fragments_milli == pytest.approx(500)
    assert cards.fragments_of_waiting_milli is None


def test_without_cards_and_without_pods_everything_free_is_usable():
    measured = measure(room((400, 400)), NOBODY, NOBODY)
    assert measured.cards is None
    assert of(measured, "cpu").usable == 400


def test_the_largest_pod_of_a_class_names_the_node_and_what_is_scarce_there():
    waiting = mix((800, 100, 5), (100, 100, 2, 2, 1000), (10, 10, 1))
    found = largest_pods(room((400, 1000), (600, 90), cards=([0, 500],)), waiting)
    assert (found[0].share, found[0].node, found[0].limited_by, found[0].pods) == (0.75, 1, "cpu", 0)
    assert (found[1].share, found[1].node, found[1].limited_by) == (0.5, 0, "cards")
    assert found[2].pods == 40 + 9


def test_nodes_that_do_not_admit_a_class_hold_none_of_its_pods():
    waiting = mix((100, 100, 1), admitted=np.array([[False, True]]))
    nodes = room((900, 900), (200, 300))
    assert fitting(nodes, waiting).tolist() == [[False, True]]
    [found] = largest_pods(nodes, waiting)
    assert (found.node, found.pods) == (1, 2)
    [nowhere] = largest_pods(nodes, mix((100, 100, 1), admitted=np.zeros((1, 2), np.bool_)))
    assert (nowhere.node, nowhere.pods, nowhere.share) == (-1, 0, 0.0)


def test_nodes_can_be_emptied_as_far_as_the_others_have_room():
    requests = np.zeros((len(BASE_RESOURCES), 1), np.int64)
    requests[[CPU, MEMORY, PODS], 0] = 300, 1, 1
    nodes = room((700, 999), (700, 999), (700, 999), (100, 997))
    at = np.array([0, 1, 2, 3, 3, 3])
    none = np.zeros((2, 1), np.int64)
    # Three pods of 300 fit beside nothing on one node of 1,000: two of the three lighter nodes can go.
    assert emptiable_nodes(nodes, requests, none, np.zeros(6, np.intp), at) == 2
    assert emptiable_nodes(nodes, requests, none, np.zeros(0, np.intp), at[:0]) == 4


def test_the_frequent_classes_stand_for_a_mix_of_many():
    many = mix(*((100 + i, 1, i + 1) for i in range(300)))
    assert len(many) == 256
    assert many.weights.sum() == pytest.approx(1.0)
    assert many.requests[CPU, 0] == 399
