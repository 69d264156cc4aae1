"""A comparison as one HTML file without scripts, fonts or images from elsewhere. The top has the answers for
deciders, the bottom has every run for checking. The plots are inline SVG in the page's colours, so that they
are legible in light and dark."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hoss.imports import extra
from hossctl.choices import ON_KUBERNETES
from hossctl.compare.catalogue import (
    CONFLICTS,
    CPU_PER_POD,
    OVERCOMMITTED,
    P99,
    QUALITY,
    STRANDED,
    THROUGHPUT,
    Figure,
    figures,
)
from hossctl.compare.document import Comparison, ComparisonRun
from hossctl.compare.report import plots
from hossctl.compare.report.answers import headlines, sentences
from hossctl.compare.report.changes import Report
from hossctl.compare.report.plots import COLOURS, FAINT, INK, Plot
from hossctl.compare.report.summary import (
    CellRuns,
    broken_promises,
    row_title,
    summarise,
)
from hossctl.compare.report.tables import KEYS, NOISE_RULE

with extra("bench"):
    from jinja2 import Environment, PackageLoader, StrictUndefined

_SHOWN: Final = (THROUGHPUT, P99, CONFLICTS, OVERCOMMITTED, STRANDED, CPU_PER_POD)
# Of the table of runs: the one is long, the other shown by a mark.
_HIDDEN_KEYS: Final = ("started", "complete")
_MINOR_KEYS: Final = ("pods", "decision_job_ms", "decision_task_ms", "seed")
_INKS: Final = {INK: "var(--ink)", FAINT: "var(--line)"}


@dataclass(frozen=True, slots=True)
class _Cell:
    """One field of the table of runs."""

    text: str
    order: str  # the column's sort key
    kind: str  # its classes: "number", "minor" for columns that are not printed on paper


@dataclass(frozen=True, slots=True)
class _Row:
    mode: str
    workers: int
    cells: Sequence[tuple[str, str, str]]


def as_html(comparison: Comparison, changes: Report | None = None) -> str:
    summary = summarise(comparison)
    all_figures = figures(comparison.runs)
    environment = Environment(
        loader=PackageLoader("hossctl.compare.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        comparison=comparison,
        headlines=headlines(summary),
        sentences=[sentence.partition(": ") for sentence in sentences(comparison, summary)],
        plots=[(plot, _inline(plot)) for plot in plots.draw(summary)],
        colours=COLOURS,
        shown=_SHOWN,
        quality=QUALITY,
        settings=[
            (setting, _rows(groups, _SHOWN), _rows([group for group in groups if group.rated], QUALITY))
            for setting in summary.settings
            if (groups := summary.of_setting(setting))
        ],
        figures=all_figures,
        minor=_MINOR_KEYS,
        on_kubernetes=any(run.cell.mode in ON_KUBERNETES for run in comparison.runs),
        keys=[key for key in KEYS if key not in _HIDDEN_KEYS],
        runs=[(run, _fields(run, all_figures), broken_promises(run)) for run in comparison.runs],
        incomplete=len(summary.incomplete),
        noise_rule=NOISE_RULE,
        changes=changes,
    )


def _rows(groups: Sequence[CellRuns], shown: Sequence[Figure]) -> list[_Row]:
    return [
        _Row(row_title(group.cell), group.cell.workers, [_with_range(figure, group) for figure in shown])
        for group in groups
    ]


def _with_range(figure: Figure, group: CellRuns) -> tuple[str, str, str]:
    """(median, lowest, highest) as text; no range where the runs are equal as text."""
    spread = group.spread(figure.of)
    if spread is None:
        return "-", "", ""
    middle, low, high = (figure.written(value) for value in (spread.median, spread.low, spread.high))
    return (middle, "", "") if low == high else (middle, low.removesuffix(" %"), high.removesuffix(" %"))


def _fields(run: ComparisonRun, columns: Sequence[Figure]) -> list[_Cell]:
    cells = []
    for name, key in KEYS.items():
        if name not in _HIDDEN_KEYS:
            value = key(run)
            kinds = ("number" * isinstance(value, (int, float)), "minor" * (name in _MINOR_KEYS))
            cells.append(_Cell(str(value), str(value), " ".join(filter(None, kinds))))
    for figure in columns:
        value = figure.of(run)
        order = "" if value is None else repr(value)
        cells.append(_Cell(figure.written(value), order, "number" if figure in _SHOWN else "number minor"))
    return cells


def _inline(plot: Plot) -> str:
    """The SVG as part of a page: without a size, in the page's colours, and without ids that two plots
    share."""
    text = plot.svg().decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # ids in <defs> are referred to and stay
    text = re.sub(r'(<svg\b[^>]*?) width="([0-9.]+)pt" height="[0-9.]+pt"', _sized, text, count=1)
    for ink, variable in {**_INKS, **{colour: f"var(--{mode})" for mode, colour in COLOURS.items()}}.items():
        text = text.replace(ink, variable)
    text = text.replace("fill: #ffffff", "fill: none")
    return text.replace("<svg", f'<svg role="img" aria-label="{plot.title}"', 1)


def _sized(found: "re.Match[str]") -> str:
    """Replace the plot's size by its drawn width as a CSS variable."""
    return f'{found[1]} style="--drawn: {float(found[2]) * 4 / 3:.0f}px"'
