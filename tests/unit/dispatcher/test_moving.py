"""How runs of moves are begun, and taken over from an earlier term, before anything is asked of the
ledger."""

import random

import pytest

from dispatcher.core.machine import Machine, Settings
from dispatcher.core.moves import BegunRun, RunProgress
from dispatcher.core.policy.rules import Policy
from dispatcher.journal.memory import MemoryJournal
from dispatcher.ledger.move_steps import RunRecord
from dispatcher.ledger.moving import MOST_MOVES, Mover
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.ports import Recovered
from dispatcher.runtime import Runtime
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


class Maker:
    """Needs to know the nodes before it goes on with anything."""

    def __init__(self, runtime):
        self.record = RunRecord(runtime)

    async def take_over(self, _begun, _progress):
        return None


@pytest.fixture
def mover():
    runtime = Runtime(Machine(Settings(), Policy(), None, random.Random(1)), None, MemoryJournal())
    return Mover(runtime, ClusterNodes(), Maker(runtime))


async def test_a_run_with_more_moves_than_the_journal_takes_in_one_step_is_refused_by_its_limit(mover):
    moves = [pb.RebalanceMove(pod="default/a", source="n0", target="n1")] * (MOST_MOVES + 1)
    request = pb.RebalanceRequest(action=pb.REBALANCE_START, moves=moves, moves_per_second=1)
    with pytest.raises(InvalidInput, match="10,001, and a run has up to 10,000; plan fewer with --max-moves"):
        await mover.serve(request)


async def test_what_an_earlier_term_left_is_told_before_the_nodes_are_known_and_nothing_else_begins(mover):
    assert not mover.status().state
    await mover.take_over(Recovered([], moves=LEFT))
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
