"""The Lease of a cluster on the tests' clock; tests/e2e/kubernetes/test_lease.py has it on a real API
server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import orjson
import pytest
from aiohttp import web
from unit.kube.server import answering

from dispatcher.leader.kubernetes_lease import KubernetesLease
from dispatcher.leader.lease import Granted, LeaseHeld, MemoryLease
from hoss.errors import LedgerUnavailable

SECONDS = 15


class Server:
    """An API server with one Lease, which can be cut off."""

    def __init__(self) -> None:
        self.lease = None
        self.cut_off = False

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if self.cut_off:
            return web.json_response({"message": "too busy"}, status=503)
        if request.method == "GET":
            found = self.lease
            return web.json_response(found or {}, status=200 if found else 404)
        body = orjson.loads(await request.read())
        version = int(self.lease["metadata"]["resourceVersion"]) if self.lease else 0
        if request.method == "PUT" and body["metadata"]["resourceVersion"] != str(version):
            return web.json_response({"message": "the object has been modified"}, status=409)
        body["metadata"]["resourceVersion"] = str(version + 1)
        self.lease = body
        return web.json_response(body)


class Candidates:
    def __init__(self) -> None:
        self.now = 100.0
        self.server = Server()
        self.first: KubernetesLease
        self.second: KubernetesLease

    async def pass_time(self, seconds: float, term: int) -> bool:
        """The first one holds it, and renews every second. Returns whether it does so in the end."""
        renewed = False
        for _ in range(int(seconds)):
            self.now += 1
            renewed = await self.first.renew(term, "a:1")
            if (renewing := self.first._renewing) is not None:
                await asyncio.wait([renewing])
        return renewed


@pytest.fixture
async def both() -> AsyncIterator[Candidates]:
    found = Candidates()
    async with AsyncExitStack() as stack:
        fencing = MemoryLease(SECONDS, lambda: found.now)
        for name in ("first", "second"):
            api = await stack.enter_async_context(answering(found.server))
            lease = KubernetesLease(
                api, "kube-system/hoss", fencing, duration_seconds=SECONDS, clock=lambda: found.now
            )
            stack.push_async_callback(lease.close)
            setattr(found, name, lease)
        yield found


async def test_who_renews_holds_it_for_longer_than_it_lasts_and_the_cluster_sees_that(both):
    term = (await both.first.acquire("a:1")).term
    version = both.server.lease["metadata"]["resourceVersion"]
    for _ in range(4):
        assert await both.second.acquire("b:2") == LeaseHeld(0, "a:1")
        assert await both.pass_time(SECONDS, term)
        assert both.server.lease["metadata"]["resourceVersion"] != version
        version = both.server.lease["metadata"]["resourceVersion"]
    assert await both.second.acquire("b:2") == LeaseHeld(0, "a:1")


async def test_who_cannot_renew_it_says_so_before_another_one_takes_it(both):
    term = (await both.first.acquire("a:1")).term
    assert await both.second.acquire("b:2") == LeaseHeld(0, "a:1")
    both.server.cut_off = True
    with pytest.raises(LedgerUnavailable, match="the Lease hoss could not be renewed"):
        await both.pass_time(SECONDS + 1, term)
    both.server.cut_off = False
    both.now += SECONDS
    answer = await both.second.acquire("b:2")
    assert isinstance(answer, Granted)
    assert answer.term > term
    assert both.server.lease["spec"]["holderIdentity"] == "b:2"


async def test_who_lost_it_to_another_one_does_not_renew_it(both):
    term = (await both.first.acquire("a:1")).term
    both.server.lease["spec"]["holderIdentity"] = "b:2"
    assert not await both.pass_time(SECONDS, term)
    assert both.server.lease["spec"]["holderIdentity"] == "b:2"


async def test_a_released_one_is_taken_at_once(both):
    term = (await both.first.acquire("a:1")).term
    await both.first.release(term)
    assert isinstance(await both.second.acquire("b:2"), Granted)
