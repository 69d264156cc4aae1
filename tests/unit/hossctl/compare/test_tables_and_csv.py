"""What the terminal shows, and the CSV."""

import csv
import io
import re
from pathlib import Path

import pytest
from unit.hossctl.compare.made_up import comparison

from hossctl.choices import Load, Mode
from hossctl.compare.catalogue import figures
from hossctl.compare.document import DecisionTimes
from hossctl.compare.report import tables

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"nodes": 20_000, "decisions": (DecisionTimes(job_ms=100, task_ms=12.5),)},
        {"repetitions": 1, "finished": "", "notes": ["a note that is long enough to be wrapped " * 4]},
    ],
)
def test_the_summary_fits_80_columns(fields):
    assert max(len(line) for line in tables.lines(comparison(**fields))) <= 80


def test_every_setting_has_a_table_of_speed_and_one_of_placement():
    text = "\n".join(tables.lines(comparison(loads=(Load.UNIFORM, Load.GANGS), fills=(0.8,), workers=(1, 2))))
    assert text.count("MODE           WORKERS   PODS/S  +-  P99 MS  CONFLICTS  OVERSOLD  STRANDED") == 2
    assert "uniform, 500 nodes, fill 80 %" in text
    assert len(re.findall(r"\nMODE +WORKERS +USED +LOST +SPREAD +NODES +FAIR +MOVES\n", text)) == 2
    assert text.count("\nHOSS                 2 ") == 4


def test_a_comparison_of_an_earlier_version_has_no_table_of_placement():
    made = comparison(loads=(Load.UNIFORM,), fills=(0.8,), workers=(1, 2))
    runs = [run.model_copy(update={"quality": None, "validated": None}) for run in made.runs]
    text = "\n".join(tables.lines(made.model_copy(update={"runs": runs})))
    assert "SPREAD" not in text
    assert text.count("\nHOSS                 2 ") == 1


def test_schedulers_of_one_mode_are_the_rows_and_long_names_are_cut():
    own = ("default", "fgd", "sdk=a/long/path/of.py:SchedulerWithALongName")
    made = comparison(loads=(Load.UNIFORM,), fills=(0.8,), workers=(2,), modes=(Mode.HOSS,), schedulers=own)
    lines = list(tables.lines(made))
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1:5]] == ["SCHEDULER", "default", "fgd", "sdk=SchedulerWi..."]
    both = comparison(
        loads=(Load.UNIFORM,),
        fills=(0.8,),
        workers=(1, 2),
        modes=(Mode.SINGLE, Mode.HOSS),
        schedulers=own[:2],
    )
    assert [line.split("  ")[0] for line in list(tables.lines(both))[1:6]] == [
        "MODE",
        "single",
        "single, fgd",
        "HOSS",
        "HOSS, fgd",
    ]


def test_interrupted_and_left_out_runs_are_told():
    made = comparison(loads=(Load.UNIFORM,), fills=(0.8,), workers=(1, 2), finished="")
    runs = [*made.runs[:-1], made.runs[-1].model_copy(update={"complete": False, "violations": ["x"]})]
    text = " ".join("\n".join(tables.lines(made.model_copy(update={"runs": runs}))).split())
    assert "1 run of 15 broken off and left out above" in text
    assert "in 1 run an audit found broken invariants" in text
    assert "8 workers share 2 cores" in text


def test_that_uncoordinated_schedulers_break_invariants_is_no_note():
    made = comparison(loads=(Load.UNIFORM,), fills=(0.8,), workers=(2,), modes=(Mode.UNCOORDINATED,))
    runs = [run.model_copy(update={"violations": ["invariant 1"]}) for run in made.runs]
    assert "audit" not in "\n".join(tables.lines(made.model_copy(update={"runs": runs})))


def test_a_comparison_without_a_complete_run_is_still_shown():
    text = " ".join(" ".join(tables.lines(comparison(repetitions=0, finished=""))).split())
    assert "no run is complete" in text


def test_the_csv_has_a_line_for_each_run_and_plain_values_alone():
    made = comparison(loads=(Load.UNIFORM,), fills=(0.8, 0.95), workers=(1, 2))
    rows = list(csv.DictReader(io.StringIO(tables.as_csv(made))))
    assert len(rows) == len(made.runs)
    first, run = rows[0], made.runs[0]
    assert first["mode"] == "single"
    assert float(first["pods_per_second"]) == run.pods_per_second
    assert float(first["total_p99_ms"]) == run.latency["total"].p99
    assert float(first["utilisation_cpu"]) == run.utilisation["cpu"]
    assert float(first["cpu_seconds_redis"]) == run.services["redis"].cpu_seconds
    assert first["complete"] == "true"
    assert not any(set("[]{}") & set(value) for row in rows for value in row.values())


def test_what_kube_scheduler_does_not_say_is_a_dash_and_an_empty_field_and_never_zero():
    modes = (Mode.SINGLE, Mode.HOSS, Mode.KUBE_SCHEDULER, Mode.KUBE_HOSS)
    made = comparison(loads=(Load.UNIFORM,), fills=(0.8,), workers=(1, 2), modes=modes)
    lines = list(tables.lines(made))
    assert max(map(len, lines)) <= 80
    row, _ = [line.split() for line in lines if line.startswith("kube-scheduler ")]
    assert row[-3:] == [
        "-",
        "0",
        "0",
    ]  # conflicts; overcommitted nodes and stranded pods are seen from outside
    rows = {row["mode"]: row for row in csv.DictReader(io.StringIO(tables.as_csv(made)))}
    untold = (
        "conflicts",
        "conflict_share",
        "proposals",
        "retries",
        "wasted_decisions",
        "busyness_mean",
        "violations",
        "jobs",
    )
    assert {rows["kube-scheduler"][key] for key in untold} == {""}
    assert "" not in {rows["kube-hoss"][key] for key in untold}


def test_a_figure_that_a_run_has_not_is_an_empty_field():
    made = comparison(loads=(Load.UNIFORM,), fills=(0.8,), workers=(1,), repetitions=2)
    bare = made.runs[1].model_copy(update={"latency": {}, "services": {}, "workers": []})
    rows = list(
        csv.DictReader(io.StringIO(tables.as_csv(made.model_copy(update={"runs": [made.runs[0], bare]}))))
    )
    assert rows[1]["total_p50_ms"] == rows[1]["cpu_us_per_pod"] == rows[1]["busyness_mean"] == ""


def test_every_column_is_documented():
    text = (ROOT / "docs" / "benchmarks" / "README.md").read_text(encoding="utf-8")
    keys = [*tables.KEYS, *(figure.key for figure in figures(comparison().runs))]
    by_name = (
        "utilisation_",
        "fragmentation_",
        "stranded_",
        "spread_",
        "excess_",
        "cpu_seconds_",
        "peak_mib_",
    )
    expected = {next((f"{stem}*" for stem in by_name if key.startswith(stem)), key) for key in keys}
    assert {key for key in expected if f"`{key}`" not in text} == set()
    defined = [figure for figure in figures(comparison().runs) if not figure.key.startswith(by_name)]
    lines = [f"| `{figure.key}` | {figure.unit.value} | {figure.meaning} |" for figure in defined]
    assert [line for line in lines if line not in text] == []
