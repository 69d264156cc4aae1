"""Pre-bind plugins prepare pods that the ledger has reserved, before they are answered as bound."""

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest

from hoss.model.conflicts import ConflictRule
from scheduler_worker.calls_in_threads import PreBindStuck, PreparedInThread
from scheduler_worker.core.cycle.pre_binding import PreBindQuestion, prepare
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.framework.extension_points import PreBindPlugin, ReservedBatch, Unready
from scheduler_worker.core.framework.registry import Weighted
from scheduler_worker.core.messages import Outcome
from scheduler_worker.core.plugins import DEFAULT_PLUGINS, REGISTRY
from scheduler_worker.core.work import GangInHand

CONFLICT_RESOURCE = 3
BOUND, UNRESERVED = Outcome.BOUND, Outcome.UNRESERVED


class Says(PreBindPlugin):
    """Does what it is told, and keeps what it saw."""

    name = "Says"

    def __init__(self, act):
        self._act = act
        self.seen, self.undone, self.fails_to_undo = [], [], False

    def pre_bind(self, pods):
        self.seen.append(pods)
        return self._act(pods)

    def unreserve(self, pods):
        if self.fails_to_undo:
            raise RuntimeError("the server is away")
        self.undone.append(pods)


class Held:
    """Keeps each question until it is told to answer."""

    def __init__(self, plugins):
        self._plugins = plugins
        self.questions, self._answer = [], None

    def ask(self, question):
        self.questions.append(question)

    def answer(self):
        self._answer = prepare(self.questions[-1], self._plugins)

    def take(self):
        answer, self._answer = self._answer, None
        return answer

    def abandon(self):
        self._answer = None


@pytest.fixture
def harness_with(harness_of, make_ledger):
    """With these acts as plugins; `calls` answers when it is told."""

    def make(*acts):
        ledger = make_ledger()
        for node in range(3):
            ledger.add(node)
        harness = harness_of(ledger)
        plugins = {f"Says{number}": Says(act) for number, act in enumerate(acts)}
        registry = REGISTRY.extended({name: (lambda made=made: made) for name, made in plugins.items()})
        profile = registry.profile((*DEFAULT_PLUGINS, *map(Weighted, plugins)))
        calls = Held(profile.pre_binds)
        harness.scheduler = Scheduler(harness.cache, profile, np.random.default_rng(1), pre_binds=calls)
        return harness, calls, *plugins.values()

    return make


def reserve(harness):
    """Have everything reserved that can be placed, and begin to prepare it."""
    harness.settle(harness.place())
    harness.scheduler.pre_bind()


def prepared(harness, calls):
    """Everything that is asked is answered; the outcomes."""
    calls.answer()
    harness.scheduler.pre_bind()
    return [(code, reason) for code, _, reason in harness.outcomes()]


def position(*at):
    return lambda pods: Unready("no licence is free", np.isin(np.arange(len(pods.classes)), at))


def test_reserved_pods_are_bound_only_once_they_are_prepared(harness_with, make_pod):
    harness, calls, plugin = harness_with(lambda _pods: None)
    harness.submit((make_pod(cpu=100), 2), (make_pod(cpu=600), 1))
    reserve(harness)
    assert harness.outcomes() == []
    assert not harness.scheduler.idle
    assert prepared(harness, calls) == [(BOUND, "")] * 3
    assert harness.scheduler.idle
    [seen] = plugin.seen
    assert [dict(seen.specs[at].requests)["cpu"] for at in seen.classes] == [100, 100, 600]
    assert {spec.name for spec in seen.node_specs} <= {"node-0", "node-1", "node-2"}
    assert len(seen.uids) == len(seen.nodes) == 3
    assert plugin.undone == []


def test_what_is_not_ready_goes_back_with_the_reason_and_its_node_and_is_undone(harness_with, make_pod):
    harness, calls, plugin = harness_with(position(1))
    harness.submit((make_pod(cpu=100), 3))
    reserve(harness)
    calls.answer()
    harness.scheduler.pre_bind()
    [columns] = harness.scheduler.take_outcomes()
    assert sorted(zip(columns.positions.tolist(), columns.codes.tolist(), strict=True)) == [
        (0, BOUND),
        (1, UNRESERVED),
        (2, BOUND),
    ]
    assert (columns.nodes != 0xFFFFFFFF).all(), "the dispatcher must know where to release it"
    assert columns.commits, "and up to when"
    assert columns.reason_texts == ("no licence is free",)
    assert columns.refused_by == (frozenset({"Says0"}),)
    [undone] = plugin.undone
    assert undone.uids.tobytes() == plugin.seen[0].uids[1:2].tobytes()


