"""Google's traces of 2019: what becomes a pod, when it comes and goes, and what is left out."""

import csv
import gzip
import json

import pytest

from hoss.errors import InvalidInput
from hossctl.traces.google2019 import ALLOC_INSTANCES, NO_REQUEST, read_machines, read_pods
from hossctl.traces.recording import LARGEST, PODS_PER_NODE, TraceMachine, TraceWindow

SUBMIT, SCHEDULE, EVICT, FAIL, FINISH, KILL, LOST, UPDATE = 0, 3, 4, 5, 6, 7, 8, 10


def event(seconds, kind, instance=0, *, collection=7, cpus=0.5, memory=0.25, **others):
    # Numbers are texts, as BigQuery writes INT64, and what is NULL is left out.
    return {
        "time": str(int(seconds * 1e6)),
        "type": str(kind),
        "collection_id": str(collection),
        "instance_index": str(instance),
        "collection_type": "0",
        "priority": "200",
        "resource_request": {"cpus": cpus, "memory": memory},
        **others,
    }


@pytest.fixture
def lines(tmp_path):
    def write(*events, name="events.json"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(each) + "\n" for each in events))
        return path

    return write


def read(path, window=None, collections=None, machine=LARGEST):
    return read_pods(path, collections, machine, window or TraceWindow())


def told(recording):
    return [(pod.workload.name, pod.creation_seconds, pod.deletion_seconds) for pod in recording.pods]


def test_a_pod_comes_when_it_is_submitted_and_goes_at_its_end(lines):
    path = lines(
        event(600, SUBMIT),
        event(601, SCHEDULE),
        event(605, SUBMIT, 1),
        event(610, UPDATE),
        event(660.5, FINISH),
    )
    assert told(read(path)) == [("7-0", 600, 660.5), ("7-1", 605, None)]


@pytest.mark.parametrize("end", [EVICT, FAIL, FINISH, KILL, LOST])
def test_an_instance_submitted_again_after_any_end_is_another_pod(lines, end):
    path = lines(event(1, SUBMIT), event(2, end), event(3, SUBMIT), event(4, end), event(5, SUBMIT))
    assert told(read(path)) == [("7-0", 1, 2), ("7-0-again-1", 3, 4), ("7-0-again-2", 5, None)]


def test_shares_are_of_the_largest_machine_and_rounded_up(lines):
    path = lines(event(1, SUBMIT, cpus=0.5, memory=0.25), event(1, SUBMIT, 1, cpus=0.00001, memory=1e-9))
    half, little = (dict(pod.workload.template.spec.requests) for pod in read(path).pods)
    assert half == {"cpu": 32_000, "memory": 64 * 2**30}
    assert little == {"cpu": 1, "memory": 2**20}
    (small, _) = read(path, machine=TraceMachine(10_000, 2**30)).pods
    assert dict(small.workload.template.spec.requests) == {"cpu": 5000, "memory": 2**28}


def test_pods_alike_share_a_template_and_preempt_nobody(lines):
    first, second = read(lines(event(1, SUBMIT), event(2, SUBMIT, 1))).pods
    assert first.workload.template is second.workload.template
    assert (first.workload.template.spec.priority, first.workload.template.spec.may_preempt) == (200, False)


def test_alloc_instances_and_those_without_a_request_are_left_out_and_counted(lines):
    bare = {key: value for key, value in event(1, SUBMIT, 3).items() if key != "resource_request"}
    path = lines(
        event(1, SUBMIT, collection_type="1"),
        event(1, SUBMIT, 1, collection_type="ALLOC_SET"),
        bare,
        event(2, SUBMIT, 4),
    )
    recording = read(path)
    assert [pod.workload.name for pod in recording.pods] == ["7-4"]
    assert recording.left_out == {ALLOC_INSTANCES: 2, NO_REQUEST: 1}


def test_what_never_ended_ends_with_its_collection(lines):
    path = lines(event(1, SUBMIT), event(2, SUBMIT, 1), event(3, FINISH, 1), event(4, SUBMIT, collection=8))
    ends = [{"time": 5e6, "type": 0, "collection_id": 7}, {"time": 9e6, "type": "KILL", "collection_id": 7}]
    recording = read(path, collections=lines(*ends, name="collections.json"))
    assert told(recording) == [("7-0", 1, 9), ("7-1", 2, 3), ("8-0", 4, None)]


def test_what_ended_after_the_trace_is_there_when_it_ends(lines):
    late = {**event(0, FINISH), "time": str(2**63 - 1)}
    assert told(read(lines(event(1, SUBMIT), late))) == [("7-0", 1, None)]


def test_of_a_window_those_there_already_come_at_its_begin_and_late_ends_are_cut_off(lines):
    path = lines(
        event(1, SUBMIT, 0),
        event(2, SUBMIT, 1),
        event(3, FINISH, 1),  # gone by then
        event(12, SUBMIT, 2),
        event(13, FINISH, 2),
        event(14, SUBMIT, 3),
        event(15, FINISH, 0),
        event(25, FINISH, 3),
        event(26, SUBMIT, 4),
    )
    assert told(read(path, TraceWindow(10, 20))) == [("7-0", 10, 15), ("7-2", 12, 13), ("7-3", 14, None)]
    assert told(read(path, TraceWindow(10))) == [
        ("7-0", 10, 15),
        ("7-2", 12, 13),
        ("7-3", 14, 25),
        ("7-4", 26, None),
    ]
    assert told(read(path, TraceWindow(27))) == [("7-4", 27, None)]


