"""One look at the platform: values that never change again, so that every viewer can be told what is new to it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dispatcher.answers import Answers
from dispatcher.core.machine import Machine
from dispatcher.core.membership import Worker
from dispatcher.dashboard.curves import Curves, Point
from dispatcher.dashboard.nodes import RESOURCES, Cells, NodeTable
from dispatcher.dashboard.pending import pending_groups
from dispatcher.runtime import Runtime
from dispatcher.steering import reason
from hoss import version

MOST_PAIRS = 400


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """`sections` are JSON values by name; a section that is equal in two looks is told once."""

    at_ms: int
    sections: Mapping[str, Any]
    cells: Cells = field(default_factory=Cells)
    points: tuple[Point, ...] = ()


class Observer:
    """Takes looks. Reads what others keep and changes nothing but its own curves."""

    def __init__(self, runtime: Runtime, answers: Answers, nodes: NodeTable) -> None:
        self._runtime = runtime
        self._answers = answers
        self._nodes = nodes
        self._curves = Curves()

    def look(self, *, nodes_problem: str = "") -> Look:
        """The platform now. `nodes_problem`: why the nodes are not as of now."""
        machine, now = self._runtime.machine, self._runtime.now()
        now_ms = self._runtime.now_ms()
        histograms = {phase: histogram.counts for phase, histogram in machine.settlement.times.by_phase()}
        self._curves.sample(machine.counters, histograms, now, now_ms)
        cells = self._nodes.cells()
        return Look(now_ms, self._sections(machine, cells, now, nodes_problem), cells, tuple(self._curves.points))

    def _sections(self, machine: Machine, cells: Cells, now: float, nodes_problem: str) -> dict[str, Any]:
        status = self._answers.status(version())
        problems = [*status.problems, *([nodes_problem] if nodes_problem else [])]
        overlap, workers_at_once = machine.guidance.steering.stance
        return {
            "platform": {
                "version": status.version,
                "address": status.address,
                "term": status.term,
                "startedMs": machine.unix_ms(self._runtime.started_at),
                "jobs": status.jobs,
                "overlap": overlap.value,
                "workersAtOnce": workers_at_once,
            },
            "problems": problems,
            "queues": dict(status.pods_by_phase),
            "counters": dict(status.counters),
            "capacity": [
                {"name": name, "allocatable": allocatable, "requested": requested}
                for name, allocatable, requested in zip(RESOURCES, cells.allocatable, cells.requested, strict=True)
            ],
            "workers": [_worker(worker, now) for worker in sorted(machine.members, key=lambda worker: worker.name)],
            "pending": pending_groups(machine),
            "conflicts": _conflicts(machine),
        }


def _worker(worker: Worker, now: float) -> dict[str, Any]:
    vitals = worker.vitals
    return {
        "name": worker.name,
        "state": worker.state.value,
        "labels": worker.labels,
        "podsPerSecond": round(worker.throughput.per_second(now), 1),
        "busyShare": round(worker.busy_share, 3),
        "outstanding": worker.outstanding,
        "window": worker.window,
        "workMs": round(worker.work_micros / 1000, 1),
        "conflictShare": round(vitals.conflicts / vitals.proposed, 4) if vitals.proposed else 0.0,
        "bound": worker.bound,
        "conflicts": vitals.conflicts,
        "unschedulable": worker.unschedulable,
        "behind": max((seqs for _, seqs, _ in vitals.lags), default=0),
    }


def _conflicts(machine: Machine) -> dict[str, Any]:
    """Pairs of a loser and whom it was refused for, with pods by reason; an empty winner: no other worker's doing."""
    pairs: dict[tuple[str, str], Counter[str]] = {}
    for pair, pods in machine.guidance.conflicts.pairs.most_common(MOST_PAIRS):
        pairs.setdefault((pair.loser, pair.winner), Counter())[reason(pair.verdict)] += pods
    return {
        "proposed": machine.counters["proposed"],
        "refused": machine.counters["refused"],
        "pairs": [
            {"loser": loser, "winner": winner, "pods": sum(by_reason.values()), "reasons": dict(by_reason)}
            for (loser, winner), by_reason in pairs.items()
        ],
    }
