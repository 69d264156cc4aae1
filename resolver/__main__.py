"""Start a resolver: `python -m resolver --redis-url redis://127.0.0.1:6379/0`."""

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from hoss import rpc, telemetry
from hoss.config import describe_validation, load_document
from hoss.errors import ConfigError, HossError, LedgerUnavailable
from hoss.kube.config import add_kubernetes_flags, kubernetes_given
from hoss.telemetry import options
from hoss.telemetry.endpoint import metrics_endpoint
from hoss.telemetry.metrics import Metrics, process_source
from hoss.telemetry.pushing import metrics_pushed
from hoss.v1 import resolver_pb2
from hoss.v1.resolver_pb2_grpc import add_ResolverServicer_to_server
from resolver.availability import Availability
from resolver.committer import Committer
from resolver.config import KIND, ResolverConfig, WebhookConfig, add_webhook_flags, webhook_given
from resolver.feed import ShardFeed
from resolver.ledger.quarantine import RedisQuarantine
from resolver.ledger.rebuild import RedisRebuild
from resolver.ledger.store import RedisLedger
from resolver.metrics import ResolverSource
from resolver.proposing import Proposing
from resolver.quarantine import Quarantine
from resolver.reaper import forget_for_ever, reap_for_ever
from resolver.rebuilding import Rebuilding
from resolver.service import ResolverService
from resolver.standing import Standing

if TYPE_CHECKING:
    from hoss.kube.api import KubeApi
    from hoss.telemetry.tracing import Tracer
    from resolver.binder import Binder
    from resolver.binding_guard import BindingGuard
    from resolver.pod_source import PodSource, WatchedPods
    from resolver.tracing import ResolverTraces
    from resolver.webhook_tls import CertificateSource

_OPEN_RETRY_SECONDS = 0.5
_SERVICE_NAME = resolver_pb2.DESCRIPTOR.services_by_name["Resolver"].full_name


def _arguments() -> argparse.Namespace:
    return _parser().parse_args()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="resolver", description="The conflict resolver: the only writer of the ledger."
    )
    parser.add_argument("--config", type=Path, help=f"a {KIND} document; flags override it")
    parser.add_argument("--listen", help="host:port, port 0 for a free one")
    options.add_flags(parser)
    parser.add_argument("--redis-url", help="the ledger's Redis")
    parser.add_argument("--shards", type=int, help="of a ledger that is made now; an existing one has its own")
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
    config = load_document(arguments.config, KIND, ResolverConfig) if arguments.config else ResolverConfig()
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    flags: dict[str, Any] = {name: given[name] for name in ResolverConfig.model_fields if name in given}
    flags |= kubernetes_given(arguments, config.kubernetes) | webhook_given(arguments, config.webhook)
    try:
        made = ResolverConfig.model_validate({**config.model_dump(), **flags})
    except ValidationError as exc:
        raise ConfigError(describe_validation(exc), where="flags") from exc
    if made.webhook and not made.kubernetes:
        raise ConfigError("reads pods of the API server: give --kubeconfig or --in-cluster as well", where="webhook")
    directory = made.webhook.certificate_directory if made.webhook else None
    if directory and (missing := _missing_files(directory)):
        raise ConfigError(
            f"has no {' and no '.join(missing)} that can be read; mount the Secret there, or leave it out: then resolvers make "
            "a certificate",
            where=f"webhook certificate directory {directory}",
        )
    return made


def _missing_files(directory: Path) -> list[str]:
    from resolver.webhook_tls import CERTIFICATE_FILES  # noqa: PLC0415 - see _pods

    return [name for name in CERTIFICATE_FILES if not os.access(directory / name, os.R_OK)]


