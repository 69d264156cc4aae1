"""`hoss describe node`: requests, limits, and possible noisy neighbours."""

import pytest

from hoss.manifests.pod import read_pod_template
from hossctl.views.node import node_details, print_node

NODE = {
    "name": "n1", "unschedulable": False, "quarantine": None, "labels": {}, "taints": [],
    "cardsUsedMilli": [],
    "allocatable": {"cpu": 4000, "memory": 2**33, "pods": 10}, "requested": {"cpu": 1500, "memory": 2**30,
    "pods": 3},
}  # fmt: skip


def pod(name, since, requests, limits, priority=0):
    template = {"priority": priority, "qosClass": "Burstable", "requests": requests, "limits": limits}
    return {"namespace": "default", "name": name, "phaseSinceUnixMs": since, "template": template}


def of(details, resource):
    return next(line for line in details["resources"] if line["resource"] == resource)


def test_pods_come_in_the_order_of_their_coming_with_requests_limits_and_what_is_oversubscribed():
    details = node_details(
        NODE, [pod("b", 2, {"cpu": 500}, {"cpu": 3000}), pod("a", 1, {"cpu": 500}, {"cpu": 2000})], most=200
    )
    assert details["pods"] == ["default/a", "default/b"]
    cpu = of(details, "cpu")
    assert (cpu["requested"], cpu["limits"], cpu["allocatable"]) == (1500, 5000, 4000)
    assert cpu["oversubscribed"]
    assert cpu["podsWithoutLimit"] == 0
    assert of(details, "memory")["podsWithoutLimit"] == 2
    assert not of(details, "pods")["oversubscribed"]


def test_who_may_take_most_beyond_its_request_is_a_noisy_neighbour_and_the_modest_are_not():
    modest = [pod(f"m{i}", i, {"cpu": 500}, {"cpu": 700, "memory": 2**20}) for i in range(2)]
    greedy = pod("greedy", 9, {"cpu": 100}, {"cpu": 3500, "memory": 2**20}, priority=-1)
    (noisy,) = node_details(NODE, [*modest, greedy], most=200)["noisyNeighbours"]
    assert noisy == {
        "pod": "default/greedy", "resource": "cpu", "beyondRequest": 3400, "share": 0.895, "limited": True,
        "priority": -1,
    }  # fmt: skip


def test_a_pod_without_a_limit_may_take_the_whole_node():
    details = node_details(
        NODE, [pod("free", 1, {"cpu": 1000}, {}), pod("tight", 2, {"cpu": 1000}, {"cpu": 1000})], most=200
    )
    cpu = [noisy for noisy in details["noisyNeighbours"] if noisy["resource"] == "cpu"]
    assert [(noisy["pod"], noisy["beyondRequest"], noisy["limited"]) for noisy in cpu] == [
        ("default/free", 3000, False)
    ]


def test_where_everybody_can_use_all_that_it_may_nobody_is_noisy():
    limits = {"cpu": 2000, "memory": 2**30}
    assert node_details(NODE, [pod("a", 1, {"cpu": 100}, limits)], most=200)["noisyNeighbours"] == []


def test_people_see_how_noisy_neighbours_are_found(capsys):
    details = node_details(
        NODE, [pod("greedy", 1, {"cpu": 100}, {"cpu": 5000}), pod("b", 2, {}, {"cpu": 50})], most=1
    )
    print_node({**NODE, **details})
    text = " ".join(capsys.readouterr().out.split())
    assert "limits of cpu are 126% of what is there" in text
    assert "default/greedy 3.9 of cpu beyond its request" in text
    assert "Measured usage is not known to HOSS" in text
    assert "and 1 more" in text


@pytest.mark.parametrize(
    ("containers", "limits"),
    [
        ([{"limits": {"cpu": "1"}}, {"limits": {"cpu": "2", "memory": "1Ki"}}], (("cpu", 3000),)),
        ([{"limits": {"cpu": "1"}}, {}], ()),
        ([{"requests": {"cpu": "1"}}], ()),
    ],
)
def test_a_limit_counts_where_every_container_has_one(containers, limits):
    spec = {"containers": [{"name": f"c{i}", "resources": details} for i, details in enumerate(containers)]}
    assert read_pod_template({}, spec, "", namespace="default").limits == limits
