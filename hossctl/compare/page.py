"""A comparison as one HTML file that needs nothing else: no script, font or image from elsewhere.

The top answers for those who decide, the bottom holds every run for those who check. The plots are inline SVG whose inks are the
page's, so that they are legible in light and dark.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from hossctl.compare import drawing, plots
from hossctl.compare.answers import headlines, sentences
from hossctl.compare.axes import ON_KUBERNETES
from hossctl.compare.baseline import Report
from hossctl.compare.catalogue import CONFLICTS, CPU_PER_POD, OVERCOMMITTED, P99, STRANDED, THROUGHPUT, Figure, figures
from hossctl.compare.document import Comparison, Run
from hossctl.compare.spreadsheet import KEYS
from hossctl.compare.summary import MODE_TITLES, Group, Setting, Summary, broken_promises, summarise
from hossctl.compare.tables import NOISE_RULE

_SHOWN: Final = (THROUGHPUT, P99, CONFLICTS, OVERCOMMITTED, STRANDED, CPU_PER_POD)
_HIDDEN_KEYS: Final = ("started", "complete")  # of the table of runs: the one is long, the other shown by a mark
_MINOR_KEYS: Final = ("pods", "decision_job_ms", "decision_task_ms", "seed")
_INKS: Final = {drawing.INK: "var(--ink)", drawing.FAINT: "var(--line)"}


@dataclass(frozen=True, slots=True)
class _Cell:
    """One field of the table of runs."""

    text: str
    order: str  # what the column is sorted by
    kind: str  # its classes: "number", "minor" for what paper has no room for


@dataclass(frozen=True, slots=True)
class _Row:
    mode: str
    workers: int
    cells: Sequence[tuple[str, str, str]]


def as_html(comparison: Comparison, baseline: Report | None = None) -> str:
    """The page's text."""
    summary = summarise(comparison)
    all_figures = figures(comparison.runs)
    environment = Environment(
        loader=PackageLoader("hossctl.compare"),
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
        colours={mode.value: colour for mode, colour in drawing.COLOURS.items()},
        shown=_SHOWN,
        settings=[(setting, _rows(summary, setting)) for setting in summary.settings],
        figures=all_figures,
        minor=_MINOR_KEYS,
        on_kubernetes=any(run.cell.mode in ON_KUBERNETES for run in comparison.runs),
        keys=[key for key in KEYS if key not in _HIDDEN_KEYS],
        runs=[(run, _fields(run, all_figures), broken_promises(run)) for run in comparison.runs],
        incomplete=len(summary.incomplete),
        noise_rule=NOISE_RULE,
        baseline=baseline,
    )


def _rows(summary: Summary, setting: Setting) -> list[_Row]:
    return [_row(group) for group in summary.of_setting(setting)]


def _row(group: Group) -> _Row:
    cells = [_with_range(figure, group) for figure in _SHOWN]
    return _Row(MODE_TITLES[group.cell.mode], group.cell.workers, cells)


def _with_range(figure: Figure, group: Group) -> tuple[str, str, str]:
    """(median, lowest, highest) as written; no range where the runs do not differ as written."""
    spread = group.spread(figure.of)
    if spread is None:
        return "-", "", ""
    middle, low, high = (figure.written(value) for value in (spread.median, spread.low, spread.high))
    return (middle, "", "") if low == high else (middle, low.removesuffix(" %"), high.removesuffix(" %"))


def _fields(run: Run, columns: Sequence[Figure]) -> list[_Cell]:
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


def _inline(plot: drawing.Plot) -> str:
    """The SVG as part of a page: of no size of its own, in the page's colours, with no id that another plot has too."""
    text = plot.svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # what is referred to stands in <defs> and keeps its id
    text = re.sub(r'(<svg\b[^>]*?) width="([0-9.]+)pt" height="[0-9.]+pt"', _sized, text, count=1)
    for ink, variable in {**_INKS, **{c: f"var(--{m.value})" for m, c in drawing.COLOURS.items()}}.items():
        text = text.replace(ink, variable)
    text = text.replace("fill: #ffffff", "fill: none")
    return text.replace("<svg", f'<svg role="img" aria-label="{plot.title}"', 1)


def _sized(found: "re.Match[str]") -> str:
    """Of no width of its own; the page knows how wide it was drawn."""
    return f'{found[1]} style="--drawn: {float(found[2]) * 4 / 3:.0f}px"'
