"""What changed since an earlier comparison, and where a comparison goes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner
from unit.hossctl.compare.made_up import MACHINE, comparison

from hoss.errors import InvalidInput
from hossctl.choices import Load, Mode
from hossctl.cli import app
from hossctl.compare.document import ComparisonRun, read
from hossctl.compare.report.changes import compare, refuse_other_machine
from hossctl.compare.report.publishing import NOTHING_SHARED, ReportOptions, check, publish
from hossctl.console import Format

FIELDS = {"loads": (Load.UNIFORM,), "workers": (1, 4), "fills": (0.8, 0.95), "noise": 0.02}


def hoss(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "now.json"
    path.write_text(comparison(**FIELDS).as_json())
    return path


@pytest.fixture
def faster(tmp_path: Path) -> Path:
    path = tmp_path / "faster.json"
    path.write_text(comparison(**FIELDS, speed=1.5, seed=2).as_json())
    return path


def test_the_same_again_with_other_noise_shows_hardly_a_change():
    before, now = comparison(**FIELDS, seed=1), comparison(**FIELDS, seed=2)
    report = compare(before, now)
    judged = 10 * 10  # cells by figures, about
    assert len(report.changes) <= 0.05 * judged
    assert compare(before, before).changes == []


def test_half_the_speed_is_worse_and_back_again_better():
    slow, fast = comparison(**FIELDS, speed=0.5), comparison(**FIELDS, seed=3)
    worse = compare(fast, slow)
    rates = [change for change in worse.changes if change.figure.key == "pods_per_second"]
    assert len(rates) == 10
    assert not any(change.better for change in rates)
    assert all(0.4 < change.difference.ratio < 0.6 for change in rates)
    assert worse.regressed
    assert not compare(slow, fast).regressed


def test_worse_ones_come_first():
    report = compare(comparison(**FIELDS), comparison(**FIELDS, speed=2.0))
    assert [change.better for change in report.changes] == sorted(change.better for change in report.changes)


def test_more_of_what_should_be_less_is_worse():
    before = comparison(**FIELDS)
    runs = [
        run.model_copy(update={"unschedulable_with_room": 50}) if run.cell.mode == Mode.HOSS else run
        for run in before.runs
    ]
    report = compare(before, before.model_copy(update={"runs": runs}))
    assert {change.figure.key for change in report.changes} == {"unschedulable_with_room"}
    assert report.regressed


def test_cells_of_one_side_alone_are_named():
    before = comparison(**FIELDS)
    now = comparison(**{**FIELDS, "fills": (0.8, 1.0), "modes": (Mode.SINGLE, Mode.HOSS)})
    remarks = compare(before, now).remarks
    assert remarks[0] == "2 cells are in both"
    assert "only in the earlier one: uncoordinated, 4 workers, uniform, 500 nodes, fill 80 %;" in remarks[1]
    assert remarks[1].endswith("uniform, 500 nodes, fill 95 % (5 cells)")
    assert remarks[2] == "only in this comparison: uniform, 500 nodes, fill 100 % (2 cells)"


def test_where_no_cell_is_in_both_nothing_is_said_to_be_unchanged():
    report = compare(comparison(**FIELDS), comparison(**{**FIELDS, "fills": (0.5,)}))
    assert report.verdict == "no cell is in both, so nothing was compared"
    assert not any("in both" in remark for remark in report.remarks)


def test_where_every_cell_was_run_once_nothing_is_judged_and_that_is_said():
    once = {**FIELDS, "repetitions": 1}
    report = compare(comparison(**once), comparison(**once, speed=9.0))
    assert report.changes == []
    assert report.remarks[0] == "every cell was run once: the noise is unknown, and nothing is beyond it"


def test_other_versions_are_compared_and_told():
    machine = MACHINE.model_copy(update={"versions": {**MACHINE.versions, "redis-server": "7.2.0"}})
    remarks = compare(comparison(**FIELDS), comparison(**FIELDS, machine=machine)).remarks
    assert "versions differ: redis-server 6.2.14 -> 7.2.0" in remarks


@pytest.mark.parametrize("other", [{"cpu": "Another CPU"}, {"cores": 64}, {"memory_mib": 16_000}])
def test_another_machine_is_refused_in_one_sentence(other):
    with pytest.raises(
        InvalidInput, match=r"^old\.json: was measured on another machine .*; measure it again here$"
    ):
        refuse_other_machine(MACHINE.model_copy(update=other), MACHINE, where="old.json")


def test_a_little_less_memory_is_the_same_machine():
    refuse_other_machine(
        MACHINE.model_copy(update={"memory_mib": MACHINE.memory_mib - 40}), MACHINE, where="old.json"
    )


def test_all_files_are_written_and_the_document_reads_as_it_was(tmp_path, document):
    out = [tmp_path / name for name in ("o.json", "o.csv", "plots", "o.html")]
    code, text, _ = hoss(
        "bench", "report", document, "--json", out[0], "--csv", out[1], "--plots", out[2], "--html", out[3]
    )
    assert code == 0
    assert "Over one scheduler: " in text
    assert max(map(len, text.splitlines())) <= 80
    assert read(out[0]) == read(document)
    assert out[1].read_text().startswith("mode,load,scheduler,workers,")
    assert len(list(out[2].glob("*.png"))) == len(list(out[2].glob("*.svg"))) == 5
    assert out[3].read_text().startswith("<!doctype html>")


def test_json_is_printed_as_it_is_written_and_remarks_go_to_stderr(document, faster):
    code, out, err = hoss("bench", "report", document, "--against", faster, "-o", "json")
    assert code == 0
    assert json.loads(out) == json.loads(document.read_text())
    assert "WORSE" in err


def test_a_regression_is_told_and_fails_only_where_that_is_asked_for(document, faster):
    code, out, _ = hoss("bench", "report", document, "--against", faster)
    assert code == 0
    assert "WORSE   pods/s: " in out
    assert max(map(len, out.splitlines())) <= 80
    assert hoss("bench", "report", document, "--against", faster, "--fail-on-regression")[0] == 1
    assert hoss("bench", "report", faster, "--against", document, "--fail-on-regression")[0] == 0


def fewer_used(run: ComparisonRun) -> ComparisonRun:
    return run.model_copy(
        update={"utilisation": {name: 0.9 * share for name, share in run.utilisation.items()}}
    )


def of_quality(**worse: object) -> Callable[[ComparisonRun], ComparisonRun]:
    return lambda run: run.model_copy(update={"quality": run.quality.model_copy(update=worse)})


@pytest.mark.parametrize(
    ("worsen", "titles"),
    [
        (fewer_used, {"used", "cpu used", "memory used"}),
        (
            of_quality(stranded={"cpu": 0.2, "memory": 0.2}),
            {"stranded room", "stranded cpu", "stranded memory"},
        ),
        (of_quality(gpu_fragmentation=0.3), {"GPU fragmented", "stranded room"}),
        (of_quality(fairness=0.7), {"fairness"}),
    ],
    ids=["utilisation", "stranded", "fragmentation", "fairness"],
)
def test_worse_placement_alone_fails_a_gate_at_the_same_speed(tmp_path, worsen, titles):
    good = comparison(**{**FIELDS, "loads": (Load.OPENB,)})
    document, later = tmp_path / "before.json", tmp_path / "later.json"
    document.write_text(good.as_json())
    later.write_text(good.model_copy(update={"runs": [worsen(run) for run in good.runs]}).as_json())
    code, out, _ = hoss("bench", "report", later, "--against", document, "--fail-on-regression")
    told = [line for line in out.splitlines() if line.startswith(("WORSE", "better"))]
    assert code == 1
    assert {line.partition(": ")[0].removeprefix("WORSE   ") for line in told} <= titles
    assert told
    assert hoss("bench", "report", document, "--against", later, "--fail-on-regression")[0] == 0


def test_where_no_cell_is_in_both_a_gate_does_not_pass(tmp_path, document):
    other = tmp_path / "other.json"
    other.write_text(comparison(**{**FIELDS, "fills": (0.5,)}).as_json())
    code, out, err = hoss("bench", "report", document, "--against", other, "--fail-on-regression")
    assert (code, err) == (2, f"error: --against {other}: {NOTHING_SHARED}\n")
    assert "no cell is in both, so nothing was compared" in out
    assert hoss("bench", "report", document, "--against", other)[0] == 0


def test_a_gate_that_could_say_nothing_is_found_out_before_anything_is_measured(tmp_path, document):
    gate = ReportOptions(against=document, fail_on_regression=True)
    planned = {run.cell for run in read(document).runs}
    check(Format.TABLE, gate, MACHINE, planned)
    others = {run.cell for run in comparison(**{**FIELDS, "fills": (0.5,)}).runs}
    with pytest.raises(InvalidInput, match="nothing was compared"):
        check(Format.TABLE, gate, MACHINE, others)
    check(Format.TABLE, ReportOptions(against=document), MACHINE, others)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "machine: is missing"),
        ('{"schema": "hoss.dev/bench-compare/v9"}', "a comparison of hoss.dev/bench-compare/v1 is needed"),
        ("no json", "is no JSON: "),
        (None, "cannot be read"),
    ],
)
def test_an_earlier_comparison_of_another_schema_is_refused_in_one_sentence(
    tmp_path, document, content, said
):
    other = tmp_path / "other.json"
    if content is not None:
        other.write_text(content)
    code, _, err = hoss("bench", "report", document, "--against", other)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


def test_an_earlier_comparison_without_a_complete_run_or_of_another_machine_is_refused(tmp_path, document):
    other = tmp_path / "other.json"
    other.write_text(comparison(repetitions=0).as_json())
    assert hoss("bench", "report", document, "--against", other)[0] == 2
    other.write_text(comparison(**FIELDS, machine=MACHINE.model_copy(update={"cores": 64})).as_json())
    code, _, err = hoss("bench", "report", document, "--against", other)
    assert code == 2
    assert "another machine" in err


def test_what_could_not_be_written_is_found_out_before_anything_is_measured(tmp_path):
    wrong = [
        {"json": tmp_path / "nowhere" / "o.json"},
        {"html": tmp_path},
        {"csv": tmp_path / "nowhere" / "o.csv"},
        {"plots": tmp_path / "nowhere" / "plots"},
        {"against": tmp_path / "none.json"},
        {"fail_on_regression": True},
    ]
    (tmp_path / "file").write_text("")
    for options in [*wrong, {"plots": tmp_path / "file"}]:
        with pytest.raises(InvalidInput):
            check(Format.TABLE, ReportOptions(**options))
    with pytest.raises(InvalidInput, match="is not printed here"):
        check(Format.NAME, ReportOptions())


def test_an_earlier_comparison_of_another_machine_is_found_out_before_anything_is_measured(document):
    with pytest.raises(InvalidInput, match="another machine"):
        check(Format.TABLE, ReportOptions(against=document), MACHINE.model_copy(update={"cores": 64}))
    check(Format.TABLE, ReportOptions(against=document), MACHINE)


def test_the_document_is_kept_whatever_else_fails(tmp_path):
    kept = tmp_path / "o.json"
    with pytest.raises(InvalidInput, match="--csv"):
        publish(comparison(**FIELDS), Format.JSON, ReportOptions(json=kept, csv=tmp_path / "gone" / "o.csv"))
    assert read(kept).runs


def test_the_name_that_against_had_before_is_still_read_and_not_shown(document, faster):
    old, new = (hoss("bench", "report", document, name, faster) for name in ("--baseline", "--against"))
    assert old == new
    assert "--baseline" not in hoss("bench", "report", "--help")[1]
