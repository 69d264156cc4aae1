"""The composition root of a scheduler worker: reads its configuration, builds the adapters, runs until told to stop."""

import argparse
import secrets
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from hoss import rpc, telemetry
from hoss.client.feed import Subscription
from hoss.client.resolver import ResolverClient
from hoss.config import describe_validation, load_document
from hoss.errors import ConfigError, HossError
from hoss.telemetry import logger, options
from hoss.telemetry.endpoint import metrics_endpoint
from hoss.telemetry.metrics import Metrics, process_source
from hoss.telemetry.pushing import metrics_pushed
from hoss.v1.workerlink_pb2 import Register
from hoss.wire.convert import labels_to_proto
from scheduler_worker.config import KIND, SyncMode, WorkerConfig, parse_labels
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.plugins import REGISTRY
from scheduler_worker.core.profile import Profile
from scheduler_worker.core.profiles import PRESETS
from scheduler_worker.core.scheduler import Limits, Scheduler
from scheduler_worker.decision import Decision, nodes_with
from scheduler_worker.extensions import PLUGIN_GROUP, factories
from scheduler_worker.link import DispatcherLink
from scheduler_worker.metrics import WorkerSource
from scheduler_worker.profiles import chosen_profile
from scheduler_worker.proposals import ProposalStream
from scheduler_worker.service import WorkerService
from scheduler_worker.synchronisation import synchronisation
from scheduler_worker.turns import Turns

if TYPE_CHECKING:
    from hoss.telemetry.tracing import Tracer
    from scheduler_worker.tracing import WorkerTraces

# Of pods in hand, where the configuration names none; see WorkerConfig.window.
_WINDOW, _PACKING_WINDOW = 2000, 100

# A stopping worker waits this long for the ledger's answers.
_PATIENCE_SECONDS = 2.0


def main(argv: list[str] | None = None) -> int:
    """Run the service; the exit code."""
    arguments = _parser().parse_args(argv)
    telemetry.configure("scheduler_worker", level=arguments.log_level)
    try:
        config = _config(arguments)
        registry = REGISTRY.extended(factories(entry_points(group=PLUGIN_GROUP)))
        name, profile = chosen_profile(config, registry)
        logger().info("profile", worker=config.name, profile=name)
        with options.tracing("worker", config.trace_file, instance=config.name) as tracer:
            rpc.run(lambda: serve(config, name, profile, arguments.ready_file, tracer))
    except HossError as exc:
        print(f"scheduler_worker: {exc}", file=sys.stderr)  # noqa: T201 - for whoever started it
        return 1
    return 0


async def serve(
    config: WorkerConfig, profile_name: str, profile: Profile, ready_file: Path | None, tracer: "Tracer | None" = None
) -> None:
    """Run one worker until the process is asked to stop."""
    scheduler = Scheduler(
        NodeInfoCache(),
        profile,
        np.random.default_rng(config.seed),
        Limits(tries=config.tries, alternates=config.alternates, glance_nodes=config.glance_nodes),
        time.monotonic,
        announces=True,
    )
    turns = Turns(config.turns) if config.turns is not None else None
    service = WorkerService(
        config.name,
        scheduler,
        unchecked=config.unchecked,
        decision=Decision(config.decision_job_ms / 1000, config.decision_task_ms / 1000),
        nodes=nodes_with(config.node_labels),
        turns=turns,
        traces=None if tracer is None else _traces(tracer, config.name),
    )
    resolver = ResolverClient(config.resolvers)
    proposals = ProposalStream(resolver, service.take_verdict)
    registration = Register(
        name=config.name,
        labels=labels_to_proto(sorted(config.labels.items())),
        incarnation=secrets.randbits(63),
        window=config.window or (_PACKING_WINDOW if profile.mixes else _WINDOW),
    )
    link = DispatcherLink(config.dispatcher.split(","), registration, service)
    subscription = Subscription(resolver, config.name, service.apply_feed)
    sync = synchronisation(config.sync, config.pull_interval_ms / 1000, subscription)
    service.connect(link, proposals, sync)
    server = rpc.Server()
    port = await server.start(config.listen, ())
    try:
        metrics = Metrics(process_source("scheduler_worker"), WorkerSource(config.name, profile_name, service))
        async with (
            metrics_endpoint(config.metrics_listen, metrics) as metrics_port,
            metrics_pushed("worker", metrics, instance=config.name),
            rpc.background(
                sync.run(),
                proposals.run(),
                link.run(),
                service.schedule(),
                service.expire(),
            ),
        ):
            rpc.announce_ready(ready_file, port=port, service="scheduler_worker", metrics_port=metrics_port)
            await rpc.until_stopped()
            await service.finish(_PATIENCE_SECONDS)
    finally:
        await server.stop()
        await resolver.close()
        if turns is not None:
            turns.close()


