"""A comparison's runs by cell: medians, spreads, and which differences are more than noise. Of three to five
runs the spread shown is the whole range: it contains every run and assumes nothing. Whether two cells differ
is tested by standard errors instead, see `NoiseTest`. Incomplete runs are kept apart and never counted."""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from hoss.errors import counted
from hossctl.choices import DEFAULT_SCHEDULER, ON_KUBERNETES, ONE_SCHEDULER, Load, Mode
from hossctl.compare.catalogue import Getter
from hossctl.compare.cells import has_cost
from hossctl.compare.document import Cell, Comparison, ComparisonRun, DecisionTimes

NOISE_ERRORS = 3.0  # standard errors
NOISE_SHARE = 0.05  # of the reference's median

_MODE_TITLES: Final[Mapping[str, str]] = {
    Mode.SINGLE: "single",
    Mode.UNCOORDINATED: "uncoordinated",
    Mode.PARTITIONED: "partitioned",
    Mode.LOCKED: "locked",
    Mode.HOSS: "HOSS",
    Mode.KUBE_SCHEDULER: "kube-scheduler",
    Mode.KUBE_HOSS: "HOSS, Kubernetes",
}


def mode_title(mode: str) -> str:
    """For people; the name of a mode of others, without its module."""
    return _MODE_TITLES.get(mode, short_name(mode))


def short_name(name: str) -> str:
    """A mode, load or scheduler for people: of `examples/mine.py:Mine` the class, and `sdk=` before it."""
    prefix, equals, rest = name.rpartition("=")
    return f"{prefix}{equals}{rest.rpartition(':')[2]}"


def row_title(cell: Cell) -> str:
    """What distinguishes a cell from the others of its setting but for workers, such as "HOSS" or "HOSS,
    fgd"."""
    title = mode_title(cell.mode)
    return title if cell.scheduler == DEFAULT_SCHEDULER else f"{title}, {short_name(cell.scheduler)}"


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure's values over the repetitions of a cell, ascending; at least one."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return self.values[0]

    @property
    def high(self) -> float:
        return self.values[-1]

    @property
    def half_range(self) -> float | None:
        """Half of the range by the median; None of a single run, and of a median of 0."""
        return (self.high - self.low) / 2 / self.median if len(self.values) > 1 and self.median else None

    @property
    def deviation(self) -> float | None:
        """The sample's standard deviation; None of a single run."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True, slots=True)
class ComparedSetting:
    """The part of a cell that is equal in compared cells: all but mode, scheduler and workers."""

    load: str
    nodes: int
    fill: float
    pods: int
    decision: DecisionTimes

    @property
    def title(self) -> str:
        """Such as "uniform, 1,000 nodes, fill 95 %"."""
        return self._title(f"{self.pods:,} pods" if self.pods else f"fill {100 * self.fill:g} %")

    @property
    def title_of_all_fills(self) -> str:
        """The title without the fill."""
        return self._title("")

    def _title(self, amount: str) -> str:
        nodes = counted(self.nodes, "node")
        cost = decision_title(self.decision) if has_cost(self.decision) else ""
        return ", ".join(filter(None, (short_name(self.load), nodes, amount, cost)))


def setting_of(cell: Cell) -> ComparedSetting:
    return ComparedSetting(cell.load, cell.nodes, cell.fill, cell.pods, cell.decision)


def decision_title(decision: DecisionTimes) -> str:
    return f"decisions of {decision.job_ms:g} ms a job and {decision.task_ms:g} ms a pod"


def broken_promises(run: ComparisonRun) -> list[str]:
    """Findings of the audit that the mode should not have."""
    return run.violations or [] if validated(run) else []


def validated(run: ComparisonRun) -> bool:
    """Whether the ledger validated placements. Where it did not, the mode promises nothing."""
    # Documents of earlier versions do not say it.
    return run.cell.mode != Mode.UNCOORDINATED if run.validated is None else run.validated


@dataclass(frozen=True, slots=True)
class CellRuns:
    """A cell's complete runs, by repetition; at least one."""

    cell: Cell
    runs: tuple[ComparisonRun, ...]

    @property
    def rated(self) -> bool:
        """Whether the runs have figures of how well pods lie: earlier versions did not report them."""
        return any(run.quality is not None for run in self.runs)

    def spread(self, of: Getter) -> Spread | None:
        """The spread of one figure; None where no run has it."""
        values = sorted(value for run in self.runs if (value := of(run)) is not None)
        return Spread(tuple(values)) if values else None

    def median(self, of: Getter) -> float | None:
        spread = self.spread(of)
        return None if spread is None else spread.median


@dataclass(frozen=True, slots=True)
class Summary:
    """All cells with complete runs, in a fixed order, and the incomplete runs."""

    groups: dict[Cell, CellRuns]
    incomplete: tuple[ComparisonRun, ...]

    @property
    def settings(self) -> list[ComparedSetting]:
        return list(dict.fromkeys(setting_of(cell) for cell in self.groups))

    def of_setting(self, setting: ComparedSetting) -> list[CellRuns]:
        """The setting's cells: by mode, then by workers."""
        return [group for cell, group in self.groups.items() if setting_of(cell) == setting]

    def only(self, *, on_kubernetes: bool) -> "Summary":
        """The cells on Kubernetes, or all others."""
        groups = {
            cell: group
            for cell, group in self.groups.items()
            if (cell.mode in ON_KUBERNETES) == on_kubernetes
        }
        return Summary(groups, self.incomplete)

    @property
    def schedulers(self) -> list[str]:
        """In the order in which they were given."""
        return list(dict.fromkeys(cell.scheduler for cell in self.groups))

    def find(
        self, setting: ComparedSetting, mode: str, workers: int, scheduler: str = DEFAULT_SCHEDULER
    ) -> CellRuns | None:
        sought = (mode, workers, scheduler)
        found = (
            group
            for group in self.of_setting(setting)
            if (group.cell.mode, group.cell.workers, group.cell.scheduler) == sought
        )
        return next(found, None)

    def most_workers(
        self, setting: ComparedSetting, mode: str = Mode.HOSS, scheduler: str = DEFAULT_SCHEDULER
    ) -> int:
        """The most workers of the mode with this scheduler in this setting; 0 if it did not run."""
        cells = (group.cell for group in self.of_setting(setting))
        found = (cell.workers for cell in cells if (cell.mode, cell.scheduler) == (mode, scheduler))
        return max(found, default=0)


