"""Who looks, what they are shown, and that a dashboard that fails ends nothing else."""

import asyncio

from dispatcher.dashboard.access import DashboardAccess
from dispatcher.dashboard.broadcaster import Broadcaster, Unavailable
from dispatcher.dashboard.server import Dashboard
from dispatcher.dashboard.snapshot import DashboardSnapshot
from hoss.host import THIS_HOST


async def test_without_a_viewer_nobody_takes_looks():
    board = Broadcaster()
    wanted = asyncio.ensure_future(board.viewed())
    await asyncio.sleep(0)
    assert not wanted.done()
    with board.viewer():
        await wanted
    again = asyncio.ensure_future(board.viewed())
    await asyncio.sleep(0)
    assert not again.done()
    again.cancel()


async def test_a_look_is_forgotten_with_its_last_viewer_and_word_of_a_standby_is_not():
    board = Broadcaster()
    with board.viewer():
        with board.viewer():
            board.show(DashboardSnapshot(1, {}))
        assert board.latest is not None
    assert board.latest is None
    away = Unavailable("stands by", "other:1")
    board.show(away)
    with board.viewer():
        pass
    assert board.latest is away


async def test_a_viewer_hears_of_what_is_new_at_once_and_else_after_the_time_given():
    board = Broadcaster()
    seen = board.latest
    waiting = asyncio.ensure_future(board.other_than(seen, 60))
    await asyncio.sleep(0)
    look = DashboardSnapshot(1, {})
    board.show(look)
    assert await waiting is look
    assert await board.other_than(look, 0.001) is look


class _FailingViewModel:
    async def run(self, board: Broadcaster) -> None:
        raise ZeroDivisionError("no nodes")


async def test_a_dashboard_that_fails_says_so_and_its_term_goes_on():
    dashboard = Dashboard(DashboardAccess(clock=THIS_HOST.monotonic, rng=THIS_HOST.rng))
    async with dashboard.showing(_FailingViewModel()):
        shown = await dashboard._broadcaster.other_than(None, 10)
        assert isinstance(shown, Unavailable)
        assert "the dashboard failed and begins again" in shown.reason
        assert "no nodes" in shown.reason
    assert "has ended its term" in dashboard._broadcaster.latest.reason
