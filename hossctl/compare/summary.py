"""A comparison's runs by cell: medians, spreads, and which differences are more than noise.

Of three to five runs the spread that people see is their whole range: every run lies in it, and nothing is assumed. Whether two
cells differ is judged by standard errors instead, see `Judge`. Incomplete runs are kept apart and count for nothing.
"""

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hossctl.compare.axes import ON_KUBERNETES, ONE_SCHEDULER, Load, Mode
from hossctl.compare.document import Cell, Comparison, Decision, Run

NOISE_ERRORS = 3.0  # standard errors
NOISE_SHARE = 0.05  # of the reference's median

Getter = Callable[[Run], float | None]

MODE_TITLES = {
    Mode.SINGLE: "single",
    Mode.UNCOORDINATED: "uncoordinated",
    Mode.PARTITIONED: "partitioned",
    Mode.LOCKED: "locked",
    Mode.HOSS: "HOSS",
    Mode.KUBE_SCHEDULER: "kube-scheduler",
    Mode.KUBE_HOSS: "HOSS, Kubernetes",
}


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure's values over the repetitions of a cell, ascending; at least one."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle value, or the mean of the two middle ones."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The lowest."""
        return self.values[0]

    @property
    def high(self) -> float:
        """The highest."""
        return self.values[-1]

    @property
    def half_range(self) -> float | None:
        """Half of the range by the median; None of a single run, of which nothing is known, and of a median of zero."""
        return (self.high - self.low) / 2 / self.median if len(self.values) > 1 and self.median else None

    @property
    def deviation(self) -> float | None:
        """The sample's standard deviation; None of a single run."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True, slots=True)
class Setting:
    """What is equal in cells that are compared with one another: all but mode and workers."""

    load: Load
    nodes: int
    fill: float
    pods: int
    decision: Decision

    @property
    def title(self) -> str:
        """For people: "uniform, 1,000 nodes, fill 95 %"."""
        return self._title(f"{self.pods:,} pods" if self.pods else f"fill {100 * self.fill:g} %")

    @property
    def title_of_all_fills(self) -> str:
        """The same without the fill."""
        return self._title("")

    def _title(self, amount: str) -> str:
        nodes = f"{self.nodes:,} node{'s' * (self.nodes != 1)}"
        cost = decision_title(self.decision) if has_cost(self.decision) else ""
        return ", ".join(filter(None, (self.load.value, nodes, amount, cost)))


def setting_of(cell: Cell) -> Setting:
    """The cell without mode and workers."""
    return Setting(cell.load, cell.nodes, cell.fill, cell.pods, cell.decision)


def has_cost(decision: Decision) -> bool:
    """Whether decisions were made to cost something."""
    return bool(decision.job_ms or decision.task_ms)


def decision_title(decision: Decision) -> str:
    """The decision cost for people."""
    return f"decisions of {decision.job_ms:g} ms a job and {decision.task_ms:g} ms a pod"


def broken_promises(run: Run) -> list[str]:
    """What an audit found that should not be: who does not coordinate promises nothing."""
    return [] if run.cell.mode is Mode.UNCOORDINATED else run.violations or []


@dataclass(frozen=True, slots=True)
class Group:
    """A cell's complete runs, by repetition; at least one."""

    cell: Cell
    runs: tuple[Run, ...]

    def spread(self, of: Getter) -> Spread | None:
        """Of one figure; None where no run has it."""
        values = sorted(value for run in self.runs if (value := of(run)) is not None)
        return Spread(tuple(values)) if values else None

    def median(self, of: Getter) -> float | None:
        """Of one figure."""
        spread = self.spread(of)
        return None if spread is None else spread.median


