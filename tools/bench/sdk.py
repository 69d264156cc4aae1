"""`python -m tools.bench sdk`: what a scheduler of one's own costs that `hoss.sdk` runs.

It is alone on a platform, and places equal pods. Its CPU time by pod is that of its whole process, the
algorithm included, so that a busy machine can judge, too: 50 us are 20,000 pods/s on one core.

The JSON document:

    nodes, pods, scheduler, seed, repeat
    microsPerPod             CPU time of the scheduler's process, median over the runs
    podsPerSecondOfOneCore   the same, as a rate
    goalMicros
    runs[]                   microsPerPod, podsPerSecond (on the clock, beside all other services), conflicts
    violations               findings of the audit after the last run
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from hoss.errors import HossError
from hoss.model.node import NodeSpec
from hoss.v1 import dispatcher_pb2 as pb
from hossctl import auditing
from hossctl.bench import processes
from hossctl.choices import Mix
from hossctl.console import Document
from hossctl.endpoints import Clients
from hossctl.figures import camel, median, per_second
from hossctl.load import report
from hossctl.load.generated import bench_load, bench_nodes
from hossctl.load.progress import placing
from hossctl.local.platform import PlatformOptions, Starter
from hossctl.local.platform_state import WorkerOptions

GOAL_MICROS = 50.0
_WARM_UP_PODS = 2000  # imports, classes and connections


@dataclass(frozen=True, slots=True)
class SdkSetting:
    """One scheduler, FILE.py:Class or module:Class, and its load."""

    scheduler: str
    nodes: int
    pods: int
    seed: int
    repeat: int = 1
    redis_url: str = ""


@dataclass(frozen=True, slots=True)
class SdkRun:
    """One load on a fresh platform."""

    micros_per_pod: float
    pods_per_second: float
    conflicts: int

    def as_json(self) -> Document:
        """See the module's docstring."""
        return {
            **camel(self, "micros_per_pod", digits=2),
            **camel(self, "pods_per_second", digits=1),
            **camel(self, "conflicts"),
        }


@dataclass(slots=True)
class SdkCost:
    """All runs."""

    setting: SdkSetting
    runs: list[SdkRun] = field(default_factory=list)
    audit: auditing.AuditResult = field(default_factory=auditing.AuditResult)

    @property
    def micros_per_pod(self) -> float:
        """The median."""
        return median([run.micros_per_pod for run in self.runs])

    @property
    def pods_per_second_of_one_core(self) -> float:
        """0.0 where the system's clock of CPU time has seen nothing of so few pods."""
        return per_second(1e6, self.micros_per_pod)

    def as_json(self) -> Document:
        """See the module's docstring."""
        return {
            **camel(self.setting, "nodes", "pods", "scheduler", "seed"),
            "repeat": len(self.runs),
            **camel(self, "micros_per_pod", digits=2),
            "podsPerSecondOfOneCore": round(self.pods_per_second_of_one_core),
            "goalMicros": GOAL_MICROS,
            "runs": [run.as_json() for run in self.runs],
            "violations": [finding.as_json() for finding in self.audit.findings],
        }

    def lines(self) -> list[tuple[str, object]]:
        """For people."""
        micros = ", ".join(f"{run.micros_per_pod:.1f}" for run in self.runs)
        rates = ", ".join(f"{run.pods_per_second:,.0f}" for run in self.runs)
        return [
            ("CPU a pod", f"{self.micros_per_pod:.1f} us ({micros}); goal {GOAL_MICROS:g}"),
            ("pods/s of one core", f"{self.pods_per_second_of_one_core:,.0f}; goal {1e6 / GOAL_MICROS:,.0f}"),
            ("pods/s on the clock", rates),
            *report.audit_lines(self.audit),
        ]


def measure(setting: SdkSetting, *, quiet: bool) -> SdkCost:
    """Place the load `repeat` times, each on a fresh platform. Raises HossError where not all is bound."""
    worker = WorkerOptions("w1", scheduler=setting.scheduler)
    options = PlatformOptions(workers=(worker,), redis_url=setting.redis_url, seed=setting.seed)
    nodes = bench_nodes(Mix.UNIFORM, setting.nodes, seed=setting.seed)
    cost = SdkCost(setting)
    for _ in range(setting.repeat):
        with report.platform(options) as starter:
            report.run_on(starter.state, partial(_run, cost, starter, nodes, worker.process, quiet=quiet))
    return cost


async def _run(
    cost: SdkCost, starter: Starter, nodes: Sequence[NodeSpec], process: str, clients: Clients, *, quiet: bool
) -> None:
    setting, records = cost.setting, starter.state.processes
    await report.prepare(clients, nodes, 1)
    await report.place(clients, _load("warm-up", _WARM_UP_PODS, setting.seed))
    before = processes.cpu_seconds(records)[process]
    with placing(f"run {len(cost.runs) + 1}", setting.pods, quiet=quiet) as progress:
        placement = await report.place(clients, _load("load", setting.pods, setting.seed), progress)
    seconds = processes.cpu_seconds(records)[process] - before
    if placement.bound < setting.pods:
        raise HossError(
            f"{placement.bound:,} of {setting.pods:,} pods were bound; give --nodes more, or mend the"
            " scheduler: " + "; ".join(placement.reasons)
        )
    cost.runs.append(SdkRun(1e6 * seconds / placement.bound, placement.pods_per_second, placement.conflicts))
    cost.audit = await auditing.audit(clients.dispatcher, clients.resolver)


def _load(name: str, pods: int, seed: int) -> list[pb.SubmitRequest]:
    return bench_load(Mix.UNIFORM, pods, cards=0, seed=seed, name=name)
