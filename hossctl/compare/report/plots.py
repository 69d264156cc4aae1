"""Plots of a comparison: throughput by workers, conflict share by fill, overcommitted nodes by mode, latency,
utilisation; and throughput of the modes on Kubernetes, which no other plot contains. Every plot has a panel
for each load. Dimensions that are not on the axes are held at one setting a load, named in the panel's title:
the one with the most cells or, for effects of crowding, the fullest. Equal drawings give equal SVG files,
byte for byte: they contain no date, and ids depend on content alone."""

import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hoss.imports import extra
from hossctl.choices import DEFAULT_SCHEDULER, Mode
from hossctl.compare.catalogue import CONFLICTS, OVERCOMMITTED_SHARE, THROUGHPUT, Getter, utilisation
from hossctl.compare.document import DecisionTimes
from hossctl.compare.report.summary import (
    CellRuns,
    ComparedSetting,
    Spread,
    Summary,
    mode_title,
    row_title,
    short_name,
)

with extra("bench"):
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

# After Okabe and Ito, distinct with every kind of colour vision; darker where thin lines on white need it.
COLOURS: Final[Mapping[str, str]] = {
    Mode.SINGLE.value: "#6e6e6e",
    Mode.UNCOORDINATED.value: "#d55e00",
    Mode.PARTITIONED.value: "#008a66",
    Mode.LOCKED.value: "#b65c98",
    Mode.HOSS.value: "#0072b2",
    Mode.KUBE_SCHEDULER.value: "#b87f00",
    Mode.KUBE_HOSS.value: "#3f51b5",
}
# Of modes of others, by their names: two of them may have the same one.
_FURTHER_COLOURS: Final = ("#8c564b", "#2f7f8f", "#7a6fac", "#9a7b1c")
INK: Final = "#202124"  # text and axes
FAINT: Final = "#c9ccd1"  # grids

