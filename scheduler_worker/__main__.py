"""The composition root of a scheduler worker: reads its configuration, builds the adapters, runs until
stopped."""

import argparse
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hoss import serving, telemetry
from hoss.client.feed import Subscription
from hoss.client.proposal_stream import ProposalStream
from hoss.client.resolver import ResolverClient
from hoss.client.worker_link import DispatcherLink
from hoss.config import load_document, with_flags
from hoss.errors import HossError
from hoss.host import THIS_HOST, Host
from hoss.interceptor import CallInterceptor
from hoss.limits.callers import CallerLimits, CallerLimitsConfig
from hoss.security.identity import CallerKind
from hoss.security.options import add_security_flags, door_source, host_of, metrics_door, security_given
from hoss.tasks import background
from hoss.telemetry import logger, options
from hoss.telemetry.collector import metrics_pushed
from hoss.telemetry.endpoint import metrics_endpoint
from hoss.telemetry.metrics import LoopDelay, Metrics, process_source
from hoss.v1.workerlink_pb2 import Register
from hoss.wire.convert_selectors import labels_to_proto
from scheduler_worker.calls_in_threads import CalledInThread, PreparedInThread
from scheduler_worker.config import (
    KIND,
    PLUGIN_GROUP,
    SyncMode,
    WorkerConfig,
    chosen_algorithm,
    chosen_profile,
    factories,
    ineffective_strategy,
    parse_labels,
)
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.cycle import SchedulerLimits
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.framework.sandbox import PluginCalls
from scheduler_worker.core.plugins import REGISTRY
from scheduler_worker.core.plugins.profiles import PRESETS
from scheduler_worker.experiments import GlobalLock, WorkerExperiment, nodes_with
from scheduler_worker.metrics import WorkerSource
from scheduler_worker.plugin_watch import PluginWatch
from scheduler_worker.service import WorkerService
from scheduler_worker.synchronisation import synchronisation

if TYPE_CHECKING:
    from hoss.telemetry.tracing import Tracer
    from scheduler_worker.tracing import WorkerTraces

# Defaults of WorkerConfig.window, in pods.
_WINDOW, _PACKING_WINDOW = 2000, 500

# A stopping worker waits this long for the ledger's answers.
_FINISH_SECONDS = 2.0


def main(argv: list[str] | None = None) -> int:
    """Run the service; the exit code."""
    arguments = _parser().parse_args(argv)
    telemetry.configure("scheduler_worker", level=arguments.log_level)
    try:
        config = _config(arguments)
        calls = PluginCalls()
        registry = REGISTRY.extended(factories(entry_points(group=PLUGIN_GROUP)), calls)
        name, profile = chosen_profile(config, registry)
        if strategy := ineffective_strategy(config, name):
            logger().warning(
                "strategy_is_no_profile", strategy=strategy, profile=name, profiles=list(PRESETS)
            )
        logger().info("profile", worker=config.name, profile=name, algorithm=config.algorithm)
        with (
            options.tracing("worker", config.trace_file, instance=config.name) as tracer,
            PluginWatch(config.name, calls).watching() as plugins,
        ):
            host = host_of(
                config, config.listen, kind=CallerKind.WORKER, metrics_listen=config.metrics_listen
            )
            serving.run(
                lambda: serve(config, name, profile, arguments.ready_file, tracer, host=host, plugins=plugins)
            )
    except HossError as exc:
        print(f"scheduler_worker: {exc}", file=sys.stderr)  # noqa: T201 - for whoever started it
        return 1
    return 0


async def serve(
    config: WorkerConfig,
    profile_name: str,
    profile: Profile,
    ready_file: Path | None,
    tracer: "Tracer | None" = None,
    *,
    host: Host = THIS_HOST,
    plugins: PluginWatch | None = None,
) -> None:
    """Run one worker until the process is asked to stop. `plugins` watches plugins from outside."""
    placing = chosen_algorithm(config.algorithm)
    algorithm = None if placing is None else CalledInThread(config.algorithm, placing, clock=host.monotonic)
    pre_binds = PreparedInThread(profile.pre_binds, clock=host.monotonic) if profile.pre_binds else None
    scheduler = Scheduler(
        NodeInfoCache(),
        profile,
        np.random.default_rng(host.rng.getrandbits(63) if config.seed is None else config.seed),
        SchedulerLimits(tries=config.tries, alternates=config.alternates, sample_nodes=config.glance_nodes),
        host.monotonic,
        registers_rules=True,
        algorithm=algorithm,
        pre_binds=pre_binds,
    )
    global_lock = GlobalLock(config.turns) if config.turns is not None else None
    service = WorkerService(
        config.name,
        scheduler,
        clock=host.monotonic,
        unix_clock=host.unix,
        thread_clock=host.thread_seconds,
        unchecked=config.unchecked,
        experiment=WorkerExperiment(config.decision_job_ms / 1000, config.decision_task_ms / 1000),
        nodes=nodes_with(config.node_labels),
        global_lock=global_lock,
        traces=None if tracer is None else _traces(tracer, config.name),
        algorithm=algorithm,
        pre_binds=pre_binds,
        plugins=plugins,
    )
    resolver = ResolverClient(config.resolvers, open_channel=host.channel)
    proposals = ProposalStream(resolver, service.take_verdict, rng=host.rng)
    packs = profile.mixes and algorithm is None
    registration = Register(
        name=config.name,
        labels=labels_to_proto(sorted(config.labels.items())),
        incarnation=host.rng.getrandbits(63),
        window=config.window or (_PACKING_WINDOW if packs else _WINDOW),
        profile=profile_name if algorithm is None else f"{profile_name}, algorithm {algorithm.name}",
        bind_seconds=profile.bind_seconds,
        packs=packs,
    )
    link = DispatcherLink(
        config.dispatcher.split(","), registration, service, open_channel=host.channel, rng=host.rng
    )
    subscription = Subscription(resolver, config.name, service.apply_feed, clock=host.monotonic, rng=host.rng)
    sync = synchronisation(config.sync, config.pull_interval_ms / 1000, subscription)
    service.connect(link, proposals, sync)
    # Nobody but probes calls a worker, which has no limits to configure.
    limits = CallerLimits(CallerLimitsConfig(), clock=host.monotonic)
    server = host.server((CallInterceptor(limits),))
    port = await server.start(config.listen, (), reflected=config.reflection)
    try:
        loop_delay = LoopDelay()
        metrics = Metrics(
            process_source("scheduler_worker"),
            loop_delay,
            WorkerSource(config.name, profile_name, service),
            door_source("scheduler_worker", host, limits.table_sizes),
        )
        async with (
            metrics_endpoint(
                config.metrics_listen,
                metrics,
                metrics_door(config.metrics_listen, config.metrics_tls, config, host),
            ) as metrics_port,
            metrics_pushed("worker", metrics, instance=config.name),
            background(
                sync.run(),
                proposals.run(),
                link.run(),
                service.schedule(),
                service.expire(),
                loop_delay.run(),
            ),
        ):
            serving.announce_ready(
                ready_file, port=port, service="scheduler_worker", metrics_port=metrics_port
            )
            await host.until_stopped()
            await service.finish(_FINISH_SECONDS)
    finally:
        await server.stop()
        await resolver.close()
        if global_lock is not None:
            global_lock.close()


