"""The dispatcher's composition root: `python -m dispatcher`."""

import contextlib
import random
import sys
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc.aio

from dispatcher.api.request_router import RequestRouter, Services
from dispatcher.api.service import DispatcherService
from dispatcher.config import ClusterSection, DispatcherConfig
from dispatcher.core.machine import Machine, Settings
from dispatcher.core.policy.rules import Policy
from dispatcher.core.queue.tenants import shares_of_cards
from dispatcher.flags import parse_flags, read_config
from dispatcher.journal.checkpointer import Checkpointer
from dispatcher.journal.memory import PodlessJournal
from dispatcher.journal.redis_store import RedisJournal
from dispatcher.leader.elector import LeaderElector
from dispatcher.leader.leadership import Leadership
from dispatcher.leader.lease import Lease, RedisLease
from dispatcher.ledger.client import FencedLedger, ResolverLedger
from dispatcher.ledger.moving import Mover
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.ledger.rebinding import Rebinding
from dispatcher.ledger.rebuilding import LedgerRebuilder
from dispatcher.ledger.reconciliation import Reconciler
from dispatcher.metrics import Activity, Terms, TermSource
from dispatcher.policy.documents import facts_from_bytes
from dispatcher.policy.source import ActivePolicy
from dispatcher.recovery import recover
from dispatcher.runtime import Runtime
from dispatcher.workers.link import AllowedLabels, WorkerLinks
from dispatcher.workers.preemption import PreemptionAnswers
from dispatcher.workers.queries import CacheViewQueries, DecisionQueries
from hoss import serving, telemetry
from hoss.client.feed import Subscription
from hoss.client.resolver import ResolverClient
from hoss.errors import HossError, LedgerUnavailable, TransportError
from hoss.host import THIS_HOST, Host
from hoss.interceptor import CallInterceptor
from hoss.kube.token_review import service_accounts_reviewed
from hoss.limits.callers import CallerLimits
from hoss.model.pod import PodSpec
from hoss.security.identity import CallerKind
from hoss.security.options import door_source, host_of, metrics_door
from hoss.tasks import background
from hoss.telemetry import options
from hoss.telemetry.collector import metrics_pushed
from hoss.telemetry.endpoint import metrics_endpoint
from hoss.telemetry.metrics import LoopDelay, Metrics, process_source
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.v1.dispatcher_pb2_grpc import add_DispatcherServicer_to_server
from hoss.v1.workerlink_pb2_grpc import add_WorkerLinkServicer_to_server
from hoss.wire.convert import pod_spec_from_proto

if TYPE_CHECKING:
    from dispatcher.kubernetes.informers import Informers, StandbyInformers
    from dispatcher.kubernetes.mode import KubernetesMode
    from dispatcher.tracing import DispatcherTraces
    from hoss.kube.api import KubeApi
    from hoss.telemetry.tracing import Tracer

# Revisions of a term start at its number shifted by this. So those of earlier terms are lower, and a watcher
# that has one must list again.
REVISION_BITS = 32

SERVICES = ("hoss.v1.Dispatcher", "hoss.v1.WorkerLink")
RESUMABLE = ("/hoss.v1.Dispatcher/Watch",)


def main() -> int:
    """Run until SIGTERM. Exit code 1 and one line on stderr when it cannot start."""
    flags = parse_flags()
    telemetry.configure("dispatcher", level=flags.log_level)
    try:
        config = read_config(flags)
        with options.tracing("dispatcher", config.trace_file, ratio=config.trace_ratio) as tracer:
            host = host_of(
                config,
                config.listen,
                config.authentication,
                kind=CallerKind.DISPATCHER,
                metrics_listen=config.metrics_listen,
            )
            serving.run(lambda: serve(config, flags.ready_file, tracer, host=host))
    except HossError as exc:
        print(f"dispatcher: {exc}", file=sys.stderr)  # noqa: T201 - for a user who started it in a terminal
        return 1
    return 0


