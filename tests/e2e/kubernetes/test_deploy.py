"""What deploy/ puts into a cluster: by kustomize and by helm the same, as a real API server takes it."""

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import pytest
import typer
import yaml
from e2e.kubernetes import renderers
from e2e.kubernetes.api import Api
from e2e.kubernetes.guarded import apply
from e2e.kubernetes.renderers import DEPLOY, Objects, objects_of
from e2e.kubernetes.rights import EVERY, Right, rights_of
from waiting import wait_until

from dispatcher.config import ClusterSection
from dispatcher.core.policy.checks import document_warnings
from dispatcher.flags import parse_flags, read_config
from dispatcher.policy.documents import parse_policy
from hoss.config import load_document
from hoss.redis.url import parse_redis_url
from hoss.security.identity import CallerKind, Identity
from hoss.security.transport import server_name
from hoss.security.users import KIND as AUTHENTICATION
from hoss.security.users import AuthenticationConfig
from hossctl.commands import access
from hossctl.commands.platform import status
from hossctl.local.deployment import (
    ACCOUNTS_SECRET,
    AUTHORITY_SECRET,
    DASHBOARD,
    OPERATOR,
    PROMETHEUS,
    Deployment,
    secret_of,
)
from resolver import __main__ as resolver
from scheduler_worker import __main__ as scheduler_worker
from scheduler_worker.config import chosen_profile
from scheduler_worker.core.plugins import REGISTRY
from scheduler_worker.metrics import BUSY

pytestmark = pytest.mark.skipif(bool(renderers.missing()), reason=renderers.missing())

VERSION = version("hoss")
OVERLAYS = (
    "autoscaled",
    "beside-default-scheduler",
    "cert-manager",
    "dashboard",
    "guard",
    "guard-alone",
    "ha",
    "monitored",
    "pools",
    "service-accounts",
)
NAMESPACE = "hoss-system"
POD_COMPONENT = "__meta_kubernetes_pod_label_app_kubernetes_io_component"


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
    by_helm = objects_of(renderers.templated("--values", renderers.values(overlay)))
    for _, template, _ in workloads(by_helm):
        # By these a release restarts what reads its configuration at its start; kustomize has nothing like
        # it.
        annotations = template["metadata"].pop("annotations", {})
        assert all(name.startswith("checksum/") for name in annotations)
    assert by_helm == by_kustomize


def test_the_chart_and_its_image_are_of_the_version_of_the_project() -> None:
    chart = yaml.safe_load((DEPLOY / "helm/hoss/Chart.yaml").read_text())
    image = yaml.safe_load((DEPLOY / "helm/hoss/values.yaml").read_text())["image"]
    assert (chart["version"], chart["appVersion"], image) == (VERSION, VERSION, f"hoss:{VERSION}")


def test_the_chart_grants_each_account_the_verbs_that_kustomize_grants_it(overlay: str) -> None:
    by_kustomize = rights_of(objects_of(renderers.kustomized(overlay)))
    by_helm = rights_of(objects_of(renderers.templated("--values", renderers.values(overlay))))
    assert (by_helm - by_kustomize, by_kustomize - by_helm) == (set(), set())
    assert Right("hoss-resolver", "create", "", "pods/binding", EVERY, EVERY) in by_helm
    assert not any(EVERY in (right.verb, right.group, right.resource) for right in by_helm)


@pytest.mark.parametrize(
    "value",
    [
        "tls.enabled=false",
        "tls.certificates=cert-manager,tls.issuer.name=corporate,tls.issuer.kind=ClusterIssuer",
        "redis.url=redis://elsewhere:6379/0",
        "metrics.enabled=true",
        "guard.enabled=true,guard.failurePolicy=Fail",
        "authentication.oidc[0].issuer=https://login.example.com,authentication.oidc[0].audience=hoss",
        "networkPolicies=false,dispatcher.replicas=1",
    ],
)
def test_no_value_of_the_chart_adds_a_right_and_its_namespace_alone_is_another(value: str) -> None:
    most = rights_of(objects_of(renderers.kustomized("guard")))
    elsewhere = {right._replace(namespace="scheduling") for right in most if right.namespace == NAMESPACE}
    most = {right for right in most if right.namespace == EVERY} | elsewhere
    granted = rights_of(objects_of(renderers.templated("--set", value, namespace="scheduling")))
    assert granted - most == set()
    if "guard.enabled" in value:
        assert granted == most


