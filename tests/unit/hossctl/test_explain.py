"""hoss explain: a pod's nodes from files, and conformance cases as JSON lines."""

import json

import pytest

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  priority: 5
  containers: [{name: c, image: i, resources: {requests: {cpu: '1'}}}]
"""
NODES = """\
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: empty},
   status: {allocatable: {cpu: '4', memory: 8Gi, pods: '110'}}}
- {apiVersion: v1, kind: Node, metadata: {name: full},
   status: {allocatable: {cpu: '1', memory: 8Gi, pods: '110'}}}
"""
BOUND = """\
apiVersion: v1
kind: Pod
metadata: {name: old}
spec: {nodeName: full, containers: [{name: c, image: i, resources: {requests: {cpu: 500m}}}]}
status: {phase: Running}
"""


@pytest.fixture
def explain(hoss, tmp_path):
    def run(*arguments, **files):
        paths = {name: tmp_path / f"{name}.yaml" for name in files}
        for name, content in files.items():
            paths[name].write_text(content, encoding="utf-8")
        return hoss("explain", *(str(paths.get(argument, argument)) for argument in arguments))

    return run


def test_every_node_is_shown_with_its_scores_or_its_reasons(explain):
    result = explain("-f", "pod", "--nodes", "nodes", "--pods", "bound", pod=POD, nodes=NODES, bound=BOUND)
    assert result.exit_code == 0, result.stderr
    heading, first, second = result.stdout.splitlines()
    assert heading.split() == ["NODE", "TOTAL", "SCORES", "OR", "REASONS"]
    assert first.split()[0] == "empty"
    assert "NodeResourcesFit 86" in first
    assert second.split(maxsplit=2)[2] == "NodeResourcesFit: Insufficient cpu"
    assert "default/web: 1 of 2 nodes can take it" in result.stderr


def test_for_a_pod_that_fits_nowhere_it_says_who_would_have_to_go(explain):
    nodes = NODES.replace("cpu: '4'", "cpu: 500m")
    result = explain(
        "-f", "pod", "--nodes", "nodes", "--pods", "bound", "-o", "json", pod=POD, nodes=nodes, bound=BOUND
    )
    document = json.loads(result.stdout)
    assert document["message"] == "0/2 nodes are available: 2 Insufficient cpu."
    assert document["preemption"]["node"] == "full"
    assert document["preemption"]["victims"] == ["old"]


NODE = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1"}}}


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        ({"nodes": []}, "case.pod: is missing; a case about nodes has the pod that they are judged for"),
        ({"nodes": "n", "pod": {}}, "cluster.nodes: is 'n', where a list belongs"),
        (
            {"nodes": [NODE] * 2, "pod": {}},
            "case.nodes: has the node 'n' twice; give each",
        ),
        ({"quantity": 5}, "case.quantity: is 5, where a string belongs"),
    ],
    ids=["no pod", "nodes that are no list", "a node twice", "a number as a quantity"],
)
def test_a_case_that_is_none_says_what_is_wrong_and_where(explain, case, problem):
    result = explain("--cases", "cases", cases=json.dumps({"id": "bad", **case}))
    assert result.exit_code == 2
    assert problem in result.stderr
    assert problem in json.loads(result.stdout)["error"]


def test_cases_of_all_kinds_are_answered_line_by_line_and_a_bad_one_stops_nothing(explain):
    cases = [
        {"id": "q", "quantity": "1500m", "want": {}},
        {"id": "bad", "pod": {"spec": {"containers": []}}, "want": {}},
        {"id": "r", "pod": {"spec": {"containers": [{"name": "c"}]}}, "want": {}},
        {"id": "s", "nodes": [], "pod": {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}},
    ]
    lines = [*map(json.dumps, cases), "{not json", "[1]", "[" * 100_000, "", json.dumps({"id": "none"})]
    result = explain("--cases", "cases", cases="\n".join(lines))
    assert result.exit_code == 2
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["id"] for answer in answers] == ["q", "bad", "r", "s", None, None, None, "none"]
    assert [answer.get("line") for answer in answers] == [None, 2, None, None, 5, 6, 7, 9]
    assert answers[4]["error"].startswith("is no JSON: ")
    assert answers[5]["error"] == "is no case; a case is a JSON object"
    assert "a case is about one of these" in answers[7]["error"]
    assert answers[0]["want"]["milli"] == 1500
    assert answers[1]["error"] == "spec.containers: is empty; a pod has at least one container"
    assert answers[2]["want"]["qosClass"] == "BestEffort"
    assert answers[3]["want"]["message"] == "0/0 nodes are available."
    assert "line 2" in result.stderr


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("PreemptionByScheduler", "not eligible due to a terminating pod on the nominated node."),
        ("EvictionByEvictionAPI", ""),
    ],
)
def test_a_pod_that_waits_for_its_victims_says_so(explain, reason, message):
    """Of victims its status and theirs tell."""

    def made(name, **status):
        requests = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
        return {"metadata": {"name": name, "uid": name}, "spec": requests, "status": status}

    pending, leaving = made("p", nominatedNodeName="n"), made("left", phase="Running")
    pending["spec"]["priority"], leaving["spec"]["nodeName"] = 10, "n"
    leaving["metadata"]["deletionTimestamp"] = "2026-11-24T12:00:00Z"
    leaving["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": reason}]
    node = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1", "pods": "9"}}}
    case = {"id": "w", "category": "preemption", "nodes": [node], "pods": [leaving], "pod": pending}
    result = explain("--cases", "cases", cases=json.dumps(case))
    told = json.loads(result.stdout)["want"]["preemption"]
    assert message in told["message"]
    assert told["victims"] == ([] if message else ["left"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-f", "pod", "--pods", "nodes"], "--nodes: is missing"),
        (
            ["-f", "pod", "--nodes", "nodes", "--profile", "fast"],
            "--profile: 'fast' is none of spread, binpack",
        ),
        (["--nodes", "nodes"], "-f: is missing"),
        (["--cases", "pod", "-f", "pod"], "--cases: does not go with -f"),
        (["-f", "nodes", "--nodes", "nodes"], "holds no Pod"),
        (["-f", "pod", "--nodes", "pod"], "holds no Node"),
        (["-f", "pod", "--nodes", "absent"], "cannot be read"),
        (["--cases", "pod", "--profile", "binpack"], "--cases: answers with kube-scheduler's own profile"),
        (["-f", "pod", "--nodes", "nodes", "--config", "absent"], "absent: cannot be read"),
        (
            ["-f", "pod", "--nodes", "nodes", "--config", "pod"],
            "pod.yaml: apiVersion: is 'v1'; this release reads",
        ),
    ],
)
def test_what_is_missing_or_wrong_is_said(explain, arguments, problem):
    result = explain(*arguments, pod=POD, nodes=NODES)
    assert result.exit_code == 2
    assert problem in result.stderr


DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: api}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i, resources: {requests: {cpu: '1'}}}]}
"""


