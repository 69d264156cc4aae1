"""`hoss bench gpu`: how much of a cluster's GPU each policy allocates before only fragments are left.

The experiment of "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent" (Weng et al., USENIX ATC 2023, section 6). Pods are drawn from the trace at random, with replacement,
until they request 130 % of the cluster's GPU together, and are submitted in that order. Pods that do not fit
are left out. One worker runs in this process, without services, and places one pod after the other. Several
workers run as a platform of their own and place at the same time.

The JSON document: nodes, cardsMilli, overload, seeds; results[] with policy, workers, allocatedPercent (mean
over the seeds), lowest, highest, paperPercent (null where the paper has no figure for the list), pods (mean),
seconds (mean), conflicts (mean), violations (texts), allocatedPercents by seed."""

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from hoss.client.dispatcher import submission
from hoss.errors import InvalidInput
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec, Workload
from hoss.model.resources import WHOLE_CARD_MILLI, ResourceSchema
from hoss.wire.columns import numbered_uids
from hossctl import auditing
from hossctl.console import Document
from hossctl.endpoints import Clients
from hossctl.load import report
from hossctl.load.progress import placing
from hossctl.load.report import CARDS
from hossctl.local.platform import PlatformOptions
from scheduler_worker.config import STRATEGY_LABEL
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.cycle.cycle import SchedulerLimits
from scheduler_worker.core.cycle.scheduler import Scheduler
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.messages import AccountBatch, FeedUpdate
from scheduler_worker.core.plugins import REGISTRY
from scheduler_worker.core.plugins.profiles import PRESETS

_PREFIX = b"in process.."  # of UIDs: 12 bytes
OVERLOAD = 1.3


class GpuPolicy(str, Enum):
    """A worker's preset of the same name."""

    RANDOM = "random"
    BEST_FIT = "best-fit"
    FGD = "fgd"


# Share of all GPU that the paper's own runs allocated, per cent, by the trace's pod list.
PAPER: Mapping[str, Mapping[GpuPolicy, float]] = {
    "openb_pod_list_default": {GpuPolicy.RANDOM: 87.5, GpuPolicy.BEST_FIT: 93.1, GpuPolicy.FGD: 95.4},
    "openb_pod_list_gpuspec33": {GpuPolicy.BEST_FIT: 93.1, GpuPolicy.FGD: 94.6},
}


@dataclass(frozen=True, slots=True)
class GpuSetting:
    """What is measured: each policy with each number of workers, on the load of each seed."""

    nodes: Sequence[NodeSpec]
    pods: Sequence[Workload]  # the load is drawn from these
    policies: Sequence[GpuPolicy]
    workers: Sequence[int]
    seeds: range  # one load each
    redis_url: str = ""
    pod_list: str = ""  # the name of the trace's list that `pods` are

    @property
    def cards_milli(self) -> int:
        """GPU of the whole cluster, thousandths of a card."""
        return WHOLE_CARD_MILLI * sum(node.cards for node in self.nodes)


@dataclass(frozen=True, slots=True)
class GpuRun:
    """The placement of one load."""

    pods: int
    allocated_milli: int
    seconds: float
    conflicts: int = 0
    violations: tuple[str, ...] = ()  # findings of the audit


@dataclass(slots=True)
class PolicyResult:
    """The runs of a policy with a number of workers, one for each seed."""

    policy: GpuPolicy
    workers: int
    cards_milli: int
    paper_percent: float | None  # what the paper's own run allocated; None where it has none of this list
    runs: list[GpuRun] = field(default_factory=list)

    @property
    def percents(self) -> list[float]:
        """Per cent of all GPU that was allocated, by run."""
        return [100 * run.allocated_milli / self.cards_milli for run in self.runs]

    def as_json(self) -> Document:
        percents, count = self.percents, len(self.runs)
        return {
            "policy": self.policy.value,
            "workers": self.workers,
            "allocatedPercent": round(sum(percents) / count, 2),
            "lowest": round(min(percents), 2),
            "highest": round(max(percents), 2),
            "paperPercent": self.paper_percent,
            "pods": round(sum(run.pods for run in self.runs) / count),
            "seconds": round(sum(run.seconds for run in self.runs) / count, 2),
            "violations": [text for run in self.runs for text in run.violations],
            "conflicts": round(sum(run.conflicts for run in self.runs) / count),
            "allocatedPercents": [round(percent, 3) for percent in percents],
        }


def read_policies(text: str) -> list[GpuPolicy]:
    """`random,fgd` as policies. InvalidInput for any other name."""
    try:
        return [GpuPolicy(name) for name in text.split(",")]
    except ValueError as exc:
        names = ", ".join(policy.value for policy in GpuPolicy)
        raise InvalidInput(f"{text!r} names something else than {names}", where="--policy") from exc


