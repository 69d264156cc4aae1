"""Plots of Omega's experiment: busyness, conflict fraction and wait time by the decision time of service
jobs. They are drawn from the document of `hossctl.simulate.omega_sweep`, in the style of a comparison's
plots, after figures 5 to 7, 12 and 13 of the paper."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from hoss.imports import extra
from hossctl.compare.report.plots import STYLE, Plot, legend, per_cent, side_by_side
from hossctl.console import Document
from hossctl.simulate.omega import BATCH, SERVICE, Architecture, SimulatedConflicts, Transactions

with extra("bench"):
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.ticker import FuncFormatter

_X = "seconds to decide on a service job, besides its tasks"
_KINDS = (SERVICE.kind, BATCH.kind)

# A line: the selection of its points, its name, colour (after Okabe and Ito), marker.
_Line = tuple[Callable[[Document], bool], str, str, str]


def _of(architecture: Architecture) -> Callable[[Document], bool]:
    """Selects the points of an architecture; of shared state those with HOSS's kind of conflict."""
    return _variant(architecture, SimulatedConflicts.RESOURCE_FIT, Transactions.INCREMENTAL)


def _variant(
    architecture: Architecture, conflicts: SimulatedConflicts, transactions: Transactions
) -> Callable[[Document], bool]:
    variant = (architecture.value, conflicts.value, transactions.value)
    return lambda point: (point["architecture"], point["conflicts"], point["transactions"]) == variant


_ARCHITECTURES: Final[Sequence[_Line]] = (
    (_of(Architecture.SINGLE_PATH), "one, slow always", "#6e6e6e", "D"),
    (_of(Architecture.MULTI_PATH), "one, slow for service", "#b87f00", "s"),
    (_of(Architecture.SHARED_STATE), "two, shared state", "#0072b2", "o"),
)
_CONFLICTS: Final[Sequence[_Line]] = tuple(
    (
        _variant(Architecture.SHARED_STATE, conflicts, transactions),
        f"{conflicts.value},\n{transactions.value}",
        colour,
        marker,
    )
    for conflicts, transactions, colour, marker in (
        (SimulatedConflicts.RESOURCE_FIT, Transactions.INCREMENTAL, "#0072b2", "o"),
        (SimulatedConflicts.RESOURCE_FIT, Transactions.ALL_OR_NOTHING, "#008a66", "s"),
        (SimulatedConflicts.SEQUENCE_NUMBER, Transactions.INCREMENTAL, "#b65c98", "v"),
        (SimulatedConflicts.SEQUENCE_NUMBER, Transactions.ALL_OR_NOTHING, "#d55e00", "^"),
    )
)  # fmt: skip


def draw(document: Document) -> Iterator[Plot]:
    for drawing in (_busyness, _conflicts, _waits):
        with mpl.rc_context(STYLE):
            drawn = drawing(document)
        yield drawn


def _busyness(document: Document) -> Plot:
    titles = [f"{kind} jobs' scheduler" for kind in _KINDS]
    drawing = _drawing(document, titles, "busyness", "share of the time deciding", _ARCHITECTURES)
    for ax in drawing.canvas.axes:
        ax.set_ylim(0, 1.04)
        ax.yaxis.set_major_formatter(FuncFormatter(per_cent))
    return drawing


def _conflicts(document: Document) -> Plot:
    titles = [f"{kind} jobs" for kind in _KINDS]
    drawing = _drawing(document, titles, "conflictFraction", "conflicts per success", _CONFLICTS)
    for ax in drawing.canvas.axes:
        _logarithmic(ax, least=0.01)
    return drawing


def _waits(document: Document) -> Plot:
    titles = [f"{kind} jobs" for kind in _KINDS]
    drawing = _drawing(document, titles, "waitSeconds", "seconds waited, mean", _ARCHITECTURES)
    for ax in drawing.canvas.axes:
        _logarithmic(ax, least=0.1)
    return drawing


_CAPTIONS: Final = {
    "busyness": (
        "omega-busyness",
        "Busyness by decision time",
        "How much of the time schedulers decide. One that is always busy falls behind.",
    ),
    "conflictFraction": (
        "omega-conflicts",
        "Conflicts by decision time",
        (
            "Transactions with a conflict per transaction without, two schedulers on shared state; linear "
            "below 0.01."
        ),
    ),
    "waitSeconds": (
        "omega-waits",
        "Wait by decision time",
        "From submission to the first try, mean of the jobs that had one; linear below 0.1 s.",
    ),
}


def _drawing(
    document: Document, titles: Sequence[str], figure: str, label: str, lines: Sequence[_Line]
) -> Plot:
    canvas, axes = side_by_side(titles, label, _X)
    for ax, kind in zip(axes, _KINDS, strict=True):
        for belongs, name, colour, marker in lines:
            points = [point for point in document["points"] if belongs(point)]
            ax.plot(
                [point["serviceTJobSeconds"] for point in points],
                [point["kinds"][kind][figure] for point in points],
                color=colour, marker=marker, label=name, alpha=0.9,
            )  # fmt: skip
        ax.set_xscale("log")
    legend(canvas, axes)
    return Plot(*_CAPTIONS[figure], canvas)


def _logarithmic(ax: Axes, *, least: float) -> None:
    """Begin at 0, linear below `least` and logarithmic above."""
    ax.set_yscale("symlog", linthresh=least, linscale=0.5)
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
