"""Whatever comes to the dashboard's port is answered or refused, and logged in lines of one sentence."""

import asyncio
import contextlib
import logging
from random import Random

import structlog
from fuzz.inputs import QUICK, damaged_bytes
from waiting import DEADLINE_SECONDS

from hoss.host import THIS_HOST
from hoss.telemetry.logs import LibraryLog
from hossctl.dashboard.access import DashboardAccess
from hossctl.dashboard.server import Dashboard

INPUTS = 200 if QUICK else 2_000
_WAIT_SECONDS = 0.02  # for the answer to what may be a part of a request
TOKEN = "a-token-of-the-test"
VALID = (
    b"GET /api/pods?name=web-0 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"GET /static/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    (
        b"GET /api/access HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xfe\r\nConnection:"
        b" close\r\n\r\n"
    ),
    b"POST /api/workers/w1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a-token-of-the-test\r\nConnection: close\r\n"  # noqa: ISC004
    b'Content-Length: 20\r\n\r\n{"state": "Cordoned"}',
)


async def _answer(port: int, request: bytes, seconds: float = DEADLINE_SECONDS) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
            writer.write(request)
            await writer.drain()
            return await asyncio.wait_for(reader.readline(), seconds)
        return b""
    finally:
        writer.close()


async def test_the_dashboard_answers_or_refuses_any_request_without_a_traceback():
    handler, server_log = LibraryLog(), logging.getLogger("aiohttp.server")
    server_log.addHandler(handler)
    dashboard = Dashboard(DashboardAccess(TOKEN, clock=THIS_HOST.monotonic, rng=THIS_HOST.rng))
    port = await dashboard.start("127.0.0.1:0")
    statuses = set()
    try:
        with structlog.testing.capture_logs() as lines:
            for request in VALID:
                statuses.add((await _answer(port, request))[9:12])
            for seed in range(INPUTS):
                rng = Random(seed)
                statuses.add(
                    (await _answer(port, damaged_bytes(rng, rng.choice(VALID)), _WAIT_SECONDS))[9:12]
                )
    finally:
        await dashboard.stop()
        server_log.removeHandler(handler)
    assert b"500" not in statuses
    assert statuses >= {b"400", b"401", b"503"}
    assert lines, "nothing that aiohttp could not read was sent"
    assert not any("exc_info" in line or "\n" in str(line.get("error")) for line in lines)
