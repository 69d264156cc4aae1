"""Every kind of damage to a ledger that an audit must find, and what it must not mistake for damage."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.model.pod import HostPort
from hoss.wire.columns import FLAG_SHRUNK, account_dtype, numbered_uids
from resolver.core.commits import LeaseRule, UnconfirmedCommits, commit_faults
from resolver.core.consistency.audit import ShardAccounts, audit
from resolver.core.values import HOLDS_PORTS, IS_TERMINATING, claim_of, reservation_dtype

SCHEMA = ["cpu", "memory"]
NAMES = {0: "alpha", 1: "beta"}


@pytest.fixture
def shard():
    """Two nodes of 1,000 milli cpu, two pods of 300 on node 0, the first with half of card 0."""
    accounts = np.zeros(2, account_dtype(2))
    accounts["amounts"][:, 0, 0] = 1000
    accounts["amounts"][0, 0, 1] = 600
    cards = np.full((1, 16), 0xFFFF, np.uint16)
    cards[0, :2] = 500, 0
    records = np.zeros(2, reservation_dtype(2))
    records["requests"][:, 0] = 300
    records["card_mask"][0], records["card_milli"][0] = 1, 500
    uids = numbered_uids(b"twelve bytes", 0, 2)
    return ShardAccounts(
        0, np.array([0, 1], np.uint32), accounts, np.array([0], np.uint32), cards, uids, records
    )


def findings(*shards):
    return [(finding.invariant, finding.text) for step in audit(shards, SCHEMA, NAMES) for finding in step]


def test_a_sound_shard_has_no_findings(shard):
    assert findings(shard) == []


def test_invariant_1_names_node_resource_and_numbers(shard):
    shard.accounts["amounts"][0, 0, 0] = 599
    assert findings(shard) == [(1, "node alpha: cpu requested 600 > allocatable 599")]


def test_a_node_that_shrank_is_reported_and_no_violation(shard):
    shard.accounts["amounts"][0, 0, 0] = 599
    shard.accounts["flags"][0] = FLAG_SHRUNK
    assert findings(shard) == [
        (0, "node alpha: cpu requested 600 > allocatable 599 since it shrank or others put pods there")
    ]


def test_invariant_1_covers_cards(shard):
    shard.cards[0, 0] = 1001
    shard.records["card_milli"][0] = 1001
    assert findings(shard) == [(1, "node alpha: card 0 has 1001 of 1000 thousandths in use")]


def test_invariant_2_finds_a_pod_on_two_shards(shard):
    other = np.zeros(1, reservation_dtype(2))
    other["node"] = 1
    empty = np.zeros(0, account_dtype(2))
    elsewhere = ShardAccounts(
        1, np.zeros(0, np.uint32), empty, np.zeros(0, np.uint32), shard.cards[:0], shard.uids[:1], other
    )
    text = (
        "pod 7477656c-7665-2062-7974-657300000000 holds more than one reservation: on node alpha and on node"
        " beta"
    )
    assert (2, text) in findings(shard, elsewhere)


def test_the_source_of_a_confirmed_move_is_no_second_reservation(shard):
    moved = replace(shard, shard=1, uids=shard.uids[:1], records=shard.records[:1].copy())
    moved.records["node"], moved.records["seq"] = 1, 9
    uid, seq = shard.uids[0].tobytes(), int(shard.records["seq"][0])
    assert 2 in dict(findings(shard, moved))
    assert 2 not in dict(findings(shard, replace(moved, moved={uid: (0, seq)})))
    assert 2 in dict(findings(shard, replace(moved, moved={uid: (0, seq + 1)})))


def test_targets_of_moves_that_would_never_end_are_found_and_the_repair_gives_them_a_lease():
    seqs, targets = np.array([3, 4], np.uint64), np.array([True, False])
    ends = UnconfirmedCommits(frozenset((3,)), {3: 10})
    assert list(commit_faults(ends, seqs, at=5, targets=targets)) == []
    [fault] = commit_faults(UnconfirmedCommits(), seqs, at=5, targets=targets)
    assert (fault.seq, fault.rule) == (3, LeaseRule.BEGIN)


def test_invariant_6_compares_sums_of_reservations_with_accounts(shard):
    shard.accounts["amounts"][1, 1] = 9, 7
    assert findings(shard) == [(6, "node beta: memory requested 7, its reservations add up to 0 (of no pod)")]


def test_invariant_6_compares_cards_too(shard):
    shard.cards[0, 1] = 250
    assert findings(shard) == [
        (6, "node alpha: card 1 has 250 thousandths in use, its reservations add up to 0 (of no pod)")
    ]


def test_invariant_6_finds_reservations_on_nodes_that_are_not_there(shard):
    shard.records["node"][1] = 9
    assert (6, "reserved on a node that is not there") in findings(shard)
    text = "node alpha: cpu requested 600, its reservations add up to 300 (of 1 pod: "
    assert any(invariant == 6 and found.startswith(text) for invariant, found in findings(shard))


def test_invariant_1_covers_ports_of_different_pods(shard):
    first, second = (uid.tobytes() for uid in shard.uids)
    shard.records["flags"] = HOLDS_PORTS
    every, one = claim_of(HostPort(80)), claim_of(HostPort(80, host_ip="10.0.0.1"))
    of_one_pod = replace(shard, ports={0: [(first, every), (first, one), (second, claim_of(HostPort(81)))]})
    assert findings(of_one_pod) == []
    of_two = replace(shard, ports={0: [(first, every), (second, one)]})
    assert findings(of_two) == [(1, "node alpha: port 80/TCP is held by more than one pod")]


def test_cards_and_ports_of_a_terminating_pod_may_be_held_by_another_too(shard):
    shard.cards[0, 0] = 1500
    shard.records["card_mask"], shard.records["card_milli"] = 1, (500, 1000)
    shard.records["flags"] = HOLDS_PORTS
    every = claim_of(HostPort(80))
    both = replace(shard, ports={0: [(uid.tobytes(), every) for uid in shard.uids]})
    assert [invariant for invariant, _ in findings(both)] == [1, 1]
    shard.records["flags"][1] |= IS_TERMINATING
    assert findings(both) == []


def test_invariant_6_compares_ports_and_groups_with_reservations(shard):
    shard.records["flags"][0] = HOLDS_PORTS
    shard.records["group"] = 7
    assert findings(replace(shard, group_pods={7: 1})) == [
        (6, "node alpha: its ports and its reservations differ about a pod"),
        (6, "group 0000000000000007: 1 pods, its reservations are 2"),
    ]
