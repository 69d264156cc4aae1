"""How runs of moves are begun, and taken over from an earlier term, before anything is asked of the
ledger."""

import pytest

from dispatcher.core.moves import BegunRun, RunProgress
from dispatcher.ledger.moving import MOST_MOVES, Mover
from dispatcher.ledger.nodes import ClusterNodes
from hoss.errors import InvalidInput, LedgerUnavailable
from hoss.v1 import dispatcher_pb2 as pb

LEFT = (
    BegunRun(
        ((b"u" * 16, "default/a", "n0", "n1"), (b"v" * 16, "default/b", "n0", "n2")),
        (7,),
        3,
        2.5,
        "spread",
        "c",
    ),
    RunProgress("Paused", "paused by hand", False, "MR", {0: "default/a2", 1: "no room"}),
)


@pytest.fixture
def mover():
    return Mover(None, ClusterNodes(), None)


async def test_a_run_with_more_moves_than_the_journal_takes_in_one_step_is_refused_by_its_limit(mover):
    moves = [pb.RebalanceMove(pod="default/a", source="n0", target="n1")] * (MOST_MOVES + 1)
    request = pb.RebalanceRequest(action=pb.REBALANCE_START, moves=moves, moves_per_second=1)
    with pytest.raises(InvalidInput, match="10,001, and a run has up to 10,000; plan fewer with --max-moves"):
        await mover.serve(request)


async def test_what_an_earlier_term_left_is_told_before_the_nodes_are_known_and_nothing_else_begins(mover):
    assert not mover.status().state
    mover.take_over(LEFT)
    told = mover.status()
    assert (told.state, told.reason, told.purpose, told.begun_by) == (
        "Paused",
        "paused by hand",
        "spread",
        "c",
    )
    assert [(m.pod, m.source, m.target, m.state, m.text, m.successor) for m in told.moves] == [
        ("default/a", "n0", "n1", "Moved", "its successor is default/a2", "default/a2"),
        ("default/b", "n0", "n2", "Refused", "no room", ""),
    ]
    assert (told.moved, told.refused, told.waiting) == (1, 1, 0)
    with pytest.raises(LedgerUnavailable, match="moves of an earlier one"):
        await mover.serve(pb.RebalanceRequest(action=pb.REBALANCE_UNDO))
