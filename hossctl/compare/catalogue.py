"""The figures of a run: name, unit, meaning, and which way is better. The CSV's columns, the tables, the
report's definitions and the comparison with an earlier one all come from this list, so that each figure is
defined once."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from hoss.model.resources import DEVICE_RESOURCE
from hossctl.compare.document import ComparisonRun
from hossctl.figures import median, share
from hossctl.load.report import CARDS

PHASES: Final = ("queued", "deciding", "committing", "total")

Getter = Callable[[ComparisonRun], float | None]  # None: the run's mode does not have the figure


class Unit(str, Enum):
    PODS_PER_SECOND = "pods/s"
    MILLISECONDS = "ms"
    SECONDS = "s"
    MICROSECONDS_PER_POD = "us/pod"
    MIB = "MiB"
    SHARE = "share"  # a fraction; people see per cent
    RATIO = "ratio"
    COUNT = "count"


class Better(str, Enum):
    """Which way a change is a gain. NEITHER: the figure is shown and not tested."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. `least` is the smallest relevant change, in the figure's unit."""

    key: str  # the CSV's column
    title: str
    unit: Unit
    meaning: str
    of: Getter
    better: Better = Better.NEITHER
    least: float = 0.0

    def written(self, value: float | None) -> str:
        """For people; a dash for None."""
        return "-" if value is None else written(self.unit, value)


def written(unit: Unit, value: float) -> str:
    """A value in its unit, with as many digits as are useful."""
    if unit is Unit.SHARE:
        return f"{100 * value:.1f} %"
    if unit in (Unit.COUNT, Unit.PODS_PER_SECOND):
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if unit is Unit.RATIO or abs(value) < 10 else f"{value:.1f}"


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None else share(part, whole)


def scarcest_resource(run: ComparisonRun, *, cards: bool = True) -> str | None:
    """The most used resource at the end, of those that cost something; None where nothing is used."""
    counted = {
        name: share
        for name, share in run.utilisation.items()
        # The kubelet's limit of pods costs nothing, and whole cards are counted in the cards.
        if name not in ("pods", DEVICE_RESOURCE) and (cards or name != CARDS)
    }
    return max(counted, key=lambda name: counted[name], default=None)


def _stranded_of_scarcest(run: ComparisonRun) -> float | None:
    if run.quality is None or (scarcest := scarcest_resource(run)) is None:
        return None
    return run.quality.gpu_fragmentation if scarcest == CARDS else run.quality.stranded.get(scarcest)


THROUGHPUT = Figure(
    "pods_per_second",
    "pods/s",
    Unit.PODS_PER_SECOND,
    "Pods bound, by the seconds from the first message to the last pod bound.",
    lambda run: run.pods_per_second,
    Better.HIGHER,
)
P99 = Figure(
    "total_p99_ms",
    "p99 ms",
    Unit.MILLISECONDS,
    "Of the time from submitted to bound, 99 pods of 100 took at most this.",
    lambda run: run.latency["total"].p99 if "total" in run.latency else None,
    Better.LOWER,
)
CONFLICTS = Figure(
    "conflict_share",
    "conflicts",
    Unit.SHARE,
    "Conflicts by proposals: of pods proposed, counting each time, the share refused.",
    lambda run: _share(run.conflicts, run.proposals),
    Better.LOWER,
    0.002,
)
OVERCOMMITTED = Figure(
    "overcommitted_nodes",
    "overcommitted nodes",
    Unit.COUNT,
    "Nodes on which pods ask for more than the node has, when the load is through.",
    lambda run: float(run.overcommit.nodes),
    Better.LOWER,
    1.0,
)
OVERCOMMITTED_SHARE = Figure(
    "overcommitted_share",
    "overcommitted share",
    Unit.SHARE,
    "Overcommitted nodes, by all nodes.",
    lambda run: share(run.overcommit.nodes, run.cell.nodes),
)
STRANDED = Figure(
    "unschedulable_with_room",
    "unschedulable with room",
    Unit.COUNT,
    "Pods left over though, at the end, some node had room for them alone; those of a gang where all it "
    "needs had room.",
    lambda run: float(run.unschedulable_with_room),
    Better.LOWER,
    1.0,
)
CPU_PER_POD = Figure(
    "cpu_us_per_pod",
    "CPU us a pod",
    Unit.MICROSECONDS_PER_POD,
    "CPU time of all services together, by pods bound.",
    lambda run: (
        1e6 * share(sum(s.cpu_seconds for s in run.services.values()), run.bound) if run.services else None
    ),
    Better.LOWER,
)

