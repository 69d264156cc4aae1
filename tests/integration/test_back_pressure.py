"""A dispatcher that may hold little, as a process: it slows, refuses with how long to wait, and loses
nothing."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from integration.test_dispatcher_process import (
    BOUND,
    DEADLINE_SECONDS,
    FakeWorker,
    Platform,
    job,
    ledger,
    phases,
    platform,
    until,
    until_phases,
)

from hoss.client.dispatcher import DispatcherClient
from hoss.errors import InvalidInput, NotFound
from hoss.v1 import dispatcher_pb2 as pb

__all__ = ["ledger", "platform"]  # fixtures

LIMIT_PODS = 1000


async def start(
    platform: Platform, tmp_path, limits: str = f"max_waiting_pods: {LIMIT_PODS}\nmax_record_bytes: 20000\n"
) -> DispatcherClient:
    config = tmp_path / "dispatcher.yaml"
    config.write_text(f"apiVersion: hoss.dev/v1alpha1\nkind: DispatcherConfig\n{limits}")
    return await platform.start("--config", str(config))


async def bind_everything(worker: FakeWorker) -> None:
    while True:
        await worker.answer((await worker.read()).work, BOUND)


async def test_a_full_dispatcher_answers_resource_exhausted_with_how_long_to_wait(platform, tmp_path):
    client = await start(platform, tmp_path)
    await client.submit(job("first", 900))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.stub.Submit(job("second", 200), timeout=DEADLINE_SECONDS)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "900 pods wait and 1000 may: nothing of these 200 was accepted" in refused.value.details()
    assert 100 <= int(dict(refused.value.trailing_metadata())["retry-after-ms"]) <= 10_000
    assert await phases(client) == {"QUEUED": 900}
    with pytest.raises(NotFound):
        await client.get_pod("default", "second-0")


async def test_a_repeated_request_is_answered_however_full_it_is(platform, tmp_path):
    client = await start(platform, tmp_path)
    request = job("first", 1000, request_id="mine")
    assert (await client.submit(request)).accepted_pods == 1000
    assert (await client.stub.Submit(request, timeout=DEADLINE_SECONDS)).accepted_pods == 1000


async def test_what_can_never_fit_is_bad_input_and_not_waited_for(platform, tmp_path):
    client = await start(platform, tmp_path)
    with pytest.raises(InvalidInput, match="submit them in parts"):
        await client.submit(job("huge", LIMIT_PODS + 1))


async def test_the_client_waits_and_a_stream_larger_than_the_limit_is_accepted_once_and_whole(
    platform, tmp_path
):
    client = await start(platform, tmp_path)
    told = []
    client.on_full = told.append

    async def requests() -> AsyncIterator[pb.SubmitRequest]:
        for number in range(15):
            yield job(f"job-{number}", 200)

    accepted: list[int] = []

    async def submit_all() -> None:
        async for reply in client.submit_stream(requests()):
            accepted.append(reply.accepted_pods)  # noqa: PERF401 - watched while it grows

    submitting = asyncio.ensure_future(submit_all())
    await until(lambda: bool(told))
    assert sum(accepted) <= LIMIT_PODS
    told.clear()
    worker = await platform.worker("w1")
    binding = asyncio.ensure_future(bind_everything(worker))
    await asyncio.wait_for(submitting, DEADLINE_SECONDS)
    binding.cancel()
    assert accepted == [200] * 15
    jobs = await client.list_jobs()
    assert sorted(job.name for job in jobs) == sorted(f"job-{number}" for number in range(15))


async def test_a_stream_is_slowed_before_anything_is_refused(platform, tmp_path):
    client = await start(platform, tmp_path)
    await client.submit(job("first", 900))

    async def requests() -> AsyncIterator[pb.SubmitRequest]:
        for number in range(3):
            yield job(f"job-{number}", 1)

    begun = asyncio.get_running_loop().time()
    async for _ in client.submit_stream(requests()):
        pass
    # Half-way between slow and full: half a second between one message and the next.
    assert asyncio.get_running_loop().time() - begun > 0.8
    await until_phases(client, QUEUED=903)


async def test_a_watcher_that_does_not_read_is_cut_off_with_out_of_range_and_not_buffered_for(
    platform, tmp_path
):
    client = await start(platform, tmp_path, "event_log_pods: 1000\n")
    watched = client.stub.Watch(pb.WatchRequest())
    jobs = [f"job-{number}" for number in range(60)]
    for name in jobs:
        await client.submit(job(name, 20_000))
    await client.delete("default", jobs=jobs[:1])
    seen = await asyncio.wait_for(watched.read(), DEADLINE_SECONDS)  # it works, and reads no more
    for name in jobs[1:]:
        await client.delete("default", jobs=[name])

    async def read_on() -> None:
        while True:
            await watched.read()

    assert seen.revision
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await asyncio.wait_for(read_on(), DEADLINE_SECONDS)
    assert ended.value.code() is grpc.StatusCode.OUT_OF_RANGE
    assert "list the pods, then watch from now" in ended.value.details()
