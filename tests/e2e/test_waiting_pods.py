"""Pods that wait, as a user meets them: explain and ungate on a local platform."""

import time

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
    deadline = time.monotonic() + 20
    while hoss.json("explain", "pod", "gated")["phase"] != "Bound":
        assert time.monotonic() < deadline