def measure(setting: GpuSetting, *, quiet: bool) -> list[PolicyResult]:
    """Every policy with every number of workers, on the same loads. InvalidInput where there are no cards."""
    if not setting.cards_milli:
        raise InvalidInput("no node has a card; there is nothing to share", where="--nodes")
    if not any(_milli_of(pod.template.spec) for pod in setting.pods):
        raise InvalidInput("no pod requests a card; they would never fill any", where="--pods")
    results = []
    for workers in setting.workers:
        for policy in setting.policies:
            published = PAPER.get(setting.pod_list, {}).get(policy)
            result = PolicyResult(policy, workers, setting.cards_milli, published)
            for seed in setting.seeds:
                load = draw_load(setting.pods, OVERLOAD * setting.cards_milli, seed=seed)
                if workers == 1:
                    result.runs.append(_alone(setting, load, policy, seed))
                else:
                    result.runs.append(_together(setting, load, policy, workers, seed, quiet=quiet))
            results.append(result)
    return results


def draw_load(pods: Sequence[Workload], milli: float, *, seed: int) -> list[Workload]:
    """Pods drawn at random, with replacement, until they request `milli` thousandths of a card. Names are
    unique."""
    chance = random.Random(seed)
    requested = 0
    load: list[Workload] = []
    while requested < milli:
        pod = chance.choice(pods)
        load.append(Workload(f"{pod.name}-{len(load)}", pod.template))
        requested += _milli_of(pod.template.spec)
    return load


def _milli_of(spec: PodSpec) -> int:
    return spec.devices.count * spec.devices.milli if spec.devices else 0


def _alone(setting: GpuSetting, load: Sequence[Workload], policy: GpuPolicy, seed: int) -> GpuRun:
    started = time.perf_counter()
    profile = PRESETS[policy.value].profile(REGISTRY)
    cache = place_one_by_one(setting.nodes, (pod.template.spec for pod in load), profile, seed=seed)
    used = cache.cards.used[: cache.size]
    allocated = int(used[used <= WHOLE_CARD_MILLI].sum())
    return GpuRun(len(load), allocated, time.perf_counter() - started)


def _together(
    setting: GpuSetting, load: Sequence[Workload], policy: GpuPolicy, workers: int, seed: int, *, quiet: bool
) -> GpuRun:
    labels = ((STRATEGY_LABEL, policy.value),)
    options = PlatformOptions(
        workers=report.workers(workers, labels), redis_url=setting.redis_url, seed=seed * 1000
    )
    requests = list(submission(load))

    async def place(clients: Clients) -> GpuRun:
        await report.prepare(clients, setting.nodes, workers)
        with placing(f"{policy.value}, {seed}", len(load), quiet=quiet) as progress:
            placement = await report.place(clients, requests, progress)
        used = await report.usage(clients)
        audit = await auditing.audit(clients.dispatcher, clients.resolver)
        findings = tuple(f"invariant {finding.invariant}: {finding.text}" for finding in audit.findings)
        return GpuRun(
            len(load), used.requested.get(CARDS, 0), placement.seconds, placement.conflicts, findings
        )

    with report.platform(options) as starter:
        return report.run_on(starter.state, place)


def empty_pool(nodes: Sequence[NodeSpec]) -> FeedUpdate:
    """The feed's snapshot of a ledger with these nodes and no pods."""
    schema = ResourceSchema()
    for node in nodes:
        schema.extend(name for name, _ in node.allocatable)
    accounts = AccountBatch.of_nodes(range(len(nodes)), nodes, schema.names, seq=1)
    return FeedUpdate(
        0, 1, accounts, tuple(enumerate(nodes)), snapshot=True, shards=1, schema=tuple(schema.names)
    )


def place_one_by_one(
    nodes: Sequence[NodeSpec], pods: Iterable[PodSpec], profile: Profile, *, seed: int
) -> NodeInfoCache:
    """Place one pod after the other with one worker's core. The cache holds all pods but those that fit
    nowhere."""
    scheduler = Scheduler(
        NodeInfoCache(), profile, np.random.default_rng(seed), SchedulerLimits(alternates=0)
    )
    scheduler.cache.apply_feed(empty_pool(nodes))
    numbers: dict[PodSpec, int] = {}
    one, first_attempt = np.ones(1, np.uint32), np.zeros(1, np.uint16)
    for arrival, pod in enumerate(pods):
        if pod not in numbers:
            numbers[pod] = len(numbers)
            scheduler.define_class(numbers[pod], pod)
        number = np.array([numbers[pod]], np.uint32)
        scheduler.accept(arrival, numbered_uids(_PREFIX, arrival, 1), number, one, first_attempt)
        scheduler.step()
        scheduler.take_proposals(now=0.0)
        scheduler.take_outcomes()
    return scheduler.cache
