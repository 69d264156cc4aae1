"""Which moves of a run are due, and what stops it. Time is a number."""

import pytest

from dispatcher.core.moves import (
    BegunEviction,
    ControllerSeat,
    MoveRun,
    MoveState,
    PlannedMove,
    RunState,
)


def run_of(*places, rate=10.0, waiting=0):
    """Moves from a node to another, of pods 0, 1, ..."""
    moves = [
        PlannedMove(bytes([i]) * 16, f"default/p{i}", source, target)
        for i, (source, target) in enumerate(places)
    ]
    return MoveRun(moves, (7,), waiting, rate, "spread")


EVICTION = BegunEviction(b"{}", 7)


def pods(step):
    return [move.pod for move in step]


def make_all(run):
    now = 0.0
    while run.state is RunState.RUNNING:
        for move in run.due(now, 0):
            run.moved(move)
        now += 1.0


def test_moves_are_made_in_order_and_a_target_that_is_still_to_be_left_waits_for_the_next_step():
    run = run_of((0, 9), (1, 9), (2, 0), (3, 9))
    first = run.due(0.0, 0)
    assert pods(first) == ["default/p0", "default/p1"]
    for move in first:
        run.moved(move)
    assert pods(run.due(10.0, 0)) == ["default/p2", "default/p3"]


def test_the_rate_holds_over_any_time():
    run = run_of(*[(0, 9)] * 20, rate=2.0)
    made = 0
    for tenth in range(50):
        for move in run.due(tenth / 10, 0):
            run.moved(move)
            made += 1
    assert made == 10


def test_what_got_no_outcome_is_due_again():
    run = run_of((0, 9))
    assert pods(run.due(0.0, 0)) == pods(run.due(1.0, 0)) == ["default/p0"]


def test_a_run_pauses_when_more_pods_wait_than_at_its_start():
    run = run_of((0, 9), waiting=100)
    assert run.due(0.0, 110)
    assert run.due(1.0, 111) == ()
    assert (run.state, run.reason) == (
        RunState.PAUSED,
        "111 pods wait, and 100 waited when the moves began",
    )


def test_a_run_pauses_when_five_moves_in_a_row_are_refused_and_goes_on_when_told():
    run = run_of(*[(0, 9)] * 7)
    for move in run.moves[:4]:
        run.refused(move, "no room")
    run.moved(run.moves[4])
    assert run.state is RunState.RUNNING
    run = run_of(*[(0, 9)] * 7)
    for move in run.moves[:5]:
        run.refused(move, "no room")
    assert run.due(0.0, 0) == ()
    assert run.reason == "5 moves in a row were refused, the last one: no room"
    run.resume(0)
    assert len(run.due(0.0, 0)) == 2


@pytest.mark.parametrize("outcome", ["moved", "refused"])
def test_a_run_is_done_once_each_move_has_an_outcome(outcome):
    run = run_of((0, 9))
    run.moved(run.moves[0]) if outcome == "moved" else run.refused(run.moves[0], "no room")
    assert run.state is RunState.DONE
    assert run.due(1.0, 0) == ()


def test_a_plan_without_moves_is_done_at_once():
    run = run_of()
    assert run.due(0.0, 0) == ()
    assert run.state is RunState.DONE


def test_undoing_moves_back_what_was_moved_the_last_one_first():
    run = run_of((0, 9), (1, 8), (2, 7))
    run.moved(run.moves[0])
    run.refused(run.moves[1], "no room")
    run.moved(run.moves[2])
    back = run.undone((9,), 3)
    assert [(move.pod, move.source, move.target) for move in back.moves] == [
        ("default/p2", 7, 2),
        ("default/p0", 9, 0),
    ]
    assert (back.seen, back.waiting_before, back.purpose) == ((9,), 3, "undo: spread")
    make_all(back)
    assert back.counts()[MoveState.MOVED] == 2


