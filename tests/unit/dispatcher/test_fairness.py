"""Tenants share by dominant share and weight, and no pod starves."""

from collections import Counter

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.machine import Settings
from dispatcher.core.pods.sets import NewGang, NewJob, Order
from dispatcher.core.pods.table import Phase
from dispatcher.core.policy.rules import Match, Policy, Rule, Sharing
from dispatcher.core.workers.membership import WorkerState
from dispatcher.core.workers.reports import Heartbeat
from dispatcher.policy import documents
from hoss.errors import ConfigError
from hoss.model.pod import DeviceRequest, PodSpec

FOREVER_SECONDS = 1e9


def of(tenant: str, *, priority: int = 0, labels=(), devices=None, **requests: int) -> PodSpec:
    asked = tuple(sorted(requests.items()))
    return PodSpec(namespace=tenant, priority=priority, requests=asked, labels=labels, devices=devices)


@pytest.fixture
def cluster(bench):
    """A cluster of 100 cores and 1,000 units of memory, with room for 10,000 pods."""
    bench.handle(m.AllocatableChanged({"cpu": 100_000, "memory": 1000, "pods": 10_000}))
    return bench


def tenants_of(bench, work: m.SendWork) -> Counter[str]:
    registry = bench.machine.registry
    rows = registry.directory.rows_of_uids(work.uids)
    return Counter(registry.namespace_of(row) for row in rows.tolist())


def held(bench) -> dict[str, float]:
    return {h.name: h.share for h in bench.machine.tenants.holdings(bench.now)}


def test_a_single_pod_behind_a_flood_goes_with_the_very_next_batch(cluster):
    cluster.join("w1", window=1000)
    cluster.job("flood", 1_000_000, spec=of("a", cpu=1))
    lone = cluster.pods("lone", spec=of("b", cpu=1))
    assert cluster.all_are(lone, Phase.QUEUED)  # the worker has all it may have
    cluster.answer("w1", m.OutcomeCode.BOUND)
    assert tenants_of(cluster, cluster.sent["w1"][-1]) == {"a": 499, "b": 1}


def test_a_single_pod_in_another_sub_queue_goes_first_too(new_bench):
    rules = (Rule("of-a", Match(namespaces=frozenset({"a"}))), Rule("rest"))
    bench = new_bench(policy=Policy(rules))
    bench.join("w1", window=1000)
    bench.job("flood", 100_000, spec=of("a", cpu=1))
    lone = bench.pods("lone", spec=of("b", cpu=1))
    bench.now += 0.003  # longer than a batch that is not full waits for more
    bench.answer("w1", m.OutcomeCode.BOUND)
    assert bench.all_are(lone, Phase.SCHEDULING)


def test_what_a_tenant_holds_of_its_dominant_resource_counts_not_its_pods(cluster):
    """Ghodsi et al.'s example in small: one asks for cpu above all, the other for memory."""
    cluster.join("w1", window=1000)
    cluster.job("cores", 20_000, spec=of("a", cpu=300, memory=1))  # a pod: 0.3 % of cpu
    cluster.job("bytes", 20_000, spec=of("b", cpu=100, memory=6))  # a pod: 0.6 % of memory
    for _ in range(20):
        cluster.answer("w1", m.OutcomeCode.BOUND)
    shares = held(cluster)
    assert shares["a"] == pytest.approx(shares["b"], rel=0.1)


def test_a_tenant_of_weight_three_gets_three_times_as_much(new_bench):
    bench = new_bench(policy=Policy(sharing=Sharing(weights={"a": 3.0})))
    bench.handle(m.AllocatableChanged({"cpu": 1_000_000, "pods": 100_000}))
    bench.join("w1", window=1000)
    for tenant in ("a", "b"):
        bench.job("job", 50_000, spec=of(tenant, cpu=10))
    for _ in range(20):
        bench.answer("w1", m.OutcomeCode.BOUND)
    shares = held(bench)
    assert shares["a"] == pytest.approx(3 * shares["b"], rel=0.1)


def test_who_comes_late_catches_up_before_others_go_on(cluster):
    cluster.join("w1", window=1000)
    cluster.job("early", 5000, spec=of("a", cpu=1))
    for _ in range(4):
        cluster.answer("w1", m.OutcomeCode.BOUND)
    cluster.job("late", 5000, spec=of("b", cpu=1))
    cluster.answer("w1", m.OutcomeCode.BOUND)
    assert tenants_of(cluster, cluster.sent["w1"][-1]) == {"b": 500}


