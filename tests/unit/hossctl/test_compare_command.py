"""What `hoss bench compare` takes, and which cells it makes of it."""

import re

import pytest

from hoss.errors import InvalidInput
from hossctl.choices import MODES, ON_KUBERNETES, Load, Mode
from hossctl.compare.cells import SLOW, Axes, default_cells, of_axes, quick_cells


def test_the_single_scheduler_is_one_worker_and_the_others_are_several():
    cells = of_axes(Axes(workers=(1, 2, 4)))
    assert [(cell.mode, cell.workers) for cell in cells] == [
        (mode, workers) for mode in MODES for workers in ((1,) if mode is Mode.SINGLE else (2, 4))
    ]


def test_given_axes_are_multiplied():
    axes = Axes((Mode.SINGLE, Mode.HOSS), (Load.UNIFORM, Load.GANGS), (2, 4), (0.5, 1.0), (100, 1000))
    assert len(set(of_axes(axes))) == 3 * 2 * 2 * 2


def test_several_schedulers_of_one_worker_are_refused():
    with pytest.raises(InvalidInput, match="name 2 or more for the others"):
        of_axes(Axes(modes=(Mode.HOSS,), workers=(1,)))


@pytest.mark.parametrize("matrix", [default_cells, quick_cells])
def test_no_matrix_has_a_mode_on_kubernetes(matrix):
    assert not {cell.mode for cell in matrix()} & set(ON_KUBERNETES)


def test_the_default_matrix_holds_every_mode_load_and_number_of_workers_and_slow_schedulers():
    cells = default_cells()
    assert len(set(cells)) == len(cells)
    assert {cell.mode for cell in cells} == set(MODES)
    assert {cell.load for cell in cells} == set(Load) - {Load.TRACE}
    assert {cell.workers for cell in cells} == {1, 2, 4, 8}
    assert {cell.fill for cell in cells} == {0.5, 0.8, 0.95, 1.0}
    assert {cell.workers for cell in cells if cell.decision == SLOW} == {1, 2, 4, 8}


def test_the_quick_matrix_is_small_and_asks_the_whole_question():
    cells = quick_cells()
    assert len(cells) <= 14  # a run takes three seconds, and twice as long on a slow machine
    assert {cell.mode for cell in cells} == set(MODES)
    assert {cell.workers for cell in cells} == {1, 2, 4}
    assert len({cell.load for cell in cells}) == len({cell.fill for cell in cells}) == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--nodes", "0"], "--nodes: '0' is no list of whole numbers, 1 or more"),
        (["--nodes", "10,,20"], "--nodes: '10,,20' is no list of whole numbers, 1 or more"),
        (["--nodes", "1000000"], "--nodes: 1,000,000 is more than 100,000"),
        (["--workers", "two"], "--workers: 'two' is no list of whole numbers, 1 or more"),
        (["--modes", "multi-hoss,both"], "--modes: 'both' is none of single, multi-uncoordinated"),
        (["--modes", "kube-scheduler"], "--modes: 'kube-scheduler' is none of single"),
        (["--modes", "multi-hoss", "--workers", "1"], "--workers: only the mode single has one worker"),
        (["--loads", "heavy"], "--loads: 'heavy' is none of uniform"),
        (["--fills", "0.5,80"], "--fills: '80' is no share; write 0.8 for 80 %"),
        (["--fills", "nan"], "--fills: 'nan' is no share"),
        (["--fills", "0"], "--fills: '0' is no share"),
        (["--quick", "--nodes", "10"], "--quick: is a matrix of its own"),
        (["--loads", "trace"], "--loads: trace needs --trace-nodes and --trace-pods"),
        (
            ["--speedup", "inf", "--trace-nodes", "n.csv", "--trace-pods", "p.csv"],
            "--speedup: inf is no number",
        ),
        (["--speedup", "2"], "--speedup: needs a trace"),
        (["--trace-pods", "pods.csv"], "--trace-nodes, --trace-pods: a trace is both"),
        (["--trace-nodes", "nowhere.csv", "--trace-pods", "p.csv"], "nowhere.csv: cannot be read"),
    ],
)
def test_bad_input_is_one_sentence(hoss, options, problem):
    result = hoss("bench", "compare", *options)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {problem}")
    assert result.stderr.count("\n") == 1