@pytest.mark.parametrize("purpose", ["", "spread", "undoing"])
def test_an_undo_that_is_undone_is_the_run_again_however_often(purpose):
    run = run_of((0, 9))
    run.purpose = purpose
    assert not run.undo
    purposes = []
    for _ in range(4):
        make_all(run)
        run = run.undone((9,), 0)
        purposes.append((run.purpose, run.undo))
    end = f": {purpose}" if purpose else ""
    assert purposes == [("undo" + end, True), ("redo" + end, False)] * 2


def test_what_ended_in_a_step_is_not_tried_again_with_what_waits_still():
    run = run_of((0, 9), (1, 9), (2, 9))
    assert len(run.due(0.0, 0)) == 3
    run.refused(run.moves[1], "no room")
    run.waits(run.moves[0], "the budget forbids it")
    assert pods(run.due(1.0, 0)) == ["default/p0", "default/p2"]


def test_taking_back_ends_what_is_not_evicted_and_lets_the_rest_come_to_its_end():
    run = run_of((0, 9), (1, 9), (2, 9))
    run.due(0.0, 0)
    run.moved(run.moves[0], "its successor is default/p3")
    run.evicted(run.moves[1], EVICTION)
    run.take_back()
    assert (run.state, run.moves[2].state) == (RunState.PAUSED, MoveState.REFUSED)
    assert "but for 2 pods" in run.reason
    run.moved(run.moves[1])
    assert (run.state, "but for 2 pods" in run.reason) == (RunState.DONE, True)


def test_an_eviction_that_is_refused_after_the_undo_is_not_tried_again():
    run = run_of((0, 9))
    run.evicted(run.moves[0], EVICTION)
    run.take_back()
    run.waits(run.moves[0], "the budget forbids it")
    run.resume(0)
    assert run.due(1.0, 0) == ()
    assert (run.state, run.reason) == (RunState.DONE, "undone by hand")
    assert run.moves[0].text == "undone before its pod was evicted"


def test_one_controller_at_a_time_may_begin_runs_and_another_after_its_silence():
    seat = ControllerSeat()
    assert seat.refusal("") == ""
    assert "has not reported yet" in seat.refusal("one")
    assert seat.report("one", 0.0, paused=False) == ""
    assert seat.refusal("one") == ""
    assert "another rebalance controller is at work" in seat.report("two", 19.0, paused=False)
    assert "another" in seat.refusal("two")
    assert seat.report("two", 20.0, paused=False) == ""
    assert "another" in seat.refusal("one")
    seat.leave("one")
    assert "another" in seat.report("one", 21.0, paused=False)
    seat.leave("two")
    assert seat.report("one", 21.0, paused=False) == ""


def test_a_pause_outlives_the_controller_here_and_the_term_in_the_controller():
    seat = ControllerSeat()
    seat.report("one", 0.0, paused=False)
    seat.paused = True
    assert "paused" in seat.refusal("one")
    seat.report("two", 100.0, paused=False)
    assert "paused" in seat.refusal("two")
    next_term = ControllerSeat()
    next_term.report("two", 0.0, paused=True)
    assert "paused" in next_term.refusal("two")
    next_term.paused = False
    next_term.report("two", 1.0, paused=True)
    assert next_term.refusal("two") == ""


# --- the next dispatcher's term ---


def name(index):
    return "" if index < 0 else f"n{index}"


def next_term(run, *, places, nodes=range(10)):
    """The run as the next dispatcher goes on with it. `places`: where pods are bound, by number."""
    return MoveRun.continued(
        run.begun(name),
        run.progress(),
        index_of=lambda node: int(node[1:]) if int(node[1:]) in nodes else None,
        node_of=lambda uid: places.get(uid[0]),
    )


def test_the_next_term_goes_on_with_what_is_left():
    run = run_of((0, 9), (1, 9), (2, 9), (3, 9))
    run.moved(run.moves[0])
    run.refused(run.moves[1], "no room")
    after = next_term(run, places={0: 9, 1: 1, 2: 2, 3: 3})
    assert pods(after.due(0.0, 0)) == ["default/p2", "default/p3"]
    assert (after.begun(name), after.moves[1].text) == (run.begun(name), "no room")


