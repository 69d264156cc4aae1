"""`hoss replay`: a recorded cluster trace is placed, at once or in its own time."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from hossctl import auditing
from hossctl.cli import run_async
from hossctl.console import Document
from hossctl.endpoints import Endpoints, clients_of, of_state
from hossctl.load import report
from hossctl.load.playing import LATE_SECONDS, Departed, Trace, play
from hossctl.load.progress import counting, placing
from hossctl.load.report import Usage
from hossctl.load.runner import Tracker
from hossctl.local.platform import PlatformOptions
from hossctl.traces.recording import TracePod
from scheduler_worker.config import STRATEGY_LABEL


@dataclass(frozen=True, slots=True)
class ReplayResult:
    placement: report.Placement
    departed: Departed
    used: Usage
    audit: auditing.AuditResult

    @property
    def passed(self) -> bool:
        """No pod was lost, no node is overcommitted, and the audit found nothing."""
        return not (self.placement.unaccounted or self.used.overcommitted or self.audit.exit_code)

    def lines(self) -> list[tuple[str, object]]:
        return [
            *self.placement.lines(),
            *self._departures(),
            *report.usage_lines(self.used),
            *report.audit_lines(self.audit),
        ]

    def as_json(self) -> Document:
        return {
            "placement": self.placement.as_json(),
            "departures": {
                "pods": self.departed.pods,
                "late": self.departed.late,
                "latestSeconds": round(self.departed.latest_seconds, 3),
            },
            "usage": report.usage_json(self.used),
            "audit": report.audit_json(self.audit),
        }

    def _departures(self) -> list[tuple[str, object]]:
        gone = self.departed
        if not gone.pods:
            return []
        late = f", {gone.late:,} more than {LATE_SECONDS:g} s late, the latest {gone.latest_seconds:.1f} s"
        return [("departed", f"{gone.pods:,}{late if gone.late else ''}")]


def run(
    trace: Trace,
    *,
    endpoints: Endpoints | None,
    workers: int,
    strategy: str,
    redis_url: str,
    seed: int,
    quiet: bool,
) -> ReplayResult:
    """Replay on the platform at `endpoints`, or on one of its own, whose workers have the profile `strategy`
    if any."""
    if endpoints is not None:
        return run_async(_replay(endpoints, trace, 1, quiet=quiet))
    labels = ((STRATEGY_LABEL, strategy),) if strategy else ()
    options = PlatformOptions(workers=report.workers(workers, labels), redis_url=redis_url, seed=seed)
    with report.platform(options) as starter:
        return run_async(_replay(of_state(starter.state), trace, workers, quiet=quiet))


async def _replay(endpoints: Endpoints, trace: Trace, workers: int, *, quiet: bool) -> ReplayResult:
    async with clients_of(endpoints) as clients:
        with counting("nodes", len(trace.nodes), quiet=quiet) as registered:
            await report.prepare(clients, trace.nodes, workers, registered)
        before, tracker = await report.counters(clients), Tracker(trace.pods)
        with placing("pods", trace.pods, quiet=quiet) as progress:
            departed = await play(clients.dispatcher, trace, tracker, asyncio.Event(), progress)
            progress(tracker)
        placement = report.figures(tracker, before, await report.counters(clients))
        used = await report.usage(clients)
        audit = await auditing.audit(clients.dispatcher, clients.resolver)
    return ReplayResult(placement, departed, used, audit)


def shuffle(pods: Sequence[TracePod], seed: int) -> list[TracePod]:
    """The pods in an order drawn from the seed."""
    return random.Random(seed).sample(pods, len(pods))
