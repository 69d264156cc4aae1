"""The figures of README.md and docs/benchmarks.md are those of docs/benchmarks/full.json, from which the
pictures beside them are drawn."""

import json
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
from written_commands import ROOT

_REPORT = json.loads((ROOT / "docs" / "benchmarks" / "full.json").read_text("utf-8"))
_PAGES = {name: (ROOT / name).read_text("utf-8") for name in ("README.md", "docs/benchmarks.md")}
_BASE = {"load": "uniform", "nodes": 1000, "fill": 0.95, "pods": 0, "decision": {"jobMs": 0.0, "taskMs": 0.0}}
_SLOW = {**_BASE, "nodes": 500, "fill": 0.8, "decision": {"jobMs": 10.0, "taskMs": 0.5}}
_GPU = {**_BASE, "load": "openb"}


def _median(of: Callable[[dict[str, Any]], float], mode: str, workers: int, setting: dict[str, Any]) -> float:
    cell = {"mode": mode, "workers": workers, **setting}
    found = [of(run) for run in _REPORT["runs"] if run["cell"] == cell and run["complete"]]
    assert found, f"no run of {cell}"
    return median(found)


def _rate(run: dict[str, Any]) -> float:
    return float(run["podsPerSecond"])


def _overcommitted(run: dict[str, Any]) -> float:
    return float(run["overcommit"]["nodes"])


def _refused(run: dict[str, Any]) -> float:
    return 100 * float(run["conflicts"]) / float(run["proposals"])


@pytest.mark.parametrize(
    ("page", "row", "figures"),
    [
        ("README.md", "one scheduler", [("single", 1)]),
        ("README.md", "four schedulers that nobody coordinates", [("multi-uncoordinated", 4)]),
        ("README.md", "four schedulers under a global lock", [("multi-locked", 4)]),
        ("README.md", "four schedulers with HOSS, 0.9 % of proposals refused", [("multi-hoss", 4)]),
        (
            "docs/benchmarks.md",
            "uniform pods: pods/s",
            [("single", 1), ("multi-uncoordinated", 4), ("multi-locked", 4), ("multi-hoss", 4)],
        ),
    ],
)
def test_a_row_has_the_medians_of_its_cells(page: str, row: str, figures: list[tuple[str, int]]) -> None:
    (line,) = [line for line in _PAGES[page].splitlines() if line.startswith(f"| {row} |")]
    cells = [cell.strip(" *") for cell in line.split("|")[2:-1]]
    for shown, (mode, workers) in zip(cells, figures, strict=False):
        assert shown == f"{_median(_rate, mode, workers, _BASE):,.0f}"
    if page == "README.md":
        ((mode, workers),) = figures
        assert cells[1] == f"{_median(_overcommitted, mode, workers, _BASE):,.0f}"


def test_the_sentences_have_the_medians_of_their_cells() -> None:
    readme, page = _PAGES["README.md"], _PAGES["docs/benchmarks.md"]
    one, eight = _median(_rate, "single", 1, _SLOW), _median(_rate, "multi-hoss", 8, _SLOW)
    locked = _median(_rate, "multi-locked", 8, _SLOW)
    for figure in (one, eight, locked):
        assert f"{figure:,.0f}" in readme
    assert f"{eight / one:.1f} times as many" in " ".join(readme.split())
    assert f"**{eight / one:.2f} times**" in page
    assert f"{locked / one:.2f} times as many" in " ".join(page.split())
    assert f"{_median(_refused, 'multi-hoss', 4, _BASE):.1f} % of proposals refused" in readme
    full = _median(_overcommitted, "multi-uncoordinated", 4, {**_BASE, "fill": 1.0})
    gpu = _median(_overcommitted, "multi-uncoordinated", 4, _GPU)
    shares = f"{full / 10:.0f} % of the nodes at 100 %, {gpu / 10:.0f} % with the mix of a GPU trace"
    assert shares in " ".join(readme.split())


def test_no_mode_but_the_uncoordinated_overcommits_a_node() -> None:
    runs = [run for run in _REPORT["runs"] if run["cell"]["mode"] != "multi-uncoordinated"]
    assert len(runs) > 100
    assert sum(map(_overcommitted, runs)) == 0


def test_the_machine_and_the_day_are_named() -> None:
    machine, readme = _REPORT["machine"], " ".join(_PAGES["README.md"].split())
    assert (machine["cores"], _REPORT["started"][:10]) == (2, "2026-11-22")
    assert f"two cores of an {machine['cpu']}, 24 GB, Python 3.11, Redis 6.2, on 22 November 2026" in readme