def test_what_was_given_back_counts_no_more_a_second_later(cluster):
    cluster.join("w1", window=100)
    rows = cluster.job("early", 50, spec=of("a", cpu=100))
    cluster.answer("w1", m.OutcomeCode.BOUND)
    cluster.job("b", 40, spec=of("b", cpu=100))
    cluster.answer("w1", m.OutcomeCode.BOUND)
    cluster.handle(m.Deleted(rows))
    cluster.join("w2", window=20, ready=False)
    cluster.handle(m.WorkerStateRequested("w1", WorkerState.CORDONED))
    cluster.now += 2.0
    first = cluster.job("again", 10, spec=of("a", cpu=100))
    second = cluster.job("more", 10, spec=of("b", cpu=100))
    cluster.handle(m.HeartbeatReceived(cluster.machine.members.get("w2").link, Heartbeat(ready=True)))
    (work, *_) = cluster.sent["w2"]
    assert tenants_of(cluster, work) == {"a": 10}
    assert cluster.all_are(first, Phase.SCHEDULING)
    assert len(second) == 10


def test_priority_stands_above_fairness(cluster):
    cluster.job("low", 100, spec=of("b", cpu=1))
    cluster.job("high", 600, spec=of("a", priority=5, cpu=1))
    cluster.join("w1", window=1000)
    cluster.pass_time(0.1)
    assert [tenants_of(cluster, work) for work in cluster.sent["w1"]] == [{"a": 500}, {"a": 100, "b": 100}]


def test_a_tenants_own_pods_keep_their_order(cluster):
    ours = [cluster.job(f"job-{i}", 100, spec=of("a", cpu=1)) for i in range(3)]
    theirs = [cluster.job(f"job-{i}", 100, spec=of("b", cpu=1)) for i in range(3)]
    cluster.join("w1", window=400)
    work = cluster.sent["w1"][0]
    rows = cluster.machine.registry.directory.rows_of_uids(work.uids)
    for jobs in (ours, theirs):
        mine = rows[np.isin(rows, np.concatenate(jobs))]
        assert mine.tolist() == np.concatenate(jobs)[: len(mine)].tolist()


def test_tenants_by_label_are_pods_of_one_value_whatever_their_namespace(new_bench):
    bench = new_bench(policy=Policy(sharing=Sharing(label="team")))
    bench.job("one", 2, spec=of("ns-1", labels=(("team", "red"),)))
    bench.job("two", 3, spec=of("ns-2", labels=(("team", "red"),)))
    bench.job("three", 4, spec=of("ns-2"))
    found = {h.name: h.phases[Phase.QUEUED] for h in bench.machine.tenants.holdings(bench.now)}
    assert found == {"red": 5, "": 4}


def test_a_policy_that_tells_tenants_apart_otherwise_holds_for_pods_that_wait(cluster):
    cluster.join("w1", window=1000)
    cluster.job("flood", 100_000, spec=of("a", labels=(("team", "red"),)))
    lone = cluster.job("lone", 1, spec=of("a", labels=(("team", "blue"),)))
    cluster.machine.set_policy(Policy(sharing=Sharing(label="team")), cluster.now)
    cluster.answer("w1", m.OutcomeCode.BOUND)
    assert cluster.all_are(lone, Phase.SCHEDULING)


def test_shares_of_cards_count_as_parts_of_whole_ones(bench):
    bench.handle(m.AllocatableChanged({"nvidia.com/gpu": 10, "pods": 1000}))
    bench.job("shares", 4, spec=of("a", devices=DeviceRequest(1, 500)))
    bench.join("w1")
    (holding,) = bench.machine.tenants.holdings(bench.now)
    assert (holding.share, holding.resource) == (0.2, "nvidia.com/gpu")


def test_a_gang_that_waits_for_a_worker_does_not_hold_up_other_tenants(cluster):
    for name in ("w1", "w2"):
        cluster.join(name, window=100)
    cluster.job("busy", 200, spec=of("c", cpu=1))
    for name in ("w1", "w2"):
        cluster.outcomes(cluster.sent[name][0], range(10), m.OutcomeCode.BOUND)
    templates, gang = (cluster._template(of("a", cpu=1)),), NewGang("a", "gang", 90)
    order = Order("gang-order", templates, (NewJob("gang", 0, 90, gang=0),), None, (gang,))
    cluster.handle(m.Admitted(cluster.accept(order)))
    lone = cluster.pods("lone", spec=of("b", cpu=1))
    cluster.pass_time(0.1)
    assert cluster.all_are(lone, Phase.SCHEDULING)


