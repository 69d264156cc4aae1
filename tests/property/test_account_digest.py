"""The digest by which caches and the ledger are compared: equal for equal state alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hoss.wire.columns import CARD_SLOTS, FLAG_GONE, FLAG_UNSCHEDULABLE, account_dtype, digest

RESOURCES = 4

states = st.lists(
    st.tuples(
        st.integers(0, 2**32 - 1),
        st.sampled_from([0, FLAG_UNSCHEDULABLE]),
        st.lists(st.integers(0, 2**53), min_size=2 * RESOURCES, max_size=2 * RESOURCES),
        st.none() | st.lists(st.integers(0, 1000), min_size=CARD_SLOTS, max_size=CARD_SLOTS),
    ),
    unique_by=lambda node: node[0],
    min_size=1,
    max_size=6,
)


def arrays(state, resources=RESOURCES, seq=1):
    accounts = np.zeros(len(state), account_dtype(resources))
    accounts["seq"] = seq
    for account, (_, flags, amounts, _) in zip(accounts, state, strict=True):
        account["flags"] = flags
        account["amounts"][:RESOURCES] = np.reshape(amounts, (RESOURCES, 2))
    with_cards = [(index, cards) for index, _, _, cards in state if cards is not None]
    return (
        np.array([node[0] for node in state], np.uint32),
        accounts,
        np.array([index for index, _ in with_cards], np.uint32),
        np.array([cards for _, cards in with_cards], np.uint16).reshape(-1, CARD_SLOTS),
    )


@given(states, st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(state, random):
    shuffled = random.sample(state, len(state))
    assert digest(*arrays(shuffled)) == digest(*arrays(state))


@given(states)
def test_resources_nobody_uses_and_sequence_numbers_do_not_matter(state):
    assert digest(*arrays(state, RESOURCES + 3, seq=99)) == digest(*arrays(state))


@given(states)
def test_a_node_that_is_gone_does_not_matter_nor_do_its_cards(state):
    indexes, accounts, card_indexes, cards = arrays(state)
    accounts["flags"][0] |= FLAG_GONE
    assert digest(indexes, accounts, card_indexes, cards) == digest(*arrays(state[1:]))


@given(states, st.data())
def test_any_amount_flag_or_card_that_differs_shows(state, data):
    indexes, accounts, card_indexes, cards = arrays(state)
    before = digest(indexes, accounts, card_indexes, cards)
    node = data.draw(st.integers(0, len(state) - 1))
    what = data.draw(st.sampled_from(["amount", "flag", "index", *(["card"] if len(cards) else [])]))
    if what == "amount":
        accounts["amounts"][node, data.draw(st.integers(0, RESOURCES - 1)), data.draw(st.integers(0, 1))] += 1
    elif what == "flag":
        accounts["flags"][node] ^= FLAG_UNSCHEDULABLE
    elif what == "index":
        indexes[node] = min(set(range(len(state) + 1)) - set(indexes.tolist()))
    else:
        cards[data.draw(st.integers(0, len(cards) - 1)), data.draw(st.integers(0, CARD_SLOTS - 1))] += 1
    assert digest(indexes, accounts, card_indexes, cards) != before


def test_the_dtype_is_24_bytes_and_16_for_each_resource():
    assert account_dtype(6).itemsize == 24 + 16 * 6
