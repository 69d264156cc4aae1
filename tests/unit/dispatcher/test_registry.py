"""Names, UIDs and rows: unique while they live, free again after."""

import numpy as np
import pytest

from dispatcher.core.pods.registry import LEAST_FREED_ROWS, PodRegistry
from dispatcher.core.pods.registry import LOOKED_AT_ONCE as PART
from dispatcher.core.pods.sets import AlreadyExists, NewJob, NewPods, NewTemplate, Order, uid_prefix
from dispatcher.core.pods.table import Phase, PodTable, Reasons
from dispatcher.core.pods.templates import TemplateKind
from hoss.model.pod import PodSpec, QosClass
from hoss.wire.columns import NONE_U32, numbered_uids


def template(spec=b"class", namespace="default", priority=0):
    return NewTemplate(spec, TemplateKind(namespace, "hoss", "", QosClass.BURSTABLE, ""), priority)


def order(request, *, jobs=(), names=(), uids=None, templates=None):
    pods = NewPods(tuple(names), np.zeros(len(names), np.uint32), uids) if names else None
    return Order(request, templates or (template(),), tuple(NewJob(n, 0, k) for n, k in jobs), pods)


@pytest.fixture
def registry():
    return PodRegistry(lambda _: PodSpec(), lambda _: None)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"jobs": [("a", 3)]}, {"jobs": [("a", 1)]}),
        ({"names": ["p"]}, {"names": ["p"]}),
        ({"jobs": [("a", 3)]}, {"names": ["a-2"]}),
        ({"names": ["a-2"]}, {"jobs": [("a", 3)]}),
        ({}, {"names": ["p", "p"]}),
        ({}, {"jobs": [("a", 1), ("a", 2)]}),
        ({}, {"jobs": [("a", 3)], "names": ["a-0"]}),
    ],
)
def test_a_name_that_is_taken_is_refused_and_nothing_changes(registry, first, second):
    if first:
        registry.accept(order("one", **first), 0)
    size, names = registry.pods.size, len(registry.directory.sets)
    with pytest.raises(AlreadyExists, match="there already"):
        registry.accept(order("two", **second), 0)
    assert (registry.pods.size, len(registry.directory.sets)) == (size, names)


@pytest.mark.parametrize("name", ["a-3", "a-01", "a", "b-0", "a-0-0"])
def test_names_that_only_look_like_a_jobs_pods_are_free(registry, name):
    registry.accept(order("one", jobs=[("a", 3)]), 0)
    registry.accept(order("two", names=[name]), 0)
    assert registry.directory.row_of_name("default", name) == 3


def test_the_same_name_in_another_namespace_is_another_pod(registry):
    registry.accept(order("one", names=["p"]), 0)
    registry.accept(order("two", names=["p"], templates=(template(namespace="other"),)), 0)
    assert registry.directory.row_of_name("other", "p") == 1


def test_a_client_uid_that_is_taken_is_refused(registry):
    uids = numbered_uids(b"x" * 12, 0, 2)
    registry.accept(order("one", names=["a", "b"], uids=uids), 0)
    with pytest.raises(AlreadyExists, match="belongs to another pod"):
        registry.accept(order("two", names=["c", "d"], uids=uids[::-1]), 0)
    with pytest.raises(AlreadyExists, match="belongs to another pod"):
        registry.accept(
            order("three", names=["c", "d"], uids=np.repeat(numbered_uids(b"y" * 12, 0, 1), 2, axis=0)), 0
        )


def test_pods_are_found_by_uid_whoever_made_it(registry):
    registry.accept(order("one", jobs=[("a", 300)]), 0)
    given = numbered_uids(b"x" * 12, 5, 2)
    registry.accept(order("two", names=["p", "q"], uids=given), 0)
    strangers = np.concatenate([numbered_uids(b"z" * 12, 0, 1), numbered_uids(uid_prefix("one", 0), 300, 1)])
    asked = np.concatenate([registry.pods.uid[[299, 0]], given, strangers])
    assert registry.directory.rows_of_uids(asked).tolist() == [299, 0, 300, 301, NONE_U32, NONE_U32]