@dataclass(frozen=True, slots=True)
class Summary:
    """All cells with complete runs, in a fixed order, and the runs that were broken off."""

    groups: dict[Cell, Group]
    incomplete: tuple[Run, ...]

    @property
    def settings(self) -> list[Setting]:
        """In the order of the groups."""
        return list(dict.fromkeys(setting_of(cell) for cell in self.groups))

    def of_setting(self, setting: Setting) -> list[Group]:
        """The setting's cells: by mode, then by workers."""
        return [group for cell, group in self.groups.items() if setting_of(cell) == setting]

    def only(self, *, on_kubernetes: bool) -> "Summary":
        """The cells on Kubernetes, or all but these."""
        groups = {cell: group for cell, group in self.groups.items() if (cell.mode in ON_KUBERNETES) == on_kubernetes}
        return Summary(groups, self.incomplete)

    def find(self, setting: Setting, mode: Mode, workers: int) -> Group | None:
        """One cell of a setting."""
        found = (g for g in self.of_setting(setting) if g.cell.mode is mode and g.cell.workers == workers)
        return next(found, None)

    def most_workers(self, setting: Setting, mode: Mode = Mode.HOSS) -> int:
        """The most workers that a mode ran with in this setting; 0 if it did not run."""
        return max((g.cell.workers for g in self.of_setting(setting) if g.cell.mode is mode), default=0)


def summarise(comparison: Comparison) -> Summary:
    """Group complete runs by cell."""
    found: dict[Cell, list[Run]] = {}
    for run in comparison.runs:
        if run.complete:
            found.setdefault(run.cell, []).append(run)
    ordered = sorted(found, key=_order)
    groups = {cell: Group(cell, tuple(sorted(found[cell], key=lambda run: run.repetition))) for cell in ordered}
    return Summary(groups, tuple(run for run in comparison.runs if not run.complete))


def _order(cell: Cell) -> tuple[float, ...]:
    loads, modes = list(Load), list(Mode)
    decision = cell.decision
    setting = (cell.nodes, cell.pods, decision.job_ms, decision.task_ms, cell.fill)
    return (loads.index(cell.load), *setting, modes.index(cell.mode), cell.workers)


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two cells. `beyond_noise` False says only that these runs show no difference; so it is where the noise is unknown."""

    reference: Spread
    other: Spread
    beyond_noise: bool
    noise_known: bool = True

    @property
    def ratio(self) -> float | None:
        """The other's median by the reference's; None where that is zero."""
        return self.other.median / self.reference.median if self.reference.median else None


@dataclass(slots=True)
class Judge:
    """Which differences of one figure are beyond the noise.

    Two cells differ if their medians do by more than `NOISE_ERRORS` standard errors, by at least `NOISE_SHARE` of the
    reference's median, and by at least `least`. A cell's standard deviation is its own or, where that is larger, the one that
    is typical of all cells with several runs: two runs that happen to agree are no proof of precision. Where no cell
    was run twice the noise is unknown, and nothing is beyond it.
    """

    of: Getter
    groups: Iterable[Group]
    least: float = 0.0
    _typical: float | None = field(init=False)

    def __post_init__(self) -> None:
        """Learn the typical deviation, as a share of the median."""
        spreads = [spread for group in self.groups if (spread := group.spread(self.of)) is not None]
        known = [(s.deviation, s.median) for s in spreads]
        shares = [deviation / abs(middle) for deviation, middle in known if deviation is not None and middle]
        repeated = any(deviation is not None for deviation, _ in known)
        self._typical = statistics.median(shares) if shares else 0.0 if repeated else None

    def difference(self, reference: Group, other: Group) -> Difference | None:
        """None where either has not the figure."""
        left, right = reference.spread(self.of), other.spread(self.of)
        if left is None or right is None:
            return None
        return Difference(left, right, self._differ(left, right), noise_known=self._typical is not None)

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


def pairs(summary: Summary, mode: Mode) -> list[tuple[Group, Group]]:
    """(the mode's cell, that of HOSS with most workers) of each setting that has both, with as many workers where the mode has several;
    of HOSS on Kubernetes for a mode there."""
    found, with_hoss = [], Mode.KUBE_HOSS if mode in ON_KUBERNETES else Mode.HOSS
    for setting in summary.settings:
        workers = summary.most_workers(setting, with_hoss)
        other = summary.find(setting, mode, 1 if mode in ONE_SCHEDULER else workers)
        hoss = summary.find(setting, with_hoss, workers)
        if other is not None and hoss is not None:
            found.append((other, hoss))
    return found