_MARKERS: Final[Mapping[str, str]] = {
    Mode.SINGLE.value: "D",
    Mode.UNCOORDINATED.value: "^",
    Mode.PARTITIONED.value: "s",
    Mode.LOCKED.value: "v",
    Mode.HOSS.value: "o",
    Mode.KUBE_SCHEDULER.value: "P",
    Mode.KUBE_HOSS.value: "X",
}
_FURTHER_MARKER: Final = "*"
_COLUMNS = 3  # panels in a row
_PANEL_INCHES = (3.3, 2.7)
_LEAST_INCHES = 4.6
_LEGEND_INCHES = 1.4  # an entry
STYLE: Final[dict[Any, Any]] = {
    "axes.edgecolor": FAINT,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.axisbelow": True,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters everywhere
    "font.size": 9,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",  # letters, not outlines: small, searchable, and of the reader's colour
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


@dataclass(frozen=True, slots=True, eq=False)
class Plot:
    """A plot that is drawn. `name` is the stem of its files, each of which is rendered when it is asked for:
    a page shows no PNG, and that takes as long as the SVG."""

    name: str
    title: str
    caption: str
    canvas: Canvas

    def svg(self) -> bytes:
        """The same for the same drawing. Ids of one plot differ from those of another on the same page."""
        return self._rendered("svg", metadata={"Date": None, "Creator": None})

    def png(self) -> bytes:
        """The same for the same drawing and version of matplotlib."""
        return self._rendered("png", metadata={"Software": None}, dpi=160)

    def _rendered(self, kind: str, **options: Any) -> bytes:
        file = io.BytesIO()
        with mpl.rc_context({**STYLE, "svg.hashsalt": self.name}):
            self.canvas.savefig(file, format=kind, **options)
        return file.getvalue()


def side_by_side(
    titles: Sequence[str], y: str, x: str, *, share_x: bool = False
) -> tuple[Canvas, list[Axes]]:
    """A canvas with axes under each of the titles. The labels of the axes are at the edges, once."""
    columns = min(_COLUMNS, len(titles))
    rows = -(-len(titles) // columns)
    width = max(_LEAST_INCHES, _PANEL_INCHES[0] * columns)
    canvas = Canvas(figsize=(width, _PANEL_INCHES[1] * rows + 0.5), layout="constrained")
    axes: list[Axes] = list(
        canvas.subplots(rows, columns, squeeze=False, sharex="all" if share_x else False).flat
    )
    for ax, title in zip(axes, titles, strict=False):
        ax.set_title(title.replace(", decisions", ",\ndecisions"))  # one line would be too long
    for ax in axes[len(titles) :]:
        ax.remove()
    canvas.supxlabel(x, fontsize=9)
    if y:
        canvas.supylabel(y, fontsize=9)
    return canvas, axes[: len(titles)]


def legend(canvas: Canvas, axes: Sequence[Axes]) -> None:
    """One legend for all axes, above them: modes in their order, everything else as drawn."""
    found = {
        label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    order = [mode_title(mode) for mode in Mode]
    labels = sorted(found, key=lambda label: order.index(label) if label in order else 0)
    columns = int(canvas.get_size_inches()[0] / _LEGEND_INCHES)
    handles = [found[label] for label in labels]
    canvas.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize=8)


def colour_of(mode: str) -> str:
    """The colour of a mode in every plot."""
    further = _FURTHER_COLOURS[zlib.crc32(mode.encode()) % len(_FURTHER_COLOURS)]
    return COLOURS.get(mode, further)


def line(
    ax: Axes,
    mode: str,
    x: Sequence[float],
    spreads: Sequence[Spread],
    *,
    label: str = "",
    marker: str = "",
    alpha: float = 1.0,
) -> None:
    """Medians with a band of the whole range."""
    colour = colour_of(mode)
    lows, highs = [s.low for s in spreads], [s.high for s in spreads]
    ax.fill_between(x, lows, highs, color=colour, alpha=0.16 * alpha, linewidth=0)
    ax.vlines(x, lows, highs, color=colour, alpha=0.6 * alpha, linewidth=1.0)  # a single point has no band
    medians = [s.median for s in spreads]
    ax.plot(
        x,
        medians,
        marker=marker or _MARKERS.get(mode, _FURTHER_MARKER),
        color=colour,
        alpha=alpha,
        label=label or mode_title(mode),
    )


def per_cent(share: float, _: object) -> str:
    return f"{100 * share:g} %"


def thousands(value: float, _: object) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


_SERIES_MARKERS: Final = "os^Dv"  # of runs; of workers
_FEW_DECADES: Final = 50.0  # with room for numbers between the powers of ten
_LINE_CROSSED_FROM: Final = 0.7  # a number beside a shorter bar ends before the line at 1


@dataclass(frozen=True, slots=True)
class _Panel:
    """The cells of one load, in plots of lines of one scheduler too."""

    setting: ComparedSetting
    groups: Sequence[CellRuns]  # of the setting, or of all settings that differ in fill alone
    scheduler: str = DEFAULT_SCHEDULER

    def titled(self, title: str) -> str:
        """A title of the setting, with the scheduler."""
        return title if self.scheduler == DEFAULT_SCHEDULER else f"{title}, {short_name(self.scheduler)}"


def draw(summary: Summary) -> Iterator[Plot]:
    """Each plot that the runs have data for."""
    plots: tuple[Callable[[Summary], Plot | None], ...] = (
        _throughput,
        _conflicts,
        _overcommit,
        _latency,
        _utilisation,
    )
    in_process, on_kubernetes = (summary.only(on_kubernetes=there) for there in (False, True))
    for plot, shown in [*((plot, in_process) for plot in plots), (_kubernetes, on_kubernetes)]:
        with mpl.rc_context(STYLE):
            drawn = plot(shown)
        if drawn is not None:
            yield drawn


def _throughput(summary: Summary) -> Plot | None:
    panels = [part for panel in _panels(summary, _richest) for part in _by_scheduler(panel)]
    if not panels:
        return None
    canvas, axes = side_by_side(_titles(panels), "pods/s", "workers")
    for ax, panel in zip(axes, panels, strict=True):
        counts = sorted({group.cell.workers for group in panel.groups})
        for mode in _modes(panel.groups):
            points = [
                (g.cell.workers, s)
                for g in panel.groups
                if g.cell.mode == mode and (s := g.spread(THROUGHPUT.of))
            ]
            if mode == Mode.SINGLE:  # a reference for all numbers of workers
                ax.axhline(points[0][1].median, color=colour_of(mode), linestyle="--", linewidth=1.2)
            line(ax, mode, [w for w, _ in points], [s for _, s in points])
        ax.set_xscale("log", base=2)
        ax.set_xticks(counts, [str(count) for count in counts])
        ax.xaxis.set_minor_formatter(NullFormatter())
        _from_zero(ax)
        ax.yaxis.set_major_formatter(FuncFormatter(thousands))
        if len(counts) == 1:
            ax.set_xlim(counts[0] / 2, counts[0] * 2)
    legend(canvas, axes)
    caption = "Medians; bands from the slowest to the fastest run. Dashed: one scheduler."
    return Plot("throughput-by-workers", "Throughput by workers", caption, canvas)


def _conflicts(summary: Summary) -> Plot | None:
    panels = [
        part
        for panel in _panels(summary, _richest)
        if (groups := _all_fills(summary, panel.setting))
        for part in _by_scheduler(
            _Panel(panel.setting, [g for g in groups if g.cell.mode == Mode.HOSS and g.cell.workers > 1])
        )
    ]
    panels = [panel for panel in panels if panel.groups and not panel.setting.pods]
    if not panels:
        return None
    canvas, axes = side_by_side(
        [panel.titled(panel.setting.title_of_all_fills) for panel in panels],
        "proposals refused",
        "fill: per cent asked for, of all cpu (openb: of all cards)",
    )
    counts = sorted({group.cell.workers for panel in panels for group in panel.groups})
    for ax, panel in zip(axes, panels, strict=True):
        fills = sorted({group.cell.fill for group in panel.groups})
        for shade, workers in enumerate(counts):
            points = [
                (g.cell.fill, s)
                for g in panel.groups
                if g.cell.workers == workers and (s := g.spread(CONFLICTS.of))
            ]
            line(
                ax,
                Mode.HOSS,
                [fill for fill, _ in points],
                [spread for _, spread in points],
                label=f"{workers} workers",
                marker=_SERIES_MARKERS[shade % len(_SERIES_MARKERS)],
                alpha=0.3 + 0.7 * (shade + 1) / len(counts),
            )
        ax.set_xticks(fills, [f"{100 * fill:g}" for fill in fills])
        _from_zero(ax)
        ax.yaxis.set_major_formatter(FuncFormatter(per_cent))
        ax.margins(x=0.12)
    legend(canvas, axes)
    caption = (
        "HOSS. Of pods proposed, the share refused because others were first; all of them are decided again."
    )
    return Plot("conflicts-by-fill", "Conflicts by fill", caption, canvas)


def _overcommit(summary: Summary) -> Plot | None:
    canvas = _bars(
        summary, [("overcommitted nodes", OVERCOMMITTED_SHARE.of)], "nodes overcommitted, of all nodes"
    )
    caption = (
        "Nodes on which pods ask for more than there is, with the most workers: the number after the mode. "
        "Bars are medians, dots single runs."
    )
    return (
        None if canvas is None else Plot("overcommit-by-mode", "Overcommitted nodes by mode", caption, canvas)
    )


def _utilisation(summary: Summary) -> Plot | None:
    resources = sorted(
        {name for group in summary.groups.values() for run in group.runs for name in run.utilisation}
    )
    resources = [name for name in resources if name != "pods"]  # the kubelet's limit, which costs nothing
    measures = [(name, utilisation(name)) for name in resources]
    canvas = _bars(summary, measures, "asked for by bound pods, of all there is", full_line=True)
    caption = "At the end, with the most workers. Beyond the line more is sold than there is."
    return None if canvas is None else Plot("utilisation-by-mode", "Utilisation by mode", caption, canvas)


def _latency(summary: Summary) -> Plot | None:
    panels = [
        part
        for panel in _panels(summary, _fullest)
        if (groups := [g for g in _at_most_workers(panel) if any(run.latency_curve for run in g.runs)])
        for part in _by_scheduler(_Panel(panel.setting, groups))
    ]
    if not panels:
        return None
    canvas, axes = side_by_side(_titles(panels), "pods bound within it", "milliseconds since submitted")
    for ax, panel in zip(axes, panels, strict=True):
        for group in panel.groups:
            for run in group.runs:
                milliseconds, shares = zip(*run.latency_curve, strict=True) if run.latency_curve else ((), ())
                mode = group.cell.mode
                ax.plot(
                    milliseconds,
                    shares,
                    color=colour_of(mode),
                    linewidth=1.2,
                    alpha=0.75,
                    label=mode_title(mode),
                )
        ax.set_xscale("log")
        left, right = ax.get_xlim()
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if right < _FEW_DECADES * left else (1,)))
        ax.xaxis.set_major_formatter(FuncFormatter(thousands))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_ylim(0, 1.02)
        ax.yaxis.set_major_formatter(FuncFormatter(per_cent))
    legend(canvas, axes)
    caption = "From submitted to bound, with the most workers; a line for every run. Further left is sooner."
    return Plot("latency", "Latency", caption, canvas)