def test_what_was_abandoned_leaves_no_trace(registry):
    registry.abandon(registry.accept(order("one", jobs=[("a", 3)], names=["p", "a-7"]), 0))
    assert registry.pods.size == 0
    assert registry.templates.live_ids() == []
    assert registry.templates.specs == {}
    registry.accept(order("one", jobs=[("a", 9)], names=["p"]), 0)


def test_templates_are_shared_and_forgotten_with_their_last_pod(registry):
    one = registry.accept(order("one", jobs=[("a", 3)]), 0)
    two = registry.accept(order("two", jobs=[("b", 3)]), 0)
    assert len(registry.templates.live_ids()) == 1
    registry.abandon(one)
    assert len(registry.templates.live_ids()) == 1
    registry.abandon(two)
    assert registry.templates.live_ids() == []


def test_class_ids_are_never_used_twice(registry):
    registry.abandon(registry.accept(order("one", jobs=[("a", 1)]), 0))
    registry.accept(order("two", jobs=[("a", 1)]), 0)
    assert list(registry.templates.specs) == [2]


def test_freed_rows_are_used_again_and_neighbours_join():
    table = PodTable()
    first, second, third = table.allocate(10), table.allocate(20), table.allocate(30)
    table.free(first, 10)
    table.free(second, 20)
    assert table.allocate(25) == 0
    assert table.allocate(10) == 60
    table.free(60, 10)
    table.free(third, 30)
    assert table.size == 25


def test_a_range_is_found_again_once_its_neighbours_are_free_as_well():
    table = PodTable()
    ranges = [table.allocate(10) for _ in range(4)]
    table.free(ranges[2], 10)
    assert table.allocate(20) == 40
    table.free(ranges[1], 10)
    assert table.free_ranges == 1
    assert table.allocate(20) == 10


def admitted(registry, order):
    submission = registry.accept(order, 0)
    registry.admit(submission, 0)
    registry.pods.in_queue[:] = False  # whatever waited was sent and answered
    return submission


def test_200_live_pods_hold_few_rows_however_many_were_submitted_with_them(registry):
    submission = admitted(registry, order("one", jobs=[("a", 20_000)]))
    (pod_set,) = submission.sets
    keep = np.sort(np.random.default_rng(1).choice(20_000, 200, replace=False)).astype(np.uint32)
    registry.mark_deleted(np.setdiff1d(np.arange(20_000, dtype=np.uint32), keep), 1)
    assert registry.forget_deleted() == []
    assert registry.pods.in_use <= 200 * LEAST_FREED_ROWS / 4
    assert set(keep.tolist()) <= set(registry.rows_of(pod_set).tolist())
    assert registry.deleted(pod_set).sum() == 19_800


def test_a_pod_that_outlives_its_neighbours_keeps_its_name_uid_and_row(registry):
    one = admitted(registry, order("one", jobs=[("a", 100)], names=[f"p-x{i}" for i in range(100)]))
    uids = registry.pods.uid[[50, 150]].copy()
    registry.mark_deleted(np.setdiff1d(np.arange(200, dtype=np.uint32), [50, 150]).astype(np.uint32), 1)
    registry.forget_deleted()
    admitted(registry, order("two", jobs=[("b", 40)]))  # in rows that were theirs
    assert registry.pods.size == 151
    directory = registry.directory
    assert [directory.row_of_name("default", name) for name in ("a-50", "p-x50")] == [50, 150]
    assert [directory.row_of_name("default", name) for name in ("a-7", "p-x7")] == [None, None]
    assert directory.rows_of_uids(uids).tolist() == [50, 150]
    assert directory.rows_of_uids(numbered_uids(one.sets[0].uid_prefix, 7, 1)).tolist() == [NONE_U32]
    assert [registry.set_of(row).pod_name(row) for row in (50, 150)] == ["a-50", "p-x50"]


