"""SimulatedNodes: pools of equal nodes, described once."""

import pytest

from hoss.errors import InvalidInput
from hossctl.load.nodes import read_nodes_file

POOLS = """\
apiVersion: hoss.dev/v1alpha1
kind: SimulatedNodes
pools:
  - name: small
    count: 3
    zones: [a, b]
    template:
      metadata: {labels: {disk: ssd}}
      spec: {taints: [{key: k, value: v, effect: NoSchedule}]}
      status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
  - name: large
    count: 1
    template: {status: {allocatable: {cpu: "64", memory: 256Gi, pods: "110"}}}
"""


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        (tmp_path / "nodes.yaml").write_text(text)
        return read_nodes_file(tmp_path / "nodes.yaml")

    return read_text


def test_a_pool_is_so_many_nodes_of_its_template_and_they_take_turns_through_the_zones(read):
    nodes = read(POOLS)
    assert [node.name for node in nodes] == ["small-00000", "small-00001", "small-00002", "large-00000"]
    zones = [dict(node.labels).get("topology.kubernetes.io/zone") for node in nodes]
    assert zones == ["a", "b", "a", None]
    assert dict(nodes[1].labels)["kubernetes.io/hostname"] == "small-00001"
    assert dict(nodes[1].labels)["disk"] == "ssd"
    assert [taint.key for taint in nodes[0].taints] == ["k"]
    assert dict(nodes[3].allocatable)["cpu"] == 64_000


@pytest.mark.parametrize(
    ("wrong", "right", "problem"),
    [
        (
            "count: 0",
            "count: 3",
            r"nodes.yaml: pools\[0\].count: is 0, where a whole number from 1 to 100,000 belongs",
        ),
        ("name: large", "name: small", "pools must differ in name; given more than once: small"),
        ("colour: red", "zones: [a, b]", r"pools\[0\].colour"),
        ('cpu: "4k4"', 'cpu: "4"', r"pools\[0\].template: status.allocatable.*4k4"),
        ("labels: [disk]", "labels: {disk: ssd}", r"pools\[0\].template: metadata.labels"),
        (
            "apiVersion: hoss.dev/v1",
            "apiVersion: hoss.dev/v1alpha1",
            "this release reads 'hoss.dev/v1alpha1'",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(read, wrong, right, problem):
    text = POOLS.replace("small\n", "large\n") if right == "name: small" else POOLS.replace(right, wrong)
    with pytest.raises(InvalidInput, match=problem.replace("small", "large")):
        read(text)


def test_a_file_without_nodes_says_what_would_be_right(read):
    with pytest.raises(InvalidInput, match=r"manifests of kind Node, a SimulatedNodes document, or a .csv"):
        read("apiVersion: v1\nkind: Namespace\nmetadata: {name: n}\n")
