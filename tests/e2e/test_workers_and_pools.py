"""Workers as things one manages: `hoss worker`, `hoss up --config`, `hoss apply` and `hoss logs` on a
platform of real processes. The tests share one platform and go through its life in their order."""

import os
import signal

import pytest
from waiting import wait_until

PLATFORM = """\
apiVersion: hoss.dev/v1alpha1
kind: Platform
policy: policy.yaml
pools:
  - {{name: service, count: {services}, labels: {{tier: service}}}}
  - name: batch
    labels: {{tier: batch}}
    plugins:
      - {{name: NodeResourcesFit, weight: {weight}}}
"""
POLICY = """\
apiVersion: hoss.dev/v1alpha1
kind: SchedulingPolicy
rules: [{{name: {name}, workers: {{matchLabels: {{tier: batch}}}}, fallback: AnyWorker}}]
"""
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: some}
spec: {parallelism: 40, template: {spec: {containers: [{name: c, image: i}]}}}
"""


@pytest.fixture(scope="module")
def config(shared_hoss):
    """Writes the platform's directory; the platform runs with two services and one batch worker."""
    folder = shared_hoss.home.parent / "config"
    folder.mkdir()

    def write(services: int, weight: int = 1, rule: str = "first") -> str:
        (folder / "platform.yaml").write_text(PLATFORM.format(services=services, weight=weight))
        (folder / "policy.yaml").write_text(POLICY.format(name=rule))
        return str(folder)

    shared_hoss("up", "--config", write(2), "--nodes", "5")
    return write


def workers(hoss) -> dict[str, dict]:
    return {worker["name"]: worker for worker in hoss.json("worker", "list")["items"]}


def test_a_platform_starts_with_the_pools_of_its_document(shared_hoss, config):
    found = workers(shared_hoss)
    assert {name: (worker["pool"], worker["labels"], worker["state"]) for name, worker in found.items()} == {
        "batch-1": ("batch", {"tier": "batch"}, "Ready"),
        "service-1": ("service", {"tier": "service"}, "Ready"),
        "service-2": ("service", {"tier": "service"}, "Ready"),
    }
    assert shared_hoss.json("policy", "get")["source"].startswith("file ")
    assert len({worker["seed"] for worker in found.values()}) == 3


def test_a_dry_run_shows_what_differs_and_does_nothing(shared_hoss, config):
    before = workers(shared_hoss)
    folder = config(3, weight=2)
    planned = shared_hoss.json("apply", "-f", folder, "--dry-run")
    assert [(change["action"], change["worker"]) for change in planned["changes"]] == [
        ("add", "service-3"),
        ("restart", "batch-1"),
    ]
    told = shared_hoss("apply", "-f", folder, "--dry-run").stderr
    assert "restart worker batch-1: its plugins change" in told
    assert "dry run: nothing was done" in told
    assert workers(shared_hoss) == before


def test_what_differs_is_carried_out_and_the_rest_stays_as_it_is(shared_hoss, config):
    before = workers(shared_hoss)
    shared_hoss("apply", "-f", config(1, weight=3))
    after = workers(shared_hoss)
    assert set(after) == {"batch-1", "service-1"}
    assert after["service-1"] == before["service-1"]
    assert after["batch-1"]["pid"] != before["batch-1"]["pid"]
    assert after["batch-1"]["seed"] == before["batch-1"]["seed"]
    status = shared_hoss.json("status")
    assert {worker["name"]: worker["state"] for worker in status["workers"]}["service-2"] == "Left"
    assert status["problems"] == []
    again = shared_hoss("apply", "-f", config(1, weight=3)).stderr
    assert again == "nothing changes: the platform is as the document says\n"


@pytest.mark.thorough
def test_a_worker_that_died_is_started_again_by_an_apply(shared_hoss, config):
    os.kill(workers(shared_hoss)["service-1"]["pid"], signal.SIGKILL)
    wait_until(lambda: not workers(shared_hoss)["service-1"]["running"], "the worker to be gone")
    told = shared_hoss("apply", "-f", config(1, weight=3)).stderr
    assert "restart worker service-1: its process has ended" in told
    after = workers(shared_hoss)["service-1"]
    assert (after["running"], after["state"]) == (True, "Ready")


def test_workers_of_a_command_come_restart_and_go_and_no_document_touches_them(shared_hoss, config, tmp_path):
    shared_hoss("worker", "add", "extra:tier=batch", "--profile", "binpack")
    added = workers(shared_hoss)["extra"]
    assert (added["pool"], added["labels"], added["flags"]) == (
        "",
        {"tier": "batch"},
        ["--profile", "binpack"],
    )
    shared_hoss("apply", "-f", config(1, weight=3))
    assert workers(shared_hoss)["extra"] == added
    (tmp_path / "job.yaml").write_text(JOB)
    shared_hoss("submit", "-f", str(tmp_path / "job.yaml"), "--wait")
    shared_hoss("worker", "restart", "extra")
    assert workers(shared_hoss)["extra"]["pid"] != added["pid"]
    refused = shared_hoss("worker", "add", "extra", code=2).stderr
    assert refused == "error: extra: runs already; choose another name, or `hoss worker restart` it\n"
    shared_hoss("worker", "remove", "extra")
    assert "extra" not in workers(shared_hoss)
    assert shared_hoss.json("audit")["verdict"] == "clean"


def test_the_logs_of_one_process_and_of_all(shared_hoss, config):
    one = shared_hoss("worker", "logs", "batch-1", "--tail", "0").stdout.splitlines()
    assert one
    assert shared_hoss("logs", "worker-batch-1", "--tail", "0").stdout.splitlines() == one
    assert shared_hoss("worker", "logs", "batch-1", "--tail", "1").stdout.splitlines() == one[-1:]
    assert {line.split()[0] for line in shared_hoss("logs").stdout.splitlines()} >= {
        "redis", "resolver-1", "dispatcher", "worker-batch-1",
    }  # fmt: skip
    refused = shared_hoss("logs", "nobody", code=1).stderr
    assert refused.startswith("error: nobody: is no process of the local platform; there are redis, ")


def test_a_worker_that_is_not_there_is_named_and_nothing_is_done(shared_hoss, config):
    before = workers(shared_hoss)
    refused = shared_hoss("worker", "remove", "batch-1", "nobody", code=1).stderr
    assert refused.startswith("error: nobody: is no worker of the local platform; there are ")
    assert workers(shared_hoss) == before


def test_a_worker_that_does_not_start_is_told_with_its_log_and_forgotten(shared_hoss, config, tmp_path):
    before = workers(shared_hoss)
    (tmp_path / "worker.yaml").write_text(
        "{apiVersion: hoss.dev/v1alpha1, kind: WorkerConfig, listen: nowhere:7000}"
    )
    told = shared_hoss("worker", "add", "broken", "--config", str(tmp_path / "worker.yaml"), code=1).stderr
    assert "error: worker-broken ended with code 1 before it served" in told
    assert workers(shared_hoss) == before


def test_another_policy_of_the_document_is_put_in_force(shared_hoss, config):
    folder = config(1, weight=3, rule="second")
    shared_hoss("apply", "-f", folder)
    assert "second" in shared_hoss("policy", "get").stdout


def test_nothing_of_the_pools_is_left_when_the_platform_is_down(shared_hoss, config):
    assert (shared_hoss.home / "workers" / "batch-1.yaml").exists()
    shared_hoss("down")
    assert not (shared_hoss.home / "workers").exists()
    refused = shared_hoss("worker", "list", code=3).stderr
    assert refused == "error: no platform is running here: start one with `hoss up`\n"
