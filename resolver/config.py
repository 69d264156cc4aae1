"""The resolver's configuration document, kind ResolverConfig."""

import argparse
from pathlib import Path
from typing import Any

from pydantic import Field

from hoss.config import Document
from hoss.kube.config import KubernetesConfig
from hoss.telemetry.options import TelemetryConfig
from resolver.core.quarantine import QuarantineRules

KIND = "ResolverConfig"


class QuarantineConfig(Document):
    """What is done about nodes that keep refusing what workers believe to fit."""

    # So many refusals of proposals, within the window, by a node that has not changed since the worker looked, lead to its being
    # read again; so many more after that to its quarantine. One or two may be a worker's own mistake.
    refusals: int = Field(default=3, ge=1, le=1000)
    window_seconds: float = Field(default=60.0, gt=0, le=3600)

    # How long a node is out. It comes back by itself, and is watched as before.
    seconds: float = Field(default=300.0, gt=0, le=86_400)

    # Share of a shard's nodes that may be out at once, so that a fault everywhere cannot close the cluster; one always may.
    most_share: float = Field(default=0.05, ge=0, le=1)

    def rules(self) -> QuarantineRules:
        """As the core has them."""
        return QuarantineRules(self.refusals, self.window_seconds, self.seconds, self.most_share)


class WebhookConfig(Document):
    """The guard: a webhook that judges the bindings of every scheduler. Present: this resolver serves it."""

    # host:port; port 0 takes a free one. The API server has to reach it, so not loopback alone.
    listen: str = Field(default="0.0.0.0:8443", pattern=r"^\S+:[0-9]{1,5}$")

    # Where the certificate is: tls.crt and tls.key, as cert-manager's Secrets are mounted. They may change at any time. Left out:
    # resolvers make one, with an authority of their own.
    certificate_directory: Path | None = None

    # Of a certificate that resolvers make: the names and addresses that the API server calls them by, how long it lives (a third
    # of that before its end it is renewed), and the Secret (namespace/name) in which all resolvers find it.
    hosts: tuple[str, ...] = Field(default=("hoss-resolver.hoss-system.svc",), min_length=1)
    certificate_days: float = Field(default=90.0, gt=0, le=825)
    secret: str = Field(default="hoss-system/hoss-binding-guard", pattern="^[^/]+/[^/]+$")

    # The ValidatingWebhookConfiguration that is told of the authority.
    configuration: str = Field(default="hoss-binding-guard", min_length=1)

    # Seconds between two looks at the certificate.
    look_seconds: float = Field(default=60.0, gt=0, le=3600)

    # Namespaces whose bindings are allowed unseen, whatever the configuration's namespaceSelector sends here: a cluster that comes up
    # again binds the pods there before HOSS can run.
    exempt_namespaces: tuple[str, ...] = ("kube-system",)

    # Values of spec.schedulerName that are HOSS's own, as the dispatcher has them. What others are about to bind is watched.
    scheduler_names: tuple[str, ...] = Field(default=("hoss",), min_length=1)

    # Seconds for reading a pod. The webhook's own timeoutSeconds has to be longer.
    patience_seconds: float = Field(default=2.0, gt=0, le=30)


class ResolverConfig(TelemetryConfig):
    """Flags override the document's fields."""

    # host:port; port 0 takes a free one. Loopback unless said otherwise: the protocol has no authentication.
    listen: str = "127.0.0.1:7101"

    # Which Redis holds the ledger, with its database.
    redis_url: str = "redis://127.0.0.1:6379/0"

    # Shards of the ledger, fixed when it is made. One Redis serves one shard best; more are for Redis Cluster.
    shards: int = Field(default=1, ge=1, le=256)

    # Seconds a commit waits to be confirmed before it is taken back. Longer than a dispatcher takes to restart, short
    # enough that room held by lost messages comes back soon.
    reservation_lease_seconds: float = Field(default=30.0, gt=0, le=3600)

    # Seconds that a gang on several shards may hold room on some of them before it has all: many times what that takes, and
    # short, because nobody gains by it. Never more than the lease above.
    gang_hold_seconds: float = Field(default=5.0, gt=0, le=3600)

    # Seconds after which what rules about pods need to know of placements may be forgotten; a proposal that was made on an
    # older view of the cluster is refused then, where rules might see its pods.
    rules_memory_seconds: float = Field(default=300.0, gt=0, le=86400)

    # Seconds that a ledger which Redis has lost waits for a dispatcher to rebuild it, before an operator is asked to help.
    rebuild_wait_seconds: float = Field(default=30.0, gt=0, le=86400)

    # Entries kept for subscribers that reconnect; whoever is further behind gets a snapshot. An entry of 500 pods on as many
    # nodes is 60 KB, so this is up to 60 MB of Redis memory a shard, and some seconds of full load.
    feed_window_entries: int = Field(default=1000, ge=10, le=100_000)

    # Nodes that keep refusing what workers believe to fit.
    quarantine: QuarantineConfig = QuarantineConfig()

    # The cluster whose pods it binds; left out: none.
    kubernetes: KubernetesConfig | None = None

    # Serve the guard; left out: it is somebody else's, or nobody's.
    webhook: WebhookConfig | None = None

    # Accept proposals that ask not to be validated. For benchmarks that show what overcommits without a ledger.
    allow_unchecked: bool = False


def add_webhook_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that make a resolver serve the guard. Each is a field of the document's section `webhook`."""
    parser.add_argument(
        "--webhook-listen", metavar="HOST:PORT", help="serve the webhook that judges other schedulers' bindings"
    )
    parser.add_argument(
        "--webhook-host", action="append", metavar="NAME", help="that the API server calls it by; may be repeated"
    )
    parser.add_argument(
        "--webhook-cert-dir", type=Path, help="with tls.crt and tls.key; else resolvers make a certificate"
    )
    parser.add_argument(
        "--webhook-secret", metavar="NAMESPACE/NAME", help="in which resolvers keep the certificate they make"
    )
    parser.add_argument("--webhook-configuration", metavar="NAME", help="the ValidatingWebhookConfiguration")


def webhook_given(flags: argparse.Namespace, base: WebhookConfig | None) -> dict[str, Any]:
    """What the flags make of the section `base` of a document: the field `webhook`, or nothing where they say nothing."""
    given = {
        "listen": flags.webhook_listen,
        "hosts": flags.webhook_host,
        "certificate_directory": flags.webhook_cert_dir,
        "secret": flags.webhook_secret,
        "configuration": flags.webhook_configuration,
    }
    said = {name: value for name, value in given.items() if value is not None}
    return {"webhook": {**(base.model_dump() if base else {}), **said}} if said else {}
