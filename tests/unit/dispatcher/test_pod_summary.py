"""How many pods are in each phase, and why those that wait do."""

import pytest

from dispatcher.api.pod_summary import MOST_GROUPS, NO_REASON_GIVEN, dominant, pod_summary
from dispatcher.api.tenancy import TenantView
from dispatcher.core.messages import OutcomeCode


def summary(bench, tenant=""):
    return pod_summary(bench.machine, TenantView(bench.machine, tenant))


def groups(bench, tenant=""):
    return [(group.reason, group.pods, group.example) for group in summary(bench, tenant).pending]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "0/5 nodes are available: 3 Insufficient cpu, 2 node(s) had untolerated taint(s).",
            "Insufficient cpu",
        ),
        ("0/5 nodes are available: 1 Insufficient cpu, 4 Too many pods.", "Too many pods"),
        ("0/4 nodes are available: 2 Insufficient cpu, 2 Insufficient memory.", "Insufficient cpu"),
        (
            "gang t: 6 of the 8 pods it needs fit; for the others 0/5 nodes are available: 5 Too many pods.",
            "Too many pods",
        ),
        ("0/2 nodes are available: 2 node(s) had taint {a: b, c: d}.", "node(s) had taint {a: b, c: d}"),
        (
            (
                "0/9 nodes are available: 2 Too many pods, 7 Insufficient nvidia.com/gpu. preemption: 0/9"
                " nodes are available: 9 Preemption is not helpful."
            ),
            "Insufficient nvidia.com/gpu",
        ),
        ("scheduling gates: example.com/wait", "scheduling gates: example.com/wait"),
        ("", NO_REASON_GIVEN),
    ],
)
def test_the_dominant_reason_is_what_most_nodes_gave(text, reason):
    assert dominant(text) == reason


def test_pending_pods_are_grouped_by_dominant_reason_with_a_pod_of_each(bench):
    bench.join("w1")
    bench.job("big", 3)
    bench.answer("w1", OutcomeCode.UNSCHEDULABLE, reason="0/9 nodes are available: 9 Insufficient cpu.")
    bench.job("more", 2)
    bench.answer(
        "w1",
        OutcomeCode.UNSCHEDULABLE,
        reason="0/9 nodes are available: 5 Insufficient cpu, 4 Too many pods.",
    )
    assert groups(bench) == [("Insufficient cpu", 5, "default/big-0")]


def test_queued_pods_wait_for_their_turn_and_bound_ones_do_not_wait(bench):
    bench.join("w1", window=4)
    bench.job("early", 6)
    assert groups(bench) == [(NO_REASON_GIVEN, 2, "default/early-4")]
    while bench.sent.get("w1"):
        bench.answer("w1", OutcomeCode.BOUND)
    assert groups(bench) == []


def test_queued_pods_that_nobody_takes_wait_for_a_worker(bench):
    bench.job("early", 4)
    assert [group[:2] for group in groups(bench)] == [("no worker is registered", 4)]


def test_many_reasons_become_one_group_at_the_end(bench):
    bench.join("w1")
    for number in range(MOST_GROUPS + 3):
        bench.job(f"job-{number}", 1)
        bench.answer("w1", OutcomeCode.UNSCHEDULABLE, reason=f"reason {number}")
    found = groups(bench)
    assert len(found) == MOST_GROUPS + 1
    assert found[-1] == ("other reasons", 3, "")


def test_pods_are_counted_by_phase(bench):
    bench.join("w1", window=4)
    bench.job("early", 6)
    bench.answer("w1", OutcomeCode.BOUND)
    found = summary(bench).pods_by_phase
    assert (found["BOUND"], found["SCHEDULING"] + found["QUEUED"]) == (2, 4)


def test_a_tenant_is_told_of_its_own_pods(bench):
    bench.job("early", 4)
    assert sum(summary(bench, "default").pods_by_phase.values()) == 4
    assert sum(summary(bench, "nobody").pods_by_phase.values()) == 0
    assert groups(bench, "nobody") == []