def test_what_is_still_used_of_a_deleted_set_is_forgotten_later(registry):
    submission = admitted(registry, order("one", jobs=[("a", 100)]))
    registry.pods.node[40] = 3  # the ledger has not released its reservation
    registry.mark_deleted(np.arange(100, dtype=np.uint32), 1)
    assert registry.forget_deleted() == []
    assert registry.rows_of(submission.sets[0]).tolist() == [40]
    registry.pods.node[40] = NONE_U32
    assert registry.forget_deleted() == [submission]
    assert registry.pods.size == 0
    assert not registry.any_to_forget


def test_a_deleted_job_is_forgotten_though_another_of_its_message_lives(registry):
    others = template(spec=b"other", namespace="elsewhere")
    request = Order("one", (template(), others), (NewJob("a", 0, 3), NewJob("b", 1, 3)), None)
    submission = admitted(registry, request)
    registry.mark_deleted(np.arange(3, dtype=np.uint32), 1)
    assert registry.forget_deleted() == []
    assert (registry.pods.in_use, list(registry.templates.specs.values())) == (3, [b"other"])
    assert [s.name for s in submission.sets] == ["a", "b"]  # for a repeated request
    admitted(registry, order("two", jobs=[("a", 1)]))
    registry.mark_deleted(np.arange(3, 6, dtype=np.uint32), 1)
    assert registry.forget_deleted() == [submission]


def test_columns_keep_their_content_when_the_table_grows():
    table = PodTable()
    table.allocate(1000)
    table.phase[:1000] = Phase.BOUND
    table.allocate(100_000)
    assert table.count_by_phase()[Phase.BOUND] == 1000


def test_reasons_that_no_pod_has_any_more_are_dropped_when_there_are_many():
    table, reasons = PodTable(), Reasons()
    table.allocate(3)
    for number in range(Reasons.LEAST + 10):
        last = reasons.number(f"0/{number} nodes are available")
    table.reason[1] = last
    table.reason[2] = reasons.number("a plugin failed", frozenset({"P"}), failed=True)
    reasons.compact(table)
    assert reasons.texts == ["", f"0/{Reasons.LEAST + 9} nodes are available", "a plugin failed"]
    assert table.reason[:3].tolist() == [0, 1, 2]
    assert reasons.failed == [False, False, True]
    assert reasons.number("a plugin failed", frozenset({"P"}), failed=True) == 2
    assert reasons.number("a plugin failed", frozenset({"P"})) == 3, "the same words of another kind"


def deleted_job(registry, pods):
    """A job whose pods are all deleted, and in nobody's hands."""
    submission = registry.accept(order("large", jobs=[("large", pods)]), 0)
    (rows,) = registry.admit(submission, 0)
    registry.pods.in_queue[rows] = False
    registry.mark_deleted(rows, 0)
    return submission, rows


def test_a_large_set_is_looked_through_part_by_part_and_forgotten_with_the_last(registry):
    submission, _ = deleted_job(registry, 3 * PART)
    found = [registry.forget_deleted() for _ in range(3)]
    assert found == [[], [], [submission]]
    assert (registry.pods.in_use, registry.any_to_forget) == (0, False)


def test_what_is_still_used_of_a_part_is_looked_at_again_after_the_other_parts(registry):
    submission, rows = deleted_job(registry, 2 * PART)
    registry.pods.in_queue[rows[5]] = True
    assert [registry.forget_deleted() for _ in range(2)] == [[], []]
    assert registry.pods.in_use == 1 + 5, "the five before it are too few to be freed by themselves"
    assert registry.any_to_forget
    registry.pods.in_queue[rows[5]] = False
    assert [registry.forget_deleted() for _ in range(2)] == [[submission], []]