def aged_bench(new_bench):
    bench = new_bench(settings=Settings(worker_timeout_seconds=FOREVER_SECONDS, aging_seconds=300.0))
    bench.join("w1", window=1000)
    return bench


def test_no_pod_starves_behind_an_endless_stream_of_higher_priority(new_bench):
    bench = aged_bench(new_bench)
    low = bench.job("low", 100, spec=of("a", priority=0))
    bench.job("first", 1000, spec=of("a", priority=9))
    for number in range(40):
        bench.job(f"high-{number}", 500, spec=of("a", priority=9))
        bench.pass_time(20.0)
        for _ in range(len(bench.sent["w1"])):
            bench.answer("w1", m.OutcomeCode.BOUND)
    assert not {Phase.QUEUED} & set(bench.phases(low))


def test_before_the_time_priority_is_strict_and_after_it_the_aged_get_a_tenth(new_bench):
    bench = aged_bench(new_bench)
    bench.job("busy", 1000, spec=of("a", priority=9))
    low = bench.job("low", 10_000, spec=of("a", priority=0))
    bench.job("high", 1_000_000, spec=of("a", priority=9))
    bench.now += 299.0
    for _ in range(20):
        bench.answer("w1", m.OutcomeCode.BOUND)
    assert bench.all_are(low, Phase.QUEUED)
    bench.now += 2.0
    for _ in range(20):
        bench.answer("w1", m.OutcomeCode.BOUND)
    gone = bench.phases(low).count(Phase.SCHEDULING) + bench.phases(low).count(Phase.BOUND)
    assert 700 <= gone <= 1100  # of 20 batches of 500


def test_the_aged_of_another_sub_queue_get_their_turn_too(new_bench):
    rules = (Rule("of-a", Match(namespaces=frozenset({"a"}))), Rule("rest"))
    bench = new_bench(Policy(rules), Settings(worker_timeout_seconds=FOREVER_SECONDS))
    bench.join("w1", window=1000)
    bench.job("busy", 1000, spec=of("a", priority=9))
    low = bench.job("low", 5, spec=of("b", priority=0))
    bench.job("high", 100_000, spec=of("a", priority=9))
    bench.now += 301.0
    for _ in range(3):
        bench.answer("w1", m.OutcomeCode.BOUND)
    assert not {Phase.QUEUED} & set(bench.phases(low))


def test_with_aging_off_nobody_is_lifted(new_bench):
    bench = new_bench(settings=Settings(worker_timeout_seconds=FOREVER_SECONDS, aging_seconds=0.0))
    bench.join("w1", window=1000)
    bench.job("busy", 1000, spec=of("a", priority=9))
    low = bench.job("low", 5, spec=of("a", priority=0))
    bench.job("high", 100_000, spec=of("a", priority=9))
    bench.now += 100_000.0
    for _ in range(10):
        bench.answer("w1", m.OutcomeCode.BOUND)
    assert bench.all_are(low, Phase.QUEUED)


def policy_text(tenants: str) -> str:
    return f"{documents.DEFAULT_YAML}tenants: {tenants}\n"


def test_the_policy_document_says_who_shares_and_with_what_weight():
    by_label = documents.parse_policy(
        policy_text("{by: {label: team}, weights: {red: 3}, defaultWeight: 0.5}")
    )
    assert by_label.sharing == Sharing("team", {"red": 3.0}, 0.5)
    assert documents.parse_policy(documents.DEFAULT_YAML).sharing == Sharing()


@pytest.mark.parametrize(
    ("tenants", "told"),
    [
        ("{weights: {a: 0}}", "tenants.weights.a"),
        ("{weights: {a: -1}}", "a number above 0"),
        ("{by: {label: 'no good'}}", "tenants.by"),
        ("{by: Label}", "tenants.by"),
        ("{weight: {a: 1}}", "tenants.weight"),
    ],
)
def test_a_bad_tenants_section_is_refused_naming_the_field(tenants, told):
    with pytest.raises(ConfigError, match=told):
        documents.parse_policy(policy_text(tenants))
