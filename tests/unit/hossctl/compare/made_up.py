"""Comparisons made up from a seed, with figures as a real one has them: what reports are tried on."""

import math
import random
from collections.abc import Iterable, Sequence

from hossctl.choices import ONE_SCHEDULER, Load, Mode
from hossctl.compare.document import (
    Cell,
    Comparison,
    ComparisonRun,
    DecisionTimes,
    Latency,
    MachineInfo,
    Overcommit,
    PlacementQuality,
    ServiceFigures,
    WorkerFigures,
)

MODES = (Mode.SINGLE, Mode.UNCOORDINATED, Mode.PARTITIONED, Mode.LOCKED, Mode.HOSS)
MACHINE = MachineInfo(
    cpu="Imaginary CPU @ 2.50GHz",
    cores=2,
    memory_mib=7951,
    system="Linux 6.1 x86_64",
    python="3.11.7",
    versions={"hoss": "0.1.0", "redis-server": "6.2.14", "grpcio": "1.85.1", "numpy": "2.4.6"},
)
_SPEED = {
    Mode.SINGLE: 1.0,
    Mode.UNCOORDINATED: 1.05,
    Mode.PARTITIONED: 0.95,
    Mode.LOCKED: 0.55,
    Mode.HOSS: 1.0,
    Mode.KUBE_SCHEDULER: 0.005,
    Mode.KUBE_HOSS: 0.01,
}
# What kube-scheduler does not say.
_UNTOLD = {
    "jobs": None,
    "proposals": None,
    "conflicts": None,
    "jobs_with_conflicts": None,
    "retries": None,
    "wasted_decisions": None,
    "workers": [],
    "violations": None,
}


def comparison(
    *,
    modes: Sequence[Mode] = MODES,
    loads: Sequence[Load] = (Load.UNIFORM, Load.OPENB),
    workers: Sequence[int] = (1, 2, 4, 8),
    fills: Sequence[float] = (0.5, 0.8, 0.95, 1.0),
    nodes: int = 500,
    repetitions: int = 3,
    decisions: Sequence[DecisionTimes] = (DecisionTimes(),),
    schedulers: Sequence[str] = ("default",),
    seed: int = 1,
    noise: float = 0.04,
    speed: float = 1.0,
    **fields,
) -> Comparison:
    """Every combination; `single` with one worker alone, the modes of several with two and more."""
    chance = random.Random(seed)
    runs = [
        run(
            Cell(mode=m, load=x, scheduler=s, workers=w, nodes=nodes, fill=f, decision=d),
            repetition=r,
            chance=chance,
            noise=noise,
            speed=speed,
        )
        for r in range(repetitions)
        for x in loads
        for d in decisions
        for f in fills
        for m in modes
        for s in schedulers
        for w in workers
        if (w == 1) == (m in ONE_SCHEDULER)
    ]
    given = {
        "machine": MACHINE,
        "command": "hoss bench compare --quick",
        "started": "2026-11-21T08:00:00+00:00",
        "finished": "2026-11-21T08:20:00+00:00",
        "notes": ["8 workers share 2 cores with everything else"],
        "runs": runs,
        **fields,
    }
    return Comparison(**given)


