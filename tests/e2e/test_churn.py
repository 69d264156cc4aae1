"""The command that looks for growing tables on a platform of real processes (tools/churn.py)."""

import pytest

from tools.churn import LASTING_NODES, churned


@pytest.mark.thorough
def test_everything_comes_and_goes_and_the_tables_are_counted():
    churn = churned(10.0)
    assert len(churn.held) > 1
    assert churn.bound > 0
    last = churn.held[-1]
    # The node of the round that goes on is there, and none of those before.
    assert last["dispatcher nodes"] == LASTING_NODES + 1
    assert last["Redis {hoss:0}:specs"] == LASTING_NODES + 1
    assert last["Redis {hoss}:journal:submissions"] <= 2
    assert {table.partition(" ")[0] for table in last} == {
        "dispatcher",
        "resolver",
        "scheduler_worker",
        "Redis",
    }
