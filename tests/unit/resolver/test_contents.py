"""A shard composed from nodes and reservations: cards are dealt out, numbers given, and what does not fit is
said."""

import numpy as np

from hoss.wire.columns import FLAG_SHRUNK, NO_CARD, numbered_uids
from resolver.core.consistency.contents import PODS_A_COMMIT, Contents, ReservedPods, compose
from resolver.core.values import LedgerNodeChange, reservation_dtype

NODE = LedgerNodeChange("alpha", b"", (1000, 10), unschedulable=False, cards=2)


def pods(
    *requests: tuple[int, int, int], node: int = 0, cpu: int = 100, assumed: bool = False
) -> ReservedPods:
    """A pod for each (cards, milli of each, mask; 0: any)."""
    records = np.zeros(len(requests), reservation_dtype(2))
    records["node"] = node
    records["card_milli"] = [milli for _, milli, _ in requests]
    records["card_mask"] = [mask for *_, mask in requests]
    records["requests"] = [cpu, 1]
    counts = np.array([cards for cards, *_ in requests], np.uint16)
    uids = numbered_uids(b"test-prefix-", 0, len(requests))
    return ReservedPods(uids, records, counts, np.full(len(requests), assumed))


def composed(reserved: ReservedPods, node: LedgerNodeChange = NODE) -> Contents:
    return compose({0: node}, reserved, {}, first_seq=50, resources=2)


def test_pods_keep_the_cards_they_are_known_to_have() -> None:
    found = composed(pods((1, 400, 0), (1, 700, 0b10)))
    assert found.pods.records["card_mask"].tolist() == [0b01, 0b10]
    assert found.cards[0][:3].tolist() == [400, 700, NO_CARD]


def test_the_largest_wishes_are_served_first_so_that_all_fit_that_can() -> None:
    found = composed(pods((1, 300, 0), (1, 300, 0), (1, 700, 0), (1, 700, 0)))
    assert len(found.unplaced) == 0
    assert found.cards[0][:2].tolist() == [1000, 1000]


def test_a_pod_whose_cards_do_not_fit_holds_nothing() -> None:
    found = composed(pods((2, 1000, 0), (1, 500, 0)))
    assert [uid[-1] for uid in found.unplaced] == [1]
    assert found.accounts["amounts"][0].tolist() == [[1000, 100], [10, 1]]


def test_a_pod_on_a_node_that_is_not_there_holds_nothing() -> None:
    found = composed(pods((0, 0, 0), node=7))
    assert (len(found.unplaced), len(found.pods.uids)) == (1, 0)


def test_a_node_that_offers_less_than_is_reserved_on_it_is_named_and_marked() -> None:
    found = composed(pods((0, 0, 0), (0, 0, 0), cpu=600))
    assert found.overcommitted == ["alpha"]
    assert found.accounts["flags"][0] & FLAG_SHRUNK


def test_what_is_assumed_is_told_from_the_rest_by_its_commit_and_none_is_large() -> None:
    both = composed(pods(*[(0, 0, 0)] * (PODS_A_COMMIT + 1), assumed=True))
    seqs, sizes = np.unique(both.pods.records["seq"], return_counts=True)
    assert (seqs.tolist(), sizes.tolist()) == ([51, 52], [PODS_A_COMMIT, 1])
    assert both.seq > 52
    assert composed(pods((0, 0, 0))).pods.records["seq"].tolist() == [50]
