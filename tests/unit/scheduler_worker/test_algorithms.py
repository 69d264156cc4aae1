"""Algorithms that place whole batches in a worker: what they place, what they cannot take, and what becomes
of pods whose algorithm is wrong, late or stuck."""

import asyncio
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from accounts_in_memory import GIB
from waiting import until

from hoss.errors import ConfigError
from hoss.model.placing import NO_NODE
from hoss.model.pod import DeviceRequest, PodAffinity, PodAffinityTerm
from hoss.model.selectors import LabelSelector, Requirement
from hoss.wire.columns import NO_CARD
from scheduler_worker.calls_in_threads import AlgorithmStuck, CalledInThread
from scheduler_worker.config import chosen_algorithm
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.messages import Outcome
from scheduler_worker.core.placement.algorithms import (
    BestFitPlacement,
    CalledInPlace,
    RandomPlacement,
    made_algorithm,
)
from scheduler_worker.core.placement.fgd import FgdPlacement
from scheduler_worker.core.plugins import default_profile


def room(cpu):
    return {"cpu": cpu, "memory": 8 * GIB, "pods": 110}


class Answering:
    """Answers as it is told to, and keeps the questions."""

    def __init__(self, answer):
        self.answer = answer
        self.batches = []

    def place(self, batch, snapshot, budget):
        self.batches.append(batch)
        return self.answer(batch, snapshot)


@pytest.fixture
def harness_with(make_ledger, harness_of):
    def make(algorithm, ledger=None, nodes=4, calls=None):
        harness = harness_of(ledger or make_ledger(nodes))
        calls = calls or CalledInPlace("mine", algorithm)
        scheduler = Scheduler(NodeInfoCache(), default_profile(), np.random.default_rng(1), algorithm=calls)
        scheduler.cache.apply_feed(harness.ledger.snapshot())
        harness.scheduler = scheduler
        return harness

    return make


@pytest.mark.parametrize("algorithm", [RandomPlacement(), BestFitPlacement(), FgdPlacement()])
def test_an_algorithm_places_every_pod_that_fits_and_the_others_have_the_reasons_of_the_filters(
    harness_with, make_ledger, make_pod, algorithm
):
    harness = harness_with(algorithm, make_ledger(3, allocatable=room(1000)))
    harness.submit((make_pod(400), 5), (make_pod(300), 4))
    harness.settle(harness.place())
    outcomes = harness.outcomes()
    assert all(requested[0] <= 1000 for requested in harness.ledger.requested.values())
    unplaced = [reason for code, _, reason in outcomes if code == Outcome.UNSCHEDULABLE]
    assert len(outcomes) == 9
    assert all("Insufficient cpu" in reason for reason in unplaced)
    assert {code for code, _, _ in outcomes} <= {Outcome.BOUND, Outcome.UNSCHEDULABLE}
    assert sum(code == Outcome.BOUND for code, _, _ in outcomes) >= 6


def test_best_fit_fills_the_node_with_the_least_room_left(harness_with, make_ledger, make_pod):
    ledger = make_ledger()
    for index, cpu in enumerate((4000, 1000, 2000)):
        ledger.add(index, allocatable=room(cpu))
    harness = harness_with(BestFitPlacement(), ledger)
    harness.submit((make_pod(500), 4))
    harness.settle(harness.place())
    assert [node for _, node, _ in harness.outcomes()] == [1, 1, 2, 2]


def test_the_batch_of_an_algorithm_holds_all_runs_that_suit_it_at_once(harness_with, make_pod):
    algorithm = Answering(lambda batch, _: np.zeros(batch.pods, np.intp))
    harness = harness_with(algorithm)
    harness.submit((make_pod(100), 2), (make_pod(200), 1), (make_pod(300), 3))
    harness.settle(harness.place())
    assert [[run.count for run in batch.runs] for batch in algorithm.batches] == [[2, 1, 3]]
    assert [node for _, node, _ in harness.outcomes()] == [0] * 6


