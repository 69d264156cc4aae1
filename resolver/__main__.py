"""Start a resolver: `python -m resolver --redis-url redis://127.0.0.1:6379/0`."""

import argparse
import asyncio
import contextlib
import os
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hoss import serving, telemetry
from hoss.config import load_document, with_flags
from hoss.errors import ConfigError, HossError, LedgerUnavailable
from hoss.host import THIS_HOST, Host
from hoss.interceptor import CallInterceptor
from hoss.kube.config import add_kubernetes_flags, kubernetes_given
from hoss.kube.token_review import service_accounts_reviewed
from hoss.limits.callers import CallerLimits
from hoss.security.identity import CallerKind
from hoss.security.options import (
    add_authentication_flag,
    add_security_flags,
    door_source,
    host_of,
    metrics_door,
)
from hoss.tasks import background
from hoss.telemetry import options
from hoss.telemetry.collector import metrics_pushed
from hoss.telemetry.endpoint import metrics_endpoint
from hoss.telemetry.metrics import LoopDelay, Metrics, process_source
from hoss.v1 import resolver_pb2
from hoss.v1.resolver_pb2_grpc import add_ResolverServicer_to_server
from resolver.api.committing import Committer
from resolver.api.feed import ShardFeed
from resolver.api.maintenance import Availability, finish_removals, forget_periodically, reap_periodically
from resolver.api.proposing import ProposeStream
from resolver.api.quarantine import Quarantine
from resolver.api.rebuilding import RebuildService
from resolver.api.service import EpochGrants, ResolverService
from resolver.config import KIND, ResolverConfig, add_webhook_flags, webhook_given
from resolver.kubernetes.existing_pods import ExistingPodReservations
from resolver.ledger.quarantine import RedisQuarantine
from resolver.ledger.rebuild import RedisRebuild
from resolver.ledger.store import RedisLedger
from resolver.messages.proposals import group_of
from resolver.metrics import ResolverSource

if TYPE_CHECKING:
    from hoss.telemetry.tracing import Tracer
    from resolver.kubernetes.mode import KubernetesServices

_OPEN_RETRY_SECONDS = 0.5
_SERVICE_NAME = resolver_pb2.DESCRIPTOR.services_by_name["Resolver"].full_name


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="resolver", description="The conflict resolver: the only writer of the ledger."
    )
    parser.add_argument("--config", type=Path, help=f"a {KIND} document; flags override it")
    parser.add_argument("--listen", help="host:port, port 0 for a free one")
    options.add_flags(parser)
    add_security_flags(parser)
    add_authentication_flag(parser)
    parser.add_argument("--redis-url", help="the ledger's Redis")
    parser.add_argument(
        "--shards", type=int, help="of a ledger that is made now; an existing one has its own"
    )
    parser.add_argument("--reservation-lease-seconds", type=float)
    parser.add_argument("--gang-hold-seconds", type=float)
    parser.add_argument("--rules-memory-seconds", type=float)
    parser.add_argument("--feed-window-entries", type=int)
    parser.add_argument("--rebuild-wait-seconds", type=float)
    add_kubernetes_flags(parser)
    add_webhook_flags(parser)
    parser.add_argument("--allow-unchecked", action="store_true", default=None, help="for benchmarks only")
    parser.add_argument("--ready-file", type=Path, help="written with the port once serving")
    parser.add_argument("--log-level", default="info", help="least level that is logged")
    return parser


def _configuration(arguments: argparse.Namespace) -> ResolverConfig:
    config = load_document(arguments.config, KIND, ResolverConfig)
    flags = {name: vars(arguments).get(name) for name in ResolverConfig.model_fields}
    flags |= kubernetes_given(arguments, config.kubernetes) | webhook_given(arguments, config.webhook)
    made = with_flags(config, flags)
    if made.webhook and not made.kubernetes:
        raise ConfigError(
            "reads pods of the API server: give --kubeconfig or --in-cluster as well", where="webhook"
        )
    if made.webhook and made.webhook.certificate_directory:
        _check_certificate(made.webhook.certificate_directory)
    return made


def _check_certificate(directory: Path) -> None:
    from resolver.kubernetes.webhook.server import CERTIFICATE_FILES  # noqa: PLC0415 - for the webhook alone

    missing = [name for name in CERTIFICATE_FILES if not os.access(directory / name, os.R_OK)]
    if missing:
        raise ConfigError(
            f"has no {' and no '.join(missing)} that can be read; mount the Secret there, or leave it out: "
            "then resolvers make a certificate",
            where=f"webhook certificate directory {directory}",
        )


