"""Certificates that we make ourselves, kept in a Secret and told to the API server in the webhook's configuration."""

import base64
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from hoss.certificates import KeyPair
from hoss.errors import InvalidInput
from hoss.kube.api import JSON, STRATEGIC_PATCH, KubeApi, Object, Refused
from hoss.telemetry import logger
from resolver.webhook_certificates import Certificates, renewed
from resolver.webhook_tls import LiveCertificate

_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_HOSTS = "hoss.dev/hosts"
_ATTEMPTS = 5
_PATIENCE_SECONDS = 5.0


class CertificateSecret:
    """`look` is to be called now and then by every resolver."""

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
    ) -> None:
        """`secret`: namespace/name. `configuration`: name of the ValidatingWebhookConfiguration. `clock` tells UTC."""
        self._api = api
        self._live = live
        namespace, _, self._name = secret.partition("/")
        self._secrets = f"/api/v1/namespaces/{namespace}/secrets"
        self._configuration = f"{_CONFIGURATIONS}/{configuration}"
        self._hosts = tuple(hosts)
        self._lifetime = lifetime
        self._clock = clock

    async def look(self) -> None:
        """Renew what is due, serve by it, and see to it that the API server trusts it. Raises InvalidInput for a Secret that is
        not ours; Refused and TransportError where the API server does not do it."""
        webhooks = await self._webhooks()
        bundles = {hook.get("clientConfig", {}).get("caBundle", "") for hook in webhooks}
        published = base64.b64decode(bundles.pop()) if len(bundles) == 1 else b""
        certificates = await self._renew(published)
        self._live.use(certificates.serving)
        if webhooks and certificates.trusted != published:
            bundle = base64.b64encode(certificates.trusted).decode()
            patch = {"webhooks": [{"name": hook["name"], "clientConfig": {"caBundle": bundle}} for hook in webhooks]}
            await self._do("PATCH", self._configuration, patch, content_type=STRATEGIC_PATCH)
            logger().info("webhook_authority_published", configuration=self._configuration.rpartition("/")[2])

    async def _renew(self, published: bytes) -> Certificates:
        for _ in range(_ATTEMPTS):
            found = await self._find(f"{self._secrets}/{self._name}")
            held = None if found is None else self._read(found)
            fresh = renewed(held, self._hosts, self._lifetime, now=self._clock(), published=published)
            if fresh is held or await self._write(fresh, found):
                return fresh
        raise InvalidInput("changes faster than it can be renewed", where=f"{self._secrets}/{self._name}")

    def _read(self, found: Object) -> Certificates:
        data = found.get("data") or {}
        missing = [name for name in ("tls.crt", "tls.key", "ca.crt", "ca.key") if not data.get(name)]
        if missing:
            raise InvalidInput(
                f"has no {', '.join(missing)}, so it is not one that resolvers made: name another one, or mount it and give "
                "--webhook-cert-dir",
                where=f"Secret {self._name}",
            )
        certificate, key, trusted, authority_key = (
            base64.b64decode(data[name]) for name in ("tls.crt", "tls.key", "ca.crt", "ca.key")
        )
        hosts = (found["metadata"].get("annotations") or {}).get(_HOSTS, "")
        return Certificates(authority_key, trusted, KeyPair(certificate, key), tuple(hosts.split(",")))

    async def _write(self, fresh: Certificates, found: Object | None) -> bool:
        """False: somebody else was quicker."""
        texts = {
            "tls.crt": fresh.serving.certificate,
            "tls.key": fresh.serving.key,
            "ca.crt": fresh.trusted,
            "ca.key": fresh.authority_key,
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
                await self._do("PUT", f"{self._secrets}/{self._name}", body)
        except Refused as refused:
            if refused.reply.status == 409:
                return False
            raise
        return True

    async def _webhooks(self) -> list[Object]:
        """Of the configuration; none where there is no such configuration (yet)."""
        found = await self._find(self._configuration)
        return [] if found is None else list(found.get("webhooks") or ())

    async def _find(self, path: str) -> Object | None:
        try:
            found: Object = await self._api.get(path, patience_seconds=_PATIENCE_SECONDS)
        except Refused as refused:
            if refused.reply.status == 404:
                return None
            raise
        return found

    async def _do(self, method: str, path: str, body: Object, content_type: str = JSON) -> None:
        reply = await self._api.ask(method, path, body, content_type=content_type, patience_seconds=_PATIENCE_SECONDS)
        if not reply.done:
            raise Refused(reply, f"{method} {path}")
