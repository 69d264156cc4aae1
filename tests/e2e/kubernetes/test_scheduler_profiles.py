"""One file of kind KubeSchedulerConfiguration for a real kube-scheduler and for HOSS: the same nodes are
chosen, and the same files refused. HOSS serves all profiles of the file at once, each by a worker of its
own."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import assigned, reserved
from e2e.kubernetes.api import Api, events_of, node_of, placed, told
from waiting import wait_until

from hoss.errors import ConfigError, HossError
from hossctl.local.control_plane import ControlPlane
from scheduler_worker.config import WorkerConfig, chosen_profile
from scheduler_worker.core.plugins import REGISTRY

HOSTNAME = "kubernetes.io/hostname"
QUOTES = str.maketrans("", "", "\\\"'")  # they differ, and a log line escapes them
WIDGET = "example.com/widget"

PACKING = """
percentageOfNodesToScore: 100
plugins:
  multiPoint: {disabled: [{name: ImageLocality}]}
pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 3}, {name: memory}]}}
  - {name: InterPodAffinity, args: {ignorePreferredTermsOfExistingPods: true}}
"""
TUNED = """
plugins:
  score:
    disabled: [{name: ImageLocality}]
    enabled: [{name: NodeResourcesFit, weight: 2}]
pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: RequestedToCapacityRatio
        resources: [{name: cpu, weight: 1}]
        requestedToCapacityRatio:
          shape: [{utilization: 0, score: 0}, {utilization: 50, score: 10}, {utilization: 100, score: 0}]
  - name: NodeResourcesBalancedAllocation
    args: {resources: [{name: cpu}, {name: memory}, {name: example.com/widget}]}
  - {name: InterPodAffinity, args: {hardPodAffinityWeight: 100}}
  - name: NodeAffinity
    args:
      addedAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms: [{matchExpressions: [{key: retired, operator: DoesNotExist}]}]
  - name: PodTopologySpread
    args:
      defaultingType: List
      defaultConstraints: [{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: ScheduleAnyway}]
"""
BY_ROOM = """
plugins:
  score: {disabled: [{name: "*"}], enabled: [{name: NodeResourcesFit, weight: 1000}]}
"""
STRICT = """
pluginConfig:
  - name: PodTopologySpread
    args:
      defaultingType: List
      defaultConstraints: [{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}]