async def serve(config: ResolverConfig, ready_file: Path | None, tracer: "Tracer | None" = None) -> None:
    """Serve until SIGTERM. Answers from the start; ready once the ledger is open."""
    # First: a wrong path is said at once, however long the ledger is waited for.
    api = config.kubernetes.api("hoss-resolver") if config.kubernetes else None
    ledger = RedisLedger(
        config.redis_url,
        lease_ms=round(config.reservation_lease_seconds * 1000),
        hold_ms=round(config.gang_hold_seconds * 1000),
        feed_window=config.feed_window_entries,
    )
    await _open(ledger, config.shards)
    server = rpc.Server()
    binder = _binder(api) if api else None
    store = RedisRebuild(
        ledger,
        feed_window=config.feed_window_entries,
        lease_ms=round(config.reservation_lease_seconds * 1000),
    )
    availability = Availability(
        ledger, server.set_serving, store.take_up, rebuild_wait_seconds=config.rebuild_wait_seconds
    )
    quarantine = Quarantine(RedisQuarantine(ledger), ledger.shards, config.quarantine.rules())
    committers = [Committer(ledger, shard, quarantine.heard) for shard in range(ledger.shards)]
    feeds = [ShardFeed(ledger, shard) for shard in range(ledger.shards)]
    traces = None if tracer is None else _traces(tracer)
    proposing = Proposing(ledger, committers, availability, allow_unchecked=config.allow_unchecked, traces=traces)
    reaped: Counter[str] = Counter()
    pods = _pods(config.webhook, api) if config.webhook and api else None
    guard = _guard(config.webhook, pods, ledger, proposing, availability) if config.webhook and pods else None

    def counters() -> Counter[str]:
        own = proposing.counters + reaped + quarantine.counters + (binder.counters if binder else Counter())
        own += guard.counters if guard else Counter()
        return sum((committer.counters for committer in committers), own)

    service = ResolverService(
        ledger,
        feeds,
        proposing,
        availability,
        quarantine=quarantine,
        counters=counters,
        rebuilding=Rebuilding(ledger, store, now_us=lambda: time.time_ns() // 1000),
        standing=Standing(ledger, binder),
        traces=traces,
    )
    add_ResolverServicer_to_server(service, server.grpc)
    port = await server.start(config.listen, [_SERVICE_NAME])
    metrics = Metrics(process_source("resolver"), ResolverSource(committers, availability, counters))
    jobs = [
        *(committer.run() for committer in committers),
        *(feed.run() for feed in feeds),
        availability.run(),
        quarantine.run(),
        reap_for_ever(ledger, reaped, period_seconds=min(1.0, config.reservation_lease_seconds / 4)),
        forget_for_ever(ledger, reaped, period_seconds=config.rules_memory_seconds),
    ]
    try:
        async with rpc.background(*jobs), contextlib.AsyncExitStack() as serving:
            ports = {"port": port}
            ports["metrics_port"] = await serving.enter_async_context(metrics_endpoint(config.metrics_listen, metrics))
            await serving.enter_async_context(metrics_pushed("resolver", metrics))
            if config.webhook and api and pods and guard:
                from hoss.kube.reflector import Reflector  # noqa: PLC0415 - for the guard alone
                from resolver.pod_source import pending_elsewhere  # noqa: PLC0415

                elsewhere = pending_elsewhere(config.webhook.scheduler_names)
                reflector = Reflector(api, "/api/v1/pods", pods.told, params=elsewhere)
                await serving.enter_async_context(rpc.background(reflector.run()))
                ports["webhook_port"] = await serving.enter_async_context(_webhook(config.webhook, api, guard))
            telemetry.logger().info("serving", **ports, ledger_epoch=ledger.epoch, shards=ledger.shards)
            rpc.announce_ready(ready_file, **ports, service="resolver")
            await rpc.until_stopped()
    finally:  # in order, too, where the webhook cannot be served
        await server.stop()
        await ledger.close()
        if api is not None:
            await api.close()


def _traces(tracer: "Tracer") -> "ResolverTraces":
    from resolver.tracing import ResolverTraces  # noqa: PLC0415 - most resolvers are not traced

    return ResolverTraces(tracer)


def _binder(api: "KubeApi") -> "Binder":
    from resolver.binder import Binder  # noqa: PLC0415 - for Kubernetes mode alone

    return Binder(api)


def _pods(config: WebhookConfig, api: "KubeApi") -> "WatchedPods":
    from resolver.pod_source import KubePods, WatchedPods  # noqa: PLC0415 - for the guard alone

    return WatchedPods(KubePods(api, patience_seconds=config.patience_seconds))


def _guard(
    config: WebhookConfig, pods: "PodSource", ledger: RedisLedger, proposing: Proposing, availability: Availability
) -> "BindingGuard":
    from resolver.binding_guard import BindingGuard  # noqa: PLC0415 - see _pods

    return BindingGuard(
        ledger,
        proposing.decide,
        pods,
        # One of its own: to register under a name fences whoever had it before.
        name=f"guard@{socket.gethostname()}:{os.getpid()}",
        exempt=config.exempt_namespaces,
        problem=lambda: availability.problem,
    )


@contextlib.asynccontextmanager
async def _webhook(config: WebhookConfig, api: "KubeApi", guard: "BindingGuard") -> AsyncIterator[int]:
    """Serve the guard within the block; gives the port."""
    from resolver.webhook import serving as serving_webhook  # noqa: PLC0415 - see _pods
    from resolver.webhook_secret import CertificateSecret  # noqa: PLC0415
    from resolver.webhook_tls import (  # noqa: PLC0415
        CertificateFiles,
        LiveCertificate,
        look_for_ever,
        look_until_there,
    )

    live = LiveCertificate()
    clock = partial(datetime.now, timezone.utc)
    source: CertificateSource = (
        CertificateFiles(config.certificate_directory, live, clock=clock)
        if config.certificate_directory
        else CertificateSecret(
            api,
            live,
            secret=config.secret,
            configuration=config.configuration,
            hosts=config.hosts,
            lifetime=timedelta(days=config.certificate_days),
            clock=clock,
        )
    )
    await look_until_there(source)
    looking = look_for_ever(source, period_seconds=config.look_seconds)
    async with rpc.background(looking), serving_webhook(guard, config.listen, live.context) as port:
        yield port


async def _open(ledger: RedisLedger, shards: int) -> None:
    while problem := await _opening_problem(ledger, shards):
        telemetry.logger().warning("waiting_for_ledger", error=problem)
        await asyncio.sleep(_OPEN_RETRY_SECONDS)


async def _opening_problem(ledger: RedisLedger, shards: int) -> str:
    try:
        await ledger.open(shards)
    except LedgerUnavailable as exc:
        return str(exc)
    return ""


def main() -> None:
    """Parse flags and serve; exit 2 for a wrong configuration."""
    arguments = _arguments()
    telemetry.configure("resolver", level=arguments.log_level)
    try:
        config = _configuration(arguments)
        with options.tracing("resolver", config.trace_file) as tracer:
            rpc.run(lambda: serve(config, arguments.ready_file, tracer))
    except HossError as exc:
        sys.stderr.write(f"resolver: {exc}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
