"""The dispatcher's composition root: `python -m dispatcher`."""

import argparse
import contextlib
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc.aio
from pydantic import ValidationError

from dispatcher.allowances import LabelAllowances
from dispatcher.audit import Views
from dispatcher.candidate import Candidate, Term
from dispatcher.chronicle import Chronicle
from dispatcher.config import KIND, DispatcherConfig
from dispatcher.core.machine import Machine, Settings
from dispatcher.core.policy import Policy
from dispatcher.core.tenants import shares_of_cards
from dispatcher.decisions import Decisions
from dispatcher.lease import Lease, RedisLease
from dispatcher.ledger import FencedLedger, ResolverLedger
from dispatcher.link import WorkerLinks
from dispatcher.metrics import Activity, TermSource
from dispatcher.nodes import NodeNames
from dispatcher.podless_journal import PodlessJournal
from dispatcher.policies import Policies
from dispatcher.policy_surroundings import PolicySurroundings
from dispatcher.preemption import Preemption
from dispatcher.rebuilding import Rebuilding
from dispatcher.reception import Reception, Services
from dispatcher.recovery import recover
from dispatcher.redis_journal import RedisJournal
from dispatcher.runtime import Runtime
from dispatcher.service import DispatcherService
from dispatcher.spec_facts import facts_from_bytes
from hoss import rpc, telemetry
from hoss.client.feed import follow
from hoss.client.resolver import ResolverClient
from hoss.config import describe_validation, load_document
from hoss.errors import ConfigError, HossError
from hoss.kube.config import add_kubernetes_flags, kubernetes_given
from hoss.model.pod import PodSpec
from hoss.telemetry import options
from hoss.telemetry.endpoint import metrics_endpoint
from hoss.telemetry.metrics import Metrics, process_source
from hoss.telemetry.pushing import metrics_pushed
from hoss.v1 import common_pb2
from hoss.v1.dispatcher_pb2_grpc import add_DispatcherServicer_to_server
from hoss.v1.workerlink_pb2_grpc import add_WorkerLinkServicer_to_server
from hoss.wire.convert import pod_spec_from_proto

if TYPE_CHECKING:
    from dispatcher.dashboard.desk import Desk
    from dispatcher.dashboard.server import Dashboard
    from dispatcher.tracing import DispatcherTraces
    from hoss.telemetry.tracing import Tracer

# Of a term. Revisions of earlier terms are all below, so that their watchers are told to list anew.
REVISION_BITS = 32

SERVICES = ("hoss.v1.Dispatcher", "hoss.v1.WorkerLink")


def main() -> int:
    """Run until SIGTERM. Exit code 1 and one line on stderr when it cannot start."""
    flags = _flags()
    telemetry.configure("dispatcher", level=flags.log_level)
    try:
        config = _config(flags)
        with options.tracing("dispatcher", config.trace_file, ratio=config.trace_ratio) as tracer:
            rpc.run(lambda: serve(config, flags.ready_file, tracer))
    except HossError as exc:
        print(f"dispatcher: {exc}", file=sys.stderr)  # noqa: T201 - for whoever started it by hand
        return 1
    return 0


async def serve(config: DispatcherConfig, ready_file: Path | None, tracer: "Tracer | None" = None) -> None:
    """Listen, stand by or be active as the lease has it, and announce this once it is known which, until told to end."""
    lease = _lease(config)
    dispatcher = _Dispatcher(config, tracer)
    try:
        port = await dispatcher.server.start(config.listen, SERVICES, serving=False)
        dashboard = dispatcher.dashboard
        dashboard_port = await dashboard.start(config.dashboard_listen) if dashboard and config.dashboard_listen else 0
        candidate = Candidate(
            lease,
            config.advertised(port),
            serve=dispatcher.active,
            standing_by=dispatcher.stand_by,
            doubted=dispatcher.doubt,
        )
        endpoint = metrics_endpoint(config.metrics_listen, dispatcher.metrics)
        pushed = metrics_pushed("dispatcher", dispatcher.metrics)
        async with endpoint as metrics_port, pushed, rpc.background(candidate.stand()):
            await candidate.settled.wait()
            ports = {"port": port, "dashboard_port": dashboard_port, "metrics_port": metrics_port}
            rpc.announce_ready(ready_file, **ports, service="dispatcher")
            await rpc.until_stopped()
    finally:
        if dispatcher.dashboard is not None:
            await dispatcher.dashboard.stop()
        await dispatcher.server.stop()
        await lease.close()
        await dispatcher.close()


def _lease(config: DispatcherConfig) -> Lease:
    lease = RedisLease(config.redis_url, config.lease_seconds)
    cluster = config.kubernetes
    if cluster is None or not cluster.lease:
        return lease
    from dispatcher.kubernetes_lease import KubernetesLease  # noqa: PLC0415 - for Kubernetes mode alone

    # Its own connections: a renewal does not wait behind bindings and patches.
    api = cluster.api("hoss-dispatcher-lease")
    return KubernetesLease(api, cluster.lease, lease, duration_seconds=cluster.lease_seconds)