def _kubernetes(summary: Summary) -> Plot | None:
    panels = _panels(summary, _richest)
    if not panels:
        return None
    canvas, axes = side_by_side(_titles(panels), "", "pods/s")
    for ax, panel in zip(axes, panels, strict=True):
        for row, group in enumerate(panel.groups):
            if (spread := group.spread(THROUGHPUT.of)) is not None:
                _bar(ax, row, 0.7, spread, colour=colour_of(group.cell.mode), series=0)
                _number(ax, spread.high, row, THROUGHPUT.written(spread.median))
        _name_rows(ax, panel.groups)
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.xaxis.set_major_formatter(FuncFormatter(thousands))
        ax.set_xlim(0, 1.2 * ax.get_xlim()[1])
    caption = (
        "Each on an API server and etcd of its own, which both pay for and no other mode does; the number "
        "after the mode is that of "
        "schedulers. Bars are medians, dots single runs."
    )
    return Plot("kubernetes", "Pods a second on Kubernetes", caption, canvas)


def _bars(
    summary: Summary, measures: Sequence[tuple[str, Getter]], label: str, *, full_line: bool = False
) -> Canvas | None:
    """A bar for each mode and measure, with its median as text."""
    panels = [_Panel(panel.setting, _at_most_workers(panel)) for panel in _panels(summary, _fullest)]
    if not panels or not measures:
        return None
    canvas, axes = side_by_side(_titles(panels), "", label, share_x=True)
    for ax, panel in zip(axes, panels, strict=True):
        height = 0.8 / len(measures)
        for row, group in enumerate(panel.groups):
            for series, (_, of) in enumerate(measures):
                if (spread := group.spread(of)) is not None:
                    y = row + (series - (len(measures) - 1) / 2) * height
                    _bar(ax, y, 0.86 * height, spread, colour=colour_of(group.cell.mode), series=series)
                    # A number across the line would be read as crossed out.
                    crossed = full_line and spread.high > _LINE_CROSSED_FROM
                    text = f"{100 * spread.median:.1f} %" if spread.median else "0 %"
                    _number(ax, max(spread.high, 1.0) if crossed else spread.high, y, text)
        _name_rows(ax, panel.groups)
        ax.tick_params(axis="x", labelbottom=True)
        ax.xaxis.set_major_formatter(FuncFormatter(per_cent))
        ax.xaxis.set_major_locator(MaxNLocator(5))
        if full_line:
            ax.axvline(1.0, color=INK, linewidth=1.0)
    right = max(ax.get_xlim()[1] for ax in axes)
    axes[0].set_xlim(0, max(1.18 * right, 0.02))
    if len(measures) > 1:
        for series, (name, _) in enumerate(measures):
            axes[0].barh([0], [0], color=INK, alpha=_series_alpha(series), label=name)
        legend(canvas, axes[:1])
    return canvas