BOUND = Figure("bound", "bound", Unit.COUNT, "Pods bound.", lambda run: float(run.bound), Better.HIGHER, 1.0)
UTILISATION = Figure(
    "utilisation_scarcest",
    "used",
    Unit.SHARE,
    "The largest of the utilisations: of cpu, memory, cards and others, what bound pods ask for at the end, "
    "by all there is.",
    lambda run: None if (scarcest := scarcest_resource(run)) is None else run.utilisation[scarcest],
    Better.HIGHER,
    0.002,
)
GPU_FRAGMENTATION = Figure(
    "gpu_fragmentation",
    "GPU fragmented",
    Unit.SHARE,
    "FGD's measure: of all cards, the share that is free at the end and that the load's pods cannot use, by "
    "how often each kind comes.",
    lambda run: None if run.quality is None else run.quality.gpu_fragmentation,
    Better.LOWER,
    0.002,
)
STRANDED_ROOM = Figure(
    "stranded_scarcest",
    "stranded room",
    Unit.SHARE,
    "Of all there is of the most used resource, the share that is free at the end and that the load's pods "
    "cannot use, because too little or something else is left on those nodes; of cards FGD's measure.",
    _stranded_of_scarcest,
    Better.LOWER,
    0.002,
)
SPREAD = Figure(
    "spread_scarcest",
    "spread",
    Unit.SHARE,
    "The standard deviation over nodes of the share of the most used resource (not of cards) that is "
    "requested: 0 where all nodes are equally full, 50 % where half are full and half empty.",
    lambda run: (
        None if run.quality is None else run.quality.spread.get(scarcest_resource(run, cards=False) or "")
    ),
)
NODES_IN_USE = Figure(
    "nodes_in_use",
    "nodes in use",
    Unit.COUNT,
    "Nodes that hold any of the pods at the end.",
    lambda run: None if run.quality is None else float(run.quality.nodes_in_use),
)
MOVES = Figure(
    "moves",
    "moves",
    Unit.COUNT,
    "Pods that changed their node while they were bound.",
    lambda run: None if run.quality is None else run.quality.moves,
)
FAIRNESS = Figure(
    "fairness",
    "fairness",
    Unit.SHARE,
    "Jain's index of the share of each class of pods (equal requests and rules) that was bound: 100 % where "
    "all classes got the same share.",
    lambda run: None if run.quality is None else run.quality.fairness,
    Better.HIGHER,
    0.005,
)
QUALITY: Final = (UTILISATION, STRANDED_ROOM, GPU_FRAGMENTATION, SPREAD, NODES_IN_USE, FAIRNESS, MOVES)


_FIXED = (
    Figure("pods_submitted", "pods", Unit.COUNT, "Pods submitted.", lambda run: float(run.pods)),
    BOUND,
    Figure(
        "unschedulable",
        "unschedulable",
        Unit.COUNT,
        "Pods for which no node was found.",
        lambda run: float(run.unschedulable),
    ),
    Figure(
        "seconds",
        "seconds",
        Unit.SECONDS,
        "From the first message to the last pod bound.",
        lambda run: run.seconds,
    ),
    THROUGHPUT,
    Figure("jobs", "jobs", Unit.COUNT, "Jobs submitted.", lambda run: run.jobs),
    Figure(
        "proposals",
        "proposals",
        Unit.COUNT,
        "Pods proposed to be bound, counting each time.",
        lambda run: run.proposals,
    ),
    Figure(
        "conflicts",
        "refused",
        Unit.COUNT,
        "Proposals refused for a reason of their own.",
        lambda run: run.conflicts,
    ),
    CONFLICTS,
    Figure(
        "job_conflict_share",
        "jobs with conflicts",
        Unit.SHARE,
        "Jobs of which at least one pod was refused, by all jobs.",
        lambda run: _share(run.jobs_with_conflicts, run.jobs),
        Better.LOWER,
        0.005,
    ),
    Figure(
        "retries",
        "retries",
        Unit.COUNT,
        "Refusals, each tried again: conflicts, and those that shared the fate of one in a gang.",
        lambda run: run.retries,
    ),
    Figure(
        "wasted_decisions",
        "wasted decisions",
        Unit.COUNT,
        "Proposals that bound nothing.",
        lambda run: run.wasted_decisions,
    ),
    Figure(
        "busyness_mean",
        "busyness, mean",
        Unit.SHARE,
        "The share of the run's time in which a worker was deciding, added decision cost included; mean "
        "over workers.",
        lambda run: share(sum(w.busyness for w in run.workers), len(run.workers)) if run.workers else None,
    ),
    Figure(
        "busyness_max",
        "busyness, most",
        Unit.SHARE,
        "The same of the busiest worker.",
        lambda run: max((w.busyness for w in run.workers), default=None),
    ),
    Figure(
        "bound_imbalance",
        "imbalance",
        Unit.RATIO,
        "Pods bound by the worker that bound most, by the median worker's.",
        lambda run: (
            share(max(w.bound for w in run.workers), median([w.bound for w in run.workers])) or None
            if run.workers
            else None
        ),
    ),
    OVERCOMMITTED,
    OVERCOMMITTED_SHARE,
    Figure(
        "overcommit_worst",
        "worst node",
        Unit.RATIO,
        "Requested by allocatable on the most overcommitted node, of its worst resource.",
        lambda run: run.overcommit.worst,
    ),
    STRANDED,
    CPU_PER_POD,
    Figure(
        "memory_mib",
        "memory MiB",
        Unit.MIB,
        "Peak memory of all services together.",
        lambda run: sum(s.peak_mib for s in run.services.values()) if run.services else None,
        Better.LOWER,
    ),
    Figure(
        "violations",
        "violations",
        Unit.COUNT,
        "Broken invariants that an audit found afterwards; uncoordinated schedulers break them, nobody "
        "else may.",
        lambda run: None if run.violations is None else float(len(run.violations)),
        Better.LOWER,
        1.0,
    ),
    *QUALITY,
)


