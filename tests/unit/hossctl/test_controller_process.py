"""What the controller's process tells the dispatcher about pods that wait for its moves before they preempt.
The platform is empty, so no move ever helps."""

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

from hoss.model.cluster import StorageUpdate
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.rebalance.controlling import ControllerProcess
from hossctl.rebalance.policy import RebalancePolicy
from scheduler_worker.core.plugins import default_profile

START = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)
WINDOW = [{"begin": "11:00", "end": "13:00"}]


async def nothing(*_, **__):
    for _ in ():
        yield


async def an_empty_list():
    return []


class Dispatcher:
    """Keeps the last report, and how often the pods were read."""

    def __init__(self):
        self.report = None
        self.paused = False
        self.looks = 0

    async def report_rebalancing(self, report):
        self.report = report
        return pb.RebalanceStatus(controller=pb.RebalanceController(paused=self.paused))

    def list_pods(self, **_):
        self.looks += 1
        return nothing()

    async def list_budgets(self):
        return await an_empty_list()

    async def list_objects(self):
        return await an_empty_list()

    async def list_storage(self):
        return StorageUpdate(complete=True)


class Bench:
    def __init__(self, **policy):
        self.now = START
        self.dispatcher = Dispatcher()
        resolver = SimpleNamespace(reservations=nothing, feed_as_of_now=nothing)
        document = {"goals": [{"goal": "fit-pending"}], "beforePreemption": {"upToPriority": 7}, **policy}
        self.process = ControllerProcess(
            RebalancePolicy.model_validate(document),
            SimpleNamespace(dispatcher=self.dispatcher, resolver=resolver),
            default_profile(),
            identity="c",
            clock=lambda: self.now,
        )
        self.process._controller.begin_pass(self.now)  # the next pass is five minutes away

    async def step(self, hold=0):
        """The dispatcher says that pods wait, up to this hold; returns the next report."""
        await self.process._step(pb.RebalanceStatus(preemption_hold=hold))
        await self.process._report()
        return self.dispatcher.report

    def pass_time(self, seconds):
        self.now += timedelta(seconds=seconds)


def wanted(report):
    return report.preemption_wait_seconds, report.preemption_wait_up_to_priority


async def test_pods_wait_for_a_look_and_no_longer_where_it_finds_no_moves():
    bench = Bench()
    await bench.process._report()
    assert wanted(bench.dispatcher.report) == (0, 0)  # it does not know yet whether it may move anything
    assert wanted(await bench.step()) == (30, 7)
    assert bench.dispatcher.looks == 0
    assert (await bench.step(hold=5)).considered_hold == 5
    assert bench.dispatcher.looks == 1


async def test_looks_for_pods_that_wait_are_some_seconds_apart():
    bench = Bench()
    await bench.step(hold=5)
    assert (await bench.step(hold=6)).considered_hold == 5
    bench.pass_time(5.0)
    assert (await bench.step(hold=6)).considered_hold == 6
    bench.pass_time(5.0)
    await bench.step(hold=6)
    assert bench.dispatcher.looks == 2


async def test_nobody_waits_while_nothing_may_be_moved():
    bench = Bench(windows=WINDOW)
    assert wanted(await bench.step()) == (30, 7)
    bench.dispatcher.paused = True
    await bench.process._report()
    assert wanted(await bench.step(hold=5)) == (0, 0)
    bench.dispatcher.paused = False
    await bench.process._report()
    bench.pass_time(3600.0)  # the window is over
    report = await bench.step(hold=5)
    assert (wanted(report), report.considered_hold) == ((0, 0), 0)


async def test_without_the_field_in_its_policy_pods_preempt_at_once():
    bench = Bench(beforePreemption=None)
    report = await bench.step(hold=5)
    assert (wanted(report), report.considered_hold, bench.dispatcher.looks) == ((0, 0), 0, 0)
