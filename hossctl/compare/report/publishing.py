"""Writes and prints a comparison: tables or the document on the terminal, and the files that the options
name."""

import importlib
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from hoss.errors import ConfigError, InvalidInput, writing
from hossctl.cli import EXIT_BAD_INPUT, EXIT_FAILED
from hossctl.compare.document import Cell, Comparison, MachineInfo
from hossctl.compare.report import tables
from hossctl.compare.report.changes import Report, compare, read_earlier, refuse_other_machine
from hossctl.compare.report.summary import summarise
from hossctl.console import Format, announced, complain, print_document, say
from hossctl.options import only

if TYPE_CHECKING:
    from hossctl.compare.report.plots import Plot

NOTHING_SHARED = (
    "has no cell of this comparison, so nothing was compared: measure what it holds, or name another one"
)


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The files of a comparison. `against` is read, the others are written: `out` gets all of them."""

    json: Path | None = None
    csv: Path | None = None
    parquet: Path | None = None
    plots: Path | None = None  # a directory
    html: Path | None = None
    against: Path | None = None
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
    _check_paths(options)
    if options.parquet is not None:
        _extra("parquet")
    if options.against is not None:
        before = read_earlier(options.against, machine)
        shared = cells is None or any(run.complete and run.cell in cells for run in before.runs)
        if options.fail_on_regression and not shared:
            raise InvalidInput(NOTHING_SHARED, where=f"--against {options.against}")
    elif options.fail_on_regression:
        raise InvalidInput("needs --against FILE to compare with", where="--fail-on-regression")


def _check_paths(options: ReportOptions) -> None:
    for option, path in (
        ("--json", options.json),
        ("--csv", options.csv),
        ("--parquet", options.parquet),
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


def publish(comparison: Comparison, output: Format, options: ReportOptions) -> int:
    """Write the files, print the comparison as `output` says, and return the exit code. The document is
    written first, so that the measurement is kept if a later step fails. Raises InvalidInput for files that
    cannot be written and for an earlier comparison that cannot be compared with."""
    _write_data(comparison, options)
    report = None if options.against is None else _changes_since(options.against, comparison)
    with announced("drawing"):  # with twenty loads half a minute
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
        complain(f"--against {options.against}: {NOTHING_SHARED}")
        return EXIT_BAD_INPUT
    return EXIT_FAILED if report.regressed else 0


def write_plots(directory: Path, plots: "Iterable[Plot]", option: str = "--plots") -> None:
    """Write both files of each plot into a directory, which is made if need be. InvalidInput where that
    fails."""
    _make_directory(directory, option)
    for plot in plots:
        write(directory / f"{plot.name}.png", plot.png(), option)
        write(directory / f"{plot.name}.svg", plot.svg(), option)


def write(path: Path, content: bytes, option: str) -> None:
    """Write a file that an option names. InvalidInput where that fails."""
    with writing(f"{option} {path}"):
        path.write_bytes(content)


def _write_data(comparison: Comparison, options: ReportOptions) -> None:
    if options.json is not None:
        write(options.json, _document(comparison), "--json")
    if options.csv is not None:
        write(options.csv, tables.as_csv(comparison).encode(), "--csv")
    if options.parquet is not None:
        write(options.parquet, _extra("parquet").as_parquet(comparison), "--parquet")
    if options.out is not None:
        _make_directory(options.out, "--out")
        write(options.out / "comparison.json", _document(comparison), "--out")
        write(options.out / "comparison.csv", tables.as_csv(comparison).encode(), "--out")
        try:
            table = _extra("parquet").as_parquet(comparison)
        except ConfigError as exc:
            say(f"no Parquet file: {exc}")
        else:
            write(options.out / "comparison.parquet", table, "--out")


def _write_pictures(comparison: Comparison, report: Report | None, options: ReportOptions) -> None:
    if options.plots is not None:
        write_plots(options.plots, _extra("plots").draw(summarise(comparison)))
    if options.html is not None:
        write(options.html, _extra("page").as_html(comparison, report).encode(), "--html")
    if options.out is not None:
        try:
            page = _extra("page").as_html(comparison, report)
        except ConfigError as exc:
            say(f"no plots and no HTML page: {exc}")
            return
        write_plots(options.out, _extra("plots").draw(summarise(comparison)), "--out")
        write(options.out / "comparison.html", page.encode(), "--out")


def _document(comparison: Comparison) -> bytes:
    return f"{comparison.as_json()}\n".encode()


def _for_people(comparison: Comparison, report: Report | None) -> Iterator[str]:
    yield from tables.lines(comparison)
    if report is not None:
        yield ""
        yield f"Against the comparison of {report.before_started}:"
        for line in report.lines():
            yield from textwrap.wrap(line, tables.WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _changes_since(earlier: Path, comparison: Comparison) -> Report:
    before = read_earlier(earlier, None)
    refuse_other_machine(before.machine, comparison.machine, where=str(earlier))
    return compare(before, comparison)


def _extra(module: str) -> ModuleType:
    """A module of this room that needs an extra of HOSS. It is imported late, because matplotlib and pyarrow
    take longer than everything else here. Raises ConfigError where the extra is not installed."""
    return importlib.import_module(f"hossctl.compare.report.{module}")


def _make_directory(path: Path, option: str) -> None:
    with writing(f"{option} {path}"):
        path.mkdir(exist_ok=True)
