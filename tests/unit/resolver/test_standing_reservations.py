"""Which reservation a look-up answers with if a pod has several."""

import numpy as np
import pytest

from hoss.wire.columns import NONE_U32
from resolver.core.commits import standing
from resolver.core.values import ReservationState

FIELDS = np.dtype([("node", "<u4"), ("seq", "<u8"), ("epoch", "<u8"), ("state", "u1")])
ABSENT = (NONE_U32, 0, 0, ReservationState.NONE)
PREPARED, ASSUMED, CONFIRMED = ReservationState.PREPARED, ReservationState.ASSUMED, ReservationState.CONFIRMED
PRE_BINDING = ReservationState.PRE_BINDING


def stands(*of_shards):
    found, pods, nodes = standing([np.array([one], FIELDS) for one in of_shards])
    return int(found["node"][0]), sorted(zip(pods.tolist(), nodes.tolist(), strict=True))


@pytest.mark.parametrize(
    ("of_shards", "node", "others"),
    [
        ([ABSENT, ABSENT], NONE_U32, []),
        ([ABSENT, (1, 7, 1, PREPARED)], 1, []),
        ([(0, 7, 1, CONFIRMED), (1, 8, 2, PREPARED)], 0, [1]),
        ([(0, 7, 2, PREPARED), (1, 8, 1, ASSUMED)], 1, [0]),
        ([(0, 7, 1, ASSUMED), (1, 8, 2, ASSUMED)], 1, [0]),
        ([(0, 7, 2, ASSUMED), (1, 8, 2, ASSUMED)], 0, [1]),
        ([(0, 7, 1, PREPARED), (1, 8, 1, PRE_BINDING), (2, 9, 1, ASSUMED)], 2, [0, 1]),
        ([(0, 7, 2, PRE_BINDING), (1, 8, 1, CONFIRMED)], 1, [0]),
        ([(0, 7, 1, ASSUMED), (1, 8, 1, CONFIRMED), (2, 9, 1, PREPARED)], 1, [0, 2]),
    ],
)
def test_the_confirmed_one_stands_then_the_assumed_one_then_that_of_the_latest_epoch(of_shards, node, others):
    assert stands(*of_shards) == (node, [(0, other) for other in others])
