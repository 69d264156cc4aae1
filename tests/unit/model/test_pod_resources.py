import pytest

from hoss.errors import InvalidInput
from hoss.manifests.pod_resources import (
    amounts,
    as_bound,
    nonzero_requests,
    qos_class,
    read_pod_resources,
    total_limits,
    total_requests,
)
from hoss.model.pod import QosClass

MIB = 2**20


def container(requests=None, limits=None, name="c", **fields):
    return {"name": name, "resources": {"requests": requests or {}, "limits": limits or {}}, **fields}


def read(*containers, init=(), **spec):
    return read_pod_resources({"containers": list(containers), "initContainers": list(init), **spec}, "spec")


def requested(pod):
    return amounts(total_requests(pod), "spec")


def test_containers_add_up_and_round_up_once():
    pod = read(container({"cpu": "0.0001"}), container({"cpu": "0.0001"}))
    assert requested(pod) == {"cpu": 1}


def test_an_init_container_counts_only_where_it_needs_more_than_the_pod():
    pod = read(container({"cpu": "1", "memory": "1Gi"}), init=[container({"cpu": "2", "memory": "1Mi"})])
    assert requested(pod) == {"cpu": 2000, "memory": 2**30}


def test_a_sidecar_adds_to_the_pod_and_to_the_init_containers_after_it_alone():
    sidecar = container({"cpu": "500m"}, restartPolicy="Always")
    step = container({"cpu": "2"})
    assert requested(read(container({"cpu": "1"}), init=[sidecar, step])) == {"cpu": 2500}
    assert requested(read(container({"cpu": "1"}), init=[step, sidecar])) == {"cpu": 2000}


def test_a_limit_stands_in_for_a_missing_request_and_overhead_is_added():
    pod = read(container(limits={"cpu": "1", "memory": "1Gi"}), overhead={"cpu": "100m"})
    assert requested(pod) == {"cpu": 1100, "memory": 2**30}
    assert amounts(total_limits(pod), "spec") == {"cpu": 1100, "memory": 2**30}


def test_overhead_makes_no_limit_where_there_was_none():
    pod = read(container(limits={"memory": "0"}), overhead={"cpu": "100m", "memory": "1Mi"})
    assert amounts(total_limits(pod), "spec") == {"memory": 0}


def test_pod_level_requests_replace_the_sum():
    pod = read(container({"cpu": "1", "memory": "1Gi"}), resources={"requests": {"cpu": "3"}})
    assert requested(pod) == {"cpu": 3000, "memory": 2**30}


def test_a_pod_level_limit_alone_takes_the_containers_total_or_itself_as_request():
    pod = read(container({"cpu": "500m"}), resources={"limits": {"cpu": "2", "memory": "1Gi"}})
    assert requested(pod) == {"cpu": 500, "memory": 2**30}


def test_containers_that_name_nothing_count_100m_and_200_mib_in_scores_only():
    pod = read(container(), container({"cpu": "0", "memory": "1Mi"}))
    assert requested(pod) == {"cpu": 0, "memory": MIB}
    assert nonzero_requests(pod) == (100, 201 * MIB)


def test_a_running_container_takes_the_largest_of_asked_allocated_and_used():
    pod = read(container({"cpu": "200m", "memory": "1Gi"}))
    report = {
        "name": "c",
        "allocatedResources": {"cpu": "800m"},
        "resources": {"requests": {"cpu": "1200m", "memory": "1Mi"}},
    }
    assert requested(as_bound(pod, {"containerStatuses": [report]})) == {"cpu": 1200, "memory": 2**30}
    infeasible = [{"type": "PodResizePending", "reason": "Infeasible"}]
    assert requested(as_bound(pod, {"containerStatuses": [report], "conditions": infeasible})) == {
        "cpu": 1200,
        "memory": MIB,
    }


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([container()], QosClass.BEST_EFFORT),
        ([container({"cpu": "0"})], QosClass.BEST_EFFORT),
        ([container({"example.com/fpga": "1"})], QosClass.BEST_EFFORT),
        ([container({"cpu": "1"})], QosClass.BURSTABLE),
        ([container(limits={"cpu": "1", "memory": "1Gi"})], QosClass.GUARANTEED),
        ([container({"cpu": "1"}, {"cpu": "2", "memory": "1Gi"})], QosClass.BURSTABLE),
        ([container(limits={"cpu": "1", "memory": "1Gi"}), container()], QosClass.BURSTABLE),
    ],
)
def test_the_qos_class_follows_cpu_and_memory(containers, expected):
    assert qos_class(read(*containers)) is expected