def test_pods_that_keep_each_other_away_are_ranked(harness_with, make_pod):
    algorithm = Answering(lambda batch, _: np.zeros(batch.pods, np.intp))
    harness = harness_with(algorithm)
    apart = LabelSelector((Requirement("app", "In", ("a",)),))
    term = PodAffinityTerm("kubernetes.io/hostname", apart, namespaces=("default",))
    spec = make_pod(
        100, namespace="default", labels=(("app", "a"),), pod_affinity=PodAffinity(anti_required=(term,))
    )
    harness.submit((make_pod(100), 2), (spec, 2))
    harness.settle(harness.place())
    assert [code for code, _, _ in harness.outcomes()] == [Outcome.BOUND] * 4
    assert [[run.count for run in batch.runs] for batch in algorithm.batches] == [[2]]


WRONG = {
    "overfilled node": lambda batch, _: np.zeros(batch.pods, np.intp),
    "and there are 4 nodes": lambda batch, _: np.full(batch.pods, 17),
    "answered with shape (1,)": lambda _batch, _: np.zeros(1, np.intp),
    "node indexes are whole numbers": lambda batch, _: np.full(batch.pods, 0.5),
    "ZeroDivisionError": lambda _batch, _: 1 // 0,
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_answer_names_the_algorithm_and_its_pods_queue_again(
    harness_with, make_ledger, make_pod, text
):
    harness = harness_with(Answering(WRONG[text]), make_ledger(4, allocatable=room(1000)))
    harness.submit((make_pod(600), 3))
    assert harness.place() == []
    outcomes = harness.outcomes()
    assert [code for code, _, _ in outcomes] == [Outcome.CONFLICT] * 3
    assert all("algorithm mine failed: " in reason and text in reason for _, _, reason in outcomes)
    (failure,) = harness.scheduler.take_failures()
    assert failure.plugin == "mine"
    assert harness.scheduler.idle


def test_pods_on_which_an_algorithm_fails_keep_no_others_from_being_placed(harness_with, make_pod):
    def answer(batch, _):
        if any(run.request[0] == 200 for run in batch.runs):
            raise RuntimeError("two hundred")
        return np.zeros(batch.pods, np.intp)

    harness = harness_with(Answering(answer))
    harness.submit((make_pod(100), 2), (make_pod(200), 1), (make_pod(300), 1))
    harness.settle(harness.place())
    bound, conflict = Outcome.BOUND, Outcome.CONFLICT
    assert [code for code, _, _ in harness.outcomes()] == [bound, bound, conflict, bound]


def test_pods_that_an_algorithm_leaves_out_though_they_fit_queue_again_and_say_so(harness_with, make_pod):
    harness = harness_with(Answering(lambda batch, _: np.full(batch.pods, NO_NODE)))
    harness.submit((make_pod(100), 2))
    assert harness.place() == []
    assert (
        harness.outcomes() == [(Outcome.CONFLICT, None, "algorithm mine named no node; 4 are feasible")] * 2
    )


class Asked:
    """Calls whose answer comes when the test says so."""

    name = "mine"

    def __init__(self, algorithm):
        self._inner = CalledInPlace("mine", algorithm)
        self.places_cards = self._inner.places_cards
        self.ready = self.abandoned = False

    def ask(self, batch, snapshot):
        self._inner.ask(batch, snapshot)

    def take(self):
        return self._inner.take() if self.ready else None

    def abandon(self):
        self.abandoned = True
        self._inner.abandon()


def test_what_no_longer_fits_when_the_answer_comes_is_asked_again(harness_with, make_ledger, make_pod):
    def emptiest(batch, snapshot):
        return np.full(batch.pods, int(snapshot.free[0].argmax()))

    algorithm, ledger = Answering(emptiest), make_ledger(2, allocatable=room(1000))
    calls = Asked(algorithm)
    harness = harness_with(algorithm, ledger, calls=calls)
    harness.submit((make_pod(600), 1))
    assert harness.place() == []
    assert not harness.scheduler.idle
    assert harness.scheduler.backlog == 1
    harness.cache.apply_feed(ledger.reserve([0], np.array([[600, GIB]])))
    calls.ready = True
    harness.settle(harness.place())
    assert [(code, node) for code, node, _ in harness.outcomes()] == [(Outcome.BOUND, 1)]
    assert len(algorithm.batches) == 2


@pytest.mark.parametrize("end", ["drain", "drop_everything"])
def test_pods_at_the_algorithm_are_given_back_or_dropped_and_a_late_answer_changes_nothing(
    harness_with, make_pod, end
):
    algorithm = Answering(lambda batch, _: np.zeros(batch.pods, np.intp))
    calls = Asked(algorithm)
    harness = harness_with(algorithm, calls=calls)
    harness.submit((make_pod(100), 2))
    assert harness.place() == []
    getattr(harness.scheduler, end)()
    calls.ready = True
    assert harness.place() == []
    assert calls.abandoned
    assert harness.scheduler.idle
    expected = [(Outcome.RETURNED, None, "")] * 2 if end == "drain" else []
    assert harness.outcomes() == expected


# The thread of a service


def question(pods=1):
    return SimpleNamespace(pods=pods, runs=()), SimpleNamespace(
        cards_used=None,
        allocatable=np.zeros((1, 0)),
        requested=np.zeros((1, 0)),
        free=np.zeros((1, 0)),
        specs=(),
    )


async def test_a_thread_answers_while_the_loop_goes_on_and_an_abandoned_answer_is_dropped():
    gate, seconds = threading.Event(), []

    def answer(batch, _):
        assert gate.wait(60)
        return np.full(batch.pods, NO_NODE)

    calls = CalledInThread("mine", Answering(answer), clock=lambda: 5.0)
    calls.connect(seconds.append)
    calls.ask(*question(pods=1))
    assert calls.take() is None
    calls.abandon()
    calls.ask(*question(pods=2))
    gate.set()
    await until(lambda: _is(seconds == [0.0]))
    assert calls.take().nodes.tolist() == [NO_NODE] * 2
    assert calls.take() is None


async def _is(value):
    return value


async def test_an_algorithm_that_does_not_answer_in_its_time_is_named():
    gate, now = threading.Event(), [0.0]
    calls = CalledInThread(
        "mine", Answering(lambda *_: gate.wait(60)), clock=lambda: now[0], limit_seconds=10
    )
    calls.connect(lambda _: None)
    calls.ask(*question(pods=7))
    now[0] = 10.0
    calls.check()
    now[0] = 10.5
    calls.abandon()
    try:
        with pytest.raises(AlgorithmStuck, match="algorithm mine did not place 7 pods in 10 s"):
            calls.check()
    finally:
        gate.set()
        await asyncio.sleep(0)


# By name


def test_algorithms_are_named_in_the_configuration():
    assert chosen_algorithm("ranking") is None
    assert isinstance(chosen_algorithm("best-fit"), BestFitPlacement)
    name = "scheduler_worker.core.placement.algorithms:RandomPlacement"
    assert isinstance(chosen_algorithm(name), RandomPlacement)


def test_an_algorithm_that_exits_is_named_and_its_worker_goes_on(harness_with, make_pod):
    def leave(_batch, _snapshot):
        sys.exit("no licence")

    harness = harness_with(Answering(leave))
    harness.submit((make_pod(cpu=100), 2))
    assert harness.place() == []
    assert {reason for _, _, reason in harness.outcomes()} == {
        "algorithm mine failed: SystemExit: no licence"
    }


class Carding(Answering):
    """The same, for pods with cards as well."""

    places_cards = True


HALF, TWO = DeviceRequest(1, 500), DeviceRequest(2, 1000)


def test_an_algorithm_that_places_cards_sees_them_and_is_asked_about_such_pods(
    harness_with, make_ledger, make_pod
):
    seen = []

    def second(batch, snapshot):
        seen.append(snapshot.cards_used[:, :3].tolist())
        return np.ones(batch.pods, int)

    ledger = make_ledger(2, cards=2, allocatable=room(64_000))
    ledger.cards[0][:2] = 300
    harness = harness_with(Carding(second), ledger)
    harness.submit((make_pod(cpu=100, devices=HALF), 3))
    (proposal,) = harness.place()
    assert seen == [[[300, 300, NO_CARD], [0, 0, NO_CARD]]]
    assert proposal.candidates[:, 0].tolist() == [1, 1, 1]
    assert proposal.devices.tolist() == [[1, 500]]
    assert harness.cache.cards.used[1, :2].tolist() == [1000, 500]


def test_pods_with_cards_are_ranked_where_the_algorithm_does_not_place_them(
    harness_with, make_ledger, make_pod
):
    algorithm = Answering(lambda batch, _snapshot: np.zeros(batch.pods, int))
    harness = harness_with(algorithm, make_ledger(2, cards=2, allocatable=room(64_000)))
    harness.submit((make_pod(cpu=100, devices=HALF), 2))
    (proposal,) = harness.place()
    assert len(proposal.uids) == 2
    assert algorithm.batches == []


def test_an_algorithm_that_overfills_cards_is_named(harness_with, make_ledger, make_pod):
    algorithm = Carding(lambda batch, _snapshot: np.zeros(batch.pods, int))
    harness = harness_with(algorithm, make_ledger(2, cards=2, allocatable=room(64_000)))
    harness.submit((make_pod(cpu=100, devices=TWO), 2))
    assert harness.place() == []
    reason = "overfilled the cards of node node-0: 2 pods of 2 times 1000 thousandths of a card, and 1 fit"
    assert {text for _, _, text in harness.outcomes()} == {f"algorithm mine failed: ValueError: {reason}"}


def test_cards_that_went_meanwhile_are_asked_about_again(harness_with, make_ledger, make_pod):
    ledger = make_ledger(2, cards=1, allocatable=room(64_000))
    algorithm = Carding(lambda batch, snapshot: snapshot.cards_used[:, 0].argsort()[: batch.pods])
    calls = Asked(algorithm)
    harness = harness_with(algorithm, ledger, calls=calls)
    harness.submit((make_pod(cpu=100, devices=DeviceRequest(1, 1000)), 1))
    assert harness.place() == []
    ledger.cards[0][0] = 1000
    harness.cache.apply_feed(ledger.reserve([0], [[100, 0, 0, 1]]))
    calls.ready = True
    (proposal,) = harness.place()
    assert len(algorithm.batches) == 2
    assert proposal.candidates[:, 0].tolist() == [1]


FITTING = {HALF: 8, TWO: 2, DeviceRequest(1, 1000): 4, DeviceRequest(2, 300): 6}


@pytest.mark.parametrize("algorithm", [RandomPlacement(), BestFitPlacement(), FgdPlacement()])
@pytest.mark.parametrize("devices", FITTING)
def test_algorithms_of_hoss_fill_all_cards_and_no_more(
    harness_with, make_ledger, make_pod, algorithm, devices
):
    fitting = FITTING[devices]
    harness = harness_with(algorithm, make_ledger(2, cards=2, allocatable=room(64_000)))
    placed = 0
    for _ in range(fitting + 2):
        harness.submit((make_pod(cpu=100, devices=devices), 1))
        placed += sum(len(proposal.uids) for proposal in harness.place())
    assert placed == fitting


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fastest", "'fastest' is none of best-fit, fgd, random, ranking"),
        ("json:nothing", "algorithm json:nothing: has no nothing"),
        ("nowhere.py:Nothing", "algorithm nowhere.py:Nothing: is no file"),
        ("nothing:Nothing", "cannot be loaded from nothing:Nothing: ModuleNotFoundError"),
        ("json:JSONDecoder", "is JSONDecoder, which has no method place"),
        ("fractions:Fraction.from_float", "cannot be made: TypeError"),
    ],
)
def test_a_name_that_is_no_algorithm_is_refused_with_the_reason(name, text):
    with pytest.raises(ConfigError, match=text):
        chosen_algorithm(name)


def test_an_algorithm_from_outside_cannot_take_a_name_of_hoss():
    with pytest.raises(ConfigError, match="'random' is an algorithm already"):
        made_algorithm("random", {"random": RandomPlacement})
