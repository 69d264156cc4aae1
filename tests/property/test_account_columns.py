"""Accounts as columns decide as the Arbiter does pod by pod, which is right where they differ; and an Arbiter
that serves a batch with columns answers, and is left, as one that serves it pod by pod."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from property.profiles import examples

from hoss.wire.columns import CARD_SLOTS, NO_CARD, NONE_U32, numbered_uids
from resolver.core.account_columns import AccountColumns
from resolver.core.arbiter import Arbiter
from resolver.core.values import LedgerNodeChange, Proposal, Verdict
from tools.simulation.shard_as_stored import entry_of_model, of_model

NODES = 4
ALLOCATABLE = (4, 7)

claims = st.tuples(
    st.lists(st.integers(0, NODES - 1), min_size=1, max_size=12),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.booleans(),  # all or nothing,
)
steps = st.one_of(claims, st.integers(0, 20))  # a commit, or the release of an earlier one


def proposal(nodes, request, all_or_nothing, first):
    return Proposal(
        worker="w",
        epoch=1,
        snapshot_seq=1,
        uids=numbered_uids(b"column ledge", first, len(nodes)),
        slots=np.zeros(len(nodes), np.uint16),
        nodes=np.array(nodes, np.uint32)[:, None],
        requests=np.array([request], np.int64),
        priorities=np.zeros(1, np.int32),
        attempts=np.zeros(1, np.uint16),
        gang_minimum=len(nodes) if all_or_nothing else 0,
        devices=np.zeros((1, 2), np.uint16),  # such a proposal is decided pod by pod
    )


def proposal_of_choices(choices, request, number):
    """The nodes that each pod may have, (pods, 3), -1: none; and the history's proposal `number` of them."""
    candidates = np.full((len(choices), 3), -1, np.intp)
    for row, choice in enumerate(choices):
        candidates[row, : len(choice)] = choice
    nodes = np.where(candidates < 0, NONE_U32, candidates).astype(np.uint32)
    return candidates, replace(proposal([0] * len(choices), request, False, 100 * number), nodes=nodes)


def new_arbiter(cards=(0,) * NODES):
    arbiter = Arbiter(0, 1)
    arbiter.grant("w", 1)
    arbiter.upsert(
        [
            LedgerNodeChange(f"n{i}", b"%d" % i, ALLOCATABLE, unschedulable=False, cards=count)
            for i, count in enumerate(cards)
        ]
    )
    return arbiter


@examples(200)
@given(st.lists(steps, max_size=12))
def test_columns_and_arbiter_commit_the_same_and_hold_the_same(history):
    arbiter = new_arbiter()
    columns = AccountColumns(np.repeat(np.array(ALLOCATABLE, np.int64)[:, None], NODES, axis=1))
    standing = []
    for number, step in enumerate(history):
        if isinstance(step, int):
            if not standing:
                continue
            uids, nodes, request = standing.pop(step % len(standing))
            arbiter.release([uid.tobytes() for uid in uids])
            columns.release(nodes, request)
        else:
            nodes, request, all_or_nothing = step
            proposed = proposal(nodes, request, all_or_nothing, 100 * number)
            rulings, _ = arbiter.commit(proposed, deadline_ms=0)
            where = np.array(nodes, np.intp)
            taken = columns.commit(where, proposed.requests[0], all_or_nothing=all_or_nothing)
            assert taken.tolist() == [ruling.verdict is Verdict.COMMITTED for ruling in rulings]
            standing.append((proposed.uids[taken], where[taken], proposed.requests[0]))
        for node in range(NODES):
            account = arbiter.accounts[node]
            assert account.requested.tolist() == columns.requested[:, node].tolist()
            assert account.seq == columns.seqs[node] + 1  # the Arbiter's nodes came at 1


@examples(100)
@given(claims, claims)
def test_by_sequence_numbers_only_what_nobody_touched_is_committed(theirs, mine):
    columns = AccountColumns(np.repeat(np.array(ALLOCATABLE, np.int64)[:, None], NODES, axis=1))
    view = columns.view()
    first = np.array(theirs[0], np.intp)
    touched = first[columns.commit(first, np.array(theirs[1], np.int64))]
    fitted = AccountColumns(columns.allocatable)
    nodes, request = np.array(mine[0], np.intp), np.array(mine[1], np.int64)
    expected = ~np.isin(nodes, touched) & fitted.commit(nodes, request)
    assert columns.commit(nodes, request, view=view).tolist() == expected.tolist()


