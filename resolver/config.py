"""The resolver's configuration document, kind ResolverConfig."""

import argparse
from pathlib import Path
from typing import Any

from pydantic import Field

from hoss.config import Document
from hoss.kube.config import KubernetesConfig
from hoss.limits.callers import CallerLimitsConfig
from hoss.security.options import SecurityConfig
from hoss.telemetry.options import TelemetryConfig
from resolver.core.quarantine import QuarantineRules

KIND = "ResolverConfig"


class QuarantineConfig(Document):
    """Quarantine of nodes that keep refusing pods that fit by the workers' caches."""

    # After so many refusals within the window, by a node that has not changed since the worker's snapshot,
    # the node is read again; after so many more it is quarantined. One or two may be a worker's own mistake.
    refusals: int = Field(default=3, ge=1, le=1000)
    window_seconds: float = Field(default=60.0, gt=0, le=3600)

    # How long the quarantine of a node lasts. It ends by itself, and the node is watched as before.
    seconds: float = Field(default=300.0, gt=0, le=86_400)

    # Share of a shard's nodes that may be quarantined at once, so that a fault everywhere does not close the
    # cluster. One node always may.
    most_share: float = Field(default=0.05, ge=0, le=1)

    def rules(self) -> QuarantineRules:
        """For the core."""
        return QuarantineRules(self.refusals, self.window_seconds, self.seconds, self.most_share)


class WebhookConfig(Document):
    """The binding webhook, which validates the bindings of every scheduler. Present: this resolver serves
    it."""

    # host:port; port 0 takes a free one. The API server has to reach it, so it cannot be loopback alone.
    listen: str = Field(
        default="0.0.0.0:8443", pattern=r"^\S+:[0-9]{1,5}$", description="an address as HOST:PORT"
    )

    # Directory of the certificate: tls.crt and tls.key, as cert-manager's Secrets are mounted. The files may
    # change at any time. A file `path` there has the secret word of the path that the API server asks at
    # (/bindings/WORD); beyond loopback it takes that, or `client_authority`. Left out: resolvers make a
    # certificate, with an authority of their own, and a path, and publish both.
    certificate_directory: Path | None = None

    # For a certificate that resolvers make: the names and addresses that the API server calls them by, its
    # lifetime (it is renewed when a third of that is left), and the Secret (namespace/name) in which all
    # resolvers find it.
    hosts: tuple[str, ...] = Field(default=("hoss-resolver.hoss-system.svc",), min_length=1)
    certificate_days: float = Field(default=90.0, gt=0, le=825)
    secret: str = Field(
        default="hoss-system/hoss-binding-guard",
        pattern="^[^/]+/[^/]+$",
        description="a Secret as NAMESPACE/NAME",
    )

    # The ValidatingWebhookConfiguration that gets the authority's certificate.
    configuration: str = Field(default="hoss-binding-guard", min_length=1)

    # Seconds between two checks of the certificate and of the configuration that names its authority. Until
    # then a configuration that was made, or made anew, since the last one is of no use: the API server
    # cannot ask.
    look_seconds: float = Field(default=3.0, gt=0, le=3600)

    # The authority, PEM, of the client certificate that the API server shows to webhooks (the kubeConfigFile
    # of its AdmissionConfiguration says which). Whoever shows none of it may not ask. Left out: the path is
    # enough.
    client_authority: Path | None = None

    # Names, common or alternative, of which that certificate has one. Left out: any certificate of the
    # authority.
    client_names: tuple[str, ...] = ()

    # Questions a second that an address may ask; a burst may have ten seconds' worth. More are answered 429,
    # and the failurePolicy decides. 0: any number.
    reviews_per_second: float = Field(default=5000.0, ge=0, le=1_000_000)

    # Namespaces whose bindings are allowed unchecked, whatever the configuration's namespaceSelector sends
    # here: a cluster that starts again binds the pods there before HOSS can run.
    exempt_namespaces: tuple[str, ...] = ("kube-system",)

    # Values of spec.schedulerName that are HOSS's own, as in the dispatcher's document. Pending pods of other
    # schedulers are watched.
    scheduler_names: tuple[str, ...] = Field(default=("hoss",), min_length=1)

    # Seconds for reading a pod. The webhook's own timeoutSeconds has to be longer.
    patience_seconds: float = Field(default=0.8, gt=0, le=30)