def _dashboard(config: DispatcherConfig) -> "Dashboard | None":
    """None where there is none to be."""
    token_file = config.dashboard_token_file
    if not (config.dashboard_listen or token_file):
        return None
    from dispatcher.dashboard.access import read_token  # noqa: PLC0415 - most dispatchers start sooner without aiohttp
    from dispatcher.dashboard.server import Dashboard  # noqa: PLC0415

    return Dashboard(read_token(token_file) if token_file else "")


def _desk(runtime: Runtime, names: NodeNames, term: Term, resolver: ResolverClient) -> "Desk":
    from dispatcher.dashboard.desk import Desk  # noqa: PLC0415 - as above

    return Desk(runtime, names, term, resolver)


def _traces(tracer: "Tracer", machine: Machine) -> "DispatcherTraces":
    from dispatcher.tracing import DispatcherTraces  # noqa: PLC0415 - most dispatchers are not traced

    return DispatcherTraces(tracer, machine)


class _Dispatcher:
    """What outlives terms: the ports, and the connections to resolvers and to the API server."""

    def __init__(self, config: DispatcherConfig, tracer: "Tracer | None") -> None:
        self._config = config
        self._tracer = tracer
        self._resolver = ResolverClient(config.resolvers)
        self._api = config.kubernetes.api("hoss-dispatcher") if config.kubernetes else None
        self.server, self._reception = rpc.Server(), Reception(SERVICES)
        self.server.grpc.add_generic_rpc_handlers((self._reception,))
        self.metrics = Metrics(process_source("dispatcher"), Activity(self._reception))
        self.dashboard = _dashboard(config)

    async def close(self) -> None:
        """End every connection."""
        await self._resolver.close()
        if self._api is not None:
            await self._api.close()

    async def stand_by(self, why: str, active_address: str) -> None:
        self._reception.close(why, active=active_address)
        if self.dashboard is not None:
            self.dashboard.close(why, active=active_address)

    async def doubt(self, in_doubt: bool) -> None:
        await self.server.set_serving(not in_doubt, *SERVICES)

    @contextlib.asynccontextmanager
    async def active(self, term: Term) -> AsyncIterator[None]:
        """Recover, and serve for a term. All that is known begins and ends with it."""
        config, resolver = self._config, self._resolver
        journal = RedisJournal(config.redis_url, term.number)
        machine = _machine(config, term)
        ledger = ResolverLedger(resolver)
        kept = journal if self._api is None else PodlessJournal(journal)
        traces = None if self._tracer is None else _traces(self._tracer, machine)
        runtime = Runtime(machine, FencedLedger(ledger, term.certain), kept, traces=traces)
        names, services, chronicle = NodeNames(runtime), Services(term), Chronicle(runtime)
        views, decisions = Views(), Decisions()
        policies = Policies(runtime, PolicySurroundings(machine, names.history), config.policy)
        preemption = Preemption(runtime, names, of_cluster=self._api is not None)
        rebuilding = Rebuilding(runtime, ledger, names.history, may_rebuild=term.certain)
        cluster = None
        if config.kubernetes is not None and self._api is not None:
            from dispatcher.kubernetes_mode import KubernetesMode  # noqa: PLC0415 - for that mode alone

            cluster = KubernetesMode(
                runtime,
                self._api,
                resolver,
                names=names,
                preemption=preemption,
                term=term,
                config=config.kubernetes,
            )

        service = DispatcherService(
            runtime,
            names,
            views,
            policies,
            decisions,
            term=term,
            chronicle=chronicle,
            follows_cluster=cluster is not None,
        )
        add_DispatcherServicer_to_server(service, cast("grpc.aio.Server", services))
        links = WorkerLinks(
            runtime,
            views,
            preemption,
            decisions,
            heartbeat_ms=config.heartbeat_ms,
            allowed_labels=LabelAllowances(config.worker_labels),
        )
        add_WorkerLinkServicer_to_server(links, cast("grpc.aio.Server", services))
        try:
            async with contextlib.AsyncExitStack() as stack:
                if cluster is not None:
                    await stack.enter_async_context(cluster.following())
                async with rebuilding.as_kept():
                    await policies.restore()
                    await recover(runtime, None if cluster is None else cluster.mirroring)
                if cluster is not None:
                    async with rpc.background(rebuilding.run()):  # the ledger may be lost meanwhile
                        await cluster.reserved()
                following = follow(resolver, "dispatcher", rebuilding.passing(names.apply, preemption.apply))
                jobs = runtime.serve(), chronicle.run(), following, policies.follow_file(), rebuilding.run()
                more = () if cluster is None else cluster.jobs()
                await stack.enter_async_context(rpc.background(*jobs, *more))
                await stack.enter_async_context(self.metrics.showing(TermSource(runtime, term, preemption)))
                if self.dashboard is not None:
                    desk = _desk(runtime, names, term, resolver)
                    await stack.enter_async_context(self.dashboard.showing(desk))
                self._reception.open(services)
                await self.server.set_serving(True, *SERVICES)
                telemetry.logger().info("serving", address=term.address, term=term.number)
                yield
        finally:
            self._reception.close("this dispatcher has ended its term")
            await self.server.set_serving(False, *SERVICES)
            if traces is not None:
                traces.close()
            await journal.close()


