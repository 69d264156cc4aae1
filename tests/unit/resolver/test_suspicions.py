"""Which refusals are held against a node, and what they lead to."""

import numpy as np
import pytest

from hoss.wire.columns import U32, account_dtype
from resolver.core.quarantine import QuarantineRules, QuarantineStep, Suspicions, difference, disagreeing
from resolver.core.values import CONFLICT, AccountRows, Decision, Verdict

REFUSED, COMMITTED, PORT = Verdict.CONFLICT_RESOURCE, Verdict.COMMITTED, Verdict.CONFLICT_PORT
SEEN = 10


@pytest.fixture
def decided(make_proposal):
    """A proposal of a worker that knew the shard up to SEEN, of a pod for each node, and what became of
    it."""

    def build(nodes, *, verdicts=None, changed_at=None, snapshot_seq=SEEN):
        verdicts = verdicts or [REFUSED] * len(nodes)
        proposal = make_proposal(
            list(range(len(nodes))), [[node] for node in nodes], snapshot_seq=snapshot_seq
        )
        refused = [(i, node, 0, 5, 1) for i, node in enumerate(nodes) if verdicts[i] is not COMMITTED]
        records = np.zeros(len(nodes), account_dtype(1))
        records["seq"] = changed_at or [SEEN] * len(nodes)
        fresh = AccountRows(1, np.array(nodes, U32).tobytes(), records.tobytes())
        none = np.empty(0, np.uint64)
        conflicts = np.array(refused, CONFLICT)
        codes = np.array(verdicts, np.uint8)
        return proposal, Decision(0, codes, proposal.nodes[:, 0], conflicts, none, fresh, as_of=SEEN + 1)

    return build


def test_only_a_refusal_for_room_by_a_node_that_is_as_the_worker_knew_it_counts(decided):
    proposal, decision = decided([1, 3, 5], verdicts=[REFUSED, PORT, COMMITTED], changed_at=[SEEN] * 3)
    assert disagreeing(proposal, decision).tolist() == [1]
    assert disagreeing(*decided([1], changed_at=[SEEN + 1])).tolist() == []  # a race, and somebody was first


def test_a_proposal_that_claims_to_know_what_has_not_happened_yet_says_nothing_of_a_node(decided):
    assert disagreeing(*decided([1], snapshot_seq=2**40)).tolist() == []


def test_many_pods_of_one_proposal_are_one_refusal(decided):
    suspicions = Suspicions(QuarantineRules(refusals=2))
    assert suspicions.observe(*decided([1, 1, 1]), now=0.0) == []
    assert suspicions.observe(*decided([1, 1, 1]), now=1.0) == [(1, QuarantineStep.REPUBLISH)]


def test_refusals_longer_apart_than_the_window_lead_to_nothing(decided):
    suspicions = Suspicions(QuarantineRules(refusals=2, window_seconds=10))
    for when in (0.0, 11.0, 22.0):
        assert suspicions.observe(*decided([1]), now=when) == []


def test_after_it_was_told_anew_only_refusals_of_workers_that_heard_it_count(decided):
    suspicions = Suspicions(QuarantineRules(refusals=2))
    suspicions.observe(*decided([1]), now=0.0)
    assert suspicions.observe(*decided([1]), now=0.0) == [(1, QuarantineStep.REPUBLISH)]
    suspicions.republished(1, SEEN + 1)
    for _ in range(5):
        assert suspicions.observe(*decided([1]), now=1.0) == []
    heard = decided([1], changed_at=[SEEN + 1], snapshot_seq=SEEN + 1)
    assert suspicions.observe(*heard, now=2.0) == []
    assert suspicions.observe(*heard, now=3.0) == [(1, QuarantineStep.QUARANTINE)]


def test_what_was_held_against_a_quiet_node_is_forgotten(decided):
    suspicions = Suspicions(QuarantineRules(refusals=2, window_seconds=10))
    suspicions.observe(*decided([1]), now=0.0)
    suspicions.observe(*decided([1]), now=0.0)
    suspicions.republished(1, SEEN)
    suspicions.forget(now=11.0)
    suspicions.observe(*decided([1]), now=12.0)
    assert suspicions.observe(*decided([1]), now=12.0) == [
        (1, QuarantineStep.REPUBLISH)
    ]  # not quarantine: it begins anew


@pytest.mark.parametrize(
    ("requested", "reserved", "told"),
    [
        ([1000, 2**30], [1000, 2**30], ""),
        ([1000, 0, 0], [1000], ""),
        ([1500, 2**30], [1000, 2**30], "cpu 1.5, 500m more"),
        ([1000, 2**36], [2000, 2**36 - 2**20], "cpu 1, 1 less; memory 64Gi, 1Mi more"),
        ([1000], [1000, 0, 3], "nvidia.com/gpu 0, 3 less"),
    ],
)
def test_a_wrong_account_is_told_by_name_and_unit_where_it_differs(requested, reserved, told):
    schema = ["cpu", "memory", "nvidia.com/gpu"]
    found = difference(np.array(requested, np.int64), np.array(reserved, np.int64), schema)
    assert found == (f"its account has, as requested, {told} than its reservations ask for" if told else "")
