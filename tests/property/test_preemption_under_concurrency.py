"""Preempting workers that decide at the same moment and hear of each other, and the dispatcher of both, late
and in any order."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from property.builders_race import Race
from property.profiles import examples

from hoss.model.cluster import PodDisruptionBudget, Threshold
from hoss.model.node import NodeSpec
from hoss.model.pod import HostPort, PodAffinity, PodAffinityTerm, PodSpec
from hoss.model.selectors import LabelSelector, Requirement
from hoss.wire.convert_rules import group_defined

NODES = 3
WEB = LabelSelector((Requirement("app", "In", ("web",)),))
moves = st.lists(
    st.tuples(st.sampled_from(["place", "answer", "decide", "tell", "know"]), st.integers(0, 1)), max_size=20
)


def pod(cpu, priority=0, **fields):
    return PodSpec(requests=(("cpu", cpu),), nonzero_cpu_milli=cpu, priority=priority, **fields)


def full_race(*low):
    """Three nodes of 4,000 milli cpu, full of twelve pods that the dispatcher knows to be bound: one of each
    kind on a node, and for the rest of the last."""
    amounts = (("cpu", 4000), ("memory", 2**36), ("pods", 110))
    nodes = [
        NodeSpec(f"n{i}", (("kubernetes.io/hostname", f"n{i}"),), allocatable=amounts) for i in range(NODES)
    ]
    race = Race(2, nodes, tries=20)
    for spec in low[:-1]:
        race.submit(race.workers[0], spec, NODES)
    race.submit(race.workers[0], low[-1], (5 - len(low)) * NODES)
    race.finish()
    race.know()
    return race


def play(race, history):
    for move, worker in history:
        if move == "know":
            race.know()
        else:
            getattr(race, move)(race.workers[worker])
    race.finish()


def assert_every_view_is_the_ledgers(race):
    arbiter = race.ledger.arbiters[0]
    for worker in race.workers:
        cache = worker.scheduler.cache
        for node, account in arbiter.accounts.items():
            assert cache.requested[: len(account.requested), node].tolist() == account.requested.tolist()
            assert (account.requested <= account.allocatable).all()
        counted = Counter(
            {(g, n): c for g, row in cache.pod_index._rows.items() for n, c in row.by_node().items()}
        )
        assert counted == Counter((group_defined(definition), node) for definition, node in race.placed())


@examples(80)
@given(moves, st.integers(1, 3), st.integers(1, 3))
def test_two_workers_after_the_same_victims_evict_no_more_than_their_pods_need(history, mine, yours):
    race = full_race(pod(1000))
    for worker, count in zip(race.workers, (mine, yours), strict=True):
        race.submit(worker, pod(2000, 10), count, lowest_priority=0)
    play(race, history)
    victims = [
        eviction.victims[at : at + 16]
        for eviction in race.evictions()
        for at in range(0, len(eviction.victims), 16)
    ]
    assert len(set(victims)) == len(victims) == 2 * (mine + yours)
    assert len(race.ledger.arbiters[0].reservations) == 4 * NODES - (mine + yours)
    assert_every_view_is_the_ledgers(race)


@examples(80)
@given(moves, st.lists(st.integers(1, 2), min_size=2, max_size=4), st.integers(0, 2))
def test_workers_that_ask_at_the_same_moment_do_not_overdraw_a_budget_together(history, counts, allowed):
    """Its pods are the least urgent, so each worker would rather have them go; but there are others. Each
    class asks for itself, also of one worker."""
    web = (("app", "web"),)
    race = full_race(pod(1000, labels=web), pod(1000, 5))
    race.budget = PodDisruptionBudget("default", "web", WEB, min_available=Threshold(NODES - allowed))
    for number, count in enumerate(counts):
        urgent = pod(1000, 10, labels=(("job", str(number)),))
        race.submit(race.workers[number % 2], urgent, count, lowest_priority=0)
    play(race, history)
    gone = [
        race._specs[e.victims[at : at + 16]] for e in race.evictions() for at in range(0, len(e.victims), 16)
    ]
    assert len(gone) == sum(counts)
    assert sum(spec.labels == web for spec in gone) <= allowed
    assert_every_view_is_the_ledgers(race)


@examples(40)
@given(moves, st.booleans())
def test_the_place_beside_a_shunned_pod_is_taken_from_that_pod_alone(history, by_port):
    label = (("app", "web"),)
    low = pod(900, labels=label, host_ports=(HostPort(80),)) if by_port else pod(900, labels=label)
    race = Race(
        2,
        [NodeSpec("n0", (("kubernetes.io/hostname", "n0"),), allocatable=(("cpu", 4000), ("pods", 110)))],
        tries=20,
    )
    race.submit(race.workers[0], low, 1)
    race.submit(race.workers[0], pod(900), 3)
    race.finish()
    race.know()
    shuns = PodAffinity(anti_required=(PodAffinityTerm("kubernetes.io/hostname", WEB, ("default",)),))
    urgent = {"host_ports": (HostPort(80),)} if by_port else {"pod_affinity": shuns}
    race.submit(race.workers[1], pod(100, 10, **urgent), 1, lowest_priority=0)
    play(race, history)
    (eviction,) = race.evictions()
    assert race._specs[eviction.victims].labels == label
    assert_every_view_is_the_ledgers(race)
