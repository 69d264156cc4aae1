"""Where a comparison goes: the terminal, and the files that were asked for. The one entry of whoever has a comparison."""

import importlib
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from hoss.errors import ConfigError, InvalidInput
from hossctl.cli import EXIT_BAD_INPUT, EXIT_FAILED
from hossctl.compare import tables
from hossctl.compare.baseline import Report, compare, read_baseline, refuse_other_machine
from hossctl.compare.document import Cell, Comparison, Machine
from hossctl.compare.spreadsheet import as_csv
from hossctl.compare.summary import summarise
from hossctl.console import Format, complain, print_document, say
from hossctl.options import only

if TYPE_CHECKING:
    from hossctl.compare.drawing import Plot

NOTHING_SHARED = (
    "has no cell of this comparison, so nothing was compared: measure what it holds, or name another baseline"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to become of a comparison besides being printed. `baseline` is read, the others are written."""

    json: Path | None = None
    csv: Path | None = None
    plots: Path | None = None  # a directory
    html: Path | None = None
    baseline: Path | None = None
    fail_on_regression: bool = False


def check(
    output: Format, wanted: Wanted, machine: Machine | None = None, cells: Collection[Cell] | None = None
) -> None:
    """Raise InvalidInput for whatever `publish` would refuse: to be called before minutes are spent on measuring these cells, on this
    machine."""
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    for option, path in (
        ("--json", wanted.json),
        ("--csv", wanted.csv),
        ("--html", wanted.html),
        ("--plots", wanted.plots),
    ):
        if path is None:
            continue
        if not path.parent.is_dir():
            raise InvalidInput(f"its directory {path.parent} is not there", where=f"{option} {path}")
        if option == "--plots":
            if path.exists() and not path.is_dir():
                raise InvalidInput("is a file; name a directory", where=f"{option} {path}")
        elif path.is_dir():
            raise InvalidInput("is a directory; name a file", where=f"{option} {path}")
    if wanted.baseline is not None:
        before = read_baseline(wanted.baseline, machine)
        if wanted.fail_on_regression and cells is not None and not _shared(before, cells):
            raise InvalidInput(NOTHING_SHARED, where=f"--baseline {wanted.baseline}")
    elif wanted.fail_on_regression:
        raise InvalidInput("needs --baseline FILE to compare with", where="--fail-on-regression")


def publish(comparison: Comparison, output: Format, wanted: Wanted) -> int:
    """Write each file that is asked for, print what `output` says, and return the exit code.

    The document itself is written first: whatever fails afterwards, what was measured is kept. Raises InvalidInput for files that
    cannot be written and for a baseline that cannot be compared with.
    """
    if wanted.json is not None:
        write(wanted.json, f"{comparison.as_json()}\n".encode(), "--json")
    if wanted.csv is not None:
        write(wanted.csv, as_csv(comparison).encode(), "--csv")
    report = None if wanted.baseline is None else _against(wanted.baseline, comparison)
    if wanted.plots is not None:
        write_plots(wanted.plots, _lazily("plots").draw(summarise(comparison)))
    if wanted.html is not None:
        write(wanted.html, _lazily("page").as_html(comparison, report).encode(), "--html")
    if output.for_people:
        sys.stdout.writelines(f"{line}\n" for line in _for_people(comparison, report))
    else:
        print_document(comparison.model_dump(mode="json", by_alias=True), output)
        for line in report.lines() if report else ():
            say(line)
    if report is None or not wanted.fail_on_regression:
        return 0
    if not report.shared:
        complain(f"--baseline {wanted.baseline}: {NOTHING_SHARED}")
        return EXIT_BAD_INPUT
    return EXIT_FAILED if report.regressed else 0


def _shared(before: Comparison, cells: Collection[Cell]) -> bool:
    """Whether any of these cells was measured then."""
    return any(run.complete and run.cell in cells for run in before.runs)


def _for_people(comparison: Comparison, report: Report | None) -> Iterator[str]:
    yield from tables.lines(comparison)
    if report is not None:
        yield ""
        yield f"Against the baseline of {report.before_started}:"
        for line in report.lines():
            yield from textwrap.wrap(line, tables.WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _against(baseline: Path, comparison: Comparison) -> Report:
    before = read_baseline(baseline, None)
    refuse_other_machine(before.machine, comparison.machine, where=str(baseline))
    return compare(before, comparison)


def write_plots(directory: Path, plots: "Iterable[Plot]") -> None:
    """Both files of each plot into a directory, which is made if need be. InvalidInput where that cannot be."""
    try:
        directory.mkdir(exist_ok=True)
    except OSError as exc:
        _unwritable(directory, exc, "--plots")
    for plot in plots:
        write(directory / f"{plot.name}.png", plot.png, "--plots")
        write(directory / f"{plot.name}.svg", plot.svg, "--plots")


def _lazily(module: str) -> ModuleType:
    """A module that needs matplotlib, whose import takes longer than all else here: only for those who ask for plots."""
    try:
        return importlib.import_module(f"hossctl.compare.{module}")
    except ModuleNotFoundError as exc:
        if exc.name != "matplotlib":
            raise
        raise ConfigError(
            "is not installed here (the container image has none); pip install it", where="matplotlib"
        ) from exc


def write(path: Path, content: bytes, option: str) -> None:
    """A file that an option names. InvalidInput where it cannot be written."""
    try:
        path.write_bytes(content)
    except OSError as exc:
        _unwritable(path, exc, option)


def _unwritable(path: Path, exc: OSError, option: str) -> NoReturn:
    raise InvalidInput(f"cannot be written: {exc.strerror}", where=f"{option} {path}") from exc