def summarise(comparison: Comparison) -> Summary:
    found: dict[Cell, list[ComparisonRun]] = {}
    for run in comparison.runs:
        if run.complete:
            found.setdefault(run.cell, []).append(run)
    ordered = sorted(found, key=_Order(list(found)).of)
    groups = {
        cell: CellRuns(cell, tuple(sorted(found[cell], key=lambda run: run.repetition))) for cell in ordered
    }
    return Summary(groups, tuple(run for run in comparison.runs if not run.complete))


class _Order:
    """The order of cells: names of HOSS as listed, then others and schedulers as they were given."""

    def __init__(self, cells: list[Cell]) -> None:
        self._loads = self._numbered([*Load, *(cell.load for cell in cells)])
        self._modes = self._numbered([*Mode, *(cell.mode for cell in cells)])
        self._schedulers = self._numbered([cell.scheduler for cell in cells])

    def of(self, cell: Cell) -> tuple[float, ...]:
        """The sort key of a cell: its setting, then its mode, scheduler and workers."""
        decision = cell.decision
        setting = (cell.nodes, cell.pods, decision.job_ms, decision.task_ms, cell.fill)
        kind = (self._modes[cell.mode], self._schedulers[cell.scheduler])
        return (self._loads[cell.load], *setting, *kind, cell.workers)

    @staticmethod
    def _numbered(names: list[str]) -> dict[str, int]:
        return {name: number for number, name in enumerate(dict.fromkeys(names))}


@dataclass(frozen=True, slots=True)
class FigureDifference:
    """One figure of two cells. `beyond_noise` is False where these runs show no difference, and where the
    noise is unknown."""

    reference: Spread
    other: Spread
    beyond_noise: bool
    noise_known: bool = True

    @property
    def ratio(self) -> float | None:
        """The other's median by the reference's; None where that is 0."""
        return self.other.median / self.reference.median if self.reference.median else None


@dataclass(slots=True)
class NoiseTest:
    """Tests which differences of one figure are beyond the noise. Two cells differ if their medians are apart
    by more than `NOISE_ERRORS` standard errors, by at least `NOISE_SHARE` of the reference's median, and by
    at least `least`. A cell's standard deviation is its own or, if larger, the typical one of all cells with
    several runs: two runs that agree by chance do not prove precision. If no cell was run twice the noise is
    unknown, and no difference is beyond it."""

    of: Getter
    groups: Iterable[CellRuns]
    least: float = 0.0
    _typical: float | None = field(init=False)

    def __post_init__(self) -> None:
        """Compute the typical deviation, as a share of the median."""
        spreads = [spread for group in self.groups if (spread := group.spread(self.of)) is not None]
        known = [(s.deviation, s.median) for s in spreads]
        shares = [deviation / abs(middle) for deviation, middle in known if deviation is not None and middle]
        repeated = any(deviation is not None for deviation, _ in known)
        self._typical = statistics.median(shares) if shares else 0.0 if repeated else None

    def difference(self, reference: CellRuns, other: CellRuns) -> FigureDifference | None:
        """None where a cell does not have the figure."""
        left, right = reference.spread(self.of), other.spread(self.of)
        if left is None or right is None:
            return None
        return FigureDifference(left, right, self._differ(left, right), noise_known=self._typical is not None)

    def _differ(self, left: Spread, right: Spread) -> bool:
        apart = abs(left.median - right.median)
        if self._typical is None or not apart:
            return False
        error = math.hypot(*(self._error(spread, self._typical) for spread in (left, right)))
        return apart > NOISE_ERRORS * error and apart >= max(self.least, NOISE_SHARE * abs(left.median))

    @staticmethod
    def _error(spread: Spread, typical: float) -> float:
        deviation = max(spread.deviation or 0.0, typical * abs(spread.median))
        return deviation / math.sqrt(len(spread.values))


def pairs(summary: Summary, mode: Mode) -> list[tuple[CellRuns, CellRuns]]:
    """(the mode's cell, the cell of HOSS with the most workers) of each setting and scheduler that has both,
    with equal workers where the mode has several. A mode on Kubernetes is paired with HOSS on Kubernetes."""
    found, with_hoss = [], Mode.KUBE_HOSS if mode in ON_KUBERNETES else Mode.HOSS
    for setting in summary.settings:
        for scheduler in summary.schedulers:
            workers = summary.most_workers(setting, with_hoss, scheduler)
            other = summary.find(setting, mode, 1 if mode in ONE_SCHEDULER else workers, scheduler)
            hoss = summary.find(setting, with_hoss, workers, scheduler)
            if other is not None and hoss is not None:
                found.append((other, hoss))
    return found
