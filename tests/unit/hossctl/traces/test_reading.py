"""Traces by format, and what commands that play them ask for."""

import json
import math

import pytest

from hoss.errors import InvalidInput
from hossctl.choices import TraceFormat
from hossctl.commands.replay import DEFAULT_MACHINE, read_machine, read_window
from hossctl.traces.reading import Source, read
from hossctl.traces.recording import LARGEST, TraceMachine, TraceWindow

# Who stops at a wrong row leaves no file open.
pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,262144,0,\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time\n"
TIMES = ((5, 40), (10, 20), (15, 90), (30, 35))


@pytest.fixture
def openb(tmp_path):
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS + "".join(f"p{a},100,100,0,0,,LS,{a},{b}\n" for a, b in TIMES))

    def source(window):
        return Source(TraceFormat.OPENB, str(tmp_path / "nodes.csv"), tmp_path / "pods.csv", window=window)

    return source


@pytest.mark.parametrize(
    ("window", "there"),
    [
        (TraceWindow(), [("p5", 5, 40), ("p10", 10, 20), ("p15", 15, 90), ("p30", 30, 35)]),
        (TraceWindow(limit=2), [("p5", 5, 40), ("p10", 10, 20)]),
        (TraceWindow(25, 60), [("p5", 25, 40), ("p15", 25, None), ("p30", 30, 35)]),
        (TraceWindow(0, 12), [("p5", 5, None), ("p10", 10, None)]),
    ],
)
def test_a_window_of_openb_has_those_there_at_its_begin_and_those_that_come_before_its_end(
    openb, window, there
):
    pods = read(openb(window)).pods
    assert [(pod.workload.name, pod.creation_seconds, pod.deletion_seconds) for pod in pods] == there


def test_a_window_in_which_nothing_is_there_is_refused(openb):
    with pytest.raises(InvalidInput, match=r"pods\.csv: holds no pods in the requested time"):
        read(openb(TraceWindow(1000, 2000)))


def test_machines_of_google_are_a_number_of_them_or_those_of_a_file(tmp_path):
    event = {
        "time": 1,
        "type": 0,
        "collection_id": 1,
        "instance_index": 0,
        "resource_request": {"cpus": 0.1, "memory": 0.1},
    }
    (tmp_path / "events.json").write_text(json.dumps(event))
    (tmp_path / "machines.csv").write_text("machine_id,type,cpus,memory\n5,1,0.5,0.5\n")
    for nodes, names in (
        ("2", ["machine-00000", "machine-00001"]),
        (str(tmp_path / "machines.csv"), ["machine-5"]),
    ):
        recording = read(Source(TraceFormat.GOOGLE2019, nodes, tmp_path / "events.json"))
        assert [node.name for node in recording.nodes] == names
        assert len(recording.pods) == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"collections": "c"}, "--collections: openb has no collection events"),
        ({"machine_type": 3}, "--machine-type: openb has no types of machines"),
        ({"machine": TraceMachine(1, 1)}, "--machine: openb itself has the sizes"),
    ],
)
def test_options_of_another_format_are_refused(tmp_path, options, problem):
    with pytest.raises(InvalidInput, match=problem):
        read(Source(TraceFormat.OPENB, "n", tmp_path, **options))


@pytest.mark.parametrize("option", ["--nodes", "--trace-nodes"])
@pytest.mark.parametrize(
    ("form", "nodes", "problem"),
    [
        (TraceFormat.AZURE2020, "nodes.csv", "'nodes.csv' is no number"),
        (TraceFormat.AZURE2020, "0", "0 machines hold no pod"),
        (TraceFormat.GOOGLE2019, "00", "0 machines hold no pod"),
        (TraceFormat.OPENB, "12", "openb has a list of its machines"),
    ],
)
def test_a_wrong_number_of_machines_is_told_by_the_option_that_gave_it(
    tmp_path, form, nodes, problem, option
):
    with pytest.raises(InvalidInput, match=f"^{option}: {problem}"):
        read(Source(form, nodes, tmp_path, nodes_option=option))


def test_times_are_seconds_or_have_a_unit():
    assert read_window("90", "1.5h", 0, 1.0) == TraceWindow(90, 5400)
    assert read_window("2d", "", 7, 0.0) == TraceWindow(172_800, math.inf, 7, departures=False)


@pytest.mark.parametrize(
    ("begin", "end", "problem"),
    [
        ("noon", "", "--from: 'noon' is no time; write seconds, or 15m, 6h, 2d"),
        ("", "-3", "--to: '-3' is no time"),
        ("2h", "1h", "--to: 1h is not after --from 2h"),
    ],
)
def test_what_is_no_time_is_refused(begin, end, problem):
    with pytest.raises(InvalidInput, match=problem):
        read_window(begin, end, 0, 1.0)


def test_the_machine_is_cpus_and_memory():
    assert read_machine(DEFAULT_MACHINE) == LARGEST
    assert read_machine("1500m,1G") == TraceMachine(1500, 10**9)
    for text, problem in (
        ("64", "is no machine"),
        ("64,lots", "no quantity"),
        ("0,1Gi", "has nothing to give"),
    ):
        with pytest.raises(InvalidInput, match=f"--machine: .*{problem}"):
            read_machine(text)
