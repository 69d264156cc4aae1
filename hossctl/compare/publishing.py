"""Writes and prints a comparison: tables or the document on the terminal, and the files that the options
name."""

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
from hossctl.compare.document import Cell, Comparison, MachineInfo
from hossctl.compare.summary import summarise
from hossctl.console import Format, complain, print_document, say
from hossctl.options import only

if TYPE_CHECKING:
    from hossctl.compare.plots import Plot

NOTHING_SHARED = (
    "has no cell of this comparison, so nothing was compared: measure what it holds, or name another baseline"
)


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The files of a comparison. `baseline` is read, the others are written: `out` gets all of them."""

    json: Path | None = None
    csv: Path | None = None
    plots: Path | None = None  # a directory
    html: Path | None = None
    baseline: Path | None = None
    fail_on_regression: bool = False
    out: Path | None = None  # a directory


def check(
    output: Format,
    options: ReportOptions,
    machine: MachineInfo | None = None,
    cells: Collection[Cell] | None = None,
) -> None:
    """Raise InvalidInput for everything that `publish` would refuse. It is called before minutes are spent on
    measuring these cells on this machine."""
    only(output, Format.TABLE, Format.JSON, Format.YAML)
    for option, path in (
        ("--json", options.json),
        ("--csv", options.csv),
        ("--html", options.html),
        ("--plots", options.plots),
        ("--out", options.out),
    ):
        if path is None:
            continue
        if not path.parent.is_dir():
            raise InvalidInput(f"its directory {path.parent} is not there", where=f"{option} {path}")
        if option in ("--plots", "--out"):
            if path.exists() and not path.is_dir():
                raise InvalidInput("is a file; name a directory", where=f"{option} {path}")
        elif path.is_dir():
            raise InvalidInput("is a directory; name a file", where=f"{option} {path}")
    if options.baseline is not None:
        before = read_baseline(options.baseline, machine)
        shared = cells is None or any(run.complete and run.cell in cells for run in before.runs)
        if options.fail_on_regression and not shared:
            raise InvalidInput(NOTHING_SHARED, where=f"--baseline {options.baseline}")
    elif options.fail_on_regression:
        raise InvalidInput("needs --baseline FILE to compare with", where="--fail-on-regression")


def publish(comparison: Comparison, output: Format, options: ReportOptions) -> int:
    """Write the files, print the comparison as `output` says, and return the exit code. The document is
    written first, so that the measurement is kept if a later step fails. Raises InvalidInput for files that
    cannot be written and for a baseline that cannot be compared with."""
    _write_data(comparison, options)
    report = None if options.baseline is None else _against(options.baseline, comparison)
    _write_pictures(comparison, report, options)
    if output.for_people:
        sys.stdout.writelines(f"{line}\n" for line in _for_people(comparison, report))
    else:
        print_document(comparison.model_dump(mode="json", by_alias=True), output)
        for line in report.lines() if report else ():
            say(line)
    if report is None or not options.fail_on_regression:
        return 0
    if not report.shared:
        complain(f"--baseline {options.baseline}: {NOTHING_SHARED}")
        return EXIT_BAD_INPUT
    return EXIT_FAILED if report.regressed else 0


def write_plots(directory: Path, plots: "Iterable[Plot]", option: str = "--plots") -> None:
    """Write both files of each plot into a directory, which is made if need be. InvalidInput where that
    fails."""
    _make_directory(directory, option)
    for plot in plots:
        write(directory / f"{plot.name}.png", plot.png, option)
        write(directory / f"{plot.name}.svg", plot.svg, option)


def write(path: Path, content: bytes, option: str) -> None:
    """Write a file that an option names. InvalidInput where that fails."""
    try:
        path.write_bytes(content)
    except OSError as exc:
        _unwritable(path, exc, option)


def _write_data(comparison: Comparison, options: ReportOptions) -> None:
    if options.json is not None:
        write(options.json, _document(comparison), "--json")
    if options.csv is not None:
        write(options.csv, tables.as_csv(comparison).encode(), "--csv")
    if options.out is not None:
        _make_directory(options.out, "--out")
        write(options.out / "comparison.json", _document(comparison), "--out")
        write(options.out / "comparison.csv", tables.as_csv(comparison).encode(), "--out")


def _write_pictures(comparison: Comparison, report: Report | None, options: ReportOptions) -> None:
    if options.plots is not None:
        write_plots(options.plots, _drawing("plots").draw(summarise(comparison)))
    if options.html is not None:
        write(options.html, _drawing("page").as_html(comparison, report).encode(), "--html")
    if options.out is not None:
        try:
            page = _drawing("page").as_html(comparison, report)
        except ConfigError as exc:
            say(f"no plots and no HTML page: {exc}")
            return
        write_plots(options.out, _drawing("plots").draw(summarise(comparison)), "--out")
        write(options.out / "comparison.html", page.encode(), "--out")


def _document(comparison: Comparison) -> bytes:
    return f"{comparison.as_json()}\n".encode()


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


def _drawing(module: str) -> ModuleType:
    """A module that draws. It is imported late, because matplotlib takes longer than everything else here.
    Raises ConfigError where hoss[bench] is not installed."""
    return importlib.import_module(f"hossctl.compare.{module}")


def _make_directory(path: Path, option: str) -> None:
    try:
        path.mkdir(exist_ok=True)
    except OSError as exc:
        _unwritable(path, exc, option)


def _unwritable(path: Path, exc: OSError, option: str) -> NoReturn:
    raise InvalidInput(f"cannot be written: {exc.strerror}", where=f"{option} {path}") from exc