def _machine(config: DispatcherConfig, term: Term) -> Machine:
    return Machine(
        _settings(config, term),
        Policy(),
        _decode_spec,
        random.Random(),
        read_facts=facts_from_bytes,
        requests=_requests,
    )


def _settings(config: DispatcherConfig, term: Term) -> Settings:
    return Settings(
        batches=config.batch_rules(),
        stealing=config.steal_rules(),
        steering=config.steering_rules(),
        worker_timeout_seconds=config.worker_timeout_seconds,
        aging_seconds=config.aging_seconds,
        limits=config.limits(),
        event_log_pods=config.event_log_pods,
        max_faults=config.max_faults,
        victims_leave_by_word=config.kubernetes is not None,
        others_evict=config.kubernetes is not None,
        unix_offset_seconds=time.time() - time.monotonic(),
        first_revision=term.number << REVISION_BITS,
    )


def _decode_spec(spec: bytes) -> PodSpec:
    return pod_spec_from_proto(common_pb2.PodSpec.FromString(spec))


def _requests(spec: bytes) -> dict[str, float]:
    message = common_pb2.PodSpec.FromString(spec)
    amounts: dict[str, float] = {amount.resource: amount.amount for amount in message.requests}
    if message.HasField("devices"):
        amounts |= shares_of_cards(message.devices.count, message.devices.milli)
    return amounts


def _flags() -> argparse.Namespace:
    return _parser().parse_args()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dispatcher", description="Queues pods and gives them to workers.")
    parser.add_argument("--config", type=Path, help="a DispatcherConfig document; flags override it")
    parser.add_argument("--listen", help="host:port; port 0 takes a free one")
    options.add_flags(parser)
    parser.add_argument(
        "--trace-ratio", type=float, metavar="SHARE", help="of work batches whose traces are kept; 0.01"
    )
    parser.add_argument("--advertise", metavar="HOST:PORT", help="where others reach this one; else where it listens")
    parser.add_argument("--lease-seconds", type=float, help="a standby takes over after so long without a word")
    parser.add_argument("--redis-url", help="the journal's Redis")
    parser.add_argument("--resolver", help="host:port of one resolver or several, separated by commas")
    parser.add_argument("--policy", type=Path, help="a SchedulingPolicy document")
    add_kubernetes_flags(parser)
    parser.add_argument(
        "--kube-lease", metavar="NAMESPACE/NAME", help="Kubernetes mode: hold this Lease of the cluster while active"
    )
    parser.add_argument("--dashboard-listen", metavar="HOST:PORT", help="where the web dashboard is; left out: nowhere")
    parser.add_argument("--dashboard-token-file", type=Path, help="lets viewers who have its token cordon and drain")
    parser.add_argument("--ready-file", type=Path, help="written with the port once serving")
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error"), help="least level that is logged"
    )
    return parser


def _config(flags: argparse.Namespace) -> DispatcherConfig:
    base = load_document(flags.config, KIND, DispatcherConfig) if flags.config else DispatcherConfig()
    given: dict[str, Any] = {
        "listen": flags.listen,
        **options.given(flags),
        "trace_ratio": flags.trace_ratio,
        "advertise": flags.advertise,
        "lease_seconds": flags.lease_seconds,
        "redis_url": flags.redis_url,
        "resolvers": tuple(flags.resolver.split(",")) if flags.resolver else None,
        "policy": flags.policy,
        "dashboard_listen": flags.dashboard_listen,
        "dashboard_token_file": flags.dashboard_token_file,
    }
    given |= kubernetes_given(flags, base.kubernetes)
    if flags.kube_lease:
        section = given.get("kubernetes") or (base.kubernetes.model_dump() if base.kubernetes else None)
        if section is None:
            raise ConfigError("needs Kubernetes mode; give --in-cluster or --kubeconfig too", where="--kube-lease")
        given["kubernetes"] = {**section, "lease": flags.kube_lease}
    changes = {name: value for name, value in given.items() if value is not None}
    try:
        return DispatcherConfig.model_validate({**base.model_dump(), **changes})
    except ValidationError as exc:
        raise ConfigError(describe_validation(exc), where="flags") from exc


if __name__ == "__main__":
    sys.exit(main())
