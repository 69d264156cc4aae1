"""The reference's own answers (README.md in this folder) for quantities and for pods' totals."""

import json
from pathlib import Path
from typing import Any

import pytest

from hoss.errors import InvalidInput
from hoss.manifests.node import read_node
from hoss.manifests.pod_resources import (
    amounts,
    as_bound,
    nonzero_requests,
    qos_class,
    read_pod_resources,
    total_limits,
    total_requests,
)
from hoss.manifests.workloads import read_workload
from hoss.model.quantity import parse_quantity


def cases(name: str) -> list[Any]:
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    return [pytest.param(case, id=case["id"]) for case in map(json.loads, lines)]


@pytest.mark.parametrize("case", cases("quantities.jsonl"))
def test_a_quantity_is_read_and_spelled_as_the_reference_does(case):
    try:
        quantity = parse_quantity(case["quantity"])
    except InvalidInput:
        assert case["want"]["error"]
        return
    got = {
        "error": False,
        "canonical": quantity.canonical,
        "normalized": quantity.normalized,
        "value": quantity.value,
        "milli": quantity.milli,
    }
    # The reference leaves out a value or milli that overflows its 64 bits.
    assert case["want"] == {key: got[key] for key in case["want"]}


@pytest.mark.parametrize("as_submitted", [False, True], ids=["stored", "submitted"])
@pytest.mark.parametrize("case", cases("podrequests.jsonl"))
def test_a_pods_totals_are_the_references_before_and_after_the_api_servers_defaulting(case, as_submitted):
    pod = case.get("submitted", case["pod"]) if as_submitted else case["pod"]
    resources = read_pod_resources(pod["spec"], "spec")
    requests, limits = total_requests(resources), total_limits(resources)
    bound = as_bound(resources, pod.get("status", {}))
    cpu_milli, memory_bytes = nonzero_requests(bound)
    assigned = {"cpu": 0, "memory": 0, "ephemeral-storage": 0, **amounts(total_requests(bound), "spec")}
    assert case["want"] == {
        "requests": {name: q.canonical for name, q in requests.items()},
        "requestsInt": amounts(requests, "spec"),
        "limits": {name: q.canonical for name, q in limits.items()},
        "limitsInt": amounts(limits, "spec"),
        "assigned": assigned,
        "assignedNonZero": {"cpu": cpu_milli, "memory": memory_bytes},
        "qosClass": qos_class(resources).value,
    }


@pytest.mark.parametrize(
    "file", sorted(p.name for p in Path(__file__).parent.glob("*.jsonl") if p.name != "quantities.jsonl")
)
def test_every_pod_and_node_that_the_api_server_accepted_is_accepted(file):
    for line in (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        for pod in [case["pod"], *case.get("pods", [])]:
            assert read_workload(pod, lambda: "abcde").workload is not None
        for node in case.get("nodes", []):
            assert read_node(node).name == node["metadata"]["name"]
