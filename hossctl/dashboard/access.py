"""Who looks at the dashboard, and what that viewer may do.

A viewer shows a token once and gets a session: a cookie that scripts cannot read and that browsers send to
this dashboard alone, and a CSRF token that scripts of this page send with whatever acts. A program may send
its token with each request instead. Rights are those of the same question over gRPC
(hoss/security/rights.py).

Invariants: a session ends when it was not used for IDLE_SECONDS, after LONGEST_SECONDS, and with its token. A
link logs in once. Tokens and cookies are in no log line."""

import hmac
import ipaddress
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from hoss.errors import AccessDenied, ConfigError
from hoss.limits.callers import RateLimits
from hoss.security import rights
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.tokens import Token, TokenVerifier, WrongAudience
from hoss.telemetry import logger

LEAST_TOKEN_CHARACTERS = 16

IDLE_SECONDS = 30 * 60.0
LONGEST_SECONDS = 12 * 3600.0
MOST_SESSIONS = 1000
# Attempts to log in, by address.
LOGINS_PER_SECOND, LOGINS_AT_ONCE = 1.0, 20.0
# A link is made to be followed at once. A longer one could be used again after it was forgotten here.
LONGEST_LINK_SECONDS = 3600.0

CSRF_HEADER = "X-CSRF-Token"
_SECRET_BYTES = 32
_BEARER = "bearer"

# What each request is over gRPC: the right is the same.
LOOK = "/hoss.v1.Dispatcher/ListPods"
FIND_POD = "/hoss.v1.Dispatcher/GetPod"
SHOW_NODE = "/hoss.v1.Resolver/ListNodes"
LIST_JOBS = "/hoss.v1.Dispatcher/ListJobs"
LIST_TENANTS = "/hoss.v1.Dispatcher/ListTenants"
SHOW_WORKER = "/hoss.v1.Dispatcher/ListWorkers"
SHOW_POLICY = "/hoss.v1.Dispatcher/GetPolicy"
# Curves and events are of the whole platform. GetStatus is no such right: tenants get their own part of it.
SHOW_HISTORY = "/hoss.v1.Dispatcher/GetConflicts"
SHOW_TIMELINE = "/hoss.v1.Dispatcher/GetWorkTimeline"
SHOW_ROOM = "/hoss.v1.Resolver/ListReservations"
ACT_ON_WORKER = "/hoss.v1.Dispatcher/SetWorkerState"
ACT_ON_NODE = "/hoss.v1.Resolver/CordonNode"

# Where nobody is asked who he is: everybody may look. Who has the token of --token-file may act.
ANYBODY = Identity(CallerKind.CLIENT, "anybody", Role.VIEW)
TOKEN_HOLDER = Identity(CallerKind.CLIENT, "dashboard-token", Role.OPERATE)


