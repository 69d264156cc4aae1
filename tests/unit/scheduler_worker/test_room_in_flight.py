"""A pod that only this worker's own pods under way keep out is not unschedulable: it waits until they have
been seen."""

import numpy as np
import pytest

from hoss.model.pod import DeviceRequest, HostPort
from scheduler_worker.core.messages import Outcome
from scheduler_worker.core.work import GangInHand

COMMITTED, REFUSED = 1, 3
NODE_CPU = 4000


@pytest.fixture
def harness(make_ledger, harness_of):
    """A worker with two nodes."""
    return harness_of(make_ledger(2))


def codes(harness):
    return [code for code, _, _ in harness.outcomes()]


def test_a_pod_waits_while_the_feed_has_shown_a_commit_whose_verdict_has_not_come(harness, make_pod):
    scheduler = harness.scheduler
    harness.submit((make_pod(2500), 2))
    [first] = harness.place()
    verdict, entry = harness.ledger.commit(first)
    harness.cache.apply_feed(entry)  # both pods count twice now
    harness.submit((make_pod(1000), 1))
    assert (harness.place(), scheduler.backlog, codes(harness)) == ([], 1, [])
    scheduler.settle(first.batch_id, verdict)
    [proposal] = harness.place()
    assert len(proposal.uids) == 1


def test_a_pod_waits_for_room_that_a_refused_one_may_give_back(harness, make_pod):
    harness.submit((make_pod(NODE_CPU), 2))
    [first] = harness.place()
    harness.submit((make_pod(1000), 1))
    assert harness.place() == []
    refused = harness.ledger.answer(first, [COMMITTED, REFUSED], seq=harness.ledger.seq + 1)
    harness.scheduler.settle(first.batch_id, refused)
    assert sum(len(proposal.uids) for proposal in harness.place()) > 0


def test_once_the_view_has_seen_them_it_is_unschedulable(harness, make_pod):
    harness.submit((make_pod(NODE_CPU), 2))
    [first] = harness.place()
    harness.submit((make_pod(1000), 1))
    harness.place()
    verdict, entry = harness.ledger.commit(first)
    harness.scheduler.settle(first.batch_id, verdict)
    harness.cache.apply_feed(entry)
    assert harness.scheduler.resume(0)
    assert harness.place() == []
    assert codes(harness) == [Outcome.BOUND] * 2 + [Outcome.UNSCHEDULABLE]
    assert harness.scheduler.idle


@pytest.mark.parametrize(
    "fields",
    [{"cpu": NODE_CPU + 1}, {"node_selector": (("disk", "ssd"),)}, {"more": (("example.com/fpga", 1),)}],
)
def test_a_pod_that_fits_nowhere_anyway_is_answered_for_at_once(harness, make_pod, fields):
    harness.submit((make_pod(NODE_CPU), 2))
    harness.place()
    harness.submit((make_pod(**fields), 1))
    harness.place()
    assert codes(harness) == [Outcome.UNSCHEDULABLE]


def test_cards_under_way_are_waited_for_as_well(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(1, cards=1))
    sharing = make_pod(100, devices=DeviceRequest(1, 600))
    harness.submit((sharing, 1))
    harness.place()
    harness.submit((sharing, 1))
    assert (harness.place(), harness.scheduler.backlog, codes(harness)) == ([], 1, [])


def test_pods_under_way_are_older_than_a_resource_that_the_cluster_offers_now(
    make_ledger, harness_of, make_pod
):
    ledger = make_ledger(1)
    harness = harness_of(ledger)
    harness.submit((make_pod(NODE_CPU), 1))
    harness.place()
    ledger.schema = (*ledger.schema, "example.com/fpga")
    ledger.seq += 1
    ledger.allocatable[0]["example.com/fpga"] = 1
    ledger.requested[0] = np.append(ledger.requested[0], 0)
    ledger.changed_at[0] = ledger.seq
    harness.cache.apply_feed(ledger.delta([0], schema=ledger.schema))
    harness.submit((make_pod(1000, more=(("example.com/fpga", 1),)), 1))
    assert (harness.place(), harness.scheduler.backlog, codes(harness)) == ([], 1, [])


def test_a_gang_waits_as_a_whole_where_what_is_under_way_may_make_its_minimum(harness, make_pod):
    scheduler = harness.scheduler
    harness.submit((make_pod(2500), 1))
    [first] = harness.place()
    harness.submit((make_pod(2000), 4), gang=GangInHand("default/team", 4))
    assert (harness.place(), scheduler.backlog) == ([], 4)
    scheduler.reject(first.batch_id, "malformed")
    [whole] = harness.place()
    assert (whole.gang_minimum, len(whole.uids)) == (4, 4)


def test_a_gang_that_is_too_large_even_so_is_answered_for_at_once(harness, make_pod):
    harness.submit((make_pod(2500), 1))
    harness.place()
    harness.submit((make_pod(2000), 5), gang=GangInHand("default/team", 5))
    harness.place()
    assert codes(harness) == [Outcome.UNSCHEDULABLE] * 5


def test_ports_under_way_are_waited_for_as_well(make_ledger, harness_of, make_pod):
    harness = harness_of(make_ledger(1))
    listening = make_pod(100, host_ports=(HostPort(9090, "TCP", ""),))
    harness.submit((listening, 1))
    [first] = harness.place()
    harness.submit((listening, 1))
    assert (harness.place(), harness.scheduler.backlog, codes(harness)) == ([], 1, [])
    harness.scheduler.settle(
        first.batch_id, harness.ledger.answer(first, [REFUSED], seq=harness.ledger.seq + 1)
    )
    assert sum(len(proposal.uids) for proposal in harness.place()) > 0
