"""The event log: bounded, without gaps, and it reports what it dropped."""

import tracemalloc

import numpy as np

from dispatcher.core.pods.history import EventLog


def append(log, pods):
    log.append(np.zeros((pods, 16), np.uint8), np.ones(pods, np.uint8), np.zeros(pods, np.uint32))


def test_a_watcher_gets_every_batch_after_its_revision_in_order():
    log = EventLog(first_revision=100)
    for pods in (1, 2, 3):
        append(log, pods)
    assert [len(batch.uids) for batch in log.since(101)] == [2, 3]
    assert log.since(103) == []


def test_the_log_is_bounded_and_says_when_a_revision_was_dropped():
    log = EventLog(limit_pods=10)
    for _ in range(20):
        append(log, 2)
    assert log.since(log.revision - 6) is None
    assert len(log.since(log.revision - 5)) == 5


class Looked(list):
    """Counts how many of its elements are looked at."""

    looks = 0

    def __getitem__(self, at):
        found = super().__getitem__(at)
        self.looks += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self):
        self.looks += len(self)
        return super().__iter__()


def test_a_watcher_at_the_end_of_a_long_log_looks_at_the_end_alone():
    log = EventLog(limit_pods=10**7)
    for _ in range(500):
        append(log, 5000)
    log._chunks = Looked(log._chunks)
    assert len(log._chunks) > 250
    assert log.since(log.revision) == []
    assert len(log.since(log.revision - 1)) == 1
    assert log._chunks.looks <= 2 * 12  # two searches by halves


def test_a_revision_of_another_life_is_none_of_this_logs():
    log = EventLog(first_revision=1000)
    assert log.since(900) is None
    assert log.since(2000) is None
    assert log.since(1000) == []


def test_the_log_is_bounded_in_bytes_too_and_its_last_batch_stays():
    log = EventLog(limit_bytes=100_000)
    for _ in range(5000):
        append(log, 1)
    assert 90_000 < log.bytes <= 100_000
    assert len(log) > 3000  # some thirty bytes for each
    log.append(
        np.zeros((1, 16), np.uint8),
        np.ones(1, np.uint8),
        np.zeros(1, np.uint32),
        np.zeros(1, np.uint16),
        ("x" * 200_000,),
    )
    assert [batch.texts for batch in log.since(log.revision - 1)] == [("x" * 200_000,)]
    assert len(log) == 1
    append(log, 1)
    assert (len(log), log.bytes < 1000) == (1, True)


def test_batches_read_from_the_log_are_as_they_were_appended():
    rng, log, appended = np.random.default_rng(1), EventLog(limit_pods=30_000), {}
    for _ in range(400):
        pods = int(rng.choice([1, 2, 500, 5000]))
        uids = rng.integers(0, 256, (pods, 16)).astype(np.uint8)
        phases, nodes = rng.integers(0, 8, pods).astype(np.uint8), rng.integers(0, 9, pods).astype(np.uint32)
        reasons = rng.integers(0, 2, pods).astype(np.uint16) if pods < 500 else None
        texts = ("a", "b") if reasons is not None else ()
        log.append(uids, phases, nodes, reasons, texts)
        appended[log.revision] = (uids, phases, nodes, reasons, texts)
    position = log.revision - len(log)
    assert log.since(position - 1) is None
    read = 0
    while batches := log.since(position, 7):
        assert [batch.revision for batch in batches] == list(range(position + 1, position + 1 + len(batches)))
        for batch in batches:
            uids, phases, nodes, reasons, texts = appended[batch.revision]
            assert (batch.uids == uids).all()
            assert (batch.phases == phases).all()
            assert (batch.nodes == nodes).all()
            assert (batch.reasons is None) == (reasons is None)
            assert reasons is None or (batch.reasons == reasons).all()
            assert batch.texts == texts
            read += len(batch.uids)
        position = batches[-1].revision
    assert 20_000 < read <= 30_000


def test_what_a_batch_shares_with_later_ones_does_not_change_it():
    log = EventLog()
    append(log, 1)
    (first,) = log.since(1)
    log.append(np.full((1, 16), 7, np.uint8), np.full(1, 7, np.uint8), np.full(1, 7, np.uint32))
    assert (first.uids.sum(), first.phases.tolist()) == (0, [1])


def test_a_log_of_one_pod_events_takes_little_more_than_their_columns():
    log = EventLog()
    tracemalloc.start()
    for _ in range(10_000):
        append(log, 1)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held / 10_000 < 46  # as arrays of their own they took 920
