"""The webhook's certificates that resolvers make themselves, and the secret of its path: kept in a Secret,
renewed, and published to the API server in the webhook's configuration.

All resolvers serve by the one state in the Secret. The first resolver that finds something due renews it. A
write that loses the race is dropped, and its author reads the winner's. A new authority is published beside
the old one before it issues a certificate."""

import base64
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from hoss.certificates import KeyPair, issue, new_authority, validity
from hoss.errors import InvalidInput
from hoss.kube.api import JSON, STRATEGIC_PATCH, KubeApi, Object, Refused
from hoss.kube.paths import object_path
from hoss.telemetry import logger
from resolver.kubernetes.webhook.callers import WebhookCallers, path_with
from resolver.kubernetes.webhook.server import LiveCertificate

_AUTHORITY_LIFETIME = timedelta(days=3650)
_PEM_END = b"-----END CERTIFICATE-----\n"


@dataclass(frozen=True, slots=True)
class Certificates:
    """The contents of the Secret. `trusted`: PEM, the authority's certificate first, then earlier ones that
    are still valid. `path_secret`: at which the API server asks; "": resolvers of an earlier release made
    it."""

    authority_key: bytes
    trusted: bytes
    serving: KeyPair
    hosts: tuple[str, ...]
    path_secret: str = field(default="", repr=False)

    @property
    def authority(self) -> KeyPair:
        """The authority that issues."""
        return KeyPair(authorities(self.trusted)[0], self.authority_key)


def renewed(
    held: Certificates | None, hosts: Sequence[str], lifetime: timedelta, *, now: datetime, published: bytes
) -> Certificates:
    """What to serve by from now on. Returns `held` itself if nothing is due.

    A certificate is renewed when a third of its `lifetime` is left, an authority when less than the lifetime
    of a certificate is left. `published`: the authorities that the API server trusts now."""
    valid = [pem for pem in authorities(held.trusted) if validity(pem)[1] > now] if held else []
    if held is None or not valid:
        authority = _authority(now)
        serving = issue(authority, hosts, now=now, lifetime=lifetime)
        return Certificates(authority.key, authority.certificate, serving, tuple(hosts))
    if validity(valid[0])[1] - now < lifetime:
        authority = _authority(now)  # issues nothing before the API server trusts it
        return replace(held, authority_key=authority.key, trusted=authority.certificate + b"".join(valid))
    due = validity(held.serving.certificate)[1] - now < lifetime / 3 or held.hosts != tuple(hosts)
    issued_by_former = validity(valid[0])[0] > validity(held.serving.certificate)[0]
    known = len(valid) == 1 or valid[0] in published
    if known and (due or issued_by_former):
        serving = issue(held.authority, hosts, now=now, lifetime=lifetime)
        return replace(held, serving=serving, hosts=tuple(hosts), trusted=b"".join(valid))
    return held


def _authority(now: datetime) -> KeyPair:
    return new_authority("hoss binding guard", now=now, lifetime=_AUTHORITY_LIFETIME)


def authorities(trusted: bytes) -> list[bytes]:
    """The certificates of a bundle, each as PEM."""
    return [part + _PEM_END for part in trusted.split(_PEM_END) if part.strip()]


_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_HOSTS = "hoss.dev/hosts"
_PATH_KEY, _PATH_SECRET_BYTES = "path", 24
_ATTEMPTS = 5
_PATIENCE_SECONDS = 5.0