async def serve(
    config: ResolverConfig,
    ready_file: Path | None,
    tracer: "Tracer | None" = None,
    *,
    host: Host = THIS_HOST,
) -> None:
    """Serve until SIGTERM. Answers from the start; ready once the ledger is open."""
    # First, so that a wrong path is reported at once, however long the ledger takes to come.
    api = None
    if config.kubernetes is not None:
        api = host.kube_api(
            partial(config.kubernetes.api, "hoss-resolver", clock=host.monotonic, rng=host.rng)
        )
    reviews = service_accounts_reviewed(config.kubernetes, "hoss-resolver", host=host)
    ledger = RedisLedger(
        config.redis_url,
        lease_ms=round(config.reservation_lease_seconds * 1000),
        prepare_ms=round(config.gang_hold_seconds * 1000),
        feed_window=config.feed_window_entries,
        open_redis=host.redis,
        rng=host.rng,
    )
    await _open(ledger, config.shards)
    limits = CallerLimits(config.limits, clock=host.monotonic)
    server = host.server((CallInterceptor(limits, [f"/{_SERVICE_NAME}/Feed"]),))
    store = RedisRebuild(
        ledger,
        feed_window=config.feed_window_entries,
        lease_ms=round(config.reservation_lease_seconds * 1000),
        rng=host.rng,
    )
    availability = Availability(
        ledger,
        server.set_serving,
        store.recover,
        rebuild_wait_seconds=config.rebuild_wait_seconds,
        advised_reservations_per_shard=config.advised_reservations_per_shard,
        clock=host.monotonic,
    )
    quarantine = Quarantine(
        RedisQuarantine(ledger),
        ledger.shards,
        config.quarantine.rules(),
        clock=host.monotonic,
        unix_clock=host.unix,
    )
    committers = [
        Committer(ledger, shard, quarantine.observe, clock=host.monotonic) for shard in range(ledger.shards)
    ]
    feeds = [ShardFeed(ledger, shard) for shard in range(ledger.shards)]
    traces = None
    if tracer is not None:
        from resolver.tracing import ResolverTraces  # noqa: PLC0415 - most resolvers are not traced

        traces = ResolverTraces(tracer)
    proposing = ProposeStream(
        ledger,
        committers,
        availability,
        allow_unchecked=config.allow_unchecked,
        victims_terminate=api is not None,
        clock=host.monotonic,
        traces=traces,
    )
    reaped: Counter[str] = Counter()
    kubernetes: KubernetesServices | None = None
    if api is not None:
        from resolver.kubernetes import mode  # noqa: PLC0415 - for Kubernetes mode alone

        kubernetes = mode.KubernetesServices(
            api,
            config.webhook,
            ledger,
            proposing.decide,
            lambda: availability.problem,
            lease_seconds=config.reservation_lease_seconds,
            clock=host.monotonic,
            utc_now=host.utc_now,
            rng=host.rng,
            name=host.process_name(),
            review_server=host.review_server(),
            insecure=config.insecure,
        )

    def counters() -> Counter[str]:
        own = proposing.counters + reaped + quarantine.counters
        own += kubernetes.counters if kubernetes else Counter()
        return sum((committer.counters for committer in committers), own)

    def own_tables() -> dict[str, int]:
        return {
            **ledger.own_tables(),
            "group_definitions": group_of.cache_info().currsize,
            **(kubernetes.table_sizes() if kubernetes else {}),
            **service.table_sizes(),
        }

    service = ResolverService(
        ledger,
        feeds,
        proposing,
        availability,
        quarantine=quarantine,
        counters=counters,
        rebuilding=RebuildService(ledger, store, now_us=lambda: int(host.unix() * 10**6), rng=host.rng),
        existing_pods=ExistingPodReservations(
            ledger,
            kubernetes.binder if kubernetes else None,
            reviews_bindings=config.webhook is not None,
        ),
        max_request_rows=config.max_request_rows,
        grants=EpochGrants(config.grants_per_second, host.monotonic) if config.grants_per_second else None,
        unix_clock=host.unix,
        traces=traces,
    )
    add_ResolverServicer_to_server(service, server.grpc)
    port = await server.start(config.listen, [_SERVICE_NAME], reflected=config.reflection)
    loop_delay = LoopDelay()
    metrics = Metrics(
        process_source("resolver"),
        loop_delay,
        limits,
        ResolverSource(committers, availability, counters, own_tables),
        door_source("resolver", host, limits.table_sizes),
    )
    jobs = [
        loop_delay.run(),
        *(committer.run() for committer in committers),
        *(feed.run() for feed in feeds),
        availability.run(),
        quarantine.run(),
        reap_periodically(ledger, reaped, period_seconds=min(1.0, config.reservation_lease_seconds / 4)),
        forget_periodically(ledger, reaped, period_seconds=config.rules_memory_seconds),
        finish_removals(ledger, reaped, period_seconds=min(2.0, config.reservation_lease_seconds / 4)),
    ]
    try:
        async with background(*jobs), contextlib.AsyncExitStack() as running:
            ports = {"port": port}
            ports["metrics_port"] = await running.enter_async_context(
                metrics_endpoint(
                    config.metrics_listen,
                    metrics,
                    metrics_door(config.metrics_listen, config.metrics_tls, config, host),
                )
            )
            await running.enter_async_context(metrics_pushed("resolver", metrics))
            if kubernetes is not None:
                ports |= await running.enter_async_context(kubernetes.serving())
            telemetry.logger().info("serving", **ports, ledger_epoch=ledger.epoch, shards=ledger.shards)
            serving.announce_ready(ready_file, **ports, service="resolver")
            await host.until_stopped()
    finally:  # also if the webhook cannot be served
        await server.stop()
        await ledger.close()
        for client in (api, reviews):
            if client is not None:
                await client.close()


async def _open(ledger: RedisLedger, shards: int) -> None:
    while True:
        try:
            return await ledger.open(shards)
        except LedgerUnavailable as exc:
            telemetry.logger().warning("waiting_for_ledger", error=str(exc))
        await asyncio.sleep(_OPEN_RETRY_SECONDS)


def main() -> None:
    """Parse flags and serve; exit 2 for an invalid configuration."""
    arguments = _parser().parse_args()
    telemetry.configure("resolver", level=arguments.log_level)
    try:
        config = _configuration(arguments)
        with options.tracing("resolver", config.trace_file) as tracer:
            host = host_of(
                config,
                config.listen,
                config.authentication,
                kind=CallerKind.RESOLVER,
                metrics_listen=config.metrics_listen,
            )
            serving.run(lambda: serve(config, arguments.ready_file, tracer, host=host))
    except HossError as exc:
        sys.stderr.write(f"resolver: {exc}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
