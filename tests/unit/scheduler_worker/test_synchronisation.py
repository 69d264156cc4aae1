"""When each mode reads the ledger's state, against a subscription made by hand, on virtual time."""

import asyncio

import pytest
from waiting import until

from scheduler_worker.config import SyncMode
from scheduler_worker.synchronisation import synchronisation

INTERVAL_SECONDS = 60.0

pytestmark = pytest.mark.usefixtures("virtual_time")


class Subscription:
    """Counts readings; one lasts until it is let go."""

    def __init__(self):
        self.readings = []
        self.following = False
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def follow(self):
        self.following = True
        await asyncio.Event().wait()

    async def catch_up(self, *, anew=False):
        self.readings.append(anew)
        await self.may_end.wait()


@pytest.fixture
async def running():
    tasks = []

    def run(mode):
        subscription = Subscription()
        sync = synchronisation(mode, INTERVAL_SECONDS, subscription)
        tasks.append(asyncio.ensure_future(sync.run()))
        return subscription, sync

    yield run
    for task in tasks:
        task.cancel()


async def test_push_follows_the_feed_and_never_reads_the_state(running):
    subscription, sync = running(SyncMode.PUSH)
    sync.request_refresh()
    await until(lambda: subscription.following)
    assert subscription.readings == []
    assert sync.shows_commits


async def test_pull_reads_what_happened_once_an_interval_asked_or_not(running):
    subscription, sync = running(SyncMode.PULL)
    await until(lambda: len(subscription.readings) > 3)
    assert not any(subscription.readings)
    assert sync.shows_commits


async def test_pull_does_not_read_again_before_the_interval_is_over(running):
    subscription, sync = running(SyncMode.PULL)
    await until(lambda: subscription.readings)
    sync.request_refresh()
    await asyncio.sleep(INTERVAL_SECONDS - 1)
    assert len(subscription.readings) == 1
    await asyncio.sleep(2)
    assert len(subscription.readings) == 2


async def test_on_refusal_the_state_is_read_at_the_start_and_then_only_when_pods_need_it(running):
    subscription, sync = running(SyncMode.REFUSAL)
    await until(lambda: subscription.readings and not sync.shows_commits)
    await asyncio.sleep(10 * INTERVAL_SECONDS)
    assert subscription.readings == [True]
    sync.request_refresh()
    await until(lambda: subscription.readings == [True, True])


async def test_on_refusal_whatever_is_asked_the_state_is_read_once_an_interval_at_most(running):
    subscription, sync = running(SyncMode.REFUSAL)
    await until(lambda: subscription.readings and not sync.shows_commits)
    sync.request_refresh()
    await asyncio.sleep(INTERVAL_SECONDS - 1)
    assert subscription.readings == [True]
    await asyncio.sleep(2)
    assert subscription.readings == [True, True]


async def test_on_refusal_commits_are_shown_only_by_a_reading_under_way(running):
    subscription, sync = running(SyncMode.REFUSAL)
    subscription.may_end.clear()
    await until(lambda: subscription.readings)
    assert sync.shows_commits
    subscription.may_end.set()
    await until(lambda: not sync.shows_commits)
