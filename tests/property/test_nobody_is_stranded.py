"""Near full: whatever order verdicts and the feed come in, no pod is called unschedulable for room that is
there in the end."""

import asyncio
import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property.builders_race import Race, Racer
from property.profiles import examples

from dispatcher.core.changes import ChangeHistory, Changes
from dispatcher.core.messages import ClusterChanged
from dispatcher.core.queue.hints import worth_another_attempt
from dispatcher.ledger.nodes import ClusterNodes
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.wire.convert import template_from_proto
from hossctl.choices import Load, Mode
from hossctl.compare.document import Cell
from hossctl.compare.loads import make_trace
from hossctl.load.playing import templates_by_row
from scheduler_worker.core.messages import Outcome

NODE_CPU, SMALL, LARGE = 1000, 200, 500
AMOUNTS = (("cpu", NODE_CPU), ("memory", 2**36), ("pods", 110))

moves = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["place", "decide", "hear", "tell"]), st.just(0)),
        st.tuples(st.sampled_from([SMALL, LARGE]), st.integers(1, 4)),  # pods of so much cpu come
    ),
    min_size=5,
    max_size=30,
)

# With others: which worker, and what happens.
sizes = st.tuples(st.sampled_from([SMALL, LARGE]), st.integers(1, 4))
churn = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.one_of(
            st.sampled_from(["place", "decide", "hear", "tell", "listen"]),
            st.lists(sizes, min_size=1, max_size=3),  # pods of these sizes come in one batch
            sizes,  # a gang of pods of this size comes
            st.integers(
                0, 41
            ),  # a pod that is bound ends; the dispatcher hears of it at once where it is odd
        ),
    ),
    min_size=5,
    max_size=40,
)


def pod(cpu):
    return PodSpec(requests=(("cpu", cpu),), nonzero_cpu_milli=cpu, nonzero_memory_bytes=2**28)


def cpu_of(spec):
    return dict(spec.requests)["cpu"]


def nodes_of(count):
    return [NodeSpec(f"n{i}", allocatable=AMOUNTS) for i in range(count)]


def free(race, nodes):
    """The cpu that no pod has, by node."""
    requested = dict.fromkeys(range(nodes), 0)
    for arbiter in race.ledger.arbiters:
        for held in arbiter.reservations.values():
            requested[held.node] += int(held.requests[0])
    return [NODE_CPU - cpu for cpu in requested.values()]


@dataclass
class Parked:
    """Pods that no node fits, in the dispatcher's hands: one, or a gang."""

    specs: list[PodSpec]
    refused_by: frozenset[str]
    gang: bool

    def helped(self, changes: Changes) -> bool:
        return worth_another_attempt(self.specs[0], self.refused_by, changes)


