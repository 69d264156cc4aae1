"""The active queue is read in parts, and keeps what was read."""

import numpy as np

from dispatcher.core.queue.active import Place, Segment, SubQueues


def test_the_parts_of_a_sub_queue_are_all_of_its_rows_once():
    queues, rows = SubQueues(), np.arange(12, dtype=np.uint32)
    for number, (sub_queue, place, part) in enumerate(
        [
            (1, Place(0, 0), rows[:5]),
            (1, Place(9, 0), rows[5:6]),
            (1, Place(9, 2), rows[6:10]),
            (2, Place(0, 0), rows[10:]),
        ]
    ):
        queues.add(sub_queue, place, Segment(part, number, 0.0))
    for size in (1, 3, 7, 100):
        parts = [queues.rows(1, start, size) for start in range(0, queues.count(1), size)]
        assert all(len(part) <= size for part in parts)
        assert sorted(np.concatenate(parts).tolist()) == list(range(10))
    assert queues.rows(1, 10, 5).tolist() == queues.rows(3, 0, 5).tolist() == []
    assert queues.count(1) == 10