def test_the_chart_in_another_namespace_names_the_usual_one_nowhere() -> None:
    text = renderers.templated("--values", renderers.values("guard"), namespace="scheduling")
    assert NAMESPACE not in text
    assert "--webhook-host=hoss-resolver.scheduling.svc" in text


@pytest.mark.parametrize("namespace", [NAMESPACE, "scheduling"])
def test_dispatchers_report_no_binding_of_a_namespace_that_the_webhook_leaves_out(namespace: str) -> None:
    text = renderers.templated("--values", renderers.values("guard"), namespace=namespace)
    objects = objects_of(text)
    (webhook,) = objects["ValidatingWebhookConfiguration", "hoss-binding-guard"]["webhooks"]
    left_out = webhook["namespaceSelector"]["matchExpressions"][0]
    document = yaml.safe_load(objects["ConfigMap", "hoss-dispatcher"]["data"]["dispatcher.yaml"])
    cluster = ClusterSection(**document["kubernetes"])
    assert cluster.unguarded_namespaces == {"kube-system", namespace} == set(left_out["values"])


def test_the_api_server_takes_every_object(api: Api, overlay: str) -> None:
    define(api, "monitoring.coreos.com", "ServiceMonitor")
    define(api, "cert-manager.io", "Certificate")
    define(api, "cert-manager.io", "Issuer")
    objects = objects_of(renderers.kustomized(overlay))
    apply(api, objects["Namespace", NAMESPACE])
    for found in objects.values():
        apply(api, found, "dryRun=All", "fieldValidation=Strict")