def figures(runs: Iterable[ComparisonRun]) -> list[Figure]:
    """All figures. Those by phase, resource and service come last, as far as some of the runs have them."""
    runs = list(runs)
    found = list(_FIXED)
    phases = {name for run in runs for name in run.latency}
    for phase in [name for name in PHASES if name in phases] + sorted(phases - set(PHASES)):
        found += _of_phase(phase)
    for resource in sorted({name for run in runs for name in run.utilisation}):
        found.append(_utilisation(resource))
    for resource in sorted({name for run in runs for name in run.fragmentation}):
        found.append(_fragmentation(resource))
    qualities = [run.quality for run in runs if run.quality is not None]
    for resource in sorted({name for quality in qualities for name in quality.stranded}):
        found.append(_stranded_room(resource))
    for resource in sorted({name for quality in qualities for name in quality.spread}):
        found.append(_spread(resource))
    for resource in sorted({name for run in runs for name in run.overcommit.excess}):
        found.append(_excess(resource))
    for service in sorted({name for run in runs for name in run.services}):
        found += _of_service(service)
    return found


def utilisation(resource: str) -> Getter:
    return lambda run: run.utilisation.get(resource)


_PHASE_MEANINGS = {
    "queued": "in the dispatcher's queues and on the way to a worker",
    "deciding": "in a worker, until it proposed a node",
    "committing": "from proposed to decided by the ledger",
    "total": "from submitted to bound",
}


def _of_phase(phase: str) -> list[Figure]:
    meaning = _PHASE_MEANINGS.get(phase, "in this phase")

    def level(name: str, title: str, of: str) -> Figure:
        def value(run: ComparisonRun) -> float | None:
            measured = run.latency.get(phase)
            return None if measured is None else float(getattr(measured, name))

        return Figure(
            f"{phase}_{name}_ms",
            f"{phase} {title} ms",
            Unit.MILLISECONDS,
            f"Milliseconds {meaning}: {of} pods took at most this.",
            value,
            Better.LOWER if phase == "total" and name == "p50" else Better.NEITHER,
            0.1,
        )

    levels = [
        level("p50", "p50", "half of the"),
        level("p99", "p99", "99 of 100"),
        level("p999", "p99.9", "999 of 1,000"),
    ]
    return [levels[0], P99, levels[2]] if phase == "total" else levels


def _utilisation(resource: str) -> Figure:
    return Figure(
        f"utilisation_{_column(resource)}",
        f"{resource} used",
        Unit.SHARE,
        f"{resource} that bound pods ask for, by all there is, at the end; above 100 % only where nodes "
        "are overcommitted.",
        utilisation(resource),
    )


def _fragmentation(resource: str) -> Figure:
    return Figure(
        f"fragmentation_{_column(resource)}",
        f"{resource} fragmented",
        Unit.SHARE,
        f"Of the {resource} that is free at the end, the share on nodes where the load's median pod does "
        "not fit.",
        lambda run: run.fragmentation.get(resource),
    )


def _stranded_room(resource: str) -> Figure:
    return Figure(
        f"stranded_{_column(resource)}",
        f"{resource} stranded",
        Unit.SHARE,
        f"Of all {resource}, the share that is free at the end and that the load's pods cannot use, by how "
        "often each kind comes.",
        lambda run: None if run.quality is None else run.quality.stranded.get(resource),
    )


def _spread(resource: str) -> Figure:
    return Figure(
        f"spread_{_column(resource)}",
        f"{resource} spread",
        Unit.SHARE,
        f"The standard deviation over nodes of the share of their {resource} that is requested at the end.",
        lambda run: None if run.quality is None else run.quality.spread.get(resource),
    )


def _excess(resource: str) -> Figure:
    return Figure(
        f"excess_{_column(resource)}",
        f"{resource} sold twice",
        Unit.COUNT,
        f"{resource} asked for beyond what nodes have, over all overcommitted nodes, in the unit of the "
        "resource.",
        lambda run: float(run.overcommit.excess.get(resource, 0)),
    )


def _of_service(service: str) -> list[Figure]:
    return [
        Figure(
            f"cpu_seconds_{_column(service)}",
            f"{service} CPU s",
            Unit.SECONDS,
            f"CPU time of all processes of {service}.",
            lambda run: run.services[service].cpu_seconds if service in run.services else None,
        ),
        Figure(
            f"peak_mib_{_column(service)}",
            f"{service} MiB",
            Unit.MIB,
            f"Peak memory of all processes of {service}, summed.",
            lambda run: run.services[service].peak_mib if service in run.services else None,
        ),
    ]


def _column(name: str) -> str:
    """A resource's or service's name as part of a column's: nvidia.com/gpu becomes nvidia_com_gpu."""
    return "".join(char if char.isalnum() else "_" for char in name).lower()
