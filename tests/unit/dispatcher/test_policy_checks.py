"""Warnings about a policy by itself, and where it does not fit the cluster."""

import pytest

from dispatcher.core.policy.checks import PolicyContext, cluster_warnings, document_warnings
from dispatcher.policy.documents import DEFAULT_YAML, parse_policy

HEAD = "apiVersion: hoss.dev/v1alpha1\nkind: SchedulingPolicy\n"


def policy(rules):
    return parse_policy(f"{HEAD}rules: {rules}\n")


def label(key, operator, *values):
    expression = f"{{key: {key}, operator: {operator}, values: {list(values)}}}"
    return f"match: {{labels: {{matchExpressions: [{expression}]}}}}"


@pytest.mark.parametrize(
    ("earlier", "later", "hidden"),
    [
        ("", "match: {resources: [x.io/y]}", True),
        ("match: {namespaces: [a, b]}", "match: {namespaces: [b]}", True),
        ("match: {namespaces: [a]}", "match: {namespaces: [a, b]}", False),
        ("match: {namespaces: [a]}", "match: {resources: [x.io/y]}", False),
        ("match: {namespaces: [a]}", "match: {namespaces: [a], resources: [x.io/y]}", True),
        ("match: {priority: {min: 5}}", "match: {priority: {min: 6, max: 9}}", True),
        ("match: {priority: {min: 5}}", "match: {priority: {max: 9}}", False),
        ("match: {priority: {max: 9}}", "match: {priority: {max: 8}}", True),
        (label("app", "In", "a", "b"), label("app", "In", "b"), True),
        (label("app", "In", "b"), label("app", "In", "a", "b"), False),
        (label("app", "Exists"), label("app", "In", "b"), True),
        (label("app", "Exists"), label("app", "Gt", "3"), True),
        (label("app", "NotIn", "c"), label("app", "In", "b"), True),
        (label("app", "NotIn", "c"), label("app", "DoesNotExist"), True),
        (label("app", "NotIn", "c"), label("app", "NotIn", "c", "d"), True),
        (label("app", "NotIn", "c", "d"), label("app", "NotIn", "c"), False),
        (label("app", "Gt", "3"), label("app", "Gt", "4"), True),
        (label("app", "Lt", "3"), label("app", "Lt", "4"), False),
        (label("app", "Gt", "3"), label("app", "In", "4", "5"), True),
        (label("app", "In", "b"), label("tier", "In", "b"), False),
        ("fallback: NextRule", "match: {resources: [x.io/y]}", False),
        ("fallback: AnyWorker", "match: {resources: [x.io/y]}", True),
    ],
)
def test_a_rule_behind_one_that_matches_all_its_pods_is_never_reached(earlier, later, hidden):
    first = f"{{name: first{', ' if earlier else ''}{earlier}}}"
    told = document_warnings(policy(f"[{first}, {{name: second, {later}}}]"))
    assert any(
        text.startswith("rule second is never reached: rule first before it matches every pod")
        for text in told
    ) == (hidden)


def test_the_default_policy_leaves_no_doubt():
    assert document_warnings(parse_policy(DEFAULT_YAML)) == []


def test_pods_that_nobody_takes_are_warned_of():
    assert document_warnings(policy("[{name: a, match: {namespaces: [b]}}]")) == [
        "no rule matches every pod: pods that match none wait until the policy changes"
    ]


def test_next_rule_on_the_last_rule_is_warned_of():
    assert document_warnings(policy("[{name: a, fallback: NextRule}]")) == [
        "rule a is the last one, so its fallback NextRule is as good as Wait"
    ]


def test_a_rule_whose_labels_contradict_each_other_matches_no_pod():
    expression = "{key: app, operator: NotIn, values: [x]}"
    rules = f"{{name: a, match: {{labels: {{matchLabels: {{app: x}}, matchExpressions: [{expression}]}}}}}}"
    assert document_warnings(policy(f"[{rules}, {{name: rest}}]")) == [
        "rule a matches no pod: no value of label app meets app=x,app notin (x)"
    ]


AROUND = PolicyContext(
    workers=({"role": "gpu"}, {}),
    nodes=({"pool": "gpu"},),
    resources=frozenset({"cpu", "x.io/y"}),
    priority_classes=frozenset({"high"}),
    waiting={"gold": 1200},
)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("workers: {matchLabels: {role: gpu}}", None),
        (
            "workers: {matchLabels: {role: gold}}",
            "no registered worker matches role=gold; its pods wait for one (1,200 wait now)",
        ),
        (
            "workers: {matchLabels: {role: gold}}, fallback: AnyWorker",
            "no registered worker matches role=gold; any worker gets its pods (1,200 wait now)",
        ),
        ("nodes: {matchLabels: {pool: gpu}}", None),
        ("nodes: {matchLabels: {pool: cpu}}", "no node matches pool=cpu; its pods stay unschedulable"),
        ("nodes: {matchLabels: {pool: cpu}, partition: Soft}", "no node matches pool=cpu; it prefers none"),
        ("match: {resources: [cpu, x.io/z]}", "no node offers the resource x.io/z"),
        ("match: {priorityClassNames: [high, system-node-critical]}", None),
        ("match: {priorityClassNames: [hihg]}", "no pod here has the priority class hihg"),
    ],
)
def test_what_does_not_fit_the_cluster_is_told_while_it_lasts(rule, told):
    assert cluster_warnings(policy(f"[{{name: gold, {rule}}}]"), AROUND) == (
        [f"rule gold: {told}"] if told else []
    )