def _traces(tracer: "Tracer", name: str) -> "WorkerTraces":
    from scheduler_worker.tracing import WorkerTraces  # noqa: PLC0415 - most workers are not traced

    return WorkerTraces(tracer, name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scheduler_worker", description="Places pods in its own view of the nodes.")
    parser.add_argument("--config", type=Path, help=f"a {KIND} document; flags override it")
    parser.add_argument("--name", help="unique among living workers")
    parser.add_argument("--label", action="append", metavar="KEY=VALUE", help="what policies match on; repeatable")
    parser.add_argument("--listen", metavar="HOST:PORT", help="for health checks; port 0 takes a free one")
    options.add_flags(parser)
    parser.add_argument("--dispatcher", metavar="HOST:PORT[,HOST:PORT...]", help="all there are; one is active")
    parser.add_argument("--resolver", metavar="HOST:PORT[,HOST:PORT...]", help="any of them answers")
    parser.add_argument("--seed", type=int, help="of the order of equally good nodes")
    parser.add_argument("--window", type=int, help="pods taken at once")
    parser.add_argument("--profile", metavar="NAME", help=f"{', '.join(PRESETS)}, or one of the document's own")
    parser.add_argument(
        "--sync", choices=[mode.value for mode in SyncMode], help="how its view hears of the ledger; default: push"
    )
    parser.add_argument("--pull-interval-ms", type=int, help="between two readings of the ledger's state")
    parser.add_argument("--node-label", action="append", metavar="KEY=VALUE", help="takes no other nodes; repeatable")
    parser.add_argument("--decision-job-ms", type=float, help="added to each decision (benchmarks)")
    parser.add_argument("--decision-task-ms", type=float, help="added to each decision for each pod of it (benchmarks)")
    parser.add_argument("--turns", type=Path, metavar="FILE", help="take turns under a lock on this file (benchmarks)")
    parser.add_argument("--unchecked", action="store_true", default=None, help="commit without validation (benchmarks)")
    parser.add_argument("--ready-file", type=Path, help="written once the worker serves, with its port")
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"], help="least level that is logged"
    )
    return parser


def _config(arguments: argparse.Namespace) -> WorkerConfig:
    document = load_document(arguments.config, KIND, WorkerConfig) if arguments.config else WorkerConfig()
    given = {
        "name": arguments.name,
        "labels": parse_labels(arguments.label) if arguments.label else None,
        "listen": arguments.listen,
        **options.given(arguments),
        "dispatcher": arguments.dispatcher,
        "resolvers": arguments.resolver.split(",") if arguments.resolver else None,
        "seed": arguments.seed,
        "window": arguments.window,
        "profile": arguments.profile,
        "sync": arguments.sync,
        "pull_interval_ms": arguments.pull_interval_ms,
        "node_labels": parse_labels(arguments.node_label, where="--node-label") if arguments.node_label else None,
        "decision_job_ms": arguments.decision_job_ms,
        "decision_task_ms": arguments.decision_task_ms,
        "turns": arguments.turns,
        "unchecked": arguments.unchecked,
    }
    flags = {field: value for field, value in given.items() if value is not None}
    try:
        return WorkerConfig.model_validate({**document.model_dump(), **flags})
    except ValidationError as exc:
        raise ConfigError(describe_validation(exc), where="flags") from exc


if __name__ == "__main__":
    sys.exit(main())
