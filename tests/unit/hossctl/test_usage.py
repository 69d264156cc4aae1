"""What pods use: read from files of metrics.k8s.io, and refused in words where it is missing or old."""

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from unit.hossctl.made_up_platform import amounts, gathered, spec

from hoss.errors import InvalidInput
from hoss.model.node import NodeSpec
from hossctl.explain.offline import preset
from hossctl.rebalance.usage import NOISY_COLUMNS, UsageFile, missing_usage, noisy_document, read_usage
from scheduler_worker.core.plugins.profiles import DEFAULT_PROFILE
from scheduler_worker.core.rebalance.movable_pods import PlacedPods

NOW = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)


def metrics(name, *containers, age=30, namespace="default"):
    return {
        "metadata": {"name": name, "namespace": namespace},
        "timestamp": (NOW - timedelta(seconds=age)).isoformat().replace("+00:00", "Z"),
        "window": "15s",
        "containers": [
            {"name": f"c{i}", "usage": {"cpu": cpu, "memory": memory}}
            for i, (cpu, memory) in enumerate(containers)
        ],
    }


@pytest.fixture
def written(tmp_path):
    def write(*items):
        path = tmp_path / "usage.json"
        path.write_text(json.dumps({"kind": "PodMetricsList", "items": list(items)}))
        return path

    return write


def test_a_pod_uses_what_its_containers_use(written):
    read = read_usage(written(metrics("a", ("1500m", "1Gi"), ("250000000n", "1024Ki"))), now=NOW)
    assert read.amounts == {"default/a": (1750, (1 << 30) + (1 << 20))}


def test_old_measurements_do_not_count(written):
    path = written(metrics("a", ("1", "1Gi"), age=601), metrics("b", ("1", "1Gi"), age=599))
    assert set(read_usage(path, now=NOW).amounts) == {"default/b"}


def test_a_file_in_which_all_is_old_is_refused_with_its_age(written):
    with pytest.raises(
        InvalidInput, match=r"is too old: its youngest measurement is 700 seconds old, and 600"
    ):
        read_usage(written(metrics("a", age=700), metrics("b", age=900)), now=NOW)


def test_measurements_that_are_dated_far_ahead_do_not_count(written):
    path = written(metrics("a", ("1", "1Gi"), age=-601), metrics("b", ("1", "1Gi"), age=-599))
    assert set(read_usage(path, now=NOW).amounts) == {"default/b"}
    with pytest.raises(InvalidInput, match=r"is dated 700 seconds ahead of this machine's clock"):
        read_usage(written(metrics("a", age=-700), metrics("b", age=900)), now=NOW)


def test_of_a_file_that_is_too_large_no_more_is_read_than_shows_it(tmp_path):
    path = tmp_path / "usage.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a terabyte that takes no room
    with pytest.raises(InvalidInput, match="has more than 134,217,728 bytes"):
        read_usage(path, now=NOW)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no JSON"),
        ("[]", "is no list of pods' metrics"),
        ('{"items": []}', "usage is missing"),
        ('{"items": [{"metadata": {}}]}', "items.0"),
        (json.dumps({"items": [metrics("a", ("much", "1Gi"))]}), "items.0"),
        (json.dumps({"items": [metrics("a") | {"timestamp": "2026-01-05T12:00:00"}]}), "items.0"),
        (json.dumps({"items": [metrics("a", ("1e20", "1Gi"))]}), "which no pod can"),
        (json.dumps({"items": [metrics("a", ("1", "-1Gi"))]}), "which no pod can"),
        ("[" * 100_000, "is no JSON"),
    ],
)
def test_what_is_no_list_of_metrics_is_refused_with_the_place(tmp_path, text, words):
    path = tmp_path / "usage.json"
    path.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        read_usage(path, now=NOW)
    assert words in str(refused.value)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_usage(tmp_path / "none.json", now=NOW)
    with pytest.raises(InvalidInput, match="cannot be read: embedded null byte"):
        read_usage(Path("/tmp/usage\0.json"), now=NOW)


def test_pods_without_a_measurement_are_counted_and_said(written):
    pods = PlacedPods(
        names=["default/a", "default/b"],
        specs=(),
        classes=np.zeros(2, np.intp),
        nodes=np.zeros(2, np.intp),
        card_masks=np.zeros(2, np.uint16),
        workloads=np.arange(2),
        fixed=np.zeros(2, np.intp),
        reasons=("",),
        covered=np.zeros((0, 0), np.bool_),
        allowed=np.zeros(0, np.int64),
    )
    usage = read_usage(written(metrics("a", ("1", "1"))), now=NOW).of(pods)
    assert usage.known.tolist() == [True, False]
    assert usage.amounts.tolist() == [[1000, 0], [1, 0]]
    said = missing_usage({"pods": 2, "known": 1})
    assert said == "the use of 1 of 2 pods is missing or old; they count with their requests"
    assert missing_usage({"pods": 2, "known": 2}) == ""


def test_a_node_of_which_no_pod_was_measured_is_neither_noisy_nor_quiet():
    nodes = [NodeSpec(name, (("kubernetes.io/hostname", name),), allocatable=amounts(1000)) for name in "abc"]
    pods = [("default/loud", 0, spec(100)), ("default/unknown", 1, spec(101))]
    document = noisy_document(
        gathered(nodes, pods), preset(DEFAULT_PROFILE), UsageFile({"default/loud": (500, 0)})
    )
    assert [(row["name"], row["noisy"], row["measured"]) for row in document["nodes"]] == [
        ("a", True, True),
        ("b", False, False),
        ("c", False, True),
    ]
    noisy = next(column for column in NOISY_COLUMNS if column.heading == "NOISY")
    assert [noisy.cell(row) for row in document["nodes"]] == ["yes", "unknown", "no"]
