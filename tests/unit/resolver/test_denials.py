"""A scheduler that asks again and again for a node that stays full."""

from typing import Any

import pytest
from structlog.testing import capture_logs
from webhook_in_memory import WebhookCluster, review_of

from resolver.core.kubernetes.binding_review import RESERVED, Review, ReviewAnswer
from resolver.core.kubernetes.denials import LOGGED_SECONDS, MOST, REPEATED_SECONDS, RecentDenials

NO_ROOM = ReviewAnswer("conflict_resource", message="no room")


def question(number: int = 0, node: str = "n1", *, dry_run: bool = False) -> Review:
    return Review("q", "default", f"p{number}", number.to_bytes(16, "big"), node, dry_run)


def test_a_denial_is_repeated_for_a_moment_and_for_that_pod_and_node_alone() -> None:
    denials = RecentDenials()
    denials.judged(question(1), NO_ROOM, 10.0)
    assert denials.repeated(question(1), 10.0 + REPEATED_SECONDS / 2) is NO_ROOM
    assert denials.repeated(question(1), 10.0 + REPEATED_SECONDS) is None
    assert denials.repeated(question(2), 10.0) is None
    assert denials.repeated(question(1, "n2"), 10.0) is None
    assert denials.repeated(question(1, dry_run=True), 10.0) is None


@pytest.mark.parametrize("verdict", ["unknown_node", "reserved_elsewhere", "bound", "another_pod"])
def test_what_may_change_at_once_is_not_repeated(verdict: str) -> None:
    denials = RecentDenials()
    denials.judged(question(), ReviewAnswer(verdict), 10.0)
    assert denials.repeated(question(), 10.0) is None


def test_what_was_allowed_is_forgotten() -> None:
    denials = RecentDenials()
    denials.judged(question(), NO_ROOM, 10.0)
    denials.judged(question(), RESERVED, 11.0)
    assert (denials.repeated(question(), 11.0), len(denials)) == (None, 0)


def test_denials_are_logged_once_a_minute_with_how_many_there_were() -> None:
    denials = RecentDenials()
    logged = []
    for tenth in range(int(LOGGED_SECONDS) * 20 + 1):
        denials.judged(question(), NO_ROOM, tenth / 10)
        logged.append(denials.to_log(question(), tenth / 10))
    times = [number / 10 for number, left_out in enumerate(logged) if left_out is not None]
    assert times == [0.0, LOGGED_SECONDS, 2 * LOGGED_SECONDS]
    assert [left_out for left_out in logged if left_out is not None] == [0, 599, 599]


def test_the_table_forgets_the_old_and_has_a_most() -> None:
    denials = RecentDenials()
    for number in range(MOST + 10):
        denials.judged(question(number), NO_ROOM, 10.0)
        denials.to_log(question(number), 10.0)
    assert len(denials) == MOST
    denials.judged(question(MOST + 10), NO_ROOM, 10.0 + LOGGED_SECONDS)
    assert len(denials) == 1


async def test_a_scheduler_that_asks_ten_times_a_second_costs_two_looks_a_second_and_one_line(
    make_node: Any,
) -> None:
    """For a minute; and gets the room soon after it is there."""
    cluster = WebhookCluster(1)
    cluster.pods.watched = True
    await cluster.add_nodes(make_node("n1", cpu=1000))
    first, second = cluster.pod("first", cpu="800m"), cluster.pod("second", cpu="800m")
    assert (await cluster.guard.review(review_of(first, "n1"))).allowed
    decided = cluster.decided
    with capture_logs() as lines:
        for _ in range(590):
            cluster.now += 0.1
            assert not (await cluster.guard.review(review_of(second, "n1"))).allowed
    assert 100 <= cluster.decided - decided <= 125
    assert [line["event"] for line in lines] == ["binding_denied"]
    assert cluster.guard.counters["guard_conflict_resource"] == 590
    assert cluster.guard.counters["guard_repeated"] > 450
    await cluster.ledger.release(0, cluster.uids(first))
    cluster.now += REPEATED_SECONDS
    assert (await cluster.guard.review(review_of(second, "n1"))).allowed
