"""Who may ask the binding webhook: the API server alone, as a question reserves room.

The API server shows that it is the one by the path that it asks at, which has a secret that resolvers publish
in the webhook's configuration, or by a client certificate, or by both. Whoever shows neither is answered 403
before its question is read. Each address has a rate.

A secret in the path needs nothing from the API server's administrator. Only who may read the configuration of
admission webhooks learns it; `view` and `edit` of Kubernetes do not include that."""

import hmac
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from aiohttp import web

from hoss.limits.callers import BURST_SECONDS, RateLimits
from hoss.telemetry import logger

PATH = "/bindings"

_LOG_SECONDS = 10.0


class WebhookCallers:
    """`certificate_names`: a caller shows a certificate (of an authority that TLS trusts) with one of these
    names, or any if there are none; None: no certificate. `per_second`: questions of an address; 0: any
    number."""

    def __init__(
        self,
        *,
        certificate_names: Collection[str] | None = None,
        per_second: float = 0.0,
        clock: Callable[[], float],
    ) -> None:
        self._names = None if certificate_names is None else frozenset(certificate_names)
        self._rates = (
            RateLimits(per_second, max(1.0, per_second * BURST_SECONDS), clock=clock) if per_second else None
        )
        self._clock = clock
        self._next_line = 0.0
        self._path = PATH.encode()
        self.counters: Counter[str] = Counter()

    @property
    def open(self) -> bool:
        """Whether anybody may ask."""
        return self._names is None and self._path == PATH.encode()

    def __len__(self) -> int:
        """How many addresses are remembered."""
        return 0 if self._rates is None else len(self._rates)

    def use_secret(self, secret: str) -> None:
        """From now on the path is that with this secret; "": PATH alone."""
        self._path = path_with(secret).encode()

    def refusal(self, request: web.BaseRequest) -> web.Response | None:
        """The answer to a request of somebody who may not ask; None for the API server."""
        if not hmac.compare_digest(request.path.encode(errors="surrogateescape"), self._path):
            return self._refuse(
                request, 403, "guard_stranger", "this is not the path that the API server asks at"
            )
        if self._names is not None and not _shows(request, self._names):
            return self._refuse(request, 403, "guard_stranger", "show the API server's client certificate")
        wait_seconds = self._rates.take(request.remote or "") if self._rates is not None else 0.0
        if wait_seconds:
            return self._refuse(request, 429, "guard_rate", "too many questions (webhook.reviews_per_second)")
        return None

    def _refuse(self, request: web.BaseRequest, status: int, counter: str, text: str) -> web.Response:
        self.counters[counter] += 1
        if self._clock() >= self._next_line:  # so that nobody fills the log
            self._next_line = self._clock() + _LOG_SECONDS
            logger().warning(
                "binding_question_refused", peer=request.remote, problem=text, in_all=dict(self.counters)
            )
        return web.Response(status=status, text=f"{text}\n")


def path_with(secret: str) -> str:
    """Where the API server asks."""
    return f"{PATH}/{secret}" if secret else PATH


def _shows(request: web.BaseRequest, names: frozenset[str]) -> bool:
    transport = request.transport
    certificate: Mapping[str, Any] = (transport and transport.get_extra_info("peercert")) or {}
    if not certificate:
        return False
    common = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
    alternative = {value for _, value in certificate.get("subjectAltName", ())}
    return not names or bool(names & (common | alternative))
