"""Loads are what they say, and the same for the same seed; figures are written for people."""

import numpy as np
import pytest

from hoss.model.resources import MAX_CARDS
from hossctl import figures
from hossctl.load import generated, nodes
from hossctl.load.report import usage_of
from hossctl.load.runner import pods_of


@pytest.mark.parametrize("mix", generated.Mix)
def test_a_benchmark_load_has_exactly_the_pods_asked_for(mix):
    assert pods_of(generated.bench_load(mix, 2345, cards=100, seed=1)) == 2345


def test_unique_pods_all_have_their_own_template():
    requests = generated.bench_load(generated.Mix.UNIQUE, 1200, cards=0, seed=1)
    specs = {template.spec.SerializeToString() for request in requests for template in request.templates}
    assert len(specs) == 1200


def test_the_openb_mix_leaves_room_for_its_cards():
    requests = generated.bench_load(generated.Mix.OPENB, 4000, cards=1000, seed=1)
    wanted = 0
    for request in requests:
        devices = [t.spec.devices.count * t.spec.devices.milli for t in request.templates]
        wanted += sum(devices[i] for i in np.frombuffer(request.pods.templates, "<u4"))
    assert 500_000 < wanted < 700_000


def test_of_ten_constrained_jobs_nine_have_a_rule_and_all_have_50_to_100_pods():
    jobs = [
        (job.replicas, request.templates[job.template].spec)
        for request in generated.bench_load(generated.Mix.CONSTRAINED, 10_000, cards=0, seed=1)
        for job in request.jobs
    ]
    assert sum(50 <= replicas <= 100 for replicas, _ in jobs) >= len(jobs) - 1
    kinds = [
        (len(spec.spread), len(spec.pod_affinity.anti_required), len(spec.pod_affinity.required))
        for _, spec in jobs
    ]
    plain = kinds.count((0, 0, 0))
    assert kinds[:plain] == [(0, 0, 0)] * plain
    assert kinds[plain : plain + 90] == [(1, 0, 0), (0, 1, 0), (0, 0, 1)] * 30
    assert len(kinds) / 10 <= plain < len(kinds) / 10 + 1


def test_filling_asks_for_the_fraction_of_all_cpu():
    pool = nodes.simulated_nodes(50, shapes=nodes.UNIFORM)
    requests = generated.filling(pool, 0.9, seed=3)
    asked = sum(
        job.replicas
        * next(a.amount for a in request.templates[job.template].spec.requests if a.resource == "cpu")
        for request in requests
        for job in request.jobs
    )
    assert asked / (50 * 32_000) == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(("pods", "count"), [(50_000, 1000), (300, 20), (7, 1)])
def test_the_mixed_load_has_exactly_the_pods_asked_for(pods, count):
    workloads = generated.mixed(pods, nodes.simulated_nodes(count), seed=1)
    assert sum(workload.replicas for workload in workloads) == pods
    names = [(bool(w.template.owner_kind), w.name) for w in workloads]
    assert len(set(names)) == len(names)


def test_the_mixed_load_wants_a_few_more_cards_than_there_are():
    pool = nodes.simulated_nodes(1000)
    workloads = generated.mixed(50_000, pool, seed=1)
    wanted = sum(
        w.replicas * w.template.spec.devices.count * w.template.spec.devices.milli
        for w in workloads
        if w.template.spec.devices
    )
    assert 1.0 < wanted / 1000 / sum(node.cards for node in pool) < 1.2


def test_the_same_seed_gives_the_same_nodes_and_another_seed_others():
    assert nodes.simulated_nodes(100, seed=5) == nodes.simulated_nodes(100, seed=5)
    assert nodes.simulated_nodes(100, seed=5) != nodes.simulated_nodes(100, seed=6)


def test_simulated_nodes_can_be_held_in_the_ledger():
    for node in nodes.simulated_nodes(200):
        assert node.cards <= MAX_CARDS
        assert list(node.labels) == sorted(node.labels)
        assert list(node.allocatable) == sorted(node.allocatable)


def test_an_overcommitted_node_is_named_with_its_numbers(a_node):
    used = usage_of(
        [a_node("ok", {"cpu": 10}, {"cpu": 10}, [1000]), a_node("bad", {"cpu": 10}, {"cpu": 11}, [1001])]
    )
    assert used.overcommitted == ("bad: cpu 11 requested of 10, card 0 1001 thousandths used",)
    assert used.shares() == {"cards": 2001 / 2000, "cpu": 21 / 20}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.34, "340ms"), (12, "12s"), (303, "5m3s"), (7200, "2h"), (7800, "2h10m"), (273600, "3d4h")],
)
def test_durations_have_two_units_at_the_most(seconds, text):
    assert figures.written_duration(seconds) == text


def test_percentiles_of_nothing_are_zero():
    assert figures.percentiles(np.empty(0), 50, 99) == [0.0, 0.0]
    assert figures.median([]) == 0.0
