"""What a run under faults counts, and what it says where nothing can be shown."""

import pytest

from hossctl.history.checker import check
from hossctl.history.events import ACCOUNTS, CLIENTS, History
from tools.faults.catalogue import BY_NAME, FAULTS
from tools.faults.run import HEADER, Outcome, row


def judged_as(*told: str) -> Outcome:
    """The outcome of a history with two acknowledged pods, of which the final table has those."""
    history = History(lambda: 0.0, source="test", sees=[ACCOUNTS, CLIENTS])
    pods = [{"uids": ["p1", "p2"], "requests": {"cpu": 1}}]
    history.append("submit", by="c1", request="r1", pods=pods)
    history.append("acknowledged", by="c1", request="r1")
    rows = [{"uid": uid, "state": "Queued"} for uid in told]
    history.append("table", by="dispatcher", pods=rows, final=True)
    return Outcome(1, "w1", 2.5, 2, check(history.events))


def test_a_pod_that_is_not_there_at_the_end_is_counted_as_lost():
    fault = BY_NAME["kill-worker"]
    kept, lost = judged_as("p1", "p2"), judged_as("p1")
    assert kept.problems() == []
    assert [problem.split(" at ")[0] for problem in lost.problems()] == ["nothing-lost"]
    assert row(fault, [kept, lost]) == "| `kill-worker` | 2 | 4 | 1 | 0 | 0 | 0 | 2.5, 2.5 |"


def test_what_is_wrong_and_breaks_no_promise_of_the_table_is_counted_as_another_breach():
    outcome = judged_as("p1", "p2")
    outcome.complaints.append("audit: a cache differs")
    assert row(BY_NAME["failover"], [outcome]) == "| `failover` | 1 | 2 | 0 | 0 | 0 | 1 | 2.5, 2.5 |"


def test_a_row_has_the_columns_of_the_header():
    assert row(FAULTS[0], [judged_as("p1", "p2")]).count("|") == HEADER.splitlines()[0].count("|")


def test_a_fault_that_needs_a_clock_is_not_made_where_there_is_no_library_for_it(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("tools.faults.catalogue.faketime", lambda: None)
    assert "libfaketime" in BY_NAME["clock-redis"].missing()
    assert not BY_NAME["kill-worker"].missing()
