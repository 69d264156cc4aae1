"""What hoss fragmentation and hoss rebalance plan say of a local platform."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
from waiting import wait_until

NODES = """\
apiVersion: v1
kind: Node
metadata: {{name: {name}, labels: {{pool: {pool}}}}}
status: {{allocatable: {{cpu: "10", memory: 10Gi, pods: "20"}}}}
"""
JOB = """\
apiVersion: apps/v1
kind: ReplicaSet
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}, annotations: {{hoss.dev/movable: "{movable}"}}}}
    spec:
      nodeSelector: {{{selector}}}
      containers: [{{name: c, image: i, resources: {{requests: {{cpu: {cpu}, memory: 1Gi}}}}}}]
"""


def job(name, replicas, cpu, movable="true", selector=""):
    return JOB.format(name=name, replicas=replicas, cpu=cpu, movable=movable, selector=selector)


@pytest.fixture(scope="module")
def platform(shared_hoss, tmp_path_factory):
    """Two nodes of ten cpu with a movable and an immovable pod of three cpu each, and a waiting pod of
    six."""
    hoss, files = shared_hoss, tmp_path_factory.mktemp("manifests")
    hoss("up", "--nodes", "0", "--workers", "1")

    def written(name, text):
        (files / name).write_text(text)
        return str(files / name)

    nodes = "---\n".join(NODES.format(name=f"n{i}", pool=f"p{i}") for i in range(2))
    hoss("nodes", "add", "-f", written("nodes.yaml", nodes))
    for i in range(2):
        selector = f"pool: p{i}"
        hoss("submit", "-f", written(f"stay{i}.yaml", job(f"stay{i}", 1, 3, "false", selector)), "--wait")
    hoss("submit", "-f", written("move.yaml", job("move", 2, 2)), "--wait")
    hoss("submit", "-f", written("big.yaml", job("big", 1, 6)))
    wait_until(lambda: hoss.json("get", "pods", "--waiting")["items"], "the large pod waits")
    return hoss


def test_fragmentation_says_what_the_waiting_pod_lacks(platform):
    document = platform.json("fragmentation", "--label", "pool")
    assert [pool["name"] for pool in document["pools"]] == ["p0", "p1"]
    cpu = [entry for pool in document["pools"] for entry in pool["resources"] if entry["resource"] == "cpu"]
    assert sum(entry["free"] for entry in cpu) == 10_000
    assert sum(entry["usableByWaiting"] for entry in cpu) == 0
    [waiting] = document["waiting"]
    assert (waiting["name"], waiting["fitting"], waiting["limitedBy"]) == ("default/big", 0, "cpu")
    assert "default/big" in platform("fragmentation").stdout


def test_a_plan_makes_room_for_the_waiting_pod_and_leaves_immovable_pods(platform):
    plan = platform.json("rebalance", "plan")
    [move] = plan["moves"]
    assert move["pod"].startswith("default/move-")
    [placed] = plan["placements"]
    assert (placed["waiting"], placed["node"], placed["afterMoves"]) == ("default/big", move["from"], 1)
    assert (plan["before"], plan["after"], plan["cost"]["pods"]) == (1, 0, 1)
    assert "fits" in platform("rebalance", "plan").stdout
    none = platform.json("rebalance", "plan", "--max-moves", "0")
    assert (none["moves"], none["after"]) == ([], 1)


def test_more_nodes_would_take_the_waiting_pod_without_a_move(platform):
    plan = platform.json("rebalance", "plan", "--add-nodes", "2", "--like", "n0")
    assert (plan["moves"], [at["waiting"] for at in plan["placements"]]) == ([], ["default/big"])
    assert [node["name"] for node in plan["newNodes"]["used"]] == ["n0-new-1"]
    said = platform("rebalance", "plan", "--add-nodes", "2", "--like", "n0").stdout
    assert "1 of 2 like n0 gets pods, 1 in all; requested of these nodes: cpu 60%, memory 10%" in said
    assert "--like: is missing" in platform("rebalance", "plan", "--add-nodes", "2", code=2).stderr
    assert "--add-nodes" in platform("rebalance", "plan", "--like", "n0", code=2).stderr


def test_a_waiting_pod_says_after_which_moves_it_fits(platform):
    [pod] = platform.json("get", "pods", "--waiting")["items"]
    [move] = platform.json("rebalance", "plan")["moves"]
    said = platform.json("describe", "pod", pod["name"])["rebalancing"]
    assert said in {f"fits after moving 1 pod from {node}" for node in ("n0", "n1")}
    assert said.endswith(move["from"])
    assert said in platform("describe", "pod", pod["name"]).stdout
    assert "rebalancing" not in platform.json("describe", "pod", move["pod"].split("/")[1])


def test_a_drain_that_an_immovable_pod_forbids_says_which_pod(platform):
    plan = platform.json("rebalance", "plan", "--drain", "pool=p0")
    assert plan["after"] == 1
    assert any(
        "stay0" in entry["subject"] and "hoss.dev/movable" in entry["why"] for entry in plan["impossible"]
    )
    assert "n9" in platform("rebalance", "plan", "--drain", "n9", code=1).stderr


def test_moves_are_carried_out_undone_and_refused_where_the_cluster_has_changed(platform, tmp_path):
    """In order, on one platform: an old plan is refused; the goal makes room for the waiting pod; undone."""
    old = platform.json("rebalance", "plan")
    written = tmp_path / "plan.json"
    [planned] = old["moves"]
    changed = [{"to": planned["from"]}, {"pod": "default/gone"}, {"to": "n9"}]
    written.write_text(json.dumps(old | {"moves": [planned | change for change in changed]}))
    refused = platform.json("rebalance", "run", "--plan", str(written), code=1)
    assert [(move["state"], move["text"]) for move in refused["moves"]] == [
        ("Refused", "it would move to the node that it is on"),
        ("Refused", "there is no such pod any more"),
        ("Refused", "there is no node n9 any more"),
    ]
    assert "plan again" in platform("rebalance", "run", "--plan", str(written), code=1).stderr
    written.write_text(json.dumps(old | {"seen": {}}))
    other = platform("rebalance", "run", "--plan", str(written), code=2).stderr
    assert "the plan is of another platform; plan again" in other
    done = platform.json("rebalance", "run", "--goal", "fit-pending")
    assert (done["state"], done["moved"], done["refused"]) == ("Done", 1, 0)
    [move] = done["moves"]
    pod = platform.json("get", "pod", move["pod"].split("/")[1])
    assert pod["node"] == move["to"]
    wait_until(lambda: not platform.json("get", "pods", "--waiting")["items"], "the large pod is bound")
    platform("audit")
    platform("delete", "job", "big")
    idle = platform.json("rebalance", "run", "--goal", "empty-nodes", "--max-moves", "0")
    assert (idle["state"], idle["moves"]) == ("Done", [])
    assert idle["impossible"][0]["why"]
    assert (
        platform.json("rebalance", "status")["purpose"] == "fit-pending"
    )  # what was moved can be undone still
    back = platform.json("rebalance", "undo")
    assert back["purpose"] == "undo: fit-pending"
    wait_until(lambda: platform.json("rebalance", "status")["state"] == "Done", "the pod is back")
    assert platform.json("get", "pod", move["pod"].split("/")[1])["node"] == move["from"]
    platform("audit")


def test_who_follows_moves_that_another_person_takes_back_is_told_so_and_does_not_plan_them_again(
    platform, tmp_path
):
    pods, run = two_moves(platform, tmp_path)
    with ThreadPoolExecutor(1) as beside:
        following = beside.submit(platform, *run, code=1)
        wait_until(lambda: platform.json("rebalance", "status")["purpose"] == "by hand", "the run begins")
        wait_until(lambda: platform.json("rebalance", "status")["moved"] == 1, "the first move is made")
        platform("rebalance", "undo")
        told = following.result()
    # Either it saw the run that was to be undone, or the one that undoes it.
    taken_back = "another run has taken the place of this one: undo: by hand" in told.stderr
    assert taken_back or "undone by hand" in told.stdout
    wait_until(lambda: platform.json("rebalance", "status")["state"] == "Done", "the pod is back")
    back = {pod["name"]: pod["node"] for pod in platform.json("get", "pods")["items"]}
    assert {pod["name"]: pod["node"] for pod in pods}.items() <= back.items()
    platform("audit")


def test_who_stops_following_moves_is_told_how_many_are_made_and_that_they_go_on(platform, tmp_path):
    _, run = two_moves(platform, tmp_path)
    said = platform(*run, "--timeout", "5").stderr
    assert re.search(r"^moves: [01] of 2$", said, re.MULTILINE)
    assert "warning: not done after 5 s: `hoss rebalance status` shows how the moves go on" in said
    assert platform.json("rebalance", "status")["state"] == "Running"
    platform("rebalance", "undo")
    wait_until(lambda: platform.json("rebalance", "status")["state"] == "Done", "the pod is back")
    platform("audit")


def two_moves(platform, tmp_path):
    """Two pods that can change places, and a command that moves one of them at once, and the other one in 100
    seconds."""
    pods = [pod for pod in platform.json("get", "pods")["items"] if pod["name"].startswith("move-")]
    other = {"n0": "n1", "n1": "n0"}
    moves = [{"pod": f"default/{pod['name']}", "from": pod["node"], "to": other[pod["node"]]} for pod in pods]
    written = tmp_path / "plan.json"
    written.write_text(json.dumps(platform.json("rebalance", "plan") | {"goal": "by hand", "moves": moves}))
    return pods, ("rebalance", "run", "--plan", str(written), "--rate", "0.01")


def test_a_waiting_gang_says_after_which_moves_it_fits_as_a_whole(platform, tmp_path):
    """The last test of the platform: it adds a node. The gang's selector leaves it n0 and n2; n2 takes one of
    its pods as it is, and n0 the other one after a move."""
    (tmp_path / "n2.yaml").write_text(NODES.format(name="n2", pool="p0"))
    platform("cordon", "node", "n1")
    platform("nodes", "add", "-f", str(tmp_path / "n2.yaml"))
    gang = job("gang", 2, 6, selector="pool: p0").replace(
        "name: gang}", 'name: gang, annotations: {hoss.dev/min-available: "2"}}', 1
    )
    (tmp_path / "gang.yaml").write_text(gang)
    platform("submit", "-f", str(tmp_path / "gang.yaml"))
    wait_until(lambda: len(platform.json("get", "pods", "--waiting")["items"]) == 2, "the gang waits")
    assert platform.json("get", "job", "gang")["bound"] == 0
    words = "fits after moving 1 pod from n0"
    # A change of the cluster may have the gang tried once more; while a worker has it, it does not wait.
    for what in (("pod", "gang-0"), ("job", "gang")):
        wait_until(
            lambda what=what: platform.json("describe", *what).get("rebalancing") == words, f"{what} says it"
        )
    wait_until(lambda: words in platform("describe", "job", "gang").stdout, "people read it, too")
    platform.json("rebalance", "run", "--goal", "fit-pending")
    wait_until(lambda: platform.json("get", "job", "gang")["bound"] == 2, "the gang is bound")
    assert "rebalancing" not in platform.json("describe", "job", "gang")
    platform("audit")


def test_noisy_nodes_are_shown_and_relieved_by_what_pods_use(platform, tmp_path):
    """After all others: what pods use is written here, and the platform is as the gang left it."""
    pods = platform.json("get", "pods")["items"]
    loud = next(pod for pod in pods if pod["name"].startswith("move-"))
    written = tmp_path / "usage.json"

    def write(measured, prefix=""):
        items = [
            {
                "metadata": {"namespace": "default", "name": prefix + pod["name"]},
                "timestamp": measured.isoformat(),
                "containers": [{"usage": {"cpu": "5" if pod is loud else "1", "memory": "1Gi"}}],
            }
            for pod in pods[1:]
        ]
        written.write_text(json.dumps({"items": items}))

    now = datetime.now(tz=timezone.utc)
    write(now - timedelta(hours=1))
    refused = platform("rebalance", "noisy", "--usage", str(written), code=2)
    assert "is too old: its youngest measurement is 36" in refused.stderr
    quiet = ("rebalance", "plan", "--goal", "quiet-nodes", "--usage", str(written))
    write(now, "of-another-cluster-")
    assert "names none of the bound pods" in platform(*quiet, code=2).stderr
    write(now)
    shown = platform.json("rebalance", "noisy", "--usage", str(written))
    assert (shown["pods"], shown["known"]) == (len(pods), len(pods) - 1)
    noisiest = shown["nodes"][0]
    assert (noisiest["name"], noisiest["loudest"]) == (loud["node"], f"default/{loud['name']}")
    assert (
        f"the use of 1 of {len(pods)} pods is missing"
        in platform("rebalance", "noisy", "--usage", str(written)).stderr
    )
    plan = platform.json(*quiet)
    assert plan["unit"] == "squared load by use"
    assert "quiet-nodes needs" in platform("rebalance", "plan", "--goal", "quiet-nodes", code=2).stderr
