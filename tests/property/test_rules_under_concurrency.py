"""Rules that cross nodes, with workers that decide at the same moment and hear of each other late, in any
order."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from property.builders_race import Race
from property.profiles import examples

from hoss.model.node import NodeSpec
from hoss.model.pod import HostPort, PodAffinity, PodAffinityTerm, PodSpec, SpreadConstraint
from hoss.model.selectors import LabelSelector, Requirement
from hoss.wire.convert_rules import group_defined
from scheduler_worker.core.messages import Outcome

AMOUNTS = (("cpu", 64_000), ("memory", 2**36), ("pods", 110))
WEB = HostPort(80)

moves = st.lists(
    st.tuples(
        st.sampled_from(["place", "decide", "tell", "advance", "advance", "crash", "reap", "forget"]),
        st.integers(0, 1),
    ),
    max_size=24,
)
several = st.sampled_from([1, 2, 4])
announced = st.booleans()


def rack(node):
    """Each shard has nodes of both racks, as far as there are enough of them."""
    return (node + node // 2) % 2


def racks(count):
    return [
        NodeSpec(
            f"n{i}",
            labels=(("kubernetes.io/hostname", f"n{i}"), ("rack", f"r{rack(i)}")),
            allocatable=AMOUNTS,
        )
        for i in range(count)
    ]


def pod(**fields):
    return PodSpec(requests=(("cpu", 100),), nonzero_cpu_milli=100, nonzero_memory_bytes=2**28, **fields)


def play(race, history):
    for move, worker in history:
        getattr(race, move)(race.workers[worker])
    race.finish()


def index_of(worker):
    pod_index = worker.scheduler.cache.pod_index
    return Counter({(g, n): c for g, row in pod_index._rows.items() for n, c in row.by_node().items()})


def assert_everyone_counts_what_the_ledger_holds(race):
    held = Counter((group_defined(definition), node) for definition, node in race.placed())
    for worker in race.workers:
        assert index_of(worker) == held


@examples(60)
@given(moves, several, announced)
def test_two_workers_never_give_one_port_of_a_node_to_two_pods(history, shards, announces):
    race = Race(2, racks(4), tries=10, shards=shards, announces=announces)
    for worker in race.workers:
        race.submit(worker, pod(host_ports=(WEB,)), 3)
    play(race, history)
    nodes = [node for _, node in race.placed()]
    assert len(nodes) == len(set(nodes)) == 4
    answers = sorted(race.workers[0].outcomes + race.workers[1].outcomes)
    assert answers == [Outcome.BOUND] * 4 + [Outcome.UNSCHEDULABLE] * 2
    assert_everyone_counts_what_the_ledger_holds(race)


@examples(40)
@given(moves, st.booleans(), several, announced)
def test_every_census_is_the_ledgers_whatever_order_verdicts_and_feed_come_in(
    history, anew, shards, announces
):
    race = Race(2, racks(5), tries=10, shards=shards, announces=announces)
    for number, worker in enumerate(race.workers):
        race.submit(worker, pod(labels=(("app", f"a{number}"),)), 7)
        race.submit(worker, pod(labels=(("app", "both"),), namespace="x"), 4)
    play(race, history)
    if anew:
        race.begin_anew(race.workers[0])
    assert_everyone_counts_what_the_ledger_holds(race)


def app(name):
    return LabelSelector((Requirement("app", "In", (name,)),))


def apart(name, key):
    return PodAffinity(anti_required=(PodAffinityTerm(key, app(name), ("default",)),))


def racks_of(race, name):
    """How many pods of an app are in each rack."""
    placed = [(group_defined(definition), node) for definition, node in race.placed()]
    return Counter(rack(node) for group, node in placed if ("app", name) in group.labels)


@examples(60)
@given(moves, several, announced)
def test_two_workers_never_bring_pods_together_that_keep_apart(history, shards, announces):
    race = Race(2, racks(4), tries=20, shards=shards, announces=announces)
    for worker in race.workers:
        race.submit(
            worker, pod(labels=(("app", "db"),), pod_affinity=apart("db", "kubernetes.io/hostname")), 3
        )
    play(race, history)
    nodes = [node for _, node in race.placed()]
    assert len(nodes) == len(set(nodes)) == 4
    assert_everyone_counts_what_the_ledger_holds(race)


@examples(60)
@given(moves, st.booleans(), several, announced)
def test_two_workers_never_bring_a_pod_to_those_it_keeps_apart_from_nor_those_to_it(
    history, shunned_first, shards, announces
):
    race = Race(2, racks(6), tries=20, shards=shards, announces=announces)
    first, second = race.workers if shunned_first else race.workers[::-1]
    race.submit(first, pod(labels=(("app", "web"),)), 2)
    race.submit(second, pod(labels=(("app", "db"),), pod_affinity=apart("web", "rack")), 2)
    play(race, history)
    assert not racks_of(race, "web").keys() & racks_of(race, "db").keys()
    assert_everyone_counts_what_the_ledger_holds(race)


@examples(100)
@given(moves, st.tuples(st.integers(1, 5), st.integers(1, 5)), several, st.booleans(), announced)
def test_two_workers_never_spread_pods_more_unevenly_than_is_allowed(
    history, pods, shards, one_batch, announces
):
    race = Race(2, racks(4), tries=40, shards=shards, announces=announces)
    spread = (SpreadConstraint(1, "rack", app("web")),)
    for worker, count in zip(race.workers, pods, strict=True):
        # A batch each, so that one worker's proposals are under way together; or one, whose pods count on
        # each other.
        for _ in range(1 if one_batch else count):
            race.submit(worker, pod(labels=(("app", "web"),), spread=spread), count if one_batch else 1)
    play(race, history)
    counts = racks_of(race, "web")
    assert counts.total() == sum(pods)
    assert abs(counts[0] - counts[1]) <= 1
    assert_everyone_counts_what_the_ledger_holds(race)


@examples(30)
@given(moves, st.integers(1, 4), st.integers(1, 4), several)
def test_a_worker_by_itself_is_never_refused_for_rules_that_it_announced(
    history, apart_pods, spread_pods, shards
):
    race = Race(1, racks(4), tries=1, shards=shards, announces=True)
    [worker] = race.workers
    race.submit(
        worker, pod(labels=(("app", "db"),), pod_affinity=apart("db", "kubernetes.io/hostname")), apart_pods
    )
    race.submit(
        worker, pod(labels=(("app", "web"),), spread=(SpreadConstraint(1, "rack", app("web")),)), spread_pods
    )
    play(race, [(move, 0) for move, _ in history if move in ("place", "decide", "tell", "advance")])
    assert worker.outcomes == [Outcome.BOUND] * (apart_pods + spread_pods)
    assert worker.scheduler.conflicts == 0


def test_a_pod_refused_for_a_port_waits_for_the_feed_and_then_goes_elsewhere():
    race = Race(2, racks(2))
    first, second = race.workers
    race.submit(first, pod(host_ports=(WEB,), node_selector=()), 2)
    race.submit(second, pod(host_ports=(WEB,)), 1)
    race.place(second)
    race.place(first)
    race.decide(first)
    race.decide(second)
    race.place(second)
    assert not second.sent
    assert second.scheduler.backlog == 1
    race.tell(second)
    race.place(second)
    assert second.outcomes == [Outcome.UNSCHEDULABLE]


def test_spreading_does_not_count_on_own_pods_that_may_yet_be_refused():
    race = Race(2, racks(2), tries=20)
    first, second = race.workers
    spreading = pod(labels=(("app", "web"),), spread=(SpreadConstraint(1, "rack", app("web")),))
    race.submit(first, spreading, 1)  # whose refusal makes the rule known
    for step in (race.place, race.decide, race.tell):
        step(first)
    for _ in range(2):
        race.submit(first, spreading, 1)
    for _ in range(3):
        race.place(first)
    [proposal] = first.sent
    [node] = np.frombuffer(proposal.nodes, "<u4")[:1].tolist()
    race.submit(second, PodSpec(requests=(("cpu", 63_950),), node_name=f"n{node}"), 1)
    race.place(second)
    race.decide(second)
    race.finish()
    assert sorted(first.outcomes) == [Outcome.BOUND] + [Outcome.UNSCHEDULABLE] * 2
    assert racks_of(race, "web") == Counter({1 - node: 1})