NODES = "sn,cpu_milli,memory_mib,gpu,model\na,8000,16000,0,\nb,8000,16000,0,\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"  # as in the lists without times


@pytest.fixture
def planned(hoss, monkeypatch, tmp_path):
    """What a command would measure, with three pod lists of one, two and three pods."""
    (tmp_path / "nodes.csv").write_text(NODES)
    for pods in (1, 2, 3):
        rows = "".join(f"p{number},1000,1000,0,0\n" for number in range(pods))
        (tmp_path / f"openb_pod_list_{pods}.csv").write_text(PODS + rows)
    plans = []
    monkeypatch.setattr(
        "hossctl.commands.bench.compare.run_comparison", lambda measuring, *_: plans.append(measuring.plan)
    )

    def run(*options):
        result = hoss("bench", "compare", "--trace-nodes", "nodes.csv", "--modes", "multi-hoss", *options)
        return (result, plans[0] if plans else None)

    return run


def test_each_of_several_pod_lists_is_a_load_of_its_own(planned):
    _, plan = planned("--trace-pods", "openb_pod_list_*.csv", "--workers", "2,4")
    assert [(cell.load, cell.workers, cell.nodes, cell.pods) for cell in plan.cells] == [
        (f"openb_pod_list_{pods}", workers, 2, pods) for pods in (1, 2, 3) for workers in (2, 4)
    ]
    assert {name: trace.pods for name, trace in plan.traces.items()} == {
        f"openb_pod_list_{pods}": pods for pods in (1, 2, 3)
    }


def test_a_single_pod_list_is_the_load_trace_beside_generated_ones(planned):
    _, plan = planned("--trace-pods", "openb_pod_list_3.csv", "--loads", "uniform,trace", "--nodes", "50")
    assert [(cell.load, cell.nodes, cell.pods) for cell in plan.cells] == [
        ("uniform", 50, 0),
        ("trace", 2, 3),
    ]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (["nothing_*.csv"], "--trace-pods: no file is named like nothing_*.csv"),
        (
            ["openb_pod_list_1.csv", "./openb_pod_list_1.csv.gz"],
            (
                "--trace-pods: openb_pod_list_1.csv and openb_pod_list_1.csv.gz would both be the load "
                "openb_pod_list_1; rename one"
            ),
        ),
        (["openb_pod_list_1.csv", "none.csv"], "none.csv: cannot be read: No such file or directory"),
    ],
)
def test_pod_lists_that_cannot_be_told_apart_or_read_are_refused(planned, files, problem):
    result, plan = planned(*(text for file in files for text in ("--trace-pods", file)))
    assert (result.exit_code, plan) == (2, None)
    assert result.stderr == f"error: {problem}\n"


def test_a_file_that_cannot_be_written_is_found_out_before_anything_is_measured(hoss):
    result = hoss("bench", "compare", "--json", "/nowhere/compare.json")
    assert (result.exit_code, "its directory /nowhere is not there" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("path", "problem"),
    [("/nowhere/out", "its directory /nowhere is not there"), ("a file", "is a file; name a directory")],
)
def test_a_directory_that_cannot_be_written_is_found_out_before_anything_is_measured(
    hoss, tmp_path, path, problem
):
    (tmp_path / "a file").touch()
    result = hoss("bench", "compare", "--out", path)
    assert (result.exit_code, f"--out {path}: {problem}" in result.stderr) == (2, True)


def test_help_shows_a_dozen_options_and_those_it_hides_are_still_read(hoss):
    shown = set(re.findall(r"--[a-z-]+", hoss("bench", "compare", "--help").stdout))
    hidden = {
        "--baseline",
        "--pods",
        "--decision-job-ms",
        "--redis-url",
        "--json",
        "--csv",
        "--html",
        "--plots",
        "--limit",
    }
    assert not shown & hidden
    assert {
        "--quick",
        "--modes",
        "--loads",
        "--out",
        "--against",
        "--schedulers",
        "--seed",
        "--trace-pods",
    } <= shown
    result = hoss("bench", "compare", "--decision-job-ms", "5", "--limit", "3")
    assert result.stderr.startswith("error: --limit: needs a trace")
