"""Who may do what through the dashboard: everybody may look, who shows the token may act.

The token comes in the Authorization header and nowhere else. Browsers never add that header by themselves, so no other
site can act in a viewer's name.
"""

import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import hdrs, web

from hoss.errors import ConfigError

LEAST_TOKEN_CHARACTERS = 16

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def read_token(path: Path) -> str:
    """The token in a file, without the space around it. Raises ConfigError where it cannot be read or is too short."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot be read: {getattr(exc, 'strerror', None) or exc}", where=str(path)) from exc
    if len(token) < LEAST_TOKEN_CHARACTERS:
        raise ConfigError(
            f"holds {len(token)} characters; a token has {LEAST_TOKEN_CHARACTERS} at least,"
            " as from `head -c 24 /dev/urandom | base64`",
            where=str(path),
        )
    return token


class Guard:
    """Lets an action through, or ends its request with the status that says why not."""

    def __init__(self, token: str) -> None:
        """An empty token: nobody may act."""
        self._token = token.encode()

    @property
    def actions(self) -> bool:
        """Whether there is a token that would let somebody act."""
        return bool(self._token)

    def require(self, request: web.Request) -> None:
        """Raises HTTPForbidden while actions are off, HTTPUnauthorized for another token than ours."""
        if not self._token:
            raise web.HTTPForbidden(
                text="actions are off: start the dispatcher with --dashboard-token-file, or use `hoss cordon` and `hoss drain`"
            )
        scheme, _, given = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), self._token)
        if scheme.lower() != "bearer" or not right:
            raise web.HTTPUnauthorized(text="this is not the token", headers={"WWW-Authenticate": "Bearer"})


async def add_security_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """For Application.on_response_prepare: every answer has them, errors and streams too."""
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
