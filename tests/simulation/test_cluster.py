"""A whole platform on virtual time: what holds of the real one holds of it, and what it is for shows."""

from dataclasses import replace

import numpy as np
import pytest

from dispatcher.core.messages import SendRecall
from hossctl.load.nodes import PODS_PER_NODE
from hossctl.simulate.cluster import SimulatedLoad, Simulation, SimulationSetting
from hossctl.simulate.measured import ServiceTimes
from scheduler_worker.experiments import WorkerExperiment


def run(setting):
    simulation = Simulation(setting)
    while simulation.advance(5000):
        pass
    return simulation


FULL = SimulationSetting(nodes=100, pods=100 * PODS_PER_NODE, workers=4)


def test_every_pod_is_bound_once_and_no_node_is_overcommitted():
    simulation = run(FULL)
    outcome, ledger = simulation.outcome(), simulation._ledger
    assert (outcome.bound, outcome.overcommitted) == (FULL.pods, 0)
    assert outcome.proposed == outcome.bound + outcome.conflicts
    assert ledger.requested[3].tolist() == [PODS_PER_NODE] * FULL.nodes
    assert simulation._dispatching.machine.counters["bound"] == FULL.pods
    simulation._dispatching.machine.check()


def test_with_the_feed_drained_every_workers_cache_is_the_ledger():
    simulation = run(FULL)
    simulation._time.run(simulation._time.now + 1.0)
    for placing in simulation._placings:
        placing.apply_feed(simulation._ledger)
        cache = placing._scheduler.cache
        assert np.array_equal(cache.requested[:, : FULL.nodes], simulation._ledger.requested)
        assert np.array_equal(cache.accounts.committed[:, : FULL.nodes], simulation._ledger.requested)
        assert placing._scheduler.idle


def test_a_ledger_of_several_shards_binds_as_many_pods_and_decides_them_faster():
    setting = SimulationSetting(nodes=1000, pods=50_000, workers=8)
    one, four = run(setting).outcome(), run(replace(setting, shards=4)).outcome()
    assert four.bound == one.bound == 50_000
    assert four.overcommitted == 0
    assert four.pods_per_second > 1.5 * one.pods_per_second


def test_with_several_shards_too_every_cache_is_the_ledger_in_the_end():
    simulation = run(replace(FULL, shards=3))
    simulation._time.run(simulation._time.now + 1.0)
    for placing in simulation._placings:
        placing.apply_feed(simulation._ledger)
        assert np.array_equal(
            placing._scheduler.cache.requested[:, : FULL.nodes], simulation._ledger.requested
        )


def test_the_same_seed_gives_the_same_outcome_and_another_seed_another():
    first, again, other = (run(replace(FULL, seed=seed)).outcome() for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_more_pods_than_fit_leave_the_rest_unbound_and_the_simulation_ends():
    outcome = run(replace(FULL, nodes=10, pods=10 * PODS_PER_NODE + 50)).outcome()
    assert (outcome.bound, outcome.overcommitted) == (10 * PODS_PER_NODE, 0)


def test_conflicts_grow_with_the_number_of_workers_on_nodes_that_get_full():
    # Workers that get all at once, and equal parts, spread it evenly.
    small = replace(FULL, load=SimulatedLoad(job_pods=(10, 100)))
    one, two, eight = (run(replace(small, workers=workers)).outcome().conflict_share for workers in (1, 2, 8))
    assert one == 0
    assert 0 < two < eight


def test_workers_that_are_the_limit_place_in_proportion_to_their_number():
    slow = ServiceTimes(worker=100.0)
    setting = SimulationSetting(nodes=1000, pods=20_000, workers=1, times=slow)
    speed = {
        workers: run(replace(setting, workers=workers)).outcome().pods_per_second for workers in (1, 2, 8)
    }
    assert speed[1] == pytest.approx(10_000, rel=0.05)
    assert speed[2] > 1.9 * speed[1]
    assert speed[8] > 6.5 * speed[1]


def test_the_ledger_is_the_limit_of_many_workers_and_is_named_so():
    outcome = run(SimulationSetting(nodes=2000, pods=100_000, workers=8)).outcome()
    assert outcome.pods_per_second == pytest.approx(1e6 / ServiceTimes().ledger, rel=0.05)
    assert outcome.ledger_ratio == pytest.approx(1.0, rel=0.05)
    assert max(outcome.busyness, key=outcome.busyness.get) == "ledger-1"


def test_one_resolver_that_feeds_very_many_workers_is_the_limit_until_others_share_them():
    setting = SimulationSetting(nodes=200, pods=20_000, workers=64)
    one, four = run(setting).outcome(), run(replace(setting, resolvers=4)).outcome()
    assert max(one.busyness, key=one.busyness.get) == "resolver-1"
    assert four.pods_per_second > 1.3 * one.pods_per_second


def test_on_few_cores_the_sum_of_all_work_is_the_limit():
    times = ServiceTimes()
    a_pod = (
        times.client + times.dispatcher + times.worker + 2 * times.feed + times.resolver + 2 * times.follower
    )
    outcome = run(SimulationSetting(nodes=1000, pods=50_000, workers=2, cores=2, times=times)).outcome()
    assert outcome.pods_per_second == pytest.approx(2e6 / (a_pod + times.ledger), rel=0.1)


def test_what_is_thought_is_waited_for_on_no_core_and_scales_with_the_workers():
    slow = WorkerExperiment(job_seconds=0.01, task_seconds=0.0005)
    setting = SimulationSetting(
        nodes=300,
        pods=15_000,
        workers=1,
        cores=1,
        decision=slow,
        load=SimulatedLoad(500, 2**30, (10, 100), 20),
    )
    outcomes = {workers: run(replace(setting, workers=workers)).outcome() for workers in (1, 4)}
    assert outcomes[1].pods_per_second == pytest.approx(1 / (0.0005 + 0.01 / 1000), rel=0.03)
    assert outcomes[4].pods_per_second > 3.4 * outcomes[1].pods_per_second
    assert outcomes[1].busyness["worker-1"] > 0.95


def test_a_worker_that_is_asked_gives_back_what_it_has_not_started_and_all_is_bound_in_the_end():
    slow = WorkerExperiment(task_seconds=0.0005)
    setting = SimulationSetting(
        nodes=300, pods=15_000, workers=4, decision=slow, load=SimulatedLoad(500, 2**30, (10, 100), 20)
    )
    simulation = Simulation(setting)
    simulation.advance(3000)
    first = max(range(4), key=lambda number: simulation._placings[number].backlog)
    before = simulation._placings[first].backlog
    assert before > 100
    simulation._placings[first].handle(SendRecall(first, tuple(range(1, 1000)), 100))
    assert simulation._placings[first].backlog <= before - 100
    simulation._report(first)
    while simulation.advance(5000):
        pass
    assert simulation.outcome().bound == setting.pods
    simulation._dispatching.machine.check()