async def serve(
    config: DispatcherConfig,
    ready_file: Path | None,
    tracer: "Tracer | None" = None,
    *,
    host: Host = THIS_HOST,
) -> None:
    """Listen, and stand by or lead as the lease decides, until SIGTERM. Announces readiness once the role is
    known."""
    lease = _lease(config, host)
    dispatcher = _Dispatcher(config, tracer, host)
    try:
        port = await dispatcher.server.start(
            config.listen, SERVICES, serving=False, reflected=config.reflection
        )
        elector = LeaderElector(
            lease,
            config.advertised(port),
            serve=dispatcher.lead,
            on_standby=dispatcher.stand_by,
            on_lease_uncertain=dispatcher.lease_uncertain,
            newest_term=dispatcher.newest_term,
            clock=host.monotonic,
            rng=host.rng,
        )
        endpoint = metrics_endpoint(
            config.metrics_listen,
            dispatcher.metrics,
            metrics_door(config.metrics_listen, config.metrics_tls, config, host),
        )
        pushed = metrics_pushed("dispatcher", dispatcher.metrics)
        terms = dispatcher.metrics.showing(Terms(elector))
        async with (
            terms,
            endpoint as metrics_port,
            pushed,
            background(elector.run(), *dispatcher.jobs()),
        ):
            await elector.role_known.wait()
            serving.announce_ready(ready_file, port=port, metrics_port=metrics_port, service="dispatcher")
            await host.until_stopped()
    finally:
        await dispatcher.server.stop()
        await lease.close()
        await dispatcher.close()


