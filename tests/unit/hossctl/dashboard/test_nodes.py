"""The node table behind the heat map."""

from hoss.model.node import NOISY_LABEL
from hoss.wire.columns import CARD_CLOSED, FLAG_UNSCHEDULABLE
from hossctl.dashboard.nodes import FULL, NOTHING, OVER, RESOURCES, NodeTable

CPU, CARDS = RESOURCES.index("cpu"), RESOURCES.index("cards")


def test_a_cell_says_in_half_per_cents_how_much_is_requested(feed):
    table = NodeTable()
    table.apply(feed({0: ("a", 4000, 0), 1: ("b", 4000, 1000), 2: ("c", 4000, 4000)}, snapshot=True))
    cells = table.cells()
    assert cells.names == ("a", "b", "c")
    assert cells.values[:, CPU].tolist() == [0, 50, FULL]


def test_a_node_that_holds_anything_is_not_shown_empty(feed):
    table = NodeTable()
    table.apply(feed({0: ("a", 1_000_000, 1)}, snapshot=True))
    assert table.cells().values[0, CPU] == 1


def test_more_than_a_node_has_is_over_and_nothing_of_a_resource_is_nothing(feed):
    table = NodeTable()
    table.apply(feed({0: ("shrunk", 1000, 1500), 1: ("gone", 0, 200)}, snapshot=True))
    cells = table.cells()
    assert cells.values[:, CPU].tolist() == [OVER, OVER]
    assert cells.values[:, CARDS].tolist() == [NOTHING, NOTHING]


def test_a_change_of_numbers_keeps_the_generation_and_another_node_does_not(feed):
    table = NodeTable()
    table.apply(feed({0: ("a", 4000, 0)}, snapshot=True))
    first = table.cells()
    table.apply(feed({0: ("a", 4000, 2000)}, flags=FLAG_UNSCHEDULABLE))
    second = table.cells()
    assert second.generation == first.generation
    assert second.values[0].tolist()[CPU] == FULL // 2
    assert second.values[0, -1] == FLAG_UNSCHEDULABLE
    table.apply(feed({1: ("b", 4000, 0)}))
    assert table.cells().generation > second.generation


def test_a_removed_node_is_gone_and_its_index_begins_anew(feed):
    table = NodeTable()
    table.apply(feed({0: ("a", 4000, 3000), 1: ("b", 4000, 0)}, snapshot=True, cards={0: [500, 0]}))
    table.apply(feed({0: (None, 0, 0)}))
    assert table.cells().names == ("b",)
    assert table.node("a") is None
    table.apply(feed({0: ("c", 4000, 0)}))
    assert table.node("c") == {
        "name": "c",
        "resources": [{"name": "cpu", "requested": "0", "allocatable": "4", "share": 0.0}],
        "labels": {},
        "cordoned": False,
        "quarantined": False,
        "noisy": False,
        "shrunk": False,
    }


def test_a_node_with_the_label_of_noisy_ones_is_noisy(feed):
    table, message = NodeTable(), feed({0: ("a", 4000, 0)}, snapshot=True)
    message.nodes[0].spec.labels.add(key=NOISY_LABEL, value="true")
    table.apply(message)
    assert table.node("a")["noisy"]


def test_a_snapshot_replaces_its_own_shard_alone(feed):
    table = NodeTable()
    table.apply(feed({0: ("a", 1000, 0), 2: ("c", 1000, 0)}, snapshot=True, shard=0, shards=2))
    table.apply(feed({1: ("b", 1000, 0)}, snapshot=True, shard=1, shards=2))
    table.apply(feed({2: ("d", 1000, 0)}, snapshot=True, shard=0, shards=2))
    assert table.cells().names == ("b", "d")


def test_cards_count_in_thousandths_and_those_that_are_closed_do_not(feed):
    table = NodeTable()
    table.apply(feed({0: ("gpu", 1000, 0)}, snapshot=True, cards={0: [1000, 500, 0, CARD_CLOSED + 250]}))
    cells = table.cells()
    assert (cells.allocatable[CARDS], cells.requested[CARDS]) == (4000, 1500)
    share = {"share": 0.375}
    assert {"name": "cards", "requested": "1.5", "allocatable": "4", **share} in table.node("gpu")[
        "resources"
    ]


def test_nodes_are_found_by_a_part_of_their_name_by_label_and_by_state(feed):
    table = NodeTable()
    message = feed({0: ("a-1", 1000, 500), 1: ("a-2", 1000, 900), 2: ("b-1", 1000, 0)}, snapshot=True)
    message.nodes[2].spec.labels.add(key="zone", value="east")
    table.apply(message)
    table.apply(feed({1: ("a-2", 1000, 900)}, flags=FLAG_UNSCHEDULABLE))
    assert table.names_with("a-", "", "") == ["a-1", "a-2"]
    assert table.names_with("", "zone=east", "") == table.names_with("", "zone", "") == ["b-1"]
    assert table.names_with("", "zone=west", "") == []
    assert table.names_with("", "", "cordoned") == ["a-2"]
    assert table.names_with("", "", "open") == ["a-1", "b-1"]
    assert [table.fullness(name) for name in ("a-1", "a-2", "b-1")] == [0.5, 0.9, 0.0]