class ResolverConfig(TelemetryConfig, SecurityConfig):
    """Flags override the document's fields."""

    # host:port; port 0 takes a free one. Beyond loopback it takes `tls_dir`, or `insecure`.
    listen: str = "127.0.0.1:7101"

    # Which Redis holds the ledger, with its database.
    redis_url: str = "redis://127.0.0.1:6379/0"

    # Shards of the ledger, fixed when it is made. One Redis serves one shard best; more are for Redis
    # Cluster.
    shards: int = Field(default=1, ge=1, le=256)

    # Seconds a commit waits to be confirmed before it is aborted. Longer than a dispatcher takes to restart,
    # and short enough that room held by lost messages is soon free again.
    reservation_lease_seconds: float = Field(default=30.0, gt=0, le=3600)

    # Seconds that a gang on several shards may hold room on some of them before it has room on all: many
    # times what that takes, and short, because that room is idle. Never more than the lease above.
    gang_hold_seconds: float = Field(default=5.0, gt=0, le=3600)

    # Seconds for which placements are remembered for rules about pods. A proposal from an older snapshot of
    # the cluster is refused if such rules might concern its pods.
    rules_memory_seconds: float = Field(default=300.0, gt=0, le=86400)

    # Seconds that the resolver waits for a dispatcher to rebuild a ledger which Redis has lost, before it
    # asks an operator for help.
    rebuild_wait_seconds: float = Field(default=30.0, gt=0, le=86400)

    # Entries kept for subscribers that reconnect; one that is further behind gets a snapshot. An entry of 500
    # pods on as many nodes is 60 KB, so this is up to 60 MB of Redis memory a shard, and some seconds of full
    # load.
    feed_window_entries: int = Field(default=1000, ge=10, le=100_000)

    # Advice, not a limit: with more reservations on one shard, `hoss status`, `hoss audit` and the log say
    # so, and none is refused. While a shard changes, its reservations are read in one step of Redis, and so
    # many take it less than 50 ms.
    advised_reservations_per_shard: int = Field(default=125_000, ge=1000, le=10_000_000)

    # Rows (UIDs, commits, nodes) in one request, at most; a larger one is refused, and is to be sent in
    # parts. Requests are served in slices, so others wait for milliseconds only; but a call has its deadline.
    max_request_rows: int = Field(default=100_000, ge=10_000, le=4_000_000)

    # Epochs granted a second to workers of one name; a burst may have 25 seconds' worth. A worker needs one
    # for each time it registers or is fenced. One caller gets so many for 20 names. 0: any number.
    grants_per_second: float = Field(default=2.0, ge=0, le=1_000_000)

    # An AuthenticationConfig document: whose bearer tokens are taken besides the platform's own. It takes
    # `tls_dir`. Dispatchers and resolvers are given the same one.
    authentication: Path | None = None

    # What each caller may do.
    limits: CallerLimitsConfig = CallerLimitsConfig()

    # When nodes are quarantined.
    quarantine: QuarantineConfig = QuarantineConfig()

    # The cluster whose pods the resolver binds; left out: none.
    kubernetes: KubernetesConfig | None = None

    # Serve the binding webhook; left out: this resolver does not.
    webhook: WebhookConfig | None = None

    # Accept proposals that are not to be validated. For benchmarks that show overcommitment without a ledger.
    allow_unchecked: bool = False


def add_webhook_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of the binding webhook. Each is a field of the document's section `webhook`."""
    parser.add_argument(
        "--webhook-listen",
        metavar="HOST:PORT",
        help="serve the webhook that judges other schedulers' bindings",
    )
    parser.add_argument(
        "--webhook-host",
        action="append",
        metavar="NAME",
        help="that the API server calls it by; may be repeated",
    )
    parser.add_argument(
        "--webhook-cert-dir", type=Path, help="with tls.crt and tls.key; else resolvers make a certificate"
    )
    parser.add_argument(
        "--webhook-secret", metavar="NAMESPACE/NAME", help="in which resolvers keep the certificate they make"
    )
    parser.add_argument("--webhook-configuration", metavar="NAME", help="the ValidatingWebhookConfiguration")


def webhook_given(flags: argparse.Namespace, base: WebhookConfig | None) -> dict[str, Any]:
    """The field `webhook`, from the document's section `base` and the flags; empty without flags."""
    fields = {
        "listen": flags.webhook_listen,
        "hosts": flags.webhook_host,
        "certificate_directory": flags.webhook_cert_dir,
        "secret": flags.webhook_secret,
        "configuration": flags.webhook_configuration,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return {"webhook": {**(base.model_dump() if base else {}), **given}} if given else {}
