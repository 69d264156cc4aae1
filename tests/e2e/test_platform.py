"""The local platform from `up` to `down`, through the command line alone."""

import json
import os
import subprocess
import sys

import psutil
import pytest
import redis
from fork_server import ADDRESS_VARIABLE, ROOT
from waiting import COMMAND_SECONDS, wait_until

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 20
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: c, image: i, resources: {requests: {cpu: 500m, memory: 1Gi}}}]
"""
GIANT = """\
apiVersion: v1
kind: Pod
metadata: {name: giant}
spec:
  containers: [{name: c, image: i, resources: {requests: {cpu: 500}}}]
"""
MANIFEST = f"{DEPLOYMENT}---\n{GIANT}"


def test_a_platform_from_up_to_down(hoss, tmp_path):
    hoss("up", "--nodes", "50", "--worker", "a:tier=x", "--worker", "b:tier=y")
    assert "a platform runs already" in hoss("up", code=1).stderr
    assert [(w["name"], w["labels"]) for w in hoss.json("get", "workers")["items"]] == [
        ("a", {"tier": "x"}),
        ("b", {"tier": "y"}),
    ]

    (tmp_path / "web.yaml").write_text(MANIFEST)
    result = hoss.json("submit", "-f", str(tmp_path / "web.yaml"), "--wait", code=1)
    assert (result["bound"], result["unschedulable"]) == (20, 1)
    assert (
        "stands" not in hoss("submit", "-f", str(tmp_path / "web.yaml"), code=2).stderr
    )  # names are taken now

    giant = hoss.json("get", "pods", "--waiting")["items"]
    assert [pod["name"] for pod in giant] == ["giant"]
    assert "Insufficient cpu" in giant[0]["reason"]
    assert hoss.json("get", "job", "web")["bound"] == 20
    assert [pod["name"] for pod in hoss.json("get", "pods", "-l", "app=web")["items"]] == [
        f"web-{i}" for i in range(20)
    ]
    node = hoss.json("describe", "pod", "web-7")["node"]
    assert "default/web-7" in hoss.json("describe", "node", node)["pods"]
    assert len(hoss.json("get", "reservations")["items"]) == 20
    assert hoss.json("audit")["verdict"] == "clean"

    hoss("delete", "job", "web")
    assert hoss.json("audit")["reservations"] == 0
    assert all(n["requested"].get("cpu", 0) == 0 for n in hoss.json("get", "nodes")["items"])

    running = hoss.processes()
    assert set(running) == {"redis", "resolver-1", "dispatcher", "dashboard", "worker-a", "worker-b"}
    hoss("down")
    wait_until(lambda: not [p for p in running.values() if p.is_running()], "every process to be gone")
    assert hoss("get", "pods", code=3).stderr.startswith("error: no platform is running here")


def test_pods_survive_down_and_up(hoss):
    hoss("up", "--nodes", "10")
    hoss("submit", "-f", "-", "--wait", stdin=MANIFEST, code=1)
    before = {pod["name"]: pod["node"] for pod in hoss.json("get", "pods")["items"]}
    hoss("down")
    hoss("up")
    assert len(hoss.json("get", "nodes")["items"]) == 10  # no second set of simulated nodes
    assert {pod["name"]: pod["node"] for pod in hoss.json("get", "pods")["items"]} == before
    assert hoss.json("audit")["verdict"] == "clean"


@pytest.fixture(scope="module")
def platform(shared_hoss):
    """One node and two workers, for one test after the other."""
    shared_hoss("up", "--nodes", "1", "--worker", "w1:tier=a", "--worker", "w2:tier=a")
    return shared_hoss


def deployment(name):
    return DEPLOYMENT.replace("name: web", f"name: {name}").replace("app: web", f"app: {name}")


def test_a_cordoned_node_gets_nothing_until_it_is_uncordoned(platform):
    platform("cordon", "node", "node-00000")
    assert "cordoned by client/" in platform("events", "node/node-00000").stdout
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n"
    platform("submit", "-f", "-", "--wait", stdin=pod, code=1)
    assert "unschedulable" in platform.json("get", "pod", "p")["reason"]
    platform("uncordon", "node", "node-00000")
    wait_until(lambda: platform.json("get", "pod", "p")["phase"] == "Bound", "the pod to be bound")
    assert platform("cordon", "node", "nope", code=1).stderr.startswith("error: node nope")


def test_a_drained_worker_gets_nothing_and_the_others_do_its_work(platform):
    before = {worker["name"]: worker["bound"] for worker in platform.json("get", "workers")["items"]}
    platform("drain", "worker", "w1")
    platform("submit", "-f", "-", "--wait", stdin=deployment("drained"))
    bound = {worker["name"]: worker["bound"] for worker in platform.json("get", "workers")["items"]}
    assert bound == {"w1": before["w1"], "w2": before["w2"] + 20}
    platform("uncordon", "worker", "w1")
    assert {worker["state"] for worker in platform.json("get", "workers")["items"]} == {"Ready"}


def test_a_policy_that_no_worker_satisfies_makes_pods_wait_and_says_so(platform, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "apiVersion: hoss.dev/v1alpha1\nkind: SchedulingPolicy\n"
        "rules: [{name: gold, workers: {matchLabels: {tier: gold}}}]\n"
    )
    platform("policy", "set", "-f", str(policy))
    assert "gold" in platform("policy", "get").stdout
    platform("submit", "-f", "-", stdin=deployment("gold"))
    assert any("gold" in text for text in platform.json("status", code=1)["problems"])
    policy.write_text(
        "apiVersion: hoss.dev/v1alpha1\nkind: SchedulingPolicy\nrules: [{name: x, colour: red}]\n"
    )
    assert "colour" in platform("policy", "set", "-f", str(policy), code=2).stderr
    policy.write_text("apiVersion: hoss.dev/v1alpha1\nkind: SchedulingPolicy\nrules: [{name: any}]\n")
    platform("policy", "set", "-f", str(policy))
    wait_until(lambda: platform.json("get", "job", "gold")["bound"] == 20, "the pods to be bound")


def test_a_killed_worker_is_reported_and_its_pods_go_on(platform):
    """The last one of those that share a platform: w1 does not come back. What it has in hand,
    tests/e2e/test_faults.py shows."""
    platform.processes()["worker-w1"].kill()
    wait_until(lambda: platform("status", code=None).returncode == 1, "the status to notice")
    problems = platform.json("status", code=1)["problems"]
    assert any("process worker-w1" in text for text in problems)
    platform("submit", "-f", "-", "--wait", stdin=deployment("others"))
    assert platform.json("audit")["verdict"] == "clean"


def test_a_service_that_cannot_start_shows_its_log_and_leaves_nothing(hoss):
    hoss("--version")  # with it the fork server of the tests starts
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    failed = hoss("up", "--nodes", "5", "--dashboard-token-file", "nowhere", code=1)
    assert "dashboard ended with code" in failed.stderr
    assert "nowhere: cannot be read" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not (hoss.home / "platform.json").exists()
    assert (
        not {p.pid for p in psutil.Process().children(recursive=True)} - before
    )  # of whom some may have gone meanwhile


DEMO = ("demo", "--nodes", "60", "--pods", "2000", "--workers", "2", "-o", "json")


def test_the_demo_passes_with_small_numbers(hoss):
    assert_passed(hoss(*DEMO).stdout)


@pytest.mark.thorough
def test_the_demo_passes_as_people_start_it(hoss):
    """Every process is a new interpreter: `python -m hossctl`, and the services that it starts."""
    own = (ADDRESS_VARIABLE, "HOSS_DISPATCHER", "HOSS_RESOLVER")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    environment |= {"HOSS_HOME": str(hoss.home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "hossctl", *DEMO],
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert_passed(done.stdout)


def assert_passed(printed):
    """The document of the small demo."""
    result = json.loads(printed)
    placement = result["placement"]
    assert placement["pods"] == placement["bound"] + placement["unschedulable"] == 2000
    assert result["failures"] == []
    assert result["deletion"]["pods"] > 0
    without, with_ledger = result["race"]["withoutLedger"], result["race"]["withLedger"]
    assert without["oversoldPods"] >= without["oversoldNodes"]
    assert (with_ledger["oversoldNodes"], with_ledger["placement"]["unaccounted"]) == (0, 0)
    assert result["killedWorker"] == "w2"


def test_the_demo_uses_a_redis_of_ones_own_and_leaves_it_empty(hoss, redis_server):
    hoss("demo", "--nodes", "20", "--pods", "200", "--workers", "1", "--redis-url", redis_server.url)
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.dbsize() == 0
        client.set("{hoss}:schema", "somebody's")
    refused = hoss("demo", "--nodes", "20", "--pods", "200", "--redis-url", redis_server.url, code=1)
    assert "holds a ledger already" in refused.stderr


def test_of_two_dispatchers_the_other_takes_over_and_status_says_so(hoss):
    hoss("up", "--dispatchers", "2", "--nodes", "20", "--workers", "1")
    before = hoss.json("status")["dispatcher"]
    (standby,) = before["standbys"]
    assert standby["answers"]
    processes = hoss.processes()
    state = hoss.json("status")["local"]
    (active,) = [p["name"] for p in state["processes"] if p["address"] == before["address"]]
    processes[active].kill()
    after = hoss.json("status", code=1)
    assert (after["dispatcher"]["address"], after["dispatcher"]["term"]) == (
        standby["address"],
        before["term"] + 1,
    )
    assert f"dispatcher {before['address']} does not answer" in after["problems"]
    hoss("submit", "-f", "examples/web.yaml", "--wait")
