"""Bad policies, bad submissions, bad workers: each is refused with the place, the value and what would be
right."""

from pathlib import Path
from textwrap import dedent

import pytest

from dispatcher.api.intake import read_order
from dispatcher.core.policy.checks import document_warnings
from dispatcher.core.policy.rules import Algorithm, Balance, Fallback
from dispatcher.policy.documents import DEFAULT_YAML, parse_policy
from dispatcher.workers.link import read_outcomes, read_registration
from hoss.errors import ConfigError, InvalidInput
from hoss.model.conflicts import ConflictRule, Criteria
from hoss.v1 import common_pb2, workerlink_pb2
from hoss.v1 import dispatcher_pb2 as pb

HEAD = "apiVersion: hoss.dev/v1alpha1\nkind: SchedulingPolicy\n"


def test_a_policy_document_becomes_rules():
    policy = parse_policy(
        HEAD
        + """
rules:
  - name: gpu
    match:
      resources: [nvidia.com/gpu]
      labels: {matchExpressions: [{key: tier, operator: In, values: [a, b]}]}
      priority: {min: 10}
    workers: {matchLabels: {role: gpu}}
    balance: {algorithm: ConsistentHash}
    fallback: NextRule
  - name: rest
"""
    )
    gpu, rest = policy.rules
    assert (gpu.balance.algorithm, gpu.fallback, gpu.match.priority_min) == (
        Algorithm.CONSISTENT_HASH,
        Fallback.NEXT_RULE,
        10,
    )
    assert str(gpu.workers) == "role=gpu"
    assert (rest.balance.algorithm, rest.fallback) == (Algorithm.LEAST_OUTSTANDING, Fallback.WAIT)


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ("[]", ["rules", "is an empty list"]),
        (
            "[{name: a, balance: {algorithm: Luck}}]",
            ["rules[0].balance.algorithm", "'Luck'", "LeastOutstanding"],
        ),
        (
            "[{name: a, balance: {algorithm: Random, bound: 2}}]",
            ["rules[0].balance", "bound is a parameter of ConsistentHash, not of Random"],
        ),
        ("[{name: a, balance: {algorithm: ConsistentHash, bound: 0.5}}]", ["rules[0].balance.bound", "0.5"]),
        (
            "[{name: a, balance: {algorithm: PowerOfTwoChoices, choices: 9}}]",
            ["rules[0].balance.choices", "9"],
        ),
        (
            "[{name: a, balance: {algorithm: WeightedRoundRobin, weightLabel: '-'}}]",
            ["weightLabel", "no valid key"],
        ),
        ("[{name: a, nodes: {partition: Soft}}]", ["rules[0].nodes", "selects every node"]),
        (
            "[{name: a, nodes: {matchLabels: {pool: b}, partition: Half}}]",
            ["rules[0].nodes.partition", "'Half'"],
        ),
        (
            "[{name: a, match: {labels: {matchExpressions: [{key: x, operator: In, values: [a b]}]}}}]",
            ["rules[0].match.labels.matchExpressions[0]", "'a b'"],
        ),
        ("[{name: a, fallback: Never}]", ["rules[0].fallback", "'Never'", "AnyWorker"]),
        ("[{name: a, wrkers: {}}]", ["rules[0].wrkers", "is no field here", "did you mean 'workers'?"]),
        ("[{name: a}, {name: a}]", ["rules", "must differ"]),
        (
            "[{name: a, match: {priority: {min: 5, max: 1}}}]",
            ["rules[0].match.priority", "min 5 is above max 1"],
        ),
        (
            "[{name: a, workers: {matchLabels: {'-x': y}}}]",
            ["rules[0].workers.matchLabels", "-x", "no valid key"],
        ),
        (
            "[{name: a, workers: {matchExpressions: [{key: x, operator: Exists, values: [y]}]}}]",
            ["rules[0].workers.matchExpressions[0]", "takes no values"],
        ),
        (
            "[{name: a, workers: {matchExpressions: [{key: x, operator: Gt, values: [many]}]}}]",
            ["takes one whole number", "many"],
        ),
        (
            "[{name: a, match: {qosClasses: [Best]}}]",
            ["rules[0].match.qosClasses[0]", "'Best'", "Guaranteed"],
        ),
    ],
)
def test_a_bad_policy_names_the_field_the_value_and_what_is_right(rules, told):
    with pytest.raises(ConfigError) as caught:
        parse_policy(HEAD + f"rules: {rules}\n")
    assert all(text in str(caught.value) for text in told), str(caught.value)


