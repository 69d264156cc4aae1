"""What the dispatcher forgets: namespaces, kinds, tenants and classes with their last pod, and then their
numbers belong to others."""

import numpy as np
import pytest

from dispatcher.api.tenancy import TenantView
from dispatcher.core import messages as m
from dispatcher.core.cluster.objects import DROP_NAMESPACES_SECONDS, FIRST_NAMESPACE
from dispatcher.core.dispatch.balance import WeightedRoundRobin, WorkerLoad
from dispatcher.core.pods.table import Phase
from dispatcher.core.workers.membership import GONE_SECONDS, MOST_GONE, WorkerState
from dispatcher.core.workers.reports import CostReport, Heartbeat
from hoss.model.pod import PodSpec


def spec(number: int) -> PodSpec:
    return PodSpec(namespace=f"ns-{number}", requests=(("cpu", 100 + number),))


def end(bench, rows) -> None:
    """These pods are bound, and then deleted."""
    bench.answer("w1", m.OutcomeCode.BOUND)
    bench.handle(m.Deleted(rows))
    bench.handle(m.Released(rows))
    bench.pass_time(2.0)


def namespaces_told(bench) -> list[set[str]]:
    told = bench.instructions(m.SendNamespaces)
    return [{namespace.name for namespace in instruction.snapshot.namespaces} for instruction in told]


def test_numbers_of_tenants_kinds_and_templates_are_used_again(bench):
    bench.join("w1")
    for number in range(50):
        end(bench, bench.job("job", 3, spec=spec(number), scheduler_name=f"scheduler-{number}"))
    sizes = bench.machine.table_sizes()
    tables = ("pod_rows", "templates", "classes", "kinds", "pod_namespaces", "tenants")
    assert {table: sizes[table] for table in tables} == dict.fromkeys(tables, 0)
    assert sizes["tenant_numbers"] == 1
    rows = bench.job("job", 1, spec=spec(60))
    (held,) = bench.machine.tenants.holdings(bench.now)
    assert held.name == "ns-60"
    assert int(rows[0]) == 0


def test_a_tenant_whose_number_was_anothers_begins_with_nothing(bench):
    bench.join("w1")
    rows = bench.job("job", 500, spec=spec(1))
    bench.machine.tenants.holdings(bench.now)
    end(bench, rows)
    bench.job("job", 1, spec=spec(2))
    number = int(bench.machine.registry.templates.tenant[0])
    assert bench.machine.tenants.name(number) == "ns-2"
    assert bench.machine.tenants.share(number) == 0.0


def test_workers_are_told_once_of_all_namespaces_that_ended(bench):
    bench.join("w1")
    for number in range(20):
        end(bench, bench.job("job", 1, spec=spec(number)))
    assert len(namespaces_told(bench)[-1]) >= 20
    before = len(namespaces_told(bench))
    bench.pass_time(DROP_NAMESPACES_SECONDS)
    bench.pass_time(DROP_NAMESPACES_SECONDS)
    assert namespaces_told(bench)[before:] == [{FIRST_NAMESPACE}]


def test_a_namespace_that_gets_pods_again_is_announced_again(bench):
    bench.join("w1")
    end(bench, bench.job("job", 1, spec=spec(1)))
    bench.pass_time(DROP_NAMESPACES_SECONDS)
    bench.job("job", 1, spec=spec(1))
    assert namespaces_told(bench)[-1] == {FIRST_NAMESPACE, "ns-1"}


def test_a_worker_is_told_with_its_next_work_which_classes_ended(bench):
    bench.join("w1")
    ended = bench.machine.registry.templates.class_id[0:0]
    for number in range(3):
        rows = bench.job("job", 1, spec=spec(number))
        ended = np.append(ended, bench.sent["w1"][0].run_classes)
        end(bench, rows)
    bench.job("job", 1, spec=spec(3))
    (work,) = bench.sent["w1"]
    assert [*work.forgotten] == [ended[-1]]  # each batch tells of the ones before it
    assert bench.machine.table_sizes()["worker_classes"] == 1


def test_a_late_report_about_a_class_that_ended_is_not_remembered(bench):
    link = bench.join("w1")
    rows = bench.job("job", 1, spec=spec(1))
    (work,) = bench.sent["w1"]
    report = CostReport(work.run_classes, np.array([40.0]))
    bench.handle(m.HeartbeatReceived(link, Heartbeat(ready=True), report))
    assert bench.machine.table_sizes()["class_costs"] == 2  # of the worker, and of all workers
    end(bench, rows)
    bench.handle(m.HeartbeatReceived(link, Heartbeat(ready=True), report))
    assert bench.machine.table_sizes()["class_costs"] == 0


@pytest.mark.parametrize("batches", [1, 3])
def test_a_class_that_is_with_a_worker_is_not_forgotten(bench, batches):
    bench.join("w1")
    rows = np.concatenate([bench.job(f"job-{n}", 1, spec=spec(1)) for n in range(batches)])
    bench.handle(m.Deleted(rows))
    bench.pass_time(5.0)
    assert bench.machine.table_sizes()["classes"] == 1
    while bench.in_hand("w1"):
        bench.answer("w1", m.OutcomeCode.UNSCHEDULABLE)
    bench.pass_time(5.0)
    assert bench.machine.table_sizes()["classes"] == 0


