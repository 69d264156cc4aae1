"""Loads of comparisons: sized as asked, the same for a seed, and each of its kind."""

import numpy as np
import pytest

from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.wire.convert import template_from_proto
from hossctl.choices import ON_KUBERNETES, Load, Mode
from hossctl.compare.document import Cell
from hossctl.compare.loads import CHURN_SECONDS, make_trace
from hossctl.compare.modes import MODE_REGISTRY, PARTITION
from hossctl.compare.running import labelled_nodes, platform_of
from hossctl.compare.schedulers import find_scheduler
from hossctl.load.generated import lone_pods
from hossctl.load.playing import Arrival, Departed, Departures, Trace, arrivals_of, templates_by_row, trace_of
from hossctl.traces.recording import TracePod


def a_cell(load="uniform", **fields):
    return Cell(**{"mode": "multi-hoss", "load": load, "workers": 4, "nodes": 30, "fill": 0.9, **fields})


@pytest.fixture
def make_template():
    return lambda cpu: PodTemplate(PodSpec(requests=(("cpu", cpu),)))


def specs_of(trace):
    templates, of_row = templates_by_row(trace)
    specs = [template_from_proto(template).spec for template in templates]
    return [specs[i] for i in of_row.tolist()]


def jobs_of(trace):
    return [job for arrival in trace.arrivals for job in arrival.message.jobs]


@pytest.mark.parametrize("load", ["uniform", "unique", "gangs", "constrained", "skewed"])
@pytest.mark.parametrize("fill", [0.5, 1.0])
def test_a_load_asks_for_the_share_of_the_cpu_that_its_cell_says(load, fill):
    trace = make_trace(a_cell(load, fill=fill, nodes=100), seed=3)
    asked = sum(dict(spec.requests)["cpu"] for spec in specs_of(trace))
    offered = sum(dict(node.allocatable)["cpu"] for node in trace.nodes)
    assert fill - 0.01 <= asked / offered <= fill + 1e-9


def test_openb_is_sized_by_cards():
    trace = make_trace(a_cell("openb", fill=0.5, nodes=100), seed=3)
    asked = sum(spec.devices.count * spec.devices.milli for spec in specs_of(trace) if spec.devices)
    assert 0.48 <= asked / sum(1000 * node.cards for node in trace.nodes) <= 0.5


@pytest.mark.parametrize("load", [load.value for load in Load if load not in {Load.TRACE, Load.CHURN}])
def test_a_number_of_pods_is_kept_to_instead_of_a_fill(load):
    assert make_trace(a_cell(load, fill=0, pods=777), seed=1).pods == 777


@pytest.mark.parametrize("load", [load.value for load in Load if load is not Load.TRACE])
def test_the_same_seed_makes_the_same_load_whatever_the_mode_and_another_makes_another(load):
    first, again = make_trace(a_cell(load), 1), make_trace(a_cell(load, mode=Mode.SINGLE, workers=1), 1)
    assert first.nodes == again.nodes
    assert specs_of(first) == specs_of(again)
    assert [a.at_seconds for a in first.arrivals] == [a.at_seconds for a in again.arrivals]
    other = make_trace(a_cell(load), 2)
    assert (specs_of(other), [j.replicas for j in jobs_of(other)]) != (
        specs_of(first),
        [j.replicas for j in jobs_of(first)],
    )


def test_no_two_pods_of_unique_are_alike_and_all_of_uniform_are():
    assert len(set(specs_of(make_trace(a_cell("unique"), 1)))) == make_trace(a_cell("unique"), 1).pods
    assert len(set(specs_of(make_trace(a_cell("uniform"), 1)))) == 1


def test_gangs_are_bound_whole():
    trace = make_trace(a_cell("gangs"), 1)
    minimums = [gang.min_available for arrival in trace.arrivals for gang in arrival.message.gangs]
    assert minimums == [job.replicas for job in jobs_of(trace)]
    assert min(minimums) >= 1


def test_constrained_jobs_are_spread_over_zones_or_kept_from_one_another():
    specs = set(specs_of(make_trace(a_cell("constrained"), 1)))
    assert all(bool(spec.spread) != (spec.pod_affinity is not None) for spec in specs)
    assert 0.3 < sum(bool(spec.spread) for spec in specs) / len(specs) < 0.7


def test_four_of_five_pods_of_skewed_may_stand_on_one_of_five_nodes():
    trace = make_trace(a_cell("skewed", nodes=100), 1)
    hot = [spec.selects(dict(trace.nodes[0].labels), trace.nodes[0].name) for spec in specs_of(trace)]
    assert sum(hot) / len(hot) == pytest.approx(0.8, abs=0.03)
    spec = specs_of(trace)[0]
    assert sum(spec.selects(dict(node.labels), node.name) for node in trace.nodes) == 20