def many_nodes(count, cpu):
    node = (
        "- {{apiVersion: v1, kind: Node, metadata: {{name: n{}}}, "
        "status: {{allocatable: {{cpu: '{}', memory: 8Gi, pods: 9}}}}}}"
    )
    return "apiVersion: v1\nkind: List\nitems:\n" + "\n".join(node.format(i, cpu(i)) for i in range(count))


def test_what_makes_pods_is_explained_by_its_next_pod_default_spreading_included(explain):
    bound = BOUND.replace("name: old", "name: old, labels: {app: web}").replace("full", "empty")
    both = NODES.replace("cpu: '1'", "cpu: '4'")
    for name in ("empty", "full"):
        both = both.replace(
            f"{{name: {name}}}", f"{{name: {name}, labels: {{kubernetes.io/hostname: {name}}}}}"
        )
    arguments = ("-f", "d", "--nodes", "nodes", "--pods", "bound", "-o", "json")
    document = json.loads(explain(*arguments, d=DEPLOYMENT, nodes=both, bound=bound).stdout)
    assert (document["pod"], document["pods"], document["profile"]) == ("default/api", 3, "spread")
    spread = {node: scores["PodTopologySpread"] for node, scores in document["scores"].items()}
    assert spread["full"] > spread["empty"]


def test_another_profile_scores_otherwise(explain):
    def best(*more):
        arguments = ("-f", "pod", "--nodes", "nodes", "--pods", "bound", *more)
        nodes = NODES.replace("cpu: '1'", "cpu: '4'")
        return explain(*arguments, pod=POD, nodes=nodes, bound=BOUND).stdout.splitlines()[1].split()[0]

    assert (best(), best("--profile", "binpack")) == ("empty", "full")


