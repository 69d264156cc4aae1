"""How long a worker's attempts took, by what came of them."""

import numpy as np
import pytest

from hoss.wire.columns import numbered_uids
from scheduler_worker.condition import AttemptTimes
from scheduler_worker.core.framework.extension_points import Diagnosis
from scheduler_worker.core.messages import Outcome
from scheduler_worker.core.work import Work


def test_an_attempt_lasts_from_the_batchs_coming_until_the_pod_is_answered_for():
    work = Work(1, numbered_uids(b"twelve bytes", 0, 6), received_at=10.0)
    work.answer(np.array([0, 1, 2]), Outcome.BOUND, nodes=np.zeros(3, np.uint32))
    work.answer(
        np.array([3]), Outcome.UNSCHEDULABLE, why=Diagnosis("0/1 nodes are available: 1 Insufficient cpu.")
    )
    work.answer(np.array([4, 5]), Outcome.RETURNED)
    times = AttemptTimes()
    times.answered(work.take_outcomes(), 10.25)
    counts = {result: int(histogram.counts.sum()) for result, histogram in times.by_result.items()}
    assert counts == {"scheduled": 3, "unschedulable": 1, "conflict": 0, "error": 0}
    assert times.by_result["scheduled"].total_seconds == pytest.approx(0.75)
