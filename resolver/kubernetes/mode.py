"""Kubernetes mode of one resolver: the binder, and the binding webhook if it is configured.

Only a resolver in this mode imports this module, because its libraries take time and memory.
"""

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial

from hoss.errors import ConfigError
from hoss.host import ReviewServer
from hoss.kube.api import KubeApi
from hoss.kube.reflector import Reflector
from hoss.security.options import of_loopback
from hoss.tasks import background
from hoss.telemetry import logger
from resolver.config import WebhookConfig
from resolver.core.values import Decision, Proposal
from resolver.kubernetes.binder import Binder
from resolver.kubernetes.pod_source import KubePods, WatchedPods, pods_of_other_schedulers
from resolver.kubernetes.storage_source import ClusterStorage
from resolver.kubernetes.webhook.binding_webhook import BindingWebhook
from resolver.kubernetes.webhook.callers import WebhookCallers
from resolver.kubernetes.webhook.certificates import CertificateSecret
from resolver.kubernetes.webhook.server import (
    PATH_FILE,
    CertificateFiles,
    CertificateSource,
    LiveCertificate,
    answer_review,
    refresh_periodically,
    serve_webhook,
    wait_for_certificate,
)
from resolver.kubernetes.webhook.volumes_and_devices import VolumesAndDevices
from resolver.ledger.port import Ledger


class KubernetesServices:
    """`decide` decides a proposal of one shard; `problem` says why the ledger cannot be used."""

    def __init__(
        self,
        api: KubeApi,
        config: WebhookConfig | None,
        ledger: Ledger,
        decide: Callable[[int, Proposal], Awaitable[Decision]],
        problem: Callable[[], str],
        *,
        lease_seconds: float,
        clock: Callable[[], float],
        utc_now: Callable[[], datetime],
        rng: random.Random,
        name: str,
        review_server: ReviewServer | None = None,
        insecure: bool = False,
    ) -> None:
        """`name`: of this process, unique. `review_server`: what serves the webhook; None: HTTPS with the
        configured certificate. `insecure`: the webhook may answer anybody, also beyond loopback."""
        self._name = name
        self._review_server = review_server
        self._insecure = insecure
        self.binder = Binder(api, clock=clock, utc_now=utc_now, rng=rng)
        self._clock = clock
        self._utc_now = utc_now
        self._rng = rng
        self._api = api
        self._config = config
        self._ledger = ledger
        self._decide = decide
        self._problem = problem
        self._lease_seconds = lease_seconds
        self._webhook: BindingWebhook | None = None
        self._callers = WebhookCallers(
            certificate_names=config.client_names if config and config.client_authority else None,
            per_second=config.reviews_per_second if config else 0.0,
            clock=clock,
        )

    @property
    def counters(self) -> Counter[str]:
        """Bindings made, and bindings reviewed, by result."""
        reviews = self._webhook.counters + self._callers.counters if self._webhook else Counter[str]()
        return self.binder.counters + reviews

    def table_sizes(self) -> dict[str, int]:
        """What is remembered for bindings, and for the webhook."""
        if self._webhook is None:
            return self.binder.table_sizes()
        callers = {"webhook_callers": len(self._callers)}
        return self.binder.table_sizes() | self._webhook.table_sizes() | callers

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[dict[str, int]]:
        """Serve the webhook, if it is configured, within the block; yields its port by name."""
        config = self._config
        if config is None:
            yield {}
            return
        pods = WatchedPods(KubePods(self._api, patience_seconds=config.patience_seconds))
        storage = ClusterStorage(
            self._api, patience_seconds=config.patience_seconds, clock=self._clock, rng=self._rng
        )
        held = VolumesAndDevices(self._ledger, storage)
        self._webhook = BindingWebhook(
            self._ledger,
            self._decide,
            pods,
            held,
            # A unique name: a registration fences the former holder of the name.
            name=f"guard@{self._name}",
            exempt=config.exempt_namespaces,
            problem=self._problem,
            lease_seconds=self._lease_seconds,
            clock=self._clock,
        )
        watched = pods_of_other_schedulers(config.scheduler_names)
        reflector = Reflector(
            self._api, "/api/v1/pods", pods.on_changes, params=watched, clock=self._clock, rng=self._rng
        )
        followed = (reflector, *storage.reflectors)
        async with background(*(r.run() for r in followed), held.run(), self._webhook.under_way.run()):
            if self._review_server is not None:
                async with self._review_server(partial(answer_review, self._webhook)):
                    yield {}
                return
            async with self._https(config, self._webhook) as port:
                yield {"webhook_port": port}

    @asynccontextmanager
    async def _https(self, config: WebhookConfig, webhook: BindingWebhook) -> AsyncIterator[int]:
        """Serve the webhook by HTTPS once there is a certificate; yields the port."""
        live = LiveCertificate()
        if config.client_authority is not None:
            live.trust(config.client_authority)
        source = self._certificate_source(config, live)
        await wait_for_certificate(source)
        if self._callers.open:
            self._check_open(config.listen)
        refreshing = refresh_periodically(source, period_seconds=config.look_seconds, rng=self._rng)
        async with (
            background(refreshing),
            serve_webhook(webhook, config.listen, live.context, self._callers) as port,
        ):
            yield port

    def _check_open(self, listen: str) -> None:
        """Raises ConfigError where anybody might ask, and nobody said so."""
        if of_loopback(listen):
            return
        if not self._insecure:
            raise ConfigError(
                f"has no file {PATH_FILE!r} and webhook.client_authority names none, so whoever reaches"
                f" {listen} could reserve room: write a random word into that file and put it behind the path"
                " of the webhook's configuration (/bindings/WORD), or leave the directory out: then"
                " resolvers do that",
                where="webhook.certificate_directory",
            )
        logger().warning("insecure", listen=listen, meaning="whoever reaches the webhook may reserve room")

    def _certificate_source(self, config: WebhookConfig, live: LiveCertificate) -> CertificateSource:
        clock = self._utc_now
        if config.certificate_directory:
            return CertificateFiles(config.certificate_directory, live, self._callers, clock=clock)
        return CertificateSecret(
            self._api,
            live,
            secret=config.secret,
            configuration=config.configuration,
            hosts=config.hosts,
            lifetime=timedelta(days=config.certificate_days),
            clock=clock,
            callers=self._callers,
            rng=self._rng,
        )
