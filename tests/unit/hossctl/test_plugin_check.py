"""`hoss plugin new` and `hoss plugin check`: templates, good plugins and good algorithms pass, and each fault
of bad ones is one sentence."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from hoss.model.placing import NO_NODE
from hossctl.checking.algorithms import check_algorithm
from hossctl.checking.clusters import generated_batches, generated_clusters
from hossctl.checking.plugins import check_plugin
from hossctl.checking.questions import Hangs, Questions, in_time
from hossctl.checking.templates import TEMPLATES
from scheduler_worker.core.framework.extension_points import (
    FilterFastPaths,
    FilterPlugin,
    Permission,
    PermitPlugin,
    PreBindPlugin,
    Reads,
    ScoreFastPaths,
    ScorePlugin,
    Unready,
)
from scheduler_worker.core.placement.algorithms import ALGORITHMS
from scheduler_worker.core.placement.run_by_run import places_by_node
from scheduler_worker.core.plugins import DEFAULT_PLUGINS, REGISTRY
from scheduler_worker.core.plugins.devices.gpu_best_fit import GpuBestFit
from scheduler_worker.core.plugins.devices.gpu_fragmentation import GpuFragmentation
from scheduler_worker.core.plugins.nodes.quiet_nodes import QuietNodes
from scheduler_worker.core.plugins.resources.balanced_allocation import BalancedAllocation

DOCS = Path(__file__).parents[3] / "docs"


def questions():
    return Questions(lambda ask: ask(), lambda: 0.0)


@pytest.fixture(scope="module")
def clusters():
    return generated_clusters(30, seed=1)


@pytest.fixture(scope="module")
def batches():
    return generated_batches(30, seed=1)


@pytest.fixture
def problems_of(clusters):
    def check(plugin, **args):
        asked = questions()
        check_plugin("Checked", plugin, args, clusters, asked)
        return asked.problems

    return check


@pytest.fixture
def problems_with(batches):
    def check(algorithm):
        asked = questions()
        check_algorithm(algorithm, batches, asked)
        return asked.problems

    return check


# BalancedAllocation saves the time to clip the scores of nodes without room. A plugin from outside may not.
OF_HOSS = {plugin.name for plugin in DEFAULT_PLUGINS} - {BalancedAllocation.name}


@pytest.mark.parametrize("name", [*sorted(OF_HOSS), GpuBestFit.name, GpuFragmentation.name, QuietNodes.name])
def test_a_plugin_of_hoss_passes(name, problems_of):
    assert problems_of(REGISTRY._factories[name]) == []


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_of_hoss_passes(name, problems_with):
    assert problems_with(ALGORITHMS[name]) == []


# Plugins, each with one fault.


class Scores(ScorePlugin):
    """Half of the highest score for every node; what others are made of."""

    def score(self, pod, nodes):
        return np.full(nodes.count, 50.0)


class Raises(Scores):
    def score(self, pod, nodes):
        return 100 // 0


class WrongShape(Scores):
    def score(self, pod, nodes):
        return np.zeros(3)


class NotFinite(Scores):
    def score(self, pod, nodes):
        return np.full(nodes.count, np.nan)


class Broken(Scores):
    def score(self, pod, nodes):
        return np.full(nodes.count, 12.5)


class OutOfRange(Scores):
    def score(self, pod, nodes):
        return np.full(nodes.count, 101.0)


class Counts(Scores):
    calls = 0

    def score(self, pod, nodes):
        self.calls += 1
        return super().score(pod, nodes) + self.calls % 2


class DependsOnOthers(Scores):
    def score(self, pod, nodes):
        free = nodes.allocatable[0] - nodes.requested[0]
        return np.floor(100 * free / free.max(initial=1)).clip(0, 100)


class Writes(Scores):
    def score(self, pod, nodes):
        nodes.requested[0] += 1
        return super().score(pod, nodes)


class ScoresOneOtherwise(Scores):
    fast_score = ScoreFastPaths(lambda _pod, _node: 51)


class ScoresSideBySideOtherwise(Scores):
    fast_score = ScoreFastPaths(side_by_side=lambda _pods, nodes: np.full(nodes.at.shape, 51.0))


class ScoresSideBySideInOneRow(Scores):
    fast_score = ScoreFastPaths(side_by_side=lambda _pods, nodes: np.full(nodes.at.size, 50.0))


class Indexes(FilterPlugin):
    filter_reads = Reads.SPECS

    def filter(self, pod, nodes):
        return (nodes.at % 2).astype(np.int64)


class NeverCalled(FilterPlugin):
    def filter_state(self, spec, cache):
        return None


class Filters(FilterPlugin):
    reason = "node(s) were half full"

    def filter(self, pod, nodes):
        return nodes.requested[0] < nodes.allocatable[0] // 2


class WithoutRefusals(Filters):
    def refusals(self, pod, nodes):
        return None


class WantsFuller(Filters):
    def filter(self, pod, nodes):
        return nodes.requested[0] > 0


class PassesOneOtherwise(Filters):
    fast_filter = FilterFastPaths(lambda _pod, _node: True)


class PassesSideBySideOtherwise(Filters):
    fast_filter = FilterFastPaths(side_by_side=lambda _pods, _nodes: None)


class LooksAtAmounts(FilterPlugin):
    filter_reads = Reads.SPECS

    def filter(self, pod, nodes):
        return np.full(nodes.count, pod.request[0] % 2 == 0)


class Normalizes(ScorePlugin):
    score_reads = Reads.SPECS

    def score(self, pod, nodes):
        return np.zeros(nodes.count, np.int64)

    def normalize_score(self, raw, highest):
        return 100 * raw / highest  # nothing says that it is more than 0


class Negative(ScorePlugin):
    score_reads = Reads.SPECS

    def score(self, pod, nodes):
        return np.full(nodes.count, -1)


class StateOfItsOwn(FilterPlugin):
    filter_reads = Reads.PODS

    def filter_state(self, spec, cache):
        return self


class Gates(FilterPlugin):
    def pre_filter(self, spec):
        return "not today"


class Permits(PermitPlugin):
    def permit(self, pods):
        return Permission("not on the first", pods.nodes.at == 0)


class PermitsOne(PermitPlugin):
    def permit(self, pods):
        return Permission("no", np.zeros(1, np.bool_))


class PermitsByWord(PermitPlugin):
    def permit(self, pods):
        return "yes"


class PreparesOne(PreBindPlugin):
    def pre_bind(self, pods):
        return Unready("no", np.zeros(1, np.bool_))


class PreparesByWord(PreBindPlugin):
    def pre_bind(self, pods):
        return "yes"


class CannotUndoTwice(PreBindPlugin):
    def __init__(self):
        self.taken = set()

    def pre_bind(self, pods):
        self.taken.update(uid.tobytes() for uid in pods.uids)

    def unreserve(self, pods):
        for uid in pods.uids:
            self.taken.remove(uid.tobytes())


class NeedsAnArgument(Scores):
    def __init__(self, label):
        self.label = label


def test_plugins_without_fault_pass(problems_of):
    assert problems_of(Scores) == problems_of(Filters) == problems_of(Permits) == []
    assert problems_of(NeedsAnArgument, label="energy") == []


@pytest.mark.parametrize(
    ("plugin", "problem"),
    [
        (
            Raises,
            r"score raised ZeroDivisionError: .* \(line \d+ of test_plugin_check.py\) \(asked about small pods",
        ),
        (WrongShape, r"score answered with shape \(3,\) for 0 nodes"),
        (NotFinite, "score answered with nan, and scores are finite"),
        (Broken, "score answered with 12.5, and scores are whole numbers"),
        (OutOfRange, "score answered with 101, and scores go from 0 to 100"),
        (Counts, "score gave two answers to the same question"),
        (
            DependsOnOthers,
            r"score answered with \d+.0 for node node-\d+ alone, and with \d+.0 for it among 30",
        ),
        (Writes, "score raised ValueError: .*read-only"),
        (ScoresOneOtherwise, "fast_score.one_node answered with 51 for node node-00000, and score with 50"),
        (
            ScoresSideBySideOtherwise,
            "fast_score.side_by_side answered with 51.0 for node node-00000, and score with 50",
        ),
        (
            ScoresSideBySideInOneRow,
            r"fast_score.side_by_side answered with shape \(\d+,\) for 2 pods on \d+ nodes each",
        ),
        (
            PassesSideBySideOtherwise,
            r"fast_filter.side_by_side answered with True for node node-\d+, and filter with False",
        ),
        (Indexes, "filter answered with int64, and a mask is of bool"),
        (NeverCalled, "filter_state is never called: filter_reads is Reads.REQUESTED, and not Reads.PODS"),
        (LooksAtAmounts, "filter answered otherwise for a pod with other requests, and reads SPECS alone"),
        (StateOfItsOwn, "filter_state answered with StateOfItsOwn, which derives not from FilterState"),
        (WithoutRefusals, r"refusals has no reason against node node-\d+, which did not pass"),
        (WantsFuller, r"filter refuses node node-\d+ and lets it pass with 5 more pods on it"),
        (PassesOneOtherwise, r"fast_filter.one_node answered with True for node node-\d+, and filter with 0"),
        (Normalizes, "normalize_score answered with nan, and scores are finite"),
        (Negative, "score answered with -1, and scores go from 0"),
        (Gates, "pre_filter answered with str, and not with a set of node names, a Rejection or None"),
        (PermitsOne, r"permit answered with shape \(1,\) for [07] nodes"),
        (PermitsByWord, "permit answered with str, and not with a Permission or None"),
        (PreparesOne, r"pre_bind answered with shape \(1,\) for [07] nodes"),
        (PreparesByWord, "pre_bind answered with str, and not with Unready or None"),
        (CannotUndoTwice, "unreserve raised KeyError"),
        (NeedsAnArgument, "the class raised TypeError: .*'label'"),
    ],
)
def test_a_plugins_fault_is_one_sentence(plugin, problem, problems_of):
    with np.errstate(all="ignore"):
        found = problems_of(plugin)
    assert len(found) == 1
    assert re.match(problem, found[0])


# Algorithms, each with one fault.


class FillsInOrder:
    def place(self, batch, snapshot, budget):
        nodes, free = np.full(batch.pods, NO_NODE), snapshot.free
        for run in batch.runs:
            places = places_by_node(run, free)
            chosen = np.repeat(np.arange(len(places)), places)[: run.count]
            nodes[run.first : run.first + len(chosen)] = chosen
            free -= run.request[:, None] * np.bincount(chosen, minlength=len(places))
        return nodes


class Overfills:
    def place(self, batch, snapshot, budget):
        nodes = np.full(batch.pods, NO_NODE)
        for run in batch.runs:
            if run.admitted.any():
                nodes[run.first : run.first + run.count] = run.admitted.argmax()
        return nodes


class NamesWhatIsNotThere:
    def place(self, batch, snapshot, budget):
        return np.full(batch.pods, len(snapshot.specs))


class Ignores:
    def place(self, batch, snapshot, budget):
        return np.zeros(batch.pods, np.int64)


class Fractions(FillsInOrder):
    def place(self, batch, snapshot, budget):
        return super().place(batch, snapshot, budget) / 1


class Pairs:
    def place(self, batch, snapshot, budget):
        return np.zeros((batch.pods, 2), np.int64)


class Draws(FillsInOrder):
    rng = np.random.default_rng(1)  # of all objects

    def place(self, batch, snapshot, budget):
        nodes = super().place(batch, snapshot, budget)
        nodes[self.rng.random(len(nodes)) < 0.5] = NO_NODE
        return nodes


class WritesColumns:
    def place(self, batch, snapshot, budget):
        snapshot.requested[0] += 1


class LeavesOut:
    def place(self, batch, snapshot, budget):
        return np.full(batch.pods, NO_NODE)


@pytest.mark.parametrize(
    ("algorithm", "problem"),
    [
        (Overfills, "place overfilled node node-0"),
        (NamesWhatIsNotThere, "place placed pod 0 on node 1, and there are 1 nodes"),
        (Ignores, "place placed a pod of .* which does not admit it"),
        (Fractions, "place answered with float64: node indexes are whole numbers"),
        (Pairs, r"place answered with shape \(1, 2\) for 1 pods"),
        (Draws, "place gave another answer in another object of the class"),
        (WritesColumns, "place raised ValueError: .*read-only"),
    ],
)
def test_an_algorithms_fault_is_a_sentence(algorithm, problem, problems_with):
    found = problems_with(algorithm)
    assert any(re.match(problem, text) for text in found), found


def test_an_algorithm_that_leaves_pods_out_is_warned_and_passes(batches):
    asked = questions()
    check_algorithm(LeavesOut, batches, asked)
    assert asked.problems == []
    assert re.match(r"place left out \d+ pods or more that fit somewhere", asked.warnings[0])


def test_slow_answers_are_warned_of(clusters, batches):
    now = iter(range(10**9))
    asked = Questions(lambda ask: ask(), lambda: float(next(now)))
    check_plugin("Checked", Scores, {}, clusters, asked)
    check_algorithm(FillsInOrder, batches, asked)
    assert asked.problems == []
    assert asked.warnings == [
        "score takes 1.00 s for one sort of pods",
        "place takes 1.00 s, and its budget is 0.1 s",
    ]


# The command.

HEAD = "import numpy as np\n"
BASE = "from scheduler_worker.core.framework.extension_points import ScorePlugin"


def check(hoss, tmp_path, source, *options):
    path = tmp_path / "mine.py"
    path.write_text(HEAD + source)
    return hoss("plugin", "check", str(path), "--count", "20", *options)


def test_what_hangs_is_named_and_not_asked_again(clusters, batches):
    def hanging_at(number):
        calls = iter(range(10**9))

        def call(ask):
            if next(calls) >= number:
                raise Hangs(10)
            return ask()

        return Questions(call, lambda: 0.0)

    asked = hanging_at(2)  # after the class was made twice
    check_algorithm(FillsInOrder, batches, asked)
    assert asked.problems == ["place has not answered for 10 s (asked about a small pod (1) on 1 empty node)"]
    asked = hanging_at(1)
    check_plugin("Checked", Scores, {}, clusters, asked)
    assert asked.problems == ["score has not answered for 10 s (asked about small pods on no node)"]
    assert asked.asked == 2


def test_a_call_ends_at_its_time_limit():
    with pytest.raises(Hangs, match=r"has not answered for 0\.05 s"):
        in_time(0.05)(threading.Event().wait)
    assert in_time(60)(lambda: 7) == 7
    with pytest.raises(SystemExit):
        in_time(60)(sys.exit)


def test_an_import_that_hangs_is_bad_input(hoss, tmp_path):
    done = check(hoss, tmp_path, "__import__('threading').Event().wait()", "--timeout", "0.2")
    assert done.exit_code == 2
    assert "mine.py: its import has not answered for 0.2 s" in done.stderr


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("1 / 0", r"its import raised ZeroDivisionError: division by zero \(line 2 of mine.py\)"),
        ("raise SystemExit(3)", r"its import raised SystemExit: 3"),
        (
            "class Other: pass",
            "mine.py: has no class with a method place or derived from one of FilterPlugin",
        ),
        (
            f"{BASE}\nclass A(ScorePlugin): pass\nclass B(A): pass",
            "mine.py: has A, B; name one of them as FILE.py:Class",
        ),
    ],
)
def test_what_cannot_be_imported_or_is_no_plugin_is_bad_input(hoss, tmp_path, source, problem):
    done = check(hoss, tmp_path, source)
    assert done.exit_code == 2
    assert re.search(problem, done.stderr)
    assert "Traceback" not in done.stderr


def test_targets_are_files_modules_and_names(hoss):
    here = Path(__file__)
    for target in (
        f"{here}:FillsInOrder",
        "scheduler_worker.core.placement.algorithms:BestFitPlacement",
        "random",
    ):
        document = json.loads(hoss("plugin", "check", target, "--count", "20", "-o", "json").stdout)
        assert (document["kind"], document["methods"], document["problems"]) == ("algorithm", ["place"], [])
        assert list(document["milliseconds"]) == ["place"]
    for target, problem in (
        ("nothing-like-it", "is no entry point, of which there are best-fit"),
        ("no_such_module:Class", "its import raised ModuleNotFoundError: No module named 'no_such_module'\n"),
        ("hoss.model.placing:Class", "hoss.model.placing: has no Class"),
        ("no_such_file.py", "no_such_file.py: is no file"),
    ):
        done = hoss("plugin", "check", target)
        assert (done.exit_code, problem in done.stderr) == (2, True), done.stderr


def test_a_plugins_name_must_be_its_own(hoss):
    done = hoss(
        "plugin", "check", "scheduler_worker.core.plugins.devices.gpu_best_fit:GpuBestFit", "--count", "20"
    )
    assert done.exit_code == 1
    assert done.stderr == "error: the name 'GpuBestFit' is a plugin already; choose another name\n"


def test_the_plugin_of_the_document_passes_with_its_argument_and_nodes(hoss, tmp_path):
    source, spare, permits, pre_binds = re.findall(
        r"```python\n(.*?)```", (DOCS / "plugins.md").read_text("utf-8"), flags=re.DOTALL
    )
    (tmp_path / "nodes.yaml").write_text(
        "apiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {power: green}}\n"
        "status: {allocatable: {cpu: 8, memory: 32Gi, pods: 110}}\n"
    )
    options = ("--args", '{"label": "power"}', "-f", str(tmp_path / "nodes.yaml"))
    done = check(hoss, tmp_path, source, *options)
    assert done.exit_code == 0, done.stderr
    assert "plugin GreenEnergy" in done.stdout
    done = check(hoss, tmp_path, spare, "--args", '{"percent": 20}')
    assert (done.exit_code, "plugin SpareMemory" in done.stdout) == (0, True), done.stderr
    assert check(hoss, tmp_path, permits, "--args", '{"at_once": 3}').exit_code == 0
    (tmp_path / "licences").mkdir()
    licences = json.dumps({"directory": str(tmp_path / "licences"), "licences": 3})
    assert check(hoss, tmp_path, pre_binds, "--args", licences).exit_code == 0
    assert not list((tmp_path / "licences").iterdir()), "all were given back"
    for wrong in ("[1]", "{"):
        assert check(hoss, tmp_path, source, "--args", wrong).exit_code == 2


def _saved_page(tutorial: str) -> str:
    """The module that the tutorial has its reader save: the class, and a study that runs as a script."""
    (source,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", tutorial, flags=re.DOTALL)
        if 'if __name__ == "__main__":' in block
    ]
    return source


def test_the_classes_of_the_tutorials_pass(hoss, tmp_path):
    tutorial = (DOCS / "tutorials" / "algorithm.md").read_text("utf-8")
    source = _saved_page(tutorial)
    assert check(hoss, tmp_path, source).exit_code == 0
    assert check(hoss, tmp_path, f"{source}\nalgorithm = BalancedShape\n").exit_code == 0  # has two names
    (cards,) = re.findall(r"```python\n(from hoss.model.fit .*?)```", tutorial, flags=re.DOTALL)
    imports = source.partition("\nfrom hoss.sim")[0]
    done = check(hoss, tmp_path, f"{imports}\n{cards}")
    assert done.exit_code == 0
    assert "left out" not in done.stderr
    tutorial = (DOCS / "tutorials" / "plugin.md").read_text("utf-8")
    assert check(hoss, tmp_path, _saved_page(tutorial), "--args", '{"percent": 20}').exit_code == 0
    assert hoss("plugin", "check", str(DOCS.parent / "examples" / "emptiest_first.py")).exit_code == 0


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_template_passes_as_it_stands_and_is_not_overwritten(kind, hoss, tmp_path):
    done = hoss("plugin", "new", kind, "most-free")
    assert done.exit_code == 0
    assert done.stderr == "wrote most_free.py; check it with: hoss plugin check most_free.py\n"
    (tmp_path / "most_free.py").write_text((tmp_path / "most_free.py").read_text() + "\n# mine\n")
    checked = hoss("plugin", "check", "most_free.py", "--count", "20", "-o", "json")
    document = json.loads(checked.stdout)
    assert (document["name"], document["problems"], document["warnings"]) == ("MostFree", [], [])
    again = hoss("plugin", "new", kind, "most_free")
    assert (again.exit_code, again.stderr) == (
        2,
        "error: most_free.py: is there already; choose another name\n",
    )
    assert "# mine" in (tmp_path / "most_free.py").read_text()


@pytest.mark.thorough
def test_templates_are_typed_for_users_of_the_installed_package(hoss, tmp_path):
    for kind in TEMPLATES:
        hoss("plugin", "new", kind, f"my-{kind}")
    options = ("--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"))
    environment = {**os.environ, "MYPYPATH": str(DOCS.parent)}  # an editable install is no path to mypy
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "."],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    # Generated stubs are no part of it: where HOSS is installed, mypy reports nothing of them.
    assert not [line for line in done.stdout.splitlines() if line.startswith("my_")], done.stdout
    assert "4 source files" in done.stdout


@pytest.mark.parametrize(
    ("kind", "name", "problem"),
    [
        ("filter", "mine", "KIND: is 'filter'; it is one of plugin, pre-bind, algorithm, scheduler"),
        ("plugin", "../mine", "NAME: is '../mine'; write it as green-energy or green_energy"),
    ],
)
def test_a_template_of_no_kind_or_with_a_strange_name_is_bad_input(kind, name, problem, hoss):
    done = hoss("plugin", "new", kind, name)
    assert (done.exit_code, done.stderr) == (2, f"error: {problem}\n")
