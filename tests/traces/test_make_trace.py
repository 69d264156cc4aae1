"""The small trace: that it is what its generator makes, that HOSS can read it, and that it is of the shape
that it says."""

import pytest
from traces.make_trace import FILES, FILL, make

from hossctl.traces.openb import read_nodes, read_trace


def test_the_committed_files_are_what_the_generator_makes(tmp_path):
    make(tmp_path)
    for file in FILES:
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), (
            f"run tests/traces/make_trace.py: {file.name}"
        )


@pytest.mark.parametrize(("nodes", "seed"), [(1, 3), (10, 1), (500, 7)])
def test_traces_of_any_size_can_be_read_and_ask_for_nearly_all_cards(tmp_path, nodes, seed):
    make(tmp_path, nodes=nodes, seed=seed)
    made = read_nodes(tmp_path / "nodes.csv")
    asked = [pod.workload.template.spec.devices for pod in read_trace(tmp_path / "pods.csv")]
    cards = sum(node.cards for node in made)
    assert len(made) == nodes
    assert (
        FILL * cards
        <= sum(devices.count * devices.milli for devices in asked if devices) / 1000
        <= FILL * cards + 8
    )


def test_it_has_shares_whole_cards_several_cards_none_and_wishes_for_models():
    pods = [pod.workload.template.spec for pod in read_trace(FILES[1])]
    found = {(pod.devices.count, pod.devices.milli < 1000) if pod.devices else None for pod in pods}
    assert found == {None, (1, True), (1, False), (2, False), (4, False), (8, False)}
    assert {node.cards for node in read_nodes(FILES[0])} == {0, 2, 4, 8}
    assert any(pod.required_node_affinity for pod in pods)
