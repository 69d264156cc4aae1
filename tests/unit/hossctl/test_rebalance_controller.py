"""What the rebalance controller decides. Time is a value; the cluster is one in memory, planned by the real
planner."""

from datetime import datetime, timedelta, timezone

import numpy as np
from unit.hossctl.made_up_platform import gathered

from hoss.model.cluster import BoundPod, Cluster
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.choices import RebalanceGoal
from hossctl.rebalance.controller import Chosen, RebalanceController, groups
from hossctl.rebalance.controlling import moved_pods
from hossctl.rebalance.plans import plan_for
from hossctl.rebalance.policy import RebalancePolicy
from scheduler_worker.core.offline.cluster_snapshot import ClusterSnapshot
from scheduler_worker.core.plugins import default_profile
from scheduler_worker.core.rebalance.goals import empty_nodes, fit_pending, spread
from scheduler_worker.core.rebalance.movable_pods import PlacedPods, PlanLimits
from scheduler_worker.core.rebalance.plan_state import Move, PlanState, WaitingPods

NOW = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)
EMPTY, SPREAD = RebalanceGoal.EMPTY_NODES, RebalanceGoal.SPREAD


def after(seconds):
    return NOW + timedelta(seconds=seconds)


def controller(goal=EMPTY, least=None, **fields):
    goals = [{"goal": goal.value, "leastGainPerMove": least}]
    return RebalanceController(RebalancePolicy.model_validate({"goals": goals, **fields}), now=NOW)


def spec(cpu):
    return PodSpec(requests=(("cpu", cpu),), nonzero_cpu_milli=cpu)


def placed(*pods, workloads=None):
    """Pods given as (name, node, cpu)."""
    specs = list(dict.fromkeys(spec(cpu) for _, _, cpu in pods))
    return PlacedPods(
        names=[name for name, _, _ in pods],
        specs=specs,
        classes=np.array([specs.index(spec(cpu)) for _, _, cpu in pods], np.intp),
        nodes=np.array([node for _, node, _ in pods], np.intp),
        card_masks=np.zeros(len(pods), np.uint16),
        workloads=np.arange(len(pods)) if workloads is None else np.array(workloads),
        fixed=np.zeros(len(pods), np.intp),
        reasons=("",),
        covered=np.zeros((len(specs), 0), np.bool_),
        allowed=np.zeros(0, np.int64),
    )


def state_of(decider, pods, nodes=3, now=NOW):
    """A cluster of nodes with 1,000 thousandths of a cpu each."""
    of = [
        NodeSpec(f"n{i}", allocatable=(("cpu", 1000), ("memory", 1000), ("pods", 20))) for i in range(nodes)
    ]
    bound = [
        BoundPod(name, f"n{node}", spec(cpu), spec(cpu).requests, cpu, 0, started_at=0.0)
        for (name, node, cpu) in zip(
            pods.names,
            pods.nodes.tolist(),
            (pods.specs[k].nonzero_cpu_milli for k in pods.classes.tolist()),
            strict=True,
        )
    ]
    limits = decider.limits(pods, now)
    return PlanState(
        ClusterSnapshot(Cluster(of, bound)), default_profile(), decider.movable(pods, now), limits
    )


def emptied(decider, pods, now=NOW):
    state = state_of(decider, pods, now=now)
    return decider.choose(EMPTY, empty_nodes(state), state), state


def moved(chosen, pods):
    return [pods.names[move.row] for move in chosen.moves]


NOBODY = placed()
ONE_BY_ITSELF = (("default/a", 0, 600), ("default/b", 1, 300), ("default/c", 2, 100))


def test_moves_that_are_worth_it_are_chosen_and_made_in_the_state():
    decider, pods = controller(), placed(*ONE_BY_ITSELF)
    chosen, state = emptied(decider, pods)
    assert moved(chosen, pods) == ["default/c", "default/b"]
    assert chosen.gain == 2
    assert state.nodes.tolist() == [0, 0, 0]


def test_moves_that_gain_too_little_are_left_out_whole_and_the_state_is_as_it_was():
    decider = controller(least=1.0)
    pods = placed(*((f"default/{node}-{i}", node, 200) for node in (0, 1) for i in range(2)))
    chosen, state = emptied(decider, pods)
    assert chosen.moves == ()
    assert "the best move gains 0.5, and 1 is asked for" in chosen.why
    assert state.nodes.tolist() == [0, 0, 1, 1]


def test_a_move_that_relies_on_one_that_is_left_out_is_left_out_too():
    decider, pods = controller(SPREAD, least=0.02), placed(*ONE_BY_ITSELF)
    state = state_of(decider, pods)
    plan = spread(state)
    state.undo_to(0)
    plan.moves = [Move(2, 2, 1, 0.0001, ""), Move(1, 1, 0, 90.0, "")]
    assert decider.choose(SPREAD, plan, state).moves == ()


