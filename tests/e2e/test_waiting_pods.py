"""Pods that wait, as a user meets them: explain and ungate on a local platform."""

import time

from waiting import wait_until

GIANT = """\
apiVersion: v1
kind: Pod
metadata: {name: giant}
spec:
  containers: [{name: c, image: i, resources: {requests: {cpu: 500}}}]
"""
GATED = """\
apiVersion: v1
kind: Pod
metadata: {name: gated}
spec:
  schedulingGates: [{name: a.io/quota}, {name: b.io/data}]
  containers: [{name: c, image: i}]
"""


def test_explain_says_which_queue_since_when_how_often_and_what_would_help(hoss, tmp_path):
    hoss("up", "--nodes", "3", "--workers", "1")
    (tmp_path / "giant.yaml").write_text(GIANT)
    before = time.time() * 1000
    hoss("submit", "-f", str(tmp_path / "giant.yaml"), "--wait", code=1)
    told = hoss.json("explain", "pod", "giant")
    assert (told["phase"], told["attempts"], told["queue"]["name"]) == ("Unschedulable", 1, "unschedulable")
    queue = told["queue"]
    assert before <= queue["sinceUnixMs"] <= queue["notBeforeUnixMs"] <= queue["sinceUnixMs"] + 1001
    assert queue["atLatestUnixMs"] - queue["sinceUnixMs"] in range(299_990, 300_010)
    assert "NodeResourcesFit" in queue["refusedBy"]
    assert any(s.startswith("a node with room for it (500 cpu)") for s in told["wouldHelp"])
    assert told["nodes"]["message"] == told["reason"]
    assert len(told["nodes"]["reasons"]) == 3
    people = hoss("explain", "pod", "giant").stdout
    assert "unschedulable, for " in people
    assert "a node with room for it (500 cpu)" in people
    assert "nobody" in hoss("explain", "pod", "nobody", code=1).stderr
    assert "NAME" in hoss("explain", "pod", code=2).stderr


def test_gates_are_removed_one_by_one_or_all_together(hoss, tmp_path):
    hoss("up", "--nodes", "3", "--workers", "1")
    (tmp_path / "gated.yaml").write_text(GATED)
    hoss("submit", "-f", str(tmp_path / "gated.yaml"))
    told = hoss.json("explain", "pod", "gated")
    assert told["queue"]["name"] == "gated"
    assert told["reason"] == "SchedulingGated: waits for gates a.io/quota, b.io/data"
    assert told["wouldHelp"] == ["the removal of its gates a.io/quota, b.io/data (hoss ungate)"]
    assert hoss.json("ungate", "pod", "gated", "--gate", "a.io/quota") == {
        "changedPods": 1,
        "queuedPods": 0,
        "notFound": [],
    }
    assert "1 pods, of which 1 have none left" in hoss("ungate", "pod", "gated").stderr
    assert "error: pod nobody" in hoss("ungate", "pod", "nobody", code=1).stderr
    wait_until(lambda: hoss.json("explain", "pod", "gated")["phase"] == "Bound", "the pod to be bound")


def test_a_bound_pod_is_explained_by_every_nodes_score_as_if_it_were_not_there(hoss, tmp_path):
    hoss("up", "--nodes", "0", "--worker", "w1", "--worker", "packer:strategy=binpack")
    node = "---\n{{apiVersion: v1, kind: Node, metadata: {{name: {}}}, status: {{allocatable: {{cpu: {}, memory: 8Gi, pods: 9, nvidia.com/gpu: 2}}}}}}"
    pod = "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {}}}, spec: {{containers: [{{name: c, image: i, resources: {{limits: {}}}}}]}}}}"
    (tmp_path / "nodes.yaml").write_text("\n".join(node.format(f"n{i}", cpu) for i, cpu in enumerate((4, 2))))
    hoss("nodes", "add", "-f", str(tmp_path / "nodes.yaml"))
    limits = "{cpu: 2, memory: 1Gi, nvidia.com/gpu: 2}"
    (tmp_path / "pod.yaml").write_text(pod.format("web", limits))
    before = hoss.json("explain", "-f", str(tmp_path / "pod.yaml"))
    assert (before["pod"], before["feasible"]) == ("default/web", ["n0", "n1"])
    hoss("submit", "-f", str(tmp_path / "pod.yaml"), "--wait")
    told = hoss.json("explain", "pod", "web", "--profile", "spread")
    assert (told["phase"], told["profile"]) == ("Bound", "spread")
    assert (told["nodes"]["totals"], told["nodes"]["scores"]) == (before["totals"], before["scores"])
    assert "its own node scores" in hoss("explain", "pod", "web").stdout
    # Another one like it finds one of the two nodes full.
    (tmp_path / "pod.yaml").write_text(pod.format("next", limits))
    after = hoss.json("explain", "-f", str(tmp_path / "pod.yaml"))
    assert after["feasible"] == [name for name in ("n0", "n1") if name != told["node"]]
    chosen_by_label = hoss.json("explain", "pod", "web")["profile"]
    workers = {
        worker["name"]: worker["labels"].get("strategy", "spread") for worker in hoss.json("get", "workers")["items"]
    }
    assert chosen_by_label == workers[told["worker"]]
