"""How runs of moves are begun, and taken over from an earlier term, before anything is asked of the
ledger."""

import random
from dataclasses import replace

import pytest

from dispatcher.core.machine import Machine, Settings
from dispatcher.core.moves import BegunRun, MoveRun, RunProgress
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
    """`waits`: it needs to know the nodes before it goes on with anything."""

    moves_back = False

    def __init__(self, runtime, *, waits):
        self.record = RunRecord(runtime)
        self._waits = waits

    async def take_over(self, begun, progress):
        return None if self._waits else MoveRun.continued(begun, progress, index_of=len, node_of=len)


def a_mover(journal, *, waits=True):
    runtime = Runtime(Machine(Settings(), Policy(), None, random.Random(1)), None, journal)
    return Mover(runtime, ClusterNodes(), Maker(runtime, waits=waits))


@pytest.fixture
def mover():
    return a_mover(MemoryJournal())


def report(*, paused=False):
    return pb.RebalanceController(id="c", paused=paused)


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


async def test_a_pause_that_the_controller_has_not_heard_of_outlives_the_dispatcher():
    journal = MemoryJournal()
    first = a_mover(journal)
    await first.hear(report())
    await first.serve(pb.RebalanceRequest(action=pb.REBALANCE_PAUSE))
    second = a_mover(journal)
    await second.take_over(await journal.recover())
    assert (await second.hear(report(paused=False))).controller.paused
    await second.serve(pb.RebalanceRequest(action=pb.REBALANCE_RESUME))
    third = a_mover(journal)
    await third.take_over(await journal.recover())
    assert not (await third.hear(report(paused=True))).controller.paused


def waiting(**fields):
    return pb.RebalanceController(
        id="c", preemption_wait_seconds=30, preemption_wait_up_to_priority=5, **fields
    )


async def test_pods_wait_for_moves_before_they_preempt_while_the_controller_wants_it_and_is_not_paused(mover):
    holds = mover._runtime.machine.preemption_holds
    await mover.hear(report())
    assert holds.wait_seconds == 0
    await mover.hear(waiting())
    assert (holds.wait_seconds, holds.up_to_priority) == (30, 5)
    await mover.serve(pb.RebalanceRequest(action=pb.REBALANCE_PAUSE))
    await mover.hear(waiting())
    assert holds.wait_seconds == 0
    await mover.serve(pb.RebalanceRequest(action=pb.REBALANCE_RESUME))
    await mover.hear(waiting())
    assert holds.wait_seconds == 30
    await mover.hear(waiting(leaving=True))
    assert holds.wait_seconds == 0


@pytest.mark.parametrize("seconds", [-1.0, 601.0, float("nan"), float("inf")])
async def test_a_wait_before_preemption_without_a_sensible_bound_is_refused(mover, seconds):
    with pytest.raises(InvalidInput, match="0 to 600 are allowed"):
        await mover.hear(pb.RebalanceController(id="c", preemption_wait_seconds=seconds))


class Away(MemoryJournal):
    """Takes no pause until it is back."""

    away = True

    async def save_controller_pause(self, paused):
        if self.away:
            raise LedgerUnavailable("the journal is away")
        await super().save_controller_pause(paused)


async def test_a_pause_that_could_not_be_written_down_holds_in_this_term_and_is_written_when_asked_again():
    journal = Away()
    mover = a_mover(journal)
    await mover.hear(report())
    for _ in range(2):
        with pytest.raises(LedgerUnavailable):
            await mover.serve(pb.RebalanceRequest(action=pb.REBALANCE_PAUSE))
        assert (await mover.hear(report())).controller.paused
    journal.away = False
    await mover.serve(pb.RebalanceRequest(action=pb.REBALANCE_PAUSE))
    assert (await journal.recover()).controller_paused


async def test_an_undo_before_a_controller_has_reported_pauses_the_one_that_does_after_a_takeover():
    journal = MemoryJournal()
    first = a_mover(journal, waits=False)
    await first.take_over(Recovered([], moves=LEFT))
    await first.serve(pb.RebalanceRequest(action=pb.REBALANCE_UNDO))
    second = a_mover(journal)
    await second.take_over(await journal.recover())
    assert (await second.hear(report())).controller.paused


@pytest.mark.parametrize(
    ("undo", "state", "after"),
    [(True, "Running", "Running"), (True, "Paused", "Done"), (False, "Running", "Done")],
)
async def test_an_undo_that_is_repeated_while_it_is_under_way_is_answered_with_what_the_first_one_began(
    undo, state, after
):
    begun, progress = LEFT
    left = replace(begun, undo=undo), replace(progress, state=state, states="WR", texts={})
    mover = a_mover(MemoryJournal(), waits=False)
    await mover.take_over(Recovered([], moves=left))
    status = await mover.serve(pb.RebalanceRequest(action=pb.REBALANCE_UNDO))
    assert (status.state, status.undo) == (after, undo)


@pytest.mark.parametrize("purpose", ["undo", "redo: spread"])
async def test_a_run_of_somebody_else_is_not_named_as_those_of_the_dispatcher(mover, purpose):
    moves = [pb.RebalanceMove(pod="default/a", source="n0", target="n1")]
    request = pb.RebalanceRequest(action=pb.REBALANCE_START, moves=moves, moves_per_second=1, purpose=purpose)
    with pytest.raises(InvalidInput, match="only runs that the dispatcher begins itself are named so"):
        await mover.serve(request)


async def test_the_run_before_is_told_as_it_ended_to_who_asks_for_it():
    mover = a_mover(MemoryJournal(), waits=False)
    await mover.take_over(Recovered([], moves=LEFT))
    asked = pb.RebalanceRequest(action=pb.REBALANCE_STATUS, previous=True)
    assert not (await mover.serve(asked)).state
    await mover._maker.record.begin(MoveRun([], (), 0, 1.0, "by hand"), name=str)
    assert mover.status().purpose == "by hand"
    before = await mover.serve(asked)
    assert (before.purpose, before.moved, len(before.moves)) == ("spread", 1, 2)
