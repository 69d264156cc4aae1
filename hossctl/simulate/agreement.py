"""The simulator beside measurements: every cell of a comparison that it can simulate, with service times from
the same document.

Simulated are cells of the modes single and multi-hoss with the uniform load, whole runs alone; each with some
seeds, as each was measured some times. They agree where throughput and conflict share are both within 20 % of
the mean of what was measured. Shares that are both below half a percentage point agree: there the runs of one
cell are further apart than that. A figure that does not agree is *unclear* where two standard errors of the
measured mean would bring it within 20 %: measured more often, it may agree or not.

The JSON document (camel case):

    seeds, cores             simulated runs of each cell; cores for all processes together
    serviceMicros            CPU microseconds per pod as measured: client (assumed), dispatcher, worker, feed,
                             resolver, follower, ledger; feed and follower are assumed where all runs have the
                             same number of workers
    hopSeconds               that a message is under way
    notPlayed                runs of other modes and loads, and interrupted ones
    cells[]                  mode, workers, nodes, pods, fill, decisionJobMs, decisionTaskMs, agrees, unclear
      podsPerSecond, conflictShare
        measured, lowest, highest    mean of the runs and their range
        standardError                of that mean; 0 of a single run, where it is not known
        simulated                    mean of the seeds
        agrees, unclear
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from statistics import fmean, stdev

import numpy as np

from hossctl.choices import DEFAULT_SCHEDULER, Mode
from hossctl.choices import Load as LoadKind
from hossctl.compare.catalogue import CONFLICTS
from hossctl.compare.document import Cell, Comparison, ComparisonRun
from hossctl.compare.loads import JOBS_A_MESSAGE
from hossctl.console import Document
from hossctl.figures import median
from hossctl.load.nodes import GIB
from hossctl.simulate.cluster import SimulatedLoad, Simulation, SimulationResult, SimulationSetting
from hossctl.simulate.measured import ServiceTimes
from scheduler_worker.core.cycle.cycle import SchedulerLimits
from scheduler_worker.experiments import WorkerExperiment

TOLERANCE = 0.2
NEGLIGIBLE_SHARE = 0.005

_PLAYED = (Mode.SINGLE, Mode.HOSS)
# See hossctl.compare.loads.
_UNIFORM = SimulatedLoad(500, GIB, job_pods=(10, 100), jobs_per_message=JOBS_A_MESSAGE)


@dataclass(frozen=True, slots=True)
class AgreementFigure:
    """One figure of one cell, measured and simulated."""

    measured: Sequence[float]
    simulated: float
    negligible: float = 0.0  # figures below this agree

    @property
    def agrees(self) -> bool:
        """Within the tolerance of the measured mean, or both negligible."""
        return self._apart <= TOLERANCE * self._mean or max(self._mean, self.simulated) < self.negligible

    @property
    def unclear(self) -> bool:
        """It does not agree, but the measured runs are too few or too different to blame the simulator."""
        return not self.agrees and self._apart <= TOLERANCE * self._mean + 2 * self._standard_error

    def as_json(self) -> Document:
        return {
            "measured": round(self._mean, 5),
            "lowest": round(min(self.measured), 5),
            "highest": round(max(self.measured), 5),
            "standardError": round(self._standard_error, 5),
            "simulated": round(self.simulated, 5),
            "agrees": self.agrees,
            "unclear": self.unclear,
        }

    @property
    def _mean(self) -> float:
        return fmean(self.measured)

    @property
    def _apart(self) -> float:
        return abs(self.simulated - self._mean)

    @property
    def _standard_error(self) -> float:
        runs = len(self.measured)
        return stdev(self.measured) / sqrt(runs) if runs > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Beside:
    """One cell, measured and simulated."""

    cell: Cell
    pods: int
    pods_per_second: AgreementFigure
    conflict_share: AgreementFigure

    @property
    def agrees(self) -> bool:
        return self.pods_per_second.agrees and self.conflict_share.agrees

    @property
    def unclear(self) -> bool:
        """Only unclear figures keep the cell from agreeing."""
        figures = self.pods_per_second, self.conflict_share
        return not self.agrees and all(figure.agrees or figure.unclear for figure in figures)

    def as_json(self) -> Document:
        return {
            "mode": self.cell.mode,
            "workers": self.cell.workers,
            "nodes": self.cell.nodes,
            "pods": self.pods,
            "fill": self.cell.fill,
            "decisionJobMs": self.cell.decision.job_ms,
            "decisionTaskMs": self.cell.decision.task_ms,
            "podsPerSecond": self.pods_per_second.as_json(),
            "conflictShare": self.conflict_share.as_json(),
            "agrees": self.agrees,
            "unclear": self.unclear,
        }


@dataclass(frozen=True, slots=True)
class Check:
    """A comparison and its simulation."""

    comparison: Comparison
    seeds: int

    @property
    def not_played(self) -> int:
        """Runs that are not simulated."""
        return len(self.comparison.runs) - sum(map(len, self.cells.values()))

    def as_json(self, cells: Sequence[Beside]) -> Document:
        micros = asdict(self.times)
        hop_seconds = micros.pop("hop_seconds")
        return {
            "seeds": self.seeds,
            "cores": self.comparison.machine.cores,
            "serviceMicros": {name: round(value, 3) for name, value in micros.items()},
            "hopSeconds": round(hop_seconds, 6),
            "notPlayed": self.not_played,
            "cells": [cell.as_json() for cell in cells],
        }

    @property
    def cells(self) -> dict[Cell, list[ComparisonRun]]:
        """The runs that can be simulated, by cell, in the order measured."""
        found: dict[Cell, list[ComparisonRun]] = {}
        for run in self.comparison.runs:
            played = run.cell.mode in _PLAYED and run.cell.scheduler == DEFAULT_SCHEDULER
            if played and run.cell.load == LoadKind.UNIFORM and run.complete and run.bound:
                found.setdefault(run.cell, []).append(run)
        return found

    @property
    def times(self) -> ServiceTimes:
        """CPU time per pod over all runs that can be simulated."""
        runs = [run for runs in self.cells.values() for run in runs]
        assumed = ServiceTimes()
        pods = sum(run.proposals or 0 for run in runs)

        def micros(service: str) -> float:
            return (
                sum(run.services[service].cpu_seconds for run in runs if service in run.services) * 1e6 / pods
            )

        worker, feed = _growing(runs, "workers", assumed.feed)
        resolver, follower = _growing(runs, "resolvers", assumed.follower)
        measured = replace(
            assumed,
            dispatcher=micros("dispatcher"),
            worker=worker,
            feed=feed,
            resolver=resolver,
            follower=follower,
        )
        # The time of a Redis elsewhere is not known.
        if any("redis" in run.services for run in runs):
            measured = replace(measured, ledger=micros("redis"))
        return replace(measured, hop_seconds=_hop_seconds(runs, measured))

    def beside(self) -> Iterator[Beside]:
        """Simulate the cells, one by one."""
        times, cores = self.times, self.comparison.machine.cores
        for cell, runs in self.cells.items():
            decision = WorkerExperiment(cell.decision.job_ms / 1000, cell.decision.task_ms / 1000)
            setting = SimulationSetting(
                cell.nodes,
                runs[0].pods,
                cell.workers,
                cores=cores,
                times=times,
                load=_UNIFORM,
                decision=decision,
            )
            outcomes = [_outcome(replace(setting, seed=seed)) for seed in range(1, self.seeds + 1)]

            yield Beside(
                cell,
                runs[0].pods,
                AgreementFigure(
                    [run.pods_per_second for run in runs],
                    fmean(outcome.pods_per_second for outcome in outcomes),
                ),
                AgreementFigure(
                    [CONFLICTS.of(run) or 0.0 for run in runs],
                    fmean(outcome.conflict_share for outcome in outcomes),
                    negligible=NEGLIGIBLE_SHARE,
                ),
            )


def _growing(runs: Sequence[ComparisonRun], service: str, assumed: float) -> tuple[float, float]:
    """Microseconds per proposed pod that a service needs regardless of the number of workers, and those that
    each worker adds: the line that fits the runs best. Runs with one number of workers give no slope, and the
    `assumed` one is used."""
    found = [run for run in runs if service in run.services]
    workers = np.array([run.cell.workers for run in found], float)
    pods = np.array([run.proposals for run in found], float)
    micros = np.array([run.services[service].cpu_seconds for run in found]) * 1e6 / pods
    middle, mean = np.average(workers, weights=pods), np.average(micros, weights=pods)
    spread = np.average((workers - middle) ** 2, weights=pods)
    together = np.average((workers - middle) * (micros - mean), weights=pods)
    slope = max(0.0, together / spread) if spread else assumed
    return max(0.0, float(mean - slope * middle)), float(slope)


def _hop_seconds(runs: Sequence[ComparisonRun], times: ServiceTimes) -> float:
    """The time that a message takes: half of the commit latency without the services' time for a whole
    proposal. Only runs with decision cost show it, because in others proposals queue behind one another.
    Without such runs the default is used."""
    slow = [run for run in runs if run.cell.decision.job_ms or run.cell.decision.task_ms]
    found = [run.latency["committing"].p50 / 1000 for run in slow if "committing" in run.latency]
    if not found:
        return times.hop_seconds
    served = SchedulerLimits().proposal_pods * (times.resolver + times.ledger) / 1e6
    return max(times.hop_seconds, (median(found) - served) / 2)


def _outcome(setting: SimulationSetting) -> SimulationResult:
    simulation = Simulation(setting)
    while simulation.advance(setting.pods):
        pass
    return simulation.outcome()
