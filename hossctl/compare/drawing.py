"""How plots of a comparison look: colours, axes side by side, legends, lines with bands; and their files.

The same drawing gives the same SVG, byte for byte: no date, and ids that are made of content alone.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from hossctl.compare.axes import Mode
from hossctl.compare.summary import MODE_TITLES, Spread

# After Okabe and Ito, told apart by all kinds of colour vision; darkened where thin lines on white need it.
COLOURS: Final = {
    Mode.SINGLE: "#6e6e6e",
    Mode.UNCOORDINATED: "#d55e00",
    Mode.PARTITIONED: "#008a66",
    Mode.LOCKED: "#b65c98",
    Mode.HOSS: "#0072b2",
    Mode.KUBE_SCHEDULER: "#b87f00",
    Mode.KUBE_HOSS: "#3f51b5",
}
INK: Final = "#202124"  # text and axes
FAINT: Final = "#c9ccd1"  # grids

_MARKERS = {
    Mode.SINGLE: "D",
    Mode.UNCOORDINATED: "^",
    Mode.PARTITIONED: "s",
    Mode.LOCKED: "v",
    Mode.HOSS: "o",
    Mode.KUBE_SCHEDULER: "P",
    Mode.KUBE_HOSS: "X",
}
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


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot, drawn. `name` is its file's stem."""

    name: str
    title: str
    caption: str
    png: bytes
    svg: bytes


@dataclass(frozen=True, slots=True)
class Drawing:
    """A plot that is drawn and not yet a file."""

    name: str
    title: str
    caption: str
    canvas: Canvas

    def rendered(self) -> Plot:
        """Both files."""
        svg, png = io.BytesIO(), io.BytesIO()
        # Ids of one plot differ from those of another on the same page.
        with mpl.rc_context({"svg.hashsalt": self.name}):
            self.canvas.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        self.canvas.savefig(png, format="png", dpi=160, metadata={"Software": None})
        return Plot(self.name, self.title, self.caption, png.getvalue(), svg.getvalue())


def side_by_side(titles: Sequence[str], y: str, x: str, *, share_x: bool = False) -> tuple[Canvas, list[Axes]]:
    """A canvas with axes under each of the titles; what their axes mean stands once, at the edges."""
    columns = min(_COLUMNS, len(titles))
    rows = -(-len(titles) // columns)
    width = max(_LEAST_INCHES, _PANEL_INCHES[0] * columns)
    canvas = Canvas(figsize=(width, _PANEL_INCHES[1] * rows + 0.5), layout="constrained")
    axes: list[Axes] = list(canvas.subplots(rows, columns, squeeze=False, sharex="all" if share_x else False).flat)
    for ax, title in zip(axes, titles, strict=False):
        ax.set_title(title.replace(", decisions", ",\ndecisions"))  # one line would be too long
    for ax in axes[len(titles) :]:
        ax.remove()
    canvas.supxlabel(x, fontsize=9)
    if y:
        canvas.supylabel(y, fontsize=9)
    return canvas, axes[: len(titles)]


def legend(canvas: Canvas, axes: Sequence[Axes]) -> None:
    """One for all axes, above them: modes in their order, anything else as it was drawn."""
    found = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    order = list(MODE_TITLES.values())
    labels = sorted(found, key=lambda label: order.index(label) if label in order else 0)
    columns = int(canvas.get_size_inches()[0] / _LEGEND_INCHES)
    handles = [found[label] for label in labels]
    canvas.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize=8)


def line(
    ax: Axes,
    mode: Mode,
    x: Sequence[float],
    spreads: Sequence[Spread],
    *,
    label: str = "",
    marker: str = "",
    alpha: float = 1.0,
) -> None:
    """Medians on a band of the range."""
    colour = COLOURS[mode]
    lows, highs = [s.low for s in spreads], [s.high for s in spreads]
    ax.fill_between(x, lows, highs, color=colour, alpha=0.16 * alpha, linewidth=0)
    ax.vlines(x, lows, highs, color=colour, alpha=0.6 * alpha, linewidth=1.0)  # a single point has no band
    medians = [s.median for s in spreads]
    ax.plot(x, medians, marker=marker or _MARKERS[mode], color=colour, alpha=alpha, label=label or MODE_TITLES[mode])


def per_cent(share: float, _: object) -> str:
    """A tick's text."""
    return f"{100 * share:g} %"


def thousands(value: float, _: object) -> str:
    """A tick's text."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
