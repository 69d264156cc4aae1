"""What got better or worse since an earlier comparison, beyond the noise. The cells that both comparisons
have are tested figure by figure, by the rule of `hossctl.compare.report.summary.NoiseTest` with the cells of
both. Comparisons of two machines are refused: their difference would say nothing about HOSS."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from hoss.errors import InvalidInput, counted
from hossctl.compare.catalogue import Better, Figure, figures
from hossctl.compare.document import Cell, Comparison, MachineInfo, read
from hossctl.compare.report.summary import FigureDifference, NoiseTest, row_title, setting_of, summarise

_MEMORY_SHARE = 0.02  # a kernel update changes the available memory by less


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure of one cell that changed beyond the noise."""

    cell: Cell
    figure: Figure
    difference: FigureDifference

    @property
    def better(self) -> bool:
        grew = self.difference.other.median > self.difference.reference.median
        return grew == (self.figure.better is Better.HIGHER)

    @property
    def cell_title(self) -> str:
        return cell_title(self.cell)

    @property
    def before_text(self) -> str:
        return self.figure.written(self.difference.reference.median)

    @property
    def now_text(self) -> str:
        return self.figure.written(self.difference.other.median)

    @property
    def ratio_text(self) -> str:
        """Now by before; a dash where it was 0."""
        return "-" if self.difference.ratio is None else f"{self.difference.ratio:.2f}"


@dataclass(frozen=True, slots=True)
class Report:
    """Changes, the worse ones first, and remarks for the reader."""

    before_started: str
    changes: Sequence[FigureChange]
    remarks: Sequence[str]
    shared: int  # cells that both have

    @property
    def regressed(self) -> bool:
        return any(not change.better for change in self.changes)

    @property
    def verdict(self) -> str:
        worse = sum(not change.better for change in self.changes)
        if not self.shared:
            return "no cell is in both, so nothing was compared"
        if not self.changes:
            return "nothing got better or worse beyond the noise"
        return f"{worse} figures of cells got worse beyond the noise, {len(self.changes) - worse} better"

    def lines(self) -> Iterator[str]:
        for change in self.changes:
            text = f"{change.before_text} -> {change.now_text}"
            ratio = f" ({change.ratio_text} times)" if change.difference.ratio is not None else ""
            verdict = "better" if change.better else "WORSE "
            yield f"{verdict}  {change.figure.title}: {text}{ratio}; {change.cell_title}"
        yield self.verdict
        yield from self.remarks


def cell_title(cell: Cell) -> str:
    """Such as "HOSS, 4 workers, uniform, 500 nodes, fill 95 %"."""
    plural = "s" if cell.workers != 1 else ""
    return f"{row_title(cell)}, {cell.workers} worker{plural}, {setting_of(cell).title}"


def read_earlier(path: Path, machine: MachineInfo | None) -> Comparison:
    """The comparison of a file. InvalidInput where it does not follow the schema, has no complete run, or is
    of another machine than `machine` (None: not known yet)."""
    before = read(path)
    if machine is not None:
        refuse_other_machine(before.machine, machine, where=str(path))
    if not any(run.complete for run in before.runs):
        raise InvalidInput("holds no complete run to compare with", where=str(path))
    return before


def refuse_other_machine(before: MachineInfo, now: MachineInfo, *, where: str) -> None:
    """Raise InvalidInput unless processor, cores and memory are the same."""
    found = [(f"{m.cpu}, {m.cores} cores, {m.memory_mib} MiB") for m in (before, now)]
    same_memory = abs(before.memory_mib - now.memory_mib) <= _MEMORY_SHARE * max(
        before.memory_mib, now.memory_mib
    )
    if (before.cpu, before.cores) != (now.cpu, now.cores) or not same_memory:
        raise InvalidInput(
            f"was measured on another machine ({found[0]}) than this one ({found[1]}); measure it again here",
            where=where,
        )


def compare(before: Comparison, now: Comparison) -> Report:
    """Test each figure that can be better or worse, in every cell that both have."""
    was, is_now = summarise(before), summarise(now)
    shared = [cell for cell in is_now.groups if cell in was.groups]
    groups = [*was.groups.values(), *is_now.groups.values()]
    changes = []
    for figure in figures([*before.runs, *now.runs]):
        if figure.better is Better.NEITHER:
            continue
        test = NoiseTest(figure.of, groups, figure.least)
        for cell in shared:
            difference = test.difference(was.groups[cell], is_now.groups[cell])
            if difference is not None and difference.beyond_noise:
                changes.append(FigureChange(cell, figure, difference))
    changes.sort(key=lambda change: change.better)
    remarks = list(_remarks(before, now, list(was.groups), list(is_now.groups)))
    if shared and all(len(group.runs) == 1 for group in groups):
        remarks.insert(0, "every cell was run once: the noise is unknown, and nothing is beyond it")
    return Report(before.started, changes, remarks, len(shared))


def _named(cells: list[Cell], others: list[Cell]) -> Iterator[str]:
    """The cells that are not among the others; a setting by its title where all its cells are missing
    there."""
    known = {setting_of(cell) for cell in others}
    for setting, members in groupby(cells, key=setting_of):
        missing = [cell for cell in members if cell not in others]
        if setting in known:
            yield from map(cell_title, missing)
        else:
            yield f"{setting.title} ({counted(len(missing), 'cell')})"


def _remarks(before: Comparison, now: Comparison, was: list[Cell], is_now: list[Cell]) -> Iterator[str]:
    if shared := sum(cell in was for cell in is_now):
        yield f"{shared} cell{'s are' if shared != 1 else ' is'} in both"
    for title, cells, others in (("the earlier one", was, is_now), ("this comparison", is_now, was)):
        if only := list(_named(cells, others)):
            yield f"only in {title}: {'; '.join(only)}"
    versions = [dict(m.versions, python=m.python, system=m.system) for m in (before.machine, now.machine)]
    names = sorted(
        name
        for name in versions[0].keys() | versions[1].keys()
        if versions[0].get(name) != versions[1].get(name)
    )
    if names:
        changed = (
            f"{name} {versions[0].get(name, 'none')} -> {versions[1].get(name, 'none')}" for name in names
        )
        yield f"versions differ: {', '.join(changed)}"