def run(
    cell: Cell,
    *,
    repetition: int = 0,
    chance: random.Random | None = None,
    noise: float = 0.0,
    speed: float = 1.0,
    **fields,
) -> ComparisonRun:
    """One run of the cell; the same for the same state of `chance`."""
    chance = chance or random.Random(0)
    about = lambda value: value * max(0.2, chance.gauss(1.0, noise))  # noqa: E731 - a word for it
    several = cell.workers > 1 and cell.mode != Mode.SINGLE
    pods = cell.pods or int(cell.nodes * 36 * cell.fill)
    rate = about(speed * _rate(cell))
    crowd = math.log2(cell.workers) * cell.fill**6 if several else 0.0
    conflicts = int(about(pods * 0.015 * crowd)) if cell.mode == Mode.HOSS else 0
    oversold = int(min(1.0, about(0.16 * crowd)) * cell.nodes) if cell.mode == Mode.UNCOORDINATED else 0
    stranded = int(about(pods * 0.004 * crowd)) if cell.mode == Mode.PARTITIONED else 0
    left = stranded + int(pods * 0.004 * max(0.0, cell.fill - 0.9))
    middle = about(9000 * pods / rate / 18)
    values = {
        "cell": cell,
        "repetition": repetition,
        "seed": 1 + repetition,
        "started": f"2026-11-21T08:0{repetition % 10}:00+00:00",
        "pods": pods,
        "bound": pods - left,
        "unschedulable": left,
        "seconds": pods / rate,
        "pods_per_second": rate,
        "latency": {
            "queued": _latency(0.7 * middle),
            "deciding": _latency(0.1 * middle),
            "committing": _latency(0.05 * middle),
            "total": _latency(middle),
        },
        "latency_curve": [
            (middle * math.exp(0.6 * z), 0.5 * (1 + math.erf(z / 2**0.5))) for z in _steps(-3, 3, 40)
        ],
        "jobs": pods // 55 + 1,
        "proposals": pods + conflicts,
        "conflicts": conflicts,
        "jobs_with_conflicts": min(pods // 55, conflicts // 3),
        "retries": conflicts,
        "wasted_decisions": conflicts,
        "workers": [
            WorkerFigures(
                name=f"w{i + 1}",
                busyness=min(1.0, about(0.5 / cell.workers)),
                bound=pods // cell.workers,
                conflicts=0,
            )
            for i in range(cell.workers)
        ],
        "overcommit": Overcommit(
            nodes=oversold,
            worst=1.0 + 0.3 * bool(oversold),
            excess={"cpu": 900 * oversold} if oversold else {},
        ),
        "unschedulable_with_room": stranded,
        "utilisation": {
            "cpu": (pods - left) / cell.nodes / 36,
            "memory": 0.5 * (pods - left) / cell.nodes / 36,
        },
        "fragmentation": {"cpu": about(0.02 + 0.1 * cell.fill)},
        "services": {
            "dispatcher": ServiceFigures(cpu_seconds=about(1.3e-6 * pods), peak_mib=120.0),
            "redis": ServiceFigures(cpu_seconds=about(3.5e-6 * pods), peak_mib=40.0),
            "resolver": ServiceFigures(cpu_seconds=about(1.1e-6 * pods), peak_mib=90.0),
            "worker": ServiceFigures(
                cpu_seconds=about(3e-6 * pods) + 0.01 * cell.workers, peak_mib=100.0 * cell.workers
            ),
        },
        "violations": [],
        "quality": PlacementQuality(
            gpu_fragmentation=None if cell.load == Load.UNIFORM else about(0.05),
            stranded={"cpu": about(0.02), "memory": about(0.03)},
            spread={"cpu": about(0.1), "memory": about(0.05)},
            nodes_in_use=cell.nodes,
            moves=0,
            fairness=min(1.0, (pods - left) / pods),
        ),
        "validated": cell.mode != Mode.UNCOORDINATED,
        **(_UNTOLD if cell.mode == Mode.KUBE_SCHEDULER else {}),
        **fields,
    }
    return ComparisonRun(**values)


def _rate(cell: Cell) -> float:
    """Pods by second: flat on two cores, growing with workers where decisions cost time."""
    base = 60_000 if cell.load == Load.OPENB else 120_000
    growth = 1.0
    if cell.mode != Mode.SINGLE and cell.workers > 1:
        growth = 1.0 - 0.03 * cell.workers
        if cell.decision.task_ms and cell.mode != Mode.LOCKED:
            growth = 0.94 * cell.workers
    if cell.decision.task_ms:
        base = min(base, 1000 / cell.decision.task_ms)
    return base * growth * _SPEED.get(cell.mode, 1.0) * (1 - 0.2 * cell.fill**4)


def _latency(middle: float) -> Latency:
    return Latency(p50=middle, p99=middle * 4.0, p999=middle * 6.4)


def _steps(low: float, high: float, count: int) -> Iterable[float]:
    return (low + (high - low) * i / (count - 1) for i in range(count))
