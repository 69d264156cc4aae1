"""Pods that wait, as a user meets them: explain and ungate on a local platform."""

import time

import pytest
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

JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: report}
spec:
  parallelism: 4
  template:
    spec:
      containers: [{name: c, image: i}]
"""


@pytest.fixture(scope="module")
def platform(shared_hoss):
    """Three nodes and one worker, for one test after the other."""
    shared_hoss("up", "--nodes", "3", "--workers", "1")
    return shared_hoss


def test_explain_says_which_queue_since_when_how_often_and_what_would_help(platform, tmp_path):
    hoss = platform
    (tmp_path / "giant.yaml").write_text(GIANT)
    before = time.time() * 1000
    hoss("submit", "-f", str(tmp_path / "giant.yaml"), "--wait", code=1)

    def waits_for_a_change():
        told = hoss.json("explain", "pod", "giant")
        return (told.get("queue") or {}).get("name") == "unschedulable" and told

    # A view that was older than the nodes is tried again once.
    told = wait_until(waits_for_a_change, "it waits for a change")
    assert told["phase"] == "Unschedulable"
    assert told["attempts"] in (1, 2)
    queue = told["queue"]
    assert before <= queue["sinceUnixMs"] <= queue["notBeforeUnixMs"] <= queue["sinceUnixMs"] + 2001
    assert queue["atLatestUnixMs"] - queue["sinceUnixMs"] in range(299_990, 300_010)
    assert "NodeResourcesFit" in queue["refusedBy"]
    assert any(s.startswith("a node with room for it (500 cpu)") for s in told["wouldHelp"])
    assert told["nodes"]["message"] == told["reason"]
    assert len(told["nodes"]["reasons"]) == 3

    def told_to_people():
        people = hoss("explain", "pod", "giant").stdout
        return "unschedulable, for " in people and people

    people = wait_until(told_to_people, "it waits for a change, as people are told")
    assert "a node with room for it (500 cpu)" in people
    assert "nobody" in hoss("explain", "pod", "nobody", code=1).stderr
    assert "NAME" in hoss("explain", "pod", code=2).stderr


def test_gates_are_removed_one_by_one_or_all_together(platform, tmp_path):
    hoss = platform
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
    node = (
        "---\n{{apiVersion: v1, kind: Node, metadata: {{name: {}}}, status: {{allocatable: {{cpu: {}, memory:"
        " 8Gi, pods: 9, nvidia.com/gpu: 2}}}}}}"
    )
    pod = (
        "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {}}}, spec: {{containers: [{{name: c, image: i,"
        " resources: {{limits: {}}}}}]}}}}"
    )
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
        worker["name"]: worker["labels"].get("strategy", "spread")
        for worker in hoss.json("get", "workers")["items"]
    }
    assert chosen_by_label == workers[told["worker"]]


def test_describe_tells_in_order_how_a_pod_its_job_and_its_worker_came_where_they_are(platform, tmp_path):
    """The last one of those that share a platform, which it ends."""
    hoss = platform
    gated, giant = GATED.replace("name: gated", "name: held"), GIANT.replace("name: giant", "name: vast")
    (tmp_path / "gated.yaml").write_text(f"{gated}---\n{giant}")
    hoss("submit", "-f", str(tmp_path / "gated.yaml"))
    hoss("ungate", "pod", "held")
    wait_until(
        lambda: "confirmed: its reservation" in hoss("describe", "pod", "held").stdout,
        "the pod's confirmation",
    )
    told = hoss("describe", "pod", "held").stdout
    happened = (
        " accepted", "SchedulingGated: waits for gates", "its last gate was removed",
        "given to worker w1 after", "w1 reserves node-",
        "bound on node-", "confirmed: its reservation", "\nnow ",
    )  # fmt: skip
    places = [told.index(text) for text in happened]
    assert places == sorted(places)
    assert max(len(line) for line in told[places[0] :].splitlines()) <= 80
    steps = hoss.json("describe", "pod", "held")["steps"]
    assert [step["atUnixMs"] for step in steps] == sorted(step["atUnixMs"] for step in steps)

    wait_until(
        lambda: hoss.json("get", "pod", "vast")["phase"] == "Unschedulable", "the giant to find no node"
    )
    told = " ".join(hoss("describe", "pod", "vast").stdout.split())
    assert "no node fits: 0/3 nodes are available: " in told
    assert "waits in queue unschedulable, for" in told

    hoss("submit", "-f", "-", "--wait", stdin=JOB)
    told = hoss("describe", "job", "report").stdout
    places = [
        told.index(text)
        for text in ("accepted: 4 pods", "4 pods given to workers", "4 pods bound", "4 of 4 bound")
    ]
    assert places == sorted(places)

    hoss.processes()["worker-w1"].kill()
    wait_until(lambda: "fenced" in hoss("describe", "worker", "w1").stdout, "the worker's end")
    told = hoss("describe", "worker", "w1").stdout
    happened = (
        "registers",
        "is given epoch",
        "its view of the nodes is filled",
        "lost: its stream ended",
        "fenced",
        "now ",
    )
    places = [told.index(text) for text in happened]
    assert places == sorted(places)

    hoss("down")
    hoss("up", "--workers", "1")
    assert "(what happened before is not known any more)" in hoss("describe", "pod", "held").stdout
