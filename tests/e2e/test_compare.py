"""bench compare on real services: each mode is what it says."""

import re
import shlex
from pathlib import Path

import pytest

from hossctl.choices import ON_KUBERNETES, Mode
from hossctl.compare.document import Comparison

# Loads of which pods only come, each by itself: every mode of the first test has one of them.
OF_ONE_KIND = ("openb", "unique", "constrained", "skewed")
ROOT = Path(__file__).parents[2]
COMPARING = ROOT / "examples" / "comparing.py"
EMPTIEST = f"{ROOT / 'examples' / 'emptiest_first.py'}:EmptiestFirst"
# Workers that never hear of each other, whose proposals nobody checks. Each fills a node before it takes
# another.
UNAWARE = """
from hossctl.compare.modes import CoordinationMode

class Unaware(CoordinationMode):
    unchecked = True

    def worker_flags(self, worker, workers, directory):
        return ("--profile", "binpack", "--sync", "refusal")
"""
SLOW = ("--decision-job-ms", "10", "--decision-task-ms", "1")


def compared(hoss, *options, code=0):
    found = hoss("bench", "compare", "--repeat", "1", *options, "-o", "json", code=code)
    return Comparison.model_validate_json(found.stdout)


def test_every_mode_is_what_it_says(hoss, tmp_path):
    file = tmp_path / "compare.json"
    options = ("--nodes", "40", "--fills", "1.0", "--decision-job-ms", "100")
    found = compared(hoss, *options, "--json", str(file))
    assert Comparison.model_validate_json(file.read_text()) == found
    assert found.finished
    assert {"hoss", "numpy"} < found.machine.versions.keys()
    assert {"redis-server", "valkey-server"} & found.machine.versions.keys()
    runs = {run.cell.mode: run for run in found.runs}
    assert runs.keys() == set(Mode) - set(ON_KUBERNETES)
    for mode, run in runs.items():
        assert run.complete
        assert run.pods == run.bound + run.unschedulable
        assert set(run.latency) == {"queued", "deciding", "committing", "total"}
        assert set(run.services) == {"redis", "resolvers", "dispatcher", "workers"}
        assert len(run.workers) == (1 if mode == Mode.SINGLE else 4)
        assert sum(worker.bound for worker in run.workers) == run.bound
        assert run.wasted_decisions == run.proposals - run.bound
        if mode == Mode.UNCOORDINATED:
            # How often its workers meet depends on how soon they hear of each other. The next test makes
            # them.
            assert run.conflicts == 0
            assert (run.overcommit.nodes > 0) == (run.overcommit.worst > 1) == bool(run.violations)
        else:
            assert run.overcommit.nodes == 0
            assert run.overcommit.worst <= 1
            assert run.violations == []
    assert runs[Mode.LOCKED].conflicts == runs[Mode.PARTITIONED].conflicts == runs[Mode.SINGLE].conflicts == 0
    # With every node to be full to the last pod, one worker's share is full while another's has room.
    assert runs[Mode.PARTITIONED].unschedulable_with_room > 0
    assert runs[Mode.HOSS].utilisation["cpu"] > runs[Mode.PARTITIONED].utilisation["cpu"]


def test_workers_that_nobody_checks_and_that_hear_of_nothing_overcommit_nodes_and_the_run_says_so(
    hoss, tmp_path
):
    file = tmp_path / "unaware.py"
    file.write_text(UNAWARE)
    options = ("--modes", f"{file}:Unaware", "--workers", "2", "--nodes", "20", "--fills", "1.0")
    (run,) = compared(hoss, *options, "--decision-job-ms", "100").runs
    assert [worker.bound > 0 for worker in run.workers] == [True, True]
    assert (run.bound, run.conflicts, run.validated) == (run.pods, 0, False)
    assert run.overcommit.nodes > 0
    assert run.overcommit.worst > 1
    assert run.violations[0].startswith("invariant 1: ")


@pytest.mark.parametrize(
    "load",
    ["gangs", "churn", *(pytest.param(load, marks=pytest.mark.thorough) for load in OF_ONE_KIND)],
)
def test_hoss_places_every_load_without_overcommitting_a_node(hoss, load):
    (run,) = compared(hoss, "--modes", "multi-hoss", "--loads", load, "--nodes", "40", "--fills", "0.7").runs
    assert run.bound == run.pods > 0
    assert run.overcommit.nodes == 0
    assert run.violations == []
    assert run.jobs_with_conflicts <= run.jobs
    if load == "churn":
        assert run.utilisation["cpu"] < 0.75 * run.pods / 100  # what came is more than ever was there
        assert run.seconds > 4


