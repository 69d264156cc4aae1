"""No secret of a run is in what the run leaves to be read: logs, traces, state files and arguments."""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import aiohttp
import grpc.aio
import psutil
import pytest
from e2e.loads import prepare, submit
from waiting import until

from hoss.client.access import ClientAccess
from hoss.client.dispatcher import DispatcherClient
from hoss.errors import HossError
from hoss.host import THIS_HOST
from hoss.security.authority import Authority
from hoss.security.identity import CallerKind, Identity, Role
from hossctl.endpoints import clients_of, of_state
from hossctl.local import platform, platform_state

# The least part of a secret that is looked for: a longer one may be cut off where it is written.
_PART = 24
_PEM_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(.+?)-----END", re.DOTALL)


@pytest.fixture(scope="module")
def starter() -> Iterator[platform.Starter]:
    options = platform.PlatformOptions(
        workers=(platform_state.WorkerOptions("w1"),),
        dashboard_listen="127.0.0.1:0",
        append_only=True,
        trace_ratio=1.0,
        metrics=True,
    )
    with platform.temporary(options) as made:
        yield made


def keys_and_passwords(directory: Path) -> list[bytes]:
    """Of the files of the platform's authority."""
    found = [(directory / "redis.password").read_bytes()]
    for path in directory.rglob("*.key"):
        (body,) = _PEM_KEY.findall(path.read_bytes())
        found.append(b"".join(body.split()))
    return found


def parts_of(secret: bytes) -> set[bytes]:
    """A signed token is three parts, of which the last makes it one. The first says what kind of token it is,
    and all have it."""
    return {part[:_PART] for part in secret.split(b".")[-1:]} | {secret[-_PART:]}


async def everything(starter: platform.Starter) -> list[str]:
    """Use every door with right and wrong tokens, let every service work; the secrets that were used."""
    state = starter.state
    authority = Authority(starter.directory / platform.SECURITY_DIRECTORY)
    now = THIS_HOST.utc_now()

    def token(role: Role, days: float = 1) -> str:
        identity = Identity(CallerKind.CLIENT, "ana", role)
        return authority.create_token(identity, now=now, lifetime=timedelta(days=days))

    async with clients_of(of_state(state)) as clients:
        await prepare(clients, workers=1, nodes=5)
        await submit(clients, jobs=2, replicas=20)
        await submit(clients, jobs=1, replicas=1, name="giant", cpu_milli=1_000_000)

        async def placed() -> bool:
            return sum(info.bound for info in await clients.dispatcher.list_jobs()) == 40

        await until(placed, "the pods to be bound")

    entry = authority.current(Identity(CallerKind.CLIENT, "entry"), now=now).directory
    forged = token(Role.ADMIN)[:-5] + "AAAAA"
    bearers = [token(Role.OPERATE), token(Role.VIEW, days=-1), token(Role.VIEW), forged, "n0-T0ken" * 8]
    authority.revoke_token(authority.tokens()[-1]["id"], now=THIS_HOST.utc_now())
    for bearer in bearers:
        access = ClientAccess(entry, bearer)
        async with DispatcherClient([state.dispatcher], open_channel=access.channel) as client:
            for call in (client.list_jobs, lambda client=client: client.set_worker_state("w1", "Ready")):
                with contextlib.suppress(HossError, grpc.aio.AioRpcError):
                    await call()
    (link,) = platform.dashboard_links(starter.directory, state)
    login = link.partition("#login=")[2]
    used = []
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(state.dashboards[0], cookie_jar=jar) as http:
        for bearer in (*bearers, login, login):
            await http.post("/api/login", json={"token": bearer})
            csrf = (await (await http.get("/api/access")).json())["csrf"]
            used += [csrf, *(cookie.value for cookie in jar)]
            await http.post("/api/workers/w1", json={"state": "Ready"}, headers={"X-CSRF-Token": csrf})
            await http.get("/api/nodes/none", headers={"Authorization": f"Bearer {bearer}"})
            await http.get(f"/api/pods?name={bearer}", headers={"Host": bearer})
    return [*bearers, login, *filter(None, used)]


def test_no_log_trace_or_argument_has_a_secret_of_the_run(starter: platform.Starter) -> None:
    secrets = [text.encode() for text in asyncio.run(everything(starter))]
    secrets += keys_and_passwords(starter.directory / platform.SECURITY_DIRECTORY)
    arguments = {
        f"arguments of {record.name}": "\0".join(psutil.Process(record.pid).cmdline()).encode()
        for record in starter.state.processes
    }
    platform.stop(starter.directory, starter.state)  # so that everything is written
    written = {
        str(path.relative_to(starter.directory)): path.read_bytes()
        for pattern in ("logs/*", "*.json*", "redis/*.log")
        for path in starter.directory.glob(pattern)
    }
    assert {"logs/dispatcher.log", "logs/resolver-1.log", "logs/worker-w1.log", platform.TRACE_FILE} <= set(
        written
    )
    assert b"caller_refused" in written["logs/dispatcher.log"]
    assert b"dashboard_login_refused" in written["logs/dashboard.log"]
    found = [
        (place, number)
        for place, text in (written | arguments).items()
        for number, secret in enumerate(secrets)
        if any(part in text for part in parts_of(secret))
    ]
    assert not found
