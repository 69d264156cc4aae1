"""`hoss replay`: a cluster trace, placed as fast as it goes or in its own time."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from hossctl import auditing, report
from hossctl.compare.playing import LATE_SECONDS, Departed, play
from hossctl.compare.traces import Trace
from hossctl.console import Document
from hossctl.endpoints import Endpoints, clients_of, of_state
from hossctl.eventloop import run_async
from hossctl.platform import PlatformOptions, WorkerOptions, temporary
from hossctl.progress import counting, placing
from hossctl.redis_database import borrowed
from hossctl.traces.recording import TracePod
from hossctl.tracking import Tracker
from hossctl.usage import Usage
from scheduler_worker.config import STRATEGY_LABEL


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """How a trace was placed."""

    placement: report.Placement
    departed: Departed
    used: Usage
    audit: auditing.AuditResult

    @property
    def passed(self) -> bool:
        """Whether nothing was lost, nothing overcommitted, and the audit found nothing."""
        return not (self.placement.unaccounted or self.used.overcommitted or self.audit.exit_code)

    def lines(self) -> list[tuple[str, object]]:
        """For people."""
        return [
            *self.placement.lines(),
            *self._departures(),
            *report.usage_lines(self.used),
            *report.audit_lines(self.audit),
        ]

    def as_json(self) -> Document:
        """For programs."""
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


async def replay(endpoints: Endpoints, trace: Trace, workers: int, *, quiet: bool) -> ReplayResult:
    """Register the nodes, play the trace, audit."""
    async with clients_of(endpoints) as clients:
        with counting("nodes", len(trace.nodes), quiet=quiet) as registered:
            await report.prepare(clients, trace.nodes, workers, registered)
        before, tracker = await report.tally(clients), Tracker(trace.pods)
        with placing("pods", trace.pods, quiet=quiet) as progress:
            departed = await play(clients.dispatcher, trace, tracker, asyncio.Event(), progress)
            progress(tracker)
        placement = report.figures(tracker, before, await report.tally(clients))
        used = await report.usage(clients)
        audit = await auditing.audit(clients.dispatcher, clients.resolver)
    return ReplayResult(placement, departed, used, audit)


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
    """Replay on the platform at `endpoints`, or on one of its own, whose workers have the profile `strategy` if any."""
    with ExitStack() as stack:
        expected = 1
        if endpoints is None:
            stack.enter_context(borrowed(redis_url))
            labels = ((STRATEGY_LABEL, strategy),) if strategy else ()
            named = tuple(WorkerOptions(f"w{i + 1}", labels) for i in range(workers))
            starter = stack.enter_context(temporary(PlatformOptions(workers=named, redis_url=redis_url, seed=seed)))
            endpoints, expected = of_state(starter.state), workers
        return run_async(replay(endpoints, trace, expected, quiet=quiet))


def shuffled(pods: Sequence[TracePod], seed: int) -> list[TracePod]:
    """The pods in another order, the same for the same seed."""
    return random.Random(seed).sample(pods, len(pods))