@dataclass
class Waking:
    """The dispatcher's part: it parks what is unschedulable, and has it tried again when the feed tells of
    something that may help, or has told of it after the view that the pod was refused on."""

    race: Race
    history: ChangeHistory = field(default_factory=ChangeHistory)
    nodes: ClusterNodes = field(default_factory=ClusterNodes)
    heard: dict[int, int] = field(default_factory=dict)
    parked: list[Parked] = field(default_factory=list)
    gangs: set[tuple[str, int]] = field(default_factory=set)  # worker and batch
    sent_at: dict[tuple[str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.heard = dict.fromkeys(range(self.race.ledger.shards), 0)

    def submit(self, worker: Racer, specs: list[PodSpec], *, gang: bool) -> None:
        runs = [(spec, specs.count(spec)) for spec in dict.fromkeys(specs)]
        batch = worker.name, self.race.submit_runs(worker, runs, gang=gang)
        self.sent_at[batch] = self.history.number
        if gang:
            self.gangs.add(batch)

    def listen(self, worker: Racer) -> None:
        """Read the feed."""
        for shard, seq, message in list(self.race.news(self.heard)):
            self.heard[shard] = seq
            for event in self.nodes.read(message):
                if isinstance(event, ClusterChanged):
                    self.history.record(event.changes, 0.0, shard=shard, seq=seq)
        for changes in self.history.take_pending(1.0):
            self._retry(worker, [parked for parked in self.parked if parked.helped(changes)])

    def collect(self, worker: Racer) -> None:
        """Park what the worker has refused; what missed news is tried again at once."""
        refusals, worker.refusals = worker.refusals, []
        for told in refusals:
            batch = worker.name, told.batch_id
            specs = worker.specs[told.batch_id]
            refused = [i for i, code in enumerate(told.codes.tolist()) if code == Outcome.UNSCHEDULABLE]
            by = [told.refused_by[told.reasons[i]] for i in refused]
            names = [specs[position] for position in told.positions[refused].tolist()]
            gang = batch in self.gangs
            parked = (
                [Parked(names, frozenset().union(*by), gang)]
                if gang
                else [Parked([spec], plugins, False) for spec, plugins in zip(names, by, strict=True)]
            )
            self.parked += parked
            missed = list(self.history.unseen_by(self.sent_at[batch], dict(told.seen)))
            self._retry(worker, [pods for pods in parked if any(map(pods.helped, missed))])

    def _retry(self, worker: Racer, woken: list[Parked]) -> None:
        for pods in woken:
            self.parked.remove(pods)
            self.submit(worker, pods.specs, gang=pods.gang)

    def finish(self) -> None:
        """Until nothing is under way and nothing is woken."""
        busy = True
        while busy:
            self.race.finish()
            before = sum(worker.batches for worker in self.race.workers)
            for worker in self.race.workers:
                self.collect(worker)
            self.listen(self.race.workers[0])
            busy = sum(worker.batches for worker in self.race.workers) > before


@examples(150)
@given(moves, st.sampled_from([1, 2]), st.integers(2, 4))
def test_a_worker_by_itself_finds_no_pod_unschedulable_that_fits_a_node(history, shards, nodes):
    race = Race(1, nodes_of(nodes), shards=shards, late=True)
    [worker] = race.workers
    for move, count in history:
        if count:
            race.submit(worker, pod(move), count)
        else:
            getattr(race, move)(worker)
    race.finish()
    assert set(worker.outcomes) <= {Outcome.BOUND, Outcome.UNSCHEDULABLE}
    most = max(free(race, nodes))
    assert [cpu_of(spec) for spec in worker.unschedulable if cpu_of(spec) <= most] == []


@examples(100)
@given(churn, st.sampled_from([1, 2]), st.integers(1, 3))
def test_while_pods_come_and_end_nobody_is_left_waiting_beside_room(history, shards, nodes):
    """Two workers, gangs among their pods, and a dispatcher that hears late of everything too. The nodes are
    full at first."""
    race = Race(2, nodes_of(nodes), shards=shards, late=True, tries=1000)
    waking = Waking(race)
    waking.submit(race.workers[0], [pod(SMALL)] * (nodes * NODE_CPU // SMALL), gang=False)
    waking.finish()
    for who, move in history:
        worker = race.workers[who]
        if isinstance(move, list):
            waking.submit(worker, [pod(cpu) for cpu, count in move for _ in range(count)], gang=False)
        elif isinstance(move, tuple):
            waking.submit(worker, [pod(move[0])] * move[1], gang=True)
        elif isinstance(move, int):
            if there := sorted(race.reservations()):
                race.end(there[move // 2 % len(there)])
            if move % 2:
                waking.listen(worker)
        elif move == "listen":
            waking.listen(worker)
        else:
            getattr(race, move)(worker)
            waking.collect(worker)
    waking.finish()
    assert {outcome for worker in race.workers for outcome in worker.outcomes} <= {
        Outcome.BOUND,
        Outcome.UNSCHEDULABLE,
    }
    left = free(race, nodes)
    for pods in waking.parked:
        assert sum(cpu // cpu_of(pods.specs[0]) for cpu in left) < len(pods.specs), (pods, left)


@pytest.mark.parametrize("workers", [1, 4])
def test_of_a_load_of_gangs_that_fills_a_small_cluster_none_waits_beside_all_the_room_it_needs(workers):
    """The gangs are those of `hoss bench compare`, and ask for more than there is."""
    cell = Cell(mode=Mode.SINGLE, load=Load.GANGS, workers=1, nodes=24, fill=1.2)
    trace = make_trace(cell, seed=2)
    templates, of_row = templates_by_row(trace)
    specs = [template_from_proto(template).spec for template in templates]
    chance = random.Random(1)
    race = Race(workers, list(trace.nodes), late=True, tries=1000)
    first = 0
    for job in (job for arrival in trace.arrivals for job in arrival.message.jobs):
        worker = chance.choice(race.workers)
        race.submit_runs(worker, [(specs[of_row[first]], job.replicas)], gang=True)
        first += job.replicas
        for move in chance.choices(["place", "decide", "hear", "tell"], k=2):
            getattr(race, move)(worker)
    race.finish()
    waiting = [worker.specs[told.batch_id] for worker in race.workers for told in worker.refusals]
    assert waiting
    schema = asyncio.run(race.ledger.schema())
    amounts = [np.array([dict(node.allocatable).get(name, 0) for name in schema]) for node in trace.nodes]
    for held in race.ledger.arbiters[0].reservations.values():
        amounts[held.node] -= held.requests
    for gang in waiting:
        request = {**dict(gang[0].requests), "pods": 1}
        rows = [schema.index(name) for name in request]
        each = [(free[rows] // list(request.values())).min() for free in amounts]
        assert min(each) >= 0
        assert sum(each) < len(gang)


def test_what_is_placed_and_not_proposed_yet_keeps_nobody_out_for_good():
    """It may be refused, and then there is the room that it was to have."""
    race = Race(2, nodes_of(1))
    stale, other = race.workers
    race.submit(other, pod(SMALL), 4)
    race.place(other)
    race.decide(other)
    race.submit_runs(stale, [(pod(LARGE), 2), (pod(SMALL), 1)])
    race.finish()
    assert (race.bound(other), race.bound(stale)) == (4, 1)
    assert stale.unschedulable == [pod(LARGE)] * 2
