"""What viewers are told while the dispatcher does not answer, and once it does."""

import asyncio
import random

import pytest
import structlog

from hoss.errors import TransportError
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.dashboard import view_model
from hossctl.dashboard.broadcaster import Broadcaster, Unavailable
from hossctl.dashboard.snapshot import PHASES, DashboardSnapshot
from hossctl.dashboard.view_model import NO_DISPATCHER, SLOW_DISPATCHER, ViewModel


class Answers:
    """A dispatcher's client, and a resolver's, as far as a sample asks. `down`: nothing answers. `ready`:
    until it is set, the dispatcher works on its answer."""

    def __init__(self) -> None:
        self.down = False
        self.ready = asyncio.Event()
        self.ready.set()
        self.stub = self

    async def status(self) -> pb.DispatcherStatus:
        await self.ready.wait()
        if self.down:
            raise TransportError("nobody there")
        phases = [pb.PhaseTimes(phase=phase, bounds_seconds=[1.0], counts=[0, 0]) for phase in PHASES]
        return pb.DispatcherStatus(term=1, phases=phases, policy=pb.Policy(version=1))

    async def list_workers(self) -> list[pb.WorkerInfo]:
        return []

    async def conflicts(self) -> pb.Conflicts:
        return pb.Conflicts()

    async def work_timeline(self, after: int) -> pb.WorkTimeline:
        return pb.WorkTimeline(last=after)

    async def get_policy(self) -> pb.Policy:
        return pb.Policy(version=1, yaml="kind: SchedulingPolicy")

    async def pod_summary(self) -> pb.PodSummary:
        return pb.PodSummary(pods_by_phase={"BOUND": 1})

    def Feed(self, _request):  # noqa: N802 - the contract's name
        return NoMessages()


class NoMessages:
    """A feed that is at its end."""

    def __aiter__(self):
        return self

    async def __anext__(self):
        raise StopAsyncIteration

    def cancel(self) -> None:
        pass


def _view_model(answers: Answers) -> ViewModel:
    return ViewModel(answers, answers, clock=lambda: 1.0, unix_clock=lambda: 1.0, rng=random.Random(1))


async def test_viewers_are_told_that_no_dispatcher_answers_and_shown_what_is_new_once_one_does() -> None:
    answers, board = Answers(), Broadcaster()
    model = _view_model(answers)
    with board.viewer():
        answers.down = True
        await model._look(board)
        assert isinstance(board.latest, Unavailable)
        assert board.latest.reason.startswith(NO_DISPATCHER)
        answers.down = False
        await model._look(board)
        assert isinstance(board.latest, DashboardSnapshot)
        assert board.latest.sections["queues"] == {"BOUND": 1}


async def test_why_the_dashboard_waits_is_logged_once_and_anew_after_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(view_model, "_RETRY_SECONDS", 0)
    answers = Answers()
    model = _view_model(answers)
    with structlog.testing.capture_logs() as lines:
        for down in (True, True, False, True):
            answers.down = down
            await model._look(Broadcaster())
    assert [line["error"] for line in lines if line["event"] == "dashboard_waits"] == ["nobody there"] * 2


async def test_a_dispatcher_that_takes_long_is_not_called_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_model, "PATIENCE_SECONDS", 0)
    answers, board = Answers(), Broadcaster()
    answers.ready.clear()
    with board.viewer():
        looking = asyncio.ensure_future(_view_model(answers)._look(board))
        assert await board.other_than(board.latest, 10) == Unavailable(SLOW_DISPATCHER)
        answers.ready.set()
        await looking
        assert isinstance(board.latest, DashboardSnapshot)


async def test_what_is_over_before_anybody_looks_is_told_to_nobody() -> None:
    answers, board = Answers(), Broadcaster()
    model = _view_model(answers)
    answers.down = True
    await model._look(board)
    answers.down = False
    await model._look(board)
    assert board.latest is None
    (policy,) = model.policies()["policies"]  # which is kept without viewers
    assert policy["version"] == 1
