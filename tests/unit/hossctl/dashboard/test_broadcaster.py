"""Who looks, what they are shown, and that a dashboard that fails ends nothing else."""

import asyncio

from hoss.host import THIS_HOST
from hossctl.dashboard.access import DashboardAccess
from hossctl.dashboard.broadcaster import Broadcaster, Unavailable
from hossctl.dashboard.server import Dashboard
from hossctl.dashboard.snapshot import DashboardSnapshot


async def test_a_viewer_is_waited_for_no_longer_than_said():
    board = Broadcaster()
    waiting = asyncio.ensure_future(board.viewed(seconds=60))
    await asyncio.sleep(0)
    assert not waiting.done()
    with board.viewer():
        await waiting
    await board.viewed(seconds=0.001)


async def test_a_look_is_forgotten_with_its_last_viewer_and_what_is_wrong_is_not():
    board = Broadcaster()
    with board.viewer():
        with board.viewer():
            board.show(DashboardSnapshot(1, {}))
        assert board.latest is not None
    assert board.latest is None
    away = Unavailable("no dispatcher answers")
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


async def test_a_dashboard_that_fails_says_so_and_its_process_goes_on():
    dashboard = Dashboard(DashboardAccess(clock=THIS_HOST.monotonic, rng=THIS_HOST.rng))
    async with dashboard.showing(_FailingViewModel()):
        shown = await dashboard._broadcaster.other_than(None, 10)
        assert isinstance(shown, Unavailable)
        assert "the dashboard failed and begins again" in shown.reason
        assert "no nodes" in shown.reason
    assert "this dashboard ends" in dashboard._broadcaster.latest.reason
