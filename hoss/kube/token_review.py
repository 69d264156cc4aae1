"""Tokens of ServiceAccounts: the API server says whose they are (TokenReview, authentication.k8s.io/v1).

It is asked once about a token, and again when its answer is older than `cache_seconds`: so a token ends with
the pod or ServiceAccount that it was made for. What a token says of itself is looked at first, so that
nobody's token for another audience, or of a time that has passed, is sent anywhere.

Invariants: of one token one review is under way. The API server is asked no more often than
`reviews_per_second`, whatever tokens come."""

import asyncio
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hoss.errors import AccessDenied, ConfigError, TransportError
from hoss.host import Host
from hoss.kube.config import KubernetesConfig
from hoss.limits.callers import BURST_SECONDS, TokenBucket
from hoss.security.options import SecuredHost
from hoss.security.users import (
    SERVICE_ACCOUNT_PREFIX,
    CheckedUser,
    ServiceAccountTokens,
    UncheckedToken,
    User,
    text_claims,
)
from hoss.telemetry import logger

if TYPE_CHECKING:
    from hoss.kube.api import KubeApi, Reply

PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
_PATIENCE_SECONDS = 3.0
_ISSUER = "the API server"
_NO_RIGHT = (401, 403)
_CONNECTIONS = 8


def service_accounts_reviewed(
    cluster: KubernetesConfig | None, name: str, *, host: Host
) -> "ServiceAccountReviews | None":
    """Have every door of a service take tokens of ServiceAccounts, where its configuration says so; None: it
    does not. `name`: of the service, for the API server. Raises ConfigError without a cluster to ask."""
    if not isinstance(host, SecuredHost) or (config := host.authentication.service_accounts) is None:
        return None
    if cluster is None:
        raise ConfigError(
            "are known to the API server: give --kubeconfig or --in-cluster as well",
            where="authentication: service_accounts",
        )
    # Connections of its own: nobody's login waits behind bindings.
    own = cluster.model_copy(update={"connections": _CONNECTIONS})
    api = host.kube_api(partial(own.api, f"{name}-tokens", clock=host.monotonic, rng=host.rng))
    reviews = ServiceAccountReviews(api, config, clock=host.monotonic, unix_clock=host.unix)
    host.tokens.also_ask(reviews)
    return reviews


class ServiceAccountReviews:
    """Checks tokens of ServiceAccounts. `close` ends its connections to the API server."""

    def __init__(
        self,
        api: "KubeApi",
        config: ServiceAccountTokens,
        *,
        clock: Callable[[], float],
        unix_clock: Callable[[], float],
    ) -> None:
        """`clock`: monotonic seconds."""
        self._api = api
        self._config = config
        self._clock = clock
        self._unix_clock = unix_clock
        rate = config.reviews_per_second
        self._rate = TokenBucket(rate, max(1.0, rate * BURST_SECONDS), clock())
        self._under_way: dict[str, asyncio.Task[CheckedUser]] = {}

    async def close(self) -> None:
        """End the reviews that are under way, and the connections."""
        for review in (*self._under_way.values(),):
            review.cancel()
        await self._api.close()

    def __len__(self) -> int:
        """How many reviews are under way."""
        return len(self._under_way)

    def takes(self, claims: Mapping[str, Any]) -> bool:
        """The tokens of any issuer: the API server knows its own."""
        return isinstance(claims.get("iss"), str)

    async def check(self, text: str, claims: Mapping[str, Any]) -> CheckedUser:
        """Whose token it is. Raises AccessDenied."""
        audience = self._config.audience
        if audience not in text_claims(claims.get("aud")):
            raise AccessDenied(
                f"the token is refused: it is for another audience; get one for {audience!r}, as by "
                f"`kubectl create token NAME --audience {audience}`"
            )
        expires = claims.get("exp")
        if not isinstance(expires, int | float) or not math.isfinite(expires):
            raise AccessDenied(
                "the token is refused: it has no expiry, as old tokens of Secrets; get a new one"
            )
        if self._unix_clock() >= expires:
            raise AccessDenied(f"the token has expired; get a new one from {_ISSUER}")
        review = self._under_way.get(text)
        if review is None:
            if wait_seconds := self._rate.take(self._clock()):
                raise UncheckedToken(
                    "the token cannot be checked: too many new tokens come at once (service_accounts."
                    f"reviews_per_second); try again in {math.ceil(wait_seconds)} s"
                )
            review = asyncio.ensure_future(self._review(text, float(expires)))
            self._under_way[text] = review
            review.add_done_callback(lambda ended: self._end(text, ended))
        # It outlives the call that began it, which may be given up: others may wait for it.
        return await asyncio.shield(review)

    def _end(self, text: str, review: "asyncio.Task[CheckedUser]") -> None:
        del self._under_way[text]
        if not review.cancelled():
            review.exception()  # nobody may wait for it any more

    async def _review(self, text: str, expires: float) -> CheckedUser:
        audience = self._config.audience
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": text, "audiences": [audience]},
        }
        asked_at = self._unix_clock()
        try:
            reply = await self._api.ask("POST", PATH, body, patience_seconds=_PATIENCE_SECONDS)
            status = self._status(reply)
        except TransportError as exc:
            logger().warning("token_review_failed", problem=str(exc))
            raise UncheckedToken(
                "the token cannot be checked: the API server does not answer; try again later"
            ) from exc
        if not status.get("authenticated"):
            raise AccessDenied(
                "the token is refused: the API server does not know it; it was changed, or is of another "
                "cluster, or its pod or ServiceAccount is gone"
            )
        # An API server that knows nothing of audiences would take a token for any.
        if audience not in text_claims(status.get("audiences")):
            raise AccessDenied(
                f"the token is refused: the API server does not say that it is for {audience!r}"
            )
        found = status.get("user")
        user = found if isinstance(found, dict) else {}
        name = user.get("username")
        if not isinstance(name, str) or not name.startswith(SERVICE_ACCOUNT_PREFIX):
            raise AccessDenied(
                "the token is refused: it is of no ServiceAccount; other users log in at their issuer"
            )
        groups = tuple(text_claims(user.get("groups")))
        again = asked_at + self._config.cache_seconds
        return CheckedUser(User(name, groups), _ISSUER, -math.inf, expires, again)

    @staticmethod
    def _status(reply: "Reply") -> Mapping[str, Any]:
        if not reply.done:
            logger().warning("token_review_refused", status=reply.status, message=reply.message)
            lacking = (
                "; its account lacks the right to create tokenreviews" if reply.status in _NO_RIGHT else ""
            )
            raise UncheckedToken(
                "the token cannot be checked: the API server answers this service with"
                f" {reply.status}{lacking}; ask who runs this platform"
            )
        found = reply.json()
        status = found.get("status") if isinstance(found, dict) else None
        return status if isinstance(status, dict) else {}
