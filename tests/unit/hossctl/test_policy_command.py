"""hoss policy: get, set and test."""

import json

import pytest

from hoss.v1 import dispatcher_pb2

POLICY = """\
apiVersion: hoss.dev/v1alpha1
kind: SchedulingPolicy
rules:
  - name: gold
    match: {priority: {min: 100}}
    workers: {matchLabels: {tier: gold}}
    nodes: {matchLabels: {pool: fast}, partition: Soft}
    conflicts: {criteria: Version, displace: {minPriorityGap: 500}}
  - name: rest
    match: {ownerKinds: [Pod]}
"""
PODS = """\
apiVersion: v1
kind: Pod
metadata: {name: urgent}
spec: {priority: 500, containers: [{name: c, image: x}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: report, namespace: night}
spec: {completions: 3, parallelism: 3, template: {spec: {containers: [{name: c, image: x}]}}}
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "pods.yaml").write_text(PODS)
    return "-f", "pods.yaml", "--policy", "policy.yaml"


def test_a_trial_without_a_dispatcher_says_rule_worker_and_why(hoss, files):
    result = hoss("policy", "test", *files, "--workers", "a:tier=gold", "--workers", "b", "-o", "json")
    assert result.exit_code == 0
    urgent, report = json.loads(result.stdout)["pods"]
    assert (urgent["rule"], urgent["worker"]) == ("gold", "a")
    assert urgent["nodes"] == {"selector": "pool=fast", "partition": "Soft"}
    assert urgent["conflicts"] == {
        "criteria": "Version",
        "commit": "Incremental",
        "displace": {"minPriorityGap": 500},
    }
    assert report["conflicts"] is None
    assert [(w["worker"], w["eligible"], w["reason"]) for w in urgent["workers"]] == [
        ("a", True, ""),
        ("b", False, "does not match tier=gold"),
    ]
    assert (report["kind"], report["namespace"], report["replicas"]) == ("Job", "night", 3)
    assert (report["rule"], report["worker"], report["reason"]) == ("", "", "no rule of the policy matches")
    assert [r["reason"] for r in report["rules"]] == [
        "priority: 0 is below 100",
        "ownerKinds: Job is not Pod",
    ]


def test_a_trial_is_told_to_people_in_full(hoss, files):
    result = hoss("policy", "test", *files, "--workers", "a:tier=gold")
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[0] == "pod default/urgent: rule gold, worker a: the only one that fits and takes pods now"
    assert lines[1] == "  to be placed rather on nodes with pool=fast"
    assert lines[2] == (
        "  conflicts: criteria Version, commit Incremental, "
        "displaces unconfirmed pods whose priority is lower by 500 or more"
    )
    assert "job night/report (3 pods): no rule, waits: no rule of the policy matches" in lines
    assert "warning: no rule matches every pod" in result.stderr


def test_a_trial_asks_the_dispatcher_where_no_workers_are_given(hoss, files):
    result = hoss("policy", "test", *files[:2], "-o", "json")
    document = json.loads(result.stdout)
    assert (document["version"], document["pods"][0]["reason"]) == (7, "asked with ''")
    assert POLICY.splitlines()[0] in hoss("policy", "test", *files).stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("-f", "pods.yaml", "--workers", "a"), "--policy: is missing"),
        (("-f", "none.yaml"), "none.yaml: cannot be read"),
        (("-f", "policy.yaml"), "policy.yaml"),
        (("-f", "pods.yaml", "--policy", "none.yaml"), "none.yaml: cannot be read"),
        (("-f", "pods.yaml", "--policy", "pods.yaml", "--workers", "a"), "policy"),
        (("-f", "pods.yaml", "--policy", "policy.yaml", "--workers", "a:x"), "'x' is no label"),
    ],
)
def test_bad_input_is_refused_with_its_place(hoss, files, arguments, told):
    result = hoss("policy", "test", *arguments)
    assert result.exit_code == 2
    assert told in result.stderr


def test_get_tells_where_the_policy_came_from_and_what_was_refused(hoss):
    hoss.dispatcher.policy.refusal.CopyFrom(
        dispatcher_pb2.PolicyRefusal(source="file p", reason="rules: is empty")
    )
    result = hoss("policy", "get")
    assert result.stdout == "rules: []\n"
    assert result.stderr.startswith("nightly, version 3, by command, for ")
    assert "from file p: rules: is empty" in result.stderr
    document = json.loads(hoss("policy", "get", "-o", "json").stdout)
    assert (document["version"], document["source"], document["yaml"]) == (3, "command", "rules: []\n")
    assert document["refusal"]["reason"] == "rules: is empty"


def test_set_names_the_version_it_replaces(hoss, files):
    result = hoss("policy", "set", "-f", "policy.yaml", "--if-version", "4")
    assert "policy version 5 is in force" in result.stderr
    assert "warning: a rule is odd" in result.stderr


def test_status_tells_the_policy_and_its_warnings(hoss):
    hoss.dispatcher.policy.warnings.append("rule gold: no node matches pool=fast")
    assert "nightly, version 3" in hoss("status").stdout
    assert "no node matches pool=fast" in hoss("status").stdout
    document = json.loads(hoss("status", "-o", "json").stdout)
    assert document["dispatcher"]["policy"]["warnings"] == ["rule gold: no node matches pool=fast"]
