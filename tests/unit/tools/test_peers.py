"""The peer of HOSS: which cells it is measured in, the objects that the loads become, and the figures of pods
seen on nodes."""

import asyncio
from dataclasses import replace

import orjson
import pytest
from typer.testing import CliRunner

from hoss.errors import ConfigError, InvalidInput
from hoss.kube.reflector import ObjectGone, ObjectSeen
from hoss.manifests.documents import read_manifest
from hoss.wire.convert import template_from_proto
from hossctl.choices import ON_KUBERNETES, Load, Mode
from hossctl.compare.cells import Axes, Plan
from hossctl.compare.document import Cell
from hossctl.compare.loads import make_trace
from hossctl.load.playing import templates_by_row
from hossctl.local.control_plane import ASSETS_VARIABLE, CACHE_VARIABLE
from tools.peers.__main__ import LOADS, app, default_cells, notes_on, peer_cells
from tools.peers.kubernetes import KubernetesPods
from tools.peers.objects import node_object, pod_object


def test_a_peer_adds_itself_and_hoss_beside_it_where_the_load_has_a_form_on_kubernetes():
    cells = peer_cells(Axes((Mode.SINGLE,), (Load.UNIFORM, Load.GANGS), (1, 4)))
    assert [(cell.load, cell.mode, cell.workers) for cell in cells] == [
        (Load.UNIFORM, Mode.SINGLE, 1),
        (Load.UNIFORM, Mode.KUBE_SCHEDULER, 1),
        (Load.UNIFORM, Mode.KUBE_HOSS, 1),
        (Load.UNIFORM, Mode.KUBE_HOSS, 4),
        (Load.GANGS, Mode.SINGLE, 1),
    ]


@pytest.mark.parametrize("quick", [True, False])
def test_the_default_is_small_and_beside_the_same_load_in_process(quick):
    cells = default_cells(quick=quick)
    assert {cell.mode for cell in cells} == {Mode.SINGLE, Mode.HOSS, *ON_KUBERNETES}
    assert {cell.nodes for cell in cells} == {100}
    assert {cell.load for cell in cells} == (
        {Load.UNIFORM} if quick else {Load.UNIFORM, Load.UNIQUE, Load.CONSTRAINED, Load.SKEWED}
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--modes", "kube-scheduler"], "--modes: 'kube-scheduler' is none of single"),
        (["--quick", "--nodes", "10"], "--quick: is a matrix of its own"),
        (
            ["--loads", "gangs,churn"],
            "--loads: kube-scheduler has nothing to do here: gangs: kube-scheduler's default profile binds",
        ),
    ],
)
def test_bad_input_is_one_sentence(monkeypatch, tmp_path, options, problem):
    for name in ("etcd", "kube-apiserver", "kube-scheduler"):  # they are found, and not run to read options
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv(ASSETS_VARIABLE, str(tmp_path))
    with pytest.raises(InvalidInput) as caught:
        CliRunner().invoke(app, options, catch_exceptions=False)
    assert str(caught.value).startswith(problem)


def test_a_missing_control_plane_is_one_sentence_that_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.delenv(ASSETS_VARIABLE, raising=False)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"Kubernetes control plane: there is none in .*`make controlplane` builds it"
    ):
        CliRunner().invoke(app, ["--quick"], catch_exceptions=False)


def test_the_document_says_who_pays_for_an_api_server_and_what_was_not_measured_there_and_why():
    a_cell = Cell(mode=Mode.KUBE_HOSS, load=Load.UNIFORM, workers=2, nodes=20, fill=0.5)
    cells = [a_cell, a_cell.model_copy(update={"mode": Mode.HOSS, "load": Load.GANGS.value})]
    notes = list(notes_on(Plan(cells, 1, 1)))
    assert "'kube-scheduler' and 'HOSS, Kubernetes' pay for an API server and etcd" in notes[0]
    assert notes[1:] == [
        "not measured on Kubernetes: gangs (kube-scheduler's default profile binds pods one by one)"
    ]


def loaded(load, nodes=4):
    trace = make_trace(Cell(mode=Mode.KUBE_SCHEDULER, load=load, workers=1, nodes=nodes, fill=0.5), seed=1)
    templates, spec_of = templates_by_row(trace)
    return trace.nodes, [template_from_proto(template).spec for template in templates], spec_of


def manifest(kind, thing):
    return read_manifest(orjson.dumps({"apiVersion": "v1", "kind": kind, **thing}), where="test")


@pytest.mark.parametrize("load", LOADS)
def test_a_pods_object_read_back_is_its_spec(load):
    _, specs, _ = loaded(load)
    for spec in set(specs):
        (workload,) = manifest("Pod", pod_object("p0", spec, "hoss")).workloads
        read = workload.template.spec
        assert replace(read, images=(), image_containers=0) == replace(spec, images=(), image_containers=0)


@pytest.mark.parametrize("load", LOADS)
def test_a_nodes_object_read_back_is_its_spec(load):
    nodes, _, _ = loaded(load)
    for node in nodes:
        assert manifest("Node", node_object(node)).nodes == (node,)


def test_pods_seen_on_a_node_are_bound_once_and_counted_there():
    nodes, specs, spec_of = loaded(LOADS[0])
    pods = KubernetesPods(nodes, specs, spec_of)
    created = list(pods.objects("hoss", asyncio.Event()))
    assert len(created) == len(spec_of)
    seen = ObjectSeen({"metadata": {"name": "p1"}, "spec": {"nodeName": nodes[2].name}})
    pods.record([seen, ObjectGone("uid", "default", "p0")])
    pods.record([seen])
    assert pods.bound == len(pods.latencies()) == 1
    assert pods.latencies()[0] >= 0
    assert pods.seconds == pods.bound_at[1] - pods.created_at[0]
    cpu = pods.pool.resources.index("cpu")
    assert pods.pool.requested[cpu].tolist() == [0, 0, dict(specs[spec_of[1]].requests)["cpu"], 0]
    assert pods.pool.requested[pods.pool.resources.index("pods")].tolist() == [0, 0, 1, 0]


def test_no_more_pods_are_created_once_the_end_was_asked_for():
    nodes, specs, spec_of = loaded(LOADS[0])
    stop = asyncio.Event()
    objects = KubernetesPods(nodes, specs, spec_of).objects("hoss", stop)
    next(objects)
    stop.set()
    assert list(objects) == []


def test_nothing_bound_is_no_rate_and_an_empty_pool():
    pods = KubernetesPods(*loaded(LOADS[0]))
    assert pods.seconds == 0.0
    assert not pods.pool.requested.any()