def test_the_budgets_of_an_hour_a_pass_and_a_workload_hold():
    decider = controller(budget={"movesPerHour": 3, "movesPerPass": 2, "movesPerWorkload": 1})
    assert decider.limits(NOBODY, NOW).moves == 2
    pods = placed(*ONE_BY_ITSELF, workloads=(0, 1, 1))
    chosen, _ = emptied(decider, pods)
    assert moved(chosen, pods) == ["default/c"]
    decider.made(chosen, moved(chosen, pods), NOW)
    assert decider.limits(NOBODY, after(10)).moves == 2
    assert emptied(decider, placed(*ONE_BY_ITSELF[:2], workloads=(0, 1)), after(3599))[0].moves
    decider.made(chosen, ["default/x", "default/y"], after(10))
    assert decider.limits(NOBODY, after(20)).moves == 0
    assert decider.waits(after(20)) == "the hour's 3 moves are made; goes on in 0:59:40"
    assert decider.limits(NOBODY, after(3600)).moves == 1
    assert decider.moved_in_last(86_400, after(3700)) == 3


def test_the_workload_of_a_pod_that_was_moved_is_spent_for_an_hour():
    decider = controller(budget={"movesPerWorkload": 1}, restSeconds=0)
    pods = placed(*ONE_BY_ITSELF, workloads=(0, 1, 1))
    decider.made(Chosen(EMPTY), ["default/c"], NOW)
    assert "default/c" not in moved(emptied(decider, pods, after(3599))[0], pods)
    assert moved(emptied(decider, pods, after(3601))[0], pods) == ["default/c"]


def test_a_plan_has_no_more_moves_of_a_workload_than_the_hour_has_left():
    """One was moved before, and an hour allows two."""
    decider = controller(SPREAD, least=0.001, budget={"movesPerWorkload": 2}, restSeconds=0)
    pods = placed(*((f"default/{i}", 0, 150) for i in range(6)), workloads=[0] * 6)
    decider.made(Chosen(SPREAD), ["default/5"], NOW)
    state = state_of(decider, pods, now=after(60))
    assert len(decider.choose(SPREAD, spread(state), state).moves) == 1


def test_where_no_move_helps_the_controller_says_how_many_pods_stay_and_why():
    decider = controller(SPREAD, budget={"movesPerWorkload": 1}, restSeconds=3600)
    pods = placed(*((f"default/{i}", 0, 150) for i in range(6)), workloads=[0] * 6)
    decider.made(Chosen(SPREAD), ["default/5"], NOW)
    state = state_of(decider, pods, now=after(60))
    assert decider.choose(SPREAD, spread(state), state).why == (
        "spread: no move helps; pods that stay: 5 because 1 pods of its workload are moved already, 1"
        " because it"
        " was moved, or its move was refused, not long ago"
    )


def test_a_window_that_closes_before_a_move_would_end_says_so():
    window = {"begin": "11:00", "end": "12:01"}
    decider = controller(windows=[window], budget={"movesPerSecond": 0.02})
    assert decider.waits(NOW) == ""
    assert decider.waits(after(11)) == "no window is open for long enough; the next one opens Tue 11:00 UTC"
    assert decider.waits(after(60)) == "no window is open; the next one opens Tue 11:00 UTC"


def test_a_moved_pod_rests_and_other_namespaces_are_left_alone():
    decider = controller(restSeconds=7200, namespaces={"exclude": ["quiet"]})
    pods = placed(("default/a", 0, 100), ("default/b", 1, 100), ("quiet/c", 2, 100))
    decider.made(Chosen(EMPTY), ["default/a"], NOW)
    resting = decider.movable(pods, after(7199))
    assert [resting.reasons[why] for why in resting.fixed.tolist()] == [
        "it was moved, or its move was refused, not long ago",
        "",
        "the policy leaves its namespace alone",
    ]
    assert decider.movable(pods, after(7200)).fixed.astype(bool).tolist() == [False, False, True]


def test_a_pod_whose_move_was_refused_lets_others_go_first_but_for_no_longer_than_an_alarm_lasts():
    decider = controller(restSeconds=7200, alarmSeconds=60)
    pods = placed(("default/a", 0, 100), ("default/b", 1, 100))
    decider.made(Chosen(EMPTY), ["default/a"], NOW)
    decider.refused(["default/a", "default/b"], NOW)
    assert decider.movable(pods, after(59)).fixed.astype(bool).tolist() == [True, True]
    assert decider.movable(pods, after(61)).fixed.astype(bool).tolist() == [True, False]
    assert (
        decider.limits(NOBODY, after(1)).moves == decider.limits(NOBODY, NOW).moves
    )  # nothing of the budget is spent


def test_a_moved_pod_of_a_cluster_is_known_by_its_successor_s_name():
    moves = [
        pb.MoveStatus(pod="default/a", state="Moved", successor="default/a2"),
        pb.MoveStatus(pod="default/b", state="Moved"),
        pb.MoveStatus(pod="default/c", state="Refused"),
    ]
    assert moved_pods(pb.RebalanceStatus(moves=moves)) == ["default/a2", "default/b"]


