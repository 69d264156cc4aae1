"""Modes, loads and schedulers of one's own in a comparison: how they are named, and what is refused."""

import random
import re
from pathlib import Path

import pytest

from hoss.errors import InvalidInput
from hoss.model.pod import Workload
from hoss.sdk.__main__ import main as main_of_sdk
from hossctl.choices import Load, Mode
from hossctl.compare.cells import Axes, of_axes
from hossctl.compare.document import Cell
from hossctl.compare.loads import LOAD_REGISTRY, GeneratedLoad, LoadSize, make_trace
from hossctl.compare.modes import MODE_REGISTRY, CoordinationMode
from hossctl.compare.running import labelled_nodes, platform_of
from hossctl.compare.schedulers import find_scheduler, scheduler_names
from hossctl.load.generated import pod_template

ROOT = Path(__file__).parents[3]
COMPARING = ROOT / "examples" / "comparing.py"
EMPTIEST = f"{ROOT / 'examples' / 'emptiest_first.py'}:EmptiestFirst"
WORKER_DOCUMENT = """\
apiVersion: hoss.dev/v1alpha1
kind: WorkerConfig
profile: dense
profiles:
  - name: dense
    plugins: [{name: NodeResourcesFit, args: {strategy: MostAllocated}}]
"""


def options_of(cell: Cell, directory: Path):
    mode = MODE_REGISTRY.find(cell.mode, where="--modes")
    scheduler = find_scheduler(cell.scheduler)
    return platform_of(cell, mode, scheduler, seed=1, redis_url="", directory=directory)


