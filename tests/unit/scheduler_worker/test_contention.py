"""What a worker does while the ledger refuses many of its pods (docs/adr/0087-contention.md)."""

from dataclasses import replace

import numpy as np
import pytest
from accounts_in_memory import GIB

from hoss.wire.columns import MAX_CANDIDATES, NONE_U32
from scheduler_worker.config import WorkerConfig
from scheduler_worker.core.cycle.refusals import Contention

ROOMY = {"cpu": 100_000, "memory": 400 * GIB, "pods": 110}
COMMITTED, CONFLICT_RESOURCE, GANG_ABORTED = 1, 3, 10


def refuse(harness, proposal, refused, verdict=CONFLICT_RESOURCE):
    """The ledger refuses the first of these pods, at a state that the view has not reached."""
    harness.ledger.seq += 1
    verdicts = [verdict] * refused + [COMMITTED] * (len(proposal.uids) - refused)
    answer = harness.ledger.answer(proposal, verdicts, seq=harness.ledger.seq)
    harness.scheduler.settle(proposal.batch_id, replace(answer, as_of=harness.ledger.seq))


@pytest.fixture
def contended(make_ledger, harness_of, make_pod):
    """A worker of whose 500 pods 50 were refused, and that has not seen what took their room."""
    harness = harness_of(make_ledger(40, allocatable=ROOMY))
    harness.submit((make_pod(100), 500))
    (proposal,) = harness.place()
    refuse(harness, proposal, 50)
    return harness


def test_a_refusal_now_and_then_is_no_contention_and_one_of_fifty_is():
    contention = Contention()
    for _ in range(20):
        contention.decided(500, 2)
    assert not contention
    for _ in range(20):
        contention.decided(500, 10)
    assert contention
    for _ in range(20):
        contention.decided(500, 0)
    assert not contention


def test_in_contention_each_pod_names_four_times_as_many_alternates(contended, make_pod):
    contended.submit((make_pod(200), 100))
    (proposal,) = contended.place()
    assert proposal.candidates.shape == (100, 9)
    assert (proposal.candidates != NONE_U32).all()
    # Neighbours do not all go to the same next node.
    assert len(np.unique(proposal.candidates[:, 1])) > 8
    assert all(len(np.unique(row)) == 9 for row in proposal.candidates)


def test_without_contention_it_names_as_many_as_configured(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(40, allocatable=ROOMY))
    harness.submit((make_pod(100), 500))
    (proposal,) = harness.place()
    refuse(harness, proposal, 2)
    harness.submit((make_pod(200), 100))
    of_calm = harness.place()[-1]
    assert of_calm.candidates.shape == (100, 3)


def test_no_proposal_names_more_than_the_ledger_takes(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(40, allocatable=ROOMY), alternates=MAX_CANDIDATES - 1)
    harness.submit((make_pod(100), 500))
    (proposal,) = harness.place()
    assert proposal.candidates.shape[1] == MAX_CANDIDATES
    refuse(harness, proposal, 50)
    harness.submit((make_pod(200), 1))
    assert harness.place()[-1].candidates.shape[1] == MAX_CANDIDATES
    with pytest.raises(ValueError, match="alternates"):
        WorkerConfig(alternates=MAX_CANDIDATES)


def test_pods_refused_in_contention_wait_until_the_view_shows_what_took_their_room(contended):
    assert contended.place() == []
    contended.cache.apply_feed(contended.ledger.snapshot())
    assert contended.scheduler.resume(0)
    (again,) = contended.place()
    assert len(again.uids) == 50


def test_pods_refused_without_contention_are_placed_again_at_once(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(40, allocatable=ROOMY))
    harness.submit((make_pod(100), 500))
    (proposal,) = harness.place()
    refuse(harness, proposal, 2)
    (again,) = harness.place()
    assert len(again.uids) == 2


def test_pods_that_shared_the_fate_of_their_gang_are_no_contention(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(40, allocatable=ROOMY))
    harness.submit((make_pod(100), 500))
    (proposal,) = harness.place()
    refuse(harness, proposal, 50, GANG_ABORTED)
    assert len(harness.place()) == 1


def test_pods_that_name_few_alternates_share_a_proposal_with_those_that_name_many(
    make_ledger, harness_of, make_pod
):
    harness = harness_of(make_ledger(40, allocatable=ROOMY), sample_nodes=8)
    harness.submit((make_pod(100), 500))
    (proposal,) = harness.place()
    refuse(harness, proposal, 50)
    harness.submit((make_pod(300), 1), (make_pod(100), 100))  # the first is placed on sampled nodes
    (proposal,) = harness.place()
    named = (proposal.candidates != NONE_U32).sum(axis=1)
    assert named[0] == 3
    assert named[1:].tolist() == [9] * 100
