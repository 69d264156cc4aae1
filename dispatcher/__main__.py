"""The dispatcher's composition root: `python -m dispatcher`."""

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Any

from dispatcher.allowances import LabelAllowances
from dispatcher.audit import Views
from dispatcher.config import KIND, DispatcherConfig
from dispatcher.core.machine import Machine, Settings
from dispatcher.core.policy import Policy
from dispatcher.ledger import ResolverLedger
from dispatcher.link import WorkerLinks
from dispatcher.nodes import NodeNames
from dispatcher.policies import Policies
from dispatcher.policy_surroundings import PolicySurroundings
from dispatcher.preemption import Preemption
from dispatcher.recovery import recover
from dispatcher.redis_journal import RedisJournal
from dispatcher.runtime import Runtime
from dispatcher.service import DispatcherService
from dispatcher.spec_facts import facts_from_bytes
from hoss import rpc, telemetry
from hoss.client.feed import follow
from hoss.client.resolver import ResolverClient
from hoss.config import load_document
from hoss.errors import HossError
from hoss.model.pod import PodSpec
from hoss.v1 import common_pb2
from hoss.v1.dispatcher_pb2_grpc import add_DispatcherServicer_to_server
from hoss.v1.resolver_pb2 import FeedMessage
from hoss.v1.workerlink_pb2_grpc import add_WorkerLinkServicer_to_server
from hoss.wire.convert import pod_spec_from_proto

SERVICES = ("hoss.v1.Dispatcher", "hoss.v1.WorkerLink")


def main() -> int:
    """Run until SIGTERM. Exit code 1 and one line on stderr when it cannot start."""
    flags = _flags()
    telemetry.configure("dispatcher", level=flags.log_level)
    try:
        config = _config(flags)
        rpc.run(lambda: serve(config, flags.ready_file))
    except HossError as exc:
        print(f"dispatcher: {exc}", file=sys.stderr)  # noqa: T201 - for whoever started it by hand
        return 1
    return 0


async def serve(config: DispatcherConfig, ready_file: Path | None) -> None:
    """Recover, listen, announce, and serve until the process is asked to end."""
    resolver = ResolverClient(config.resolvers)
    journal = RedisJournal(config.redis_url)
    settings = Settings(
        batches=config.batch_rules(),
        stealing=config.steal_rules(),
        worker_timeout_seconds=config.worker_timeout_seconds,
        event_log_pods=config.event_log_pods,
        unix_offset_seconds=time.time() - time.monotonic(),
        # Revisions of an earlier life are all below, so its watchers are told to list anew.
        first_revision=int(time.time() * 1000) * 1000,
    )
    machine = Machine(settings, Policy(), _decode_spec, random.Random(), facts_from_bytes)
    runtime = Runtime(machine, ResolverLedger(resolver), journal)
    names, views = NodeNames(runtime), Views()
    policies = Policies(runtime, PolicySurroundings(machine, names.history), config.policy)
    preemption = Preemption(runtime, names)

    def apply_feed(message: FeedMessage) -> None:
        names.apply(message)
        preemption.apply(message)

    server = rpc.Server()
    add_DispatcherServicer_to_server(DispatcherService(runtime, names, views, policies), server.grpc)
    allowed_labels = LabelAllowances(config.worker_labels)
    links = WorkerLinks(runtime, views, preemption, heartbeat_ms=config.heartbeat_ms, allowed_labels=allowed_labels)
    add_WorkerLinkServicer_to_server(links, server.grpc)
    try:
        await policies.restore()
        await recover(runtime)
        following = follow(resolver, "dispatcher", apply_feed)
        async with rpc.background(runtime.serve(), following, policies.follow_file()):
            port = await server.start(config.listen, SERVICES)
            rpc.announce_ready(ready_file, port=port, service="dispatcher")
            telemetry.logger().info("serving", port=port)
            await rpc.until_stopped()
    finally:
        await server.stop()
        await journal.close()
        await resolver.close()


def _decode_spec(spec: bytes) -> PodSpec:
    return pod_spec_from_proto(common_pb2.PodSpec.FromString(spec))


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dispatcher", description="Queues pods and gives them to workers.")
    parser.add_argument("--config", type=Path, help="a DispatcherConfig document; flags override it")
    parser.add_argument("--listen", help="host:port; port 0 takes a free one")
    parser.add_argument("--redis-url", help="the journal's Redis")
    parser.add_argument("--resolver", help="host:port of one resolver or several, separated by commas")
    parser.add_argument("--policy", type=Path, help="a SchedulingPolicy document")
    parser.add_argument("--ready-file", type=Path, help="written with the port once serving")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser.parse_args()


def _config(flags: argparse.Namespace) -> DispatcherConfig:
    base = load_document(flags.config, KIND, DispatcherConfig) if flags.config else DispatcherConfig()
    given: dict[str, Any] = {
        "listen": flags.listen,
        "redis_url": flags.redis_url,
        "resolvers": tuple(flags.resolver.split(",")) if flags.resolver else None,
        "policy": flags.policy,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    return DispatcherConfig.model_validate({**base.model_dump(), **changes})


if __name__ == "__main__":
    sys.exit(main())