def test_pods_that_are_deleted_behind_the_part_that_is_looked_at_are_forgotten_by_the_next_pass(registry):
    submission = registry.accept(order("large", jobs=[("large", 2 * PART)]), 0)
    (rows,) = registry.admit(submission, 0)
    registry.pods.in_queue[rows] = False
    registry.mark_deleted(rows[PART:], 0)
    registry.forget_deleted()
    registry.mark_deleted(rows[:PART], 0)
    for _ in range(3):
        registry.forget_deleted()
    assert (registry.pods.in_use, registry.any_to_forget) == (0, False)


def test_many_sets_are_forgotten_in_parts_and_all_in_the_end(registry):
    submissions = []
    for number in range(3000):
        order = Order(f"r{number}", (template(),), (NewJob(f"job-{number}", 0, 1),), None)
        submissions.append(registry.accept(order, 0))
        registry.admit(submissions[-1], 0)
    registry.pods.in_queue[:] = False
    registry.mark_deleted(np.arange(3000, dtype=np.uint32), 0)
    first = registry.forget_deleted()
    assert 0 < len(first) < 3000
    assert registry.forgetting
    rest = []
    while registry.forgetting:
        rest += registry.forget_deleted()
    assert len(first) + len(rest) == 3000
    assert not registry.any_to_forget
    assert registry.pods.in_use == 0


def test_a_list_is_forgotten_in_parts_and_the_names_that_are_left_stay_right(registry):
    names = tuple(f"pod-{number}" for number in range(5000))
    pods = NewPods(names, np.zeros(5000, np.uint32), None)
    submission = registry.accept(Order("list", (template(),), (), pods), 0)
    registry.admit(submission, 0)
    registry.pods.in_queue[:] = False
    registry.mark_deleted(np.arange(1000, 5000, dtype=np.uint32), 0)
    for _ in range(10):
        registry.forget_deleted()
    assert registry.pods.in_use == 1000
    assert [registry.set_of(row).pod_name(row) for row in (0, 999)] == ["pod-0", "pod-999"]
    assert registry.directory.row_of_name("default", "pod-999") == 999
    assert registry.directory.row_of_name("default", "pod-1000") is None


def test_pods_are_found_by_numbered_and_given_uids_also_once_only_one_kind_is_left(registry):
    given = numbered_uids(bytes(range(12)), 0, 3)
    listed = registry.accept(order("listed", names=["x", "y", "z"], uids=given), 0)
    assert registry.directory.rows_of_uids(given[::-1]).tolist() == [2, 1, 0]
    job = registry.accept(order("job", jobs=[("a", 4)]), 0)
    numbered = numbered_uids(job.sets[0].uid_prefix, 2, 3)
    both = np.concatenate([numbered, given])
    assert registry.directory.rows_of_uids(both).tolist() == [5, 6, NONE_U32, 0, 1, 2]
    registry.abandon(listed)
    assert registry.directory.rows_of_uids(both).tolist() == [5, 6, *[NONE_U32] * 4]
    registry.accept(order("again", names=["x", "y", "z"], uids=given), 0)
    registry.abandon(job)
    assert registry.directory.rows_of_uids(both).tolist()[:3] == [NONE_U32] * 3


@pytest.mark.parametrize("twice", ["in the list", "in an earlier list", "in a job"])
def test_a_uid_that_is_given_twice_is_refused(registry, twice):
    job = registry.accept(order("job", jobs=[("a", 4)]), 0)
    registry.accept(order("earlier", names=["x"], uids=numbered_uids(bytes(range(12)), 0, 1)), 0)
    uids = numbered_uids(bytes(range(12)), 1, 2).copy()
    before = {
        "in the list": uids[0],
        "in an earlier list": numbered_uids(bytes(range(12)), 0, 1)[0],
        "in a job": numbered_uids(job.sets[0].uid_prefix, 3, 1)[0],
    }
    uids[1] = before[twice]
    with pytest.raises(AlreadyExists, match="belongs to another pod"):
        registry.accept(order("new", names=["y", "z"], uids=uids), 0)
