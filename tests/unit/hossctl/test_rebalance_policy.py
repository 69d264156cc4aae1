"""RebalancePolicy documents: what is refused and in which words, and when windows are open."""

from datetime import datetime, timezone
from pathlib import Path

import pytest

from hoss.config import parse_document
from hoss.errors import ConfigError
from hossctl.choices import RebalanceGoal
from hossctl.rebalance.policy import KIND, RebalancePolicy, read_policy

HEAD = "apiVersion: hoss.dev/v1alpha1\nkind: RebalancePolicy\n"


def policy(text):
    return parse_document(HEAD + text, KIND, RebalancePolicy, where="policy.yaml")


def at(day, hour, minute=0):
    """A time in UTC of the week that begins on Monday, 5 January 2026."""
    return datetime(2026, 1, 4 + day, hour, minute, tzinfo=timezone.utc)


def test_the_example_can_be_used():
    example, text = read_policy(Path(__file__).parents[3] / "examples" / "rebalance.yaml")
    assert example.least_gain(RebalanceGoal.EMPTY_NODES) == 0.125
    assert example.least_gain(RebalanceGoal.FIT_PENDING) == 0.2
    assert "kind: RebalancePolicy" in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "goals: [{goal: empty-nodes}, {goal: spread}]",
            "fills some nodes and spread takes pods from them again",
        ),
        ("goals: [{goal: quiet-nodes}]", "needs to know what pods use; give usageFile"),
        ("usageFile: usage.json", "write an absolute path"),
        ("goals: [{goal: spread}, {goal: spread}]", "given more than once: spread"),
        ("goals: [{goal: empty-nodes, leastGainPerMove: 2}]", "no move empties more than one node"),
        (
            "goals: [{goal: empty-nodes, leastGainPerMove: 0.1}]\nbudget: {movesPerPass: 5}",
            (
                "10 moves for one node, and budget.movesPerPass allows 5: raise that to 10, or"
                " leastGainPerMove to 0.2"
            ),
        ),
        ("budget: {movesPerHour: 5, movesPerPass: 6}", "movesPerPass 6 is more than movesPerHour 5 allows"),
        ("budget: {movesPerHour: 0}", "budget.movesPerHour"),
        ('windows: [{begin: "06:00", end: "06:00"}]', "leave windows out to move at any time"),
        ("windows: [{begin: 6, end: 7}]", "write HH:MM in quotes"),
        ('windows: [{days: [], begin: "06:00", end: "07:00"}]', "the window never opens"),
        ("timeZone: Mars/Olympus", "is no time zone"),
        ("namespaces: {include: [a, b], exclude: [b]}", "both included and excluded: b"),
        ("goals: [{goal: tidy}]", "goals[0].goal"),
        (
            "goals: [{goal: spread}]\nbeforePreemption: {}",
            "pods would wait for moves that no goal makes; add the goal fit-pending",
        ),
        (
            "goals: [{goal: fit-pending}]\nbeforePreemption: {waitSeconds: 0}",
            "beforePreemption.waitSeconds",
        ),
        ("goals: [{goal: spread, nodes: {pool: a}}]", "nodes goes with empty-nodes only, not with spread"),
        ("goals: [{goal: empty-nodes, nodes: {}}]", "names no label; leave it out for all nodes"),
        ("goals: [{goal: empty-nodes, nodes: {a b: c}}]", "a b"),
        ("goals: [{goal: empty-nodes, nodes: {pool: a/b}}]", "a/b"),
        ("unknown: 1", "unknown"),
    ],
)
def test_a_document_that_contradicts_itself_is_refused_in_words(text, words):
    with pytest.raises(ConfigError) as refused:
        policy(text)
    assert words in str(refused.value)


def test_a_window_over_midnight_counts_by_the_day_on_which_it_begins():
    written = policy("windows: [{days: [Mon], begin: 22:00, end: '06:00'}]")
    assert not written.seconds_open(at(1, 21, 59))
    assert written.seconds_open(at(1, 22)) == 8 * 3600
    assert written.seconds_open(at(2, 5, 59)) == 60
    assert not written.seconds_open(at(2, 6))
    assert not written.seconds_open(at(2, 23))
    assert written.opens_at(at(2, 6)) == at(8, 22)


def test_windows_are_in_the_time_zone_of_the_policy():
    written = policy("timeZone: Europe/Berlin\nwindows: [{begin: '22:00', end: '23:00'}]")
    assert written.seconds_open(at(1, 21)) == 3600
    assert not written.seconds_open(at(1, 22))


def test_without_windows_moves_may_begin_at_any_time():
    assert policy("goals: [{goal: spread}]").seconds_open(at(3, 3)) == float("inf")