ranked = st.lists(
    st.lists(st.integers(0, NODES - 1), min_size=1, max_size=3, unique=True), min_size=1, max_size=14
)


@examples(200)
@given(st.lists(st.tuples(ranked, st.tuples(st.integers(0, 3), st.integers(0, 3))), max_size=5))
def test_columns_and_arbiter_take_the_same_alternates(history):
    arbiter = new_arbiter()
    columns = AccountColumns(np.repeat(np.array(ALLOCATABLE, np.int64)[:, None], NODES, axis=1))
    for number, (choices, request) in enumerate(history):
        candidates, proposed = proposal_of_choices(choices, request, number)
        rulings, _ = arbiter.commit(proposed, deadline_ms=0)
        taken, nodes = columns.commit_ranked(candidates, proposed.requests[0])
        expected = [ruling.node if ruling.verdict is Verdict.COMMITTED else None for ruling in rulings]
        assert [node if ok else None for ok, node in zip(taken, nodes.tolist(), strict=True)] == expected
        for node in range(NODES):
            assert arbiter.accounts[node].requested.tolist() == columns.requested[:, node].tolist()


carded = st.tuples(
    ranked,
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.sampled_from(((1, 300), (1, 1000), (2, 1000), (2, 400))),
)


@examples(200)
@given(st.lists(st.one_of(carded, st.integers(0, 20)), max_size=8))
def test_columns_and_arbiter_give_the_same_cards_and_take_them_back(history):
    counts = (0, 1, 2, 3)
    arbiter = new_arbiter(counts)
    cards = np.full((NODES, CARD_SLOTS), NO_CARD, np.uint16)
    for node, count in enumerate(counts):
        cards[node, :count] = 0
    columns = AccountColumns(np.repeat(np.array(ALLOCATABLE, np.int64)[:, None], NODES, axis=1), cards)
    standing = []
    for number, step in enumerate(history):
        if isinstance(step, int):
            if not standing:
                continue
            uids, nodes, request, masks, milli = standing.pop(step % len(standing))
            arbiter.release([uid.tobytes() for uid in uids])
            columns.release(nodes, request, masks, milli)
        else:
            choices, request, (count, milli) = step
            candidates, proposed = proposal_of_choices(choices, request, number)
            proposed = replace(proposed, devices=np.array([[count, milli]], np.uint16))
            rulings, _ = arbiter.commit(proposed, deadline_ms=0)
            taken, nodes, masks = columns.commit_ranked_with_cards(
                candidates, proposed.requests[0], count, milli
            )
            assert taken.tolist() == [ruling.verdict is Verdict.COMMITTED for ruling in rulings]
            standing.append((proposed.uids[taken], nodes[taken], proposed.requests[0], masks[taken], milli))
        for node in range(NODES):
            account = arbiter.accounts[node]
            assert account.requested.tolist() == columns.requested[:, node].tolist()
            assert account.cards[: counts[node]] == columns.cards[node, : counts[node]].tolist()
            assert account.seq == columns.seqs[node] + 1


batches = st.tuples(ranked, st.tuples(st.integers(0, 3), st.integers(0, 3)), st.booleans())


@examples(200)
@given(st.lists(batches, max_size=5))
def test_a_batch_served_with_columns_is_answered_and_left_as_pod_by_pod(history):
    """Devices of nobody make a proposal one that is served pod by pod."""
    at_once, one_by_one = new_arbiter(), new_arbiter()
    for number, (choices, request, prepared) in enumerate(history):
        _, slow = proposal_of_choices(choices, request, number)
        slow = replace(slow, prepared=prepared)
        rulings, refusing = one_by_one.commit(slow, deadline_ms=number)
        assert at_once.commit(replace(slow, devices=None), deadline_ms=number) == (rulings, refusing)
        assert of_model(at_once) == of_model(one_by_one)
        assert list(map(entry_of_model, at_once.feed)) == list(map(entry_of_model, one_by_one.feed))
