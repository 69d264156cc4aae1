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
- {apiVersion: v1, kind: Node, metadata: {name: empty}, status: {allocatable: {cpu: '4', memory: 8Gi, pods: '110'}}}
- {apiVersion: v1, kind: Node, metadata: {name: full}, status: {allocatable: {cpu: '1', memory: 8Gi, pods: '110'}}}
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


def test_cases_of_all_kinds_are_answered_line_by_line_and_a_bad_one_stops_nothing(explain):
    cases = [
        {"id": "q", "quantity": "1500m", "want": {}},
        {"id": "bad", "pod": {"spec": {"containers": []}}, "want": {}},
        {"id": "r", "pod": {"spec": {"containers": [{"name": "c"}]}}, "want": {}},
        {"id": "s", "nodes": [], "pod": {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}},
    ]
    result = explain("--cases", "cases", cases="\n".join(map(json.dumps, cases)))
    assert result.exit_code == 2
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["id"] for answer in answers] == ["q", "bad", "r", "s"]
    assert answers[0]["want"]["milli"] == 1500
    assert answers[1]["error"] == "spec.containers: is empty; a pod has at least one container"
    assert answers[2]["want"]["qosClass"] == "BestEffort"
    assert answers[3]["want"]["message"] == "0/0 nodes are available."
    assert "line 2" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-f", "pod"], "--nodes: is missing"),
        (["--nodes", "nodes"], "-f: is missing"),
        (["--cases", "pod", "-f", "pod"], "--cases: stands beside -f"),
        (["-f", "nodes", "--nodes", "nodes"], "holds no Pod"),
        (["-f", "pod", "--nodes", "pod"], "holds no Node"),
        (["-f", "pod", "--nodes", "absent"], "cannot be read"),
        (["--cases", "pod"], "line 1: is no JSON"),
    ],
)
def test_what_is_missing_or_wrong_is_said(explain, arguments, problem):
    result = explain(*arguments, pod=POD, nodes=NODES)
    assert result.exit_code == 2
    assert problem in result.stderr
