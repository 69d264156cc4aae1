import pytest

from hoss.errors import InvalidInput
from hoss.manifests.node import NodeReservations, read_node
from hoss.model.node import Taint

GIB = 2**30


def node(**status):
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "labels": {"zone": "a"}},
        "status": status,
    }


def test_a_node_is_read_from_its_allocatable():
    manifest = node(allocatable={"cpu": "3920m", "memory": "7Gi", "pods": "110"}, capacity={"cpu": "4"})
    manifest["spec"] = {
        "unschedulable": True,
        "taints": [{"key": "dedicated", "value": "db", "effect": "NoSchedule"}],
    }
    read = read_node(manifest)
    assert read.name == "n1"
    assert read.labels == (("zone", "a"),)
    assert read.unschedulable
    assert read.taints == (Taint("dedicated", "db", "NoSchedule"),)
    assert read.declared_features == ()
    assert read_node(node(allocatable={}, declaredFeatures=["B", "A"])).declared_features == ("A", "B")
    assert read.allocatable == (("cpu", 3920), ("memory", 7 * GIB), ("pods", 110))


def test_a_node_that_the_api_server_has_without_amounts_offers_nothing_yet():
    assert read_node(node(), reservations=None).allocatable == ()
    assert read_node(node(capacity={"cpu": "4"}), reservations=None).allocatable == (("cpu", 4000),)


def test_capacity_alone_gives_what_the_reservations_and_hugepages_leave():
    reservations = NodeReservations(
        kube_reserved={"cpu": "100m", "memory": "1Gi"},
        system_reserved={"cpu": "50m", "memory": "512Mi"},
        eviction_hard={"memory.available": "512Mi", "nodefs.available": "10%", "pid.available": "5%"},
    )
    capacity = {
        "cpu": "4",
        "memory": "16Gi",
        "ephemeral-storage": "100Gi",
        "hugepages-2Mi": "2Gi",
        "pods": 110,
    }
    assert dict(read_node(node(capacity=capacity), reservations).allocatable) == {
        "cpu": 3850,
        "memory": 12 * GIB,
        "ephemeral-storage": 90 * GIB,
        "hugepages-2Mi": 2 * GIB,
        "pods": 110,
    }


def test_reservations_do_not_touch_a_node_that_says_what_is_allocatable():
    read = read_node(node(allocatable={"cpu": "4"}), NodeReservations(kube_reserved={"cpu": "1"}))
    assert read.allocatable == (("cpu", 4000),)


def test_nothing_goes_below_zero():
    reservations = NodeReservations(kube_reserved={"cpu": "8"}, eviction_hard={"memory.available": "100%"})
    read = read_node(node(capacity={"cpu": "4", "memory": "1Gi", "hugepages-1Gi": "1Gi"}), reservations)
    assert dict(read.allocatable) == {"cpu": 0, "memory": 0, "hugepages-1Gi": GIB}


@pytest.mark.parametrize(
    ("reservations", "problem"),
    [
        ({"eviction_hard": {"memory.available": "101%"}}, r"evictionHard\.memory\.available: is 101%"),
        ({"eviction_hard": {"memory.available": "-1%"}}, "cannot be negative"),
        (
            {"eviction_hard": {"memory.free": "1Gi"}},
            r"evictionHard\.memory\.free: is no eviction signal; they are memory.available",
        ),
        ({"kube_reserved": {"cpu": "1x"}}, r"kubeReserved\.cpu: '1x' is no quantity"),
        ({"system_reserved": {"cpu": "-1"}}, r"systemReserved\.cpu: is -1; a reservation cannot be negative"),
    ],
)
def test_an_unusable_reservation_is_refused(reservations, problem):
    with pytest.raises(InvalidInput, match=problem):
        read_node(node(capacity={"cpu": "4", "memory": "1Gi"}), NodeReservations(**reservations))


def test_cards_are_counted_from_the_device_resource():
    assert read_node(node(allocatable={"nvidia.com/gpu": "8"})).cards == 8
    with pytest.raises(InvalidInput, match="is 17; HOSS keeps account of 16 cards"):
        read_node(node(allocatable={"nvidia.com/gpu": "17"}))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"metadata": {}}, r"metadata\.name: is missing"),
        ({"metadata": {"name": "N_1"}}, r"metadata\.name: 'N_1' is no valid name"),
        ({"status": {}}, r"status\.allocatable: is missing, and so is capacity"),
        (
            {"status": {"allocatable": {"cpu": "-4"}}},
            r"status\.allocatable\.cpu: is -4; an amount cannot be negative",
        ),
        (
            {"status": {"allocatable": {"memory": "16Ei"}}},
            r"status\.allocatable\.memory: is .* HOSS counts up to 2\^53",
        ),
        (
            {"status": {"allocatable": {"memory": "4GB"}}},
            r"status\.allocatable\.memory: '4GB' is no quantity",
        ),
        (
            {"spec": {"taints": [{"key": "a", "effect": "NoExecute", "timeAdded": "noon"}]}},
            r"spec\.taints\[0\]\.timeAdded: 'noon' is no time; write it as 2026-01-02T03:04:05Z",
        ),
        ({"spec": {"taints": [{"key": "a"}]}}, r"spec\.taints\[0\]\.effect: is missing; allowed: NoSchedule"),
        ({"spec": {"taints": [{"effect": "NoExecute"}]}}, r"spec\.taints\[0\]\.key: '' is no valid key"),
    ],
)
def test_a_wrong_node_is_refused_with_the_field(change, problem):
    with pytest.raises(InvalidInput, match=problem):
        read_node({**node(allocatable={"cpu": "4"}), **change})