def test_balance_and_nodes_have_their_parameters():
    gpu, rest = parse_policy(
        HEAD
        + """
metadata: {name: two-pools, generation: 7}
rules:
  - name: gpu
    match: {resources: [nvidia.com/gpu]}
    balance: {algorithm: ConsistentHash, bound: 1.5}
    nodes: {matchLabels: {pool: gpu}, matchExpressions: [{key: zone, operator: NotIn, values: [c]}]}
  - name: rest
    balance: {algorithm: PowerOfTwoChoices, choices: 3}
    nodes: {matchLabels: {pool: cpu}, partition: Soft}
"""
    ).rules
    assert (gpu.balance, rest.balance) == (
        Balance(Algorithm.CONSISTENT_HASH, bound=1.5),
        Balance(Algorithm.POWER_OF_TWO_CHOICES, choices=3),
    )
    assert (str(gpu.nodes), gpu.nodes.rule, gpu.nodes.required) == ("pool=gpu,zone notin (c)", "gpu", True)
    assert rest.nodes.required is False


def test_a_policy_has_the_name_of_its_metadata():
    assert parse_policy(HEAD + "metadata: {name: nightly}\nrules: [{name: a}]\n").name == "nightly"
    assert parse_policy(DEFAULT_YAML).name == "default"
    with pytest.raises(ConfigError, match=r"metadata.name"):
        parse_policy(HEAD + "metadata: {name: No Name}\nrules: [{name: a}]\n")


def test_the_example_policies_leave_no_doubt():
    root = Path(__file__).parents[3]
    manual = (root / "docs/operations/policy.md").read_text()
    example = manual[manual.index("    apiVersion: hoss.dev/v1alpha1\n    kind: SchedulingPolicy") :]
    for text in ((root / "deploy/policy.yaml").read_text(), dedent(example[: example.index("\n\n|")])):
        assert document_warnings(parse_policy(text)) == []


def submit(**changes):
    template = pb.PodTemplate(spec=common_pb2.PodSpec(namespace="default"))
    request = pb.SubmitRequest(templates=[template])
    for name, value in changes.items():
        if name in {"amount", "namespace", "qos", "asked", "movable", "twice"}:
            continue
        getattr(request, name).MergeFrom(value) if name != "jobs" else request.jobs.extend(value)
    if "amount" in changes:
        template = request.templates[0]
        template.spec.requests.add(resource="cpu", amount=changes["amount"])
    if "namespace" in changes:
        request.templates[0].spec.namespace = changes["namespace"]
    for field in ("labels", "node_selector"):
        if changes.get("twice") == field:
            for value in ("a", "b"):
                getattr(request.templates[0].spec, field).add(key="zone", value=value)
    if "qos" in changes:
        request.templates[0].qos_class = changes["qos"]
    request.templates[0].required_during_execution = changes.get("asked", "")
    request.templates[0].movable = changes.get("movable", "")
    return request


JOB = [pb.Job(name="a", template=0, replicas=1)]


@pytest.mark.parametrize(
    ("request_message", "told"),
    [
        (submit(), "give jobs, or pods with names"),
        (
            submit(jobs=[pb.Job(name="a", template=1, replicas=1)]),
            "jobs[0].template: 1 names no template; there are 1",
        ),
        (submit(jobs=[pb.Job(name="a", replicas=0)]), "jobs[0].replicas: 0 is not from 1 to 10000000"),
        (submit(jobs=[pb.Job(name="a", replicas=10_000_001)]), "jobs[0].replicas"),
        (submit(jobs=[pb.Job(name="", replicas=1)]), "jobs[0].name: '' is no valid name"),
        (submit(jobs=JOB, amount=2**53 + 1), "templates[0].spec.requests: 9007199254740993 of 'cpu'"),
        (submit(jobs=JOB, amount=-1), "templates[0].spec.requests: -1 of 'cpu' is not from 0 to 2^53"),
        (
            submit(jobs=JOB, twice="labels"),
            "templates[0].spec.labels: the label 'zone' is named twice",
        ),
        (
            submit(jobs=JOB, twice="node_selector"),
            "templates[0].spec.node_selector: the label 'zone' is named twice",
        ),
        (submit(jobs=JOB, namespace=""), "templates[0].spec.namespace: '' is no valid namespace"),
        (submit(jobs=JOB, qos="Better"), "templates[0].qos_class: 'Better' is none of BestEffort"),
        (
            submit(jobs=JOB, asked="no"),
            "templates[0].required_during_execution: is 'no'; allowed: report, evict",
        ),
        (
            submit(jobs=JOB, movable="maybe"),
            """templates[0].movable: is 'maybe'; allowed: "true", "false\"""",
        ),
        (submit(pods=pb.PodList(names=["a"], templates=b"\0" * 3)), "pods.templates: 3 bytes"),
        (submit(pods=pb.PodList(names=["a"], templates=b"\0" * 8)), "pods.templates: 2 rows where 1"),
        (submit(pods=pb.PodList(names=["a"], templates=b"\1\0\0\0")), "pods.templates: 1 names no template"),
        (submit(pods=pb.PodList(names=["A"], templates=b"\0" * 4)), "pods.names: 'A' is no valid name"),
        (submit(pods=pb.PodList(names=["a"], templates=b"\0" * 4, uids=b"\0" * 32)), "uids: 2 rows where 1"),
    ],
)
def test_a_bad_submission_names_the_field_and_the_value(request_message, told):
    with pytest.raises(InvalidInput) as caught:
        read_order(request_message)
    assert told in str(caught.value)


