"""Workers made slow, workers with nodes of their own, and what outcomes tell of the time that work took."""

import numpy as np
import pytest

from hoss.errors import ConfigError
from hoss.model.selectors import NodeScope, Requirement
from scheduler_worker.__main__ import _config, _parser
from scheduler_worker.core.cycle.cycle import SchedulerLimits
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.experiments import WorkerExperiment, narrowed, nodes_with

REFUSED = 3
POOL = Requirement("pool", "In", ("a",))


def test_a_decision_costs_its_job_time_and_its_task_time_for_each_pod():
    assert WorkerExperiment(0.1, 0.005).seconds(100) == pytest.approx(0.6)


def test_to_decide_on_nothing_costs_nothing():
    assert WorkerExperiment(0.1, 0.005).seconds(0) == 0.0


def test_a_worker_without_labels_for_nodes_takes_all():
    assert nodes_with({}) is None
    scope = NodeScope("rule", (POOL,))
    assert narrowed(scope, None) is scope
    assert narrowed(None, None) is None


def test_a_workers_own_nodes_and_a_rules_nodes_must_both_agree():
    own = nodes_with({"part": "1"})
    both = narrowed(NodeScope("rule", (POOL,)), own)
    assert both.matches({"pool": "a", "part": "1"})
    assert not both.matches({"pool": "a", "part": "2"})
    assert not both.matches({"pool": "b", "part": "1"})


def test_a_soft_partition_does_not_widen_a_workers_own_nodes():
    own = nodes_with({"part": "1"})
    assert narrowed(NodeScope("rule", (POOL,), required=False), own) == own


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--decision-job-ms", "-1"], "decision_job_ms"),
        (["--decision-task-ms", "nan"], "decision_task_ms"),
        (["--node-label", "part"], "--node-label"),
        (["--turns", "lock", "--sync", "pull"], "turns"),
    ],
)
def test_bad_flags_are_named(flags, problem):
    with pytest.raises(ConfigError, match=problem):
        _config(_parser().parse_args(flags))


def test_outcomes_tell_how_long_the_batch_was_decided_on_and_waited_for_the_ledger(
    make_ledger, make_pod, harness_of
):
    now = [10.0]
    harness = harness_of(make_ledger(5))
    ledger, profile = harness.ledger, harness.scheduler._cycle._profile
    chance = np.random.default_rng(1)
    scheduler = Scheduler(harness.cache, profile, chance, SchedulerLimits(), lambda: now[0])
    harness.scheduler = scheduler
    harness.submit((make_pod(), 4))
    while scheduler.step():
        pass
    (proposal,) = scheduler.take_proposals(12.5)
    now[0] = 12.75
    verdicts, _ = ledger.commit(proposal)
    scheduler.settle(proposal.batch_id, verdicts)
    (columns,) = scheduler.take_outcomes()
    assert columns.deciding_seconds == pytest.approx(2.5)
    assert columns.committing_seconds == pytest.approx(0.25)
    assert columns.refused is None


def test_outcomes_tell_which_rows_were_refused_as_often_as_they_were(make_ledger, make_pod, harness_of):
    harness = harness_of(make_ledger(5), tries=3)
    harness.submit((make_pod(), 2))
    while proposals := harness.place():
        for proposal in proposals:
            harness.scheduler.settle(proposal.batch_id, harness.ledger.answer(proposal, REFUSED))
    (columns,) = harness.scheduler.take_outcomes()
    assert sorted(columns.refused.tolist()) == [0, 0, 0, 1, 1, 1]