def _traces(tracer: "Tracer", name: str) -> "WorkerTraces":
    from scheduler_worker.tracing import WorkerTraces  # noqa: PLC0415 - most workers are not traced

    return WorkerTraces(tracer, name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scheduler_worker", description="Places pods in its own view of the nodes."
    )
    parser.add_argument("--config", type=Path, help=f"a {KIND} document; flags override it")
    parser.add_argument("--name", help="unique among living workers")
    parser.add_argument(
        "--label", action="append", metavar="KEY=VALUE", help="what policies match on; repeatable"
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="for health checks; port 0 takes a free one")
    options.add_flags(parser)
    add_security_flags(parser)
    parser.add_argument(
        "--dispatcher", metavar="HOST:PORT[,HOST:PORT...]", help="all there are; one is active"
    )
    parser.add_argument("--resolver", metavar="HOST:PORT[,HOST:PORT...]", help="any of them answers")
    parser.add_argument("--seed", type=int, help="of the order of equally good nodes")
    parser.add_argument("--window", type=int, help="pods taken at once")
    parser.add_argument(
        "--profile", metavar="NAME", help=f"{', '.join(PRESETS)}, or one of the document's own"
    )
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        help="ranking (by the profile), random, best-fit, fgd, an entry point, module:Class or FILE.py:Class",
    )
    parser.add_argument(
        "--kube-scheduler-config",
        type=Path,
        metavar="FILE",
        help="a KubeSchedulerConfiguration; --profile chooses by schedulerName",
    )
    parser.add_argument(
        "--sync",
        choices=[mode.value for mode in SyncMode],
        help="how its view hears of the ledger; default: push",
    )
    parser.add_argument("--pull-interval-ms", type=int, help="between two readings of the ledger's state")
    parser.add_argument(
        "--node-label", action="append", metavar="KEY=VALUE", help="takes no other nodes; repeatable"
    )
    parser.add_argument("--decision-job-ms", type=float, help="added to each decision (benchmarks)")
    parser.add_argument(
        "--decision-task-ms", type=float, help="added to each decision for each pod of it (benchmarks)"
    )
    parser.add_argument(
        "--turns", type=Path, metavar="FILE", help="take turns under a lock on this file (benchmarks)"
    )
    parser.add_argument(
        "--unchecked", action="store_true", default=None, help="commit without validation (benchmarks)"
    )
    parser.add_argument("--ready-file", type=Path, help="written once the worker serves, with its port")
    parser.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="least level that is logged",
    )
    return parser


def _config(arguments: argparse.Namespace) -> WorkerConfig:
    document = load_document(arguments.config, KIND, WorkerConfig)
    flags = {
        "name": arguments.name,
        "labels": parse_labels(arguments.label) if arguments.label else None,
        "listen": arguments.listen,
        **options.given(arguments),
        **security_given(arguments),
        "dispatcher": arguments.dispatcher,
        "resolvers": arguments.resolver.split(",") if arguments.resolver else None,
        "seed": arguments.seed,
        "window": arguments.window,
        "profile": arguments.profile,
        "algorithm": arguments.algorithm,
        "kube_scheduler_config": arguments.kube_scheduler_config,
        "sync": arguments.sync,
        "pull_interval_ms": arguments.pull_interval_ms,
        "node_labels": parse_labels(arguments.node_label, where="--node-label")
        if arguments.node_label
        else None,
        "decision_job_ms": arguments.decision_job_ms,
        "decision_task_ms": arguments.decision_task_ms,
        "turns": arguments.turns,
        "unchecked": arguments.unchecked,
    }
    return with_flags(document, flags)


if __name__ == "__main__":
    sys.exit(main())
