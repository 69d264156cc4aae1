"""`hoss bench gpu`: how much of a cluster's GPU each policy allocates before fragments are all that is left.

The experiment of "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (Weng et
al., USENIX ATC 2023, section 6): pods are drawn from the trace at random, with replacement, until they ask for 130 % of
the cluster's GPU together, and submitted in the order they were drawn. What does not fit is left out. One worker runs
in this process, one pod after the other; several run as a platform of their own, each process at once.

The JSON document: nodes, cardsMilli, overload, seeds; results[] with policy, workers, allocatedPercent (mean over the seeds),
lowest, highest, paperPercent, pods (mean), seconds (mean), conflicts (mean), violations (texts), allocatedPercents by seed.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from hoss.client.dispatcher import submission
from hoss.errors import InvalidInput
from hoss.model.fit import WHOLE_CARD_MILLI
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, Workload
from hossctl import auditing, report
from hossctl.bench.in_process import place_one_by_one
from hossctl.console import Document
from hossctl.endpoints import clients_of, of_state
from hossctl.eventloop import run_async
from hossctl.platform import PlatformOptions, PlatformState, WorkerOptions, temporary
from hossctl.progress import placing
from hossctl.redis_database import borrowed
from hossctl.usage import CARDS
from scheduler_worker.config import STRATEGY_LABEL
from scheduler_worker.core.plugins import REGISTRY
from scheduler_worker.core.profiles import PRESETS

OVERLOAD = 1.3


class Policy(str, Enum):
    """A worker's preset of the same name."""

    RANDOM = "random"
    BEST_FIT = "best-fit"
    FGD = "fgd"


# Share of all GPU allocated on the trace's default pod list, per cent.
PAPER = {Policy.RANDOM: 87.5, Policy.BEST_FIT: 93.1, Policy.FGD: 95.4}


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured."""

    nodes: Sequence[NodeSpec]
    pods: Sequence[Workload]  # to draw from
    policies: Sequence[Policy]
    workers: Sequence[int]
    seeds: range  # one load each
    redis_url: str = ""

    @property
    def cards_milli(self) -> int:
        """GPU of the whole cluster, thousandths of a card."""
        return WHOLE_CARD_MILLI * sum(node.cards for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Run:
    """One load placed."""

    pods: int
    allocated_milli: int
    seconds: float
    conflicts: int = 0
    violations: tuple[str, ...] = ()  # what the audit found


@dataclass(slots=True)
class PolicyResult:
    """A policy's runs with so many workers, one a seed."""

    policy: Policy
    workers: int
    cards_milli: int
    runs: list[Run] = field(default_factory=list)

    @property
    def percents(self) -> list[float]:
        """Share of all GPU that was allocated, by run."""
        return [100 * run.allocated_milli / self.cards_milli for run in self.runs]

    def as_json(self) -> Document:
        """See the module's docstring."""
        percents, count = self.percents, len(self.runs)
        return {
            "policy": self.policy.value,
            "workers": self.workers,
            "allocatedPercent": round(sum(percents) / count, 2),
            "lowest": round(min(percents), 2),
            "highest": round(max(percents), 2),
            "paperPercent": PAPER[self.policy],
            "pods": round(sum(run.pods for run in self.runs) / count),
            "seconds": round(sum(run.seconds for run in self.runs) / count, 2),
            "violations": [text for run in self.runs for text in run.violations],
            "conflicts": round(sum(run.conflicts for run in self.runs) / count),
            "allocatedPercents": [round(percent, 3) for percent in percents],
        }


def read_policies(text: str) -> list[Policy]:
    """`random,fgd` as policies. InvalidInput for any other name."""
    try:
        return [Policy(name) for name in text.split(",")]
    except ValueError as exc:
        names = ", ".join(policy.value for policy in Policy)
        raise InvalidInput(f"{text!r} names something else than {names}", where="--policy") from exc


def measure(setting: Setting, *, quiet: bool) -> list[PolicyResult]:
    """Every policy with every number of workers, on the same loads."""
    if not setting.cards_milli:
        raise InvalidInput("no node has a card; there is nothing to share", where="--nodes")
    if not any(_milli_of(pod.template.spec) for pod in setting.pods):
        raise InvalidInput("no pod asks for a card; they would never fill any", where="--pods")
    results = []
    for workers in setting.workers:
        for policy in setting.policies:
            result = PolicyResult(policy, workers, setting.cards_milli)
            for seed in setting.seeds:
                load = drawn(setting.pods, OVERLOAD * setting.cards_milli, seed=seed)
                if workers == 1:
                    result.runs.append(_alone(setting, load, policy, seed))
                else:
                    result.runs.append(_together(setting, load, policy, workers, seed, quiet=quiet))
            results.append(result)
    return results


def drawn(pods: Sequence[Workload], milli: float, *, seed: int) -> list[Workload]:
    """Pods drawn at random, with replacement, until they ask for `milli` thousandths of a card; no two of one name."""
    chance = random.Random(seed)
    asked = 0
    load: list[Workload] = []
    while asked < milli:
        pod = chance.choice(pods)
        load.append(Workload(f"{pod.name}-{len(load)}", pod.template))
        asked += _milli_of(pod.template.spec)
    return load


def _milli_of(spec: PodSpec) -> int:
    return spec.devices.count * spec.devices.milli if spec.devices else 0


def _alone(setting: Setting, load: Sequence[Workload], policy: Policy, seed: int) -> Run:
    started = time.perf_counter()
    profile = PRESETS[policy.value].profile(REGISTRY)
    cache = place_one_by_one(setting.nodes, (pod.template.spec for pod in load), profile, seed=seed)
    used = cache.cards.used[: cache.size]
    allocated = int(used[used <= WHOLE_CARD_MILLI].sum())
    return Run(len(load), allocated, time.perf_counter() - started)


def _together(
    setting: Setting, load: Sequence[Workload], policy: Policy, workers: int, seed: int, *, quiet: bool
) -> Run:
    labels = ((STRATEGY_LABEL, policy.value),)
    options = PlatformOptions(
        workers=tuple(WorkerOptions(f"w{i + 1}", labels) for i in range(workers)),
        redis_url=setting.redis_url,
        seed=seed * 1000,
    )
    with borrowed(setting.redis_url), temporary(options) as starter:
        return run_async(_place(starter.state, setting.nodes, load, workers, f"{policy.value}, {seed}", quiet=quiet))


async def _place(
    state: PlatformState,
    nodes: Sequence[NodeSpec],
    load: Sequence[Workload],
    workers: int,
    title: str,
    *,
    quiet: bool,
) -> Run:
    requests = list(submission(load))
    async with clients_of(of_state(state)) as clients:
        await report.prepare(clients, nodes, workers)
        with placing(title, len(load), quiet=quiet) as progress:
            placement = await report.place(clients, requests, progress)
        used = await report.usage(clients)
        audit = await auditing.audit(clients.dispatcher, clients.resolver)
    findings = tuple(f"invariant {finding.invariant}: {finding.text}" for finding in audit.findings)
    return Run(len(load), used.requested.get(CARDS, 0), placement.seconds, placement.conflicts, findings)
