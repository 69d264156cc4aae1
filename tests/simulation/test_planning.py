"""What a load needs grows where it is held back, and nowhere else."""

from dataclasses import replace

from hossctl.simulate.measured import ServiceTimes
from hossctl.simulate.planning import PlanRequest, as_json, plan

WISH = PlanRequest(pods_per_second=20_000, nodes=1000, times=ServiceTimes())


def test_a_load_that_one_of_each_carries_is_planned_with_one_of_each():
    [step] = plan(WISH)
    assert (step.workers, step.resolvers, step.shards) == (1, 1, 1)
    assert step.pods_per_second >= WISH.pods_per_second


def test_slow_workers_are_multiplied_and_nothing_else_is():
    *before, last = plan(replace(WISH, times=ServiceTimes(worker=200.0)))
    assert [step.limit for step in before] == ["worker"] * len(before)
    assert (last.resolvers, last.shards) == (1, 1)
    assert 4 <= last.workers <= 6
    assert last.pods_per_second >= WISH.pods_per_second


def test_a_slow_ledger_is_split():
    *before, last = plan(replace(WISH, times=ServiceTimes(ledger=100.0)))
    assert before[0].limit == "ledger"
    assert (last.workers, last.resolvers) == (1, 1)
    assert 2 <= last.shards <= 4


def test_a_slow_resolver_gets_others_beside_it():
    *_, last = plan(replace(WISH, times=ServiceTimes(resolver=80.0, worker=80.0)))
    assert last.resolvers >= 2
    assert last.workers >= 2


def test_a_load_beyond_the_one_dispatcher_is_not_reached_and_that_is_said():
    wish = replace(WISH, times=ServiceTimes(dispatcher=100.0))
    steps = list(plan(wish))
    assert steps[-1].limit == "dispatcher"
    document = as_json(wish, steps)
    assert (document["reached"], document["firstLimit"]) == (False, "dispatcher")


def test_the_same_seed_plans_the_same():
    wish = replace(WISH, times=ServiceTimes(worker=150.0))
    assert list(plan(wish)) == list(plan(wish))
