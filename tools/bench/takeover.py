"""`python -m tools.bench takeover`: how long nobody serves after the active dispatcher was killed.

`pods` pods are bound, and as many wait for a node that does not exist. Then the active one of two dispatchers is
killed (-9). The standby waits for the lease to end, reads the journal and all reservations, and serves. Times
begin with the kill, as a client sees them; they include the lease of 1.5 s.

The JSON document:

    nodes, pods, workers, seed, repeat
    servingSeconds       until a dispatcher answers that knows every pod; median
    movedPods            pods whose reservation was gone or on another node, in any run: 0 unless HOSS errs
    runs[]               servingSeconds, movedPods of each
    violations           of any audit after a run
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from hoss.client.dispatcher import DispatcherClient
from hoss.errors import HossError
from hoss.model.node import NodeSpec
from hossctl import auditing
from hossctl.console import Document
from hossctl.endpoints import Clients
from hossctl.figures import camel, median
from hossctl.load import report, runner
from hossctl.load.progress import placing
from hossctl.local.platform import PlatformOptions, Starter
from tools.bench.rebuild import Setting, finding_lines, moved_pods, reserved

_POLL_SECONDS = 0.005
_WAIT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Takeover:
    """One death of a dispatcher."""

    serving_seconds: float
    moved_pods: int

    def as_json(self) -> Document:
        """See the module's docstring."""
        return camel(self, "serving_seconds", "moved_pods", digits=3)


@dataclass(slots=True)
class Takeovers:
    """The whole measurement."""

    setting: Setting
    runs: list[Takeover] = field(default_factory=list)
    findings: list[auditing.Finding] = field(default_factory=list)

    @property
    def moved_pods(self) -> int:
        """Moved pods of all runs."""
        return sum(run.moved_pods for run in self.runs)

    def as_json(self) -> Document:
        """See the module's docstring."""
        return {
            **self.setting.as_json(),
            "servingSeconds": round(median([run.serving_seconds for run in self.runs]), 3),
            "movedPods": self.moved_pods,
            "runs": [run.as_json() for run in self.runs],
            "violations": [finding.as_json() for finding in self.findings],
        }

    def lines(self) -> list[tuple[str, object]]:
        """For people."""
        found = self.as_json()
        return [
            ("the next dispatcher serves", f"{found['servingSeconds']:.2f} s after the kill, lease included"),
            ("bound pods that moved", f"{found['movedPods']:,}"),
            *finding_lines(self.findings),
        ]


def measure(setting: Setting, *, quiet: bool) -> Takeovers:
    """`repeat` takeovers, each on a fresh platform."""
    nodes = setting.node_specs()
    options = PlatformOptions(workers=report.workers(setting.workers), dispatchers=2, seed=setting.seed)
    result = Takeovers(setting)
    for _ in range(setting.repeat):
        with report.platform(options) as starter:
            report.run_on(starter.state, partial(_run, result, starter, nodes, quiet=quiet))
    return result


async def _run(
    result: Takeovers, starter: Starter, nodes: Sequence[NodeSpec], clients: Clients, *, quiet: bool
) -> None:
    setting, dispatcher = result.setting, clients.dispatcher
    await report.prepare(clients, nodes, setting.workers)
    with placing("bound", setting.pods, quiet=quiet) as progress:
        await runner.place(dispatcher, setting.load("bound", setting.pods), progress=progress)
    for request in setting.load("waiting", setting.pods):
        for template in request.templates:
            template.spec.node_selector.add(key="example.org/zone", value="nowhere")
        await dispatcher.submit(request)
    before, term = await reserved(clients.resolver), (await dispatcher.status()).term
    began = time.perf_counter()
    await asyncio.to_thread(_kill_active, starter, (await dispatcher.status()).address)
    await _until_serving(dispatcher, term, 2 * setting.pods)
    serving_seconds = time.perf_counter() - began
    moved = moved_pods(before, await reserved(clients.resolver))
    result.runs.append(Takeover(serving_seconds, moved))
    await auditing.until_caches_agree(dispatcher, clients.resolver, setting.workers)
    result.findings += (await auditing.audit(dispatcher, clients.resolver)).findings


def _kill_active(starter: Starter, address: str) -> None:
    number = 1 + starter.state.dispatcher.split(",").index(address)
    for record in starter.state.processes:
        if record.name == f"dispatcher-{number}" and (process := record.find()) is not None:
            process.kill()
            process.wait()


async def _until_serving(dispatcher: DispatcherClient, term: int, pods: int) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            status = await dispatcher.status()
        except HossError:
            status = None
        if status is not None and status.term > term and sum(status.pods_by_phase.values()) >= pods:
            return
        if time.monotonic() > deadline:
            raise HossError(f"no dispatcher has taken over with {pods:,} pods within {_WAIT_SECONDS:.0f} s")
        await asyncio.sleep(_POLL_SECONDS)