class CertificateSecret:
    """Every resolver calls `refresh` periodically."""

    def __init__(
        self,
        api: KubeApi,
        live: LiveCertificate,
        *,
        secret: str,
        configuration: str,
        hosts: Sequence[str],
        lifetime: timedelta,
        clock: Callable[[], datetime],
        callers: WebhookCallers,
        rng: random.Random,
    ) -> None:
        """`secret`: namespace/name. `configuration`: name of the ValidatingWebhookConfiguration. `clock`:
        UTC. `callers` learn the secret of the path."""
        self._callers = callers
        self._rng = rng
        self._api = api
        self._live = live
        namespace, _, self._name = secret.partition("/")
        self._secrets = object_path("/api/v1/namespaces", namespace, "secrets")
        self._secret = object_path(self._secrets, self._name)
        self._configuration = object_path(_CONFIGURATIONS, configuration)
        self._hosts = tuple(hosts)
        self._lifetime = lifetime
        self._clock = clock

    async def refresh(self) -> None:
        """Renew what is due, serve by it, and make the API server trust it. Raises InvalidInput for a Secret
        that resolvers did not make; Refused and TransportError if the API server does not do it."""
        webhooks = await self._webhooks()
        bundles = {hook.get("clientConfig", {}).get("caBundle", "") for hook in webhooks}
        published = base64.b64decode(bundles.pop()) if len(bundles) == 1 else b""
        certificates = await self._renew(published)
        self._live.use(certificates.serving)
        self._callers.use_secret(certificates.path_secret)
        bundle = base64.b64encode(certificates.trusted).decode()
        wanted = [_client_config(hook, bundle, path_with(certificates.path_secret)) for hook in webhooks]
        if any(_differs(hook.get("clientConfig", {}), of) for hook, of in zip(webhooks, wanted, strict=True)):
            patch = {
                "webhooks": [
                    {"name": hook["name"], "clientConfig": of}
                    for hook, of in zip(webhooks, wanted, strict=True)
                ]
            }
            await self._do("PATCH", self._configuration, patch, content_type=STRATEGIC_PATCH)
            logger().info("webhook_authority_published", configuration=self._configuration.rpartition("/")[2])

    async def _renew(self, published: bytes) -> Certificates:
        for _ in range(_ATTEMPTS):
            found = await self._api.find(self._secret, patience_seconds=_PATIENCE_SECONDS)
            held = None if found is None else self._read(found)
            fresh = renewed(held, self._hosts, self._lifetime, now=self._clock(), published=published)
            if not fresh.path_secret:
                fresh = replace(fresh, path_secret=self._rng.randbytes(_PATH_SECRET_BYTES).hex())
            if fresh is held or await self._write(fresh, found):
                return fresh
        raise InvalidInput("changes faster than it can be renewed", where=self._secret)

    def _read(self, found: Object) -> Certificates:
        data = found.get("data") or {}
        missing = [name for name in ("tls.crt", "tls.key", "ca.crt", "ca.key") if not data.get(name)]
        if missing:
            raise InvalidInput(
                f"has no {', '.join(missing)}, so it is not one that resolvers made: name "
                "another one, or mount it and give --webhook-cert-dir",
                where=f"Secret {self._name}",
            )
        certificate, key, trusted, authority_key = (
            base64.b64decode(data[name]) for name in ("tls.crt", "tls.key", "ca.crt", "ca.key")
        )
        hosts = (found["metadata"].get("annotations") or {}).get(_HOSTS, "")
        path_secret = base64.b64decode(data.get(_PATH_KEY, "")).decode("ascii", "replace")
        return Certificates(
            authority_key, trusted, KeyPair(certificate, key), tuple(hosts.split(",")), path_secret
        )

    async def _write(self, fresh: Certificates, found: Object | None) -> bool:
        """False: another resolver was quicker."""
        texts = {
            "tls.crt": fresh.serving.certificate,
            "tls.key": fresh.serving.key,
            "ca.crt": fresh.trusted,
            "ca.key": fresh.authority_key,
            _PATH_KEY: fresh.path_secret.encode(),
        }
        metadata: Object = {"name": self._name, "annotations": {_HOSTS: ",".join(fresh.hosts)}}
        if found is not None:
            metadata["resourceVersion"] = found["metadata"]["resourceVersion"]
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": metadata,
            "data": {name: base64.b64encode(text).decode() for name, text in texts.items()},
        }
        try:
            if found is None:
                await self._do("POST", self._secrets, body)
            else:
                await self._do("PUT", self._secret, body)
        except Refused as refused:
            if refused.reply.status == 409:
                return False
            raise
        return True

    async def _webhooks(self) -> list[Object]:
        """The webhooks of the configuration; none if it does not exist (yet)."""
        found = await self._api.find(self._configuration, patience_seconds=_PATIENCE_SECONDS)
        return [] if found is None else list(found.get("webhooks") or ())

    async def _do(self, method: str, path: str, body: Object, content_type: str = JSON) -> None:
        reply = await self._api.ask(
            method, path, body, content_type=content_type, patience_seconds=_PATIENCE_SECONDS
        )
        if not reply.done:
            raise Refused(reply, f"{method} {path}")


def _client_config(hook: Object, bundle: str, path: str) -> Object:
    """How the API server is to reach a webhook, for a patch."""
    given = hook.get("clientConfig", {})
    if url := given.get("url"):
        return {"caBundle": bundle, "url": urlsplit(url)._replace(path=path).geturl()}
    return {"caBundle": bundle, "service": {"path": path}} if "service" in given else {"caBundle": bundle}


def _differs(given: Object, wanted: Object) -> bool:
    return any(
        _differs(given.get(name) or {}, value) if isinstance(value, dict) else given.get(name) != value
        for name, value in wanted.items()
    )
