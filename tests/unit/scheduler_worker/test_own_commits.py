"""A cache that no feed shows its worker's commits keeps them itself, and counts each once."""

import numpy as np
import pytest

from hoss.model.pod import DeviceRequest
from hoss.model.resources import PODS
from scheduler_worker.core.cache.node_info import NodeInfoCache

REFUSED = 3


@pytest.fixture
def harness(make_ledger, harness_of):
    return harness_of(make_ledger(1))


def used(harness, resource=PODS):
    cache = harness.cache
    assert (cache.requested == cache.accounts.committed + cache.assumed).all()
    return int(cache.requested[resource, 0])


def committed(harness, pods, pod):
    harness.submit((pod, pods))
    (proposal,) = harness.place()
    verdicts, update = harness.ledger.commit(proposal)
    return proposal, verdicts, update


def test_what_was_committed_stays_counted_beyond_every_deadline(harness, make_pod):
    proposal, verdicts, _ = committed(harness, 3, make_pod())
    harness.scheduler.settle(proposal.batch_id, verdicts)
    harness.cache.adopt()
    assert harness.cache.expire(now=1e9) == 0
    assert used(harness) == 3
    assert not harness.cache.assumed.any()


def test_what_nobody_has_answered_is_not_taken_over(harness, make_pod):
    harness.submit((make_pod(), 2))
    harness.place()
    harness.cache.adopt()
    assert int(harness.cache.assumed[PODS, 0]) == 2


def test_an_account_that_comes_with_a_refusal_and_contains_an_own_commit_counts_it_once(harness, make_pod):
    proposal, verdicts, _ = committed(harness, 3, make_pod())
    harness.ledger.reserve([0], [[100, 0, 0, 1]])
    harness.cache.apply_fresh(harness.ledger.accounts([0]))  # ahead of the verdict
    harness.scheduler.settle(proposal.batch_id, verdicts)
    harness.cache.adopt()
    assert used(harness) == 4


def test_an_account_older_than_an_own_commit_does_not_undo_it(harness, make_pod):
    harness.ledger.reserve([0], [[100, 0, 0, 1]])
    older = harness.ledger.accounts([0])
    proposal, verdicts, _ = committed(harness, 3, make_pod())
    harness.scheduler.settle(proposal.batch_id, verdicts)
    harness.cache.adopt()
    harness.cache.apply_fresh(older)
    assert used(harness) == 3
    harness.cache.apply_fresh(harness.ledger.accounts([0]))  # a refusal of now
    assert used(harness) == 4


def test_own_commits_count_whichever_verdict_comes_first(harness, make_pod):
    first, first_verdicts, _ = committed(harness, 2, make_pod())
    second, second_verdicts, _ = committed(harness, 3, make_pod())
    for proposal, verdicts in ((second, second_verdicts), (first, first_verdicts)):
        harness.scheduler.settle(proposal.batch_id, verdicts)
        harness.cache.adopt()
    assert used(harness) == 5


def test_after_the_next_snapshot_the_cache_is_the_ledgers_state(harness, make_pod):
    proposal, verdicts, _ = committed(harness, 3, make_pod())
    harness.scheduler.settle(proposal.batch_id, verdicts)
    harness.cache.adopt()
    harness.ledger.reserve([0], [[100, 0, 0, 1]])
    harness.cache.apply_feed(harness.ledger.snapshot())
    twin = NodeInfoCache()
    twin.apply_feed(harness.ledger.snapshot())
    assert used(harness) == 4
    assert harness.cache.digest(0) == twin.digest(0)


def test_an_own_commit_that_is_taken_over_gives_rankings_nothing_to_repair(harness, make_pod):
    proposal, verdicts, _ = committed(harness, 3, make_pod())
    harness.scheduler.settle(proposal.batch_id, verdicts)
    position = harness.cache.changes.position
    harness.cache.adopt()
    assert harness.cache.changes.position == position


def test_shares_of_cards_are_kept_as_they_were_reckoned(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(1, cards=2))
    proposal, verdicts, _ = committed(harness, 3, make_pod(devices=DeviceRequest(1, 400)))
    harness.scheduler.settle(proposal.batch_id, verdicts)
    before = harness.cache.cards.used[0].copy()
    harness.cache.adopt()
    assert (harness.cache.cards.used[0] == before).all()
    assert sorted(before[:2].tolist()) == [400, 800]
    assert not harness.cache.cards.assumed.any()


@pytest.mark.parametrize("case", ["no node", "refused for good"])
def test_pods_that_a_newer_view_may_help_ask_for_news(harness, make_pod, case):
    harness.submit((make_pod(cpu=9000 if case == "no node" else 100), 1))
    for _ in range(3):
        for proposal in harness.place():
            harness.scheduler.settle(proposal.batch_id, harness.ledger.answer(proposal, REFUSED))
    assert harness.scheduler.take_refresh_wanted()


def test_pods_that_are_bound_ask_for_nothing(harness, make_pod):
    proposal, verdicts, _ = committed(harness, 3, make_pod())
    harness.scheduler.settle(proposal.batch_id, verdicts)
    assert not harness.scheduler.take_refresh_wanted()
    assert np.array_equal(verdicts.verdicts, [1, 1, 1])
