"""The event log: bounded, without gaps, honest about what it dropped."""

import numpy as np

from dispatcher.core.eventlog import EventLog


def append(log, pods):
    log.append(np.zeros((pods, 16), np.uint8), np.ones(pods, np.uint8), np.zeros(pods, np.uint32))


def test_a_watcher_gets_every_batch_after_its_revision_in_order():
    log = EventLog(first_revision=100)
    for pods in (1, 2, 3):
        append(log, pods)
    assert [len(batch.uids) for batch in log.since(101)] == [2, 3]
    assert log.since(103) == []


def test_the_log_is_bounded_and_says_when_a_revision_was_dropped():
    log = EventLog(limit=10)
    for _ in range(20):
        append(log, 2)
    assert log.since(log.revision - 6) is None
    assert len(log.since(log.revision - 5)) == 5


def test_a_revision_of_another_life_is_none_of_this_logs():
    log = EventLog(first_revision=1000)
    assert log.since(900) is None
    assert log.since(2000) is None
    assert log.since(1000) == []