def test_a_limit_ends_reading_as_soon_as_nothing_more_is_to_be_learnt(lines):
    broken = {"time": "not read", "type": "0", "collection_id": "7", "instance_index": "9"}
    events = (
        event(1, SUBMIT, 0),
        event(2, SUBMIT, 1),
        event(3, SUBMIT, 2),
        event(4, FINISH, 1),
        event(5, KILL, 0),
    )
    path = lines(*events, broken)
    assert told(read(path, TraceWindow(limit=2))) == [("7-0", 1, 5), ("7-1", 2, 4)]
    early = lines(*events[:3], broken)
    assert [name for name, _, _ in told(read(early, TraceWindow(limit=2, departures=False)))] == [
        "7-0",
        "7-1",
    ]


@pytest.mark.parametrize("spelling", ["resource_request.cpus,resource_request.memory", "cpus,memory"])
def test_an_export_as_csv_says_the_same(tmp_path, spelling):
    path = tmp_path / "events.csv"
    path.write_text(
        f"type,time,collection_id,user,instance_index,{spelling}\n0,1000000,7,u,0,0.5,0.25\nFINISH,2000000,7,u,0,,\n"
    )
    recording = read(path)
    assert told(recording) == [("7-0", 1, 2)]
    assert dict(recording.pods[0].workload.template.spec.requests)["cpu"] == 32_000


def test_gzip_is_unpacked_also_of_several_files_one_after_the_other(tmp_path):
    parts = [json.dumps(event(1, SUBMIT)) + "\n", json.dumps(event(2, FINISH)) + "\n"]
    path = tmp_path / "all.json.gz"
    path.write_bytes(b"".join(gzip.compress(part.encode()) for part in parts))
    assert told(read(path)) == [("7-0", 1, 2)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "",
            "line 1: has no column time, type, collection_id, instance_index, resource_request.cpus, resource_request.memory; found nothing",
        ),
        (
            "time,type,collection_id,cpus,memory\n",
            "line 1: has no column instance_index; found time, type, collection_id",
        ),
        (
            "time,type,collection_id,instance_index,CPU,memory\n",
            "line 1: has no column resource_request.cpus; found time",
        ),
        (
            '{"time": 1, "type": 0, "collection": 3}\n',
            "line 1: has no column collection_id, instance_index; found time, type, collection",
        ),
        ('{"time": 1}\n'[:-2], "line 1: is no JSON"),
        ("{}\n[1]\n", "has no column time"),
        (
            "time,type,collection_id,instance_index,cpus,memory\n5,0,1,0,,\n4,0,1,1,,\n",
            "line 3, column time: is 4 and 5 comes before it; sort the events",
        ),
        (
            "time,type,collection_id,instance_index,cpus,memory\nnoon,0,1,0,,\n",
            "line 2, column time: is 'noon'; a whole number belongs here",
        ),
        (
            "time,type,collection_id,instance_index,cpus,memory\n1,11,1,0,,\n",
            "line 2, column type: is '11'; 0 to 10 or one of SUBMIT, QUEUE",
        ),
        ("time,type,collection_id,instance_index,cpus,memory\n1,,1,0,,\n", "line 2, column type: is empty"),
        (
            "time,type,collection_id,instance_index,cpus,memory\n1,0,1,0,1.5,0\n",
            "column resource_request.cpus: is '1.5'; a share of the largest",
        ),
        (
            "time,type,collection_id,instance_index,cpus,memory\n1,0,1\n",
            "line 2: has 3 columns where 6 belong; instance_index is missing",
        ),
    ],
)
def test_bad_input_is_told_with_its_place(tmp_path, text, problem):
    path = tmp_path / "events.csv"
    path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read(path)
    assert problem in str(caught.value)


def test_damaged_gzip_and_files_that_are_not_there_are_told(tmp_path):
    damaged = tmp_path / "events.json.gz"
    damaged.write_bytes(gzip.compress(b'{"time": 1}\n' * 1000)[:30])
    with pytest.raises(InvalidInput, match="is damaged gzip"):
        read(damaged)
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        read(tmp_path / "nowhere.json")


def test_machines_have_the_capacity_they_were_added_with(tmp_path):
    rows = [
        ["time", "machine_id", "type", "capacity.cpus", "capacity.memory"],
        [0, 11, 1, 0.5, 0.25],
        [0, 12, "ADD", 1, 1],
        [0, 13, 1, "", ""],
        [5, 11, 3, 1, 1],
        [6, 11, 1, 1, 1],
    ]
    with (tmp_path / "machines.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    small, large = read_machines(tmp_path / "machines.csv", LARGEST)
    assert (small.name, small.allocatable) == (
        "machine-11",
        (("cpu", 32_000), ("memory", 64 * 2**30), ("pods", PODS_PER_NODE)),
    )
    assert dict(large.allocatable)["cpu"] == 64_000
