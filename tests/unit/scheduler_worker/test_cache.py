"""The cache: a pod counts once, from assume until the feed shows its commit or until it is given back."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.model.pod import DeviceRequest
from hoss.wire.columns import CARD_SLOTS, FLAG_UNSCHEDULABLE, NO_CARD, NONE_U32, digest
from scheduler_worker.core.messages import AccountBatch

CPU, PODS = 0, 3
_NO_CARDS = (np.empty(0, np.uint32), np.empty((0, CARD_SLOTS), np.uint16))


@pytest.fixture
def harness(make_ledger, harness_of):
    return harness_of(make_ledger(4))


def used(harness, resource=PODS):
    return int(harness.cache.requested[resource].sum())


def test_a_pod_counts_from_its_placement_on(harness, make_pod):
    harness.submit((make_pod(cpu=700), 3))
    harness.place()
    assert (used(harness), used(harness, CPU)) == (3, 2100)


@pytest.mark.parametrize("feed_first", [False, True])
def test_a_committed_pod_counts_once_whether_verdict_or_feed_comes_first(harness, make_pod, feed_first):
    harness.submit((make_pod(), 3))
    (proposal,) = harness.place()
    verdicts, update = harness.ledger.commit(proposal)
    if feed_first:
        harness.cache.apply_feed(update)
        harness.scheduler.settle(proposal.batch_id, verdicts)
    else:
        harness.scheduler.settle(proposal.batch_id, verdicts)
        assert used(harness) == 3
        harness.cache.apply_feed(update)
    assert used(harness) == 3
    assert not harness.cache.assumed.any()


def test_an_own_commit_in_the_feed_gives_rankings_nothing_to_repair(harness, make_pod):
    harness.submit((make_pod(), 3))
    (proposal,) = harness.place()
    verdicts, update = harness.ledger.commit(proposal)
    harness.scheduler.settle(proposal.batch_id, verdicts)
    before = harness.cache.changes.position
    harness.cache.apply_feed(update)
    assert harness.cache.changes.position == before


def test_a_foreign_commit_in_the_feed_is_counted_and_noted(harness, make_pod):
    before = harness.cache.changes.position
    harness.cache.apply_feed(harness.ledger.reserve([2], [[500, 0, 0, 1]]))
    assert harness.cache.requested[:4, 2].tolist() == [500, 0, 0, 1]
    assert harness.cache.changes.since(before, 4).tolist() == [2]


def test_an_account_older_than_the_known_one_changes_nothing(harness):
    ledger = harness.ledger
    stale = ledger.accounts([1])
    harness.cache.apply_feed(ledger.reserve([1], [[500, 0, 0, 1]]))
    harness.cache.apply_fresh(stale)
    assert harness.cache.requested[CPU, 1] == 500


def test_what_expired_is_given_back_once_even_if_the_verdict_comes_late(harness, make_pod):
    harness.submit((make_pod(), 3))
    (proposal,) = harness.place()
    assert harness.cache.expire(now=1e9) == 3
    assert used(harness) == 0
    harness.scheduler.settle(proposal.batch_id, harness.ledger.answer(proposal, 3))
    assert used(harness) == 0


def test_nothing_expires_before_its_time(harness, make_pod):
    harness.submit((make_pod(), 3))
    harness.place()
    assert harness.cache.expire(now=1.0) == 0
    assert used(harness) == 3


def test_a_new_epoch_keeps_what_the_ledger_has_said_yes_to(harness, make_pod):
    harness.submit((make_pod(), 2))
    (proposal,) = harness.place()
    verdicts, update = harness.ledger.commit(proposal)
    harness.scheduler.settle(proposal.batch_id, verdicts)
    harness.submit((make_pod(), 5))
    harness.place()
    harness.scheduler.drop_everything()
    assert used(harness) == 2
    harness.cache.apply_feed(update)
    assert used(harness) == 2


def test_a_snapshot_replaces_all_that_was_known(harness, make_ledger):
    other = make_ledger().add(1, name="renamed")
    other.seq = 9
    harness.cache.apply_feed(other.snapshot())
    assert harness.cache.present.tolist() == [False, True, False, False]
    assert harness.cache.catalogue.name(1) == "renamed"


def test_a_removed_node_is_gone_and_its_index_may_be_born_again(harness):
    cache, ledger = harness.cache, harness.ledger
    cache.apply_feed(ledger.remove(3))
    assert cache.present.tolist() == [True, True, True, False]
    ledger.seq += 1
    ledger.add(3, name="newcomer")
    cache.apply_feed(ledger.delta([3], specs=((3, ledger.specs[3]),)))
    assert cache.present.all()


def test_the_digest_is_the_ledgers_and_ignores_what_is_only_assumed(make_ledger, harness_of, make_pod):
    ledger = make_ledger(3, cards=2).add(3, flags=FLAG_UNSCHEDULABLE)
    harness = harness_of(ledger)
    harness.cache.apply_feed(ledger.reserve([0, 2], [[500, 0, 0, 1], [100, 7, 0, 1]]))
    harness.submit((make_pod(), 5))
    harness.place()
    accounts = ledger.accounts([0, 1, 2, 3])
    assert harness.cache.digest(0) == digest(
        accounts.indexes, accounts.records, accounts.card_indexes, accounts.cards
    )


def test_a_resource_offered_for_the_first_time_widens_every_layer(harness, make_pod):
    harness.submit((make_pod(), 1))
    harness.place()
    ledger = harness.ledger
    ledger.schema = (*ledger.schema, "example.com/fpga")
    ledger.requested = {i: np.append(r, 0) for i, r in ledger.requested.items()}
    ledger.seq += 1
    ledger.changed_at[0] = ledger.seq
    ledger.allocatable[0]["example.com/fpga"] = 2
    harness.cache.apply_feed(ledger.delta([0], schema=ledger.schema))
    assert harness.cache.requested.shape[0] == 7
    harness.submit((make_pod(more=(("example.com/fpga", 1),)), 3))
    (proposal,) = harness.place()
    assert proposal.candidates[:, 0].tolist() == [0, 0]
    assert proposal.candidates[:, 1:].tolist() == [[NONE_U32, NONE_U32]] * 2


def test_more_changes_than_the_log_holds_make_every_reader_look_at_all(harness):
    log = harness.cache.changes
    before = log.position
    log.extend(np.zeros(1 << 16, np.intp))
    assert log.since(before, 4) is None
    assert log.since(log.position, 4).tolist() == []


def test_cards_are_given_back_with_their_pod(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(1, cards=2))
    harness.submit((make_pod(devices=DeviceRequest(1, 600)), 2))
    (proposal,) = harness.place()
    assert harness.cache.cards.used[0, :3].tolist() == [600, 600, NO_CARD]
    harness.scheduler.reject(proposal.batch_id, "malformed")
    assert harness.cache.cards.used[0, :3].tolist() == [0, 0, NO_CARD]


def test_cards_of_the_feed_count_although_a_refusal_brought_a_newer_account_without_cards(
    make_ledger, harness_of
):
    ledger = make_ledger(1, cards=2)
    harness = harness_of(ledger)
    ledger.cards[0][0] = 400  # a pod with a share of a card
    entry_of_cards = ledger.reserve([0], [[100, 0, 0, 1]])
    # Then one without, refusing a third which asked for none.
    entry_without = ledger.reserve([0], [[100, 0, 0, 1]])
    fresh = AccountBatch(entry_without.accounts.indexes, entry_without.accounts.records, *_NO_CARDS)
    harness.cache.apply_fresh(fresh)
    harness.cache.apply_feed(entry_of_cards)
    harness.cache.apply_feed(replace(entry_without, accounts=fresh))
    assert harness.cache.cards.used[0, :3].tolist() == [400, 0, NO_CARD]
    accounts = ledger.accounts([0])
    assert harness.cache.digest(0) == digest(
        accounts.indexes, accounts.records, accounts.card_indexes, accounts.cards
    )


def test_a_node_told_of_as_if_it_were_new_is_right_again_whatever_was_wrong_with_it(
    make_ledger, harness_of, make_pod
):
    harness = harness_of(make_ledger(2))
    harness.submit((make_pod(100), 1))
    (proposal,) = harness.place()
    node = int(proposal.candidates[0, 0])
    right = harness.cache.requested.copy()
    harness.cache.accounts.committed[:, node] += 7
    harness.cache.accounts._seqs[node] = 2**50  # whatever comes seems older
    harness.cache.assumed[:, node] -= 5
    harness.cache.requested[:, node] = 3
    harness.ledger.seq += 1
    harness.cache.apply_feed(harness.ledger.delta([node], specs=((node, harness.ledger.specs[node]),)))
    assert (harness.cache.requested == right).all()