def _from_zero(ax: Axes) -> None:
    """Begin the axis at 0, and show the highest marker whole."""
    ax.set_ylim(0, max(1.06 * ax.dataLim.y1, 0.01))


def _bar(ax: Axes, y: float, height: float, spread: Spread, *, colour: str, series: int) -> None:
    ax.barh(y, spread.median, height, color=colour, alpha=_series_alpha(series))
    marker = _SERIES_MARKERS[series % len(_SERIES_MARKERS)]
    if spread.high > spread.low:
        ax.plot(spread.values, [y] * len(spread.values), marker, markersize=2.2, color=INK, linestyle="none")


def _name_rows(ax: Axes, groups: Sequence[CellRuns]) -> None:
    """A row for each group, titled with mode and workers, the first at the top."""
    titles = [f"{row_title(group.cell)}, {group.cell.workers}" for group in groups]
    ax.set_yticks(range(len(titles)), titles)
    ax.set_ylim(len(titles) - 0.45, -0.55)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)


def _number(ax: Axes, x: float, y: float, text: str) -> None:
    ax.annotate(text, (x, y), (4, 0), textcoords="offset points", va="center", fontsize=7)


def _series_alpha(series: int) -> float:
    return max(0.3, 0.9 - 0.3 * series)


def _titles(panels: Sequence[_Panel]) -> list[str]:
    return [panel.titled(panel.setting.title) for panel in panels]


