"""What is told of the seeds of a simulation, and when."""

from collections import Counter
from types import SimpleNamespace

import pytest

from tools.simulation import seeds
from tools.simulation.__main__ import _many
from tools.simulation.seeds import PlanKind


@pytest.fixture
def servers(monkeypatch):
    """In place of Redis. "closed" is added for each that is."""
    made = []
    start = lambda: SimpleNamespace(close=lambda: made.append("closed"))  # noqa: E731 - of a fake
    monkeypatch.setattr(seeds, "DrivenRedis", SimpleNamespace(start=start))
    return made


def test_a_failing_seed_is_told_before_the_next_one_runs_and_one_that_raises_is_named(
    monkeypatch, capsys, servers
):
    told_before = []

    def run(plan, _server):
        told_before.append(capsys.readouterr().out)
        if plan.seed == 8:
            raise ValueError("the simulation itself is wrong")
        return SimpleNamespace(reached=Counter(), problems=lambda: ["a pod is on two nodes\nas follows"])

    monkeypatch.setattr(seeds, "run", run)
    with pytest.raises(RuntimeError, match=r"^seed 8: (?s:.*)ValueError: the simulation itself is wrong"):
        _many(PlanKind(), 7, 3, 1, ())
    assert told_before == ["", "seed 7: 1 problems, the first: a pod is on two nodes\n"]
    assert servers == ["closed"]
