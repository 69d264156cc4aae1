"""The dashboard's door: a real server, tokens of a real authority, and a clock that the tests move."""

import contextlib
import re
import ssl
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random

import aiohttp
import pytest
import structlog
import yarl
from waiting import DEADLINE_SECONDS

from hoss.certificates import validity
from hoss.rpc import MOST_TOKEN_BYTES
from hoss.security.authority import LOGIN_LIFETIME, Authority
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.tokens import TokenVerifier
from hoss.security.transport import TlsFiles, server_context
from hossctl.dashboard import access
from hossctl.dashboard.access import CSRF_HEADER, IDLE_SECONDS, LONGEST_SECONDS, DashboardAccess
from hossctl.dashboard.server import LISTS, MAX_VIEWERS_OF_ONE, Dashboard

OPERATOR = Identity(CallerKind.CLIENT, "ana", Role.OPERATE)
VIEWER = Identity(CallerKind.CLIENT, "vic", Role.VIEW)
TENANT = Identity(CallerKind.CLIENT, "tea", Role.VIEW, "research")
START = datetime(2026, 11, 1, 12, tzinfo=timezone.utc)
PASSED = 503  # the door let the request in; no dispatcher leads here


class Door:
    """A dashboard that asks who looks."""

    def __init__(self, directory: Path, *, tls: bool = False) -> None:
        self.seconds = 0.0
        self.authority = Authority.create(directory / "authority", now=START)
        self.issued = self.authority.issue(
            Identity(CallerKind.DISPATCHER), now=datetime.now(timezone.utc), hosts=("127.0.0.1",)
        )
        verifier = TokenVerifier.of_directory(
            self.issued.directory, unix_clock=lambda: START.timestamp() + self.seconds
        )
        self.access = DashboardAccess(
            "", verifier, hosts=("hoss.example.com",), secure=tls, clock=lambda: self.seconds, rng=Random(1)
        )
        self.dashboard = Dashboard(
            self.access,
            server_context(TlsFiles(self.issued.directory), clients_certified=False) if tls else None,
        )
        self.url = ""

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def token(self, identity: Identity, **lifetime: float) -> str:
        return self.authority.create_token(
            identity, now=self.now, lifetime=timedelta(**lifetime or {"days": 1})
        )


class Browser:
    """What a browser does with cookies and a page with its CSRF token."""

    def __init__(self, door: Door, session: aiohttp.ClientSession) -> None:
        self.door = door
        self.http = session

    async def ask(self, path: str, **headers: str) -> tuple[int, dict]:
        async with self.http.get(self.door.url + path, headers=headers, ssl=False) as answer:
            return answer.status, await answer.json() if answer.content_type == "application/json" else {}

    async def act(self, path: str, body: object, **headers: str) -> tuple[int, dict]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.post(self.door.url + path, json=body, headers=named, ssl=False) as answer:
            return answer.status, await answer.json()

    async def log_in(self, token: str) -> str:
        """Returns the CSRF token."""
        status, said = await self.act("/api/login", {"token": token})
        assert status == 200, said
        return (await self.ask("/api/access"))[1]["csrf"]

    async def cordon(self, csrf: str, **headers: str) -> tuple[int, dict]:
        return await self.act(
            "/api/workers/w1", {"state": "Cordoned"}, **{CSRF_HEADER.replace("-", "_"): csrf, **headers}
        )


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
async def door(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Door]:
    made = Door(tmp_path, tls=request.param)
    port = await made.dashboard.start("127.0.0.1:0")
    made.url = f"{'https' if request.param else 'http'}://127.0.0.1:{port}"
    yield made
    await made.dashboard.stop()


@pytest.fixture
async def browser(door: Door) -> AsyncIterator[Browser]:
    timeout = aiohttp.ClientTimeout(total=DEADLINE_SECONDS)
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True), timeout=timeout) as session:
        yield Browser(door, session)


async def test_without_a_login_nothing_but_the_page_is_shown(browser: Browser) -> None:
    assert (await browser.ask("/"))[0] == 200
    assert (await browser.ask("/api/access"))[1]["login"] is True
    for path in ("/api/stream", "/api/pods?name=a", "/api/nodes/n1"):
        assert (await browser.ask(path))[0] == 401
    assert (await browser.cordon(""))[0] == 401


async def test_the_role_of_the_token_decides_who_looks_and_who_acts(browser: Browser) -> None:
    csrf = await browser.log_in(browser.door.token(VIEWER))
    assert (await browser.ask("/api/nodes/n1"))[0] == PASSED
    status, said = await browser.cordon(csrf)
    assert status == 403
    assert "takes the role operate" in said["error"]
    csrf = await browser.log_in(browser.door.token(OPERATOR))
    assert (await browser.cordon(csrf))[0] == PASSED


