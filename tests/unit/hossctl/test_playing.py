"""Playing a trace: what is over, and what has gone."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import U8, U32, encode, numbered_uids
from hossctl.choices import Load, Mode
from hossctl.compare.document import Cell
from hossctl.compare.loads import make_trace
from hossctl.load.generated import lone_pods
from hossctl.load.playing import Arrival, Trace, Unplaced, left_over, play, templates_by_row
from hossctl.load.runner import Tracker

PREFIX = b"twelve-bytes"
NOWHERE = 0xFFFFFFFF


class Dispatcher:
    """Binds whatever comes; its watch tells of a deletion some time after the call was answered."""

    def __init__(self):
        self._told = asyncio.Queue()

    async def status(self):
        return SimpleNamespace(revision=1)

    async def submit_stream(self, requests):
        async for request in requests:
            pods = len(request.pods.names)
            yield pb.SubmitReply(sets=[pb.PodSet(uid_prefix=PREFIX, count=pods)])
            self._tell(pods, pb.BOUND, node=0)

    async def watch(self, revision):
        while True:
            yield await self._told.get()

    async def delete(self, namespace, *, jobs, pods):
        asyncio.get_running_loop().call_later(0.2, self._tell, len(pods), pb.DELETED)

    def _tell(self, pods, phase, node=NOWHERE):
        batch = pb.WatchBatch(
            uids=numbered_uids(PREFIX, 0, pods).tobytes(),
            phases=encode(np.full(pods, phase), U8),
            nodes=encode(np.full(pods, node), U32),
        )
        self._told.put_nowait(batch)


class Waking(Dispatcher):
    """Calls its one pod unschedulable, lets it wait for its backoff as long as it is asked, and then binds
    it."""

    def __init__(self, looks):
        super().__init__()
        self._left = looks

    async def status(self):
        self._left -= 1
        if not self._left:
            super()._tell(1, pb.BOUND, node=0)
        return SimpleNamespace(
            revision=1, pods_by_phase={"QUEUED": 0, "SCHEDULING": 0, "BACKOFF": int(self._left > 0)}
        )

    def _tell(self, pods, phase, node=NOWHERE):
        super()._tell(pods, pb.UNSCHEDULABLE)


async def test_it_is_not_over_while_a_pod_that_was_woken_waits_for_its_backoff():
    trace = Trace((), (Arrival(lone_pods(1)[0]),))
    tracker = Tracker(trace.pods)
    await play(Waking(looks=5), trace, tracker, asyncio.Event())
    assert tracker.count(pb.BOUND) == 1


def test_what_is_left_of_a_gang_is_told_by_itself_and_how_many_it_needs():
    message = pb.SubmitRequest(templates=[pb.PodTemplate()])
    for minimum in (0, 3, 3, 0):
        message.jobs.add(name=f"j{len(message.jobs)}", template=0, replicas=4, min_available=minimum)
    trace = Trace((), (Arrival(message),))
    phases = np.full(16, pb.BOUND, np.uint8)
    # The first gang whole, of the second one that was more than it needs.
    phases[[0, 15, 4, 5, 6, 7, 11]] = pb.UNSCHEDULABLE
    found = left_over(trace, templates_by_row(trace)[1], phases)
    assert found == [Unplaced(((0, 4),), 3), Unplaced(((0, 1),), 1), Unplaced(((0, 2),), 1)]


def test_what_is_left_of_a_gang_of_several_jobs_and_pods_is_told_together():
    message = pb.SubmitRequest(templates=[pb.PodTemplate()] * 2, gangs=[pb.Gang(min_available=4)] * 2)
    message.jobs.add(name="launcher", template=0, replicas=1, gang=2)
    message.jobs.add(name="workers", template=1, replicas=3, gang=2)
    message.jobs.add(name="others", template=1, replicas=2)
    message.pods.names.extend(["a", "b", "c"])
    message.pods.templates = encode([0, 0, 1], U32)
    message.pods.gangs = encode([0, 2, 2], U32)
    trace = Trace((), (Arrival(lone_pods(1)[0]), Arrival(message)))
    phases = np.full(10, pb.UNSCHEDULABLE, np.uint8)
    phases[[0, 2, 5, 6]] = pb.BOUND  # of the gang one of its workers
    found = left_over(trace, templates_by_row(trace)[1], phases)
    assert found == [Unplaced(((1, 2), (2, 3)), 3), Unplaced(((1, 1),), 1)]


@pytest.mark.parametrize("load", [Load.GANGS, Load.UNIFORM])
def test_all_of_a_gang_of_a_comparison_is_needed_and_one_pod_of_other_jobs(load):
    trace = make_trace(Cell(mode=Mode.SINGLE, load=load, workers=1, nodes=20, fill=0.9), seed=1)
    phases = np.full(trace.pods, pb.UNSCHEDULABLE, np.uint8)
    found = left_over(trace, templates_by_row(trace)[1], phases)
    assert sum(pods for group in found for _, pods in group.pods) == trace.pods
    if load is Load.GANGS:
        assert len(found) == sum(len(arrival.message.jobs) for arrival in trace.arrivals)
        assert all([pods for _, pods in group.pods] == [group.needed] for group in found)
    else:
        assert {group.needed for group in found} == {1}


async def test_it_is_over_once_the_watch_has_told_of_the_last_departure():
    trace = Trace((), (Arrival(lone_pods(1)[0], life_seconds=0.05),))
    tracker = Tracker(trace.pods)
    departed = await play(Dispatcher(), trace, tracker, asyncio.Event())
    assert (departed.pods, tracker.count(pb.DELETED), tracker.count(pb.BOUND)) == (1, 1, 0)
