"""The rebalance controller of a local platform, as a process beside the others."""

import json
import urllib.request

import pytest
from e2e.loads import BEFORE_PREEMPTION
from waiting import wait_until

NODE = """\
apiVersion: v1
kind: Node
metadata: {{name: {name}}}
status: {{allocatable: {{cpu: "10", memory: 10Gi, pods: "20"}}}}
"""
JOB = """\
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: c, image: i, resources: {requests: {cpu: 2, memory: 1Gi}}}]
"""
POLICY = """\
apiVersion: hoss.dev/v1alpha1
kind: RebalancePolicy
goals: [{goal: spread}]
passSeconds: 1
budget: {movesPerHour: 1, movesPerPass: 1}
"""
URGENT = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  priority: 10
  containers: [{{name: c, image: i, resources: {{requests: {{cpu: {cpu}}}}}}}]
"""
PLATFORM = """\
apiVersion: hoss.dev/v1alpha1
kind: Platform
pools: [{name: more, count: 0}]
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    found = tmp_path_factory.mktemp("files")
    nodes = "---\n".join(NODE.format(name=f"n{i}") for i in range(2))
    for name, text in (("nodes", nodes), ("job", JOB), ("policy", POLICY), ("platform", PLATFORM)):
        (found / f"{name}.yaml").write_text(text)
    return found


@pytest.fixture(scope="module")
def platform(shared_hoss, files):
    """Two nodes, of which one has all four pods. The controller is paused."""
    hoss = shared_hoss
    hoss("up", "--nodes", "0", "--workers", "1", "--rebalance", str(files / "policy.yaml"))
    hoss("rebalance", "pause")
    hoss("nodes", "add", "-f", str(files / "nodes.yaml"))
    hoss("cordon", "node", "n1")
    hoss("submit", "-f", str(files / "job.yaml"), "--wait")
    hoss("uncordon", "node", "n1")
    return hoss


def nodes_of_pods(platform):
    return sorted(pod["node"] for pod in platform.json("get", "pods")["items"])


def told(platform):
    return platform.json("rebalance", "status")["controller"]


def test_the_controller_moves_what_its_budget_allows_and_nothing_while_it_is_paused(platform):
    """In order, on one platform: paused, at work, and ended by `hoss apply`."""
    wait_until(lambda: told(platform)["text"].startswith("paused by hand"), "the controller to be paused")
    assert nodes_of_pods(platform) == ["n0"] * 4
    assert platform.json("rebalance", "resume")["controller"]["paused"] is False
    wait_until(lambda: "the hour's 1 moves are made" in told(platform)["text"], "the budget to be spent")
    assert nodes_of_pods(platform) == ["n0", "n0", "n0", "n1"]
    run = platform.json("rebalance", "status")
    assert (run["purpose"], run["byController"], run["moved"]) == ("policy: spread", True, 1)
    assert run["controller"]["movesLastHour"] == run["controller"]["movesLastDay"] == 1
    assert "1 of 1 moves of the hour" in platform("rebalance", "status").stdout
    platform("audit")


def test_a_second_controller_is_refused(platform, files):
    refused = platform("rebalance", "controller", "-f", str(files / "policy.yaml"), code=2)
    assert "another rebalance controller is at work" in refused.stderr


def test_its_metrics_have_what_it_measured(platform):
    state = json.loads((platform.home / "platform.json").read_text())
    [address] = [p["metrics"] for p in state["processes"] if p["name"] == "rebalance-controller"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as reply:
        shown = reply.read().decode()
    assert 'hoss_fragmentation_free{pool="all",resource="cpu"} 12000.0' in shown
    assert 'hoss_fragmentation_usable{mix="usual",pool="all",resource="cpu"} 12000.0' in shown
    assert 'hoss_rebalance_moves_total{goal="spread"} 1.0' in shown


def test_a_controller_that_is_started_anew_counts_the_moves_of_the_one_before(platform, files):
    """`hoss apply` ends the controller where the document names none, and starts it where one is named."""
    document = files / "platform.yaml"
    dry = platform.json("apply", "-f", str(document), "--dry-run")
    assert dry["rebalancingChanges"]
    platform("apply", "-f", str(document))
    assert "rebalance-controller" not in platform.processes()
    assert told(platform)["ended"]
    document.write_text(PLATFORM + "rebalance: policy.yaml\n")
    platform("apply", "-f", str(document))
    assert "rebalance-controller" in platform.processes()
    assert told(platform)["movesLastHour"] == 1
    assert platform("apply", "-f", str(document)).stderr.startswith("nothing changes")


@pytest.mark.thorough
def test_pods_are_moved_before_any_is_preempted_and_preempted_where_no_move_helps(platform, files):
    """In order, on one platform. n0 has three pods of two cpu, and n1 has one."""
    (files / "policy.yaml").write_text(BEFORE_PREEMPTION)
    platform("apply", "-f", str(files / "platform.yaml"))
    wait_until(lambda: told(platform)["preemptionWaitSeconds"] == 600, "the controller to want it")
    assert "pods wait up to 600 s for moves" in platform("rebalance", "status").stdout

    def submit(name, cpu):
        (files / "urgent.yaml").write_text(URGENT.format(name=name, cpu=cpu))
        platform("submit", "-f", str(files / "urgent.yaml"))
        return wait_until(lambda: platform.json("get", "pod", name).get("node"), f"pod {name} to be bound")

    assert submit("first", 9) == "n1"
    wait_until(lambda: platform.json("rebalance", "status")["state"] == "Done", "the end of the run")
    run = platform.json("rebalance", "status")
    assert (run["purpose"], run["moved"], run["moves"][0]["from"]) == ("policy: fit-pending", 1, "n1")
    assert nodes_of_pods(platform) == ["n0"] * 4 + ["n1"]
    assert submit("second", 5) == "n0"
    wait_until(lambda: len(platform.json("get", "pods", "--waiting")["items"]) == 2, "the victims to wait")
    platform("audit")