def test_many_nodes_are_shown_by_the_best_and_by_reason_unless_all_are_asked_for(explain):
    nodes = many_nodes(40, lambda i: 4 if i < 15 else 500 if i < 20 else "100m")
    result = explain("-f", "pod", "--nodes", "nodes", pod=POD, nodes=nodes)
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:6]] == ["n15", "n16", "n17", "n18", "n19"]
    assert lines[11].startswith("10 more")
    assert lines[12].split(maxsplit=3)[3] == "NodeResourcesFit: Insufficient cpu (n20, n21, n22, ...)"
    assert lines[12].startswith("20 nodes")
    assert len(lines) == 13
    assert "40 nodes; --all-nodes shows each" in result.stderr
    everything = explain("-f", "pod", "--nodes", "nodes", "--all-nodes", pod=POD, nodes=nodes)
    assert len(everything.stdout.splitlines()) == 41


def test_an_error_of_a_manifest_names_its_place(explain):
    result = explain("-f", "d", "--nodes", "nodes", d=DEPLOYMENT.replace("cpu: '1'", "cpu: one"), nodes=NODES)
    assert result.exit_code == 2
    assert "document 1: spec.template.spec.containers[0].resources.requests" in result.stderr


PLUGINS = """
from scheduler_worker.core.framework.extension_points import Permission, PermitPlugin, PreBindPlugin
import numpy as np

class Office(PermitPlugin):
    def __init__(self, says=""):
        self._says = says

    def permit(self, pods):
        everybody, nobody = np.ones(len(pods.classes), bool), np.zeros(len(pods.classes), bool)
        if self._says == "raises":
            raise RuntimeError("nobody is in")
        if self._says:
            return Permission("it is closed", everybody if self._says == "denied" else nobody, everybody)

class Licences(PreBindPlugin):
    def pre_bind(self, pods):
        raise AssertionError("explain prepares nothing")

    def unreserve(self, pods):
        pass
"""
CONFIG = """
apiVersion: hoss.dev/v1alpha1
kind: WorkerConfig
profile: mine
profiles:
- name: mine
  plugins:
  - {name: NodeResourcesFit}
  - {name: Office, args: {says: SAYS}}
  - {name: Licences}
"""


@pytest.fixture
def offices(tmp_path, monkeypatch):
    """The plugins as a package that is installed, and a worker's document that names them."""
    about = tmp_path / "offices-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: offices\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[hoss.plugins]\nOffice = offices_of_tests:Office\nLicences = offices_of_tests:Licences\n"
    )
    (tmp_path / "offices_of_tests.py").write_text(PLUGINS)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda says: CONFIG.replace("SAYS", says)


@pytest.mark.parametrize(
    ("says", "answer", "line"),
    [
        ("''", {"answer": "goes", "reason": ""}, "permit plugin Office lets it go on empty"),
        ("waits", {"answer": "waits", "reason": "it is closed"}, "has it wait on empty: it is closed"),
        ("denied", {"answer": "denied", "reason": "it is closed"}, "denies it on empty: it is closed"),
    ],
)
def test_permit_plugins_of_a_workers_document_are_asked_and_pre_bind_plugins_named(
    explain, offices, says, answer, line
):
    arguments = ["-f", "pod", "--nodes", "nodes", "--config", "config"]
    files = {"pod": POD, "nodes": NODES, "config": offices(says)}
    document = json.loads(explain(*arguments, "-o", "json", **files).stdout)
    assert document["profile"] == "mine"
    assert document["permit"] == [{"plugin": "Office", "node": "empty", **answer}]
    assert document["preBind"] == ["Licences"]
    said = explain(*arguments, **files).stderr
    assert line in said
    assert "pre-bind plugin Licences was not asked: it prepares pods, once they are reserved" in said


def test_a_permit_plugin_that_raises_is_named(explain, offices):
    result = explain(
        "-f", "pod", "--nodes", "nodes", "--config", "config", pod=POD, nodes=NODES, config=offices("raises")
    )
    assert result.exit_code == 1
    assert "plugin Office failed: RuntimeError: nobody is in" in result.stderr
