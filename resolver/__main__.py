"""Start a resolver: `python -m resolver --redis-url redis://127.0.0.1:6379/0`."""

import argparse
import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hoss import rpc, telemetry
from hoss.config import describe_validation, load_document
from hoss.errors import ConfigError, HossError, LedgerUnavailable
from hoss.v1 import resolver_pb2
from hoss.v1.resolver_pb2_grpc import add_ResolverServicer_to_server
from resolver.availability import Availability
from resolver.committer import Committer
from resolver.config import KIND, ResolverConfig
from resolver.feed import ShardFeed
from resolver.ledger.rebuild import RedisRebuild
from resolver.ledger.store import RedisLedger
from resolver.proposing import Proposing
from resolver.reaper import forget_for_ever, reap_for_ever
from resolver.rebuilding import Rebuilding
from resolver.service import ResolverService

_OPEN_RETRY_SECONDS = 0.5
_SERVICE_NAME = resolver_pb2.DESCRIPTOR.services_by_name["Resolver"].full_name


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="resolver", description="The conflict resolver: the only writer of the ledger."
    )
    parser.add_argument("--config", type=Path, help=f"a {KIND} document; flags override it")
    parser.add_argument("--listen", help="host:port, port 0 for a free one")
    parser.add_argument("--redis-url")
    parser.add_argument("--shards", type=int, help="of a ledger that is made now; an existing one has its own")
    parser.add_argument("--reservation-lease-seconds", type=float)
    parser.add_argument("--gang-hold-seconds", type=float)
    parser.add_argument("--rules-memory-seconds", type=float)
    parser.add_argument("--feed-window-entries", type=int)
    parser.add_argument("--rebuild-wait-seconds", type=float)
    parser.add_argument("--allow-unchecked", action="store_true", default=None, help="for benchmarks only")
    parser.add_argument("--ready-file", type=Path)
    parser.add_argument("--log-level", default="info")
    return parser.parse_args()


def _configuration(arguments: argparse.Namespace) -> ResolverConfig:
    config = load_document(arguments.config, KIND, ResolverConfig) if arguments.config else ResolverConfig()
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    flags: dict[str, Any] = {name: given[name] for name in ResolverConfig.model_fields if name in given}
    try:
        return ResolverConfig.model_validate({**config.model_dump(), **flags})
    except ValidationError as exc:
        raise ConfigError(describe_validation(exc), where="flags") from exc


async def serve(config: ResolverConfig, ready_file: Path | None) -> None:
    """Serve until SIGTERM. Answers from the start; ready once the ledger is open."""
    ledger = RedisLedger(
        config.redis_url,
        lease_ms=round(config.reservation_lease_seconds * 1000),
        hold_ms=round(config.gang_hold_seconds * 1000),
        feed_window=config.feed_window_entries,
    )
    await _open(ledger, config.shards)
    server = rpc.Server()
    store = RedisRebuild(
        ledger,
        feed_window=config.feed_window_entries,
        lease_ms=round(config.reservation_lease_seconds * 1000),
    )
    availability = Availability(
        ledger, server.set_serving, store.take_up, rebuild_wait_seconds=config.rebuild_wait_seconds
    )
    committers = [Committer(ledger, shard) for shard in range(ledger.shards)]
    feeds = [ShardFeed(ledger, shard) for shard in range(ledger.shards)]
    proposing = Proposing(ledger, committers, availability, allow_unchecked=config.allow_unchecked)
    reaped: Counter[str] = Counter()

    def counters() -> Counter[str]:
        return sum((committer.counters for committer in committers), proposing.counters + reaped)

    rebuilding = Rebuilding(ledger, store, now_us=lambda: time.time_ns() // 1000)
    service = ResolverService(ledger, feeds, proposing, availability, counters=counters, rebuilding=rebuilding)
    add_ResolverServicer_to_server(service, server.grpc)
    port = await server.start(config.listen, [_SERVICE_NAME])
    jobs = [
        *(committer.run() for committer in committers),
        *(feed.run() for feed in feeds),
        availability.run(),
        reap_for_ever(ledger, reaped, period_seconds=min(1.0, config.reservation_lease_seconds / 4)),
        forget_for_ever(ledger, reaped, period_seconds=config.rules_memory_seconds),
    ]
    async with rpc.background(*jobs):
        telemetry.logger().info("serving", port=port, ledger_epoch=ledger.epoch, shards=ledger.shards)
        rpc.announce_ready(ready_file, port=port, service="resolver")
        await rpc.until_stopped()
    await server.stop()
    await ledger.close()


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
        rpc.run(lambda: serve(config, arguments.ready_file))
    except HossError as exc:
        sys.stderr.write(f"resolver: {exc}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