def test_commits_are_told_with_their_pods_and_not_with_earlier_answers_of_the_same_work(
    harness_with, make_pod
):
    """A confirmation before a pod is ready would make it bound for whoever takes over."""
    harness, calls, _ = harness_with(lambda _pods: None)
    harness.submit((make_pod(cpu=100), 1), (make_pod(cpu=10**6), 1))
    reserve(harness)
    [early] = harness.scheduler.take_outcomes()
    assert (early.codes.tolist(), early.commits) == ([Outcome.UNSCHEDULABLE], ())
    calls.answer()
    harness.scheduler.pre_bind()
    [late] = harness.scheduler.take_outcomes()
    assert late.codes.tolist() == [BOUND]
    assert len(late.commits) == 1


def test_plugins_are_asked_in_turn_about_what_those_before_have_prepared(harness_with, make_pod):
    harness, calls, first, second = harness_with(position(0), position(0))
    harness.submit((make_pod(cpu=100), 3))
    reserve(harness)
    assert [code for code, _ in prepared(harness, calls)] == [UNRESERVED, UNRESERVED, BOUND]
    assert [len(pods.classes) for pods in (*first.seen, *second.seen)] == [3, 2]
    assert [len(pods.classes) for pods in (*first.undone, *second.undone)] == [2, 2]


def test_what_is_reserved_meanwhile_is_in_the_next_question(harness_with, make_pod):
    harness, calls, _ = harness_with(lambda _pods: None)
    for _ in range(3):
        harness.submit((make_pod(cpu=100), 2))
        reserve(harness)
    assert [len(question.pods.classes) for question in calls.questions] == [2]
    assert [code for code, _ in prepared(harness, calls)] == [BOUND] * 2
    assert [len(question.pods.classes) for question in calls.questions] == [2, 4]
    assert [code for code, _ in prepared(harness, calls)] == [BOUND] * 4


def test_of_a_gang_below_its_minimum_all_go_back_and_are_undone(harness_with, make_pod):
    harness, calls, plugin = harness_with(position(1))
    harness.submit((make_pod(cpu=100), 3), gang=GangInHand("trio", 3))
    reserve(harness)
    alone = "no licence is free"
    together = f"{alone} (it goes together with others)"
    assert prepared(harness, calls) == [(UNRESERVED, why) for why in (together, alone, together)]
    assert [len(pods.classes) for pods in plugin.undone] == [3]


def test_a_gang_with_its_minimum_stays(harness_with, make_pod):
    harness, calls, _ = harness_with(position(1))
    harness.submit((make_pod(cpu=100), 3), gang=GangInHand("trio", 2))
    reserve(harness)
    assert [code for code, _ in prepared(harness, calls)] == [BOUND, UNRESERVED, BOUND]


def test_more_pods_of_a_gang_that_went_back_go_back_too(harness_with, make_pod):
    """They were reserved while its first ones were prepared, and the gang had its minimum then."""
    harness, calls, _ = harness_with(lambda pods: position(0)(pods) if len(pods.classes) > 1 else None)
    gang = GangInHand("trio", 2)
    harness.submit((make_pod(cpu=100), 2), (make_pod(cpu=200), 1), gang=gang)
    [whole] = harness.place()
    verdicts, _ = harness.ledger.commit(whole)
    one_refused = verdicts.verdicts.copy()
    one_refused[0] = CONFLICT_RESOURCE  # placed again, as an ordinary pod: the gang has its minimum
    harness.scheduler.settle(whole.batch_id, replace(verdicts, verdicts=one_refused))
    harness.scheduler.pre_bind()
    again = harness.place()
    assert sum(len(proposal.uids) for proposal in again) == 1
    harness.settle(again)
    assert [code for code, _ in prepared(harness, calls)] == [UNRESERVED] * 2
    assert [code for code, _ in prepared(harness, calls)] == [UNRESERVED]


def test_of_work_that_is_all_or_nothing_a_run_goes_back_whole(harness_with, make_pod):
    harness, calls, _ = harness_with(position(0))
    rule = ConflictRule(all_or_nothing=True)
    harness.submit((make_pod(cpu=600), 2), (make_pod(cpu=100), 2), conflicts=rule)
    reserve(harness)
    assert [code for code, _ in prepared(harness, calls)] == [UNRESERVED] * 2 + [BOUND] * 2


def test_another_epoch_drops_what_is_being_prepared(harness_with, make_pod):
    harness, calls, _ = harness_with(lambda _pods: None)
    harness.submit((make_pod(cpu=100), 2))
    reserve(harness)
    harness.scheduler.drop_everything()
    assert harness.scheduler.idle
    calls.answer()
    harness.scheduler.pre_bind()
    assert harness.outcomes() == []