def test_slow_schedulers_decide_one_at_a_time_only_under_one_lock(hoss):
    options = (
        "--modes",
        "single,multi-locked,multi-hoss",
        "--workers",
        "2",
        "--nodes",
        "20",
        "--fills",
        "0.8",
        *SLOW,
    )
    single, locked, together = compared(hoss, *options).runs
    assert [run.cell.mode for run in (single, locked, together)] == [Mode.SINGLE, Mode.LOCKED, Mode.HOSS]
    assert {run.bound for run in (single, locked, together)} == {single.pods}
    # One after the other takes what all decisions cost, at 1 ms a pod: of one worker, and of two that need
    # the lock to decide.
    for run in (single, locked):
        assert run.seconds >= 0.99 * run.pods / 1000
    # Under the lock no two decide at once; without it both do, and how much sooner they are through is a
    # benchmark's to say.
    assert sum(worker.busyness for worker in locked.workers) <= 1.05
    assert all(worker.bound for worker in together.workers)


@pytest.mark.thorough
@pytest.mark.parametrize("load", ["openb", "unique"])
def test_an_algorithm_of_ones_own_is_compared_with_fgd_best_fit_and_the_default_in_one_command(
    hoss, tmp_path, load
):
    """The tutorial's command, on a small load."""
    tutorial = (ROOT / "docs" / "tutorials" / "comparison.md").read_text().replace("\\\n", "")
    (written,) = re.findall(r"^hoss bench compare .*(--schedulers .*)$", tutorial, re.MULTILINE)
    options = shlex.split(written.replace("examples/emptiest_first.py:EmptiestFirst", EMPTIEST))
    small = [
        "--loads",
        load,
        "--nodes",
        "6",
        "--fills",
        "0.6",
        "--workers",
        "2",
        "--out",
        str(tmp_path / "mine"),
    ]
    found = compared(hoss, *options, *small)
    runs = {run.cell.scheduler: run for run in found.runs}
    assert list(runs) == ["default", "fgd", "best-fit", "algorithm=fgd", EMPTIEST]
    assert len({run.pods for run in found.runs}) == 1
    for run in found.runs:
        assert (run.cell.mode, run.cell.load) == (Mode.HOSS, load)
        assert run.pods == run.bound + run.unschedulable
        assert (run.overcommit.nodes, run.violations, run.validated) == (0, [], True)
        assert 0.5 < max(run.utilisation.values()) <= 1.0
        assert (1 <= run.quality.nodes_in_use <= 6, run.quality.moves) == (True, 0)
        assert 0.5 < run.quality.fairness <= 1.0
        assert (run.quality.gpu_fragmentation is None) == (load == "unique")
    # Who packs leaves the nodes less even than who takes the emptiest, whatever was refused in between.
    if load == "unique":
        assert runs[EMPTIEST].quality.spread["cpu"] < runs["best-fit"].quality.spread["cpu"]
    else:
        assert (
            runs["best-fit"].quality.spread["nvidia.com/gpu"]
            > runs["default"].quality.spread["nvidia.com/gpu"]
        )
        # FGD minds the pieces of cards and not how even they lie: on six nodes its cards may lie as even as
        # the default's, its cpus never do.
        assert runs["fgd"].quality.spread["cpu"] > runs["default"].quality.spread["cpu"]
    text = hoss("bench", "report", str(tmp_path / "mine" / "comparison.json")).stdout
    assert f"Between schedulers (HOSS, {load}, 6 nodes" in text.replace("\n", " ")


def test_modes_loads_and_schedulers_of_ones_own_run_beside_those_of_hoss(hoss):
    modes, load = f"multi-hoss,{COMPARING}:PulledViews", f"{COMPARING}:NightlyBatch"
    small = ("--loads", load, "--workers", "2", "--nodes", "5")
    pushed, pulled = compared(hoss, "--modes", modes, *small).runs
    assert (pushed.pods, pushed.cell.load) == (pulled.pods, load)
    assert pulled.cell.mode == f"{COMPARING}:PulledViews"
    for run in (pushed, pulled):
        assert run.bound + run.unschedulable == run.pods > 0
        assert (run.overcommit.nodes, run.violations) == (0, [])
    (own,) = compared(hoss, "--schedulers", f"sdk={EMPTIEST}", *small).runs
    assert own.bound + own.unschedulable == own.pods == pushed.pods
    assert [worker.name for worker in own.workers] == ["w1", "w2"]
    assert sum(worker.bound for worker in own.workers) == own.bound > 0
    assert (own.overcommit.nodes, own.violations) == (0, [])


def test_a_trace_is_replayed_in_time(hoss, tmp_path):
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\na,8000,16000,0,\nb,8000,16000,0,\n")
    rows = [f"p{i},1000,1000,0,0,,LS,{100 + i},{130 + i}" for i in range(20)]
    header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time\n"
    pods.write_text(header + "\n".join(rows) + "\n")
    options = (
        "--trace-nodes",
        str(nodes),
        "--trace-pods",
        str(pods),
        "--speedup",
        "20",
        "--modes",
        "multi-hoss",
        "--workers",
        "2",
    )
    (run,) = compared(hoss, *options).runs
    assert (run.cell.load, run.cell.nodes, run.cell.pods) == ("trace", 2, 20)
    assert run.bound + run.unschedulable == 20
    assert run.bound >= 16
    assert run.seconds > 0.5  # the pods that have room come over most of a second
    assert run.utilisation == {}  # all have gone
