"""bench report: a comparison that was measured before, shown again."""

from pathlib import Path
from typing import Annotated

import typer

from hossctl.console import Format
from hossctl.options import BaselinePath, CsvPath, FailOnRegression, HtmlPath, JsonPath, Output, PlotsPath


def report(
    document: Annotated[Path, typer.Argument(metavar="FILE", help="What bench compare --json wrote.")],
    *,
    json: JsonPath = None,
    csv: CsvPath = None,
    plots: PlotsPath = None,
    html: HtmlPath = None,
    baseline: BaselinePath = None,
    fail_on_regression: FailOnRegression = False,
    output: Output = Format.TABLE,
) -> None:
    """Tables, plots and report of a comparison measured before, or what changed since an earlier one."""
    from hossctl.compare.document import read
    from hossctl.compare.publishing import Wanted, check, publish

    comparison = read(document)
    wanted = Wanted(json, csv, plots, html, baseline, fail_on_regression)
    check(output, wanted, comparison.machine)
    if code := publish(comparison, output, wanted):
        raise typer.Exit(code)