def come_and_go(bench, name: str) -> None:
    """A worker registers, and its stream ends."""
    link = bench.join(name)
    bench.handle(m.LinkClosed(link))
    bench.handle(m.Fenced(name, np.empty(0, np.uint32), {}))


def test_workers_that_are_gone_are_forgotten_after_a_day_and_their_numbers_used_again(bench):
    for number in range(200):
        come_and_go(bench, f"w-{number}")
        bench.pass_time(GONE_SECONDS / 20)
    sizes = bench.machine.table_sizes()
    assert sizes["workers"] <= 21
    assert sizes["worker_numbers"] <= 22
    bench.join("w-0")


def test_what_a_worker_knew_of_classes_ends_with_its_stream(bench):
    for number in range(20):
        link = bench.join(f"w-{number}")
        rows = bench.job("job", 3, spec=spec(number))
        bench.pump()
        report = CostReport(np.array([number], np.uint32), np.array([5.0], np.float32))
        bench.handle(m.HeartbeatReceived(link, Heartbeat(ready=True), costs=report))
        bench.answer(f"w-{number}", m.OutcomeCode.BOUND)
        bench.handle(m.LinkClosed(link))
        bench.handle(m.Deleted(rows))
        bench.handle(m.Released(rows))
        bench.pass_time(2.0)
    assert bench.machine.table_sizes()["worker_classes"] == 0


@pytest.mark.parametrize(
    "workers", [3500, pytest.param(70_000, marks=pytest.mark.thorough, id="than numbers")]
)
def test_more_names_than_are_remembered_may_come_one_after_the_other(bench, workers):
    for number in range(workers):
        link = next(bench._links)
        bench.machine.members.join(f"w-{number}", {}, incarnation=1, window=1, link=link, now=bench.now)
        worker = bench.machine.members.get(f"w-{number}")
        bench.machine.members.lose(worker, bench.now, "of the test")
        if number % (workers // 7) == 0:
            bench.pass_time(60.0)
    bench.pass_time(60.0)
    assert bench.machine.table_sizes()["workers"] == MOST_GONE
    assert bench.machine.table_sizes()["worker_numbers"] <= MOST_GONE + workers // 7 + 1


def test_a_worker_for_which_there_is_no_number_is_refused_and_the_others_go_on(bench):
    members = bench.machine.members
    for number in range(0xFFFF):
        assert members.join(f"w-{number}", {}, incarnation=1, window=1, link=-number, now=bench.now)
    bench.register("one too many")
    (refused,) = bench.instructions(m.Refuse)
    assert "as many workers as it can number" in refused.text
    for number in range(0xFFFF):
        members.lose(members.get(f"w-{number}"), bench.now, "of the test")


def test_pods_and_history_of_a_forgotten_worker_are_not_taken_for_those_of_the_next_one(bench):
    link = bench.join("old")
    rows = bench.job("job", 1)
    bench.answer("old", m.OutcomeCode.BOUND)
    bench.handle(m.LinkClosed(link))
    bench.handle(m.Fenced("old", np.empty(0, np.uint32), {}))
    bench.pass_time(GONE_SECONDS)
    bench.join("new")
    registry = bench.machine.registry
    assert bench.machine.members.get("new").number == 0
    assert registry.pods.worker[rows].tolist() == [0xFFFF]
    transitions = registry.history.of_pod(int(rows[0]))
    assert [step.worker for step in transitions if step.phase is Phase.SCHEDULING] == ["old"]


def test_a_worker_that_an_operator_cordoned_is_remembered_longer_than_a_day(bench):
    come_and_go(bench, "cordoned")
    bench.handle(m.WorkerStateRequested("cordoned", WorkerState.CORDONED))
    bench.pass_time(10 * GONE_SECONDS)
    bench.join("cordoned")
    assert bench.machine.members.get("cordoned").state is WorkerState.CORDONED


def test_a_worker_that_is_not_fenced_is_never_forgotten(bench):
    link = bench.join("w1")
    bench.job("job", 1)
    bench.handle(m.LinkClosed(link))
    bench.pass_time(2 * GONE_SECONDS)
    assert bench.machine.members.get("w1").unfenced is not None


def test_a_weighted_balance_forgets_workers_that_get_no_pods():
    balancer = WeightedRoundRobin()
    for number in range(5 * WeightedRoundRobin.MOST_NAMES):
        balancer.choose([WorkerLoad(f"w-{number}", 0, 0, 1.0, 1)], 0, None)
    assert len(balancer._credit) <= WeightedRoundRobin.MOST_NAMES + 1


def test_a_tenants_watch_forgets_the_jobs_that_have_ended(bench):
    """It remembers those that it has shown, to tell of pods whose rows are gone."""
    bench.join("w1")
    log, view, seen = bench.machine.log, TenantView(bench.machine, "ns-1"), set()
    position, most = log.revision, 0

    def read() -> list[Phase]:
        nonlocal position
        batches = log.since(position)
        position = batches[-1].revision
        return [Phase(phase) for shown in view.of_events(batches, seen) for phase in shown.phases]

    for number in range(300):
        rows = bench.job(f"job-{number}", 1, spec=spec(1))
        bench.answer("w1", m.OutcomeCode.BOUND)
        assert read() == [Phase.BOUND]
        bench.handle(m.Deleted(rows))
        bench.handle(m.Released(rows))
        bench.pass_time(2.0)
        assert read() == [Phase.DELETED]  # the pod and its job are forgotten by now
        most = max(most, len(seen))
    assert most <= 257
    assert len(seen) < 100
