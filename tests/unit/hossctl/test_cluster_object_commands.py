"""Namespaces, services, budgets and priority classes on the command line: submit, get, delete."""

import json

import pytest

from hoss.model.cluster import ObjectKey

BUDGET = """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, namespace: shop}
spec: {minAvailable: 50%, selector: {matchExpressions: [{key: app, operator: In, values: [web, api]}]}}
"""
NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: a}}\n"
SERVICE = (
    "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {selector: {app: web}}\n"
)
CLASS = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 1000\n"
ALL = f"{BUDGET}---\n{NAMESPACE}---\n{SERVICE}---\n{CLASS}"
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c}]\n"


def test_submitting_says_of_each_object_what_became_of_it(hoss):
    result = hoss("submit", "-f", "-", stdin=ALL)
    assert (result.exit_code, result.stderr.splitlines()) == (
        0,
        [
            "PodDisruptionBudget shop/web created",
            "Namespace shop created",
            "Service shop/web created",
            "PriorityClass high created",
        ],
    )
    assert "Namespace shop unchanged" in hoss("submit", "-f", "-", stdin=NAMESPACE).stderr


def test_objects_in_a_list_are_taken_one_by_one(hoss):
    items = [
        json.loads(json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": n}}))
        for n in "ab"
    ]
    result = hoss(
        "submit",
        "-f",
        "-",
        "-o",
        "json",
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}),
    )
    assert json.loads(result.stdout)["objects"] == [
        {"object": "Namespace a", "result": "created"},
        {"object": "Namespace b", "result": "created"},
    ]


@pytest.mark.parametrize(
    ("kind", "output", "shown"),
    [
        ("pdb", "table", (
            "NAME   MIN AVAILABLE   MAX UNAVAILABLE   ALLOWED DISRUPTIONS\n"
            "web    50%             N/A               1")),
        ("pdb", "wide", (
            "NAME   MIN AVAILABLE   MAX UNAVAILABLE   ALLOWED DISRUPTIONS   HEALTHY   DESIRED   SELECTOR\n"
            "web    50%             N/A               1                     3/4       2         "
            "app in (api,web)")),
        ("services", "table", "NAME   SELECTOR\nweb    app=web"),
        ("svc", "name", "service/web"),
    ],
)  # fmt: skip
def test_objects_of_a_namespace_are_listed_as_kubectl_does(hoss, kind, output, shown):
    hoss("submit", "-f", "-", stdin=ALL)
    assert hoss("get", kind, "-n", "shop", "-o", output).stdout == shown + "\n"


def test_a_budget_says_how_it_stands_in_kubernetes_words(hoss):
    hoss("submit", "-f", "-", stdin=ALL)
    document = json.loads(hoss("get", "pdb", "web", "-n", "shop", "-o", "json").stdout)
    numbers = {
        key: document[key]
        for key in ("expectedPods", "currentHealthy", "desiredHealthy", "disruptionsAllowed")
    }
    assert list(numbers.values()) == [4, 3, 2, 1]
    assert document["minAvailable"] == "50%"


def test_one_object_is_one_document(hoss):
    hoss("submit", "-f", "-", stdin=ALL)
    document = json.loads(hoss("get", "ns", "shop", "-o", "json").stdout)
    assert document["labels"] == {"kubernetes.io/metadata.name": "shop", "team": "a"}
    assert hoss("get", "priorityclasses", "-o", "name").stdout == "priorityclass/high\n"


def test_deleting_by_manifest_takes_what_it_names(hoss, a_pod):
    hoss.dispatcher.pods = [a_pod("p")]
    hoss("submit", "-f", "-", stdin=ALL)
    result = hoss("delete", "-f", "-", stdin=NAMESPACE + "---\n" + POD)
    assert (result.exit_code, result.stderr) == (0, "Namespace shop deleted\ndeleted 1 pod\n")
    assert ObjectKey("Namespace", "", "shop") not in hoss.dispatcher.objects


def test_deleting_by_kind_and_name_tells_what_was_not_there(hoss):
    hoss("submit", "-f", "-", stdin=ALL)
    result = hoss("delete", "pdb", "web", "none", "-n", "shop")
    assert result.exit_code == 1
    assert "PodDisruptionBudget shop/web deleted" in result.stderr
    assert "PodDisruptionBudget shop/none: not there in namespace shop" in result.stderr


@pytest.mark.parametrize(
    "arguments", [("delete",), ("delete", "pod", "p", "-f", "x"), ("delete", "namespace")]
)
def test_deleting_nothing_in_particular_is_refused_with_the_remedy(hoss, arguments):
    result = hoss(*arguments)
    assert result.exit_code == 2
    assert "error: " in result.stderr


def affinity(**term) -> str:
    term = {"topologyKey": "zone", "labelSelector": {}, **term}
    rules = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return POD + "  affinity: " + json.dumps({"podAntiAffinity": rules}) + "\n"


@pytest.mark.parametrize(
    ("manifest", "warning"),
    [
        (affinity(namespaces=["shop", "nowhere"]), "looks at namespace 'nowhere', which does not exist"),
        (
            affinity(namespaceSelector={"matchLabels": {"team": "b"}}),
            "selects none of the namespaces there are",
        ),
        (POD + "  priorityClassName: low\n", "there is no PriorityClass 'low', so the priority is 0"),
    ],
)
def test_what_refers_to_nothing_is_accepted_with_a_warning(hoss, manifest, warning):
    hoss("submit", "-f", "-", stdin=ALL)
    result = hoss("submit", "-f", "-", stdin=manifest)
    assert result.exit_code == 0
    assert result.stderr.count("warning: ") == 1
    assert warning in result.stderr


@pytest.mark.parametrize(
    "manifest",
    [
        affinity(namespaces=["shop", "default"]),
        affinity(namespaceSelector={"matchLabels": {"team": "a"}}),
        affinity(namespaceSelector={}),
        POD + "  priorityClassName: high\n",
        POD + "  priorityClassName: system-node-critical\n",
    ],
)
def test_what_is_there_is_not_warned_of(hoss, manifest):
    hoss("submit", "-f", "-", stdin=ALL)
    assert "warning" not in hoss("submit", "-f", "-", stdin=manifest).stderr
