"""What deploy/ puts into a cluster: by kustomize and by helm the same, as a real API server takes it."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.kubernetes import renderers
from e2e.kubernetes.api import Api
from e2e.kubernetes.guarded import apply
from e2e.kubernetes.renderers import Objects, objects_of
from waiting import wait_until

from dispatcher.flags import parse_flags, read_config
from dispatcher.policy.documents import parse_policy
from resolver import __main__ as resolver
from scheduler_worker import __main__ as scheduler_worker

pytestmark = pytest.mark.skipif(bool(renderers.missing()), reason=renderers.missing())

OVERLAYS = ("beside-default-scheduler", "guard", "ha", "monitored")
NAMESPACE = "hoss-system"


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def workloads(objects: Objects) -> Iterator[tuple[str, Any, Any]]:
    """Name, pod template and its one container."""
    for (kind, name), found in objects.items():
        if kind in ("Deployment", "StatefulSet"):
            (container,) = found["spec"]["template"]["spec"]["containers"]
            yield name, found["spec"]["template"], container


def test_helm_makes_what_kustomize_makes(overlay: str) -> None:
    by_kustomize = objects_of(renderers.kustomized(overlay))
    del by_kustomize["Namespace", NAMESPACE]  # helm install --create-namespace
    assert objects_of(renderers.templated("--values", renderers.values(overlay))) == by_kustomize


def test_the_chart_in_another_namespace_names_the_usual_one_nowhere() -> None:
    text = renderers.templated("--values", renderers.values("guard"), namespace="scheduling")
    assert NAMESPACE not in text
    assert "--webhook-host=hoss-resolver.scheduling.svc" in text


def test_the_api_server_takes_every_object(api: Api, overlay: str) -> None:
    define_service_monitors(api)
    objects = objects_of(renderers.kustomized(overlay))
    apply(api, objects["Namespace", NAMESPACE])
    for found in objects.values():
        apply(api, found, "dryRun=All", "fieldValidation=Strict")


def define_service_monitors(api: Api) -> None:
    """As the Prometheus operator does, of any content: its schema is not ours to keep."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = {
        "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": "ServiceMonitor", "plural": "servicemonitors", "singular": "servicemonitor"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }
    # It may be there.
    api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    wait_until(
        lambda: api.request("GET", "/apis/monitoring.coreos.com/v1/servicemonitors")[0] == 200, "it is served"
    )


def test_a_namespace_of_restricted_pods_takes_every_pod(api: Api, overlay: str) -> None:
    objects = objects_of(renderers.kustomized(overlay))
    apply(api, objects["Namespace", NAMESPACE])
    assert (
        objects["Namespace", NAMESPACE]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        == "restricted"
    )
    for name, template, _ in workloads(objects):
        spec = template["spec"]
        if (kind := objects.get(("StatefulSet", name))) and "volumeClaimTemplates" in kind["spec"]:
            spec = {**spec, "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}}]}
        pod = {"metadata": {"name": name, "labels": template["metadata"]["labels"]}, "spec": spec}
        api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All&fieldValidation=Strict", pod)


def test_the_services_understand_their_flags_and_configuration(
    overlay: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read: dict[str, Callable[[list[str]], Any]] = {
        "dispatcher": lambda _: read_config(parse_flags()),
        "resolver": lambda _: resolver._configuration(resolver._parser().parse_args()),
        "scheduler_worker": lambda flags: scheduler_worker._config(
            scheduler_worker._parser().parse_args(flags)
        ),
    }
    objects = objects_of(renderers.kustomized(overlay))
    given = {"$(POD_IP)": "10.0.0.1", "$(REDIS_URL)": objects["ConfigMap", "hoss-redis"]["data"]["url"]}
    given["/etc/hoss"] = str(tmp_path)
    for name, text in objects["ConfigMap", "hoss-dispatcher"]["data"].items():
        (tmp_path / name).write_text(text)
    parse_policy((tmp_path / "policy.yaml").read_text())
    for name, _, container in workloads(objects):
        module, *flags = container["args"]
        if name == "hoss-redis":
            continue
        for variable, value in given.items():
            flags = [flag.replace(variable, value) for flag in flags]
        assert "$(" not in shlex.join(flags)
        monkeypatch.setattr("sys.argv", [module, *flags])
        assert read[module](flags).listen.startswith("0.0.0.0:")


def test_every_container_is_probed_bounded_and_writes_nowhere(overlay: str) -> None:
    for name, template, container in workloads(objects_of(renderers.kustomized(overlay))):
        assert {"readinessProbe", "livenessProbe"} <= container.keys(), name
        assert container["securityContext"]["readOnlyRootFilesystem"], name
        assert {"cpu", "memory"} == container["resources"]["requests"].keys(), name
        assert "memory" in container["resources"]["limits"], name
        assert "automountServiceAccountToken" in template["spec"], name


def test_every_port_that_is_named_is_one_of_the_pods_it_is_about(overlay: str) -> None:
    objects = objects_of(renderers.kustomized(overlay))
    offered = {
        template["metadata"]["labels"]["app.kubernetes.io/component"]: {
            port["name"]: port["containerPort"] for port in container["ports"]
        }
        for _, template, container in workloads(objects)
    }
    for _, template, container in workloads(objects):
        own = offered[template["metadata"]["labels"]["app.kubernetes.io/component"]]
        probes = [probe for name, probe in container.items() if name.endswith("Probe")]
        asked = {
            asked["port"]
            for probe in probes
            for asked in probe.values()
            if isinstance(asked, dict) and "port" in asked
        }
        assert asked <= {*own, *own.values()}
    for (kind, name), found in objects.items():
        if kind == "Service" and name not in ("hoss-redis", "hoss-metrics"):
            own = offered[found["spec"]["selector"]["app.kubernetes.io/component"]]
            assert all(own[port["name"]] == port["port"] for port in found["spec"]["ports"]), name
        if kind == "NetworkPolicy":
            own = offered[found["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]]
            ports = [port["port"] for rule in found["spec"].get("ingress", ()) for port in rule["ports"]]
            assert set(ports) <= own.keys(), name