def test_a_node_that_was_removed_meanwhile_holds_nothing_to_be_prepared(harness_with, make_pod):
    harness, calls, plugin = harness_with(lambda _pods: None)
    harness.submit((make_pod(cpu=100), 1))
    harness.settle(harness.place())
    for node in range(3):
        harness.cache.catalogue.remove(node)
    harness.scheduler.pre_bind()
    assert [(code, reason) for code, _, reason in harness.outcomes()] == [
        (UNRESERVED, "its node was removed after it was reserved")
    ]
    assert calls.questions == []
    assert plugin.seen == []


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda _pods: 1 / 0, "plugin Says0 failed: ZeroDivisionError: division by zero"),
        (lambda _pods: "yes", "plugin Says0 failed: TypeError: answered with 'yes', which is no Unready"),
        (
            lambda _pods: Unready("no", np.ones(7, np.bool_)),
            "plugin Says0 failed: ValueError: answered with shape (7,) for 2 nodes",
        ),
    ],
)
def test_a_plugin_that_fails_is_named_and_its_pods_go_back(harness_with, make_pod, act, said):
    harness, calls, _ = harness_with(act)
    harness.submit((make_pod(cpu=100), 2))
    reserve(harness)
    assert prepared(harness, calls) == [(UNRESERVED, said)] * 2
    [failure] = harness.scheduler.take_failures()
    assert failure.plugin == "Says0"
    assert harness.scheduler.idle


def test_a_failure_to_undo_is_told_and_changes_nothing(harness_with, make_pod):
    harness, calls, plugin = harness_with(position(0))
    plugin.fails_to_undo = True
    harness.submit((make_pod(cpu=100), 2))
    reserve(harness)
    assert [code for code, _ in prepared(harness, calls)] == [UNRESERVED, BOUND]
    [failure] = harness.scheduler.take_failures()
    assert "the server is away" in str(failure)


def test_once_a_plugin_is_stuck_all_go_back_also_later_ones(harness_with, make_pod):
    harness, _, _ = harness_with(lambda _pods: None)
    harness.submit((make_pod(cpu=100), 2))
    reserve(harness)
    harness.submit((make_pod(cpu=100), 1))
    harness.settle(harness.place())
    harness.scheduler.pre_bind_stuck("plugin Says0 did not answer")
    assert [(code, reason) for code, _, reason in harness.outcomes()] == [
        (UNRESERVED, "plugin Says0 did not answer")
    ] * 3
    harness.submit((make_pod(cpu=100), 1))
    reserve(harness)
    assert [code for code, _, _ in harness.outcomes()] == [UNRESERVED]
    assert harness.scheduler.idle


# In threads


def question_of(pods):
    return PreBindQuestion(pods, ((len(pods.classes), 0),))


@pytest.fixture
def pods(make_pod):
    none = np.zeros(2, np.intp)
    return ReservedBatch((make_pod(),), none, np.zeros((2, 16), np.uint8), (), none)


async def test_plugins_compute_in_a_thread_and_the_answer_is_told(pods):
    began, go_on = threading.Event(), threading.Event()

    def wait(_pods):
        began.set()
        assert go_on.wait(60)

    calls = PreparedInThread([Says(wait)], clock=lambda: 5.0)
    answered = asyncio.get_running_loop().create_future()
    calls.connect(answered.set_result)
    calls.ask(question_of(pods))
    await asyncio.to_thread(began.wait)
    assert calls.take() is None
    go_on.set()
    await answered
    assert calls.take() == ((), ())
    calls.check()


async def test_a_plugin_without_an_answer_in_time_is_named(pods):
    began, go_on, now = threading.Event(), threading.Event(), [0.0]

    def wait(_pods):
        began.set()
        assert go_on.wait(60)

    calls = PreparedInThread([Says(wait)], clock=lambda: now[0], limit_seconds=3.0)
    calls.connect(lambda _seconds: None)
    calls.ask(question_of(pods))
    await asyncio.to_thread(began.wait)
    now[0] = 2.9
    calls.check()
    now[0] = 3.1
    with pytest.raises(PreBindStuck, match="plugin Says did not prepare 2 pods in 3 s"):
        calls.check()
    go_on.set()


async def test_what_was_prepared_for_nobody_is_undone(pods):
    undone = asyncio.Event()
    loop, plugin = asyncio.get_running_loop(), Says(lambda _pods: None)
    plugin.unreserve = lambda _pods: loop.call_soon_threadsafe(undone.set)
    calls = PreparedInThread([plugin], clock=lambda: 5.0)
    calls.connect(lambda _seconds: pytest.fail("nobody wants this answer"))
    calls.ask(question_of(pods))
    calls.abandon()
    await undone.wait()
    assert calls.take() is None