class _Dispatcher:
    """What outlives terms: the ports, and the connections to resolvers and to the API server."""

    def __init__(self, config: DispatcherConfig, tracer: "Tracer | None", host: Host) -> None:
        self._config = config
        self._tracer = tracer
        self._host = host
        self._resolver = ResolverClient(config.resolvers, open_channel=host.channel)
        self._api, self._informers = None, None
        if config.kubernetes is not None:
            self._api = _kube_api(config.kubernetes, "hoss-dispatcher", host)
            self._informers = _informers(self._api, config.kubernetes, config.max_pod_terms, host)
        self._reviews = service_accounts_reviewed(config.kubernetes, "hoss-dispatcher", host=host)
        self._router = RequestRouter(SERVICES)
        self._limits = CallerLimits(config.limits, clock=host.monotonic)
        self.server = host.server((CallInterceptor(self._limits, RESUMABLE),))
        self.server.grpc.add_generic_rpc_handlers((self._router,))
        self.loop_delay = LoopDelay()
        self.metrics = Metrics(
            process_source("dispatcher"),
            self.loop_delay,
            self._limits,
            Activity(self._router),
            door_source("dispatcher", host, self._limits.table_sizes),
        )

    async def close(self) -> None:
        await self._resolver.close()
        for client in (self._api, self._reviews):
            if client is not None:
                await client.close()

    def jobs(self) -> tuple[Awaitable[None], ...]:
        """To be run until the process ends."""
        informers = () if self._informers is None else (self._informers.run(),)
        return (self.loop_delay.run(), *informers)

    async def stand_by(self, reason: str, leader_address: str) -> None:
        self._router.close(reason, leader=leader_address)
        if self._informers is not None:
            self._informers.stand_by()

    async def lease_uncertain(self, uncertain: bool) -> None:
        await self.server.set_serving(not uncertain, *SERVICES)

    async def newest_term(self) -> int:
        """The highest term that has written to the ledger, as a resolver sees it; 0 where none can say."""
        try:
            return (await self._resolver.status(timeout_seconds=self._config.lease_seconds)).dispatcher_term
        except (LedgerUnavailable, TransportError):
            return 0

    @contextlib.asynccontextmanager
    async def lead(self, leadership: Leadership) -> AsyncIterator[None]:
        """Recover, then serve for one term. All state begins and ends with the term."""
        config, host, resolver = self._config, self._host, self._resolver.under(leadership.term)
        async with contextlib.AsyncExitStack() as stack:
            # The machine, and the stores around it.
            machine = _machine(config, leadership.term, host)
            journal = _journal(config, leadership.term, host, resolver)
            stack.push_async_callback(journal.close)
            traces = _traces(self._tracer, machine)
            if traces is not None:
                stack.callback(traces.close)
            ledger = ResolverLedger(resolver)
            runtime = Runtime(
                machine,
                FencedLedger(ledger, leadership),
                journal if self._api is None else PodlessJournal(journal),
                clock=host.monotonic,
                rng=host.rng,
                traces=traces,
            )
            stack.push_async_callback(runtime.end)
            nodes = ClusterNodes()
            policy = ActivePolicy(runtime, nodes, config.policy, host=host)
            preemption = PreemptionAnswers(runtime, nodes, of_cluster=self._api is not None)
            checkpointer = Checkpointer(runtime)
            cluster = None
            if self._informers is not None:
                informers = await stack.enter_async_context(self._informers.of_term())
                cluster = self._cluster_mode(
                    runtime, resolver, informers, nodes=nodes, preemption=preemption, leadership=leadership
                )
            mirror = None if cluster is None else cluster.mirror
            catch_up = None if mirror is None else mirror.catch_up
            rebuilder = LedgerRebuilder(runtime, ledger, nodes, leadership, rng=host.rng, catch_up=catch_up)
            mover = Mover(runtime, nodes, Rebinding(runtime, nodes) if cluster is None else cluster.moves)

            # The services.
            services, views, decisions = Services(leadership), CacheViewQueries(), DecisionQueries()
            service = DispatcherService(
                runtime,
                nodes,
                views,
                policy,
                decisions,
                mover=mover,
                leadership=leadership,
                checkpointer=checkpointer,
                rng=host.rng,
                follows_cluster=cluster is not None,
                max_pod_terms=config.max_pod_terms,
                unplaceable=None if mirror is None else mirror.pods.unplaceable,
            )
            links = WorkerLinks(
                runtime,
                views,
                preemption,
                decisions,
                heartbeat_ms=config.heartbeat_ms,
                allowed_labels=AllowedLabels(config.worker_labels),
            )
            add_DispatcherServicer_to_server(service, cast("grpc.aio.Server", services))
            add_WorkerLinkServicer_to_server(links, cast("grpc.aio.Server", services))
            stack.push_async_callback(self._stop_serving)

            # Recovery: in Kubernetes mode from the API server, else from the journal.
            async with rebuilder.during_recovery():
                await policy.restore()
                await recover(runtime, mirror, term=leadership.term, take_over=mover.take_over)
                preemption.restored(ledger.known().seqs)
            if cluster is not None:
                async with background(rebuilder.run()):  # the ledger may be lost meanwhile
                    await cluster.reserved()

            # What runs for the rest of the term.
            def read_nodes(message: pb.FeedMessage) -> None:
                for event in nodes.read(message):
                    runtime.handle(event)

            feed = Subscription(
                resolver,
                "dispatcher",
                rebuilder.filtered(ledger.read, read_nodes, preemption.read),
                clock=host.monotonic,
                rng=host.rng,
            )
            jobs = (
                *(runtime.serve(), checkpointer.run(), feed.follow(), policy.follow_file(), rebuilder.run()),
                *(mover.follow(), mover.keep()),
                *Reconciler(runtime, every_pod_known=cluster is not None).jobs(),
            )
            cluster_jobs = () if cluster is None else cluster.jobs()
            await stack.enter_async_context(background(*jobs, *cluster_jobs))
            await stack.enter_async_context(self.metrics.showing(TermSource(runtime, leadership, preemption)))
            self._router.open(services)
            await self.server.set_serving(True, *SERVICES)
            telemetry.logger().info("serving", address=leadership.address, term=leadership.term)
            yield

    def _cluster_mode(
        self,
        runtime: Runtime,
        resolver: ResolverClient,
        informers: "Informers",
        *,
        nodes: ClusterNodes,
        preemption: PreemptionAnswers,
        leadership: Leadership,
    ) -> "KubernetesMode | None":
        """What a term has more in Kubernetes mode; None in the platform's own mode."""
        config = self._config
        if config.kubernetes is None or self._api is None:
            return None
        from dispatcher.kubernetes.mode import KubernetesMode  # noqa: PLC0415 - only in that mode

        return KubernetesMode(
            runtime,
            self._api,
            resolver,
            informers,
            nodes=nodes,
            preemption=preemption,
            leadership=leadership,
            config=config.kubernetes,
            utc_now=self._host.utc_now,
            rng=self._host.rng,
        )

    async def _stop_serving(self) -> None:
        self._router.close("this dispatcher has ended its term")
        await self.server.set_serving(False, *SERVICES)


