"""Runs a scheduler of one's own as a process, or beside other code on an event loop."""

import argparse
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hoss import serving, telemetry
from hoss.client.access import ClientAccess, found_access
from hoss.client.feed import Subscription
from hoss.client.proposal_stream import ProposalStream
from hoss.client.resolver import ResolverClient
from hoss.client.worker_link import DispatcherLink
from hoss.contexts import found_addresses
from hoss.errors import ConfigError, HossError, TransportError
from hoss.host import THIS_HOST, Host
from hoss.model.placing import PlacementAlgorithm
from hoss.rpc import OpenChannel
from hoss.sdk.scheduler import CustomScheduler
from hoss.tasks import background
from hoss.v1.workerlink_pb2 import Register
from hoss.wire.convert_selectors import labels_to_proto

# Two full proposals: one is placed while the other is at the ledger.
WINDOW_PODS = 2000

# A stopping scheduler waits this long for the ledger's answers.
_FINISH_SECONDS = 2.0


@asynccontextmanager
async def running(
    algorithm: PlacementAlgorithm,
    name: str,
    *,
    dispatchers: Sequence[str],
    resolvers: Sequence[str],
    labels: Mapping[str, str] | None = None,
    window: int = WINDOW_PODS,
    budget_seconds: float = 0.1,
    limit_seconds: float = 10.0,
    open_channel: OpenChannel | None = None,
    host: Host = THIS_HOST,
) -> AsyncIterator[CustomScheduler]:
    """Schedule for the length of the block, with this algorithm, under this name.

    `dispatchers` and `resolvers`: addresses, host:port; of several dispatchers one is active. `window`: the
    most pods that the scheduler has at once. `budget_seconds`: what `place` is given as its budget.
    `open_channel`: by default with the certificate and the token that clients find (hoss.client.access).
    Raises ConfigError where the dispatcher refuses the registration, and SchedulerFailed where the algorithm
    does not answer in `limit_seconds`."""
    if open_channel is None:
        open_channel = found_access([*dispatchers, *resolvers]).channel
    scheduler = CustomScheduler(
        name,
        algorithm,
        clock=host.monotonic,
        thread_clock=host.thread_seconds,
        budget_seconds=budget_seconds,
        limit_seconds=limit_seconds,
    )
    resolver = ResolverClient(resolvers, open_channel=open_channel)
    proposals = ProposalStream(resolver, scheduler.take_verdict, rng=host.rng)
    registration = Register(
        name=name,
        labels=labels_to_proto(sorted((labels or {}).items())),
        incarnation=host.rng.getrandbits(63),
        window=window,
        profile=f"{type(algorithm).__name__} (SDK)",
    )
    link = DispatcherLink(dispatchers, registration, scheduler, open_channel=open_channel, rng=host.rng)
    feed = Subscription(resolver, name, scheduler.apply_feed, clock=host.monotonic, rng=host.rng)
    scheduler.connect(link, proposals)
    try:
        async with background(feed.follow(), proposals.run(), link.run(), scheduler.schedule()):
            yield scheduler
            await scheduler.finish(_FINISH_SECONDS)
    finally:
        await resolver.close()


def main(algorithm: PlacementAlgorithm, argv: Sequence[str] | None = None) -> int:
    """Run a scheduler until the process is asked to stop, as its command line says; the exit code."""
    flags = _parser().parse_args(argv)
    telemetry.configure(flags.name, level=flags.log_level)
    try:
        serving.run(lambda: _serve(algorithm, flags))
    except HossError as exc:
        print(f"{flags.name}: {exc}", file=sys.stderr)  # noqa: T201 - for whoever started it
        return 1
    return 0


async def _serve(algorithm: PlacementAlgorithm, flags: argparse.Namespace) -> None:
    async with running(
        algorithm,
        flags.name,
        dispatchers=_addresses("dispatcher", flags.dispatcher, "127.0.0.1:7100"),
        resolvers=_addresses("resolver", flags.resolver, "127.0.0.1:7101"),
        labels=_labels(flags.label),
        window=flags.window,
        open_channel=ClientAccess(flags.tls_dir).channel if flags.tls_dir else None,
    ):
        serving.announce_ready(flags.ready_file, service=flags.name)
        await serving.until_stopped()


def _addresses(service: str, given: str, default: str) -> Sequence[str]:
    """Those of the flag, else of the platform that commands talk to, else the default of the service."""
    if given:
        return given.split(",")
    try:
        return found_addresses(service)
    except TransportError:
        return [default]


def _labels(pairs: Sequence[str]) -> dict[str, str]:
    """`key=value` each; the dispatcher checks both."""
    for pair in pairs:
        if "=" not in pair:
            raise ConfigError(f"{pair!r} is not of the form key=value", where="--label")
    return dict(pair.split("=", 1) for pair in pairs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="A scheduler of your own beside those of HOSS.")
    parser.add_argument("--name", required=True, help="unique among living workers")
    parser.add_argument(
        "--label", action="append", default=[], metavar="KEY=VALUE", help="what policies match on; repeatable"
    )
    parser.add_argument(
        "--dispatcher",
        default="",
        metavar="HOST:PORT[,HOST:PORT...]",
        help="all there are; one is active. Left out: that of the platform that `hoss` finds, else port 7100",
    )
    parser.add_argument(
        "--resolver",
        default="",
        metavar="HOST:PORT[,HOST:PORT...]",
        help="any of them answers. Left out: likewise, else port 7101",
    )
    parser.add_argument(
        "--tls-dir", type=Path, metavar="DIR", help="ca.crt, tls.crt and tls.key for mutual TLS"
    )
    parser.add_argument("--window", type=int, default=WINDOW_PODS, help="pods taken at once")
    parser.add_argument("--ready-file", type=Path, help="written once the scheduler runs")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parser