def _by_scheduler(panel: _Panel) -> list[_Panel]:
    """A panel for each scheduler: lines of several would be told apart by nothing but their order."""
    schedulers = dict.fromkeys(group.cell.scheduler for group in panel.groups)
    return [
        _Panel(panel.setting, [g for g in panel.groups if g.cell.scheduler == scheduler], scheduler)
        for scheduler in schedulers
    ]


def _panels(
    summary: Summary, choose: Callable[[Summary, list[ComparedSetting]], ComparedSetting]
) -> list[_Panel]:
    """A panel for each load and decision cost."""
    found: dict[tuple[str, DecisionTimes], list[ComparedSetting]] = {}
    for setting in summary.settings:
        found.setdefault((setting.load, setting.decision), []).append(setting)
    chosen = [choose(summary, settings) for settings in found.values()]
    return [_Panel(setting, summary.of_setting(setting)) for setting in chosen]


def _richest(summary: Summary, settings: list[ComparedSetting]) -> ComparedSetting:
    """The setting with the most cells; of equals the one nearest to a usual cluster: full, with some room
    left."""
    return max(settings, key=lambda s: (len(summary.of_setting(s)), -abs(s.fill - 0.8), s.nodes))


def _fullest(summary: Summary, settings: list[ComparedSetting]) -> ComparedSetting:
    """Of the settings with the most modes, the fullest."""
    return max(settings, key=lambda s: (len(_modes(summary.of_setting(s))), s.fill, s.nodes))


def _all_fills(summary: Summary, setting: ComparedSetting) -> list[CellRuns]:
    settings = [
        s
        for s in summary.settings
        if (s.load, s.nodes, s.decision) == (setting.load, setting.nodes, setting.decision)
    ]
    return [group for each in settings for group in summary.of_setting(each) if not each.pods]


def _at_most_workers(panel: _Panel) -> list[CellRuns]:
    """Of each mode and scheduler the cell with the most workers."""
    last = {
        (group.cell.mode, group.cell.scheduler): group for group in panel.groups
    }  # groups ascend by workers
    return list(last.values())


def _modes(groups: Iterable[CellRuns]) -> list[str]:
    """In their order, which is that of the groups."""
    return list(dict.fromkeys(group.cell.mode for group in groups))