def define(api: Api, group: str, kind: str) -> None:
    """A kind of an operator that is not here, of any content: its schema is not ours to keep."""
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = {
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }
    # It may be there.
    api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    wait_until(lambda: api.request("GET", f"/apis/{group}/v1/{plural}")[0] == 200, "it is served")


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
            data = {"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}}
            spec = {**spec, "volumes": [*spec.get("volumes", ()), data]}
        pod = {"metadata": {"name": name, "labels": template["metadata"]["labels"]}, "spec": spec}
        api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All&fieldValidation=Strict", pod)


def _dashboard_flags(arguments: list[str]) -> Any:
    command, *flags = arguments
    assert command == "dashboard"
    dashboard = typer.main.get_command(status.app).commands["dashboard"]  # type: ignore[attr-defined]
    return SimpleNamespace(**dashboard.make_context(command, flags).params)


def test_the_services_understand_their_flags_and_configuration(
    overlay: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read: dict[str, Callable[[list[str]], Any]] = {
        "dispatcher": lambda _: read_config(parse_flags()),
        "resolver": lambda _: resolver._configuration(resolver._parser().parse_args()),
        "scheduler_worker": lambda flags: scheduler_worker._config(
            scheduler_worker._parser().parse_args(flags)
        ),
        "hossctl": _dashboard_flags,
    }
    objects = objects_of(renderers.kustomized(overlay))
    redis_urls = objects["ConfigMap", "hoss-redis"]["data"]
    given = {"$(POD_IP)": "10.0.0.1", "/etc/hoss-authentication": str(tmp_path), "/etc/hoss": str(tmp_path)}
    for map_name in ("hoss-dispatcher", "hoss-authentication"):
        for name, text in objects.get(("ConfigMap", map_name), {"data": {}})["data"].items():
            (tmp_path / name).write_text(text)
    parse_policy((tmp_path / "policy.yaml").read_text())
    for name, _, container in workloads(objects):
        module, *flags = container["args"]
        if name == "hoss-redis":
            continue
        url = redis_urls.get(module, "")
        for variable, value in {**given, "$(REDIS_URL)": url}.items():
            flags = [flag.replace(variable, value) for flag in flags]
        if url:
            assert parse_redis_url(url).hosts
        assert "$(" not in shlex.join(flags)
        monkeypatch.setattr("sys.argv", [module, *flags])
        config = read[module](flags)
        assert config.listen.startswith("0.0.0.0:")
        if path := getattr(config, "authentication", None):
            assert load_document(path, AUTHENTICATION, AuthenticationConfig).service_accounts


def test_every_service_speaks_tls_with_its_own_secret_and_is_probed_so(overlay: str) -> None:
    text = renderers.kustomized(overlay)
    assert "--insecure" not in text
    for _, template, container in workloads(objects_of(text)):
        service = container["name"]
        if service == "redis":
            assert "--aclfile" in container["args"]
            continue
        directory = f"/var/lib/hoss/{service}"
        assert f"--tls-dir={directory}" in container["args"]
        mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        secrets = {v["name"]: v["secret"]["secretName"] for v in template["spec"]["volumes"] if "secret" in v}
        assert secrets[mounted[directory]] == secret_of(service)
        others = {"dispatcher": {secret_of(OPERATOR)}}.get(service, set())
        assert set(secrets.values()) == {secret_of(service), *others}
        for probe in ("readinessProbe", "livenessProbe"):
            if service == DASHBOARD:
                assert container[probe]["httpGet"] == {"path": "/", "port": "dashboard", "scheme": "HTTPS"}
                continue
            assert container[probe]["exec"]["command"][:3] == ["python", "-m", "hoss.healthcheck"]
            assert container[probe]["exec"]["command"][4] == directory


def test_the_job_that_makes_credentials_has_the_flags_it_is_started_with_and_rights_for_what_it_writes() -> (
    None
):
    objects = objects_of(renderers.kustomized("guard"))
    spec = objects["Job", "hoss-credentials"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["args"][:3] == ["hossctl", "certs", "deployment"]
    command = typer.main.get_command(access.certs).commands["deployment"]  # type: ignore[attr-defined]
    given = command.make_context("deployment", container["args"][3:]).params
    assert (given["secrets"], given["workers"]) == (NAMESPACE, "hoss-worker-*")
    again = objects["CronJob", "hoss-credentials"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert again == spec
    (_, rule) = objects["Role", "hoss-credentials"]["rules"]
    identities = Deployment().identities()
    made = {secret_of(folder) for folder in identities} | {AUTHORITY_SECRET, ACCOUNTS_SECRET}
    assert set(rule["resourceNames"]) == made


def test_cert_manager_is_asked_for_certificates_that_the_services_take() -> None:
    objects = objects_of(renderers.kustomized("cert-manager"))
    for folder, identity in Deployment("hoss-worker-*").identities().items():
        spec = objects["Certificate", f"hoss-{folder}"]["spec"]
        assert spec["secretName"] == secret_of(folder)
        assert [Identity.from_uri(uri) for uri in spec["uris"]] == [identity]
        kind = folder if folder == DASHBOARD else identity.kind.value
        serves = kind != CallerKind.CLIENT.value
        assert spec.get("dnsNames", []) == ([server_name(kind)] if serves else [])
        assert ("server auth" in spec["usages"], "client auth" in spec["usages"]) == (serves, True)
    (job,) = objects["Job", "hoss-credentials"]["spec"]["template"]["spec"]["containers"]
    assert "--no-certificates" in job["args"]


def test_the_chart_takes_another_issuer_and_makes_no_authority_then() -> None:
    flags = ("--set", "tls.certificates=cert-manager,tls.issuer.name=corporate,tls.issuer.kind=ClusterIssuer")
    objects = objects_of(renderers.templated(*flags))
    assert not any(kind == "Issuer" for kind, _ in objects)
    issued = [found["spec"]["issuerRef"] for (kind, _), found in objects.items() if kind == "Certificate"]
    assert issued == 6 * [{"name": "corporate", "kind": "ClusterIssuer"}]


def test_the_chart_leaves_tls_out_only_where_the_value_says_so() -> None:
    text = renderers.templated("--set", "tls.enabled=false")
    assert text.count("--insecure") == 3
    assert "--tls-dir" not in text
    assert "-tls, defaultMode" not in text
    assert "--aclfile" in text
    for _, _, container in workloads(objects_of(text)):
        assert "hoss.healthcheck" not in str(container)


def test_tokens_of_service_accounts_are_asked_about_by_the_services_that_take_them_and_nobody_else() -> None:
    objects = objects_of(renderers.kustomized("service-accounts"))
    asking = {
        name.removeprefix("hoss-")
        for name, _, container in workloads(objects)
        if any(flag.startswith("--authentication=") for flag in container["args"])
    }
    accounts = {right.account for right in rights_of(objects) if right.resource == "tokenreviews"}
    assert accounts == {f"hoss-{name}" for name in asking} == {"hoss-dispatcher", "hoss-resolver"}
    with pytest.raises(AssertionError, match=r"set tls\.enabled"):
        renderers.templated("--set", "tls.enabled=false,authentication.rules[0].role=view")


def test_prometheus_reads_every_service_with_a_certificate_of_its_own_and_knows_each_by_its_name() -> None:
    objects = objects_of(renderers.kustomized("monitored"))
    kinds = {
        template["metadata"]["labels"]["app.kubernetes.io/component"]: container["name"]
        for _, template, container in workloads(objects)
        if container["name"] != "redis"
    }
    assert all("--metrics-tls" in c["args"] for _, _, c in workloads(objects) if c["name"] in kinds.values())
    found = {}
    for endpoint in objects["ServiceMonitor", "hoss"]["spec"]["endpoints"]:
        tls, (kept,) = endpoint["tlsConfig"], endpoint["relabelings"]
        secrets = {tls["ca"]["secret"]["name"], tls["cert"]["secret"]["name"], tls["keySecret"]["name"]}
        assert (endpoint["scheme"], secrets) == ("https", {secret_of(PROMETHEUS)})
        assert (kept["action"], kept["sourceLabels"]) == ("keep", [POD_COMPONENT])
        found |= {each: tls["serverName"] for each in kinds if re.fullmatch(kept["regex"], each)}
    assert found == {each: server_name(name) for each, name in kinds.items()}
    plain = renderers.templated("--set", "tls.enabled=false,metrics.enabled=true")
    assert "--metrics-listen" in plain
    assert "--metrics-tls" not in plain
    assert "scheme: https" not in plain


def test_prometheus_reads_a_dashboard_too() -> None:
    values = ("--values", renderers.values("monitored"), "--set", "dashboard.enabled=true")
    objects = objects_of(renderers.templated(*values))
    (container,) = (c for name, _, c in workloads(objects) if name == "hoss-dashboard")
    assert "--metrics-listen=0.0.0.0:9100" in container["args"]
    assert {"name": "metrics", "containerPort": 9100} in container["ports"]
    assert {"ports": [{"port": "metrics"}]} in objects["NetworkPolicy", "hoss-dashboard"]["spec"]["ingress"]
    names = {e["tlsConfig"]["serverName"] for e in objects["ServiceMonitor", "hoss"]["spec"]["endpoints"]}
    assert server_name(DASHBOARD) in names


def component_of(selector: Any) -> str:
    """The one that is selected, or the first of several."""
    if "matchLabels" in selector:
        found: str = selector["matchLabels"]["app.kubernetes.io/component"]
        return found
    (values,) = (e["values"] for e in selector["matchExpressions"] if e["key"].endswith("/component"))
    return str(values[0])


def selects(selector: Any, labels: dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(expression["key"]) in expression["values"]
        for expression in selector.get("matchExpressions", ())
    )


def test_no_pool_selects_the_pods_of_another_and_the_fence_of_workers_is_around_all() -> None:
    objects = objects_of(renderers.kustomized("autoscaled"))
    pods = {
        name: template["metadata"]["labels"]
        for name, template, container in workloads(objects)
        if container["name"] == "worker"
    }
    assert pods.keys() == {"hoss-worker", "hoss-worker-service", "hoss-worker-batch"}
    for kind in ("Deployment", "PodDisruptionBudget"):
        for name in pods:
            selector = objects[kind, name]["spec"]["selector"]
            assert [other for other, labels in pods.items() if selects(selector, labels)] == [name]
    fence = objects["NetworkPolicy", "hoss-worker"]["spec"]["podSelector"]
    assert all(selects(fence, labels) for labels in pods.values())
    for service in ("dispatcher", "resolver"):
        sources = objects["NetworkPolicy", f"hoss-{service}"]["spec"]["ingress"][0]["from"]
        assert all(selects(sources[0]["podSelector"], labels) for labels in pods.values())


def test_the_policy_has_a_rule_for_each_pool_and_their_workers_have_its_labels() -> None:
    objects = objects_of(renderers.kustomized("pools"))
    policy = objects["ConfigMap", "hoss-dispatcher"]["data"]["policy.yaml"]
    assert document_warnings(parse_policy(policy)) == []
    wanted = [rule["workers"]["matchLabels"] for rule in yaml.safe_load(policy)["rules"]]
    labels = [
        dict(flag.removeprefix("--label=").split("=") for flag in container["args"] if "--label=" in flag)
        for _, _, container in workloads(objects)
        if container["name"] == "worker"
    ]
    assert sorted(map(str, wanted)) == sorted(map(str, labels))


def test_an_autoscaler_asks_for_what_the_adapter_makes_of_a_figure_of_workers() -> None:
    objects = objects_of(renderers.kustomized("autoscaled"))
    spec = objects["HorizontalPodAutoscaler", "hoss-worker-service"]["spec"]
    (metric,) = spec["metrics"]
    (rule,) = yaml.safe_load((DEPLOY / "prometheus/adapter.yaml").read_text())["rules"]["custom"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    assert rule["seriesQuery"].startswith(BUSY.name + "{")
    target = spec["scaleTargetRef"]
    assert "replicas" not in objects[target["kind"], target["name"]]["spec"]


def test_a_pool_of_the_chart_has_its_image_configuration_and_places(tmp_path: Path) -> None:
    pool = {
        "name": "fast",
        "replicas": 3,
        "image": "plugins:1",
        "config": {"alternates": 4},
        "resources": {"requests": {"cpu": "2"}},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "nodeSelector": {"big": "yes"},
        "extraEnv": [{"name": "OWN", "value": "1"}],
    }
    common = {
        "extraEnv": [{"name": "ALL", "value": "1"}],
        "nodeSelector": {"role": "system"},
        "imagePullSecrets": [{"name": "registry"}],
        "otel": {"endpoint": "http://collector.observability:4318"},
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"pools": [pool], **common}))
    objects = objects_of(renderers.templated("--values", str(tmp_path / "values.yaml")))
    spec = objects["Deployment", "hoss-worker-fast"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (spec["replicas"], container["image"]) == (3, "plugins:1")
    assert container["resources"] == pool["resources"]
    assert [variable["name"] for variable in container["env"]][-2:] == ["ALL", "OWN"]
    assert spec["template"]["spec"]["tolerations"] == pool["tolerations"]
    (tmp_path / "worker.yaml").write_text(objects["ConfigMap", "hoss-worker-fast"]["data"]["worker.yaml"])
    flags = [flag.replace("/etc/hoss", str(tmp_path)) for flag in container["args"][1:]]
    assert scheduler_worker._config(scheduler_worker._parser().parse_args(flags)).alternates == 4
    for name, template, of_any in workloads(objects):
        places = pool if name == "hoss-worker-fast" else common
        assert template["spec"]["nodeSelector"] == places["nodeSelector"]
        assert template["spec"]["imagePullSecrets"] == common["imagePullSecrets"]
        if of_any["name"] != "redis":
            endpoints = [v for v in of_any["env"] if v["name"] == "OTEL_EXPORTER_OTLP_ENDPOINT"]
            assert [v["value"] for v in endpoints] == [common["otel"]["endpoint"]]  # type: ignore[index]
    egress = objects["NetworkPolicy", "hoss-worker"]["spec"]["egress"]
    assert {"ports": [{"port": 4318}]} in egress


def test_the_pools_that_the_page_describes_have_profiles_of_kube_schedulers_own_file(tmp_path: Path) -> None:
    page = (DEPLOY.parent / "docs/kubernetes.md").read_text()
    (block,) = (
        text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "schedulerName:" in text
    )
    (tmp_path / "this.yaml").write_text(block)
    (flag,) = re.findall(r"--set-file kubeSchedulerConfig=(\S+)", block)
    flags = (
        "--set-file",
        f"kubeSchedulerConfig={DEPLOY.parent / flag}",
        "--values",
        str(tmp_path / "this.yaml"),
    )
    objects = objects_of(renderers.templated(*flags))
    policy = objects["ConfigMap", "hoss-dispatcher"]["data"]["policy.yaml"]
    assert document_warnings(parse_policy(policy)) == []
    (tmp_path / "config.yaml").write_text(objects["ConfigMap", "hoss-kube-scheduler"]["data"]["config.yaml"])

    def profile_of(deployment: str) -> str:
        pod = objects["Deployment", deployment]["spec"]["template"]["spec"]
        given = [
            flag.replace("/etc/hoss-kube-scheduler", str(tmp_path)) for flag in pod["containers"][0]["args"]
        ]
        config = scheduler_worker._config(scheduler_worker._parser().parse_args(given[1:]))
        assert (config.kube_scheduler_config is not None) == ("kube-scheduler" in str(pod["volumes"]))
        return chosen_profile(config, REGISTRY)[0]

    assert profile_of("hoss-worker") == "hoss"
    assert profile_of("hoss-worker-gpu") == "hoss-gpu"


@pytest.mark.parametrize(
    ("value", "restarted"),
    [
        ("dispatcher.kubernetes.lease_seconds=9", {"hoss-dispatcher"}),
        ("redis.url=redis://elsewhere:6379/0", {"hoss-dispatcher", "hoss-resolver"}),
        ("worker.config.alternates=3", {"hoss-worker"}),
        ("authentication.rules[0].role=view", {"hoss-dispatcher", "hoss-resolver"}),
        ("kubeSchedulerConfig=profiles: [{schedulerName: a}],worker.schedulerName=a", {"hoss-worker"}),
        ("policy=kind: SchedulingPolicy", set()),  # it is read again while they run
    ],
)
def test_a_release_restarts_what_reads_a_changed_configuration_when_it_starts(
    value: str, restarted: set[str]
) -> None:
    def annotations(*flags: str) -> dict[str, Any]:
        objects = objects_of(renderers.templated(*flags))
        return {
            name: template["metadata"].get("annotations")
            for name, template, _ in workloads(objects)
            if name != "hoss-redis"
        }

    before, after = annotations(), annotations("--set", value)
    assert {name for name in before if before[name] != after[name]} == restarted


@pytest.mark.parametrize(
    ("pools", "problem"),
    [
        ('[{"name":"a","replicas":1},{"name":"a","replicas":2}]', "two of them have the name a"),
        ('[{"name":"a","autoscaling":{"minReplicas":1,"maxReplicas":2}}]', "set metrics.enabled"),
        (
            '[{"name":"a","autoscaling":{"minReplicas":5,"maxReplicas":2}}]',
            "autoscaling of hoss-worker-a: maxReplicas is 2, less than minReplicas, 5",
        ),
        ('[{"name":"a","replicas":1,"schedulerName":"b"}]', "set kubeSchedulerConfig"),
        ('[{"name":"a","replicas":1,"schedulerName":"b","profile":"c"}]', "give one of the two"),
        ('[{"name":"Not_a_name","replicas":1}]', "values don't meet"),
        ('[{"replicas":1}]', "values don't meet"),
        ('[{"name":"a"}]', "values don't meet"),
    ],
)
def test_the_chart_refuses_pools_that_cannot_be(pools: str, problem: str) -> None:
    metrics = ("--set", "metrics.enabled=true") if "maxReplicas is" in problem else ()
    with pytest.raises(AssertionError, match=problem):
        renderers.templated("--set-json", f"pools={pools}", *metrics)


def test_the_chart_refuses_a_profile_that_the_file_does_not_have() -> None:
    file = "kubeSchedulerConfig=profiles: [{schedulerName: a}, {schedulerName: b}]".replace(",", r"\,")
    with pytest.raises(
        AssertionError, match="hoss-worker: kubeSchedulerConfig has no profile c, it has: a, b"
    ):
        renderers.templated("--set", file, "--set", "worker.schedulerName=c")
    with pytest.raises(AssertionError, match="no profile c, it has: default-scheduler"):
        renderers.templated("--set", "kubeSchedulerConfig=profiles:", "--set", "worker.schedulerName=c")
    renderers.templated("--set", file, "--set", "worker.schedulerName=b")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            'dispatcher.kubernetes={"schedulerNames":["x"]}',
            "at '/dispatcher/kubernetes': additional properties",
        ),
        ('dispatcher.kubernetes={"scheduler_names":"x"}', "at '/dispatcher/kubernetes/scheduler_names': got"),
        ('dispatcher.kubernetes={"lease":"a/b"}', "additional properties 'lease' not allowed"),
        ('worker.config={"alternates":40}', "at '/worker/config/alternates': maximum: got 40, want 15"),
        ('worker.config={"name":"one-for-all"}', "additional properties 'name' not allowed"),
        ('worker.labels={"a":"b c"}', "at '/worker/labels/a': 'b c' does not match pattern"),
        ('worker.labels={"a b":"c"}', "at '/worker/labels': additional properties 'a b' not allowed"),
        ('worker.resources={"requests":{"cpu":"lots"}}', "at '/worker/resources/requests/cpu'"),
        ('pools=[{"name":"a","autoscaling":{}}]', "at '/pools/0/autoscaling': missing property"),
        (
            'authentication={"rules":[{"role":"king"}]}',
            "at '/authentication/rules/0/role': value must be one of",
        ),
        ('extraEnv=[{"name":"A","value":1}]', "at '/extraEnv/0/value': got number, want string"),
        ('tolerations=[{"keyy":"a"}]', "at '/tolerations/0': additional properties 'keyy' not allowed"),
        ('imagePullSecrets=[{"secret":"a"}]', "at '/imagePullSecrets/0': missing property 'name'"),
        ('redis.storage="4GB"', "at '/redis/storage': '4GB' does not match pattern"),
        ('dashboard.ingress.host="hoss example"', "at '/dashboard/ingress/host'"),
        ('policy="no: policy"', "policy: is no document of kind SchedulingPolicy"),
        ('policy="no: [yaml"', "policy: is no YAML mapping: "),
        ('policy="- a list"', "policy: is no YAML mapping: "),
        ('kubeSchedulerConfig="no: [yaml"', "kubeSchedulerConfig: is no YAML mapping: "),
        ('kubeSchedulerConfig="- a list"', "kubeSchedulerConfig: is no YAML mapping: "),
    ],
)
def test_the_chart_refuses_a_wrong_value_at_its_place(value: str, problem: str) -> None:
    """What a service would refuse at its start, or the API server in the midst of an installation."""
    with pytest.raises(AssertionError, match=re.escape(problem)):
        renderers.templated("--set-json", value)


def test_the_notes_say_whose_pods_are_placed_and_whose_bindings_are_reviewed(tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    shutil.copytree(DEPLOY / "helm" / "hoss", chart)
    # `helm template` leaves notes out; what it takes for a manifest it prints.
    notes = chart / "templates" / "NOTES.txt"
    (chart / "templates/notes.yaml").write_text("notes: |\n" + indent(notes.read_text(), "  "))

    def notes_of(*flags: str) -> str:
        return renderers.templated(*flags, "--show-only", "templates/notes.yaml", chart=chart)

    assert "It places pods of spec.schedulerName hoss." in notes_of()
    assert "bindings" not in notes_of()
    names = 'dispatcher.kubernetes={"scheduler_names":["hoss","hoss-gpu"]}'
    told = notes_of("--set-json", names, "--set", "guard.enabled=true")
    assert "spec.schedulerName hoss, hoss-gpu." in told
    assert "kubectl delete validatingwebhookconfiguration hoss-binding-guard" in told
    assert "It places no pod: there is no worker" in notes_of("--set", "worker.enabled=false")


def test_redis_of_the_chart_has_its_storage_class_and_the_priority_of_all_others() -> None:
    objects = objects_of(
        renderers.templated("--set", "redis.storageClassName=fast,priorityClassName=system-cluster-critical")
    )
    spec = objects["StatefulSet", "hoss-redis"]["spec"]
    assert spec["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"
    priorities = {name: template["spec"].get("priorityClassName") for name, template, _ in workloads(objects)}
    assert set(priorities.values()) == {"system-cluster-critical"}


@pytest.mark.parametrize(
    "value", ["tls.enabled=maybe", "tls.certificates=none", "tls.insecure=true", "rediss.url=x"]
)
def test_the_chart_refuses_values_that_it_does_not_know(value: str) -> None:
    with pytest.raises(AssertionError, match=r"values don't meet the specifications"):
        renderers.templated("--set", value)


def test_every_container_is_probed_bounded_and_writes_nowhere(overlay: str) -> None:
    for name, template, container in workloads(objects_of(renderers.kustomized(overlay))):
        assert {"readinessProbe", "livenessProbe"} <= container.keys(), name
        assert container["securityContext"]["readOnlyRootFilesystem"], name
        assert {"cpu", "memory"} == container["resources"]["requests"].keys(), name
        assert "memory" in container["resources"]["limits"], name
        assert "automountServiceAccountToken" in template["spec"], name
        is_asked = any("--webhook-listen" in argument for argument in container.get("args", ()))
        ending = {"preStop": {"sleep": {"seconds": 5}}} if is_asked else None
        assert container.get("lifecycle") == ending, name


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
            own = offered.get(component_of(found["spec"]["podSelector"]), {})
            ports = [port["port"] for rule in found["spec"].get("ingress", ()) for port in rule["ports"]]
            assert set(ports) <= own.keys(), name