@pytest.mark.parametrize(
    ("requests", "limits", "place", "problem"),
    [
        ({"memory": "2GiB"}, {}, "resources.requests.memory: '2GiB'", "unknown suffix 'GiB'"),
        ({"cpu": "-1"}, {}, "resources.requests.cpu", "is -1; an amount cannot be negative"),
        (
            {"memory": "9Pi"},
            {},
            "resources.requests.memory",
            "is 9Pi, 10133099161583616 whole units; HOSS counts up to 2^53",
        ),
        ({"cpu": "10T"}, {}, "resources.requests.cpu", "thousandths of a core"),
        ({"cpu": "1e300"}, {}, "resources.requests.cpu", "... (304 characters) thousandths of a core"),
        ({"hugepages-2Mi": "4Mi"}, {}, "requests.hugepages-2Mi", "without a limit"),
        (
            {"hugepages-2Mi": "4Mi"},
            {"hugepages-2Mi": "8Mi"},
            "requests.hugepages-2Mi",
            "is 4Mi, but the limit is 8Mi",
        ),
        ({}, {"hugepages-2Mi": "3Mi"}, "resources", "no multiple of the page size 2Mi"),
        ({}, {"hugepages-big": "3Mi"}, "resources", "names no page size"),
        ({"example.com/fpga": "1500m"}, {}, "resources", "example.com/fpga is 1500m"),
        ({"gpu": "1"}, {}, "resources", "'gpu' is no resource of a container"),
        ({"cpu": "2"}, {"cpu": "1"}, "requests.cpu", "is 2, but the limit is 1"),
        ({"cpu": [1]}, {}, "requests.cpu", "is no quantity"),
        ({"a b/c": "1"}, {}, "requests", "no valid key"),
    ],
)
def test_what_no_node_could_grant_is_refused_with_its_place(requests, limits, place, problem):
    with pytest.raises(InvalidInput) as refusal:
        read(container(), container(requests, limits))
    assert str(refusal.value).startswith("spec.containers[1].resources")
    assert place in str(refusal.value)
    assert problem in str(refusal.value)


def test_amounts_that_only_together_pass_2_to_the_53_are_refused():
    pod = read(container({"memory": "5Pi"}), container({"memory": "5Pi"}))
    with pytest.raises(InvalidInput, match="spec: total of memory: is 10Pi"):
        requested(pod)


def test_a_pod_needs_a_container():
    with pytest.raises(InvalidInput, match=r"spec\.containers: is empty"):
        read()


def test_a_pod_as_a_whole_has_cpu_memory_and_hugepages_only():
    with pytest.raises(
        InvalidInput, match=r"spec\.resources: 'nvidia.com/gpu' cannot be set for a whole pod"
    ):
        read(container(), resources={"limits": {"nvidia.com/gpu": 1}})


def test_a_status_that_names_no_container_is_refused_with_its_place():
    resources = read_pod_resources({"containers": [{"name": "c"}]}, "spec")
    with pytest.raises(
        InvalidInput, match=r"status\.containerStatuses\.name: is a list, where a string belongs"
    ):
        as_bound(resources, {"containerStatuses": [{"name": ["c"]}]})
