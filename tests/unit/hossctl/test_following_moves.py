"""`hoss rebalance run` follows its moves, also where another run has begun since it looked last."""

import contextlib

import pytest

from hoss.errors import NotFound
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import Endpoints
from hossctl.rebalance import running

PLAN = {
    "kind": "RebalancePlan",
    "goal": "spread",
    "seen": {"0": 7},
    "moves": [{"pod": "default/a", "from": "n0", "to": "n1"}],
    "impossible": [],
}


def run(state, *, purpose="spread", pod="default/a"):
    moves = [
        pb.MoveStatus(pod=pod, source="n0", target="n1", state="Moved" if state == "Done" else "Waiting")
    ]
    return pb.RebalanceStatus(state=state, purpose=purpose, moves=moves, moved=int(state == "Done"))


@pytest.fixture
def followed(monkeypatch):
    """Follow PLAN beside a dispatcher that answers with these runs, one after the other, and says of the one
    before the last that it ended as `before`."""

    def follow(*runs, before=None):
        present = iter(runs)

        class Dispatcher:
            async def rebalance(self, request):
                return (before or pb.RebalanceStatus()) if request.previous else next(present)

        @contextlib.asynccontextmanager
        async def dispatcher_of(_endpoints):
            yield Dispatcher()

        monkeypatch.setattr(running, "dispatcher_of", dispatcher_of)
        monkeypatch.setattr(running, "_POLL_SECONDS", 0.0)
        return running.carry_out(Endpoints("", ""), PLAN, 1.0, 60.0, lambda *_: None)

    return follow


def test_moves_are_followed_until_they_are_done(followed):
    document = followed(run("Running"), run("Running"), run("Done"))
    assert (document["state"], document["moved"]) == ("Done", 1)


def test_moves_that_ended_before_another_run_began_are_told_as_they_ended(followed):
    other = run("Running", purpose="empty-nodes", pod="default/b")
    document = followed(run("Running"), other, before=run("Done"))
    assert (document["state"], document["purpose"], document["moved"]) == ("Done", "spread", 1)


@pytest.mark.parametrize(
    "before", [None, run("Paused"), run("Done", pod="default/c"), run("Done", purpose="fit-pending")]
)
def test_moves_whose_end_is_not_known_are_told_as_replaced(followed, before):
    other = run("Running", purpose="empty-nodes", pod="default/b")
    with pytest.raises(NotFound, match="another run has taken the place of this one: empty-nodes"):
        followed(run("Running"), other, before=before)


def test_moves_that_the_next_dispatcher_knows_nothing_of_are_told_as_lost(followed):
    with pytest.raises(NotFound, match="its journal has lost the moves"):
        followed(run("Running"), pb.RebalanceStatus())
