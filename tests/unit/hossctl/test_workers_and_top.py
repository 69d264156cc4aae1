"""What is told of workers: in tables, in documents, and live."""

import json
import re

import pytest

from hoss.v1 import dispatcher_pb2 as pb


@pytest.fixture
def busy_worker(hoss):
    """A worker with a figure of every kind."""
    worker = pb.WorkerInfo(
        name="w1", state="Ready", outstanding=1200, window=2000, bound=5000, conflicts=30, proposed=6000,
        estimated_micros=2_500_000, waiting_micros=2_000_000, pods_per_second=812.34, busy_share=0.456,
        incarnation=2**63 + 5, returned=77, epoch=4, micros_per_pod=12.5,
    )  # fmt: skip
    worker.labels.add(key="tier", value="batch")
    hoss.dispatcher.workers.append(worker)
    return worker


def test_the_wide_table_shows_labels_state_outstanding_work_conflict_share_and_throughput(hoss, busy_worker):
    head, row = hoss("get", "workers", "-o", "wide").stdout.splitlines()
    for heading in (
        "STATE",
        "LABELS",
        "OUTSTANDING",
        "WORK",
        "CONFLICT SHARE",
        "PODS/S",
        "BUSY",
        "INCARNATION",
        "SINCE",
    ):
        assert heading in head
    for cell in ("Ready", "tier=batch", "1200/2000", "2s", "0.5%", "812.3", "46%", "80000000"):
        assert cell in row


def test_a_worker_s_document_has_the_figures_as_numbers(hoss, busy_worker):
    document = json.loads(hoss("get", "worker", "w1", "-o", "json").stdout)
    assert document["estimatedWorkMs"] == 2500.0
    assert document["waitingWorkMs"] == 2000.0
    assert document["conflictShare"] == 0.005
    assert document["podsPerSecond"] == 812.3
    assert document["incarnation"] == "8000000000000005"
    assert document["returned"] == 77


def test_describe_worker_tells_them_too(hoss, busy_worker):
    told = hoss("describe", "worker", "w1").stdout
    read = " ".join(told.split())
    assert "rate 812.3 pods a second, busy 46%" in read
    assert "work in hand 2,500 ms, 2,000 ms not begun" in read
    assert "refused 30, 0.5% of proposed" in read
    assert "given back 77 pods" in read
    assert not re.search(r"[a-z][A-Z]", told.split("\n\n")[0])  # no names of fields


def test_top_in_a_pipe_is_one_plain_look(hoss, busy_worker):
    result = hoss("top")
    headline, headings, row = result.stdout.splitlines()
    assert headline == "812 pods/s bound; pods: none waits"
    assert headings.split()[:4] == ["WORKER", "STATE", "PODS/S", "OUTSTANDING"]
    assert row.split() == ["w1", "Ready", "812", "1200/2000", "2s", "46%", "0.5%", "5,000"]


def test_top_names_problems(hoss, busy_worker):
    hoss.dispatcher.problems.append("no registered worker matches rule gpu: role=gpu; 10 pods wait")
    assert "PROBLEM no registered worker matches rule gpu" in hoss("top").stdout


def test_top_as_a_document_has_queues_and_workers(hoss, busy_worker):
    document = json.loads(hoss("top", "-o", "json").stdout)
    assert document["podsPerSecond"] == 812.3
    assert set(document["queues"]) == {"active", "backoff", "unschedulable", "with workers", "failed"}
    assert [worker["name"] for worker in document["workers"]] == ["w1"]


def test_top_s_interval_is_at_least_a_tenth_of_a_second(hoss):
    assert hoss("top", "--interval", "0").exit_code == 2


def test_status_names_a_worker_that_fails_at_everything_and_why(hoss, busy_worker):
    busy_worker.failing = "plugin Green failed: KeyError: 'zone'"
    result = hoss("status")
    told = " ".join(result.stdout.split())
    assert result.exit_code == 1
    assert "worker w1 Ready, failing, 5,000 bound, tier=batch" in told
    assert "PROBLEM worker w1 fails at everything: plugin Green failed: KeyError: 'zone'" in told
