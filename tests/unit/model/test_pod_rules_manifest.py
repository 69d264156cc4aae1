"""Affinity to pods, spreading, images, gates and preemption policy, as manifests say them."""

import pytest

from hoss.errors import InvalidInput
from hoss.model.pod import PodAffinityTerm, SpreadConstraint
from hoss.model.selectors import LabelSelector, Requirement

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WEB = LabelSelector((Requirement("app", "In", ("web",)),))
SELECTS_WEB = {"matchLabels": {"app": "web"}}


def near(**term):
    return {"podAffinity": {REQUIRED: [{"topologyKey": "zone", "labelSelector": SELECTS_WEB, **term}]}}


def constraint(**fields):
    return {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", **fields}


def test_a_term_without_namespaces_is_about_the_pods_own(template):
    (term,) = template(affinity=near()).spec.pod_affinity.required
    assert term == PodAffinityTerm("zone", WEB, ("default",))


def test_a_namespace_selector_stands_alone_or_beside_names(template):
    (term,) = template(affinity=near(namespaceSelector={})).spec.pod_affinity.required
    assert (term.namespaces, term.namespace_selector) == ((), LabelSelector())
    (term,) = template(affinity=near(namespaces=["b", "a", "b"])).spec.pod_affinity.required
    assert (term.namespaces, term.namespace_selector) == (("a", "b"), None)


def test_a_missing_selector_is_none_and_an_empty_one_selects_everything(template):
    (term,) = template(affinity=near(labelSelector=None)).spec.pod_affinity.required
    assert term.selector is None
    (term,) = template(affinity=near(labelSelector={})).spec.pod_affinity.required
    assert term.selector.everything


def test_match_label_keys_become_requirements_once_and_for_all(template):
    labels = {"labels": {"hash": "x1", "tenant": "t"}}
    keys = {"matchLabelKeys": ["hash", "absent"], "mismatchLabelKeys": ["tenant"]}
    (merged,) = template(metadata=labels, affinity=near(**keys)).spec.pod_affinity.required
    assert merged.selector.requirements == (
        Requirement("app", "In", ("web",)),
        Requirement("hash", "In", ("x1",)),
        Requirement("tenant", "NotIn", ("t",)),
    )
    stored = {
        "matchLabels": {"app": "web"},
        "matchExpressions": [
            {"key": "hash", "operator": "In", "values": ["x1"]},
            {"key": "tenant", "operator": "NotIn", "values": ["t"]},
        ],
    }
    again = template(metadata=labels, affinity=near(**keys, labelSelector=stored))
    assert again.spec.pod_affinity.required == (merged,)


def test_a_constraint_has_the_api_servers_defaults(template):
    (read,) = template(topologySpreadConstraints=[constraint(labelSelector=SELECTS_WEB)]).spec.spread
    assert read == SpreadConstraint(1, "zone", WEB, required=True, min_domains=1)
    assert (read.honor_node_affinity, read.honor_taints) == (True, False)


def test_pods_that_say_the_same_in_another_order_are_equal(template):
    one, other = (
        {"podAntiAffinity": {REQUIRED: [{"topologyKey": key, "labelSelector": SELECTS_WEB} for key in keys]}}
        for keys in (("zone", "rack"), ("rack", "zone"))
    )
    assert template(affinity=one) == template(affinity=other)


def test_pods_without_rules_say_nothing(template):
    spec = template(affinity={"podAffinity": {}, "podAntiAffinity": {REQUIRED: []}}).spec
    assert (spec.pod_affinity, spec.spread, spec.scheduling_gates, spec.may_preempt) == (None, (), (), True)


def test_an_image_without_a_tag_has_the_tag_latest(template):
    containers = [
        {"name": n, "image": i} for n, i in (("a", "nginx"), ("b", "host:5000/tool"), ("c", "x@sha256:0"))
    ]
    volumes = [{"name": "v", "image": {"reference": "data:1"}}]
    spec = template(containers=containers, volumes=volumes).spec
    assert spec.images == ("data:1", "host:5000/tool:latest", "nginx:latest", "x@sha256:0")
    assert spec.image_containers == 3


def test_pod_level_resources_count_once_the_pod_is_bound(template):
    spec = template({"cpu": "1", "memory": "1Gi"}, resources={"requests": {"cpu": "3"}}).spec
    assert (spec.nonzero_cpu_milli, spec.pending_nonzero) == (3000, (1000, 2**30))


BAD = {
    "no topology key": (
        {"affinity": near(topologyKey="")},
        "spec.affinity.podAffinity." + REQUIRED + "[0].topologyKey: is missing",
    ),
    "a topology key that is none": (
        {"affinity": near(topologyKey="a b")},
        "topologyKey: 'a b' is no valid key",
    ),
    "an operator for nodes": (
        {
            "affinity": near(
                labelSelector={"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}
            )
        },
        "labelSelector.matchExpressions[0].operator: is 'Gt'; allowed: In, NotIn, Exists, DoesNotExist",
    ),
    "In without values": (
        {
            "affinity": near(
                labelSelector={"matchExpressions": [{"key": "a", "operator": "In", "values": []}]}
            )
        },
        "labelSelector.matchExpressions[0].values: is empty; In takes at least one value",
    ),
    "a weight beyond 100": (
        {
            "affinity": {
                "podAffinity": {PREFERRED: [{"weight": 101, "podAffinityTerm": {"topologyKey": "zone"}}]}
            }
        },
        "weight: is 101; it must lie between 1 and 100",
    ),
    "keys without a selector": (
        {"affinity": near(labelSelector=None, matchLabelKeys=["a"])},
        "matchLabelKeys: stands without a labelSelector",
    ),
    "keys that exclude each other": (
        {"affinity": near(matchLabelKeys=["a"], mismatchLabelKeys=["a"])},
        "mismatchLabelKeys: 'a' stands in matchLabelKeys too",
    ),
    "a skew of zero": ({"topologySpreadConstraints": [constraint(maxSkew=0)]}, "[0].maxSkew: is 0"),
    "minDomains with ScheduleAnyway": (
        {"topologySpreadConstraints": [constraint(whenUnsatisfiable="ScheduleAnyway", minDomains=2)]},
        "[0].minDomains: stands beside ScheduleAnyway",
    ),
    "an unknown action": (
        {"topologySpreadConstraints": [constraint(whenUnsatisfiable="Maybe")]},
        "whenUnsatisfiable: is 'Maybe'; allowed: DoNotSchedule, ScheduleAnyway",
    ),
    "one pair twice": (
        {"topologySpreadConstraints": [constraint(), constraint()]},
        "[1]: repeats topologyKey 'zone'",
    ),
    "an unknown preemption policy": ({"preemptionPolicy": "Always"}, "spec.preemptionPolicy: is 'Always'"),
    "a grace period below zero": (
        {"terminationGracePeriodSeconds": -1},
        "spec.terminationGracePeriodSeconds: is -1; it must lie between 0 and 2147483",
    ),
    "a gate without a name": ({"schedulingGates": [{}]}, "spec.schedulingGates[0].name: '' is no valid key"),
}


@pytest.mark.parametrize(("fields", "problem"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_meant_is_refused_with_its_place(template, fields, problem):
    with pytest.raises(InvalidInput) as raised:
        template(**fields)
    assert problem in str(raised.value)