def test_churn_keeps_the_nodes_as_full_as_its_cell_says_until_its_time_is_over():
    trace = make_trace(a_cell("churn"), 1)
    templates, of_row = templates_by_row(trace)
    cpu = np.array([dict(template_from_proto(t).spec.requests)["cpu"] for t in templates])[of_row]
    sizes = [sum(job.replicas for job in arrival.message.jobs) for arrival in trace.arrivals]
    asked = [part.sum() for part in np.split(cpu, np.cumsum(sizes)[:-1])]
    offered = sum(dict(node.allocatable)["cpu"] for node in trace.nodes)
    for moment in (0.0, 2.0, 4.0, CHURN_SECONDS - 0.1):
        there = sum(
            amount
            for amount, a in zip(asked, trace.arrivals, strict=True)
            if a.at_seconds <= moment and (a.life_seconds is None or moment < a.at_seconds + a.life_seconds)
        )
        assert there / offered == pytest.approx(0.9, abs=0.02)
    assert trace.pods > 1.5 * sum(n for n, a in zip(sizes, trace.arrivals, strict=True) if not a.at_seconds)
    names = [job.name for job in jobs_of(trace)]
    assert len(set(names)) == len(names)


def test_pods_of_a_message_are_counted_in_the_order_of_its_jobs_then_its_list(make_template):
    small, large = make_template(100), make_template(900)
    (arrival,) = arrivals_of([Workload("lone", small), Workload("job", large, 2), Workload("other", large)])
    assert [dict(spec.requests)["cpu"] for spec in specs_of(Trace((), (arrival,)))] == [900, 900, 100, 900]


def test_a_trace_is_played_in_its_own_time_so_much_faster(make_template):
    pods = [
        TracePod(Workload("late", make_template(100)), 130, 150),
        TracePod(Workload("early", make_template(100)), 100, 160),
        TracePod(Workload("with-it", make_template(200)), 100, 160),
    ]
    trace = trace_of((), pods, 10.0)
    assert [(a.at_seconds, a.life_seconds, list(a.message.pods.names)) for a in trace.arrivals] == [
        (0.0, 6.0, ["early", "with-it"]),
        (3.0, 2.0, ["late"]),
    ]
    burst = trace_of((), pods, 0)
    assert [(a.at_seconds, a.life_seconds, len(a.message.pods.names)) for a in burst.arrivals] == [
        (0.0, None, 3)
    ]


def test_an_arrival_goes_when_it_has_lived_since_the_last_of_its_pods_was_bound():
    message = make_trace(a_cell(pods=4, fill=0), 1).arrivals[0].message
    stays, goes = Arrival(message), Arrival(lone_pods(1)[0], life_seconds=2.0)
    departures = Departures([stays, goes, Arrival(lone_pods(1)[0], life_seconds=1.0)])
    bound_at = np.array([1.0, 1.0, 1.0, 1.0, 10.0, 0.0])  # the last is not bound
    assert departures.take_due(bound_at, 11.9) == []
    assert departures.pending
    assert departures.take_due(bound_at, 12.0) == [goes]
    assert departures.take_due(bound_at, 13.0) == []
    assert not departures.pending


def test_a_departure_is_late_when_its_pods_were_bound_late():
    departed = Departed()
    departed.add([Arrival(lone_pods(1)[0], at_seconds=3.0, life_seconds=2.0)], 5.05)
    departed.add(
        [
            Arrival(
                make_trace(a_cell(pods=4, fill=0), 1).arrivals[0].message, at_seconds=1.0, life_seconds=2.0
            )
        ],
        4.5,
    )
    assert (departed.pods, departed.late, departed.latest_seconds) == (5, 4, 1.5)


def test_a_pod_that_is_there_when_the_recording_ends_never_goes(make_template):
    trace = trace_of((), [TracePod(Workload("stays", make_template(100)), 100, None)], 10.0)
    assert [(a.at_seconds, a.life_seconds) for a in trace.arrivals] == [(0.0, None)]


def options_of(cell, directory):
    mode, scheduler = MODE_REGISTRY.find(cell.mode, where="--modes"), find_scheduler(cell.scheduler)
    return platform_of(cell, mode, scheduler, seed=1, redis_url="", directory=directory)


def test_partitions_are_disjoint_and_hold_all_nodes(tmp_path):
    cell = a_cell(mode="multi-partitioned", workers=4)
    nodes = labelled_nodes(MODE_REGISTRY.find(cell.mode, where=""), 4, make_trace(cell, 1).nodes)
    options = options_of(cell, tmp_path)
    taken = [{flag for flag in worker.flags if "=" in flag} for worker in options.workers]
    assert taken == [{f"{PARTITION}={number}"} for number in range(4)]
    assert [dict(node.labels)[PARTITION] for node in nodes[:5]] == ["0", "1", "2", "3", "0"]


def test_modes_differ_in_nothing_but_what_makes_them(tmp_path):
    made_of = {
        mode: options_of(a_cell(mode=mode, workers=2), tmp_path) for mode in Mode if mode not in ON_KUBERNETES
    }
    assert [mode for mode, options in made_of.items() if options.unchecked] == [Mode.UNCOORDINATED]
    flags = {mode: [worker.flags for worker in options.workers] for mode, options in made_of.items()}
    assert flags[Mode.HOSS] == flags[Mode.UNCOORDINATED] == flags[Mode.SINGLE] == [(), ()]
    assert flags[Mode.LOCKED] == [("--turns", str(tmp_path / "lock"))] * 2


def test_decision_cost_is_given_to_every_worker(tmp_path):
    cell = a_cell(decision={"jobMs": 10, "taskMs": 0.5})
    options = options_of(cell, tmp_path)
    assert {worker.flags for worker in options.workers} == {
        ("--decision-job-ms", "10.0", "--decision-task-ms", "0.5")
    }