"""
PROFILES = {"plain": "", "packing": PACKING, "tuned": TUNED, "by-room": BY_ROOM, "strict": STRICT}


def pod_terms(app: str, *, required: bool) -> dict[str, Any]:
    """Affinity to pods of an app on the same host; preferred with weight 50."""
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": app}}}
    if required:
        return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    preferred = [{"weight": 50, "podAffinityTerm": term}]
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


@dataclass(frozen=True)
class Case:
    """Nodes of 4 cpu and 8Gi by letter, the pods that are there by node, and a pod that comes. The default
    profile places it on `plain`, the profile under test elsewhere."""

    profile: str
    plain: str
    elsewhere: str
    nodes: dict[str, dict[str, Any]]
    there: tuple[tuple[str, dict[str, Any]], ...] = ()
    comes: dict[str, Any] | None = None


# More than any other score: the racks must forbid what this prefers.
NEAR = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "preference": {"matchExpressions": [{"key": "near", "operator": "In", "values": ["yes"]}]},
            }
        ]
    }
}
LIGHT, HALF, HEAVY = ({"cpu": f"{m}m", "memory": f"{2 * m}Mi"} for m in (200, 2000, 3600))
CASES = {
    "the-fuller-node": Case("packing", "b", "a", {"a": {}, "b": {}}, (("a", HALF),)),
    "no-preference-of-others": Case(
        "packing",
        "a",
        "b",
        {"a": {}, "b": {}},
        (("a", {**LIGHT, "affinity": pod_terms("ignored", required=False)}), ("b", HALF)),
        {"metadata": {"labels": {"app": "ignored"}}},
    ),
    "the-half-full-node": Case("tuned", "a", "b", {"a": {}, "b": {}, "c": {}}, (("b", HALF), ("c", HEAVY))),
    "what-others-require": Case(
        "tuned",
        "b",
        "a",
        {"a": {}, "b": {}},
        (
            ("a", {**LIGHT, "affinity": pod_terms("hard", required=True)}),
            ("b", {**LIGHT, "affinity": pod_terms("hard", required=False)}),
        ),
        {"metadata": {"labels": {"app": "hard"}}},
    ),
    "no-retired-node": Case(
        "tuned", "b", "a", {"a": {}, "b": {"labels": {"retired": "yes"}}}, (("a", HEAVY),)
    ),
    "other-racks": Case(
        "tuned",
        "c",
        "b",
        {name: {"labels": {"rack": rack}} for name, rack in (("a", "1"), ("b", "2"), ("c", "1"))},
        (("a", {**LIGHT, "metadata": {"labels": {"app": "spread"}}}), ("b", HEAVY)),
        {"metadata": {"labels": {"app": "spread"}}},
    ),
    "only-other-racks": Case(
        "strict",
        "c",
        "b",
        {
            name: {"labels": {"rack": rack, "near": near}}
            for name, rack, near in (("a", "1", "no"), ("b", "2", "no"), ("c", "1", "yes"))
        },
        (("a", {**LIGHT, "metadata": {"labels": {"app": "spread"}}}), ("b", HEAVY)),
        {"metadata": {"labels": {"app": "spread"}}, "affinity": NEAR},
    ),
    "widgets-in-balance": Case(
        "tuned",
        "a",
        "b",
        {name: {"extended": {WIDGET: "4"}} for name in ("a", "b")},
        (("b", {"cpu": "100m", "memory": "200Mi", "extended": {WIDGET: "2"}}),),
        {"cpu": "2", "memory": "4Gi", "extended": {WIDGET: "1"}},
    ),
    "room-and-nothing-else": Case(
        "by-room",
        "b",
        "a",
        {"a": {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}, "b": {}},
        (("b", LIGHT),),
    ),
}


@pytest.fixture
def configuration(tmp_path: Path, own_control_plane: ControlPlane) -> Path:
    """The file of both."""
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": str(own_control_plane.scheduler_kubeconfig),
            "qps": 500,
            "burst": 500,
        },
        "profiles": [
            {"schedulerName": name, **(yaml.safe_load(text) or {})} for name, text in PROFILES.items()
        ],
    }
    path = tmp_path / "scheduler.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
def hoss(tmp_path: Path, own_control_plane: ControlPlane, configuration: Path) -> Iterator[Cluster]:
    """A platform that takes the pods of all profiles, and of one that the file does not have. It has no
    worker yet."""
    names = [*PROFILES, "missing"]
    dispatcher, policy = tmp_path / "dispatcher.yaml", tmp_path / "policy.yaml"
    head = {"apiVersion": "hoss.dev/v1alpha1"}
    settings = {"kind": "DispatcherConfig", "kubernetes": {"scheduler_names": names}}
    dispatcher.write_text(yaml.safe_dump({**head, **settings}))
    rules = [
        {"name": name, "match": {"schedulerNames": [name]}, "workers": {"matchLabels": {"profile": name}}}
        for name in names
    ]
    policy.write_text(
        yaml.safe_dump({**head, "kind": "SchedulingPolicy", "metadata": {"name": "profiles"}, "rules": rules})
    )
    made = Cluster(
        tmp_path / "hoss",
        kubeconfig=own_control_plane.kubeconfig,
        policy=policy,
        dispatcher_flags=["--config", str(dispatcher)],
        worker_flags=["--kube-scheduler-config", str(configuration)],
    )
    yield made
    made.stop()


def furnish(api: Api) -> None:
    """Nodes of their own for each case and profile, and the pods that are there."""
    service = {
        "metadata": {"name": "spread"},
        "spec": {"selector": {"app": "spread"}, "ports": [{"port": 80}]},
    }
    api("POST", "/api/v1/namespaces/default/services", service)
    for title, case in CASES.items():
        for profile in ("plain", case.profile):
            of_case = f"{title}-{profile}"
            for name, options in case.nodes.items():
                labels = {"case": of_case, **options.get("labels", {})}
                api.create_node(f"{of_case}-{name}", **{**options, "labels": labels})
            for number, (node, options) in enumerate(case.there):
                api.create_pod(f"there-{of_case}-{number}", nodeName=f"{of_case}-{node}", **options)


def place(api: Api) -> dict[str, str]:
    """Create each case's pod, once for the default profile and once for the one under test; their nodes by
    pod. The pods are deleted again."""
    pods = [f"{title}-{profile}" for title, case in CASES.items() for profile in ("plain", case.profile)]
    for title, case in CASES.items():
        for profile in ("plain", case.profile):
            name = f"{title}-{profile}"
            api.create_pod(name, scheduler=profile, nodeSelector={"case": name}, **(case.comes or {}))
    nodes = {name: placed(api, name).removeprefix(f"{name}-") for name in pods}
    for name in pods:
        api.delete_pod(name)
    return nodes


def test_every_profile_of_the_file_chooses_the_nodes_that_kube_scheduler_chooses_by_it(
    own_control_plane: ControlPlane, configuration: Path, hoss: Cluster
) -> None:
    api = Api(own_control_plane)
    furnish(api)
    expected = {}
    for title, case in CASES.items():
        expected |= {f"{title}-plain": case.plain, f"{title}-{case.profile}": case.elsewhere}
    own_control_plane.start_scheduler(configuration)
    assert place(api) == expected, "kube-scheduler"
    own_control_plane.kill("kube-scheduler")
    for profile in PROFILES:
        hoss.start_worker(f"{profile}-1", f"profile={profile}", options=["--profile", profile])
    wait_until(lambda: reserved(hoss) == assigned(api), "HOSS knows the pods that are there")
    assert place(api) == expected, "HOSS"
    api.create_pod("without-a-profile", scheduler="missing")
    api.create_pod("somebody-elses", scheduler="nobody")
    reason = str(wait_until(lambda: told(api, "without-a-profile"), "the pod says why it waits"))
    assert "missing" in reason
    assert not node_of(api, "without-a-profile")
    assert (node_of(api, "somebody-elses"), told(api, "somebody-elses")) == ("", "")
    assert events_of(api, "somebody-elses") == []


HEAD = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
A = {"schedulerName": "a"}


def enabled(point: str, *plugins: str) -> dict[str, Any]:
    return {"profiles": [{**A, "plugins": {point: {"enabled": [{"name": name} for name in plugins]}}}]}


def arguments(plugin: str, **args: Any) -> dict[str, Any]:
    return {"profiles": [{**A, "pluginConfig": [{"name": plugin, "args": args}]}]}


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "a wrong version": ({"apiVersion": "kubescheduler.config.k8s.io/v1beta3"}, "no kind"),
    "a wrong kind": ({"kind": "SchedulerConfiguration"}, "is registered for version"),
    "an unknown field": ({"profiles": [{**A, "colour": "red"}]}, "unknown field profiles[0].colour"),
    "no name": ({"profiles": [A, {}]}, "profiles[1].schedulerName: Required value"),
    "one name twice": (
        {"profiles": [A, A]},
        "profiles[1].schedulerName: Duplicate value",
    ),
    "a percentage": (
        {"percentageOfNodesToScore": 101},
        "percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]",
    ),
    "no parallelism": (
        {"parallelism": 0},
        "parallelism: Invalid value: 0: should be an integer value greater than zero",
    ),
    "an unknown plugin": (enabled("score", "Nope"), "ScorePlugin Nope does not exist"),
    "an unknown plugin at all points": (enabled("multiPoint", "Nope"), "PreFilterPlugin Nope does not exist"),
    "an unknown argument": (arguments("NodeResourcesFit", colour="red"), "strict decoding error: "),
    "arguments of another version": (
        arguments(
            "NodeResourcesFit", apiVersion="kubescheduler.config.k8s.io/v1beta3", kind="NodeResourcesFitArgs"
        ),
        "no kind NodeResourcesFitArgs is registered for version kubescheduler.config.k8s.io/v1beta3",
    ),
    "arguments of another plugin": (
        arguments("NodeResourcesFit", apiVersion=HEAD["apiVersion"], kind="InterPodAffinityArgs"),
        "args for plugin NodeResourcesFit were not of type NodeResourcesFitArgs.kubescheduler.config.k8s.io",
    ),
    "a plugin at a point of others": (
        enabled("score", "NodeName"),
        "plugin NodeName does not extend ScorePlugin plugin",
    ),
    "a plugin twice": (
        enabled("score", "NodeAffinity", "NodeAffinity"),
        "plugin NodeAffinity already registered",
    ),
    "arguments twice": (
        {"profiles": [{**A, "pluginConfig": [{"name": "NodeAffinity"}, {"name": "NodeAffinity"}]}]},
        "profiles[0].pluginConfig[1]: Duplicate value: NodeAffinity",
    ),
    "a weight of what is required": (
        arguments("InterPodAffinity", hardPodAffinityWeight=101),
        "args.hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]",
    ),
    "a weight of the balance": (
        arguments("NodeResourcesBalancedAllocation", resources=[{"name": "cpu", "weight": 2}]),
        "args.resources[0].weight: Invalid value: 2: must be 1",
    ),
    "a weight of a resource": (
        arguments(
            "NodeResourcesFit",
            scoringStrategy={"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 101}]},
        ),
        "Invalid value: 101: resource weight of cpu not in valid range (0, 100]",
    ),
    "an unknown strategy": (
        arguments("NodeResourcesFit", scoringStrategy={"type": "Best"}),
        "scoringStrategy.type: Unsupported value: Best",
    ),
    "a strategy without its shape": (
        arguments("NodeResourcesFit", scoringStrategy={"type": "RequestedToCapacityRatio"}),
        "scoringStrategy.requestedToCapacityRatio: Required value",
    ),
    "constraints beside the system's": (
        arguments("PodTopologySpread", defaultConstraints=[{"maxSkew": 1}]),
        "args.defaultingType: Invalid value: System: when .defaultConstraints are not empty",
    ),
}


def test_what_kube_scheduler_refuses_is_refused_in_its_words(
    own_control_plane: ControlPlane, tmp_path: Path
) -> None:
    connection = {
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(own_control_plane.scheduler_kubeconfig)},
    }
    path = tmp_path / "broken.yaml"
    differences = []
    for title, (document, words) in BROKEN.items():
        path.write_text(yaml.safe_dump({**HEAD, **connection, **document}))
        with pytest.raises(HossError, match="ended with code 1") as theirs:
            own_control_plane.start_scheduler(path)
        with pytest.raises(ConfigError) as ours:
            chosen_profile(WorkerConfig(kube_scheduler_config=path, profile="a"), REGISTRY)
        last_words = str(theirs.value).splitlines()[-1], str(ours.value)
        for who, text in zip(("kube-scheduler", "HOSS"), last_words, strict=True):
            if words not in text.translate(QUOTES):
                differences.append((title, who, text))
    assert differences == []
