"""Simulated days of the rebalance controller: what it holds, and that it does not move in circles."""

import pytest

from hossctl.choices import RebalanceGoal, SimulatedCare, SimulatedPlacer
from hossctl.rebalance.policy import BeforePreemptionDocument, GoalDocument, RebalancePolicy
from hossctl.simulate.rebalancing import (
    _KINDS,
    DEFAULT_POLICY,
    RebalancingSetting,
    _Pod,
    _SimulatedDays,
    as_json,
    play,
)


def cases(placer, days, policy=DEFAULT_POLICY, **options):
    setting = RebalancingSetting(policy, **{"nodes": 20, "days": days, "placer": placer, **options})
    return {case["name"]: case for case in as_json(setting, list(play(setting)))["cases"]}


@pytest.fixture(scope="module")
def packing():
    return cases(SimulatedPlacer.FULLEST, 2)


def test_the_controller_holds_utilisation_within_two_points_of_packing_anew_each_night(packing):
    assert packing["controller"]["utilisation"] > packing["nightly"]["utilisation"] - 0.02
    # There is something to hold: without care the nodes in use are emptier.
    assert packing["none"]["utilisation"] < packing["nightly"]["utilisation"] - 0.03


def test_it_moves_fewer_pods_than_packing_anew(packing):
    assert 0 < packing["controller"]["movesPerDay"] < packing["nightly"]["movesPerDay"] / 2


def test_it_hardly_moves_where_schedulers_fill_again_what_it_empties():
    emptying = RebalancePolicy(goals=(GoalDocument(goal=RebalanceGoal.EMPTY_NODES),))
    spreading = cases(SimulatedPlacer.EMPTIEST, 2, emptying)["controller"]
    assert spreading["standOffs"] >= 3
    assert 0 < spreading["movesPerDay"] < 100  # 315 if it did not stand off


def preempted_and_moved(before):
    """Two days, where pods go to the emptiest nodes, and the controller moves only before pods preempt."""
    goals = (GoalDocument(goal=RebalanceGoal.FIT_PENDING),)
    policy = RebalancePolicy(goals=goals, beforePreemption=before, passSeconds=86_400)
    found = cases(SimulatedPlacer.EMPTIEST, 2, policy, urgent=0.3)["controller"]
    return found["preemptedPerDay"], found["movesPerDay"]


def test_with_a_policy_that_says_so_moves_come_before_preemption_and_spare_pods():
    without, none = preempted_and_moved(None)
    spared, moved = preempted_and_moved(BeforePreemptionDocument())
    assert none == 0
    assert spared < without
    assert moved > 0


@pytest.mark.thorough
def test_pods_that_are_too_urgent_to_wait_preempt_at_once():
    """Urgent pods have priority 1,000."""
    before = BeforePreemptionDocument(upToPriority=999)
    assert preempted_and_moved(before) == preempted_and_moved(None)


def test_without_urgent_pods_nobody_is_preempted(packing):
    assert [case["preemptedPerDay"] for case in packing.values()] == [0, 0, 0]


@pytest.mark.parametrize(
    ("there", "asked", "expected"),
    [
        ({8000: 1, 250: 32}, 250, [250]),
        ({8000: 1, 4000: 2}, 4000, [4000]),
        ({4000: 3, 2000: 1, 1000: 2}, 8000, [4000, 4000]),
        ({8000: 1, 4000: 1, 2000: 2}, 8000, [8000]),
    ],
)
def test_the_fewest_pods_with_the_least_cpu_are_preempted(there, asked, expected):
    days = _SimulatedDays(RebalancingSetting(DEFAULT_POLICY, nodes=1), SimulatedCare.NONE)
    kinds = [cpu for cpu, _, _ in _KINDS]
    for cpu, pods in there.items():
        for number in range(pods):
            assert days._place(_Pod(f"{cpu}-{number}", kinds.index(cpu), 0, -1), SimulatedPlacer.FULLEST)
    urgent = _Pod("urgent", len(_KINDS) + kinds.index(asked), 0, -1)
    assert [kinds[victim.kind] for victim in days._victims(urgent)] == expected


def test_of_two_nodes_that_one_is_preempted_on_whose_victim_has_less_cpu():
    days = _SimulatedDays(RebalancingSetting(DEFAULT_POLICY, nodes=2), SimulatedCare.NONE)
    kinds = [cpu for cpu, _, _ in _KINDS]
    for number, cpu in enumerate([8000, 8000, 4000, 4000, 4000, 2000, 2000]):
        assert days._place(_Pod(f"pod-{number}", kinds.index(cpu), 0, -1), SimulatedPlacer.FULLEST)
    [victim] = days._victims(_Pod("urgent", len(_KINDS) + kinds.index(1000), 0, -1))
    assert kinds[victim.kind] == 2000
