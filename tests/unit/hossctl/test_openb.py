from pathlib import Path

import pytest

from hoss.errors import InvalidInput
from hoss.model.pod import DeviceRequest
from hossctl.traces.openb import read_nodes, read_pods, read_trace

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,"
    "scheduled_time\n"
)


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "trace.csv"
        path.write_text(text)
        return path

    return write


def test_nodes_have_their_cards_and_the_cards_model_as_a_label(file):
    plain, gpu = read_nodes(file(NODES + "n0,32000,262144,0,\nn1,96000,393216,8,G2\n"))
    assert plain.labels == (("kubernetes.io/hostname", "n0"),)
    assert plain.allocatable == (("cpu", 32000), ("memory", 256 * 2**30), ("pods", 256))
    assert plain.cards == 0
    assert gpu.labels == (("hoss.dev/gpu-model", "G2"), ("kubernetes.io/hostname", "n1"))
    assert dict(gpu.allocatable)["nvidia.com/gpu"] == gpu.cards == 8


def test_shares_whole_cards_and_no_cards_are_told_apart(file):
    rows = (
        "a,6000,1024,1,460,,LS,Running,7,9,8\nb,1000,1024,2,1000,,BE,Running,0,9,\n"
        "c,1000,1024,0,0,,LS,Running,0,9,0\n"
    )
    share, whole, none = (w.template.spec for w in read_pods(file(PODS + rows)))
    assert (share.devices, dict(share.requests)) == (DeviceRequest(1, 460), {"cpu": 6000, "memory": 2**30})
    assert (whole.devices, dict(whole.requests)["nvidia.com/gpu"]) == (DeviceRequest(2, 1000), 2)
    assert none.devices is None


def test_allowed_card_models_become_a_required_node_affinity(file):
    (pod,) = read_pods(file(PODS + "a,6000,1024,1,1000,V100M32|V100M16,LS,Running,0,9,0\n"))
    affinity = pod.template.spec.required_node_affinity
    assert affinity.matches({"hoss.dev/gpu-model": "V100M16"}, "n")
    assert not affinity.matches({"hoss.dev/gpu-model": "T4"}, "n")
    assert not affinity.matches({}, "n")


def test_pods_of_one_shape_share_a_template_and_keep_their_times(file):
    rows = "a,6000,1024,1,460,,LS,Running,7,9,8\nb,6000,1024,1,460,,BE,Running,8,10,8\n"
    first, second = read_trace(file(PODS + rows))
    assert first.workload.template is second.workload.template
    assert (first.creation_seconds, first.deletion_seconds) == (7, 9)
    assert second.workload.name == "b"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name,cpu_milli\n", "line 1: has no column memory_mib, num_gpu"),
        ("", "line 1: has no column name"),
        (PODS + "a,6000,1024\n", "line 2: has 3 columns where 11 belong; num_gpu is missing"),
        (PODS + "a,6000,1024,1,460,,LS,Running,7,9,8,9\n", "line 2: has 12 columns where 11 belong"),
        (
            PODS + "a,6000,1024,0,0,,LS,Running,0,9,\nb,six,1024,0,0,,LS,Running,0,9,\n",
            "line 3, column cpu_milli: is 'six'",
        ),
        (PODS + "a,-1,1024,0,0,,LS,Running,0,9,\n", "line 2, column cpu_milli: is '-1'; a whole number"),
        (
            PODS + "a,1,99999999999,0,0,,LS,Running,0,9,\n",
            "line 2, column memory_mib: is 99999999999; it is 8589934592 at most",
        ),
        (PODS + "a,,1024,0,0,,LS,Running,0,9,\n", "line 2, column cpu_milli: is empty"),
        (
            PODS + "a,1,1024,1,0,,LS,Running,0,9,\n",
            "line 2, column gpu_milli: is 0; it is 1000 for whole cards",
        ),
        (PODS + "a,1,1024,2,500,,LS,Running,0,9,\n", "line 2, column gpu_milli: is 500"),
        (PODS + "a,1,1024,17,1000,,LS,Running,0,9,\n", "line 2, column num_gpu: is 17"),
        (PODS + "a,1,1,0,0,,LS,Running,0,9,\n" * 2, "line 3, column name: 'a' is in the file twice"),
        (PODS + '"a', "is no CSV text"),
    ],
)
def test_a_wrong_row_is_refused_with_line_column_and_value(file, text, problem):
    path = file(text)
    with pytest.raises(InvalidInput) as refusal:
        read_trace(path)
    assert str(refusal.value).startswith(str(path))
    assert problem in str(refusal.value)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("n,1,1,17,X", "column gpu: is 17; HOSS keeps account of 16"),
        ("n,1,1,0,\nn,1,1,0,", "line 3, column sn: 'n' is in"),
    ],
)
def test_a_wrong_node_is_refused(file, row, problem):
    with pytest.raises(InvalidInput, match=problem):
        read_nodes(file(NODES + row + "\n"))


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(InvalidInput, match=r"/no/such\.csv: cannot be read: No such file"):
        read_nodes(Path("/no/such.csv"))


def test_pods_of_a_list_without_times_come_at_the_beginning_and_stay(file):
    """The four lists named multigpu have five columns of eleven."""
    path = file("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,6000,1024,4,1000\nb,4000,1024,1,250\n")
    assert [w.template.spec.devices for w in read_pods(path)] == [
        DeviceRequest(4, 1000),
        DeviceRequest(1, 250),
    ]
    assert [(p.workload.name, p.creation_seconds, p.deletion_seconds) for p in read_trace(path)] == [
        ("a", 0.0, None),
        ("b", 0.0, None),
    ]


def test_columns_are_found_by_name_in_any_order_and_what_is_not_needed_may_be_anything(file):
    path = file(
        "deletion_time,qos,gpu_milli,extra,num_gpu,name,creation_time,memory_mib,cpu_milli\n"
        "9,LS,460,x,1,a,3,1024,6000\n"
    )
    (pod,) = read_trace(path)
    assert (pod.workload.name, pod.creation_seconds, pod.deletion_seconds) == ("a", 3.0, 9.0)
    assert pod.workload.template.spec.devices == DeviceRequest(1, 460)


@pytest.mark.parametrize("missing", ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"])
def test_a_list_without_a_column_that_is_needed_is_refused_with_its_name(file, missing):
    there = [c for c in ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli") if c != missing]
    path = file(",".join(there) + "\n" + ",".join("1" for _ in there) + "\n")
    with pytest.raises(InvalidInput, match=f"line 1: has no column {missing}; found {there[0]}"):
        read_trace(path)


def test_a_list_with_one_of_the_times_needs_the_other(file):
    path = file("name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time\na,6000,1024,0,0,7\n")
    with pytest.raises(InvalidInput, match="column deletion_time: is not in the file; a list has both"):
        read_trace(path)