async def test_a_tenants_viewer_sees_no_nodes_and_does_not_act(browser: Browser) -> None:
    csrf = await browser.log_in(browser.door.token(TENANT))
    assert (await browser.ask("/api/pods?name=a"))[0] == PASSED
    status, said = await browser.ask("/api/nodes/n1")
    assert status == 403
    assert "limited to tenant 'research'" in said["error"]
    assert (await browser.cordon(csrf))[0] == 403


# What a tenant's viewer may ask for: the page, itself, and lists of which it gets its own part.
_OF_TENANTS = {
    *("/api/access", "/api/stream", "/api/pods", "/api/jobs/x/x"),
    *("/api/lists/jobs", "/api/lists/pods", "/api/lists/tenants"),
}


async def test_a_tenants_viewer_is_shown_no_page_of_the_whole_platform(browser: Browser) -> None:
    """Every path that there is."""
    await browser.log_in(browser.door.token(TENANT))
    routes = browser.door.dashboard._application().router.routes()
    asked = {str(route.resource.canonical) for route in routes if route.method == "GET"}
    paths = {re.sub(r"\{\w+\}", "x", path) for path in asked if path.startswith("/api/")}
    paths = paths - {"/api/lists/x"} | {f"/api/lists/{kind}" for kind in LISTS}
    for path in sorted(paths - _OF_TENANTS):
        status, said = await browser.ask(path)
        assert status == 403, path
        assert "limited to tenant 'research'" in said["error"]
    assert paths > _OF_TENANTS


async def test_the_longest_token_is_looked_at(browser: Browser) -> None:
    """As by services. By default aiohttp reads no header of so many bytes."""
    status, said = await browser.ask("/api/nodes/n1", Authorization=f"Bearer {'x' * MOST_TOKEN_BYTES}")
    assert status == 401
    assert "is no token of HOSS" in said["error"]


async def test_one_viewer_does_not_take_the_streams_of_all(browser: Browser) -> None:
    mine, others = (f"Bearer {browser.door.token(who)}" for who in (TENANT, VIEWER))
    url = f"{browser.door.url}/api/stream"
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MAX_VIEWERS_OF_ONE):
            request = browser.http.get(url, headers={"Authorization": mine}, ssl=False)
            assert (await stack.enter_async_context(request)).status == 200
        status, said = await browser.ask("/api/stream", Authorization=mine)
        assert (status, said["error"]) == (429, "client/tea has 16 pages open; close some")
        request = browser.http.get(url, headers={"Authorization": others}, ssl=False)
        assert (await stack.enter_async_context(request)).status == 200


async def test_a_program_sends_its_token_with_each_request(browser: Browser) -> None:
    bearer = f"Bearer {browser.door.token(OPERATOR)}"
    assert (await browser.cordon("", Authorization=bearer))[0] == PASSED
    assert (await browser.ask("/api/nodes/n1", Authorization=bearer))[0] == PASSED


async def test_a_session_acts_with_its_csrf_token_alone(browser: Browser) -> None:
    await browser.log_in(browser.door.token(OPERATOR))
    for wrong in ("", "0" * 64):
        status, said = await browser.cordon(wrong)
        assert status == 403
        assert CSRF_HEADER in said["error"]


async def test_the_cookie_is_for_browsers_and_this_site_alone(browser: Browser) -> None:
    async with browser.http.post(
        browser.door.url + "/api/login", json={"token": browser.door.token(VIEWER)}, ssl=False
    ) as answer:
        (cookie,) = answer.headers.getall("Set-Cookie")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert ("Secure" in cookie) == browser.door.dashboard.speaks_tls


@pytest.mark.parametrize("host", ["evil.example.com", "evil.example.com:80", "", "127.0.0.1.evil.com", "["])
async def test_a_foreign_name_of_this_server_is_refused_before_anything_is_asked(
    browser: Browser, host: str
) -> None:
    """As after DNS rebinding."""
    bearer = f"Bearer {browser.door.token(OPERATOR)}"
    for path in ("/", "/static/main.js", "/api/access", "/api/nodes/n1"):
        assert (await browser.ask(path, Host=host, Authorization=bearer))[0] in (400, 421)


