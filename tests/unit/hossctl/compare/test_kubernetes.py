"""Loads on Kubernetes: the objects say what the specs say, and what is seen of them becomes figures."""

import asyncio
from dataclasses import replace

import orjson
import pytest

from hoss.kube.reflector import Gone, Seen
from hoss.wire.convert import template_from_proto
from hoss.wire.manifests import read_manifest
from hossctl.compare.axes import Mode
from hossctl.compare.cells import PEER_LOADS
from hossctl.compare.document import Cell
from hossctl.compare.kube_form import node_object, pod_object
from hossctl.compare.kubernetes import Pods
from hossctl.compare.loads import made
from hossctl.compare.playing import templates_by_row


def loaded(load, nodes=4):
    trace = made(Cell(mode=Mode.KUBE_SCHEDULER, load=load, workers=1, nodes=nodes, fill=0.5), seed=1)
    templates, spec_of = templates_by_row(trace)
    return trace.nodes, [template_from_proto(template).spec for template in templates], spec_of


def manifest(kind, thing):
    return read_manifest(orjson.dumps({"apiVersion": "v1", "kind": kind, **thing}), where="test")


@pytest.mark.parametrize("load", PEER_LOADS)
def test_a_pods_object_read_back_is_its_spec(load):
    _, specs, _ = loaded(load)
    for spec in set(specs):
        (workload,) = manifest("Pod", pod_object("p0", spec, "hoss")).workloads
        read = workload.template.spec
        assert replace(read, images=(), image_containers=0) == replace(spec, images=(), image_containers=0)


@pytest.mark.parametrize("load", PEER_LOADS)
def test_a_nodes_object_read_back_is_its_spec(load):
    nodes, _, _ = loaded(load)
    for node in nodes:
        assert manifest("Node", node_object(node)).nodes == (node,)


def test_pods_seen_on_a_node_are_bound_once_and_counted_there():
    nodes, specs, spec_of = loaded(PEER_LOADS[0])
    pods = Pods(nodes, specs, spec_of)
    created = list(pods.objects("hoss", asyncio.Event()))
    assert len(created) == len(spec_of)
    seen = Seen({"metadata": {"name": "p1"}, "spec": {"nodeName": nodes[2].name}})
    pods.note([seen, Gone("uid", "default", "p0")])
    pods.note([seen])
    assert pods.bound == len(pods.latencies()) == 1
    assert pods.latencies()[0] >= 0
    assert pods.seconds == pods.bound_at[1] - pods.created_at[0]
    cpu = pods.pool.resources.index("cpu")
    assert pods.pool.requested[cpu].tolist() == [0, 0, dict(specs[spec_of[1]].requests)["cpu"], 0]
    assert pods.pool.requested[pods.pool.resources.index("pods")].tolist() == [0, 0, 1, 0]


def test_no_more_pods_are_created_once_the_end_was_asked_for():
    nodes, specs, spec_of = loaded(PEER_LOADS[0])
    stop = asyncio.Event()
    objects = Pods(nodes, specs, spec_of).objects("hoss", stop)
    next(objects)
    stop.set()
    assert list(objects) == []


def test_nothing_bound_is_no_rate_and_an_empty_pool():
    pods = Pods(*loaded(PEER_LOADS[0]))
    assert pods.seconds == 0.0
    assert not pods.pool.requested.any()