def read_token(path: Path) -> str:
    """The token in a file, stripped. Raises ConfigError if it cannot be read or is too short."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(
            f"cannot be read: {getattr(exc, 'strerror', None) or exc}", where=str(path)
        ) from exc
    if len(token) < LEAST_TOKEN_CHARACTERS:
        raise ConfigError(
            f"holds {len(token)} characters; a token has {LEAST_TOKEN_CHARACTERS} at least,"
            " as from `head -c 24 /dev/urandom | base64`",
            where=str(path),
        )
    return token


@dataclass(slots=True)
class Session:
    """A viewer who has logged in. `token`: with which; None: with that of the token file. `text`: that token
    as it was shown, where whoever made it is asked again whether it is good; "": nobody has to be asked.
    Times are monotonic seconds."""

    identity: Identity
    token: Token | None
    text: str = field(repr=False)
    csrf: str = field(repr=False)
    began: float
    used: float


class Sessions:
    """The sessions by their cookie. `check` raises AccessDenied for a token that is valid no more."""

    def __init__(
        self, check: Callable[[Token], None], *, clock: Callable[[], float], rng: random.Random
    ) -> None:
        self._check = check
        self._clock = clock
        self._rng = rng
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, identity: Identity, token: Token | None, text: str = "") -> str:
        """A new session's cookie. Of too many, the one that was not used for longest ends."""
        now = self._clock()
        self._sessions = {key: held for key, held in self._sessions.items() if self._problem(held) == ""}
        if len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[min(self._sessions, key=lambda key: self._sessions[key].used)]
        cookie, csrf = (self._rng.randbytes(_SECRET_BYTES).hex() for _ in range(2))
        self._sessions[cookie] = Session(identity, token, text, csrf, now, now)
        return cookie

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie, which is used by that. None: it has ended, or there was none."""
        session = self._sessions.get(cookie)
        if session is None:
            return None
        if self._problem(session):
            del self._sessions[cookie]
            return None
        session.used = self._clock()
        return session

    def end(self, cookie: str) -> None:
        """Log out."""
        self._sessions.pop(cookie, None)

    def _problem(self, session: Session) -> str:
        """Why a session has ended; "" while it lasts."""
        now = self._clock()
        if now - session.used >= IDLE_SECONDS or now - session.began >= LONGEST_SECONDS:
            return "time"
        if session.token is not None:
            try:
                self._check(session.token)
            except AccessDenied as exc:
                return str(exc)
        return ""


class DashboardAccess:
    """Authorizes requests. `token`: of --token-file; "": none. `tokens`: checks the platform's tokens;
    None: the platform asks nobody who he is. `hosts`: names by which browsers may reach it, besides addresses
    and localhost."""

    def __init__(
        self,
        token: str = "",
        tokens: TokenVerifier | None = None,
        *,
        hosts: Collection[str] = (),
        secure: bool = False,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._token = token.encode()
        self._tokens = tokens
        self._hosts = frozenset(host.lower() for host in hosts)
        self._secure = secure
        self._clock = clock
        self._logins = RateLimits(LOGINS_PER_SECOND, LOGINS_AT_ONCE, clock=clock)
        self._links: dict[str, float] = {}  # those that were used, and when each is forgotten
        self.cookie = "hoss-session"
        self.sessions = Sessions(self._check, clock=clock, rng=rng)

    def table_sizes(self) -> dict[str, int]:
        """The entries of what is remembered of viewers."""
        return {
            "dashboard_sessions": len(self.sessions),
            "dashboard_logins": len(self._logins),
            "dashboard_links": len(self._links),
        }

    @property
    def actions(self) -> bool:
        """Whether anybody can act."""
        return bool(self._token) or self._tokens is not None

    @property
    def login_needed(self) -> bool:
        """Whether looking takes a login, too."""
        return self._tokens is not None

    def serve_at(self, port: int) -> None:
        """Browsers keep cookies by host and not by port: each dashboard has one of its own name."""
        self.cookie = f"{'__Host-' if self._secure else ''}hoss-session-{port}"

    # --- each request ---

    def check_source(self, request: web.Request) -> None:
        """Raises HTTPMisdirectedRequest for a foreign name of this server (DNS rebinding), and HTTPForbidden
        for a request that acts and comes from another site."""
        host = request.headers.get(hdrs.HOST, "")
        if not self._own_name(host):
            raise web.HTTPMisdirectedRequest(
                text=(
                    "the dashboard is not reached by this name: use its address or localhost, or list the"
                    " name with --host"
                )
            )
        if request.method in (hdrs.METH_GET, hdrs.METH_HEAD):
            return
        origin, site = request.headers.get(hdrs.ORIGIN), request.headers.get("Sec-Fetch-Site", "same-origin")
        own = f"{'https' if self._secure else 'http'}://{host}"
        if (origin is not None and origin.lower() != own.lower()) or site not in ("same-origin", "none"):
            raise web.HTTPForbidden(text="the request comes from another site")

    def _own_name(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if name == "localhost" or name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def session(self, request: web.Request) -> Session | None:
        """The session of a request's cookie."""
        return self.sessions.find(request.cookies.get(self.cookie, ""))

    async def viewer(self, request: web.Request) -> Identity | None:
        """Who looks: by the Authorization header, else by the session. None: somebody who has to log in.
        Raises HTTPUnauthorized for a wrong token."""
        if hdrs.AUTHORIZATION in request.headers:
            return await self._bearer(request)
        if (session := self.session(request)) is not None:
            return await self._of_session(session)
        return None if self.login_needed else ANYBODY

    async def _of_session(self, session: Session) -> Identity | None:
        """The session's viewer, as far as its token is still good for whoever made it."""
        if session.text and self._tokens is not None:
            try:
                session.identity = await self._tokens.identify(session.text)
            except AccessDenied:
                return None
        return session.identity

    async def require(self, request: web.Request, method: str) -> Identity:
        """Who may do what that method does over gRPC. Raises HTTPUnauthorized and HTTPForbidden."""
        identity = await self.viewer(request)
        if identity is None:
            raise self._unauthorized("log in first, or the session has ended")
        if problem := rights.refusal(method, identity):
            if identity is ANYBODY:
                if self.actions:
                    raise self._unauthorized("this is not the token")
                raise self._actions_off()
            raise web.HTTPForbidden(text=f"{identity} may not do that: {problem}")
        return identity

    async def require_to_act(self, request: web.Request, method: str) -> Identity:
        """As `require`, for what changes something: a session sends its CSRF token, too. The audit log has
        it."""
        problem: web.HTTPException | None = None
        try:
            identity = await self.require(request, method)
            if hdrs.AUTHORIZATION not in request.headers:
                self.require_csrf(request)
        except web.HTTPException as exc:
            problem = exc
        viewer = None if problem is not None and problem.status == 401 else await self.viewer(request)
        logger().info(
            "audit",
            caller=str(viewer or ""),
            role=viewer.role.value if viewer else "",
            tenant=viewer.tenant if viewer else "",
            method=method,
            outcome="refused" if problem else "allowed",
            peer=request.remote,
            request={"dashboard": request.path[:200]},
        )
        if problem is not None:
            raise problem
        return identity

    def require_csrf(self, request: web.Request) -> None:
        """Raises HTTPForbidden."""
        session = self.session(request)
        given = request.headers.get(CSRF_HEADER, "")
        if session is None or not _same(given, session.csrf.encode()):
            raise web.HTTPForbidden(text=f"the header {CSRF_HEADER} is missing or wrong; load the page again")

    # --- logging in and out ---

    async def log_in(self, request: web.Request, text: str) -> str:
        """A new session's cookie for a token, or for that of a link. Raises HTTPTooManyRequests,
        HTTPUnauthorized, and HTTPForbidden where nobody can log in."""
        if wait_seconds := self._logins.take(request.remote or ""):
            raise web.HTTPTooManyRequests(
                text=f"too many attempts to log in; try again in {wait_seconds:.0f} s"
            )
        if not self.actions:
            raise self._actions_off()
        try:
            identity, token = await self._identify(text)
        except web.HTTPException:
            logger().warning("dashboard_login_refused", peer=request.remote)
            raise
        logger().info("dashboard_login", caller=str(identity), role=identity.role.value, peer=request.remote)
        foreign = token is not None and bool(token.issuer)
        self.sessions.end(request.cookies.get(self.cookie, ""))  # whoever had that browser before
        return self.sessions.begin(identity, token, text if foreign else "")

    def set_cookie(self, response: web.Response, cookie: str) -> None:
        """Give a browser the cookie of its session; "": take it away."""
        response.set_cookie(
            self.cookie,
            cookie,
            max_age=int(LONGEST_SECONDS) if cookie else 0,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self._secure,
        )

    async def _identify(self, text: str) -> tuple[Identity, Token | None]:
        if self._token and _same(text, self._token):
            return TOKEN_HOLDER, None
        if self._tokens is None:
            raise self._unauthorized("this is not the token")
        try:
            token = await self._tokens.token(text)
        except WrongAudience:
            token = self._used_link(text)
        except AccessDenied as exc:
            raise self._unauthorized(str(exc)) from exc
        if not token.identity.role.includes(Role.VIEW):
            raise self._unauthorized(
                f"the token has the role {token.identity.role.value}, which sees nothing here"
            )
        return token.identity, token

    def _used_link(self, text: str) -> Token:
        """The token of a link, which is used up by that; it lasts as long as a session may."""
        assert self._tokens is not None  # noqa: S101 - asked before
        try:
            token = self._tokens.login_token(text)
        except AccessDenied as exc:
            raise self._unauthorized(str(exc)) from exc
        now = self._clock()
        self._links = {link: until for link, until in self._links.items() if until > now}
        if token.id in self._links or token.expires - token.not_before > LONGEST_LINK_SECONDS:
            raise self._unauthorized("the link was used before; get a new one with `hoss dashboard`")
        self._links[token.id] = now + LONGEST_LINK_SECONDS
        return Token(token.id, token.identity, token.not_before, token.not_before + LONGEST_SECONDS)

    async def _bearer(self, request: web.Request) -> Identity:
        scheme, _, given = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme.lower() != _BEARER:
            raise self._unauthorized("this is not the token")
        if self._token and _same(given.strip(), self._token):
            return TOKEN_HOLDER
        if not self.actions:
            raise self._actions_off()
        if self._tokens is None:
            raise self._unauthorized("this is not the token")
        try:
            return await self._tokens.identify(given.strip())
        except AccessDenied as exc:
            raise self._unauthorized(str(exc)) from exc

    def _check(self, token: Token) -> None:
        if self._tokens is not None:
            self._tokens.check(token)

    @staticmethod
    def _unauthorized(text: str) -> web.HTTPUnauthorized:
        return web.HTTPUnauthorized(text=text, headers={"WWW-Authenticate": "Bearer"})

    @staticmethod
    def _actions_off() -> web.HTTPForbidden:
        return web.HTTPForbidden(
            text="actions are off: start the dashboard with --token-file, "
            "or use `hoss cordon` and `hoss drain`"
        )


def _same(given: str, right: bytes) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), right)