def test_what_a_controller_before_this_one_has_moved_counts():
    policy = RebalancePolicy.model_validate({"goals": [{"goal": "spread"}], "budget": {"movesPerHour": 12}})
    assert RebalanceController(policy, now=NOW, spent=9).limits(NOBODY, NOW).moves == 3


def test_moves_begin_only_in_a_window_and_no_more_than_it_has_time_for():
    decider = controller(windows=[{"begin": "12:00", "end": "12:10"}], budget={"movesPerSecond": 0.01})
    assert decider.waits(NOW) == ""
    assert decider.limits(NOBODY, NOW).moves == 6
    assert decider.waits(after(600)).startswith("no window is open; the next one opens Tue 12:00")


def test_after_an_alarm_nothing_begins_for_a_time():
    decider = controller(alarmSeconds=900)
    decider.alarm(NOW, "20 pods wait")
    assert decider.waits(after(1)) == "20 pods wait; goes on in 0:14:59"
    assert decider.waits(after(900)) == ""


def test_a_pass_follows_the_one_before_after_its_period():
    decider = controller(passSeconds=300)
    decider.begin_pass(NOW)
    assert not decider.due(after(299))
    assert decider.due(after(300))


def test_a_goal_whose_moves_are_undone_by_schedulers_is_left_alone_twice_as_long_each_time():
    decider, pods = controller(), placed(*ONE_BY_ITSELF)
    refilled = placed(("default/a", 0, 600), ("default/x", 1, 300), ("default/y", 2, 100))
    now, waits = NOW, []
    for _ in range(3):
        chosen, _ = emptied(decider, pods, now)
        assert chosen.moves
        decider.made(chosen, moved(chosen, pods), now)
        now += timedelta(seconds=300)
        text = decider.stands_off(EMPTY, state_of(decider, refilled, now=now), now)
        assert "2 of 2 nodes that pods were moved away from are filled again" in text
        waits.append(text.rpartition(" in ")[2])
        assert decider.stands_off(EMPTY, state_of(decider, pods, now=now), now + timedelta(seconds=3000))
        now += timedelta(days=1)
    assert waits == ["1:00:00", "2:00:00", "4:00:00"]
    assert decider.stand_offs == 3


def test_a_goal_whose_moves_last_goes_on():
    decider, pods = controller(), placed(*ONE_BY_ITSELF)
    chosen, state = emptied(decider, pods)
    decider.made(chosen, moved(chosen, pods), NOW)
    assert decider.stands_off(EMPTY, state, after(300)) == ""
    assert decider.stands_off(EMPTY, state, after(3600)) == ""
    assert decider.stand_offs == 0


def test_what_makes_room_for_a_gang_is_one_group():
    decider = controller(RebalanceGoal.FIT_PENDING)
    pods = placed(("default/a", 0, 500), ("default/b", 1, 500), ("default/c", 2, 200), ("default/d", 3, 200))
    state = state_of(decider, pods, nodes=4)
    plan = fit_pending(state, [WaitingPods("default/gang", spec(800), 4, together=4)])
    assert plan.after == 4
    plan = fit_pending(state, [WaitingPods("default/gang", spec(1000), 2, together=2)])
    assert len(plan.moves) == 2
    assert [move.gain for move in plan.moves] == [0.0, 2.0]
    assert groups(plan.moves) == [plan.moves]


def test_pods_that_wait_are_counted_nowhere_after_the_choice():
    decider = controller(RebalanceGoal.FIT_PENDING)
    pods = placed(("default/a", 0, 500), ("default/b", 1, 400))
    state = state_of(decider, pods, nodes=2)
    before = state.cache.requested[:, :2].sum(axis=1).tolist()
    plan = fit_pending(
        state, [WaitingPods("default/big", spec(600), 1), WaitingPods("default/one", spec(100), 1)]
    )
    assert [len(plan.placements), len(plan.moves)] == [2, 0]
    chosen = decider.choose(RebalanceGoal.FIT_PENDING, plan, state)
    assert chosen.moves == ()
    assert state.cache.requested[:, :2].sum(axis=1).tolist() == before


def test_a_policy_names_the_nodes_that_may_be_emptied():
    nodes = [
        NodeSpec(name, (("pool", pool),), allocatable=(("cpu", 1000), ("memory", 1000), ("pods", 20)))
        for name, pool in (("n0", "fixed"), ("n1", "spot"))
    ]
    pods = [("default/a", 0, spec(100)), ("default/b", 1, spec(200))]
    for labels, node in (({"pool": "spot"}, "n1"), ({"pool": "fixed"}, "n0"), (None, "n0")):
        known = gathered(nodes, pods)
        state = PlanState(known.snapshot, default_profile(), known.pods, PlanLimits())
        [move] = plan_for(EMPTY, state, known, None, labels).moves
        assert state.name(move.source) == node
