"""The dispatcher's composition root: `python -m dispatcher`."""

import argparse
import contextlib
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc.aio

from dispatcher.allowances import LabelAllowances
from dispatcher.audit import Views
from dispatcher.candidate import Candidate, Term
from dispatcher.chronicle import Chronicle
from dispatcher.config import KIND, DispatcherConfig
from dispatcher.core.machine import Machine, Settings
from dispatcher.core.policy import Policy
from dispatcher.core.tenants import shares_of_cards
from dispatcher.lease import RedisLease
from dispatcher.ledger import FencedLedger, ResolverLedger
from dispatcher.link import WorkerLinks
from dispatcher.nodes import NodeNames
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
from hoss.config import load_document
from hoss.errors import HossError
from hoss.model.pod import PodSpec
from hoss.v1 import common_pb2
from hoss.v1.dispatcher_pb2_grpc import add_DispatcherServicer_to_server
from hoss.v1.workerlink_pb2_grpc import add_WorkerLinkServicer_to_server
from hoss.wire.convert import pod_spec_from_proto

# Of a term. Revisions of earlier terms are all below, so that their watchers are told to list anew.
REVISION_BITS = 32

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
    """Listen, stand by or be active as the lease has it, and announce this once it is known which, until told to end."""
    resolver = ResolverClient(config.resolvers)
    lease = RedisLease(config.redis_url, config.lease_seconds)
    server, reception = rpc.Server(), Reception(SERVICES)
    server.grpc.add_generic_rpc_handlers((reception,))

    @contextlib.asynccontextmanager
    async def active(term: Term) -> AsyncIterator[None]:
        """Recover, and serve for a term. All that is known begins and ends with it."""
        journal = RedisJournal(config.redis_url, term.number)
        machine = Machine(
            _settings(config, term),
            Policy(),
            _decode_spec,
            random.Random(),
            read_facts=facts_from_bytes,
            requests=_requests,
        )
        ledger = ResolverLedger(resolver)
        runtime = Runtime(machine, FencedLedger(ledger, term.certain), journal)
        names, views, services, chronicle = NodeNames(runtime), Views(), Services(term.certain), Chronicle(runtime)
        policies = Policies(runtime, PolicySurroundings(machine, names.history), config.policy)
        preemption = Preemption(runtime, names)
        rebuilding = Rebuilding(runtime, ledger, names.history, may_rebuild=term.certain)

        add_DispatcherServicer_to_server(
            DispatcherService(runtime, names, views, policies, term=term, chronicle=chronicle),
            cast("grpc.aio.Server", services),
        )
        links = WorkerLinks(
            runtime,
            views,
            preemption,
            heartbeat_ms=config.heartbeat_ms,
            allowed_labels=LabelAllowances(config.worker_labels),
        )
        add_WorkerLinkServicer_to_server(links, cast("grpc.aio.Server", services))
        try:
            async with rebuilding.as_kept():
                await policies.restore()
                await recover(runtime)
            following = follow(resolver, "dispatcher", rebuilding.passing(names.apply, preemption.apply))
            jobs = runtime.serve(), chronicle.run(), following, policies.follow_file(), rebuilding.run()
            async with rpc.background(*jobs):
                reception.open(services)
                await server.set_serving(True, *SERVICES)
                telemetry.logger().info("serving", address=term.address, term=term.number)
                yield
        finally:
            reception.close("this dispatcher has ended its term")
            await server.set_serving(False, *SERVICES)
            await journal.close()

    async def stand_by(why: str, active_address: str) -> None:
        reception.close(why, active=active_address)

    async def doubt(in_doubt: bool) -> None:
        await server.set_serving(not in_doubt, *SERVICES)

    try:
        port = await server.start(config.listen, SERVICES, serving=False)
        candidate = Candidate(lease, config.advertised(port), serve=active, standing_by=stand_by, doubted=doubt)
        async with rpc.background(candidate.stand()):
            await candidate.settled.wait()
            rpc.announce_ready(ready_file, port=port, service="dispatcher")
            await rpc.until_stopped()
    finally:
        await server.stop()
        await lease.close()
        await resolver.close()


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
    parser = argparse.ArgumentParser(prog="python -m dispatcher", description="Queues pods and gives them to workers.")
    parser.add_argument("--config", type=Path, help="a DispatcherConfig document; flags override it")
    parser.add_argument("--listen", help="host:port; port 0 takes a free one")
    parser.add_argument("--advertise", metavar="HOST:PORT", help="where others reach this one; else where it listens")
    parser.add_argument("--lease-seconds", type=float, help="a standby takes over after so long without a word")
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
        "advertise": flags.advertise,
        "lease_seconds": flags.lease_seconds,
        "redis_url": flags.redis_url,
        "resolvers": tuple(flags.resolver.split(",")) if flags.resolver else None,
        "policy": flags.policy,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    return DispatcherConfig.model_validate({**base.model_dump(), **changes})


if __name__ == "__main__":
    sys.exit(main())
