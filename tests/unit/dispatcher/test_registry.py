"""Names, UIDs and rows: unique while they live, free again after."""

import numpy as np
import pytest

from dispatcher.core.podsets import AlreadyExists, NewJob, NewPods, NewTemplate, Order, uid_prefix
from dispatcher.core.podtable import Phase, PodTable, Reasons
from dispatcher.core.registry import PodRegistry
from dispatcher.core.templates import Kind
from hoss.model.pod import PodSpec, QosClass
from hoss.wire.columns import NONE_U32, numbered_uids


def template(spec=b"class", namespace="default", priority=0):
    return NewTemplate(spec, Kind(namespace, "hoss", "", QosClass.BURSTABLE, ""), priority)


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
        registry.accept(order("three", names=["c", "d"], uids=np.repeat(numbered_uids(b"y" * 12, 0, 1), 2, axis=0)), 0)


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
    registry.forget(one)
    assert len(registry.templates.live_ids()) == 1
    registry.forget(two)
    assert registry.templates.live_ids() == []


def test_class_ids_are_never_used_twice(registry):
    registry.forget(registry.accept(order("one", jobs=[("a", 1)]), 0))
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


def test_columns_keep_their_content_when_the_table_grows():
    table = PodTable()
    table.allocate(1000)
    table.phase[:1000] = Phase.BOUND
    table.allocate(100_000)
    assert table.count_by_phase()[Phase.BOUND] == 1000


def test_reasons_that_no_pod_has_any_more_are_dropped_when_there_are_many():
    table, reasons = PodTable(), Reasons()
    table.allocate(3)
    for number in range(Reasons.LIMIT + 10):
        last = reasons.number(f"0/{number} nodes are available")
    table.reason[1] = last
    reasons.compact(table)
    assert reasons.texts == ["", f"0/{Reasons.LIMIT + 9} nodes are available"]
    assert table.reason[:3].tolist() == [0, 1, 0]