@pytest.mark.parametrize(
    "host", ["localhost:7180", "[::1]:7180", "10.1.2.3", "HOSS.example.com", "127.0.0.1"]
)
async def test_addresses_localhost_and_listed_names_are_its_own(browser: Browser, host: str) -> None:
    assert (await browser.ask("/api/access", Host=host))[0] == 200


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example.com"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}]
)
async def test_another_site_neither_logs_in_nor_acts(browser: Browser, headers: dict[str, str]) -> None:
    token = browser.door.token(OPERATOR)
    assert (await browser.act("/api/login", {"token": token}, **headers))[0] == 403
    csrf = await browser.log_in(token)
    assert (await browser.cordon(csrf, **headers))[0] == 403
    assert (await browser.cordon(csrf, Origin=browser.door.url, Sec_Fetch_Site="same-origin"))[0] == PASSED


async def test_a_session_ends_when_it_was_not_used_and_when_it_is_old(browser: Browser) -> None:
    door = browser.door
    await browser.log_in(door.token(VIEWER))
    door.seconds += IDLE_SECONDS - 1
    assert (await browser.ask("/api/nodes/n1"))[0] == PASSED
    door.seconds += IDLE_SECONDS
    assert (await browser.ask("/api/nodes/n1"))[0] == 401
    await browser.log_in(door.token(VIEWER))
    for _ in range(int(LONGEST_SECONDS // (IDLE_SECONDS - 1))):
        door.seconds += IDLE_SECONDS - 1
        assert (await browser.ask("/api/nodes/n1"))[0] == PASSED
    door.seconds += IDLE_SECONDS - 1
    assert (await browser.ask("/api/nodes/n1"))[0] == 401


async def test_a_session_ends_with_its_token(browser: Browser) -> None:
    door = browser.door
    await browser.log_in(door.token(VIEWER, minutes=5))
    door.seconds += 301
    assert (await browser.ask("/api/nodes/n1"))[0] == 401
    await browser.log_in(door.token(VIEWER))
    door.authority.revoke_token(door.authority.tokens()[-1]["id"], now=door.now)
    assert (await browser.ask("/api/nodes/n1"))[0] == 401


async def test_logging_out_ends_the_session_for_whoever_has_its_cookie(browser: Browser) -> None:
    csrf = await browser.log_in(browser.door.token(VIEWER))
    stolen = "; ".join(f"{cookie.key}={cookie.value}" for cookie in browser.http.cookie_jar)
    assert (await browser.act("/api/logout", {}, **{CSRF_HEADER.replace("-", "_"): csrf}))[0] == 200
    assert (await browser.ask("/api/nodes/n1", Cookie=stolen))[0] == 401


async def test_an_open_stream_ends_with_its_session(browser: Browser) -> None:
    door = browser.door
    await browser.log_in(door.token(VIEWER))
    async with browser.http.get(door.url + "/api/stream", ssl=False) as stream:
        assert await stream.content.readline() == b"event: away\n"
        door.authority.revoke_token(door.authority.tokens()[-1]["id"], now=door.now)
        rest = await stream.content.read()
    assert rest.endswith(b"event: ended\ndata: {}\n\n")


async def test_a_cookie_that_somebody_else_has_chosen_is_no_session_and_a_login_ends_the_one_before(
    browser: Browser,
) -> None:
    door = browser.door
    await browser.log_in(door.token(VIEWER))
    first = {cookie.key: cookie.value for cookie in browser.http.cookie_jar}
    await browser.log_in(door.token(OPERATOR))
    second = {cookie.key: cookie.value for cookie in browser.http.cookie_jar}
    ((name, cookie),) = second.items()
    assert first[name] != cookie
    browser.http.cookie_jar.clear()
    assert (await browser.ask("/api/nodes/n1", Cookie=f"{name}={first[name]}"))[0] == 401
    chosen = f"{name}={'0' * 64}"
    assert (await browser.act("/api/login", {"token": door.token(VIEWER)}, Cookie=chosen))[0] == 200
    browser.http.cookie_jar.clear()
    assert (await browser.ask("/api/nodes/n1", Cookie=chosen))[0] == 401
    assert (await browser.ask("/api/nodes/n1", Cookie=f"{name}={cookie}"))[0] == PASSED


async def test_no_post_of_another_site_or_without_the_csrf_token_changes_anything(browser: Browser) -> None:
    """Every path that there is."""
    await browser.log_in(browser.door.token(OPERATOR))
    routes = browser.door.dashboard._application().router.routes()
    acting = {str(r.resource.canonical) for r in routes if r.method not in ("GET", "HEAD")}
    assert {"/api/login", "/api/logout", "/api/nodes/{name}", "/api/workers/{name}"} <= acting
    for path in sorted(re.sub(r"\{\w+\}", "x", path) for path in acting):
        status, _ = await browser.act(path, {}, Origin="http://evil.example.com")
        assert status == 403, path
        if path != "/api/login":  # whoever logs in has a token to show
            assert (await browser.act(path, {}))[0] == 403, path
    assert (await browser.ask("/api/nodes/n1"))[0] == PASSED


@pytest.mark.parametrize(
    "path",
    ["/static/../access.py", "/static/%2e%2e/access.py", "/static/..%2faccess.py", "/static//etc/passwd"],
)
async def test_no_file_beside_the_pages_is_read(browser: Browser, path: str) -> None:
    url = yarl.URL(browser.door.url + path, encoded=True)
    async with browser.http.get(url, ssl=False) as answer:
        assert answer.status in (403, 404)
        assert "DashboardAccess" not in await answer.text()


async def test_a_filter_with_line_ends_adds_no_header(browser: Browser) -> None:
    bearer = f"Bearer {browser.door.token(VIEWER)}"
    for path in (
        "/api/pods?name=a%0d%0aX-Evil:1",
        "/api/lists/pods%0d%0aX-Evil:1",
        "/api/nodes/a%0d%0aX-Evil:1",
    ):
        url = yarl.URL(browser.door.url + path, encoded=True)
        async with browser.http.get(url, headers={"Authorization": bearer}, ssl=False) as answer:
            assert "X-Evil" not in answer.headers


async def test_a_link_logs_in_once_and_soon(browser: Browser) -> None:
    door = browser.door
    link = door.authority.create_login(OPERATOR, now=door.now)
    await browser.log_in(link)
    for seconds in (0, LOGIN_LIFETIME.total_seconds() + 1):
        door.seconds += seconds
        status, said = await browser.act("/api/login", {"token": link})
        assert status == 401
        assert "used before" in said["error"] or "expired" in said["error"]
    late = door.authority.create_login(OPERATOR, now=door.now)
    door.seconds += LOGIN_LIFETIME.total_seconds() + 1
    assert "expired" in (await browser.act("/api/login", {"token": late}))[1]["error"]
    # The session of a link outlasts the link, and the link is no token.
    assert (await browser.ask("/api/nodes/n1"))[0] == PASSED
    fresh = door.authority.create_login(OPERATOR, now=door.now)
    assert (await browser.ask("/api/nodes/n1", Authorization=f"Bearer {fresh}"))[0] == 401


async def test_guessing_tokens_is_slow_and_no_token_is_logged(browser: Browser) -> None:
    token = browser.door.token(VIEWER)
    with structlog.testing.capture_logs() as lines:
        await browser.log_in(token)
        answers = [await browser.act("/api/login", {"token": f"{token}x{i}"}) for i in range(25)]
    assert [status for status, _ in answers].count(401) == access.LOGINS_AT_ONCE - 1
    assert answers[-1][0] == 429
    assert lines
    assert token not in str(lines)


async def test_what_was_asked_to_act_is_in_the_audit_log(browser: Browser) -> None:
    with structlog.testing.capture_logs() as lines:
        csrf = await browser.log_in(browser.door.token(OPERATOR))
        await browser.cordon(csrf)
        await browser.cordon("wrong")
        browser.http.cookie_jar.clear()
        await browser.cordon(csrf)
    audited = [(line["caller"], line["outcome"]) for line in lines if line["event"] == "audit"]
    assert audited == [("client/ana", "allowed"), ("client/ana", "refused"), ("", "refused")]


async def test_too_many_sessions_end_the_one_that_was_not_used_for_longest(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "MOST_SESSIONS", 3)
    sessions = door.access.sessions
    cookies = []
    for second in range(5):
        door.seconds = float(second)
        cookies.append(sessions.begin(VIEWER, None))
        sessions.find(cookies[0])
    assert len(sessions) == 3
    assert [sessions.find(cookie) is not None for cookie in cookies] == [True, False, False, True, True]


async def test_a_renewed_certificate_is_served_at_the_next_connection(tmp_path: Path) -> None:
    door = Door(tmp_path, tls=True)
    port = await door.dashboard.start("127.0.0.1:0")
    trusting = ssl.create_default_context(cafile=str(door.issued.directory / "ca.crt"))

    async def served_until() -> datetime:
        connector = aiohttp.TCPConnector(ssl=trusting, force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"https://127.0.0.1:{port}/") as answer,
        ):
            tls = answer.connection.transport.get_extra_info("ssl_object")
            return validity(ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True)).encode())[1]

    before = await served_until()
    door.authority.renew(
        door.issued,
        now=datetime.now(timezone.utc),
        lifetime=timedelta(days=900),
    )
    assert await served_until() > before
    await door.dashboard.stop()
