"""Azure's packing trace: VMs as pods of one kind of machine, from the SQLite file."""

import sqlite3

import pytest

from hoss.errors import InvalidInput
from hossctl.traces.azure2020 import DAY_SECONDS, PARTS, read
from hossctl.traces.recording import LARGEST, TraceWindow

VM = "CREATE TABLE vm (vmId, tenantId, vmTypeId, priority, starttime, endtime)"
VM_TYPE = "CREATE TABLE vmType (id, vmTypeId, machineId, core, memory, hdd, ssd, nic)"
# Machine 2 takes both types, machine 1 only the first.
TYPES = [
    (0, 100, 1, 0.5, 0.5, 0, 0.1, 0),
    (1, 100, 2, 0.25, 0.125, 0, 0.05, 0.001),
    (2, 200, 2, 1, 1, 0, 1, 1),
]
VMS = [
    (1, 9, 100, 0, -2.0, 0.5),
    (2, 9, 200, 1, 1.0, None),
    (3, 9, 100, 0, 0.25, 3.0),
    (4, 9, 100, 1, -3.0, -1.0),
]


@pytest.fixture
def file(tmp_path):
    def write(*, vms=VMS, types=TYPES, tables=(VM, VM_TYPE)):
        path = tmp_path / "packing.sqlite"
        path.unlink(missing_ok=True)
        database = sqlite3.connect(path)
        with database:
            for table in tables:
                database.execute(table)
            if len(tables) == 2 and "core" in tables[1] and "endtime" in tables[0]:
                database.executemany("INSERT INTO vm VALUES (?, ?, ?, ?, ?, ?)", vms)
                database.executemany("INSERT INTO vmType VALUES (?, ?, ?, ?, ?, ?, ?, ?)", types)
        database.close()
        return path

    return write


def told(recording):
    days = [(pod.creation_seconds, pod.deletion_seconds) for pod in recording.pods]
    return [
        (pod.workload.name, start / DAY_SECONDS, end if end is None else end / DAY_SECONDS)
        for pod, (start, end) in zip(recording.pods, days, strict=True)
    ]


def test_vms_come_in_order_of_time_and_those_without_an_end_stay(file):
    recording = read(file(), 3, LARGEST, TraceWindow())
    # What was there before the recording comes at once; what was gone by then not at all.
    assert told(recording) == [("vm-1", 0, 0.5), ("vm-3", 0.25, 3), ("vm-2", 1, None)]
    assert recording.left_out == {}


def test_amounts_are_shares_of_the_machine_that_takes_most_types(file):
    recording = read(file(), 3, LARGEST, TraceWindow())
    small, _, large = (dict(pod.workload.template.spec.requests) for pod in recording.pods)
    assert small == {
        "cpu": 16_000,
        "memory": 32 * 2**30,
        "azure.com/ssd": PARTS // 20,
        "azure.com/nic": PARTS // 1000,
    }
    assert large["azure.com/ssd"] == dict(recording.nodes[0].allocatable)["azure.com/ssd"] == PARTS
    assert (len(recording.nodes), dict(recording.nodes[0].allocatable)["cpu"]) == (3, 64_000)


def test_vms_that_the_chosen_machine_does_not_take_are_left_out_and_counted(file):
    recording = read(file(), 3, LARGEST, TraceWindow(), machine_type=1)
    assert [name for name, _, _ in told(recording)] == ["vm-1", "vm-3"]
    assert dict(recording.pods[0].workload.template.spec.requests)["cpu"] == 32_000
    assert recording.left_out == {"VMs of types that machine 1 does not take": 1}


def test_vms_of_high_priority_come_before_others_and_preempt_nobody(file):
    urgent, other = (read(file(), 3, LARGEST, TraceWindow()).pods[i].workload.template.spec for i in (0, 2))
    assert urgent.priority > other.priority
    assert not urgent.may_preempt


def test_a_window_and_a_limit_cut_out_a_part(file):
    day = DAY_SECONDS
    assert told(read(file(), 3, LARGEST, TraceWindow(0.4 * day, 2 * day))) == [
        ("vm-1", pytest.approx(0.4), 0.5),
        ("vm-3", pytest.approx(0.4), None),
        ("vm-2", 1, None),
    ]
    assert [name for name, _, _ in told(read(file(), 3, LARGEST, TraceWindow(0.6 * day, limit=1)))] == [
        "vm-3"
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tables": (VM,)}, "has no table vmType; found vm"),
        (
            {"tables": (VM, VM_TYPE.replace("core", "cores"))},
            "table vmType: has no column core; found id, vmTypeId, machineId, cores",
        ),
        (
            {"tables": (VM.replace("endtime", "stop"), VM_TYPE)},
            "table vm: has no column endtime; found vmId, tenantId",
        ),
        ({"types": []}, "table vmType: has no rows"),
        (
            {"types": [(0, 100, 1, 1.5, 0, 0, 0, 0)]},
            "vmTypeId 100, column core: is 1.5; a share of the machine belongs here",
        ),
        ({"vms": [(5, 9, 100, 0, 2.0, 1.0)]}, "vmId 5, column endtime: is 1, before its starttime 2"),
        (
            {"vms": [(5, 9, 100, 0, -1, "soon")]},
            "vmId 5, column endtime: is 'soon'; a number of days belongs here",
        ),
    ],
)
def test_bad_input_is_told_with_its_place(file, change, problem):
    with pytest.raises(InvalidInput) as caught:
        read(file(**change), 3, LARGEST, TraceWindow())
    assert problem in str(caught.value)


def test_machines_that_are_not_there_and_files_that_are_none_are_refused(file, tmp_path):
    with pytest.raises(InvalidInput, match=r"--machine-type: 5 is no machine of .*; it has 1, 2"):
        read(file(), 3, LARGEST, TraceWindow(), machine_type=5)
    (tmp_path / "text.sqlite").write_text("no database, whatever its name says" * 100)
    with pytest.raises(InvalidInput, match="is no SQLite file that can be read"):
        read(tmp_path / "text.sqlite", 3, LARGEST, TraceWindow())
    with pytest.raises(InvalidInput, match="cannot be read: no such file"):
        read(tmp_path / "nowhere.sqlite", 3, LARGEST, TraceWindow())
