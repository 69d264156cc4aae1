"""The ground that the other tests here stand on."""

import asyncio

import pytest
from e2e.kubernetes.api import Api
from waiting import wait_until

from hoss.kube.api import Refused
from hossctl.bench.api_server import opened
from hossctl.local.binding_webhook import CONFIGURATIONS, grant, grant_webhook
from hossctl.local.control_plane import HOSS, ControlPlane


def test_a_binding_is_accepted_whatever_it_asks_of_the_node(api: Api) -> None:
    """Why HOSS has a guard: the API server never looks at room."""
    api.create_node("n1", cpu="1")
    pods = [api.create_pod(f"p{number}", cpu="800m") for number in range(2)]
    assert [api.bind(pod, "n1")[0] for pod in pods] == [201, 201]
    assert [api.pod(f"p{number}")["spec"]["nodeName"] for number in range(2)] == ["n1", "n1"]


def test_what_a_failed_test_has_left_to_finalizers_is_gone_for_the_next(api: Api) -> None:
    kept = {"finalizers": ["example.com/kept"]}
    api.create_namespace("left")
    for namespace in ("default", "left"):
        api.create_pod("kept", namespace=namespace, metadata=kept)
        api.create_pod("slow", namespace=namespace, nodeName="n1", terminationGracePeriodSeconds=3600)
        api.delete_pod("kept", namespace)
        api("DELETE", f"/api/v1/namespaces/{namespace}/pods/slow")
    api("POST", "/api/v1/nodes", {"metadata": {"name": "n1", **kept}})
    assert len(api("GET", "/api/v1/pods")["items"]) == 4
    api.clear()
    assert [api("GET", f"/api/v1/{kind}")["items"] for kind in ("pods", "nodes")] == [[], []]


def test_a_real_kube_scheduler_schedules_the_pods_that_are_its_own(own_control_plane: ControlPlane) -> None:
    own_control_plane.start_scheduler()
    api = Api(own_control_plane)
    api.create_node("n1")
    api.create_pod("mine", scheduler="default-scheduler")
    api.create_pod("others")
    wait_until(lambda: api.pod("mine")["spec"].get("nodeName"), "kube-scheduler binds its pod")
    assert "nodeName" not in api.pod("others")["spec"]


def test_a_user_who_is_granted_hoss_s_rights_has_those_and_had_none_before(
    own_control_plane: ControlPlane,
) -> None:
    """As which HOSS is measured beside kube-scheduler."""
    binding = {"target": {"kind": "Node", "name": "n1"}, "metadata": {"name": "absent"}}

    async def run() -> None:
        async with (
            opened(own_control_plane.kubeconfig) as administrator,
            opened(own_control_plane.hoss_kubeconfig) as hoss,
        ):
            with pytest.raises(Refused, match='User "hoss" cannot list resource "pods"'):
                await hoss.get("/api/v1/pods")
            await grant(administrator, HOSS)
            assert (await hoss.get("/api/v1/pods"))["items"] == []
            path = "/api/v1/namespaces/default/pods/absent/binding"
            assert (await hoss.ask("POST", path, binding)).status == 404
            node = {"metadata": {"name": "n1"}}
            assert (await hoss.ask("POST", "/api/v1/nodes", node)).status == 403

    asyncio.run(run())


def test_who_is_granted_a_guard_has_its_resolver_s_rights_and_is_not_asked_about(
    own_control_plane: ControlPlane,
) -> None:
    path = f"{CONFIGURATIONS}/hoss-binding-guard"

    async def run() -> None:
        async with (
            opened(own_control_plane.kubeconfig) as administrator,
            opened(own_control_plane.hoss_kubeconfig) as hoss,
        ):
            assert (await hoss.ask("GET", path)).status == 403
            await grant(administrator, HOSS)
            await grant_webhook(administrator, HOSS, "https://127.0.0.1:1/bindings", failure_policy="Fail")
            (hook,) = (await hoss.get(path))["webhooks"]
            assert hook["matchConditions"][0]["expression"] == f'request.userInfo.username != "{HOSS}"'
            assert (await hoss.ask("GET", CONFIGURATIONS)).status == 403  # others' are none of its business

    asyncio.run(run())


def test_an_api_server_that_was_killed_is_back_with_what_it_had(own_control_plane: ControlPlane) -> None:
    api = Api(own_control_plane)
    api.create_node("n1")
    own_control_plane.kill("kube-apiserver")
    own_control_plane.kill("etcd")
    own_control_plane.start_etcd()
    own_control_plane.start_apiserver()
    assert [node["metadata"]["name"] for node in api("GET", "/api/v1/nodes")["items"]] == ["n1"]