def _journal(config: DispatcherConfig, term: int, host: Host, resolver: ResolverClient) -> RedisJournal:
    """The journal. The ledger is told how far it is with every change that the dispatcher makes there."""
    journal = RedisJournal(config.redis_url, term, open_redis=host.redis)
    resolver.journal_write = lambda: journal.last_write
    return journal


def _lease(config: DispatcherConfig, host: Host) -> Lease:
    lease = RedisLease(
        config.redis_url,
        config.lease_seconds,
        open_redis=host.redis,
        clock=host.monotonic,
        unix=host.unix,
    )
    cluster = config.kubernetes
    if cluster is None or not cluster.lease:
        return lease
    from dispatcher.leader.kubernetes_lease import KubernetesLease  # noqa: PLC0415 - only in Kubernetes mode

    # Its own connections: a renewal does not wait behind bindings and patches.
    api = _kube_api(cluster, "hoss-dispatcher-lease", host)
    return KubernetesLease(
        api,
        cluster.lease,
        lease,
        duration_seconds=cluster.lease_seconds,
        clock=host.monotonic,
        utc_now=host.utc_now,
    )


def _kube_api(cluster: ClusterSection, user_agent: str, host: Host) -> "KubeApi":
    return host.kube_api(partial(cluster.api, user_agent, clock=host.monotonic, rng=host.rng))


def _informers(api: "KubeApi", cluster: ClusterSection, max_pod_terms: int, host: Host) -> "StandbyInformers":
    from dispatcher.kubernetes.informers import (  # noqa: PLC0415 - only in Kubernetes mode
        Informers,
        StandbyInformers,
    )

    make = partial(Informers, api, cluster, max_pod_terms=max_pod_terms, clock=host.monotonic, rng=host.rng)
    return StandbyInformers(make)


def _traces(tracer: "Tracer | None", machine: Machine) -> "DispatcherTraces | None":
    if tracer is None:
        return None
    from dispatcher.tracing import DispatcherTraces  # noqa: PLC0415 - only with tracing

    return DispatcherTraces(tracer, machine)


def _machine(config: DispatcherConfig, term: int, host: Host) -> Machine:
    settings = Settings(
        batches=config.batch_rules(),
        stealing=config.steal_rules(),
        overlap_control=config.steering_rules(),
        worker_timeout_seconds=config.worker_timeout_seconds,
        work_timeout_seconds=config.work_timeout_seconds,
        aging_seconds=config.aging_seconds,
        limits=config.pressure_limits(),
        event_log_pods=config.event_log_pods,
        max_faults=config.max_faults,
        victims_end_by_event=config.kubernetes is not None,
        controllers_evict=config.kubernetes is not None,
        unix_offset_seconds=host.unix() - host.monotonic(),
        first_revision=term << REVISION_BITS,
    )
    return Machine(
        settings,
        Policy(),
        _decode_spec,
        random.Random(host.rng.getrandbits(64)),
        read_facts=facts_from_bytes,
        requests=_requests,
    )


def _decode_spec(spec: bytes) -> PodSpec:
    return pod_spec_from_proto(common_pb2.PodSpec.FromString(spec))


def _requests(spec: bytes) -> dict[str, float]:
    message = common_pb2.PodSpec.FromString(spec)
    amounts: dict[str, float] = {amount.resource: amount.amount for amount in message.requests}
    if message.HasField("devices"):
        amounts |= shares_of_cards(message.devices.count, message.devices.milli)
    return amounts


if __name__ == "__main__":
    sys.exit(main())
