"""Containers that name no cpu or memory count for 100m and 200 MiB in scores, wherever the pod was placed and
by whom."""

import numpy as np
import pytest

from hoss.model.pod import PodSpec, group_of
from hoss.wire.convert_rules import definition_of, group_defined
from scheduler_worker.core.messages import PodRun

MIB = 2**20
UNNAMED = PodSpec(nonzero_cpu_milli=100, nonzero_memory_bytes=200 * MIB)
NAMED = PodSpec(
    requests=(("cpu", 100), ("memory", 200 * MIB)), nonzero_cpu_milli=100, nonzero_memory_bytes=200 * MIB
)


@pytest.fixture
def harness(make_ledger, harness_of):
    return harness_of(make_ledger(3))


def weights(harness):
    """(cpu, memory in MiB) of each node, as scores see it."""
    view = harness.cache.view(None, cards=False)
    one = [harness.cache.one(node, cards=False).nonzero_requested[:2] for node in range(harness.cache.size)]
    assert view.nonzero_requested.T.tolist() == one
    return [(cpu, memory // MIB) for cpu, memory in one]


def told(harness, *runs):
    """A feed entry: pods of others, one on each node of a run."""
    nodes = sorted({node for _, at, _ in runs for node in at})
    pods = tuple(PodRun(group_of(spec), np.array(at, np.intp), gone) for spec, at, gone in runs)
    amounts = [(spec, node, -1 if gone else 1) for spec, at, gone in runs for node in at]
    requests = [
        [sign * dict(spec.requests).get(name, 0) for name in ("cpu", "memory")] for spec, _, sign in amounts
    ]
    rows = [[cpu, memory, 0, sign] for (cpu, memory), (_, _, sign) in zip(requests, amounts, strict=True)]
    harness.ledger.reserve([node for _, node, _ in amounts], rows)
    harness.cache.apply_feed(harness.ledger.delta(nodes, pods=pods))


def test_pods_of_others_weigh_what_they_do_not_name_until_they_go(harness):
    told(harness, (UNNAMED, [0, 1, 1], False), (NAMED, [1], False))
    assert weights(harness) == [(100, 200), (300, 600), (0, 0)]
    told(harness, (UNNAMED, [1], True))
    assert weights(harness) == [(100, 200), (200, 400), (0, 0)]


def test_own_pods_weigh_from_their_placement_on_and_once(harness):
    harness.submit((UNNAMED, 3))
    (proposal,) = harness.place()
    assert weights(harness) == [(100, 200)] * 3
    verdicts, update = harness.ledger.commit(proposal)
    harness.scheduler.settle(proposal.batch_id, verdicts)
    pods = (PodRun(group_of(UNNAMED), proposal.candidates[:, 0].astype(np.intp)),)
    before = harness.cache.changes.position
    harness.cache.apply_feed(harness.ledger.delta(update.accounts.indexes.tolist(), pods=pods))
    assert weights(harness) == [(100, 200)] * 3
    assert harness.cache.changes.position == before


def test_a_pod_that_was_refused_weighs_nothing(harness):
    harness.submit((UNNAMED, 1))
    (proposal,) = harness.place()
    harness.scheduler.reject(proposal.batch_id, "malformed")
    assert weights(harness) == [(0, 0)] * 3


def test_a_node_whose_pods_changed_in_weight_alone_is_ranked_anew(harness, make_pod):
    told(harness, (UNNAMED, [0, 0, 1, 1], False))
    harness.submit((make_pod(), 1))
    assert harness.place()[0].candidates[0, 0] == 2
    weightless = PodSpec()  # it names zero
    told(harness, (UNNAMED, [0, 0], True), (weightless, [0, 0], False))
    harness.submit((make_pod(), 1))
    assert harness.place()[0].candidates[0, 0] == 0


def test_a_snapshot_forgets_what_was_there(harness):
    told(harness, (UNNAMED, [0], False))
    harness.cache.apply_feed(harness.ledger.snapshot())
    assert weights(harness) == [(0, 0)] * 3


def test_where_every_pod_names_what_it_wants_nothing_is_kept(harness):
    told(harness, (NAMED, [0, 1], False))
    assert harness.cache.pod_index.excess is None


def test_a_groups_message_says_what_it_weighs():
    group = group_of(UNNAMED)
    assert group.excess == (100, 200 * MIB)
    assert group_defined(definition_of(group)) == group
    assert definition_of(group_of(PodSpec(namespace=""))) == b""
