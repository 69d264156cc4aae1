"""What `hoss bench compare` takes, and which cells it makes of it."""

import pytest

from hoss.errors import InvalidInput
from hossctl.compare.axes import MODES, ON_KUBERNETES, Load, Mode
from hossctl.compare.cells import SLOW, Axes, default_cells, of_axes, peer_cells, quick_cells
from hossctl.kube_binaries import ASSETS_VARIABLE, CACHE_VARIABLE


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


def test_a_peer_adds_itself_and_hoss_beside_it_where_the_load_has_a_form_on_kubernetes():
    cells = of_axes(Axes((Mode.SINGLE,), (Load.UNIFORM, Load.GANGS), (1, 4), peer=True))
    assert [(cell.load, cell.mode, cell.workers) for cell in cells] == [
        (Load.UNIFORM, Mode.SINGLE, 1),
        (Load.UNIFORM, Mode.KUBE_SCHEDULER, 1),
        (Load.UNIFORM, Mode.KUBE_HOSS, 1),
        (Load.UNIFORM, Mode.KUBE_HOSS, 4),
        (Load.GANGS, Mode.SINGLE, 1),
    ]


@pytest.mark.parametrize("quick", [True, False])
def test_no_matrix_has_a_peer_unless_asked_and_then_it_is_small_and_beside_the_same_load_in_process(quick):
    matrix = quick_cells() if quick else default_cells()
    assert not {cell.mode for cell in matrix} & set(ON_KUBERNETES)
    added = peer_cells(quick=quick)
    assert {cell.mode for cell in added} == {Mode.SINGLE, Mode.HOSS, *ON_KUBERNETES}
    assert {cell.nodes for cell in added} == {100}
    assert {cell.load for cell in added} == (
        {Load.UNIFORM} if quick else {Load.UNIFORM, Load.UNIQUE, Load.CONSTRAINED, Load.SKEWED}
    )


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
        (["--speedup", "inf", "--trace-nodes", "n.csv", "--trace-pods", "p.csv"], "--speedup: inf is no number"),
        (["--speedup", "2"], "--speedup: needs a trace"),
        (
            ["--peer", "kube-scheduler", "--loads", "gangs,churn"],
            "--peer: has nothing to do here: gangs: kube-scheduler's default profile binds pods one by one; churn: its rate",
        ),
        (
            ["--peer", "kube-scheduler", "--decision-job-ms", "5"],
            "--peer: has nothing to do here: kube-scheduler has no option for added decision cost",
        ),
        (["--trace-pods", "pods.csv"], "--trace-nodes, --trace-pods: a trace is both"),
        (["--trace-nodes", "nowhere.csv", "--trace-pods", "p.csv"], "nowhere.csv: cannot be read"),
    ],
)
def test_bad_input_is_one_sentence(hoss, monkeypatch, tmp_path, options, problem):
    monkeypatch.setenv(ASSETS_VARIABLE, str(_control_plane(tmp_path)))
    result = hoss("bench", "compare", *options)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {problem}")
    assert result.stderr.count("\n") == 1


def test_a_peer_without_a_control_plane_is_one_sentence_that_says_how_to_get_one(hoss, monkeypatch, tmp_path):
    monkeypatch.delenv(ASSETS_VARIABLE, raising=False)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    result = hoss("bench", "compare", "--quick", "--peer", "kube-scheduler")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: Kubernetes control plane: there is none in ")
    assert "`make controlplane` builds it" in result.stderr
    assert result.stderr.count("\n") == 1


def _control_plane(directory):
    """Programs that are there, and are not run by who only reads options."""
    for name in ("etcd", "kube-apiserver", "kube-scheduler"):
        (directory / name).touch(mode=0o755)
    return directory


def test_a_file_that_cannot_be_written_is_found_out_before_anything_is_measured(hoss):
    result = hoss("bench", "compare", "--json", "/nowhere/compare.json")
    assert (result.exit_code, "its directory /nowhere is not there" in result.stderr) == (2, True)
