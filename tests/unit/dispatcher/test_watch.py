"""Watches of many pods: in messages of a bounded size, and as of one moment."""

import asyncio

import numpy as np
import pytest

from dispatcher.api import watch as watches
from dispatcher.api.tenancy import TenantView
from dispatcher.api.watch import Watch
from dispatcher.core import messages as m
from dispatcher.core.pods.table import Phase
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import U8, decode, decode_uids


@pytest.fixture(autouse=True)
def _small_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "STATES_PODS", 4)
    monkeypatch.setattr(watches, "EVENTS_PODS", 4)


@pytest.fixture
def watch(bench):
    def begin(since_revision=0, *, states=False, tenant=""):
        runtime = Runtime(bench.machine, None, None, clock=lambda: bench.now)
        view = TenantView(bench.machine, tenant)
        return Watch(runtime, ClusterNodes(), view).messages(since_revision, states=states)

    return begin


async def read(messages, count):
    return [await anext(messages) for _ in range(count)]


def told(messages) -> dict[bytes, int]:
    """The last phase of each pod."""
    phases = {}
    for message in messages:
        rows = decode_uids(message.uids)
        of_rows = decode(message.phases, U8, name="phases", rows=len(rows))
        phases.update(zip(map(bytes, rows), of_rows.tolist(), strict=True))
    return phases


async def test_the_states_are_of_one_moment_though_they_come_in_many_messages(bench, watch):
    rows = bench.job("job", 10)
    uids = list(map(bytes, bench.machine.registry.pods.uid[rows]))
    messages, before = watch(states=True), bench.machine.log.revision
    first = await anext(messages)
    bench.handle(m.Deleted(rows[:6]))
    states = [first, *await read(messages, 3)]
    assert [len(message.uids) // 16 for message in states] == [4, 4, 2, 0]
    assert [message.states_end for message in states] == [False, False, False, True]
    assert {message.revision for message in states} == {before}
    assert told(states) == dict.fromkeys(uids, pb.QUEUED)
    assert told(await read(messages, 2)) == dict.fromkeys(uids[:6], pb.DELETED)


async def test_a_row_that_has_changed_hands_since_is_left_out_and_its_pod_comes_as_an_event(bench, watch):
    rows = bench.job("job", 8)
    messages = watch(states=True)
    first = await anext(messages)
    bench.handle(m.Deleted(rows))
    for _ in range(3):
        bench.pass_time(10)
    assert bench.all_are(rows, Phase.ABSENT)
    others = bench.job("other", 8)
    uids = set(map(bytes, bench.machine.registry.pods.uid[others]))
    states = [first, await anext(messages)]
    assert states[-1].states_end
    assert not uids & told(states).keys()
    assert told(await read(messages, 2)).keys() & uids == set()  # the deletions
    bench.machine.settlement.publish(others)
    assert told(await read(messages, 2)) == dict.fromkeys(uids, pb.QUEUED)


async def test_a_large_batch_is_cut_and_who_resumes_within_it_gets_it_whole(bench, watch):
    rows = bench.job("job", 10)
    before = bench.machine.log.revision
    bench.handle(m.Deleted(rows))
    pieces = await read(watch(before), 3)
    assert [len(piece.uids) // 16 for piece in pieces] == [4, 4, 2]
    assert [piece.revision for piece in pieces] == [before, before, before + 1]
    again = await read(watch(pieces[1].revision), 3)
    assert b"".join(piece.uids for piece in again) == b"".join(piece.uids for piece in pieces)


async def test_small_batches_share_a_message_and_reasons_stay_with_their_pods(bench, watch):
    first, second, third = (bench.job(name, 2) for name in ("a", "b", "c"))
    before, reasons = bench.machine.log.revision, bench.machine.registry.reasons
    bench.machine.registry.pods.reason[second] = reasons.number("no room")
    for rows in (first, second, third):
        bench.machine.settlement.publish(rows)
    shared, rest = await read(watch(before), 2)
    assert [shared.revision, rest.revision] == [before + 2, before + 3]
    assert np.frombuffer(shared.reasons, "<u2").tolist() == [0xFFFF, 0xFFFF, 0, 0]
    assert list(shared.reason_texts) == ["no room"]


@pytest.mark.parametrize("tenant", ["", "default"])
async def test_while_many_states_and_events_are_read_others_get_their_turn(bench, watch, tenant):
    rows = bench.job("job", 100)
    before = bench.machine.log.revision
    bench.handle(m.Deleted(rows[:40]))
    for messages, expected in ((watch(states=True, tenant=tenant), 16), (watch(before, tenant=tenant), 10)):
        turns = [0]

        async def others(counted=turns):
            while True:
                counted[0] += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        for _ in range(expected):
            await anext(messages)
            await asyncio.sleep(0)
        task.cancel()
        assert turns[0] >= expected


async def test_what_a_tenant_does_not_see_takes_turns_of_others_all_the_same(bench, watch):
    rows = bench.job("job", 40)
    before = bench.machine.log.revision
    bench.handle(m.Deleted(rows))
    reading = asyncio.ensure_future(anext(watch(before, tenant="another")))
    for _ in range(8):
        await asyncio.sleep(0)
        assert not reading.done()
    reading.cancel()
