"""hoss bench gpu: loads drawn from a trace, and what one worker makes of them."""

import pytest

from hoss.errors import InvalidInput
from hoss.model.node import NodeSpec
from hoss.model.pod import DeviceRequest, PodSpec, PodTemplate, Workload
from hossctl.bench import gpu
from hossctl.bench.gpu import GpuPolicy, GpuSetting
from hossctl.options import read_counts

NODES = [NodeSpec(f"n{i}", allocatable=(("cpu", 32_000), ("pods", 100)), cards=4) for i in range(5)]


def pod(name, cpu, *devices):
    spec = PodSpec(
        requests=(("cpu", cpu),), nonzero_cpu_milli=cpu, devices=DeviceRequest(*devices) if devices else None
    )
    return Workload(name, PodTemplate(spec))


PODS = [
    pod("whole", 4000, 1, 1000),
    pod("half", 2000, 1, 500),
    pod("pair", 8000, 2, 1000),
    pod("plain", 1000),
]


def setting(**fields):
    return GpuSetting(
        **{
            "nodes": NODES,
            "pods": PODS,
            "policies": list(GpuPolicy),
            "workers": [1],
            "seeds": range(1, 3),
            **fields,
        }
    )


def test_a_load_asks_for_what_it_should_and_is_the_same_for_the_same_seed():
    load = gpu.draw_load(PODS, 26_000, seed=4)
    asked = [p.template.spec.devices for p in load]
    assert 26_000 <= sum(d.count * d.milli for d in asked if d) < 28_000
    assert load == gpu.draw_load(PODS, 26_000, seed=4) != gpu.draw_load(PODS, 26_000, seed=5)
    assert len({p.name for p in load}) == len(load)


def test_every_policy_is_measured_on_every_load():
    results = gpu.measure(setting(pod_list="openb_pod_list_default"), quiet=True)
    assert [(r.policy, len(r.runs)) for r in results] == [(policy, 2) for policy in GpuPolicy]
    for result in results:
        document = result.as_json()
        assert 80 <= document["lowest"] <= document["allocatedPercent"] <= document["highest"] <= 100
        assert document["paperPercent"] == gpu.PAPER["openb_pod_list_default"][result.policy]
        assert [run.pods for run in result.runs] == [run.pods for run in results[0].runs]


def test_figures_of_the_paper_stand_beside_the_list_that_they_are_of():
    def published(pod_list):
        policies = [GpuPolicy.RANDOM, GpuPolicy.FGD]
        results = gpu.measure(setting(pod_list=pod_list, policies=policies), quiet=True)
        return [result.as_json()["paperPercent"] for result in results]

    assert published("openb_pod_list_gpuspec33") == [None, 94.6]
    assert published("my_list") == [None, None]


def test_the_same_seeds_give_the_same_figures():
    first, second = (gpu.measure(setting(policies=[GpuPolicy.FGD]), quiet=True)[0].percents for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("fields", "problem"),
    [({"nodes": [NodeSpec("bare")]}, "no node has a card"), ({"pods": [PODS[3]]}, "no pod requests a card")],
)
def test_input_without_cards_is_refused(fields, problem):
    with pytest.raises(InvalidInput, match=problem):
        gpu.measure(setting(**fields), quiet=True)


def test_options_name_policies_and_numbers():
    assert gpu.read_policies("fgd,random") == [GpuPolicy.FGD, GpuPolicy.RANDOM]
    assert read_counts("1,4", where="--workers") == [1, 4]
    with pytest.raises(InvalidInput, match="random, best-fit, fgd"):
        gpu.read_policies("worst-fit")
    for text in ("0", "1,x", ""):
        with pytest.raises(InvalidInput, match="whole numbers"):
            read_counts(text, where="--workers")
