"""Manifests of Namespace, Service, PodDisruptionBudget and PriorityClass."""

import pytest

from hoss.errors import InvalidInput
from hoss.manifests.cluster_objects import read_cluster_object
from hoss.model.cluster import Namespace, PodDisruptionBudget, PriorityClass, Service, Threshold
from hoss.model.selectors import LabelSelector, Requirement

GROUPS = {"PodDisruptionBudget": "policy", "PriorityClass": "scheduling.k8s.io"}


def read(kind, *, namespace=None, labels=None, name="n", **fields):
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return read_cluster_object({"metadata": metadata, **fields}, kind, GROUPS.get(kind, ""))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (read("Namespace", labels={"team": "a"}), Namespace("n", (("team", "a"),))),
        (
            read("Service", spec={"selector": {"b": "2", "a": "1"}}),
            Service("default", (("a", "1"), ("b", "2")), "n"),
        ),
        (read("Service", namespace="x", spec={"selector": {}}), Service("x", None, "n")),
        (
            read("PodDisruptionBudget", spec={"selector": {"matchLabels": {"a": "1"}}, "minAvailable": 2}),
            PodDisruptionBudget(
                "default", "n", LabelSelector((Requirement("a", "In", ("1",)),)), Threshold(2)
            ),
        ),
        (
            read("PodDisruptionBudget", spec={"selector": {}, "maxUnavailable": "100%"}),
            PodDisruptionBudget("default", "n", LabelSelector(), None, Threshold(100, percent=True)),
        ),
        (
            read("PriorityClass", value=-5, globalDefault=True, preemptionPolicy="Never"),
            PriorityClass("n", -5, never_preempts=True, global_default=True),
        ),
    ],
)
def test_objects_are_read_with_kubernetes_defaults(found, expected):
    assert found == expected


@pytest.mark.parametrize(
    ("kind", "group"), [("Service", "serving.knative.dev"), ("ConfigMap", ""), ("Namespace", "x")]
)
def test_other_kinds_and_groups_are_none_of_these(kind, group):
    assert read_cluster_object({"metadata": {"name": "n"}}, kind, group) is None


def budget(**spec):
    return "PodDisruptionBudget", {"spec": {"selector": {}, **spec}}


@pytest.mark.parametrize(
    ("kind", "fields", "problem"),
    [
        (*budget(minAvailable=1, maxUnavailable=1), r"spec\.maxUnavailable: stands beside minAvailable"),
        (
            *budget(minAvailable="101%"),
            r"spec\.minAvailable: is '101%'; write a number of pods, or a percentage",
        ),
        (*budget(minAvailable="-1%"), r"from 0% to 100%"),
        (*budget(maxUnavailable=-1), r"spec\.maxUnavailable: is -1; it must lie between 0"),
        (
            *budget(maxUnavailable=1.5),
            r"spec\.maxUnavailable: is 1\.5, where a number of pods or a percentage",
        ),
        (*budget(minAvailable=True), r"spec\.minAvailable: is true, where"),
        (
            *budget(selector={"matchExpressions": [{"key": "a", "operator": "In"}]}),
            r"spec\.selector\.matchExpressions\[0\]\.values: is empty; In takes at least one value",
        ),
        (
            *budget(selector={"matchExpressions": [{"key": "a", "operator": "Near"}]}),
            r"operator: is 'Near'; allowed: In, NotIn, Exists, DoesNotExist",
        ),
        ("PodDisruptionBudget", {}, r"spec: is missing"),
        ("Namespace", {"name": "a.b"}, r"metadata\.name: 'a\.b' is no valid namespace"),
        ("Service", {"name": ""}, r"metadata\.name: is missing; a Service has a name"),
        ("Service", {"spec": {"selector": ["a"]}}, r"spec\.selector: is a list, where a mapping belongs"),
        ("PriorityClass", {}, r"value: is missing"),
        ("PriorityClass", {"value": 2_000_000_000}, r"value: is 2000000000; it must lie between"),
        ("PriorityClass", {"value": 1, "name": "system-mine"}, r"is the system's own"),
        (
            "PriorityClass",
            {"value": 1, "preemptionPolicy": "Maybe"},
            r"preemptionPolicy: is 'Maybe'; allowed",
        ),
    ],
)
def test_what_is_malformed_is_refused_with_place_and_remedy(kind, fields, problem):
    with pytest.raises(InvalidInput, match=problem):
        read(kind, **fields)
