"""docs/notebooks/comparison.ipynb, run cell by cell on results as `bench compare --out` writes them; and
these results as Parquet."""

import csv
import io
import json
import sys
from pathlib import Path
from statistics import median

import pytest
from unit.hossctl.compare.made_up import comparison

from hossctl.choices import Load, Mode
from hossctl.compare.catalogue import CONFLICTS, STRANDED_ROOM
from hossctl.compare.document import Comparison, DecisionTimes
from hossctl.compare.report import tables

NOTEBOOK = Path(__file__).parents[4] / "docs" / "notebooks" / "comparison.ipynb"
JOB_MS = (10.0, 100.0, 1000.0)


@pytest.fixture
def made() -> dict[str, Comparison]:
    by_job = {
        f"job-{job_ms:g}": comparison(
            modes=(Mode.SINGLE, Mode.HOSS),
            loads=(Load.UNIFORM,),
            workers=(1, 4),
            fills=(0.8,),
            decisions=(DecisionTimes(job_ms=job_ms, task_ms=0.5),),
            seed=int(job_ms),
        )
        for job_ms in JOB_MS
    }
    gpu = comparison(
        modes=(Mode.HOSS,),
        loads=(Load.OPENB,),
        workers=(4,),
        fills=(0.8, 1.0),
        schedulers=("default", "fgd", "mine.py:Mine"),
    )
    return {**by_job, "gpu": gpu}


def executed(results: Path, monkeypatch) -> dict:
    """The notebook's names after its last cell."""
    import matplotlib as mpl  # noqa: PLC0415 - it takes long to import, and every process collects this file

    mpl.use("Agg")
    monkeypatch.setenv("RESULTS", str(results))
    names: dict = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), names)
    return names


def written(made: dict[str, Comparison], results: Path) -> Path:
    for name, document in made.items():
        (results / name).mkdir(parents=True)
        (results / name / "comparison.csv").write_text(tables.as_csv(document))
    return results


def lines_of(axes) -> dict[str, tuple[list[float], list[float]]]:
    """By label: x and y of its points."""
    handles, labels = axes.get_legend_handles_labels()
    return {
        label: tuple(list(map(float, each)) for each in handle.lines[0].get_data())
        for handle, label in zip(handles, labels, strict=True)
    }


def test_it_draws_conflicts_and_busyness_by_decision_time_and_utilisation_and_fragmentation_by_scheduler(
    made, tmp_path, monkeypatch
):
    names = executed(written(made, tmp_path / "results"), monkeypatch)
    plt = names["plt"]
    slow, gpu = (plt.figure(number).axes for number in plt.get_fignums())
    try:
        conflicts, busyness = map(lines_of, slow)
        assert list(conflicts) == list(busyness) == ["single, 1 workers", "multi-hoss, 4 workers"]
        times, shares = conflicts["multi-hoss, 4 workers"]
        assert times == [0.01, 0.1, 1.0]
        runs = [[r for r in made[f"job-{ms:g}"].runs if r.cell.mode == Mode.HOSS] for ms in JOB_MS]
        assert shares == pytest.approx([median(CONFLICTS.of(run) for run in group) for group in runs])
        used, lost = map(lines_of, gpu)
        assert (
            list(used) == list(lost) == [f"multi-hoss, 4 workers{name}" for name in ("", ", fgd", ", Mine")]
        )
        fills, shares = lost["multi-hoss, 4 workers, fgd"]
        fgd = [run for run in made["gpu"].runs if run.cell.scheduler == "fgd"]
        assert fills == [0.8, 1.0]
        assert shares == pytest.approx(
            [median(STRANDED_ROOM.of(run) for run in fgd if run.cell.fill == fill) for fill in fills]
        )
    finally:
        plt.close("all")


def test_it_holds_no_output(made):
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


def test_parquet_has_the_rows_of_the_csv_with_types(made, tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra hoss[parquet] is not installed")
    from hossctl.compare.report.parquet import as_parquet  # noqa: PLC0415 - needs the extra

    results = written(made, tmp_path / "results")
    for name, document in made.items():
        (results / name / "comparison.parquet").write_bytes(as_parquet(document))
    table = parquet.read_table(results / "gpu" / "comparison.parquet")
    rows = list(csv.DictReader(io.StringIO(tables.as_csv(made["gpu"]))))
    assert table.column_names == list(rows[0])
    types = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert (types["mode"], types["workers"], types["complete"]) == ("string", "int64", "bool")
    assert {types[name] for name in types if name not in tables.KEYS} == {"double"}
    for found, row in zip(table.to_pylist(), rows, strict=True):
        for name, value in found.items():
            if name not in tables.KEYS:
                assert value == (float(row[name]) if row[name] else None)
    assert table.schema.metadata[b"schema"] == b"hoss.dev/bench-compare/v1"
    assert len(executed(results, monkeypatch)["runs"]) == sum(len(each.runs) for each in made.values())


def test_without_pyarrow_parquet_is_refused_before_anything_is_measured(hoss, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "hossctl.compare.report.parquet", raising=False)
    result = hoss("bench", "compare", "--parquet", str(tmp_path / "now.parquet"))
    assert (result.exit_code, result.stderr) == (
        2,
        "error: pyarrow: is not installed; pip install 'hoss[parquet]'\n",
    )
