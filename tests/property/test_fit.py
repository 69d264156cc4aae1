"""Fitting: the vectorised definition against the plain sentence it stands for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hoss.model.fit import cards_fit, fits, insufficient, pick_cards
from hoss.model.resources import WHOLE_CARD_MILLI

amounts = st.integers(0, 2**53) | st.integers(0, 4)
cards = st.lists(st.integers(0, 1000) | st.just(0xFFFF), min_size=16, max_size=16)


@given(st.data(), st.integers(1, 4), st.integers(1, 5))
def test_a_pod_fits_where_nothing_it_asks_for_exceeds_what_is_free(data, resources, nodes):
    def table():
        rows = st.lists(amounts, min_size=nodes, max_size=nodes)
        return np.array(data.draw(st.lists(rows, min_size=resources, max_size=resources)), np.int64)

    allocatable, requested = table(), table()
    request = np.array(data.draw(st.lists(amounts, min_size=resources, max_size=resources)), np.int64)
    expected = [
        all(
            not request[r] or request[r] <= int(allocatable[r, n]) - int(requested[r, n])
            for r in range(resources)
        )
        for n in range(nodes)
    ]
    assert fits(allocatable, requested, request).tolist() == expected
    assert (~insufficient(allocatable, requested, request).any(axis=0)).tolist() == expected


@given(cards, st.integers(1, 16), st.integers(1, 1000))
def test_cards_are_picked_just_where_they_fit_and_the_fullest_first(used, count, milli):
    picked = pick_cards(used, count, milli)
    fit = bool(cards_fit(np.array([used], np.uint16), count, milli)[0])
    assert (picked is not None) == fit
    if picked is not None:
        assert len(set(picked)) == count
        assert all(used[slot] + milli <= WHOLE_CARD_MILLI for slot in picked)
        passed_over = [
            slot for slot in range(16) if slot not in picked and used[slot] + milli <= WHOLE_CARD_MILLI
        ]
        assert all(used[slot] <= min(used[p] for p in picked) for slot in passed_over)


def test_an_overcommitted_node_still_takes_pods_that_ask_nothing_of_that_resource():
    allocatable, requested = np.array([[4], [10]]), np.array([[6], [0]])
    assert fits(allocatable, requested, np.array([0, 10])).tolist() == [True]
    assert fits(allocatable, requested, np.array([1, 10])).tolist() == [False]