@pytest.mark.parametrize("packs", [False, True])
def test_a_registration_says_whether_the_worker_packs(packs):
    assert read_registration(workerlink_pb2.Register(name="w", window=1, packs=packs), 7).packs is packs


@pytest.mark.parametrize(
    ("register", "told"),
    [
        (workerlink_pb2.Register(name="", window=1), "register.name: is empty"),
        (workerlink_pb2.Register(name="w", window=0), "register.window: 0 is not from 1"),
        (
            workerlink_pb2.Register(
                name="w",
                window=1,
                labels=[common_pb2.Label(key="a", value="1"), common_pb2.Label(key="a", value="2")],
            ),
            "register.labels: 'a' is given twice ('1' and '2')",
        ),
        (
            workerlink_pb2.Register(name="w", window=1, labels=[common_pb2.Label(key="a b")]),
            "'a b' is no valid key",
        ),
        (
            workerlink_pb2.Register(name="w", window=1, bind_seconds={"VolumeBinding": float("nan")}),
            "register.bind_seconds[VolumeBinding]: is nan; it is a number of seconds",
        ),
        (
            workerlink_pb2.Register(name="w", window=1, bind_seconds={"DynamicResources": -1}),
            "register.bind_seconds[DynamicResources]: is -1.0",
        ),
        (
            workerlink_pb2.Register(name="w", window=1, bind_seconds={"DynamicResources": 0}),
            "register.bind_seconds[DynamicResources]: is 0.0; it is at least 1 second",
        ),
    ],
)
def test_a_bad_registration_is_refused(register, told):
    with pytest.raises(InvalidInput) as caught:
        read_registration(register, 1)
    assert told in str(caught.value)


def test_a_registration_says_how_long_pods_wait_for_what_two_plugins_bind():
    register = workerlink_pb2.Register(name="w", window=1, bind_seconds={"VolumeBinding": 5, "Mine": -1})
    assert read_registration(register, 1).bind_seconds == {"VolumeBinding": 5.0}


def test_outcome_columns_of_different_length_are_refused():
    with pytest.raises(InvalidInput, match=r"outcomes.codes: 1 rows where 2"):
        read_outcomes(workerlink_pb2.Outcomes(positions=b"\0" * 8, codes=b"\1", nodes=b"\0" * 8), 1)


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ("", ConflictRule()),
        ("conflicts: {}", ConflictRule()),
        ("conflicts: {criteria: Version}", ConflictRule(Criteria.VERSION)),
        (
            "conflicts: {criteria: Strict, commit: AllOrNothing}",
            ConflictRule(Criteria.STRICT, all_or_nothing=True),
        ),
        ("conflicts: {displace: {minPriorityGap: 100}}", ConflictRule(displace_gap=100)),
    ],
)
def test_a_rule_says_how_conflicts_of_its_pods_are_decided(written, rule):
    text = f"apiVersion: hoss.dev/v1alpha1\nkind: SchedulingPolicy\nrules:\n  - name: a\n    {written}\n"
    assert parse_policy(text).rules[0].conflicts == rule


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("{criteria: Lenient}", "rules[0].conflicts.criteria"),
        ("{commit: Sometimes}", "rules[0].conflicts.commit"),
        ("{displace: {}}", "rules[0].conflicts.displace.minPriorityGap"),
        ("{displace: {minPriorityGap: 0}}", "rules[0].conflicts.displace.minPriorityGap"),
        (
            "{displace: {minPriorityGap: 5}, commit: AllOrNothing}",
            "displace is for pods that are reserved one by one",
        ),
    ],
)
def test_a_rule_that_decides_conflicts_in_a_way_there_is_not_is_refused_with_its_place(written, complaint):
    head = "apiVersion: hoss.dev/v1alpha1\nkind: SchedulingPolicy\n"
    text = f"{head}rules:\n  - name: a\n    conflicts: {written}\n"
    with pytest.raises(ConfigError) as refused:
        parse_policy(text)
    assert complaint in str(refused.value)