def a_cell(**fields) -> Cell:
    return Cell(**{"mode": "multi-hoss", "load": "uniform", "workers": 2, "nodes": 30, "fill": 0.9, **fields})


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with entry points, as pip leaves it."""
    about = tmp_path / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[hoss.modes]\npulled = mine_comparing:PulledViews\nbroken = no_such_module:Mode\n"
        "[hoss.loads]\nnightly = mine_comparing:NightlyBatch\n"
        "[hoss.algorithms]\nemptiest = mine_emptiest:EmptiestFirst\n"
    )
    (tmp_path / "mine_comparing.py").write_text(COMPARING.read_text())
    (tmp_path / "mine_emptiest.py").write_text((ROOT / "examples" / "emptiest_first.py").read_text())
    monkeypatch.syspath_prepend(tmp_path)


def test_every_mode_and_load_of_hoss_is_in_its_registry():
    assert set(MODE_REGISTRY.names()) == {mode.value for mode in Mode if not mode.startswith("kube-")}
    assert set(LOAD_REGISTRY.names()) == {load.value for load in Load}


def test_a_mode_of_ones_own_gives_its_flags_labels_and_policy_to_the_platform(tmp_path):
    (tmp_path / "halves.py").write_text(
        "from pathlib import Path\n"
        "from hossctl.compare.modes import CoordinationMode\n"
        "class Halves(CoordinationMode):\n"
        "    unchecked = True\n"
        "    policy = Path('policy.yaml')\n"
        "    def worker_flags(self, worker, workers, directory):\n"
        "        return ('--label', f'half={worker % 2}')\n"
        "    def node_labels(self, node, workers):\n"
        "        return {'half': str(node % 2), 'of': str(workers)}\n"
    )
    cell = a_cell(mode=f"{tmp_path / 'halves.py'}:Halves", workers=3)
    options = options_of(cell, tmp_path)
    assert [worker.flags for worker in options.workers] == [("--label", f"half={n}") for n in (0, 1, 0)]
    assert (options.unchecked, options.policy) == (True, Path("policy.yaml"))
    nodes = labelled_nodes(MODE_REGISTRY.find(cell.mode, where=""), 3, make_trace(cell, 1).nodes)
    assert [(dict(node.labels)["half"], dict(node.labels)["of"]) for node in nodes[:2]] == [
        ("0", "3"),
        ("1", "3"),
    ]


def test_a_load_of_ones_own_is_sized_as_those_of_hoss_and_the_same_for_a_seed():
    load = LOAD_REGISTRY.find(f"{COMPARING}:NightlyBatch", where="--loads")
    size = LoadSize(20, 0.8)
    first, again, other = load.trace(size, 1), load.trace(size, 1), load.trace(size, 2)
    assert first.pods == again.pods != other.pods
    jobs = [
        (job.name, job.replicas, arrival.message.templates[job.template])
        for arrival in first.arrivals
        for job in arrival.message.jobs
    ]
    asked = sum(
        replicas * amount.amount
        for _, replicas, template in jobs
        for amount in template.spec.requests
        if amount.resource == "cpu"
    )
    offered = sum(dict(node.allocatable)["cpu"] for node in first.nodes)
    assert 0.7 < asked / offered <= 0.8


def test_parts_are_found_by_entry_points(installed, tmp_path):
    assert options_of(a_cell(mode="pulled"), tmp_path).workers[0].flags[0] == "--sync"
    assert LOAD_REGISTRY.find("nightly", where="").trace(LoadSize(3, 0.5), 1).pods
    assert find_scheduler("emptiest").flags == ("--algorithm", "emptiest")
    assert {"pulled", "broken"} < set(MODE_REGISTRY.names())
    assert "emptiest" in scheduler_names()
    with pytest.raises(InvalidInput, match=r"^--modes: broken: cannot be loaded from no_such_module:Mode"):
        MODE_REGISTRY.find("broken", where="--modes")


@pytest.mark.parametrize(
    ("name", "flags", "sdk"),
    [
        ("default", (), ""),
        ("fgd", ("--profile", "fgd"), ""),
        ("best-fit", ("--profile", "best-fit"), ""),
        ("algorithm=best-fit", ("--algorithm", "best-fit"), ""),
        ("algorithm=fgd", ("--algorithm", "fgd"), ""),
        (EMPTIEST, ("--algorithm", EMPTIEST), ""),
        (f"sdk={EMPTIEST}", (), EMPTIEST),
    ],
)
def test_a_scheduler_is_a_profile_an_algorithm_or_a_class_of_the_sdk(name, flags, sdk, tmp_path):
    (worker, _) = options_of(a_cell(scheduler=name), tmp_path).workers
    assert (worker.flags, worker.scheduler) == (flags, sdk)


def test_a_workers_document_is_a_scheduler_too(tmp_path):
    (tmp_path / "dense.yaml").write_text(WORKER_DOCUMENT)
    (worker, _) = options_of(a_cell(scheduler=str(tmp_path / "dense.yaml")), tmp_path).workers
    assert worker.document == WORKER_DOCUMENT


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--modes", "both"], "--modes: 'both' is none of single, multi-uncoordinated"),
        (["--modes", "nowhere.py:Mode"], "--modes: nowhere.py:Mode: is no file"),
        (["--modes", f"{COMPARING}:Nothing"], f"--modes: {COMPARING}:Nothing: has no Nothing"),
        (
            ["--modes", f"{COMPARING}:NightlyBatch"],
            f"--modes: {COMPARING}:NightlyBatch: is NightlyBatch, which is no CoordinationMode",
        ),
        (["--loads", "heavy"], "--loads: 'heavy' is none of uniform"),
        (
            ["--loads", f"{COMPARING}:PulledViews"],
            f"--loads: {COMPARING}:PulledViews: is PulledViews, which is no load: it has no method trace",
        ),
        (["--loads", f"{COMPARING}:GIB"], f"--loads: {COMPARING}:GIB: is int at "),
        (["--schedulers", "fastest"], "--schedulers: fastest: is none of default, spread, binpack, random"),
        (["--schedulers", f"{COMPARING}:PulledViews"], "PulledViews: algorithm "),
        (["--schedulers", "sdk=mine"], "--schedulers: sdk=mine: 'mine' is no class; write sdk=FILE.py:Class"),
        (
            ["--schedulers", f"sdk={COMPARING}:PulledViews"],
            "is PulledViews, which has no method place(batch, snapshot, budget)",
        ),
        (["--schedulers", "nowhere.yaml"], "--schedulers: nowhere.yaml: nowhere.yaml: "),
        (
            ["--schedulers", f"sdk={EMPTIEST}", "--modes", "multi-locked"],
            "does not know how to run as multi-locked, which takes HOSS's workers",
        ),
        (
            ["--schedulers", f"sdk={EMPTIEST}", "--modes", "multi-uncoordinated"],
            "does not know how to run as multi-uncoordinated",
        ),
        (
            ["--schedulers", f"sdk={EMPTIEST}", "--decision-task-ms", "1"],
            "takes its own time; leave out the decision cost",
        ),
    ],
)
def test_what_cannot_be_compared_is_one_sentence_before_anything_is_measured(hoss, options, problem):
    result = hoss("bench", "compare", *options)
    assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("raise ValueError('too few')", "ValueError: too few"),
        ("return None", "gives no trace of nodes and pods"),
    ],
)
def test_a_load_that_raises_or_gives_no_trace_is_named(tmp_path, body, problem):
    (tmp_path / "odd.py").write_text(f"class Odd:\n    def trace(self, size, seed):\n        {body}\n")
    name = f"{tmp_path / 'odd.py'}:Odd"
    with pytest.raises(InvalidInput, match=f"^--loads: {re.escape(name)}: {problem}"):
        make_trace(a_cell(load=name), 1)


def test_schedulers_are_an_axis_and_alone_they_are_compared_with_hoss(hoss):
    cells = of_axes(Axes(modes=(Mode.SINGLE, Mode.HOSS), schedulers=("default", "fgd")))
    assert [(cell.mode, cell.scheduler) for cell in cells] == [
        ("single", "default"),
        ("single", "fgd"),
        ("multi-hoss", "default"),
        ("multi-hoss", "fgd"),
    ]


def test_a_mode_of_ones_own_may_have_one_worker():
    cells = of_axes(Axes(modes=(f"{COMPARING}:PulledViews", Mode.HOSS), workers=(1, 2)))
    assert [cell.workers for cell in cells] == [1, 2, 2]


def test_a_subclass_says_only_what_differs():
    class Endless(GeneratedLoad):
        def jobs(self, chance: random.Random):
            while True:
                yield Workload("one", pod_template({"cpu": 1000, "memory": 1}), 1)

    assert Endless().trace(LoadSize(1, 0.5), 1).pods == 16
    assert CoordinationMode().takes_other_schedulers(2)


def test_the_tutorial_shows_the_example_as_it_is():
    text = (ROOT / "docs" / "tutorials" / "comparison.md").read_text()
    assert f"```python\n{COMPARING.read_text()}```\n" in text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "usage: python -m hoss.sdk FILE.py:Class"),
        (["--name", "mine"], 2, "usage: python -m hoss.sdk FILE.py:Class"),
        (["nowhere.py:Mine", "--name", "mine"], 1, "nowhere.py:Mine: is no file\n"),
        (["json:Mine"], 1, "json:Mine: has no Mine\n"),
        (["no_such_module:Mine"], 1, "no_such_module:Mine: ModuleNotFoundError: No module named"),
        (["fractions:Fraction"], 1, "fractions:Fraction: has no method place(batch, snapshot, budget)\n"),
    ],
)
def test_a_scheduler_that_cannot_be_run_by_its_name_is_one_sentence(capsys, arguments, code, said):
    assert main_of_sdk(arguments) == code
    error = capsys.readouterr().err
    assert error.startswith(said)
    assert error.count("\n") == 1
