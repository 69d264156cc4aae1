"""`hoss replay`: a cluster trace, placed as fast as it goes."""

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from hoss.client.dispatcher import submission
from hoss.model.node import NodeSpec
from hoss.model.pod import Workload
from hossctl import auditing, report
from hossctl.console import Document
from hossctl.endpoints import Endpoints, clients_of, of_state
from hossctl.eventloop import run_async
from hossctl.platform import PlatformOptions, WorkerOptions, temporary
from hossctl.progress import counting, placing
from hossctl.redis_database import borrowed
from hossctl.usage import Usage
from scheduler_worker.config import STRATEGY_LABEL


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """How a trace was placed."""

    placement: report.Placement
    used: Usage
    audit: auditing.AuditResult

    @property
    def passed(self) -> bool:
        """Whether nothing was lost, nothing overcommitted, and the audit found nothing."""
        return not (self.placement.unaccounted or self.used.overcommitted or self.audit.exit_code)

    def lines(self) -> list[tuple[str, object]]:
        """For people."""
        return [*self.placement.lines(), *report.usage_lines(self.used), *report.audit_lines(self.audit)]

    def as_json(self) -> Document:
        """For programs."""
        return {
            "placement": self.placement.as_json(),
            "usage": report.usage_json(self.used),
            "audit": report.audit_json(self.audit),
        }


async def replay(
    endpoints: Endpoints, nodes: Sequence[NodeSpec], pods: Sequence[Workload], workers: int, *, quiet: bool
) -> ReplayResult:
    """Register the nodes, place the pods, audit."""
    requests = list(submission(pods))
    async with clients_of(endpoints) as clients:
        with counting("nodes", len(nodes), quiet=quiet) as registered:
            await report.prepare(clients, nodes, workers, registered)
        with placing("pods", len(pods), quiet=quiet) as progress:
            placement = await report.place(clients, requests, progress)
        used = await report.usage(clients)
        audit = await auditing.audit(clients.dispatcher, clients.resolver)
    return ReplayResult(placement, used, audit)


def run(
    nodes: Sequence[NodeSpec],
    pods: Sequence[Workload],
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
        return run_async(replay(endpoints, nodes, pods, expected, quiet=quiet))


def shuffled(pods: Sequence[Workload], seed: int) -> list[Workload]:
    """The pods in another order, the same for the same seed."""
    return random.Random(seed).sample(pods, len(pods))