def test_where_a_pod_is_says_whether_its_move_was_made():
    after = next_term(run_of((0, 9), (1, 9)), places={0: 9, 1: 1})
    assert [move.state for move in after.moves] == [MoveState.MOVED, MoveState.WAITING]
    assert [move.pod for move in after.undone((8,), 0).moves] == ["default/p0"]
    assert next_term(run_of((0, 9)), places={0: 9}).state is RunState.DONE


def test_a_pause_and_an_undo_outlive_the_term():
    paused, undone = run_of((0, 9), (1, 9)), run_of((0, 9), (1, 9))
    paused.pause("paused by hand")
    after = next_term(paused, places={0: 0, 1: 1})
    assert (after.state, after.reason, after.due(0.0, 0)) == (RunState.PAUSED, "paused by hand", ())
    after.resume(0)
    assert len(after.due(1.0, 0)) == 2
    undone.evicted(undone.moves[0], EVICTION)
    undone.take_back()
    after = next_term(undone, places={1: 1})
    assert (after.state, "but for 1 pods" in after.reason) == (RunState.PAUSED, True)
    after.refused(after.moves[0], "no successor has come")
    assert (after.state, after.reason) == (RunState.DONE, "undone by hand")


@pytest.mark.parametrize("answered", [True, False])
def test_the_next_term_has_what_it_needs_of_pods_that_may_be_evicted(answered):
    run = run_of((0, 9), (1, 9), (2, 9))
    run.evicted(run.moves[0], EVICTION)
    run.succeeded(run.moves[0], b"s" * 16, "default/p3")
    run.evicted(run.moves[1], EVICTION)
    if not answered:
        run.waits(run.moves[1], "the budget forbids it")
    after = next_term(run, places={2: 2}, nodes=(2, 9))  # the nodes that the pods have left are removed
    assert [move.eviction for move in after.maybe_evicted()] == [
        BegunEviction(b"{}", 7, (b"s" * 16, "default/p3")),
        EVICTION,
    ]
    assert after.moves[0].state is MoveState.EVICTED
    gone = next_term(run, places={2: 2}, nodes=(0, 1, 2))
    assert gone.maybe_evicted() == []
    assert gone.moves[0].text == "the node n9 is gone"


def test_a_move_that_has_ended_needs_nothing_in_the_next_term():
    run = run_of((0, 9), (1, 9))
    for move in run.moves:
        run.evicted(move, EVICTION)
    run.moved(run.moves[0], "default/p3")
    run.refused(run.moves[1], "no successor has come")
    assert run.progress().evictions == {}
    assert run.maybe_evicted() == []


def test_a_node_that_is_gone_ends_its_moves_and_nothing_is_moved_back_there():
    run = run_of((0, 9), (1, 8), (2, 7))
    run.moved(run.moves[2])
    after = next_term(run, places={0: 0, 1: 1, 2: 7}, nodes=(0, 1, 7, 8))
    assert [move.state for move in after.moves] == [MoveState.REFUSED, MoveState.WAITING, MoveState.MOVED]
    assert after.moves[0].text == "the node n9 is gone"
    assert after.undone((8,), 0).moves == []


def test_counts_are_the_same_from_the_journal():
    run = run_of((0, 9), (1, 9), (2, 9))
    run.moved(run.moves[0])
    run.refused(run.moves[1], "no room")
    assert run.progress().counts() == run.counts()


def test_a_run_whose_moves_are_all_of_what_is_gone_is_done_from_the_start():
    run = MoveRun([PlannedMove(bytes(16), "default/p", 0, 9, MoveState.REFUSED, "gone")], (7,), 0, 1.0)
    assert (run.state, run.due(0.0, 0)) == (RunState.DONE, ())
